"""The house rules that no linter knows, over every tracked module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import tiers
from tests.support.sources import nodes_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protocol", "metadata", "ledger", "bookie", "broker", "octavo", "examples")
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
_LAST = {call.rpartition(".")[2] for call in FORBIDDEN_CALLS}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def untidy(tree: ast.Module, text: str) -> Iterator[str]:
    """Yield what the house rules object to in a module."""
    if not ast.get_docstring(tree):
        yield "a module says in its first lines what it is"
    if re.search(r"\b(TODO|FIXME|XXX)\b", text):
        yield "do it or file it"
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name} does not fit a screen ({lines} lines)"
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"line {node.lineno}: a bare except hides everything"


def bypasses(path: Path, tree: ast.Module) -> Iterator[str]:
    """Yield calls that bypass the simulation seam."""
    if path.relative_to(ROOT).parts[0] not in SIMULATED or relative(path) in SEAMS:
        return
    for node in nodes_of(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        last = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if last in _LAST and ast.unparse(node.func) in FORBIDDEN_CALLS:
            yield f"line {node.lineno}: {ast.unparse(node.func)}()"


def imported_by(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def test_modules_keep_the_house_rules() -> None:
    """One test for all modules, so that each is parsed once: they are tidy, call nothing that
    bypasses the simulation seam, and import no tests."""
    wrong: list[str] = []
    for path in MODULES:
        text = path.read_text()
        tree = ast.parse(text)
        wrong += [f"{relative(path)}: {why}" for why in untidy(tree, text)]
        wrong += [f"{relative(path)}: {why}" for why in bypasses(path, tree)]
        beyond = imported_by(tree) & {"tests", "bench"}
        wrong += [f"{relative(path)}: imports {name}" for name in sorted(beyond)]
    assert len(MODULES) > 500
    assert not wrong, "\n".join(wrong)


def test_benchmarks_need_no_tests() -> None:
    wrong = [
        relative(path) for path in MEASURING if "tests" in imported_by(ast.parse(path.read_text()))
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1", "a module says"),
        ('"""A."""\n# TODO', "do it or file it"),
        ('"""A."""\ndef f():\n' + "    x\n" * FUNCTION_LINES_MAX, "f does not fit a screen"),
        ('"""A."""\ntry:\n    x\nexcept:\n    y', "line 4: a bare except"),
    ],
)
def test_an_untidy_module_is_found(text: str, why: str) -> None:
    [found] = untidy(ast.parse(text), text)
    assert found.startswith(why)


def test_a_call_that_bypasses_the_seam_is_found() -> None:
    tree = ast.parse("import time\nx = time.time()")
    assert list(bypasses(ROOT / "broker" / "x.py", tree)) == ["line 2: time.time()"]
    assert not list(bypasses(ROOT / "octavo" / "x.py", tree))
    assert imported_by(tree) == {"time"}


def test_assertions_are_on() -> None:
    assert __debug__, "product assertions are part of the safety net: never run with -O"


def has_test(name: str) -> bool:
    """Say whether there is a test function or folder of a name in a list of tests."""
    path, _, function = tiers.function_of(name).partition("::")
    if not function or not (ROOT / path).exists():
        return not function and (ROOT / path).exists()
    outer = re.escape(function.partition("::")[0])
    found = rf"^(?:(?:async )?def|class) {outer}\b|^{outer} = "
    return re.search(found, (ROOT / path).read_text(), re.MULTILINE) is not None


def test_the_second_tier_names_tests_that_are_there() -> None:
    gone = [name for name in tiers.read(tiers.LIST.read_text()) if not has_test(name)]
    assert gone == [], "rename these lines of tests/medium.txt as their tests, or take them out"
    assert [name for name in tiers.FIRST_TIER if not has_test(name)] == []


def test_a_test_that_is_gone_is_found() -> None:
    here = "tests/unit/test_tidy.py::"
    assert has_test(f"{here}{test_a_test_that_is_gone_is_found.__name__}[a case]")
    assert has_test("tests/unit/")
    assert has_test("tests/unit/broker/test_bulk_load.py::TestBulkLoads::runTest")
    gone = (f"{here}test_a_test", "tests/unit/test_none.py::test_it", "tests/none/")
    assert [name for name in gone if has_test(name)] == []
