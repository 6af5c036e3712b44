"""Each package's `__init__` describes it truly, and runs no code."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import nodes_of

ROOT = Path(__file__).resolve().parents[2]
ROOMS = sorted(
    path.parent
    for layer in ("bookie", "broker", "ledger")
    for path in (ROOT / layer).rglob("*.py")
    if path.name == "__init__.py"
)
LINES_MIN = 7
BEYOND = {"lint-imports", "metadata", "protocol", "ledger"}
"""Names in these docstrings that are not defined below the package."""


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def said(room: Path) -> str:
    return ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names defined there: classes, functions, methods, constants."""
    found = set()
    for node in nodes_of(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return frozenset(found)


def test_every_folder_with_modules_is_a_room() -> None:
    folders = {
        path.parent
        for layer in ("bookie", "broker", "ledger")
        for path in (ROOT / layer).rglob("*.py")
    }
    assert folders == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS, ids=relative)
def test_a_door_says_what_one_needs_to_know_and_does_nothing(room: Path) -> None:
    tree = ast.parse((room / "__init__.py").read_text())
    assert len(tree.body) == 1, "no code: it would run at every import, and hide who imports what"
    text = said(room)
    assert len(text.splitlines()) >= LINES_MIN
    for word in ("Promises", "Relies on", "crash", "Others use"):
        assert word.lower() in " ".join(text.split()).lower(), f"says nothing of: {word}"


def test_what_doors_name_is_there() -> None:
    """One test for all rooms, so that each module is parsed once."""
    missing = [f"{relative(room)}: {name}" for room in ROOMS for name in _missing(room)]
    assert not missing


def _missing(room: Path) -> Iterator[str]:
    """Yield what a door names and is not there."""
    layer = ROOT / room.relative_to(ROOT).parts[0]
    inside, offered = " ".join(said(room).split()).split("Others use")
    for text, place in ((inside, layer), (offered, room)):
        files = sorted(place.rglob("*.py"))
        there = {path.stem for path in files} | {path.parent.name for path in files}
        known = there.union(BEYOND, *map(names_in, files))
        for name in re.findall(r"`([^`]+)`", text):
            is_file = (ROOT / name).is_file() or (layer / name).is_file()
            if not (is_file if "/" in name else name in known):
                yield name


def test_pure_modules_say_so_and_are_held_to_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [held] = [one for one in contracts["contracts"] if one["name"].startswith("Pure modules")]
    say_so = {
        "octavo." + relative(path).removeprefix("octavo/").removesuffix(".py").replace("/", ".")
        for layer in ("bookie", "broker", "ledger", "metadata", "protocol", "octavo/security")
        for path in (ROOT / layer).rglob("*.py")
        if path.name != "__init__.py" and _says_pure(path)
    }
    assert set(held["source_modules"]) == say_so


def _says_pure(path: Path) -> bool:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return bool(re.search(r"(?m)(^|[.] )Pure([.:;]| arithmetic)|a pure state machine", text))
