"""Counters and callbacks of reads and writes, for the metrics.

Counters are read when they are scraped. Callbacks do nothing until the metrics set them; they are
called once per group commit, flush or cold read, on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class ReadStats:
    """Counters of the reads of a storage."""

    def __init__(self) -> None:
        self.lookups = {"write_cache": 0, "read_cache": 0, "entry_log": 0, "joined": 0}
        """Lookups by the place where entries were found; `joined`: by waiting for the read of
        another reader."""
        self.ahead_bytes = {"useful": 0, "wasted": 0}
        """Bytes read ahead that were asked for later, or dropped unused."""
        self.on_cold_wait: Callable[[float], None] = lambda _: None
        """Called with the seconds that each cold read waited for a thread."""


class Group(NamedTuple):
    """A group commit of a journal."""

    body_bytes: int
    appends: int
    """Appends in the group: batches of adds, fences and others."""
    waited_s: float
    """How long the oldest append had waited when the write began."""
    seconds: float
    """The duration of write and sync."""


class WriteStats:
    """Statistics of the writes of a storage: group commits, flushes, and where its bytes are."""

    def __init__(self) -> None:
        self.on_group: Callable[[Group], None] = lambda _: None
        self.on_flush: Callable[[int, float], None] = lambda *_: None
        """Called after each successful flush: bytes of the write cache, seconds."""
        self.bytes_by_state: Callable[[], Mapping[str, int]] = dict
        """Returns bytes by state: `journal` (a start would replay them), `write_cache`,
        `flushing`."""

    def group(self, group: Group) -> None:
        """A group commit has ended."""
        self.on_group(group)
