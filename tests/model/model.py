"""The parts of a model: a world to explore, its expected size, and defects that it must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from logging import CRITICAL
from unittest.mock import patch

import structlog

from octavo.ledger.recover import recovery_state
from tests.model.explorer import Found, explore
from tests.model.world import World


@dataclass(frozen=True)
class Defect:
    """A bug to plant. The search must find it by a story of exactly this many steps."""

    name: str
    says: str
    depth: int
    plant: Callable[[], AbstractContextManager[object]] = nullcontext
    world: Callable[[], World] | None = None
    """Where the bug shows, if not in the model's own world."""
    slow: bool = False


@dataclass(frozen=True)
class Model:
    """`states` and `depth` are the results of the search when it was written."""

    name: str
    about: str
    bounds: str
    world: Callable[[], World]
    states: int
    """All reachable states, or, when not `exhaustive`, the visited states."""
    depth: int = 0
    exhaustive: bool = True
    ci: bool = False
    defects: tuple[Defect, ...] = field(default=())

    def search(self, states_max: int | None = None) -> Found:
        if states_max is None:
            states_max = 100_000_000 if self.exhaustive else self.states
        with alone():
            return explore(self.world(), states_max)

    def hunt(self, defect: Defect, states_max: int = 100_000_000) -> Found:
        with alone(), defect.plant():
            return explore((defect.world or self.world)(), states_max)


@contextmanager
def alone() -> Iterator[None]:
    """Let recoveries read one entry ahead, not eight, which changes nothing else. Log nothing,
    since a story may repeat a step."""
    logging = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
    try:
        with (
            patch.object(recovery_state, "READ_AHEAD_MIN", 1),
            patch.object(recovery_state, "READ_AHEAD_MAX", 1),
        ):
            yield
    finally:
        structlog.configure(**logging)
