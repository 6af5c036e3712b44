"""Search for planted bugs that a test finds: with the bug planted, the test must fail.

The test runs in a separate process, with the bug planted by `plugin.py`. Before the first bug is
planted, all tests run once without bugs, and must pass.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.sim.mutants.planting import Edit

ROOT = Path(__file__).resolve().parents[3]
PLANTED = "OCTAVO_PLANTED"
"""The environment variable that names the bug to plugin.py."""
_TEST_S_MAX = 900
_PASSED, _FAILED = 0, 1
"""Exit codes of pytest; any other code gives no verdict."""
_FIRST = re.compile(r"^FAILED (?:tests/)?(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TestedBug:
    """One bug and the test that must fail while it is planted."""

    __test__ = False

    name: str
    title: str
    story: str
    """The omission or mistake, and the harm."""
    breaks: str
    """Properties, or the promise in words."""
    test: str
    """The file below `tests/`, or one test of it."""
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one bug."""

    name: str
    wall_s: float
    failed: str
    """The first test that failed; empty when no test finds the bug."""


class NoVerdict(Exception):
    """The tests did not run, or fail without the bug."""


def judge(bugs: Iterable[TestedBug]) -> Iterator[Verdict]:
    """Plant each bug and run its test. Raises `NoVerdict`."""
    wanted = list(bugs)
    if not wanted:
        return
    _run(sorted({bug.test for bug in wanted}), None, {_PASSED})
    for bug in wanted:
        started = time.perf_counter()
        found = _FIRST.search(_run([bug.test], bug.name, {_PASSED, _FAILED}))
        yield Verdict(bug.name, time.perf_counter() - started, found[1] if found else "")


def _run(tests: list[str], planted: str | None, expected: set[int]) -> str:
    command = [sys.executable, "-m", "pytest", "-x", "-rf", "--tb=no", "--no-header", "-p"]
    command += ["no:cacheprovider", "-p", "tests.sim.mutants.plugin"]
    command += [f"tests/{test}" for test in tests]
    environment = {key: value for key, value in os.environ.items() if key != PLANTED}
    if planted is not None:
        environment[PLANTED] = planted
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TEST_S_MAX,
        check=False,
    )
    if done.returncode not in expected:
        what = "without a bug" if planted is None else f"with {planted}"
        raise NoVerdict(f"{what}: {' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
    return done.stdout
