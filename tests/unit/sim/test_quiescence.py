"""Whatever is counted and given back says so in `describe()`; the referee sees what is not."""

from __future__ import annotations

import ast
import asyncio
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.back_pressure import Budget
from octavo.broker.cluster.openings import Openings
from tests.support.kit.quiescence import Unrest, describable, in_use
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
    """By name of an attribute, whether it is counted up and down."""
    found: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if not isinstance(node, ast.AugAssign) or not isinstance(node.target, ast.Attribute):
            continue
        if isinstance(node.op, ast.Add | ast.Sub):
            found[node.target.attr].add(type(node.op).__name__)
    return found


def _made(init: ast.AST) -> Iterator[tuple[str, str, ast.expr | None]]:
    """(field, annotation, value) of what `__init__` makes."""
    for node in ast.walk(init):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                said = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
                value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
                yield target.attr, said, value


def counted(path: Path) -> Iterator[tuple[str, bool]]:
    """(module:Class.field, described) of each counter, queue and set of waiters in a module."""
    tree = ast.parse(path.read_text())
    signs = _signs(tree)
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("octavo.")
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
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


ALL = {
    name: described
    for part in PARTS
    for path in sorted((ROOT / part).rglob("*.py"))
    for name, described in counted(path)
}


def test_what_counts_or_lets_wait_describes_it_or_says_why_not() -> None:
    """A new counter or queue joins `describe()`, or gets a reason in counted_kept.py."""
    kept = {name for names in KEPT.values() for name in names.split()}
    silent = {name for name, described in ALL.items() if not described}
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
    """What nothing refers to any more gives its memory back by that."""
    budget = Budget(10)
    budget.change(2)
    roots: list[object] = [budget]
    unrest = Unrest(lambda: roots)
    roots.clear()
    assert unrest.left() == []


@pytest.mark.parametrize("cancelled", [False, True])
async def test_openings_are_at_rest_after_their_turns(cancelled: bool) -> None:
    """A turn that was waited for and given up is nobody's."""
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
