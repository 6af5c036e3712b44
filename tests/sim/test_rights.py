"""A withdrawn right is effective within five virtual seconds, under faults."""

from __future__ import annotations

import pytest

from tests.sim.rights import BUGS, run_seed

SEEDS = 25
SEEDS_OF_A_BUG = 60


def test_a_right_that_is_withdrawn_ends_everywhere_in_time() -> None:
    looked = changes = 0
    for seed in range(SEEDS):
        result = run_seed(seed)
        assert result.failure is None, f"python -m tests.sim.rights: seed {seed}: {result.failure}"
        looked += result.probes.get("rights.effective_in_time", 0)
        changes += result.changes
    assert changes > 4 * SEEDS
    assert looked > 100 * SEEDS, "somebody was long enough in reach, with a right withdrawn"


@pytest.mark.long
def test_the_same_of_many_seeds() -> None:
    for seed in range(SEEDS, 400):
        result = run_seed(seed)
        assert result.failure is None, f"seed {seed}: {result.failure}"


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    found = (run_seed(seed, BUGS[bug]).failure for seed in range(SEEDS_OF_A_BUG))
    failure = next((one for one in found if one is not None), None)
    assert failure is not None, f"{SEEDS_OF_A_BUG} seeds find nothing"
    assert "who may not" in failure or "otherwise than the policy" in failure, failure


def test_a_seed_is_one_story() -> None:
    assert run_seed(7) == run_seed(7)
