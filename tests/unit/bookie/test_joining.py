"""Every place that joins adds or their answers: after a match, each field of the key is varied
alone. v3 adds were once joined over different flags, so an ordinary add behind a recovery add
passed a fence."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from octavo.bookie.adds import AddBatch, split_adds
from octavo.bookie.wire.connection import Answers
from octavo.bookie.wire.v3_adds import Gathering
from octavo.ledger.bookies.connection import BookieConnection
from octavo.protocol import v3
from octavo.protocol.answers import Added, AddRefused, parse_answers
from octavo.protocol.codes import Code
from octavo.protocol.frames import ADD_PREFIX_BYTES, ANSWER, ANSWER_BYTES, LENGTH, Flag, Op, header
from tests.support.raw_bookie import KEY, add_of
from tests.support.v3_frames import add_frame

OTHER_KEY = b"k" * 20
FRAME_BYTES_MAX = 1 << 20
FLAGS = (
    0,
    int(Flag.RECOVERY_ADD),
    int(Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY),
    int(Flag.HIGH_PRIORITY),
    int(Flag.DEFERRED_SYNC),
    int(Flag.RANGE_ACK),
    int(Flag.CRC32C),
)


class Sent(NamedTuple):
    """An add: its bytes, and the fields that decide whether it may be stored with its neighbour."""

    flags: int
    ledger_id: int
    entry_id: int
    key: bytes
    payload: bytes


def adds(*, seed: int, flags: tuple[int, ...]) -> list[Sent]:
    """Draw three joinable adds, then one that differs in one field, then more at random."""
    rng = random.Random(seed)
    kind = rng.choice(flags)
    found = [Sent(kind, 7, entry, KEY, b"payload") for entry in (4, 5, 6)]
    hit = Sent(kind, 7, 7, KEY, b"payload")
    found.append(
        rng.choice(
            (
                hit._replace(flags=rng.choice([one for one in flags if one != kind])),
                hit._replace(ledger_id=8),
                hit._replace(entry_id=rng.choice((6, 8, 5, 0))),
                hit._replace(key=OTHER_KEY),
                hit._replace(payload=b"longer than before"),
            )
        )
    )
    for _ in range(rng.randrange(12)):
        before = found[-1]
        changed = before._replace(entry_id=before.entry_id + 1)
        if rng.random() < 0.4:
            field = rng.choice(("flags", "ledger_id", "key", "payload"))
            values: dict[str, Any] = {
                "flags": rng.choice(flags), "ledger_id": rng.choice((7, 8)),
                "key": rng.choice((KEY, OTHER_KEY)), "payload": rng.choice((b"p", b"qq")),
            }  # fmt: skip
            changed = changed._replace(**{field: values[field]})
        found.append(changed)
    return found


def stored(flags: int, batch: AddBatch) -> list[Sent]:
    """Return a batch's adds with the batch's flags and key, as the bookie treats them."""
    assert batch.recovery == bool(flags & Flag.RECOVERY_ADD)
    ends = [*batch.offsets[1:], len(batch.frames)]
    found = []
    for index, (start, end) in enumerate(zip(batch.offsets, ends, strict=True)):
        frame = batch.frames[start:end]
        own = add_of(
            batch.ledger_id, batch.first_entry + index, payload_of(frame), flags=flags,
            key=batch.key,
        )  # fmt: skip
        assert frame == own, "the journal gets what was sent"
        entry_id = batch.first_entry + index
        found.append(Sent(flags, batch.ledger_id, entry_id, batch.key, payload_of(frame)))
    return found


def payload_of(frame: bytes) -> bytes:
    front = len(add_of(1, 1, b""))
    assert front > ADD_PREFIX_BYTES
    return frame[front:]


def test_the_choices_differ_where_the_bookie_looks() -> None:
    assert len(set(FLAGS)) == len(FLAGS)
    assert {seed_field(seed) for seed in range(200)} == {0, 1, 2, 3, 4}


def seed_field(seed: int) -> int:
    """Return the field in which this seed's fourth add differs."""
    found = adds(seed=seed, flags=FLAGS)
    wanted = found[2]._replace(entry_id=7)
    (index,) = [n for n, (a, b) in enumerate(zip(found[3], wanted, strict=True)) if a != b]
    return index


@pytest.mark.parametrize("seed", range(200))
def test_v2_adds(seed: int) -> None:
    sent = adds(seed=seed, flags=FLAGS)
    data = b"".join(
        add_of(one.ledger_id, one.entry_id, one.payload, flags=one.flags, key=one.key)
        for one in sent
    )
    found = split_adds(memoryview(data), 0, FRAME_BYTES_MAX)
    assert (found.end, found.refused) == (len(data), [])
    assert [one for flags, batch in found.batches for one in stored(flags, batch)] == sent


V3_KINDS = tuple(itertools.product((False, True), (0, 100), (None, 1)))
"""Recovery add, priority, deferred sync."""


def flags_of(recovery: bool, priority: int, wishes: int | None) -> int:
    """Return the v2 flags that the bookie derives from such a v3 add."""
    add = v3.parse_request(
        memoryview(add_frame(7, 4, recovery=recovery, priority=priority, write_flags=wishes))
    )
    assert isinstance(add, v3.Add)
    return add.flags


V3_FLAGS = {flags_of(*kind): kind for kind in V3_KINDS}


def in_v3(one: Sent, txn: int) -> bytes:
    recovery, priority, wishes = V3_FLAGS[one.flags]
    body = add_of(one.ledger_id, one.entry_id, one.payload)[ADD_PREFIX_BYTES:]
    return add_frame(
        one.ledger_id, one.entry_id, txn=txn, body=body, recovery=recovery, priority=priority,
        write_flags=wishes, key=one.key,
    )  # fmt: skip


@pytest.mark.parametrize("by_runs", [True, False])
@pytest.mark.parametrize("seed", range(200))
def test_v3_adds(seed: int, by_runs: bool) -> None:
    assert len(V3_FLAGS) > 1
    sent = adds(seed=seed, flags=tuple(V3_FLAGS))
    data = memoryview(b"".join(in_v3(one, txn) for txn, one in enumerate(sent, 1)))
    gathering, at = Gathering(), 0
    while at < len(data):
        following = at + LENGTH.size + LENGTH.unpack_from(data, at)[0]
        end = gathering.take(data, at, following) if by_runs else at
        if end == at:
            add = v3.parse_request(data[at:following])
            assert isinstance(add, v3.Add)
            gathering.add(add)
            end = following
        at = end
    assert gathering.refused == []
    found = gathering.batches()
    assert [one for each in found for one in stored(each.flags, each.batch)] == sent


@pytest.mark.parametrize("seed", range(100))
def test_ranges_of_acks(seed: int) -> None:
    """The acks that a bookie joins into one `ADDED`; a client joins v2 answers."""
    rng = random.Random(seed)
    acked, entry_id = [], 0
    answers = Answers()
    for _ in range(rng.randint(1, 20)):
        ledger_id = rng.choice((1, 1, 1, 2))
        entry_id += rng.choice((1, 1, 1, 0, 2, -3))
        entry_id = max(0, entry_id)
        last = entry_id + rng.choice((0, 0, 3))
        answers.acked_range(ledger_id, entry_id, last)
        acked += [(ledger_id, one) for one in range(entry_id, last + 1)]
        entry_id = last
    parsed, _ = parse_answers(memoryview(b"".join(answers.take())), FRAME_BYTES_MAX)
    assert [
        (one.ledger_id, entry)
        for one in parsed
        if isinstance(one, Added)
        for entry in range(one.first, one.last + 1)
    ] == acked


@pytest.mark.parametrize("seed", range(100))
def test_answers_to_v2_adds(seed: int) -> None:
    rng = random.Random(seed)
    sent, frames, entry_id = [], [], 0
    for _ in range(rng.randint(1, 20)):
        entry_id = max(0, entry_id + rng.choice((1, 1, 1, 1, 0, 2, -3)))
        code, ledger_id = rng.choice((Code.OK, Code.OK, Code.FENCED)), rng.choice((1, 1, 1, 2))
        sent.append((code, ledger_id, entry_id))
        about = header(Op.ADD, 0, 2)
        frames.append(ANSWER.pack(ANSWER_BYTES - LENGTH.size, about, code, ledger_id, entry_id))
    parsed, _ = parse_answers(memoryview(b"".join(frames)), FRAME_BYTES_MAX)
    found: list[tuple[int, int, int]] = []
    for one in parsed:
        if isinstance(one, Added):
            found += [(Code.OK, one.ledger_id, entry) for entry in range(one.first, one.last + 1)]
        else:
            assert isinstance(one, AddRefused)
            found.append((one.code, one.ledger_id, one.entry_id))
    assert found == sent


@pytest.mark.parametrize("seed", range(100))
def test_refusals_in_rows(seed: int) -> None:
    rng = random.Random(seed)
    refused, entry_id = [], 0
    for _ in range(rng.randint(1, 20)):
        entry_id = max(0, entry_id + rng.choice((1, 1, 1, 0, 2, -3)))
        code = rng.choice((Code.TOO_MANY_REQUESTS, Code.TOO_MANY_REQUESTS, Code.FENCED))
        refused.append(AddRefused(code, rng.choice((1, 1, 1, 2)), entry_id))
    told: list[AddRefused] = []

    def sink(ledger_id: int) -> Any:
        def add_refused(_: str, code: int, first: int, last: int) -> None:
            told.extend(AddRefused(code, ledger_id, entry) for entry in range(first, last + 1))

        return SimpleNamespace(add_refused=add_refused)

    connection: Any = SimpleNamespace(bookie_id="b1", _sinks={1: sink(1), 2: sink(2)})
    BookieConnection._refuse(connection, refused)
    assert told == refused
