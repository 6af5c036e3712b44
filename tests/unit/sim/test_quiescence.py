"""Everything that is counted and given back is in `describe()`; the referee sees lost counts."""

from __future__ import annotations

import ast
import asyncio
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo.bookie.back_pressure import Budget
from octavo.broker.cluster.openings import Openings
from tests.sim.wakefulness import Wakefulness
from tests.support.kit.quiescence import Unrest, describable, in_use
from tests.support.sources import nodes_of
from tests.unit.sim.counted_kept import KEPT

ROOT = Path(__file__).parent.parent.parent.parent
PARTS = (
    "bookie", "broker", "ledger", "metadata", "protocol", "octavo/client", "octavo/security",
    "octavo/spark", "octavo/tls",
)  # fmt: skip
_WAITS = re.compile(r"Future\[|Task\[|TimerHandle|deque\[")
_CONTAINER = re.compile(r"(dict|list|set|deque|OrderedDict|Counter|FairQueue)\b")
_NAMED = re.compile(
    r"wait|pending|queue|flight|parked|lease|held|sleep|asked|under_way|going_out|inside|ready"
)


def _signs(tree: ast.AST) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for node in nodes_of(tree):
        if not isinstance(node, ast.AugAssign) or not isinstance(node.target, ast.Attribute):
            continue
        if isinstance(node.op, ast.Add | ast.Sub):
            found[node.target.attr].add(type(node.op).__name__)
    return found


def _made(init: ast.AST) -> Iterator[tuple[str, str, ast.expr | None]]:
    for node in nodes_of(init):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                said = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
                value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
                yield target.attr, said, value


def counted(path: Path) -> Iterator[tuple[str, bool]]:
    """Return (module:Class.field, described) of each counter, queue and set of waiters in a
    module."""
    tree = ast.parse(path.read_text())
    signs = _signs(tree)
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("octavo.")
    for owner in (node for node in nodes_of(tree) if isinstance(node, ast.ClassDef)):
        methods = {one.name: one for one in owner.body if isinstance(one, ast.FunctionDef)}
        if "__init__" not in methods:
            continue
        said = ast.unparse(methods["describe"]) if "describe" in methods else ""
        for field, annotation, value in _made(methods["__init__"]):
            is_zero = isinstance(value, ast.Constant) and value.value == 0
            is_counter = is_zero and signs[field] == {"Add", "Sub"}
            is_line = bool(_CONTAINER.match(annotation)) and bool(
                _WAITS.search(annotation) or _NAMED.search(field)
            )
            if is_counter or is_line:
                yield f"{module}:{owner.name}.{field}", f"self.{field}" in said


def test_what_counts_or_lets_wait_describes_it_or_says_why_not() -> None:
    """A new counter or queue joins `describe()`, or gets a reason in counted_kept.py."""
    paths = (path for part in PARTS for path in (ROOT / part).rglob("*.py"))
    found = {name: described for path in paths for name, described in counted(path)}
    kept = {name for names in KEPT.values() for name in names.split()}
    silent = {name for name, described in found.items() if not described}
    assert silent - kept == set(), "give these to the describe() of their class"
    assert kept - silent == set(), "these are described, or gone"


def test_a_counter_that_is_not_given_back_is_found_behind_fields_and_bound_methods() -> None:
    """The walk follows fields, containers and the listeners of others."""
    budget, listener = Budget(10), Budget(10)
    budget.when_room(lambda: None)
    budget.when_room(listener.share)  # type: ignore[arg-type]
    assert {id(one) for one in describable([{"a": [budget]}])} == {id(budget), id(listener)}
    listener.change(3)
    unrest = Unrest(lambda: [budget])
    assert unrest.look()
    assert unrest.left() == ["bookie.back_pressure.Budget bytes 3"]
    listener.change(-3)
    assert not unrest.look()


def test_what_was_at_rest_once_may_be_in_use_again() -> None:
    """Background work is no leak: a count has to be 0 at one look."""
    budget = Budget(10)
    budget.change(2)
    unrest = Unrest(lambda: [budget])
    budget.change(-2)
    assert not unrest.look()
    budget.change(5)
    assert unrest.left() == []


def test_what_is_gone_is_not_held_to_it() -> None:
    """An unreferenced object has given its memory back."""
    budget = Budget(10)
    budget.change(2)
    roots: list[object] = [budget]
    unrest = Unrest(lambda: roots)
    roots.clear()
    assert unrest.left() == []


class _Watched(Budget):
    """A class of the product that a test extends, as the simulator extends `Serving`."""


def test_a_count_in_a_class_that_the_tests_extend_is_found() -> None:
    """The simulator's brokers answer each other with such a class; its counts were not seen."""
    budget = _Watched(10)
    budget.change(3)
    unrest = Unrest(lambda: [budget])
    assert unrest.look()
    assert len(unrest.left()) == 1


@pytest.mark.parametrize("cancelled", [False, True])
async def test_openings_are_at_rest_after_their_turns(cancelled: bool) -> None:
    """A turn that was waited for and given up is over."""
    openings = Openings(1)

    async def turn(name: str, *, stay: Any = None) -> None:
        async with openings.turn(name):
            if stay is not None:
                await stay.wait()

    stay = asyncio.Event()
    first = asyncio.create_task(turn("a", stay=stay))
    await asyncio.sleep(0)
    second = asyncio.create_task(turn("b"))
    await asyncio.sleep(0)
    assert in_use(openings) == {"turns": 1, "waiting": 1}
    if cancelled:
        second.cancel()
    stay.set()
    await asyncio.gather(first, second, return_exceptions=True)
    assert in_use(openings) == {}


class _Line:
    __module__ = "octavo.played"

    def __init__(self) -> None:
        self.why = ""

    def describe(self) -> dict[str, int]:
        return {"waiting": int(bool(self.why))}

    def waits_in_vain(self) -> str:
        return self.why


class _Looked:
    """The wake-up referee over one process that the test moves."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.line = _Line()
        self.loop = SimpleNamespace(now=1.0)
        self.process = SimpleNamespace(name="b1", alive=True, paused=False, queue=[])
        cluster = SimpleNamespace(
            loop=self.loop,
            audit=SimpleNamespace(fail=self.said.append),
            trace=SimpleNamespace(probe=lambda _: None),
        )
        self.referee = Wakefulness(cast(Any, cluster), self._places)

    def _places(self) -> Iterator[Any]:
        yield self.process, [self.line]

    def look(self, later_s: float = 0.02) -> list[str]:
        self.loop.now += later_s
        self.referee.look()
        return self.said


def test_a_wait_in_vain_is_told_when_two_looks_agree() -> None:
    """One look may come between a change and its wake-up."""
    looked = _Looked()
    assert looked.look() == []
    looked.line.why = "reads wait, and a thread is free"
    assert looked.look() == []
    assert looked.look() == ["Q2 b1 played._Line: reads wait, and a thread is free"]


@pytest.mark.parametrize("change", ["woken", "paused", "dead", "busy", "too soon"])
def test_a_wait_that_may_end_is_not_told(change: str) -> None:
    """A process that is paused, dead or has callbacks left is not blamed, nor a wait that ended."""
    looked = _Looked()
    looked.line.why = "reads wait, and a thread is free"
    looked.look()
    if change == "woken":
        looked.line.why = ""
        looked.look()
        looked.line.why = "reads wait, and a thread is free"
    looked.process.paused = change == "paused"
    looked.process.alive = change != "dead"
    looked.process.queue = [object()] if change == "busy" else []
    assert looked.look(0.001 if change == "too soon" else 0.02) == []
