"""Each partition of a consumer group has one member, whichever members join, leave or vanish."""

from __future__ import annotations

import pytest

from tests.sim.groups import BUGS, run_seed

SEEDS = 6
SEEDS_OF_A_BUG = 60


def test_each_partition_is_one_members() -> None:
    probes = dict[str, int]()
    for seed in range(SEEDS):
        result = run_seed(seed)
        assert result.failure is None, f"python -m tests.sim.groups: seed {seed}: {result.failure}"
        for name, times in result.probes.items():
            probes[name] = probes.get(name, 0) + times
    for name in ("given_by_the_only_keeper", "received", "stale", "judged"):
        assert probes.get(f"groups.{name}", 0) >= SEEDS, f"{name}: the seeds show too little"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_same_of_many_seeds() -> None:
    for seed in range(SEEDS, 100):
        result = run_seed(seed)
        assert result.failure is None, f"seed {seed}: {result.failure}"


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    found = (run_seed(seed, BUGS[bug]).failure for seed in range(SEEDS_OF_A_BUG))
    failure = next((one for one in found if one is not None), None)
    assert failure is not None, f"{SEEDS_OF_A_BUG} seeds find nothing"
    assert "X22 " in failure, failure


def test_a_seed_is_one_story() -> None:
    assert run_seed(7) == run_seed(7)
