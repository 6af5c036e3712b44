"""Keep the full collections of Python's garbage collector short.

A full collection visits each object that may be part of a cycle, in one step. For two million
objects that takes half a second, in which the process answers no call. It is repeated whenever the
heap has grown by a quarter. So objects that survive a long collection are frozen: later collections
do not visit them.

A frozen object that dies is freed by its reference count, as most objects are. Only dead cycles
stay. When the collections since the last whole collection have together taken as long as that, all
objects are unfrozen, and the next collection visits everything. So the heap holds at most about
twice what it needs, and a long pause comes at most once while it doubles.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

SHORT_S = 0.01
"""Processor time. A collection that takes less is followed by no freeze."""
WHOLE_S_MIN = 0.5
"""Everything is unfrozen after at least this much time in collections since the last time."""


class Collector(Protocol):
    """The part of Python's module `gc` that is used here."""

    @property
    def callbacks(self) -> list[Any]:
        """Called with `start` or `stop`, and what is collected."""

    def collect(self) -> int:
        """Collect everything that is not frozen."""

    def freeze(self) -> None:
        """Leave all objects that exist now out of later collections."""

    def unfreeze(self) -> None:
        """Take them in again."""


_PYTHONS = cast(Collector, gc)


class ShortCollections:
    """Freezes what survives long collections, for one process."""

    def __init__(
        self,
        collector: Collector = _PYTHONS,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._gc = collector
        self._clock = clock
        self._began_s = 0.0
        self._whole_s = WHOLE_S_MIN
        """How long the last collection of everything took."""
        self._since_s = 0.0
        """How long collections that were followed by a freeze have taken since then."""
        self._is_whole = False
        """Nothing is frozen: the next long collection is one of everything."""

    def begin(self) -> None:
        """Freeze what there is after a start, and listen from now on."""
        self._gc.collect()
        self._gc.freeze()
        self._gc.callbacks.append(self._told)

    def _told(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._began_s = self._clock()
            return
        took_s = self._clock() - self._began_s
        if took_s < SHORT_S:
            return
        if self._is_whole:
            self._is_whole, self._whole_s, self._since_s = False, max(took_s, WHOLE_S_MIN), 0.0
        else:
            self._since_s += took_s
        if self._since_s >= self._whole_s:
            self._gc.unfreeze()
            self._is_whole = True
        else:
            self._gc.freeze()
