"""Small models are searched whole, and every planted bug is found. If the number of states
differs from the model's, the protocol has changed: see what changed, then write the new number
down."""

from __future__ import annotations

import pytest

from tests.model.explorer import Defect, Model, alone, explore, walk
from tests.model.models import MODELS, ledger_world
from tests.model.world import freeze

SLOW = {"M1", "M7"}
"""They take up to half a minute of a core: in the long run. The bugs planted in them are found
in every run."""
SEARCHED = [
    pytest.param(model, id=model.name, marks=[pytest.mark.long] * (model.name in SLOW))
    for model in MODELS.values()
    if model.ci
]
PLANTED = [
    pytest.param(model, defect, id=f"{model.name}: {defect.name}")
    for model in MODELS.values()
    for defect in model.defects
    if not defect.slow
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", SEARCHED)
def test_nothing_is_wrong_in_any_state(model: Model) -> None:
    found = model.search()
    assert found.failure is None, str(found)
    assert found.complete
    assert (found.states, found.depth) == (model.states, model.depth), "the protocol has changed"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("model", "defect"), PLANTED)
def test_a_planted_bug_is_found_by_the_shortest_story(model: Model, defect: Defect) -> None:
    found = model.hunt(defect)
    assert found.failure is not None, f"not found in {found.states} states"
    assert found.failure.startswith(defect.says), str(found)
    assert len(found.story) == defect.depth, str(found)


@pytest.mark.timeout(900)
def test_every_model_has_planted_bugs() -> None:
    for model in MODELS.values():
        assert model.defects, model.name


@pytest.mark.timeout(900)
@pytest.mark.long
def test_names_make_no_difference() -> None:
    with alone():
        whole = ledger_world((2, 2, 1), "ab", recoverers=2)
        like = ledger_world((2, 2, 1), "ab", recoverers=2, alike=["ab", ["r0", "r1"]])
        found, fewer = explore(whole), explore(like)
    assert found.failure is None
    assert fewer.failure is None
    assert found.depth == fewer.depth
    assert found.states / 4 < fewer.states < found.states / 3


@pytest.mark.timeout(900)
@pytest.mark.long
def test_random_ways_through_what_is_too_large_to_visit() -> None:
    """Two recoverers, two entries in flight, a spare bookie, two faults."""
    with alone():
        world = ledger_world(
            (3, 3, 2), "abcd", recoverers=2, entries=2, in_flight=2,
            faults=2, loses=True, crashes=True, closes=True,
        )  # fmt: skip
        found = walk(world, 150)
    assert found.failure is None, str(found)
    assert found.states > 5_000


class Count:
    def __init__(self, top: int = 10, wrong: int = -1, dead: int = -1) -> None:
        self.top, self.wrong, self.dead = top, wrong, dead

    def start(self) -> int:
        return 0

    def steps(self, state: int) -> list[tuple[int, int]]:
        if state == self.dead:
            return []
        return [(by, state + by) for by in (1, 2) if state + by <= self.top]

    def named_steps(self, state: int) -> list[tuple[int, int]]:
        return self.steps(state)

    def representative(self, state: int) -> int:
        return state

    def violation(self, state: int) -> str | None:
        return f"{state} is wrong" if state == self.wrong else None

    def ended(self, state: int) -> bool:
        return state == self.top

    def tell(self, before: int, step: int, after: int) -> str:
        return f"{before}+{step}"


def test_every_state_is_visited_once() -> None:
    found = explore(Count(10))
    assert (found.states, found.transitions, found.depth) == (11, 19, 5)
    assert found.complete
    assert found.failure is None


def test_the_shortest_story_is_told() -> None:
    found = explore(Count(10, wrong=7))
    assert found.failure == "7 is wrong"
    assert len(found.story) == 4
    assert found.story[-1] in ("5+2", "6+1")
    assert not found.complete


def test_a_dead_end_is_a_violation_unless_all_is_over() -> None:
    found = explore(Count(10, dead=4))
    assert found.failure is not None
    assert found.failure.startswith("liveness")
    assert found.story == ["0+2", "2+2"]
    assert explore(Count(10, dead=4), liveness=False).failure is None
    assert explore(Count(10, dead=10)).failure is None


def test_a_bound_ends_the_search_and_says_so() -> None:
    found = explore(Count(1_000), 100)
    assert not found.complete
    assert 100 <= found.states <= 102


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: object, b: object) -> None:
        self.a, self.b = a, b


def test_equal_values_freeze_to_equal_keys() -> None:
    one = Slotted({1: [2], 3: {4}}, ValueError("x"))
    same = Slotted({3: {4}, 1: [2]}, ValueError("y"))
    assert freeze(one) == freeze(same)
    assert hash(freeze(one)) == hash(freeze(same))
    assert freeze(one) != freeze(Slotted({1: [2], 3: {4}}, KeyError("x")))
    assert freeze(one) != freeze(Slotted({1: [2], 3: {5}}, ValueError("x")))
