"""`make test-failed` runs what failed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.failed_again import selected

TESTS = """
import pytest

@pytest.mark.xdist_group("shared")
def test_fails():
    assert not "broken"

def test_passes():
    pass
"""


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("tests/a.py::test_it", "tests/a.py::test_it"),
        ("tests/spark/a.py::test_it@spark", "tests/spark/a.py::test_it"),
        ("tests/spark/a.py::test_it[x@y]@spark", "tests/spark/a.py::test_it[x@y]"),
        ("tests/a.py::test_it[x@y]", "tests/a.py::test_it[x@y]"),
    ],
)
def test_names_without_groups(name: str, asked: str) -> None:
    assert selected([name]) == [asked]


def test_a_failed_test_of_a_group_is_found_again(tmp_path: Path) -> None:
    """pytest's own `--last-failed` ran all 17,000 tests when a test of the containers failed, and
    CI's 90 minutes were over."""
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        ).stdout

    first = run("-m", "pytest", "-n1", "--dist=loadgroup")
    assert "1 failed, 1 passed" in first
    again = run("-m", "tests.support.failed_again")
    assert "1 failed in" in again, again
