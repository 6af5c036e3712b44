"""A loop that awaits or calls out goes through a copy of a container that others may change.

A dict that grows under a loop ends the loop with a RuntimeError; a list that shrinks makes it skip
an item. The rule looks at an object's own containers (`self._x`, its `values()` and the like): a
loop over them may not await, nor call its items; for dicts, nor a method of its items. `tuple(…)`
around it is enough.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import nodes_of

ROOT = Path(__file__).parent.parent.parent
MODULES = [
    path
    for part in ("bookie", "broker", "ledger", "metadata", "octavo")
    for path in sorted((ROOT / part).rglob("*.py"))
]
_AWAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield)
_VIEWS = ("values", "items", "keys")
_FIXED = (
    "self.config.directories",
    "self._all",  # the journals of a bookie
    "self._record.ledgers.segments",  # a tuple
    "self._newest",  # of a compaction: its first pass is over
    "self._logs.log_ids",  # a new list for each caller
)
"""Containers that never change."""
_HARMLESS = ("append", "extend", "add", "clear", "get", *_VIEWS)
"""Methods of containers."""


def risky_loops(source: str) -> Iterator[tuple[int, str]]:
    """Return (line, container)."""
    for node in nodes_of(ast.parse(source)):
        if not isinstance(node, ast.For | ast.AsyncFor):
            continue
        live, is_dict = _live(node.iter)
        if live is None or ast.unparse(live) in _FIXED:
            continue
        body = [part for statement in node.body for part in _stays(statement)]
        names = {name.id for name in nodes_of(node.target) if isinstance(name, ast.Name)}
        called = [part.func for part in body if isinstance(part, ast.Call)]
        calls_out = any(isinstance(one, ast.Name) and one.id in names for one in called)
        of_it = any(
            isinstance(one, ast.Attribute)
            and isinstance(one.value, ast.Name)
            and one.value.id in names
            and one.attr not in _HARMLESS
            for one in called
        )
        if any(isinstance(part, _AWAITS) for part in body) or calls_out or (is_dict and of_it):
            yield node.lineno, ast.unparse(node.iter)


def _stays(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all within `node` that does not leave the loop."""
    if not isinstance(node, ast.Return | ast.Raise):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _stays(child)


def _live(iterated: ast.expr) -> tuple[ast.expr | None, bool]:
    """Return the object's own container of the loop, and whether it is a dict; or None."""
    if isinstance(iterated, ast.Call):
        function = iterated.func
        if isinstance(function, ast.Attribute) and function.attr in _VIEWS and not iterated.args:
            return _live(function.value)[0], True
        if isinstance(function, ast.Name) and function.id in ("enumerate", "zip", "reversed"):
            return next(((one, of) for one, of in map(_live, iterated.args) if one), (None, False))
        return None, False
    base: ast.expr = iterated
    while isinstance(base, ast.Attribute):
        base = base.value
    own = isinstance(iterated, ast.Attribute) and isinstance(base, ast.Name) and base.id == "self"
    return (iterated if own else None), False


def test_what_may_change_meanwhile_is_copied_first() -> None:
    found = {
        str(path.relative_to(ROOT)): loops
        for path in MODULES
        if (loops := list(risky_loops(path.read_text())))
    }
    assert not found, f"go through tuple(…) of it: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "for x in self._a.values():\n    x.drop()",
        "for k, x in self._a.items():\n    await f(k)",
        "for listener in self._listeners:\n    listener()",
        "for x in self._a:\n    async with x: pass",
        "for n, x in enumerate(self._a):\n    await x.close()",
    ],
)
def test_a_risky_loop_is_found(source: str) -> None:
    assert list(risky_loops(f"async def f(self):\n    {source.replace(chr(10), chr(10) + '    ')}"))


@pytest.mark.parametrize(
    "source",
    [
        "for x in tuple(self._a.values()):\n    x.drop()",
        "for x in self._a:\n    x.cancel()",
        "for x in self._a.values():\n    total += x",
        "for x in found:\n    await x",
        "for x in self._a:\n    if x.is_it:\n        return await x",
    ],
)
def test_others_are_let_alone(source: str) -> None:
    code = f"async def f(self):\n    {source.replace(chr(10), chr(10) + '    ')}"
    assert not list(risky_loops(code))
