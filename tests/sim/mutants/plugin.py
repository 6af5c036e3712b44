"""A pytest plugin: plants the bug that the environment names before tests are collected."""

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
    """Plant the bug until the process ends."""
    if name := os.environ.get(PLANTED):
        os.environ["THOROUGH"] = "1"  # a rule that a quarter of the examples may miss
        _held.enter_context(planted_edits(TESTED[name].edits))


def pytest_collection() -> None:
    """Use the same examples each time, and stop at the first failure."""
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
