"""The simulator's planted storage bugs (tests/sim/mutants) are found without the simulator
too: bugs that lose data at a crash by the crash states, bugs that mistake damage by the single
faults."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest

from tests.crash_states.explore import CrashStateFailed, explore
from tests.sim.mutants import planted
from tests.single_fault.sweep import WrongAnswer, cases, faults_of, sweep

CRASHES: dict[str, Sequence[str]] = {
    "highest-mark-of-several-folders": ("add", "checkpoint", "add", "checkpoint"),  # #3329
    "state-not-flushed-with-an-empty-cache": ("add", "checkpoint", "fence", "checkpoint"),  # #4843
    "checkpoint-skipped": ("add", "checkpoint", "roll", "checkpoint"),  # #4844
    "copies-behind-the-mark": ("add", "checkpoint", "compact", "compact"),
}
"""Name → a life with an operation that shows the bug."""
FAULTS = ("corruption-answered-absent", "bad-header-means-an-empty-log")  # #2908, #4607


@pytest.mark.parametrize("name", CRASHES)
def test_a_crash_state_shows_it(name: str) -> None:
    life = CRASHES[name]
    lives = [life[:length] for length in range(len(life) + 1)]
    explore(lives)
    with planted(name), pytest.raises(CrashStateFailed):
        explore(lives)


def test_an_index_flushed_too_late_is_made_up_for() -> None:
    """BookKeeper #1534 shows in no crash here: a start adds the existing logs to an index
    behind the mark. test_planted.py plants the bug with its effect."""
    life = ("add", "checkpoint", "compact", "compact")
    with planted("log-unlinked-before-the-index-flush"):
        explore([life[:length] for length in range(len(life) + 1)])


@pytest.mark.parametrize("name", FAULTS)
def test_a_single_fault_shows_it(name: str) -> None:
    all_cases = list(cases())
    with planted(name), pytest.raises(WrongAnswer):
        deque(sweep(case, faults_of(case, 0, 3)) for case in all_cases)
