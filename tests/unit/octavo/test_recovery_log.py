"""Recoveries in a broker's log: a few step by step, of thousands only how each ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from structlog.testing import capture_logs

from octavo.ledger.recover.events import (
    FenceHeld,
    LedgerRecovered,
    MarkedInRecovery,
    MetadataSeen,
    RecoveryEvent,
)
from octavo.metadata.ledgers import Fragment, LedgerMetadata
from octavo.process.recovery_log import FORGOTTEN_S, IN_FULL_MAX, RecoveryLog

RECORD = LedgerMetadata(
    ledger_id=1,
    ensemble_size=1,
    write_quorum=1,
    ack_quorum=1,
    fragments=(Fragment(0, ("bookie-1",)),),
)
STEPS: tuple[RecoveryEvent, ...] = (
    MetadataSeen(RECORD, 0),
    MarkedInRecovery(RECORD, 1),
    FenceHeld(4),
    LedgerRecovered(RECORD, 2, False),
)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines_of(said: Sequence[Mapping[str, Any]]) -> Counter[Any]:
    """How many lines of each ledger are at `info`."""
    return Counter(one["ledger"] for one in said if one["log_level"] == "info")


def test_recoveries_one_after_the_other_are_told_step_by_step() -> None:
    log = RecoveryLog(Clock())
    with capture_logs() as said:
        for ledger in range(100):
            for step in STEPS:
                log(ledger, step)
    assert set(lines_of(said).values()) == {len(STEPS)}


def test_of_thousands_at_once_only_the_end_is_told() -> None:
    """A deletion of 2,000 partitions wrote 44,000 lines."""
    log, ledgers = RecoveryLog(Clock()), range(4_000)
    with capture_logs() as said:
        for step in STEPS:
            for ledger in ledgers:
                log(ledger, step)
    found = lines_of(said)
    assert len(found) == len(ledgers), "each is told"
    assert Counter(found.values()) == {len(STEPS): IN_FULL_MAX, 1: len(ledgers) - IN_FULL_MAX}


def test_recoveries_that_failed_make_room_again() -> None:
    clock = Clock()
    log = RecoveryLog(clock)
    for ledger in range(IN_FULL_MAX):
        log(ledger, STEPS[0])
    with capture_logs() as said:
        log(100, STEPS[0])
        assert not lines_of(said)
        clock.now_s = FORGOTTEN_S + 1
        for step in STEPS:
            log(101, step)
    assert lines_of(said) == {101: len(STEPS)}
