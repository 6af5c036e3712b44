"""For pytest: plants the bug that the environment names, from before the tests are collected."""

from __future__ import annotations

import os
from contextlib import ExitStack

import hypothesis

from tests.sim.mutants import TESTED
from tests.sim.mutants.planting import planted_edits
from tests.sim.mutants.tested import PLANTED

_EXAMPLES = 1_000

_held = ExitStack()


def pytest_configure() -> None:
    """Until the process ends."""
    if name := os.environ.get(PLANTED):
        _held.enter_context(planted_edits(TESTED[name].edits))


def pytest_collection() -> None:
    """The same examples each time, and the first that fails will do as it is."""
    if os.environ.get(PLANTED):
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "planted",
            deadline=None,
            derandomize=True,
            database=None,
            max_examples=_EXAMPLES,
            phases=phases,
        )
        hypothesis.settings.load_profile("planted")
