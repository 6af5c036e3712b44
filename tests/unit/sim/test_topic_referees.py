"""The referees of topics and ledger lists report each broken promise, and no good history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.broker.types import PartitionName, StoredBatch
from octavo.metadata.ledgers import LedgerState
from octavo.metadata.topic_records import PartitionLedger, PartitionRecord, encode_record
from octavo.protocol.batch import read_header, with_base_offset
from octavo.protocol.records import Record, build_batch
from tests.sim.chain_audit import ChainAudit
from tests.sim.metadata_tree import Change
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
