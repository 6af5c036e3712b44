"""CI's share of the planted bugs: those that are found fastest; `make mutants` runs them all."""

from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS
from tests.sim.mutants.search import search

SEEDS_MAX = 60
"""Far more than they take, so that a change of the simulator does not cost an edit here."""

FASTEST = (
    "corruption-answered-absent",
    "checkpoint-skipped",
    "close-by-the-lac-of-a-minority",
    "ack-quorum-of-one",
    "fence-not-replayed",
    "hanging-bookie-blocks-fencing",
    "adopted-before-copied",
)


@pytest.mark.parametrize("name", FASTEST)
def test_a_planted_bug_is_found_and_by_nothing_but_the_bug(name: str) -> None:
    found = search(MUTANTS[name], None, 1, SEEDS_MAX)
    assert found.proven, f"not found in {found.seeds} seeds: the simulator is blind there"
    assert not found.unclean, f"seeds {found.unclean} fail without the bug too"
