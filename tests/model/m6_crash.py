"""M6: a bookie crashes and comes back: its promises must have been on its disk."""

from __future__ import annotations

from tests.model.journaled_bookie import JournaledBookie
from tests.model.ledger_nodes import Bookie
from tests.model.ledger_worlds import ledger_world
from tests.model.model import Defect, Model
from tests.model.world import World


class VolatileFence(JournaledBookie):
    journals_fences = False


class HastyAck(JournaledBookie):
    answers_before_sync = True


def small(bookie: type[Bookie] = JournaledBookie) -> World:
    return ledger_world(
        (2, 2, 2), "ab", faults=1, loses=False, crashes=True, alike=["ab"], bookie=bookie
    )


def large(bookie: type[Bookie] = JournaledBookie) -> World:
    return ledger_world(
        (3, 3, 2), "abc", faults=1, loses=False, crashes=True, alike=["abc"], bookie=bookie
    )


SMALL = Model(
    name="M6-small",
    about="a bookie crashes and restarts; its journal holds entries and fences",
    bounds="E = Qw = Qa = 2; 1 entry; 1 crash",
    world=small,
    states=748_559,
    depth=38,
    defects=(
        Defect(
            "the fence is kept in memory only",
            "S5: r0 reads on",
            depth=5,
            world=lambda: small(VolatileFence),
        ),
        Defect("an answer before the sync", "S1, P15: ", 5, world=lambda: small(HastyAck)),
    ),
)

MODEL = Model(
    name="M6",
    about="a bookie crashes and restarts; its journal holds entries and fences",
    bounds="E = Qw = 3, Qa = 2; 1 entry; 1 crash",
    world=large,
    states=3_000_000,
    exhaustive=False,
    defects=(
        Defect(
            "the fence is kept in memory only",
            "S5: r0 reads on",
            depth=7,
            world=lambda: large(VolatileFence),
        ),
        Defect("an answer before the sync", "S1, P15: ", 5, world=lambda: large(HastyAck)),
    ),
)
