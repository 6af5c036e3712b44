"""What a model is: a world to explore, what it must come to, and defects that it must find."""

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
    """A bug to plant: the search must find it, and by a story of exactly so many steps."""

    name: str
    says: str
    """What the violation's text begins with."""
    depth: int
    plant: Callable[[], AbstractContextManager[object]] = nullcontext
    world: Callable[[], World] | None = None
    """Where it shows, if not in the model's own world."""
    slow: bool = False
    """Whether the hunt takes too long for every CI run."""


@dataclass(frozen=True)
class Model:
    """One model. `states` and `depth` are what the search came to when it was written."""

    name: str
    about: str
    bounds: str
    world: Callable[[], World]
    states: int
    """All that can be reached; or, when not `exhaustive`, how many are visited."""
    depth: int = 0
    exhaustive: bool = True
    ci: bool = False
    """Whether it is fast enough to be searched in every CI run."""
    defects: tuple[Defect, ...] = field(default=())

    def search(self, states_max: int | None = None) -> Found:
        """Visit all of it, or `states_max`."""
        if states_max is None:
            states_max = 100_000_000 if self.exhaustive else self.states
        with alone():
            return explore(self.world(), states_max)

    def hunt(self, defect: Defect, states_max: int = 100_000_000) -> Found:
        """Search for a defect, planted."""
        with alone(), defect.plant():
            return explore((defect.world or self.world)(), states_max)


@contextmanager
def alone() -> Iterator[None]:
    """Recoveries read one entry beyond the last one decided, not eight: the rest is the same.

    And nothing is logged: the same step may be taken again for every story that is told.
    """
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
