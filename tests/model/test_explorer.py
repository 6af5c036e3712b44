"""Tests of the explorer, on systems with known results."""

from __future__ import annotations

from tests.model.explorer import explore
from tests.model.freeze import freeze


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
