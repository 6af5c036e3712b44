"""GUARANTEES.md and docs/properties.md name tests and properties that exist, and all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.model.models import MODELS
from tests.sim.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PAGES = ("GUARANTEES.md", "docs/properties.md", "docs/simulation.md")
PROPERTY = re.compile(r"\b(S[1-9]|P[1-9]\d?)\b")
NAMED = re.compile(
    r"`(?:tests/)?((?:unit|cluster|process|issues|conformance|support|sim|network|zookeeper)/[\w/.*]+)`"
)
BUG = re.compile(r"\bbugs?:? ((?:\d+(?:, )?)+)")


def rows() -> dict[str, str]:
    """Return each property's row."""
    found: dict[str, str] = {}
    for line in (ROOT / "docs/properties.md").read_text().splitlines():
        if line.startswith("| "):
            for name in expanded(line.split("|")[1]):
                found[name] = line
    return found


def expanded(cell: str) -> list[str]:
    """`P52–P58` names seven."""
    names = PROPERTY.findall(cell)
    if "–" in cell and len(names) == 2:
        first, last = (int(name[1:]) for name in names)
        return [f"{names[0][0]}{number}" for number in range(first, last + 1)]
    return [str(name) for name in names]


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_that_are_named_are_there(page: str) -> None:
    named = NAMED.findall((ROOT / page).read_text())
    assert named or page == "docs/simulation.md"
    for name in named:
        bare = TESTS / name
        found = [bare, bare.with_suffix(".py"), TESTS / f"{name}.py"]
        assert any(path.exists() for path in found) or list(TESTS.glob(name)), name


def test_each_property_has_a_row() -> None:
    wanted = {f"S{number}" for number in range(1, 10)} | {f"P{number}" for number in range(1, 67)}
    assert set(rows()) == wanted


def test_what_the_referees_check_has_a_row_that_says_so() -> None:
    for path in sorted((TESTS / "sim").glob("*.py")):
        for name in re.findall(r"\"(S[1-9]|P[1-9]\d?) ", path.read_text()):
            assert "sim" in rows()[name], f"{path.name} checks {name}"


def test_planted_bugs_are_named_where_they_break_something() -> None:
    canon = {str(mutant.canon) for mutant in MUTANTS.values() if mutant.canon}
    for name, row in rows().items():
        for numbers in BUG.findall(row):
            unknown = set(re.findall(r"\d+", numbers)) - canon
            assert not unknown, f"{name} names planted bugs {unknown}, which are not there"
    for mutant in MUTANTS.values():
        for name in PROPERTY.findall(mutant.breaks):
            assert name in rows(), f"{mutant.name} breaks {name}"


def test_promises_name_properties_and_models_that_are_there() -> None:
    text = (ROOT / "GUARANTEES.md").read_text()
    assert set(PROPERTY.findall(text)) <= set(rows())
    models = set(re.findall(r"\bM\d\b", text))
    assert models <= {name.partition("-")[0] for name in MODELS}
