"""Counters and callbacks of reads and writes, for the metrics.

Callbacks do nothing until the metrics set them; they are called once per group commit, flush or
cold read, on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class ReadStats:
    def __init__(self) -> None:
        self.lookups = {"write_cache": 0, "read_cache": 0, "entry_log": 0, "joined": 0}
        """Lookups by where the entry was found; `joined`: by waiting for another reader's read."""
        self.ahead_bytes = {"useful": 0, "wasted": 0}
        """Bytes read ahead that were asked for later, or dropped unused."""
        self.on_cold_wait: Callable[[float], None] = lambda _: None


class Group(NamedTuple):
    body_bytes: int
    appends: int
    """Batches of adds, fences and others."""
    waited_s: float
    """How long the oldest append had waited when the write began."""
    seconds: float


class WriteStats:
    def __init__(self) -> None:
        self.on_group: Callable[[Group], None] = lambda _: None
        self.on_flush: Callable[[int, float], None] = lambda *_: None
        """Called with bytes of the write cache, and seconds."""
        self.bytes_by_state: Callable[[], Mapping[str, int]] = dict
        """Bytes by state: `journal` (a start would replay them), `write_cache`, `flushing`."""

    def group(self, group: Group) -> None:
        self.on_group(group)
