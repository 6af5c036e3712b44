"""For pytest: plants the bug that the environment names, from before the tests are collected."""

from __future__ import annotations

import os
from contextlib import ExitStack

from tests.sim.mutants import TESTED
from tests.sim.mutants.planting import planted_edits
from tests.sim.mutants.tested import PLANTED

_held = ExitStack()


def pytest_configure() -> None:
    """Until the process ends."""
    if name := os.environ.get(PLANTED):
        _held.enter_context(planted_edits(TESTED[name].edits))
