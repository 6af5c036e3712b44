"""M4: two entries, so that order and the confirmed end that an entry carries count."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from octavo.ledger.actions import EndFound, RecoveryAction
from octavo.ledger.quorum import Acks
from octavo.ledger.recover.recovery_state import RecoveryState
from tests.model.ledger_worlds import ledger_world
from tests.model.model import Defect, Model
from tests.model.world import World

_start_reading = RecoveryState._start_reading


def end_at_the_lac(self: RecoveryState, start: int) -> list[RecoveryAction]:
    """Take the highest LAC of the fenced bookies for the end, without reading beyond it."""
    _start_reading(self, start)
    self._polls.clear()
    self._end, self._length = start, 10 * (start + 1)
    return [EndFound(start), *self._close_if_complete()]


def skip_gaps(self: Acks, position: int, first: int, last: int) -> None:
    """Count a bookie's ack of an entry for all earlier entries."""
    self.acked_to[position] = max(self.acked_to[position], last)


def pipelined() -> World:
    return ledger_world((3, 3, 2), "abc", entries=2, in_flight=2, alike=["abc"])


DEFECTS = (
    Defect(
        "the LAC of the fenced bookies is taken for the end",
        "S3: entry",
        depth=12,
        plant=lambda: patch.object(RecoveryState, "_start_reading", end_at_the_lac),
    ),
    Defect(
        "an ack counts for all entries before it",
        "S1, P15: entry 0",
        depth=6,
        plant=lambda: patch.object(Acks, "add", skip_gaps),
        world=pipelined,
    ),
)

MODEL = Model(
    name="M4",
    about="two entries, one after the other: the second carries the LAC of the first",
    bounds="E = Qw = 3, Qa = 2; 2 entries, 1 in flight",
    world=lambda: ledger_world((3, 3, 2), "abc", entries=2, alike=["abc"]),
    states=514_219,
    depth=38,
    defects=DEFECTS,
)

PIPELINED = Model(
    name="M4-pipelined",
    about="two entries under way at once",
    bounds="E = Qw = 3, Qa = 2; 2 entries, 2 in flight",
    world=pipelined,
    states=3_000_000,
    exhaustive=False,
    defects=(DEFECTS[1], replace(DEFECTS[0], world=pipelined)),
)
