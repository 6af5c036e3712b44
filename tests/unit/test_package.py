"""The distribution's metadata: licence, types, version, and its build requirements."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import octavo

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]
PACKAGES: list[str] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
REQUIRED: list[str] = sorted(
    {
        *PYPROJECT["build-system"]["requires"],
        *PROJECT["dependencies"],
        *(one for extra in PROJECT["optional-dependencies"].values() for one in extra),
    }
)


def test_the_license_that_is_named_is_the_one_that_is_there() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]
    text = (ROOT / "LICENSE").read_text()
    assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_changelog_begins_with_this_version() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] == octavo.__version__


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize("text", [one for one in REQUIRED if not one.startswith("octavo")])
def test_a_clone_of_today_builds_in_a_year(text: str) -> None:
    """The next release that may break us is excluded, and the tests' own versions are allowed."""
    required = Requirement(text)
    assert any(one.operator == "<" for one in required.specifier), "no upper bound"
    try:
        installed = version(required.name)
    except PackageNotFoundError:
        return  # an optional one, or one for building only
    assert required.specifier.contains(installed, prereleases=True)
