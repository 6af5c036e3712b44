"""Messages: large bodies, JSON, ack ids, topics, and other small parts."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.subscriptions.dead_letters import with_dead_letters
from octavo.broker.types import AckId, SubscriptionSettings, TopicName
from octavo.client.producer import producer_id_of
from octavo.protocol.ack_ids import each, in_ranges, one, parts_of, shown, span_of
from octavo.protocol.backoff import Backoff
from octavo.protocol.json_message import (
    CONTROLS_FROM_BYTES,
    COST_NS_MAX,
    FRACTIONS_MAX,
    Shown,
    show_value,
    stored_value,
)
from octavo.protocol.large import (
    LARGE_HEADER,
    PIECE_HEADER,
    Assembler,
    BodyTooLong,
    BrokenBody,
    Cutter,
    LargeBody,
    Piece,
    large_body_of,
    piece_of,
    piece_record,
)
from octavo.protocol.leased import Leased, Run, runs_of
from octavo.protocol.log_limiter import _SUBJECTS_MAX, TOLD_EVERY_S, LogLimiter, host_of
from octavo.protocol.numbers import producer_number, whole
from octavo.protocol.records import Record, build_batch, read_records
from octavo.protocol.topic_patterns import InvalidPattern, TopicPattern

PIECE = 7
"""Bytes, in place of a mebibyte."""
BODIES = st.binary(max_size=60)


def cut(body: bytes, upload: str = "u", rng: random.Random | None = None) -> list[Piece]:
    """Return its pieces, each through a batch, when it comes in parts of any length."""
    cutter, found = Cutter(upload, 100, PIECE), list[bytes]()
    at = 0
    while at < len(body):
        size = len(body) if rng is None else rng.randrange(1, 20)
        found += cutter.feed(body[at : at + size])
        at += size
    if rest := cutter.rest():
        found.append(rest)
    assert all(len(one) == PIECE for one in found[:-1])
    assert cutter.body() == LargeBody(len(body), len(found), f"{crc32c(body):08x}", upload)
    return [*through_batches(upload, found)]


def through_batches(upload: str, parts: list[bytes]) -> Iterator[Piece]:
    for index, data in enumerate(parts):
        (record,) = read_records(build_batch([piece_record(upload, index, data, 1)]))
        yield piece_of(record)


def described(body: bytes, upload: str = "u") -> LargeBody:
    return LargeBody(len(body), -(-len(body) // PIECE), f"{crc32c(body):08x}", upload)


def assembled(pieces: list[Piece], body: LargeBody) -> bytes | None:
    assembler, found = Assembler(body), b""
    for piece in pieces:
        try:
            found += assembler.take(piece)
        except BrokenBody:
            return None
    return found if assembler.is_whole else None


@given(BODIES, st.randoms(use_true_random=False))
def test_however_it_comes_in_it_comes_out_as_it_was(body: bytes, rng: random.Random) -> None:
    pieces = cut(body, rng=rng)
    if body:
        assert assembled(pieces, described(body)) == body
    assert large_body_of([("x", b"y"), described(body).header()]) == described(body)


@given(st.lists(BODIES, min_size=1, max_size=3), st.randoms(use_true_random=False), st.data())
def test_of_interleaved_uploads_nothing_but_a_whole_body_comes_out(
    bodies: list[bytes], rng: random.Random, data: st.DataObject
) -> None:
    """Lost, repeated, mixed and damaged pieces: the output is the body, or nothing."""
    uploads = {f"u{number}": body for number, body in enumerate(bodies)}
    pieces = [piece for upload, body in uploads.items() for piece in cut(body, upload)]
    for _ in range(data.draw(st.integers(0, 4))):
        if not pieces:
            break
        at = rng.randrange(len(pieces))
        change = data.draw(st.sampled_from(["lose", "repeat", "swap", "damage", "renumber"]))
        if change == "lose":
            del pieces[at]
        elif change == "repeat":
            pieces.insert(rng.randrange(len(pieces) + 1), pieces[at])
        elif change == "swap":
            other = rng.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        elif change == "damage":
            pieces[at] = pieces[at]._replace(data=rng.randbytes(len(pieces[at].data)))
        else:
            pieces[at] = pieces[at]._replace(number=rng.randrange(5))
    upload = data.draw(st.sampled_from([*uploads]))
    body = uploads[upload]
    # All pieces, as they lie between other uploads' pieces; and only the pieces with its own id.
    for those in (pieces, [piece for piece in pieces if piece.upload == upload]):
        assert assembled(those, described(body, upload)) in (None, body)


@given(BODIES)
def test_an_abandoned_upload_is_never_whole(body: bytes) -> None:
    pieces = cut(body)
    for kept in range(len(pieces)):
        assert assembled(pieces[:kept], described(body)) is None


def test_what_is_wrong_is_said() -> None:
    body = b"0123456789"
    first, second = cut(body)
    assembler = Assembler(described(body))
    assembler.take(first)
    with pytest.raises(BrokenBody, match="piece 0 of 2 stands where piece 1 belongs"):
        assembler.take(first)
    with pytest.raises(BrokenBody, match="piece 1 is of upload 'other', not 'u'"):
        assembler.take(second._replace(upload="other"))
    with pytest.raises(BrokenBody, match="have 10 bytes with checksum"):
        assembler.take(second._replace(data=b"abc"))


def test_more_than_there_may_be_is_refused_when_it_comes() -> None:
    cutter = Cutter("u", 10, PIECE)
    assert [*cutter.feed(b"0123456789")] == [b"0123456"]
    with pytest.raises(BodyTooLong, match="more than 10 bytes"):
        [*cutter.feed(b"x")]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(PIECE_HEADER, None)],
        [(PIECE_HEADER, b"u")],
        [(PIECE_HEADER, b"u:-1")],
        [(PIECE_HEADER, b"\xff:\xff")],
        [(PIECE_HEADER, b"u:1234567890")],
    ],
)
def test_a_record_that_is_no_piece_is_none(headers: list[tuple[str, bytes | None]]) -> None:
    with pytest.raises(BrokenBody, match="among the pieces"):
        piece_of(Record(None, b"x", headers))


@given(st.one_of(st.none(), st.binary(max_size=80)))
def test_a_header_that_is_not_ours_says_nothing(text: bytes | None) -> None:
    found = large_body_of([(LARGE_HEADER, text)])
    assert found is None or isinstance(found, LargeBody)
    assert large_body_of([(LARGE_HEADER, b'{"size": -1}')]) is None


# A stored value as JSON: a value that takes a broker long to read is shown unread. 4 MiB of
MEMBERS = COST_NS_MAX // 225
"""Each costs a colon and a comma."""


def _lists(count: int) -> bytes:
    return b"[" + b",".join([b"[]"] * count) + b"]"


def _members(count: int) -> bytes:
    return b"{" + b",".join(b'"%d":0' % n for n in range(count)) + b"}"


def _fractions(count: int) -> bytes:
    return b"[" + b",".join([b"0.5"] * count) + b"]"


@pytest.mark.parametrize(
    ("least", "most"),
    [
        (_lists(60_000), _lists(62_000)),
        (_members(MEMBERS - 10), _members(MEMBERS + 10)),
        (_fractions(FRACTIONS_MAX), _fractions(FRACTIONS_MAX + 1)),
    ],
)
def test_json_of_very_many_parts_is_shown_as_text(least: bytes, most: bytes) -> None:
    assert show_value(least) == Shown(msgspec.Raw(least))
    assert show_value(most) == Shown(text=most.decode())


@pytest.mark.parametrize("size", [CONTROLS_FROM_BYTES - 1, CONTROLS_FROM_BYTES])
def test_a_long_value_of_control_characters_is_shown_as_base64(size: int) -> None:
    is_long = size >= CONTROLS_FROM_BYTES
    few = bytes(size // 4) + b"x" * (size - size // 4)
    assert show_value(few) == Shown(text=few.decode())
    many = bytes(size // 4 + 1) + b"x" * (size - size // 4 - 1)
    assert show_value(many) == (Shown(base64=many) if is_long else Shown(text=many.decode()))


PARTS = st.sampled_from([b"[", b"]", b"{", b"}", b'"a":', b",", b"0.5", b"1e5", b"0", b"\n", b"\0"])


@given(st.lists(PARTS, max_size=30), st.integers(1, 20_000))
def test_each_byte_can_be_had_again(parts: list[bytes], times: int) -> None:
    stored = b"".join(parts) * times
    value, text, base64 = show_value(stored)
    assert stored_value(value if value is not None else msgspec.UNSET, text, base64) == stored
    if isinstance(value, msgspec.Raw):
        json.loads(bytes(value))


# Ack ids of ranges, and the headers of an answer in batches.
LEASES = st.sampled_from(["8-3", "8-4", "9-3"])
IDS = st.lists(st.builds(one, st.integers(0, 2), st.integers(0, 30), LEASES), unique=True)


@given(IDS)
def test_ranges_name_the_same_messages_in_the_same_order(ack_ids: list[str]) -> None:
    assert list(each(in_ranges(ack_ids))) == ack_ids


@given(st.integers(0, 9), st.integers(0, 100), st.integers(1, 1000))
def test_what_one_receive_gave_is_one_range(partition: int, start: int, count: int) -> None:
    ack_ids = [one(partition, offset, "8-3") for offset in range(start, start + count)]
    assert in_ranges(ack_ids) == [shown(partition, start, start + count, "8-3")]


@pytest.mark.parametrize("text", ["", ":", "5:", ":5", "5:5", "6:5", "-1", "a", "1:2:3", "1:b"])
def test_no_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"range of|invalid literal"):
        span_of(text)


@given(
    st.sets(st.integers(0, 60), min_size=1).map(sorted),
    st.dictionaries(st.integers(0, 60), st.integers(2, 4)),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1),
)
def test_headers_tell_all_of_it(
    offsets: list[int], counts: dict[int, int], entries: list[tuple[int, int]]
) -> None:
    leased = Leased(3, "8-1", runs_of(offsets, counts), entries)
    found = Leased.of(leased.headers())
    assert found == leased
    told = {offset: times for start, end, times in found.runs for offset in range(start, end)}
    assert told == {offset: counts.get(offset, 1) for offset in offsets}


def test_runs_end_where_counts_change() -> None:
    assert runs_of([4, 5, 6, 9], {5: 2, 6: 2}) == [Run(4, 5, 1), Run(5, 7, 2), Run(9, 10, 1)]


def test_an_answer_without_them_is_refused() -> None:
    headers = Leased(0, "8-1", [Run(0, 1, 1)], [(1, 0)]).headers()
    del headers["Octavo-Entries"]
    with pytest.raises(ValueError, match="no header Octavo-Entries"):
        Leased.of(headers)


@pytest.mark.parametrize("epoch", [0, 2**32, 10**19 - 1, 10**19, 2**64 - 1])
def test_every_epoch_of_a_lease_is_read(epoch: int) -> None:
    """Epochs have 64 bits. Those of 20 digits were refused, so half of all subscriptions could
    ack nothing."""
    text = one(3, 41, f"{epoch}-7")
    assert parts_of(text) == ("3", "41", str(epoch), "7")
    assert AckId.parse(text) == AckId(3, 41, epoch, 7)


# Topics by name and by pattern.
@pytest.mark.parametrize(
    ("text", "shown", "wild"),
    [("orders", "public/orders", False), ("ns/orders", "ns/orders", False),
     ("ns/orders-*", "ns/orders-*", True), ("*", "public/*", True), ("ns/??", "ns/??", True)],
)  # fmt: skip
def test_what_is_one(text: str, shown: str, wild: bool) -> None:
    found = TopicPattern.parse(text)
    assert (str(found), found.is_wild) == (shown, wild)


@pytest.mark.parametrize(
    "text", ["", "/", "a/b/c", "n*/t", "ns/", "ns/a b", "ns/[ab]", "é", "ns/."]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(InvalidPattern, match="a name has 1 to 249"):
        TopicPattern.parse(text)


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_it_matches_what_its_regular_expression_matches(pattern: str, name: str) -> None:
    expression = pattern.replace("*", "[ab]*").replace("?", "[ab]")
    assert TopicPattern("ns", pattern).matches(name) == bool(re.fullmatch(expression, name))


@pytest.mark.parametrize(
    ("pattern", "means"),
    [
        ("orders-*", ["orders-eu"]),
        ("*", ["orders-eu"]),
        ("orders-*-dlq", ["orders-eu-billing-dlq"]),
        ("*-retry", ["orders-eu-billing-retry"]),
        ("*y", []),
        ("orders-eu-billing-dlq", ["orders-eu-billing-dlq"]),
    ],
)
def test_it_takes_no_letters_in_unless_it_says_so(pattern: str, means: list[str]) -> None:
    """A consumer of `orders-*` got its own dead letters, and made dead letters of them."""
    made = with_dead_letters(
        TopicName("ns", "orders-eu"),
        "billing",
        SubscriptionSettings(max_deliveries=3, retry_deliveries=1),
    )
    letters = [text.partition("/")[2] for text in (made.dead_letter_topic, made.retry_topic)]
    found = TopicPattern.parse(f"ns/{pattern}")
    assert [name for name in ("orders-eu", *letters) if found.matches(name)] == means


@pytest.mark.parametrize(
    ("pattern", "means"),
    [
        ("orders-*", False),
        ("orders-failed", True),
        ("*-dlq", False),
        ("*", False),
        ("orders-faile?", False),
    ],
)
def test_a_topic_of_letters_is_told_by_what_it_is(pattern: str, *, means: bool) -> None:
    """A dead-letter topic with another name was included, because the name does not tell."""
    found = TopicPattern.parse(f"ns/{pattern}")
    assert found.matches("orders-failed", has_letters=True) == means
    assert TopicPattern.parse("ns/*-dlq").matches("orders-x-dlq", has_letters=True)


def test_no_pattern_takes_long() -> None:
    pattern = TopicPattern("ns", "*a" * 124)
    begun_s = time.perf_counter()
    assert not pattern.matches("a" * 248 + "b")
    assert time.perf_counter() - begun_s < 1.0


# One spelling for one number.
@given(st.integers())
def test_a_number_as_python_writes_it_is_itself(number: int) -> None:
    assert whole(str(number), 2**62, -(2**62)) == (number if abs(number) <= 2**62 else None)


@given(st.text(max_size=6) | st.from_regex(r"[-+ ]?\d[\d_.e]{0,5}\s?", fullmatch=True))
def test_every_other_text_is_none(text: str) -> None:
    found = whole(text, least=-(2**63))
    assert found is None or str(found) == text


@pytest.mark.parametrize(
    ("text", "found"), [("0", 0), ("9", 9), ("10", None), ("-1", None), ("", None)]
)
def test_bounds_belong_to_it(text: str, found: int | None) -> None:
    assert whole(text, 9) == found


@given(st.text(min_size=1, max_size=9))
def test_client_and_broker_number_a_producer_alike(name: str) -> None:
    assert producer_id_of(name, random.Random(1)) == producer_number(name)


def test_two_spellings_are_two_producers() -> None:
    names = ["7", "07", "007", "+7", " 7", "٧", "9223372036854775808"]
    found = [producer_number(name) for name in names]
    assert found[0] == 7
    assert len(set(found)) == len(names)
    assert all(0 <= one < 2**63 for one in found)


# Pauses double up to their bound, and callers that failed together do not come back together.
def test_pauses_double_up_to_the_bound() -> None:
    backoff = Backoff(0.05, 1.0, random.Random(1))
    for most_s in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert backoff.pause_s == most_s
        assert most_s / 2 <= backoff.next_s() <= most_s


def test_without_chance_each_is_as_long_as_it_may_be_and_a_row_may_begin_anew() -> None:
    backoff = Backoff(0.05, 1.0, None)
    assert [backoff.next_s() for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.next_s() == 0.05


def test_a_longer_pause_may_be_asked_for_within_the_bound() -> None:
    backoff = Backoff(0.05, 1.0, random.Random(1))
    backoff.at_least(0.5)
    assert 0.25 <= backoff.next_s() <= 0.5
    backoff.at_least(30.0)
    assert backoff.pause_s == 1.0
    backoff.at_least(0.1)
    assert backoff.pause_s == 1.0


def test_those_who_failed_together_come_back_apart() -> None:
    chance = random.Random(1)
    row = [Backoff(1.0, 8.0, chance) for _ in range(100)]
    for _ in range(4):
        pauses = sorted(one.next_s() for one in row)
    assert pauses[-1] - pauses[0] > 3.0
    assert len(set(pauses)) == 100


# A repeated event makes one line a minute for each subject, however often it comes.
def test_it_is_told_of_once_a_minute_with_how_often_it_came() -> None:
    limiter = LogLimiter()
    told = [limiter.count(100 + number / 100) for number in range(15_000)]
    assert [times for times in told if times] == [1, 6000, 6000]
    assert limiter.count(100 + 4 * TOLD_EVERY_S) == 3000


def test_a_clock_that_begins_at_zero_tells_the_first_time_at_once() -> None:
    assert LogLimiter().count(0.0) == 1


def test_each_subject_has_its_own_line() -> None:
    limiter = LogLimiter()
    hosts = ("10.0.0.7", "10.0.0.8", "::1", "?", "")
    assert [limiter.count(5, host) for host in hosts] == [1, 1, 1, 1, 1]
    assert not any(limiter.count(6, host) for host in hosts)


@pytest.mark.parametrize("seed", range(5))
def test_all_that_came_is_told_in_the_end(seed: int) -> None:
    rng, limiter, now_s = random.Random(seed), LogLimiter(), 0.0
    came = dict.fromkeys("abc", 0)
    told = dict.fromkeys("abc", 0)
    lines: dict[str, list[float]] = {subject: [] for subject in "abc"}
    for _ in range(5000):
        now_s += rng.expovariate(1) * rng.choice((0.01, 1))
        subject = rng.choice("abc")
        came[subject] += 1
        if times := limiter.count(now_s, subject):
            told[subject] += times
            lines[subject].append(now_s)
    now_s += TOLD_EVERY_S
    for subject in came:
        assert limiter.count(now_s, subject) + told[subject] == came[subject] + 1, f"seed {seed}"
        pairs = zip(lines[subject], lines[subject][1:], strict=False)
        assert all(later - sooner >= TOLD_EVERY_S for sooner, later in pairs)


def test_what_is_remembered_is_bounded() -> None:
    limiter, rng = LogLimiter(), random.Random(1)
    for number in range(5 * _SUBJECTS_MAX):
        assert limiter.count(rng.random(), f"host{number}") == 1
        assert len(limiter._told) <= _SUBJECTS_MAX
    assert limiter.count(1, f"host{5 * _SUBJECTS_MAX - 1}") == 0


def test_the_port_is_no_part_of_who_it_is() -> None:
    assert [host_of(peer) for peer in ("10.0.0.7:1", "::1:9", "[::1]:9", "?")] == [
        "10.0.0.7",
        "::1",
        "[::1]",
        "?",
    ]
