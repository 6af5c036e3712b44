"""Answers to an earlier attempt of a recovery counted for whoever stands at that position now.

When the newest fragment changed under a recovery, it starts over with another ensemble. A fence
answer that was still under way then was counted by position, and a denial without asking who
denied: a bookie that was never fenced, or never asked, could be taken for one that was. An end
proved that way may lie before an acked entry. Found by reading.
"""

from __future__ import annotations

from octavo.ledger.actions import EndFound, Fence, Read, WriteMetadata
from octavo.ledger.recover.recovery_state import RecoveryState
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.protocol.codes import Unauthorized


def in_recovery(*bookies: str) -> LedgerMetadata:
    return LedgerMetadata(7, 3, 3, 2, (Fragment(0, bookies),), state=LedgerState.IN_RECOVERY)


def restarted() -> RecoveryState:
    """A recovery that found an empty ledger, and then that its newest fragment had changed."""
    core = RecoveryState(7)
    assert core.metadata_read(in_recovery("a", "b", "c"), 1) == [Fence("a"), Fence("b"), Fence("c")]
    core.fenced("a", -1)
    core.fenced("b", -1)
    core.entry_absent(0, "a")
    (*_, close) = core.entry_absent(0, "b")
    assert isinstance(close, WriteMetadata)
    again = core.conflict(in_recovery("a", "d", "e"), 2)
    assert again == [Fence("a"), Fence("d"), Fence("e")]
    return core


def test_a_fence_of_before_does_not_cover_the_new_ensemble() -> None:
    core = restarted()
    assert core.fenced("a", -1) == []
    assert core.fenced("c", -1) == [], "c stood where e stands now; e is not fenced"
    assert core.fence_failed("b", Unauthorized("late")) == [], "and b's word ends nothing"
    assert Read(0, ("a", "d", "e")) in core.fenced("d", -1)


def test_a_denial_counts_only_from_who_was_asked() -> None:
    core = restarted()
    core.fenced("a", -1)
    core.fenced("d", -1)
    core.entry_absent(0, "a")
    assert core.entry_absent(0, "c") == [], "c is not in the write set any more"
    core.entry_unknown(0, "b", "late")
    assert EndFound(-1) in core.entry_absent(0, "e")
