"""Profile `still`: a lost wake-up shows at once, though a tick would repair it."""

from __future__ import annotations

import pytest

from tests.sim.mutants import TESTED
from tests.sim.mutants.planting import planted_edits
from tests.sim.run import run_seed


@pytest.mark.parametrize(
    ("bug", "seed"), [("resumed-and-sends-nothing", 0), ("flushed-and-not-told", 5)]
)
def test_a_lost_wake_up_of_a_writer_is_found(bug: str, seed: int) -> None:
    """No seed of another profile has found these bugs."""
    with planted_edits(TESTED[bug].edits):
        result = run_seed(seed, profile="still")
    assert result.failure is not None
    assert "Q2" in result.failure


def test_without_a_bug_all_is_well() -> None:
    assert run_seed(0, profile="still").failure is None
