"""When Python looks for garbage among all objects: ever more seldom, the more there are.

A full collection looks at every object, 240 for an open partition, while the loop stands still, and
a broker that opens partitions had one every few hundred of them. So what a full collection has left
alive is set aside, and the next one looks only at what came after it. When twice as many are aside
as the last time that all were looked at, all are looked at again: that bounds what the garbage
among them takes.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any


class SetAside:
    """Of one process, from `begin`, when its modules are loaded, to `end`."""

    def __init__(self) -> None:
        self._whole = 0
        """So many objects were left when all were looked at last."""
        self._is_whole = False

    def begin(self) -> None:
        """Look at all, and set aside what is there."""
        gc.collect()
        gc.freeze()
        self._whole = gc.get_freeze_count()
        gc.callbacks.append(self._collecting)

    def end(self) -> None:
        """As Python does it by itself, from now on."""
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)
            gc.unfreeze()

    def _collecting(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._is_whole = gc.get_freeze_count() > 2 * self._whole
            if self._is_whole:
                gc.unfreeze()
            return
        gc.freeze()
        if self._is_whole:
            self._whole = gc.get_freeze_count()
