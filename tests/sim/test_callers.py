"""Under faults, no denied call is done, and no allowed call is refused for ever."""

from __future__ import annotations

import pytest

from tests.sim.callers import BUGS, run_seed

SEEDS = 6
SEEDS_OF_A_BUG = 40
SHORT_BUGS = 2


def test_users_do_what_they_may_and_nothing_else() -> None:
    probes = dict[str, int]()
    for seed in range(SEEDS):
        result = run_seed(seed)
        assert result.failure is None, f"python -m tests.sim.callers: seed {seed}: {result.failure}"
        for name, times in result.probes.items():
            probes[name] = probes.get(name, 0) + times
    for name in ("done", "denied", "wait", "stream_done", "within_quota", "judged"):
        assert probes.get(f"callers.{name}", 0) >= SEEDS, f"{name}: the seeds show too little"


@pytest.mark.long
def test_the_same_of_many_seeds() -> None:
    for seed in range(SEEDS, 30):
        result = run_seed(seed)
        assert result.failure is None, f"seed {seed}: {result.failure}"


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, marks=pytest.mark.long) if number >= SHORT_BUGS else bug
        for number, bug in enumerate(BUGS)
    ],
)
def test_a_planted_bug_is_found(bug: str) -> None:
    found = (run_seed(seed, BUGS[bug]).failure for seed in range(SEEDS_OF_A_BUG))
    failure = next((one for one in found if one is not None), None)
    assert failure is not None, f"{SEEDS_OF_A_BUG} seeds find nothing"
    told = ("not since", "refuses", "whose quota is", "in the end")
    assert any(one in failure for one in told), failure


def test_a_seed_is_one_story() -> None:
    assert run_seed(7) == run_seed(7)
