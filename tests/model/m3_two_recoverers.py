"""M3: two recoverers race each other and the writer. Both must find the same end (P33)."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from octavo.ledger.actions import Done, RecoveryAction
from octavo.ledger.quorum import Quorum
from octavo.ledger.recover.recovery_state import RecoveryState, State
from octavo.metadata.ledgers import LedgerMetadata
from tests.model.ledger_worlds import ledger_world
from tests.model.model import Defect, Model
from tests.model.world import World

_conflict = RecoveryState.conflict


def believe_oneself(
    self: RecoveryState, current: LedgerMetadata, version: int
) -> list[RecoveryAction]:
    """The loser of the closing compare-and-set keeps the end that it found."""
    if self.state is State.CLOSING:
        self.state = State.DONE
        return [Done(self._closed_record(), version, adopted=False)]
    return _conflict(self, current, version)


def small(ack_quorum: int = 2) -> World:
    shape = (2, 2, ack_quorum)
    return ledger_world(shape, "ab", recoverers=2, closes=True, alike=["ab", ["r0", "r1"]])


DEFECTS = (
    Defect(
        "whoever loses the closing CAS keeps to its own end",
        "S2: to r",
        depth=21,
        plant=lambda: patch.object(RecoveryState, "conflict", believe_oneself),
        world=small,
    ),
    Defect(
        "a fence counts without any answer",
        "S5: ",
        depth=4,
        plant=lambda: patch.object(Quorum, "covers", lambda self, answered: True),
        world=lambda: small(ack_quorum=1),
    ),
)

SMALL = Model(
    name="M3-small",
    about="two recoverers race each other and the writer, which may close as well",
    bounds="E = Qw = Qa = 2; 1 entry",
    world=small,
    states=162_485,
    depth=33,
    ci=True,
    defects=DEFECTS,
)

MODEL = Model(
    name="M3",
    about="two recoverers race each other and the writer",
    bounds="E = Qw = 3, Qa = 2; 1 entry",
    world=lambda: ledger_world((3, 3, 2), "abc", recoverers=2, alike=["abc", ["r0", "r1"]]),
    states=3_000_000,
    exhaustive=False,
    defects=(
        replace(DEFECTS[0], slow=True),
        replace(DEFECTS[1], world=None),
    ),
)
