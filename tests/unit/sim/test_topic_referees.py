"""Referees of topics report each broken promise, and no good history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from octavo.broker.state.stream import Append
from octavo.broker.types import PartitionName, StoredBatch, TopicName
from octavo.metadata.clock import CLOCK_PATH, ClockRecord
from octavo.metadata.ledgers import LedgerState
from octavo.metadata.topic_records import PartitionLedger, PartitionRecord, encode_record
from octavo.protocol.append_time import shown, stamped
from octavo.protocol.batch import read_header, with_base_offset
from octavo.protocol.records import Record, build_batch
from tests.sim.append_audit import AppendAudit
from tests.sim.chain_audit import ChainAudit
from tests.sim.clocks import Clocks
from tests.sim.large_load import LargeHistory, Sent
from tests.sim.metadata_tree import Change
from tests.sim.recreate_audit import RecreateAudit
from tests.sim.stream_audit import StreamHistory
from tests.sim.time_audit import TimeAudit
from tests.sim.topic_audit import Asked, LogHistory, TopicAudit
from tests.sim.trace import Trace

NAME = PartitionName("public", "t", 0)


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def log(failures: list[str]) -> LogHistory:
    return LogHistory(NAME, ["s"], Trace(), failures.append)


def read(log: LogHistory, base: int, *values: str) -> None:
    data = with_base_offset(build_batch([Record(None, v.encode()) for v in values]), base)
    log.batch(StoredBatch(base, 1, 0, read_header(data), bytes(data)), "a reader")


def stored(log: LogHistory, *values: str, at: int, epoch: int = -1, sequence: int = 0) -> None:
    log.sends(values, "p", epoch, sequence)
    log.acked(values, at, duplicate=False)


def test_a_good_history_is_left_alone(log: LogHistory, failures: list[str]) -> None:
    stored(log, "a", "b", at=0, epoch=0)
    log.sends(["lost"], "q", -1, 0)
    stored(log, "c", at=2, epoch=0, sequence=2)
    stored(log, "d", at=3, epoch=1)
    read(log, 0, "a", "b")
    moves = log.ack_begins("s", [0, 1])
    log.ack_ends("s", [0, 1], 1, moves)
    log.delivered("s", [(2, "c", 1, 1, 3, 1), (3, "d", 1, 1, 4, 1)], log.cursors["s"].asks())
    log.trim(2)
    log.mark_seen("s", 1, 2)
    log.check_whole(2, 4)
    log.check_cursors(4)
    assert not failures


BAD: dict[str, Callable[[LogHistory], object]] = {
    "held": lambda log: (stored(log, "a", at=0), log.sends(["b"], "p", -1, 1), read(log, 0, "b")),
    "was never sent": lambda log: read(log, 0, "x"),
    "twice": lambda log: (stored(log, "a", at=0), read(log, 5, "a")),
    "when offset 3 was acked": lambda log: (
        stored(log, "a", at=3),
        log.sends(["b"], "p", -1, 1),
        read(log, 2, "b"),
    ),
    "was refused, and is here": lambda log: (
        log.sends(["a"], "p", -1, 0),
        log.refused(["a"]),
        read(log, 0, "a"),
    ),
    "not stored": lambda log: (log.sends(["a"], "p", -1, 0), read(log, 0, "a"), log.refused(["a"])),
    "nothing at offset 1": lambda log: (stored(log, "a", at=0), log.check_whole(0, 2)),
    "the log ends at 1": lambda log: (
        stored(log, "a", at=0),
        stored(log, "b", at=1),
        log.check_whole(0, 1),
    ),
    "is nowhere": lambda log: (
        log.sends(["a"], "p", 0, 0),
        log.acked(["a"], -1, duplicate=True),
        log.check_whole(0, 0),
    ),
    "out of order": lambda log: (
        log.sends(["a"], "p", 0, 0),
        log.sends(["b"], "p", 0, 1),
        read(log, 0, "b", "a"),
        log.check_whole(0, 2),
    ),
    "has a gap": lambda log: (
        log.sends(["a"], "p", 0, 0),
        log.sends(["b"], "p", 0, 5),
        read(log, 0, "a", "b"),
        log.check_whole(0, 2),
    ),
    "is delivered again in epoch 1": lambda log: (
        stored(log, "a", at=0),
        log.ack_ends("s", [0], 1, log.ack_begins("s", [0])),
        log.delivered("s", [(0, "a", 1, 1, 2, 1)], log.cursors["s"].asks()),
    ),
    "back to 1": lambda log: (
        stored(log, "a", "b", at=0),
        log.ack_begins("s", [0, 1]),
        log.mark_seen("s", 1, 2),
        log.mark_seen("s", 1, 1),
    ),
    "its cursor stands there": lambda log: (stored(log, "a", at=0), log.mark_seen("s", 1, 1)),
    "it was trimmed": lambda log: (stored(log, "a", at=0), log.trim(1)),
    "never got offset 0": lambda log: (stored(log, "a", at=0), log.check_cursors(1)),
    "came first after 1": lambda log: (
        stored(log, "a", "b", at=0),
        log.delivered("s", [(1, "b", 1, 1, 1, 1), (0, "a", 1, 1, 2, 1)], Asked(0, {})),
        log.check_cursors(2),
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_broken_promise_is_told(log: LogHistory, failures: list[str], what: str) -> None:
    BAD[what](log)
    assert any(what in failure for failure in failures), failures


def test_the_history_is_looked_at_by_others_too(log: LogHistory, failures: list[str]) -> None:
    stored(log, "a", at=0)
    stored(log, "b", at=1)
    log.polled(log.polls("v", 0), [(0, "a"), (1, "b")])
    log.second_opinion()
    assert not failures
    log.polled(log.polls("v", 0), [(0, "a"), (2, "b")])
    log.second_opinion()
    assert any("of the history" in failure for failure in failures)


def sought(log: LogHistory, offset: int, stands: int) -> None:
    """Both messages are acked, then the subscription seeks back and gets its position."""
    stored(log, "a", "b", at=0)
    log.ack_ends("s", [0, 1], 1, log.ack_begins("s", [0, 1]))
    log.seek_begins("s", offset)
    log.seek_ends("s", stands, known=True)


def test_what_a_seek_went_back_to_is_not_trimmed(log: LogHistory, failures: list[str]) -> None:
    sought(log, 0, 0)
    log.trim(1)
    assert any("it was trimmed" in failure for failure in failures)


def test_a_seek_that_says_what_is_left_makes_room(log: LogHistory, failures: list[str]) -> None:
    sought(log, 0, 1)
    log.trim(1)
    assert not failures
    log.ack_begins("s", [1])
    log.trim(2)
    assert not failures, "it was acked again, perhaps"


def test_acks_under_way_may_come_after_a_seek(log: LogHistory, failures: list[str]) -> None:
    stored(log, "a", "b", at=0)
    log.ack_begins("s", [0, 1])
    log.seek_begins("s", 0)
    log.seek_ends("s", 0, known=True)
    log.trim(2)
    assert not failures


def test_what_an_older_owner_delivers_again_is_allowed(
    log: LogHistory, failures: list[str]
) -> None:
    stored(log, "a", at=0)
    log.ack_ends("s", [0], 2, log.ack_begins("s", [0]))
    log.delivered("s", [(0, "a", 1, 1, 2, 1)], log.cursors["s"].asks())
    assert not failures


def test_what_was_given_between_a_seek_and_the_ack_after_it_is_allowed(
    log: LogHistory, failures: list[str]
) -> None:
    """Seed 1700243 of profile `recreate`: the answer was a second on its way."""
    stored(log, "a", at=0)
    log.ack_ends("s", [0], 1, log.ack_begins("s", [0]))
    asked = log.cursors["s"].asks()
    log.seek_begins("s", 0)
    log.seek_ends("s", 0, known=True)
    log.ack_ends("s", [0], 1, log.ack_begins("s", [0]))
    log.delivered("s", [(0, "a", 1, 1, 2, 1)], asked)
    assert not failures


# Dead letters, and delivery counts


def test_what_nobody_acked_must_be_a_letter(log: LogHistory, failures: list[str]) -> None:
    stored(log, "a", "b", at=0)
    log.cursors["s"].gives_up = True
    log.mark_seen("s", 1, 2)
    log.letters("s", {0: [("a", 3)], 1: [("b", 3)]}, 3)
    log.check_cursors(2)
    assert not failures
    log.letters("s", {0: [("a", 3)]}, 3)
    assert any("in no dead-letter topic" in failure for failure in failures)


@pytest.mark.parametrize(
    ("copies", "what"),
    [
        ([("b", 3)], "is 'a', not 'b'"),
        ([("a", 2)], "given up after 2"),
        ([("a", 3), ("a", 3)], "is 2 letters"),
    ],
)
def test_a_letter_that_cannot_be(
    log: LogHistory, failures: list[str], copies: list[tuple[str, int]], what: str
) -> None:
    stored(log, "a", "b", at=0)
    log.letters("s", {0: copies}, 3)
    assert any(what in failure for failure in failures), failures


def test_a_count_does_not_fall(log: LogHistory, failures: list[str]) -> None:
    stored(log, "a", at=0)
    cursor = log.cursors["s"]
    asked = cursor.asks()
    log.delivered("s", [(0, "a", 2, 2, 1, 2)], cursor.asks())
    log.delivered("s", [(0, "a", 1, 1, 2, 1)], cursor.asks())  # from an owner that has a successor
    log.delivered("s", [(0, "a", 2, 2, 2, 1)], asked)  # was on its way for long
    assert not failures
    log.delivered("s", [(0, "a", 4, 4, 1, 1)], cursor.asks())
    assert any("X15" in failure for failure in failures)


# Ledger lists


class Ledgers:
    """The referee's ledgers: all are closed at entry 4, except the named ones."""

    def __init__(self, *, open_ones: tuple[int, ...] = (), deleted: tuple[int, ...] = ()) -> None:
        self.ledgers = {
            number: type(
                "History",
                (),
                {
                    "is_closed": number not in open_ones,
                    "deleted": number in deleted,
                    "record": type("Record", (), {"last_entry": 4, "state": LedgerState.CLOSED}),
                },
            )
            for number in range(20)
        }


def link(number: int, base: int, count: int | None) -> PartitionLedger:
    return PartitionLedger(number, base, count)


def record(epoch: int, *links: PartitionLedger, trimmed: int = 0) -> PartitionRecord:
    return PartitionRecord(ledgers=links, trimmed_offset=trimmed, epoch=epoch)


FIRST = record(1, link(1, 0, None))
ROLLED = record(1, link(1, 0, 5), link(2, 5, None))


def judge(
    failures: list[str], *changes: tuple[int, PartitionRecord], ledgers: Any = None
) -> list[str]:
    trace = Trace()
    topics = TopicAudit(None, trace, failures.append)  # type: ignore[arg-type]
    audit = ChainAudit(topics, ledgers or Ledgers(), trace, failures.append)  # type: ignore[arg-type]
    path = "/octavo/topics/public/t/partitions/0"
    for version, (store, value) in enumerate(changes):
        audit.changed(Change(0.0, version, path, encode_record(value), version, "k", store))
    audit.changed(Change(0.0, 99, "/ledgers/00/0000/L0009", None, 0, "k", 1))
    return failures


def test_a_good_chain_is_left_alone(failures: list[str]) -> None:
    taken = record(2, link(2, 5, 3), link(3, 8, None), trimmed=5)
    assert not judge(failures, (1, FIRST), (1, ROLLED), (2, taken))


@pytest.mark.parametrize(
    ("what", "changes", "ledgers"),
    [
        ("somebody else than the owner", [(1, FIRST), (2, ROLLED)], Ledgers()),
        ("the epoch jumps", [(1, FIRST), (2, record(3, link(1, 0, None)))], Ledgers()),
        ("followed and not closed", [(1, FIRST), (1, ROLLED)], Ledgers(open_ones=(1,))),
        (
            "where the last one ends",
            [(1, FIRST), (1, record(1, link(1, 0, 5), link(2, 6, None)))],
            Ledgers(),
        ),
        (
            "a closed link was changed",
            [(1, ROLLED), (1, record(1, link(1, 0, 4), link(2, 4, None)))],
            Ledgers(),
        ),
        ("was deleted", [(1, ROLLED)], Ledgers(deleted=(1,))),
        (
            "what was trimmed comes back",
            [(1, record(1, link(2, 5, None), trimmed=5)), (1, ROLLED)],
            Ledgers(),
        ),
        (
            "more than one ledger",
            [(1, FIRST), (1, record(1, link(1, 0, 5), link(2, 5, 1), link(3, 6, None)))],
            Ledgers(),
        ),
    ],
)
def test_a_broken_chain_is_told(
    failures: list[str], what: str, changes: Any, ledgers: Ledgers
) -> None:
    assert any(what in failure for failure in judge(failures, *changes, ledgers=ledgers)), failures


# The referee of durable streams fails each story in which X20 is broken.
Story = Callable[[StreamHistory], object]


def _stored(log: StreamHistory, *values: str, closed: bool = False, **said: object) -> None:
    sent = log.sends(values, Append(**said))  # type: ignore[arg-type]
    log.acked(sent, log.seen_end + len(values), new=True, closed=closed)


def _one_and_two(log: StreamHistory) -> None:
    _stored(log, "one", producer="p")
    _stored(log, "two", producer="p", sequence=1)
    log.shows(0, ["one", "two"], 2)


def _lost(log: StreamHistory) -> None:
    _stored(log, "one")
    log.seen_end = 0
    log.check_whole(0, closed=False)


def _shorter(log: StreamHistory) -> None:
    _one_and_two(log)
    log.check_whole(1, closed=False)


def _changed(log: StreamHistory) -> None:
    _one_and_two(log)
    log.shows(1, ["one"], 2)


def _invented(log: StreamHistory) -> None:
    log.shows(0, ["one"], 1)


def _miscounted(log: StreamHistory) -> None:
    log.sends(["one"], Append())
    log.shows(0, ["one"], 2)


def _twice(log: StreamHistory) -> None:
    _stored(log, "one", producer="p")
    log.shows(0, ["one", "one"], 2)
    log.check_whole(2, closed=False)


def _new_twice(log: StreamHistory) -> None:
    sent = log.sends(["one"], Append("p"))
    log.acked(sent, 1, new=True, closed=False)
    log.acked(sent, 1, new=True, closed=False)


def _gap(log: StreamHistory) -> None:
    _stored(log, "one", producer="p")
    _stored(log, "three", producer="p", sequence=2)
    log.shows(0, ["one", "three"], 2)
    log.check_whole(2, closed=False)


def _old_epoch(log: StreamHistory) -> None:
    _stored(log, "one", producer="p", epoch=2)
    _stored(log, "two", producer="p", epoch=1)
    log.shows(0, ["one", "two"], 2)
    log.check_whole(2, closed=False)


def _seq_back(log: StreamHistory) -> None:
    _stored(log, "one", stream_seq="b")
    _stored(log, "two", stream_seq="b")
    log.shows(0, ["one", "two"], 2)
    log.check_whole(2, closed=False)


def _torn(log: StreamHistory) -> None:
    log.sends(["one", "two"], Append())
    log.shows(0, ["one"], 1)
    log.check_whole(1, closed=False)


def _longer_than_its_end(log: StreamHistory) -> None:
    log.ends(1, closed=True)
    log.ends(2, closed=False)


def _closed_before_its_end(log: StreamHistory) -> None:
    log.ends(2, closed=False)
    log.ends(1, closed=True)


def _stored_behind_the_close(log: StreamHistory) -> None:
    log.ends(1, closed=True)
    log.acked(log.sends(["late"], Append()), 1, new=True, closed=True)


def _a_close_that_does_not_close(log: StreamHistory) -> None:
    _stored(log, "last", closes=True)


def _behind_the_last(log: StreamHistory) -> None:
    log.sends(["last"], Append(closes=True))
    log.sends(["more"], Append())
    log.shows(0, ["last", "more"], 2)
    log.check_whole(2, closed=False)


def _open_again(log: StreamHistory) -> None:
    log.ends(0, closed=True)
    log.sends(["late"], Append())
    log.shows(0, ["late"], 1)
    log.closed_at = 1
    log.check_whole(1, closed=True)


def _open_in_the_end(log: StreamHistory) -> None:
    _one_and_two(log)
    log.ends(2, closed=True)
    log.check_whole(2, closed=False)


STORIES = [one for name, one in globals().items() if name.startswith("_") and callable(one)]


@pytest.mark.parametrize(
    "story",
    [one for one in STORIES if one not in (_stored, _one_and_two)],
    ids=lambda s: s.__name__,
)
def test_a_story_in_which_it_is_broken(story: Story) -> None:
    failures: list[str] = []
    story(StreamHistory(TopicName("public", "s"), failures.append, is_json=True, repeats=False))
    assert failures
    assert all(one.startswith("X20 ") for one in failures)


def test_a_fork_begins_with_what_its_source_has() -> None:
    failures: list[str] = []
    source = StreamHistory(TopicName("public", "s"), failures.append, is_json=True, repeats=False)
    _one_and_two(source)
    fork = StreamHistory(
        TopicName("public", "f"),
        failures.append,
        is_json=True,
        repeats=False,
        source=source,
        base=1,
    )
    _stored(fork, "own")
    fork.shows(0, ["one", "own"], 2)
    fork.check_whole(2, closed=False)
    assert not failures
    fork.shows(0, ["two"], 1)
    assert failures


def test_a_story_in_which_all_is_well() -> None:
    failures: list[str] = []
    log = StreamHistory(TopicName("public", "s"), failures.append, is_json=True, repeats=False)
    _one_and_two(log)
    _stored(log, "three", "four", closed=True, producer="p", epoch=1, closes=True)
    log.shows(1, ["two", "three", "four"], 4)
    log.check_whole(4, closed=True)
    assert not failures


# The referee of recreated topics, shown one lie of each kind, and the truth.
RecreateStory = Callable[[RecreateAudit], None]


def made(audit: RecreateAudit) -> RecreateAudit:
    """X is gone, Y exists; `a` was acked into X."""
    audit.made("X")
    audit.sends("a", None)
    audit.acked("a", "X", duplicate=False)
    audit.deletion_begins("X")
    audit.deleted("X")
    audit.made("Y")
    return audit


def acked_late(audit: RecreateAudit) -> None:
    made(audit).sends("b", None)
    audit.acked("b", "X", duplicate=False)


def stored_before(audit: RecreateAudit) -> None:
    made(audit).sends("b", "Y")
    audit.acked("b", "Y", duplicate=True)


def shown_late(audit: RecreateAudit) -> None:
    made(audit).shown("X", ["a"], audit.gone(), vouched=True)


def never_sent(audit: RecreateAudit) -> None:
    made(audit).shown("Y", ["z"], frozenset(), vouched=True)


def in_the_dead_one(audit: RecreateAudit) -> None:
    made(audit).sends("b", None)
    audit.shown("X", ["b"], frozenset(), vouched=True)


def in_both(audit: RecreateAudit) -> None:
    made(audit).shown("Y", ["a"], audit.gone(), vouched=True)


def lost(audit: RecreateAudit) -> None:
    made(audit).sends("b", None)
    audit.acked("b", "Y", duplicate=False)
    audit.whole("Y", [], ["b"])


def foreign_ack(audit: RecreateAudit) -> None:
    made(audit).ack_taken("X", "Y")


@pytest.mark.parametrize(
    ("story", "said"),
    [
        (acked_late, "b was sent after topic 1 was gone, and acked into it"),
        (stored_before, "b: topic 2 says stored before"),
        (shown_late, "topic 1 was gone, and is shown"),
        (never_sent, "z in topic 2 was never sent"),
        (in_the_dead_one, "b was sent after topic 1 was gone, and is in it"),
        (in_both, "a is in topics 1 and 2"),
        (lost, "topic 2: ['b'] were acked and are nowhere"),
        (foreign_ack, "topic 2 took an ack id of topic 1"),
    ],
)
def test_a_lie_is_said(story: RecreateStory, said: str) -> None:
    failures: list[str] = []
    story(RecreateAudit(failures.append))
    assert any(said in one for one in failures), failures


def test_the_truth_is_not() -> None:
    failures: list[str] = []
    audit = RecreateAudit(failures.append)
    audit.made("X")
    begun = audit.gone()
    for value in ("a", "b"):
        audit.sends(value, "X")
    audit.acked("a", "X", duplicate=False)
    audit.acked("b", "X", duplicate=True)
    audit.whole("X", ["a"], ["a"])
    audit.ack_taken("X", "X")
    audit.deletion_begins("X")
    audit.whole("X", [], ["a"])
    audit.deleted("X")
    audit.shown("X", ["a"], begun, vouched=True)
    audit.shown("X", ["a"], audit.gone(), vouched=False)
    assert failures == []


# The referee of large messages fails each story in which X23 is broken.
def _history(failures: list[str]) -> LargeHistory:
    history = LargeHistory(failures.append, repeats=True)
    for name, named, broken in (("a", True, False), ("b", False, False), ("x", True, True)):
        history.sent[name] = Sent(name, name.encode(), named, broken=broken)
    return history


def _body_lost(log: LargeHistory) -> None:
    log.acked(log.sent["a"], 3)
    log.check_whole({})


def _body_twice(log: LargeHistory) -> None:
    log.check_whole({1: "a", 2: "a"})


def _acked_elsewhere(log: LargeHistory) -> None:
    log.acked(log.sent["a"], 3)
    log.acked(log.sent["a"], 4)


def _in_part(log: LargeHistory) -> None:
    log.shows(0, "a", b"")


def _broken_off(log: LargeHistory) -> None:
    log.shows(0, "x", b"x")


def _broken_off_and_acked(log: LargeHistory) -> None:
    log.acked(log.sent["x"], 0)


def _body_invented(log: LargeHistory) -> None:
    log.shows(0, "", b"piece")


def _piece_changed(log: LargeHistory) -> None:
    log.shows(0, "a", b"a")
    log.shows(0, "b", b"b")


@pytest.mark.parametrize(
    "story",
    [
        _body_lost,
        _body_twice,
        _acked_elsewhere,
        _in_part,
        _broken_off,
        _broken_off_and_acked,
        _body_invented,
        _piece_changed,
    ],
)
def test_a_story_in_which_large_messages_are_broken(story: Callable[[LargeHistory], None]) -> None:
    failures: list[str] = []
    story(_history(failures))
    assert failures
    assert all(one.startswith("X23 ") for one in failures)


def test_a_story_in_which_large_messages_are_whole() -> None:
    failures: list[str] = []
    log = _history(failures)
    log.acked(log.sent["a"], 3)
    log.shows(3, "a", b"a")
    log.check_whole({3: "a", 4: "b", 5: "b"})
    assert not failures


# The referee of append times reports each lie, and no true history.
NOW = 1_700_000_000_000


class AppendStory:
    """Messages of a partition, each its own batch, and a world clock."""

    def __init__(self, how: str = "append") -> None:
        self.failures: list[str] = []
        self.now_ms = NOW
        self.clocks = Clocks()
        self.log = LogHistory(PartitionName("public", "t", 0), [], Trace(), self.failures.append)
        self.log.appends = AppendAudit(
            how, self.clocks, lambda: self.now_ms, Trace(), self.failures.append
        )

    def stored(self, count: int = 1) -> AppendStory:
        for _ in range(count):
            value, offset = f"v{len(self.log.sent)}", self.log.acked_end
            self.log.sends([value], "p", -1, offset)
            self.log.stamped([value], [5], self.now_ms)
            self.log.acked([value], offset, duplicate=False)
        return self

    def seen(self, offset: int, off_ms: int | None, who: str = "reader v1") -> AppendStory:
        data = build_batch([Record(None, f"v{offset}".encode(), (), 5)])
        header = read_header(data)._replace(base_offset=offset)
        header = shown(header, None) if off_ms is None else stamped(header, NOW + off_ms)
        self.log.batch(StoredBatch(offset, 1, offset, header, data), who)
        return self

    def ended(self) -> list[str]:
        self.log.check_whole(0, self.log.acked_end)
        return self.failures


def test_good_append_times_are_left_alone() -> None:
    story = AppendStory().stored(3).seen(0, 0).seen(1, 0).seen(2, 100).seen(1, 0, "judge")
    assert story.ended() == []
    assert [story.log.time_at(n) for n in range(3)] == [NOW, NOW, NOW + 100]
    story = AppendStory("changes").stored(2).seen(0, None).seen(1, 0)
    assert story.ended() == []
    assert [story.log.time_at(n) for n in range(2)] == [5, NOW]
    assert AppendStory("create").stored().seen(0, None).ended() == []


def test_each_lie_is_told() -> None:
    for story, told in (
        (AppendStory().stored().seen(0, None), "offset 0: reader v1 sees append time None"),
        (AppendStory("create").stored().seen(0, 0), "the topic says create"),
        (AppendStory().stored().seen(0, 0).seen(0, 1), f"before it was {NOW}"),
        (AppendStory().stored(2).seen(0, 9).seen(1, 8), f"one before it at {NOW + 9}"),
        (AppendStory().stored().seen(0, 151), "clocks were off"),
        (AppendStory().stored().seen(0, -151), "clocks were off"),
    ):
        assert any(told in one and one.startswith("P66") for one in story.ended()), told
    story = AppendStory().stored().seen(0, 0)
    story.log.viewed(0, 5, "z1")
    assert "z1 sees 5 in a view" in story.failures[0]


def test_owners_may_have_had_the_clocks_that_were_set() -> None:
    story = AppendStory().stored(2).seen(0, -3_600_000).seen(1, 3_600_100)
    story.clocks.was_set(-3_600_000)
    story.clocks.was_set(3_600_000)
    assert story.ended() == []


# The referee of times reports each lie, and no good history.
KEPT_MS = 1_000


class TimeStory:
    """Messages of a partition, kept for a second, and a world clock."""

    def __init__(self, *, two_clocks: bool = True) -> None:
        self.failures: list[str] = []
        self.now_ms = NOW
        name = PartitionName("public", "t", 0)
        self.log = LogHistory(name, [], Trace(), self.failures.append)
        self.audit = TimeAudit(
            KEPT_MS, lambda: self.now_ms, Trace(), self.failures.append, two_clocks=two_clocks
        )

    def stored(self, *stamps_ms: int) -> TimeStory:
        """Send and ack messages now, one after another, stamped this much before now."""
        for off_ms in stamps_ms:
            value, offset = f"v{len(self.log.sent)}", self.log.acked_end
            self.log.sends([value], "p", -1, offset)
            stamp_ms = -1 if off_ms == -1 else self.now_ms + off_ms
            self.log.stamped([value], [stamp_ms], self.now_ms)
            self.log.acked([value], offset, duplicate=False)
        return self

    def later(self, ms: int) -> TimeStory:
        self.now_ms += ms
        return self

    def trimmed(self, first: int, end: int, *links: PartitionLedger) -> TimeStory:
        self.audit.trimmed(self.log, first, end, links)
        return self

    def asked(self, off_ms: int, found: int) -> TimeStory:
        end = self.log.acked_end
        self.audit.looked_up(self.log, NOW + off_ms, found, end, "owner")
        return self

    def written(self, off_ms: int) -> TimeStory:
        value = encode_record(ClockRecord(self.now_ms + off_ms))
        self.audit.clock_written(Change(0.0, 1, CLOCK_PATH, value, 1, "k1", 1))
        return self


BAD_TIMES: dict[str, Callable[[], TimeStory]] = {
    "P60 public/t/0 offset 0 'v0' was trimmed when it was 0 ms old": (
        lambda: TimeStory().stored(0).trimmed(0, 1)
    ),
    "P60 public/t/0 offset 1 'v1' was trimmed when it was 500 ms old": (
        lambda: TimeStory().stored(-(10**9), 10**9).later(500).trimmed(0, 2)
    ),
    "P60 public/t/0 offset 0 'v0' was trimmed when it was 200 ms": (
        lambda: TimeStory().stored(-1).later(200).trimmed(0, 1)
    ),
    "P60 the time written down is 5000 ms ahead": lambda: TimeStory().written(5000),
    "P61 public/t/0: 1700000000100 ms begins at offset 0": (
        lambda: TimeStory().stored(100, 10, 110).asked(100, 3)
    ),
    "P61 public/t/0: owner says that 1700000000110 ms begins at offset 1": (
        lambda: TimeStory().stored(100, 10, 110).asked(110, 1)
    ),
}


@pytest.mark.parametrize("said", BAD_TIMES)
def test_a_lie_is_told(said: str) -> None:
    failures = BAD_TIMES[said]().failures
    assert any(what.startswith(said) for what in failures), failures


def test_good_times_are_left_alone() -> None:
    story = TimeStory().stored(-5_000, -1, 10**9, 0).written(0).trimmed(0, 1).later(2_000)
    story.trimmed(1, 4).stored(100, 10).written(100)
    assert not story.failures
    story = TimeStory().stored(100, 10, 110, 20).asked(0, 0).asked(101, 2).asked(111, 4)
    assert not story.failures


def test_what_one_clock_cannot_know_is_not_asked_of_it() -> None:
    """A machine whose clock was ahead from the beginning, or which dates messages without a
    time."""
    assert not TimeStory(two_clocks=False).written(5_000).stored(0).trimmed(0, 1).failures
    assert not TimeStory(two_clocks=False).stored(-1, 10**9).trimmed(0, 2).failures
    assert TimeStory(two_clocks=False).stored(0).trimmed(0, 1).failures
    link = PartitionLedger(1, 0, 1, first_ms=NOW, last_ms=NOW, aging_since_ms=NOW - 10**6)
    assert TimeStory(two_clocks=False).stored(0).trimmed(0, 1, link).failures, "the stamp is known"
    far = replace(link, last_ms=NOW + 10**9)
    assert not TimeStory(two_clocks=False).stored(0).trimmed(0, 1, far).failures
    assert TimeStory().stored(0).trimmed(0, 1, far).failures
