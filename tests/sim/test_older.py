"""Profile `older`: bookies refuse older metadata, or nothing is lost."""

from __future__ import annotations

import pytest

from tests.sim.__main__ import explain
from tests.sim.run import run_seed

_SHORT = 8
_SEEDS = 80


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=pytest.mark.long) if first else first
        for first in range(0, _SEEDS, _SHORT)
    ],
)
def test_no_seed_fails(first: int) -> None:
    for seed in range(first, first + _SHORT):
        result = run_seed(seed, profile="older")
        assert result.failure is None, explain(result)


@pytest.mark.parametrize(
    ("bug", "seed"),
    [
        ("only-an-empty-store-is-older", 0),
        ("no-mark-for-a-new-ledger", 0),
        ("no-mark-after-a-session", 0),
        ("accepted-with-the-old-ids", 0),
        ("mark-on-the-disks-first", 12),
    ],
)
def test_a_planted_bug_is_found(bug: str, seed: int) -> None:
    failure = run_seed(seed, profile="older", mutant=bug).failure
    assert failure is not None
    assert "X26" in failure or "P44" in failure  # an older store lets bookies remove acked entries
