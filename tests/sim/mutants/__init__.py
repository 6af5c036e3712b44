"""Bugs of the field, planted one at a time: the proof that the simulator sees.

`planted(name)` holds while inside it. `python -m tests.sim mutants` searches each with seeds from
0 on; docs/planted_bugs.md is the table of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.sim.mutants import (
    bookie_bugs,
    client_bugs,
    copy_bugs,
    fleet_bugs,
    garbage_bugs,
    overlooked_bugs,
    published_bugs,
    recovery_bugs,
    recreate_bugs,
    survivor_bugs,
    tested_bookie_bugs,
    tested_broker_bugs,
    tested_ledger_bugs,
    time_bugs,
    tool_bugs,
    topic_bugs,
    view_bugs,
    writer_bugs,
)
from tests.sim.mutants.planting import Absent, EditCameLoose, Mutant, planted_edits
from tests.sim.mutants.tested import TestedBug

__all__ = [
    "ABSENT",
    "MUTANTS",
    "TESTED",
    "Absent",
    "EditCameLoose",
    "Mutant",
    "TestedBug",
    "planted",
]

_ALL = (
    *recovery_bugs.MUTANTS,
    *writer_bugs.MUTANTS,
    *bookie_bugs.MUTANTS,
    *copy_bugs.MUTANTS,
    *garbage_bugs.MUTANTS,
    *topic_bugs.MUTANTS,
    *time_bugs.MUTANTS,
    *client_bugs.MUTANTS,
    *tool_bugs.MUTANTS,
    *view_bugs.MUTANTS,
    *fleet_bugs.MUTANTS,
    *recreate_bugs.MUTANTS,
    *overlooked_bugs.MUTANTS,
    *survivor_bugs.MUTANTS,
    *published_bugs.MUTANTS,
)

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for mutant in sorted(_ALL, key=lambda m: (m.canon or 99, m.name))
}
"""By name: the canon in its order, then the others."""

TESTED: dict[str, TestedBug] = {
    bug.name: bug
    for bug in (
        *tested_ledger_bugs.BUGS,
        *tested_bookie_bugs.BUGS,
        *tested_broker_bugs.BUGS,
        *survivor_bugs.BUGS,
    )
}
"""Those that a test has to find, by name."""

ABSENT = (
    Absent(
        13,
        "BookKeeper #4668",
        "an admin's recovery races the collection of surplus copies",
        "Surplus copies stay until their ledger is deleted: nothing collects them.",
    ),
)
"""Of the canon, what has no code to be planted in yet."""


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """The bug `name` holds inside, and not afterwards; None plants nothing."""
    if name is None:
        yield
        return
    with planted_edits(MUTANTS[name].edits):
        yield
