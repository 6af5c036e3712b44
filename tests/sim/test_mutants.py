"""CI's share of the planted bugs: those that are found fastest; `make mutants` runs them all."""

from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS, TESTED
from tests.sim.mutants.search import search
from tests.sim.mutants.tested import judge

SEEDS_MAX = 150
"""Far more than they take, so that a change of the simulator does not cost an edit here."""

FASTEST = (
    "checkpoint-skipped",
    "close-by-the-lac-of-a-minority",
    "ack-quorum-of-one",
    "adopted-before-copied",
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in (
            "corruption-answered-absent",
            "fence-not-replayed",
            "hanging-bookie-blocks-fencing",
        )
    ),
)
TESTED_HERE = ("gap-of-one", "duplicate-proved-by-its-first")


@pytest.mark.parametrize("name", FASTEST)
def test_a_planted_bug_is_found_and_by_nothing_but_the_bug(name: str) -> None:
    found = search(MUTANTS[name], None, 1, SEEDS_MAX)
    assert found.proven, f"not found in {found.seeds} seeds: the simulator is blind there"
    assert not found.unclean, f"seeds {found.unclean} fail without the bug too"


@pytest.mark.long
def test_a_planted_bug_makes_its_test_fail() -> None:
    for verdict in judge([TESTED[name] for name in TESTED_HERE]):
        assert verdict.failed, f"{verdict.name}: no test fails"
