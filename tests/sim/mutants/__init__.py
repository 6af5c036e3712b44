"""Known bugs, planted one at a time, to prove that seeds and tests find them.

A bug is planted inside `with planted(name)`. `python -m tests.sim mutants` searches for each with
seeds from 0 on; docs/planted_bugs.md is the table of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.sim.mutants.planting import Absent, EditCameLoose, Mutant, planted_edits
from tests.sim.mutants.sections import SECTIONS
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

_ALL = tuple(mutant for section in SECTIONS for mutant in section.mutants)

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for mutant in sorted(_ALL, key=lambda m: (m.canon or 99, m.name))
}
"""By name: the canon in its order, then the others."""

TESTED: dict[str, TestedBug] = {bug.name: bug for section in SECTIONS for bug in section.tested}
"""Bugs that a test must find, by name."""

ABSENT = (
    Absent(
        13,
        "BookKeeper #4668",
        "an admin's recovery races the collection of surplus copies",
        "Surplus copies stay until their ledger is deleted: nothing collects them.",
    ),
)
"""Bugs of the canon for which Octavo has no code yet."""


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant the bug `name` inside the block; None plants nothing."""
    if name is None:
        yield
        return
    with planted_edits(MUTANTS[name].edits):
        yield
