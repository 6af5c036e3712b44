"""Clients that go away in the middle of their calls, and brokers that lose each other, leave
nothing behind: profile `leave`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.mutants import TESTED
from tests.sim.mutants.leave_bugs import FOUND_WITH
from tests.sim.mutants.planting import planted_edits
from tests.sim.run import run_seed

SHORT = (3, 8, 9)
LONG = range(10, 40)
KINDS = ("poll", "follow", "append", "make", "head", "publish", "read", "receive", "copy", "beat")
_LEFT_LEAST = 20


def _run(seeds: tuple[int, ...] | range) -> Counter[str]:
    probes = Counter[str]()
    for seed in seeds:
        result = run_seed(seed, profile="leave")
        failed = f"python -m tests.sim run {seed} --profile leave: {result.failure}"
        assert result.failure is None, failed
        probes.update(result.probes)
    return probes


@pytest.mark.timeout(300)
def test_nothing_is_left_behind() -> None:
    probes = _run(SHORT)
    assert probes["leave.served"] == len(SHORT)
    assert sum(times for name, times in probes.items() if name.endswith(".left")) > _LEFT_LEAST


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_nothing_is_left_behind_by_any_kind_of_call() -> None:
    probes = _run(LONG)
    for kind in KINDS:
        assert probes[f"leave.{kind}.left"] > 0, f"no {kind} was cut off"
        done = (f"leave.{kind}.{how}" for how in ("done", 200, 201, 204))
        assert any(map(probes.__getitem__, done)), f"no {kind} was done"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("bug", "seed"), sorted(FOUND_WITH.items()))
def test_a_count_that_is_not_given_back_is_found(bug: str, seed: int) -> None:
    with planted_edits(TESTED[bug].edits):
        result = run_seed(seed, profile="leave")
    assert result.failure is not None
