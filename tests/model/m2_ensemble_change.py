"""M2: M1 with a spare bookie: one may crash for good, or fall silent to a client for a while."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from octavo.ledger.actions import Confirmed, WriterAction
from octavo.ledger.quorum import Acks
from octavo.ledger.recover.recovery_state import RecoveryState
from octavo.ledger.write.writer_state import WriterState
from octavo.metadata.ledgers import LedgerMetadata
from tests.model.ledger_worlds import ledger_world
from tests.model.model import Defect, Model


def keep_the_acks(self: Acks, position: int, base: int) -> None:
    pass


def confirm_at_any_time(self: WriterState) -> list[WriterAction]:
    """Acks count while a change of the ensemble is unresolved (BookKeeper #1591)."""
    confirmed = self.acks.confirmed(self.lac, self.lap)
    if confirmed == self.lac:
        return []
    self.lac = confirmed
    return [Confirmed(confirmed)]


def acked_at_any_time(
    self: WriterState, bookie_id: str, first: int, last: int
) -> list[WriterAction]:
    if bookie_id not in self.ensemble:
        return []
    self.acks.add(self.ensemble.index(bookie_id), first, last)
    return confirm_at_any_time(self)


_closed_record = RecoveryState._closed_record


def keep_changes_to_oneself(self: RecoveryState) -> LedgerMetadata:
    """The closing record names the former bookies."""
    return replace(_closed_record(self), fragments=self.metadata.fragments)


MODEL = Model(
    name="M2",
    about="ensemble change: a fourth bookie; one bookie crashes for good, or one connection breaks",
    bounds="E = Qw = 3, Qa = 2; 4 bookies; 1 entry; 1 fault",
    world=lambda: ledger_world(
        (3, 3, 2), "abcd", faults=1, loses=True, crashes=True, alike=["abc"]
    ),
    states=3_961_432,
    depth=34,
    defects=(
        Defect(
            "acks of the replaced bookie count for the new one",
            "S1, P15: entry 0 was acked",
            depth=8,
            plant=lambda: patch.object(Acks, "join", keep_the_acks),
        ),
        Defect(
            "acks count while a change is unresolved (BookKeeper #1591)",
            "writer: stored: P14",
            depth=6,
            plant=lambda: patch.object(WriterState, "acked", acked_at_any_time),
        ),
        Defect(
            "a recovery keeps its ensemble changes to itself",
            "P5: entry 0",
            depth=20,
            plant=lambda: patch.object(RecoveryState, "_closed_record", keep_changes_to_oneself),
            slow=True,
        ),
    ),
)
