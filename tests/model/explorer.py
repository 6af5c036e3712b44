"""Visits every state of a system, breadth first, so that each violation comes with its shortest
story. Then it goes backwards from the ended states: a state from which none can be reached is a
dead end, and a violation too (liveness)."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from logging import CRITICAL
from typing import Protocol
from unittest.mock import patch

import structlog

from octavo.ledger.recover import recovery_state
from tests.model.world import World


class System(Protocol):
    """A system to explore. Two states with one number must have the same future."""

    def start(self) -> int:
        pass

    def steps(self, state: int) -> list[tuple[int, int]]:
        """Return (number of the step, the state after it) for every possible next step."""

    def named_steps(self, state: int) -> list[tuple[int, int]]:
        """Return the same for real states, where `steps` gives the representative of each."""

    def representative(self, state: int) -> int:
        pass

    def violation(self, state: int) -> str | None:
        pass

    def ended(self, state: int) -> bool:
        pass

    def tell(self, before: int, step: int, after: int) -> str:
        pass


@dataclass(frozen=True, slots=True)
class Found:
    states: int
    depth: int
    transitions: int
    seconds: float
    complete: bool
    failure: str | None = None
    story: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.states / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        lines = [f"{number:4}  {line}" for number, line in enumerate(self.story, 1)]
        return "\n".join([self.failure or "nothing is wrong", *lines])


class _Search:
    def __init__(self, system: System) -> None:
        self.system = system
        self.began = time.process_time()
        self.order = [system.representative(system.start())]
        self.number = {self.order[0]: 0}
        self.parents = array("q", [-1])
        self.edges = array("I")
        self.edges_from = array("Q")
        self.depth = 0

    def run(self, states_max: int, edges: bool) -> Found:
        system, order, number = self.system, self.order, self.number
        steps, violation = system.steps, system.violation
        transitions = at = 0
        level_end = 1
        if (what := violation(order[0])) is not None:
            return self.found(transitions, what, 0)
        while at < len(order):
            if at == level_end:
                self.depth += 1
                level_end = len(order)
            if len(order) >= states_max:
                return self.found(transitions, complete=False)
            if edges:
                self.edges_from.append(len(self.edges))
            for _, after in steps(order[at]):
                transitions += 1
                seen = number.get(after)
                if seen is None:
                    seen = number[after] = len(order)
                    order.append(after)
                    self.parents.append(at)
                    if (what := violation(after)) is not None:
                        return self.found(transitions, what, seen)
                if edges:
                    self.edges.append(seen)
            at += 1
        if edges and (dead := self.dead_end()) is not None:
            what = "liveness: from here nothing leads to an end any more"
            return self.found(transitions, what, dead)
        return self.found(transitions)

    def found(
        self, transitions: int, failure: str | None = None, at: int = -1, complete: bool = True
    ) -> Found:
        seconds = time.process_time() - self.began
        story: list[str] = []
        if failure is not None:
            what, story = self.story(at)
            failure = what or failure
        complete = complete and failure is None
        states = len(self.order)
        return Found(states, self.depth, transitions, seconds, complete, failure, story)

    def story(self, at: int) -> tuple[str, list[str]]:
        path = [at]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        return told(self.system, [self.order[number] for number in reversed(path)])

    def dead_end(self) -> int | None:
        alive = bytearray(self.system.ended(state) for state in self.order)
        self.edges_from.append(len(self.edges))
        changed = True
        while changed:
            changed = False
            end = len(self.edges)
            for number in range(len(self.order) - 1, -1, -1):
                begin = self.edges_from[number]
                if not alive[number] and any(alive[n] for n in self.edges[begin:end]):
                    alive[number] = changed = True
                end = begin
        dead = alive.find(0)
        return None if dead < 0 else dead


def told(system: System, states: list[int]) -> tuple[str, list[str]]:
    """Return what is wrong in the last of these states, and the steps to it, with the first
    names. For a dead end the first text is empty."""
    at, lines = system.start(), []
    for wanted in states[1:]:
        steps = system.named_steps(at)
        fitting = [found for found in steps if system.representative(found[1]) == wanted]
        # An assertion's text may contain names: then any violation here will do.
        step, after = (fitting or [found for found in steps if system.violation(found[1])])[0]
        lines.append(system.tell(at, step, after))
        at = after
    return system.violation(at) or "", lines


def explore(system: System, states_max: int = 50_000_000, *, liveness: bool = True) -> Found:
    return _Search(system).run(states_max, liveness)


def walk(system: System, walks: int, steps_max: int = 400, seed: int = 0) -> Found:
    """Take random ways to the end, for a system that is too large to visit whole."""
    began, rng, transitions, depth = time.process_time(), random.Random(seed), 0, 0
    seen: set[int] = set()
    for _ in range(walks):
        path = [system.representative(system.start())]
        while len(path) <= steps_max and (steps := system.steps(path[-1])):
            path.append(rng.choice(steps)[1])
            seen.add(path[-1])
            if (what := system.violation(path[-1])) is not None:
                seconds = time.process_time() - began
                what, story = told(system, path)
                return Found(len(seen), len(path), transitions, seconds, False, what, story)
        transitions += len(path) - 1
        depth = max(depth, len(path) - 1)
    return Found(len(seen), depth, transitions, time.process_time() - began, False)


@dataclass(frozen=True)
class Defect:
    """A bug to plant. The search must find it by a story of exactly this many steps."""

    name: str
    says: str
    depth: int
    plant: Callable[[], AbstractContextManager[object]] = nullcontext
    world: Callable[[], World] | None = None
    """Where the bug shows, if not in the model's own world."""
    slow: bool = False


@dataclass(frozen=True)
class Model:
    """`states` and `depth` are the results of the search when it was written."""

    name: str
    about: str
    bounds: str
    world: Callable[[], World]
    states: int
    """All reachable states, or, when not `exhaustive`, the visited states."""
    depth: int = 0
    exhaustive: bool = True
    ci: bool = False
    defects: tuple[Defect, ...] = field(default=())

    def search(self, states_max: int | None = None) -> Found:
        if states_max is None:
            states_max = 100_000_000 if self.exhaustive else self.states
        with alone():
            return explore(self.world(), states_max)

    def hunt(self, defect: Defect, states_max: int = 100_000_000) -> Found:
        with alone(), defect.plant():
            return explore((defect.world or self.world)(), states_max)


@contextmanager
def alone() -> Iterator[None]:
    """Let recoveries read one entry ahead, not eight, which changes nothing else. Log nothing,
    since a story may repeat a step."""
    logging = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
    try:
        with (
            patch.object(recovery_state, "READ_AHEAD_MIN", 1),
            patch.object(recovery_state, "READ_AHEAD_MAX", 1),
        ):
            yield
    finally:
        structlog.configure(**logging)
