"""Each number that decides when something happens is drawn by the simulator, or has a reason
not to be."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.sim.thresholds import CHOICES, IMPORTED_TO, READ_AHEAD_OF, TOGETHER, shrunk
from tests.sim.thresholds_kept import KEPT
from tests.support.sources import nodes_of

ROOT = Path(__file__).parent.parent.parent.parent
PARTS = ("bookie", "broker", "ledger", "metadata", "octavo/spark", "octavo/client")
_MORE = ("octavo/pipeline/offload_rules.py", "protocol/windows.py")
"""Steps of jobs that run in the simulator; how much of a batch is looked at in a step."""
MODULES = [
    *(path for part in PARTS for path in sorted((ROOT / part).rglob("*.py"))),
    *(ROOT / one for one in _MORE),
]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "octavo" else ("octavo", *parts))


def constants(path: Path) -> Iterator[tuple[str, str]]:
    """Return (module, name) of each named number or tuple of numbers. Computed values belong
    to formats."""
    module = module_of(path)
    for node in ast.parse(path.read_text()).body:
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign)
            else node.target
            if isinstance(node, ast.AnnAssign)
            else None
        )
        if not isinstance(target, ast.Name) or not target.id.lstrip("_").isupper():
            continue
        if any(isinstance(part, ast.Call | ast.Attribute) for part in nodes_of(node)):
            continue
        value = getattr(importlib.import_module(module), target.id)
        values = value if isinstance(value, tuple) and value else (value,)
        if all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
            yield module, target.id


@functools.cache
def all_constants() -> frozenset[str]:
    return frozenset(f"{module}:{name}" for path in MODULES for module, name in constants(path))


DRAWN = (
    set(CHOICES)
    | {f"{target.partition(':')[0]}:{name}" for target, of in TOGETHER.items() for name in of}
    | {f"{module}:{name}" for module, name in READ_AHEAD_OF}
)
REASONED = [name for names in KEPT.values() for name in names.split()]
WHOLE = {name.removesuffix(":*") for name in REASONED if name.endswith(":*")}


def kept_names() -> set[str]:
    of_whole = {name for name in all_constants() if name.partition(":")[0] in WHOLE}
    return set(REASONED) | of_whole


def test_each_is_drawn_or_says_why_not() -> None:
    left = sorted(all_constants() - DRAWN - kept_names())
    assert not left, (
        f"{left}: give choices in tests/sim/thresholds.py, or a reason in thresholds_kept.py"
    )


def test_each_once_and_none_that_is_gone() -> None:
    assert len(REASONED) == len(set(REASONED))
    assert not DRAWN & kept_names()
    named = {name for name in REASONED if not name.endswith(":*")}
    assert DRAWN | named <= all_constants(), sorted((DRAWN | named) - all_constants())
    assert not {name for name in named if name.partition(":")[0] in WHOLE}
    modules = {module_of(path) for path in MODULES}
    assert modules >= WHOLE, WHOLE - modules


def test_the_choices_are_others_than_what_stands_there() -> None:
    for target, choices in CHOICES.items():
        module, _, name = target.partition(":")
        value = getattr(importlib.import_module(module), name)
        assert value not in choices, target
        assert all(isinstance(one, int | float) for one in choices), target


@pytest.mark.long
def test_none_is_read_before_it_can_be_drawn() -> None:
    """A default argument, a class's field or another constant would keep the old value."""
    names = {target.partition(":")[2] for target in CHOICES}
    for path in MODULES:
        tree = ast.parse(path.read_text())
        own = {name for _, name in constants(path)} & names
        early: list[ast.expr] = []
        for node in nodes_of(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                early += [*node.args.defaults, *(one for one in node.args.kw_defaults if one)]
                early += node.decorator_list
            elif isinstance(node, ast.ClassDef | ast.Module):
                early += [
                    one.value
                    for one in node.body
                    if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None
                ]
        used = {
            part.id for one in early for part in nodes_of(one) if isinstance(part, ast.Name)
        } & own
        known = {name for target in TOGETHER if target.split(":")[1] in used for name in used}
        assert used <= known, f"{path}: {used}"


def test_a_name_that_was_imported_is_drawn_there_too() -> None:
    found: dict[str, list[str]] = {}
    drawn = {name.partition(":")[2] for name in CHOICES}
    parts = ("bookie", "broker", "ledger", "metadata", "octavo")
    for path in (path for part in parts for path in (ROOT / part).rglob("*.py")):
        module, text = module_of(path), path.read_text()
        if not any(name in text for name in drawn):
            continue
        for node in nodes_of(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}:{one.name}" for one in node.names]
                for name in CHOICES.keys() & set(names):
                    found.setdefault(name, []).append(module)
    assert found == {name: list(modules) for name, modules in IMPORTED_TO.items()}


@pytest.mark.parametrize("seed", range(40))
def test_what_was_drawn_is_put_back(seed: int) -> None:
    def now() -> dict[str, object]:
        return {
            target: getattr(importlib.import_module(target.partition(":")[0]), name)
            for target in sorted(DRAWN)
            for name in [target.partition(":")[2]]
        }

    before = now()
    with shrunk(Random(seed), Random(seed)) as drawn:
        inside = now()
        assert {name: inside[name] for name in drawn} == drawn
    assert now() == before


def test_some_seeds_draw_none_and_some_every_extreme() -> None:
    drawn = []
    for seed in range(60):
        with shrunk(Random(seed), Random(seed)) as found:
            drawn.append(dict(found))
    assert {} in drawn
    assert {name: choices[0] for name, choices in CHOICES.items()} in drawn
    assert {len(one) for one in drawn} > {0, len(CHOICES)}
