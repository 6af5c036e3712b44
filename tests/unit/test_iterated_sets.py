"""Code that iterates a set sorts it, or keeps a dict: the order of a set differs from run to run.

The order follows from addresses and from PYTHONHASHSEED, so a set whose order reaches behaviour
makes two runs of a seed differ. Numbers are hashed by value; the simulator keeps the order of tasks
(asyncio's own task groups hold them in sets). The rule looks at names: a set under another name
shows as two runs of a seed with different trace hashes.
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
    for part in ("bookie", "ledger", "broker", "metadata")
    for path in (ROOT / part).rglob("*.py")
]
_HARMLESS = ("set[int]", "frozenset[int]", "set[asyncio.Task")
_ORDERLESS = {"sorted", "len", "set", "frozenset", "min", "max", "sum", "any", "all", "bool"}
_ORDERED = {"tuple", "list", "iter", "enumerate", "map", "zip"}


def iterated_sets(source: str) -> Iterator[tuple[int, str]]:
    """Return (line, name) of every iteration over a known set."""
    nodes = nodes_of(ast.parse(source))
    sets = {ast.unparse(name): kind for name, kind in _sets(nodes)}
    harmless = {name for name, kind in sets.items() if kind.startswith(_HARMLESS)}
    for node, iterated in _iterations(nodes):
        name = ast.unparse(iterated)
        made_here = isinstance(iterated, ast.Set | ast.SetComp) or _is_call(iterated, "set")
        if made_here or (name in sets and name not in harmless):
            yield node.lineno, name


def _sets(nodes: list[ast.AST]) -> Iterator[tuple[ast.expr, str]]:
    """Return names annotated as a set, or made as one without an annotation."""
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and "set[" in ast.unparse(node.annotation)[:10]:
            yield node.target, ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            made = node.value
            if isinstance(made, ast.Set | ast.SetComp) or _is_call(made, "set"):
                yield node.targets[0], ""
        elif isinstance(node, ast.arg) and node.annotation is not None:
            kind = ast.unparse(node.annotation)
            yield from [(ast.Name(node.arg), kind)] * kind.startswith(("set[", "frozenset["))


def _is_call(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and _called(node) == name


def _called(node: ast.Call) -> str:
    """Return the name of a function that is called by its bare name, else an empty string."""
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _iterations(nodes: list[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield (where, what) is iterated, in an order that may matter."""
    orderless = {
        id(argument)
        for node in nodes
        if isinstance(node, ast.Call) and _called(node) in _ORDERLESS
        for argument in node.args
    }
    for node in nodes:
        if isinstance(node, ast.For | ast.AsyncFor):
            yield node.iter, node.iter
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
            if id(node) not in orderless:
                yield from ((one.iter, one.iter) for one in node.generators)
        elif isinstance(node, ast.Starred):
            yield node, node.value
        elif isinstance(node, ast.Call) and _called(node) in _ORDERED and id(node) not in orderless:
            yield from ((one, one) for one in node.args)


def test_no_set_is_iterated_unsorted() -> None:
    found = {
        f"{path.parent.name}/{path.name}": sets
        for path in MODULES
        if (sets := list(iterated_sets(path.read_text())))
    }
    assert not found, f"sort it, or use a dict as an ordered set: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "self._a: set[str] = set()\nfor x in self._a: pass",
        "self._a: set[Listener] = set()\nfor x in tuple(self._a): pass",
        "a = {b.name for b in c}\nd = [x for x in a]",
        "a = set(b)\nf(*a)",
        "def f(names: set[str]):\n    return {n: 1 for n in names}",
        "for x in {'a', 'b'}: pass",
        "for x in set(a): pass",
    ],
)
def test_an_iterated_set_is_found(source: str) -> None:
    assert list(iterated_sets(source))


@pytest.mark.parametrize(
    "source",
    [
        "self._a: set[str] = set()\nfor x in sorted(self._a): pass",
        "a = set(b)\nc = len(a) + max(a)\nd = sorted(x for x in a)",
        "self._a: dict[str, None] = {}\nfor x in self._a: pass",
        "self._a: set[int] = set()\nfor x in self._a: pass",
        "a = {1: 2}\nfor x in a: pass",
        "def f(names: set[str]):\n    return [n for n in b if n in names]",
    ],
)
def test_other_iterations_are_let_alone(source: str) -> None:
    assert not list(iterated_sets(source))
