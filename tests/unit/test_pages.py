"""Links, make targets, files and glossary names in the pages exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protocol", "metadata", "ledger", "bookie", "broker", "octavo")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("compose/*.md"))
)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """Return the fragments of a page's headings."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for path, fragment in LINK.findall((ROOT / page).read_text()):
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), path
        if fragment and target.suffix == ".md":
            assert fragment in anchors(target), f"{path}#{fragment}"


@pytest.mark.parametrize(
    "page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/testing.md"]
)
def test_targets_and_files_that_are_named_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"(?:^ *|`)make ([a-z-]+)", text, re.MULTILINE):
        assert target in targets, target
    tops = "bench|bookie|broker|compose|docs|ledger|metadata|octavo|protocol|tests"
    for path in re.findall(rf"(?:`|pytest )((?:{tops})/[\w/.*-]+)", text):
        assert list(ROOT.glob(path)) or list(ROOT.glob(f"{path}.py")), path


@cache
def code() -> tuple[set[str], str]:
    """Return the product's modules by name, and all of its text."""
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {path.stem for path in modules}, "\n".join(path.read_text() for path in modules)


def rows() -> list[tuple[str, str]]:
    """Yield each word of the glossary with each of its names in the code."""
    found = []
    for line in (ROOT / "docs/glossary.md").read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| word"):
            word, _, names = (cell.strip() for cell in line.strip("|").split("|"))
            found += [(word, name) for name in re.findall(r"`([^`]+)`", names)]
    return found


@pytest.mark.parametrize(("word", "name"), rows(), ids=lambda one: str(one))
def test_the_glossary_names_what_is_there(word: str, name: str) -> None:
    modules, text = code()
    if "/" in name:
        assert (ROOT / name).is_file(), word
    elif name not in modules:
        assert re.search(rf"^\s*(class|def|async def) {name}\b|\b{name}:", text, re.MULTILINE), word
