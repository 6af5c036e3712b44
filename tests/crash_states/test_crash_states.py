from __future__ import annotations

from collections import Counter

import pytest

from tests.crash_states.explore import Explored, explore, explore_kills, explore_one, sequences
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
from tests.support.engine_lab.images import images
from tests.support.engine_lab.lives import OPERATIONS, TWO_JOURNALS, WITH_TWO_JOURNALS, points_of

STATES = {0: 7, 1: 157}
"""Length → states. Another number means that the storage engine uses its disk in another way."""
STRIDE = 223
"""Every how many lives of four operations are run here; `make crash-states` runs all."""
SHORT_STRIDE = 11
"""Every how many lives of two operations are run in `make test`."""


@pytest.mark.parametrize("length", [0, 1])
def test_the_number_of_states_is_known(length: int) -> None:
    assert explore(sequences(length)).states == STATES[length]


def test_every_crash_of_some_lives_of_two_operations() -> None:
    assert explore(list(sequences(2))[::SHORT_STRIDE]).states >= 100


@pytest.mark.long
def test_every_crash_of_every_life_of_two_operations() -> None:
    found = explore(sequences(2))
    assert found.sequences == 1 + len(OPERATIONS) + len(OPERATIONS) ** 2
    assert found.states >= 1500
    assert found.incomplete == 0
    assert found.images > 5 * found.states, "the same state is checked once"


@pytest.mark.long
def test_every_crash_of_some_lives_of_four_operations() -> None:
    found = explore([life for life in sequences(4) if len(life) == 4][::STRIDE])
    assert found.states >= 1500


@pytest.mark.long
def test_every_crash_of_lives_with_two_journals() -> None:
    lives = [life for life in sequences(3, WITH_TWO_JOURNALS) if "other" in life]
    assert explore(lives[::7], TWO_JOURNALS).states >= 500


@pytest.mark.long
def test_every_crash_after_every_kill_and_failed_sync() -> None:
    found = explore_kills(sequences(1))
    assert found.states > 1000
    assert found.incomplete == 0


def test_points_stand_before_and_after_each_change() -> None:
    loop = SimLoop(1, trace=Trace())
    points = points_of(("add", "checkpoint"), loop)
    loop.close()
    seen = Counter(point.where.split()[0] + " " + point.where.split()[1] for point in points)
    for call in ("pwritev", "datasync", "preallocate", "create", "rename", "sync_directory"):
        assert seen[f"before {call}"] == seen[f"after {call}"] > 0, call
    assert seen["before index_flush"] == seen["after index_flush"] == 1


def test_a_write_of_three_sectors_leaves_every_combination() -> None:
    loop = SimLoop(1, trace=Trace())
    points = points_of(("roll",), loop)
    loop.close()
    written = [point for point in points if point.where.startswith("after pwritev")]
    explored = Explored()
    explore_one(("roll",), explored)
    most = max(len(list(images(point.moment))) for point in written)
    assert most >= 3**3, "each sector: lost, torn, or there"
