"""Each cache and each table of joined requests is known, with the test of its key.

If a key lacks a field, a caller gets what belongs to another, and no other test sees it, because
tests ask for the same thing twice. So each table that is read and filled by a key is in
caches_kept.py, with a test that varies the fields of its key, or with the reason to have none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.sources import nodes_of
from tests.unit.caches_kept import HELD, KEPT

ROOT = Path(__file__).parent.parent.parent
PARTS = ("bookie", "broker", "ledger", "metadata", "octavo", "protocol")
_LEFT_OUT = ("standalone",)
_MEMO = re.compile(r"(functools\.)?(lru_cache|cache)\b")
_MADE = re.compile(r"(functools\.)?(lru_cache|cache)\(")


def _own_field(node: ast.expr) -> str | None:
    """Return `x` of `self.x`."""
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return node.attr if is_own and node.value.id == "self" else None  # type: ignore[attr-defined]


def _memos(tree: ast.AST) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(_MEMO.match(ast.unparse(one)) for one in node.decorator_list):
                yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = _MADE.match(ast.unparse(node.value))
            yield from [ast.unparse(node.targets[0]).removeprefix("self.")] * bool(made)


def _name(node: ast.expr) -> str | None:
    """Return `x` of `x`."""
    return node.id if isinstance(node, ast.Name) else None


_READS = ("get", "pop", "setdefault")


def _tables(owner: ast.AST, name_of: Callable[[ast.expr], str | None]) -> set[str]:
    """Return names that are read and filled by a key; of a module also sets."""
    read: set[str | None] = set()
    filled: set[str | None] = set()
    for node in nodes_of(owner):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = name_of(node.func.value)
            if node.func.attr in _READS:
                read.add(name)
            if node.func.attr == "setdefault" or (node.func.attr == "add" and name_of is _name):
                filled.add(name)
        elif isinstance(node, ast.Compare):
            if any(isinstance(one, ast.In | ast.NotIn) for one in node.ops):
                read.add(name_of(node.comparators[-1]))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            filled.add(name_of(node.value))
    return {name for name in read & filled if name is not None}


def _of_module(tree: ast.Module) -> set[str]:
    """Return names that the module assigns at its top level."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def caches(source: str) -> set[str]:
    """Return the names of all in a module."""
    tree = ast.parse(source)
    found = set(_memos(tree))
    of_module = _of_module(tree)
    for node in nodes_of(tree):
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{field}" for field in _tables(node, _own_field)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= _tables(node, _name) & of_module
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = ast.unparse(node.value.func).startswith("ProcessCache")
            found |= {ast.unparse(node.targets[0])} if made else set()
    return found


def _all() -> set[str]:
    found = set()
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            within = path.relative_to(ROOT).with_suffix("")
            if path.resolve() == path and not set(within.parts) & set(_LEFT_OUT):
                module = ".".join(within.parts).removeprefix("octavo.")
                found |= {f"{module}:{name}" for name in caches(path.read_text())}
    return found


def test_each_is_held_by_a_test_or_says_why_not() -> None:
    """A new cache gets a property in test_cache_keys.py, or a reason in caches_kept.py."""
    kept = [name for names in KEPT.values() for name in names.split()]
    known = [*HELD, *kept]
    assert len(known) == len(set(known)), "each stands there once"
    found = _all()
    assert found - set(known) == set(), "vary the fields of its key after a hit, or say why not"
    assert set(known) - found == set(), "these are gone"


@pytest.mark.parametrize("test", sorted(set(HELD.values())))
def test_the_tests_are_there(test: str) -> None:
    path, _, name = test.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("@functools.lru_cache(8)\ndef f(x): ...", {"f"}),
        ("@cache\ndef f(x): ...", {"f"}),
        ("class A:\n def g(self):\n  self._p = lru_cache(8)(h)", {"_p"}),
        ("class A:\n def g(self, k):\n  if k not in self._t:\n   self._t[k] = 1", {"A._t"}),
        ("class A:\n def g(self, k):\n  return self._t.setdefault(k, 1)", {"A._t"}),
        (
            "class A:\n def g(self, k):\n  return self._t.get(k)\n"
            " def h(self, k):\n  self._t[k] = 1",
            {"A._t"},
        ),
        ("_t = {}\ndef g(k):\n if k not in _t:\n  _t[k] = 1", {"_t"}),
        ("_t = set()\ndef g(k):\n if k not in _t:\n  _t.add(k)", {"_t"}),
        ("_t = ProcessCache[str, int](64)", {"_t"}),
        ("def g(k):\n t = {}\n if k not in t:\n  t[k] = 1", set()),
        ("class A:\n def g(self, k):\n  return self._t.get(k)", set()),
        ("class A:\n def g(self, k):\n  self._t[k] = 1", set()),
    ],
)
def test_what_counts_as_one(source: str, found: set[str]) -> None:
    assert caches(source) == found
