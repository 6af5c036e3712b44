"""Keep the full collections of Python's garbage collector short.

A full collection of two million objects takes half a second, in which the process answers no call.
So objects that survive one are frozen: later collections do not visit them. When as many were
frozen as the last whole collection left, all are unfrozen: the heap is at most about twice what it
needs.
"""

from __future__ import annotations

import gc
from typing import Any, Protocol, cast

FEW = 100_000
"""Objects. A full collection of fewer takes less than 50 ms: they are not frozen."""


class Collector(Protocol):
    @property
    def callbacks(self) -> list[Any]: ...

    def collect(self) -> int: ...

    def freeze(self) -> None: ...

    def unfreeze(self) -> None: ...

    def get_freeze_count(self) -> int: ...

    def get_objects(self) -> list[Any]: ...


_PYTHONS = cast(Collector, gc)


class ShortCollections:
    def __init__(self, collector: Collector = _PYTHONS) -> None:
        self._gc = collector
        self._whole = 0
        """Objects that survived the last collection of everything."""
        self._since = 0
        """Objects frozen since the last collection of everything."""
        self._is_whole = False
        """Nothing is frozen: the next full collection visits everything."""

    def begin(self) -> None:
        self._gc.collect()
        self._gc.freeze()
        self._whole = self._gc.get_freeze_count()
        self._gc.callbacks.append(self._told)

    def _told(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start" or info["generation"] != 2:
            return
        if self._is_whole:
            # Counting frozen objects does not write to them, which is faster for many.
            self._gc.freeze()
            self._whole, self._since, self._is_whole = self._gc.get_freeze_count(), 0, False
            return
        left = len(self._gc.get_objects())
        if left < FEW:
            return
        self._since += left
        if self._since < self._whole:
            self._gc.freeze()
        else:
            self._gc.unfreeze()
            self._is_whole = True
