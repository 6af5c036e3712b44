"""The house rules that no linter knows, over every tracked module."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protocol", "metadata", "ledger", "bookie", "broker", "octavo")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MEASURING = sorted((ROOT / "bench").rglob("*.py"))
FUNCTION_LINES_MAX = 75

# Decision 12 (docs/decisions): these packages run on a simulated loop, disk and clock.
SIMULATED = ("protocol", "ledger", "bookie", "broker")
SEAMS = {"bookie/disk/files.py"}
FORBIDDEN_CALLS = {
    *("open", "time.time", "time.monotonic", "time.sleep", "threading.Thread"),
    *("os.open", "os.write", "os.fsync", "os.rename", "os.remove", "os.unlink"),
    *("random.random", "random.choice", "random.randint", "random.shuffle", "random.sample"),
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_module_is_tidy(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says in its first lines what it is"
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text), "do it or file it"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} does not fit a screen ({lines} lines)"
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"line {node.lineno}: a bare except hides everything"


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.relative_to(ROOT).parts[0] in SIMULATED], ids=relative
)
def test_nothing_bypasses_the_simulation_seam(path: Path) -> None:
    if relative(path) in SEAMS:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in FORBIDDEN_CALLS, f"line {node.lineno}: {called}()"


def imported_by(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("path", [*MODULES, *MEASURING], ids=relative)
def test_nothing_needs_the_tests(path: Path) -> None:
    beyond = {"tests"} if path in MEASURING else {"tests", "bench"}
    assert not imported_by(path) & beyond


def test_assertions_are_on() -> None:
    assert __debug__, "product assertions are part of the safety net: never run with -O"
