"""M5: E > Qw. An entry is on some of the bookies only, and coverage is per window of the ring."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from unittest.mock import patch

from octavo.bookie.ledgers import rules as ledger_rules
from octavo.ledger.quorum import Acks, Quorum
from octavo.ledger.write.writer_state import WriterState
from tests.model.ledger_worlds import ledger_world
from tests.model.m1_fencing import admit_although_fenced
from tests.model.m2_ensemble_change import acked_at_any_time, keep_the_acks
from tests.model.model import Defect, Model
from tests.model.world import World


def count_answers(self: Quorum, answered: Collection[int]) -> bool:
    """E − Qa + 1 answers count, wherever they come from (BookKeeper #2281)."""
    return len(answered) >= self.ensemble_size - self.ack_quorum


def changing() -> World:
    return ledger_world((3, 2, 2), "abcd", entries=2, in_flight=2, faults=1, loses=True)


DEFECTS = (
    Defect(
        "fence answers are counted, not looked at window by window (BookKeeper #2281)",
        "S5: ",
        depth=4,
        plant=lambda: patch.object(Quorum, "covers", count_answers),
    ),
    Defect(
        "acks of the replaced bookie count for the new one (BookKeeper #4097)",
        "S1, P15: entry",
        depth=8,
        plant=lambda: patch.object(Acks, "join", keep_the_acks),
        world=changing,
    ),
)

MODEL = Model(
    name="M5",
    about="striping: each entry on two of three bookies, both must store it",
    bounds="E = 3, Qw = Qa = 2; 3 entries, 2 in flight",
    world=lambda: ledger_world((3, 2, 2), "abc", entries=3, in_flight=2),
    states=500_374,
    depth=40,
    defects=DEFECTS,
)

ONE_ACK = Model(
    name="M5-Qa1",
    about="striping: each entry on two of three bookies, one ack is enough",
    bounds="E = 3, Qw = 2, Qa = 1; 3 entries, 2 in flight",
    world=lambda: ledger_world((3, 2, 1), "abc", entries=3, in_flight=2),
    states=1_592_710,
    depth=39,
    defects=(
        replace(DEFECTS[0], depth=6),
        Defect(
            "a fenced bookie takes the old writer's adds",
            "S3: entry 0 was acked",
            depth=16,
            plant=lambda: patch.object(ledger_rules, "admission", admit_although_fenced),
        ),
    ),
)

CHANGING = Model(
    name="M5-change",
    about="striping with a spare bookie: ensemble changes that touch some entries only",
    bounds="E = 3, Qw = Qa = 2; 4 bookies; 2 entries in flight; 1 broken connection",
    world=changing,
    states=3_000_000,
    exhaustive=False,
    defects=(
        DEFECTS[1],
        Defect(
            "acks count while a change is unresolved (BookKeeper #1591)",
            "writer: stored: P14",
            depth=6,
            plant=lambda: patch.object(WriterState, "acked", acked_at_any_time),
        ),
    ),
)
