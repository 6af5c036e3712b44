"""A bookie's memory under overload: the short form of bench/overload.py. Without the budgets that
bound it, the same load must exceed the goal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.overload import (
    RESIDENT_MIB_MAX,
    Result,
    caches_mib,
    half_frames,
    long_entries,
    slow_disk,
    slow_readers,
)

CONNECTIONS = 300
SECONDS = 1.0
LONGER_S = (1.0, 5.0, 25.0)
"""How long to load a bookie without budgets: a busy machine needs longer."""
HANGS_MS = 60_000
GOAL_MIB = caches_mib() + RESIDENT_MIB_MAX
UNBOUNDED = 1 << 40
ADDS = {
    "journal_queue_bytes_max": UNBOUNDED,
    "add_bytes_max": UNBOUNDED,
    "connection_add_bytes_max": UNBOUNDED,
}
FRAMES = {"receive_bytes_max": UNBOUNDED}
ANSWERS = {"answer_bytes_max": UNBOUNDED, "connection_answer_bytes_max": UNBOUNDED}

Scenario = Callable[..., Result]


@pytest.mark.long
@pytest.mark.parametrize("scenario", [half_frames, long_entries, slow_disk, slow_readers])
def test_memory_stays_within_the_caches_and_150_mib(scenario: Scenario, tmp_path: Path) -> None:
    result = scenario(str(tmp_path), CONNECTIONS, SECONDS)
    assert result.peak_mib <= GOAL_MIB, result
    assert result.modest_ms < HANGS_MS, f"a modest client's add hangs: {result}"


@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario", "connections", "without"),
    [
        (half_frames, 300, FRAMES),
        (long_entries, 80, {**FRAMES, **ADDS, "sync_s": 1.0}),
        (slow_disk, 450, {**ADDS, "sync_s": 1.0}),
        (slow_readers, 16, ANSWERS),
    ],
    ids=["half_frames", "long_entries", "slow_disk", "slow_readers"],
)
def test_without_its_budgets_far_less_load_goes_past_the_goal(
    scenario: Scenario, connections: int, without: dict[str, Any], tmp_path: Path
) -> None:
    results = []
    for for_s in LONGER_S:
        folder = tmp_path / f"{for_s}"
        folder.mkdir()
        results.append(scenario(str(folder), connections, for_s, asks=False, **without))
        if results[-1].peak_mib > GOAL_MIB:
            return
    pytest.fail(f"the load shows nothing: {results}")
