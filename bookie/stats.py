"""What reading and writing leave behind for the metrics: plain numbers, and calls.

Numbers are looked at when they are asked for. Calls do nothing until somebody sets them (the
metrics do); they are made once per group commit, flush or cold read, on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class ReadStats:
    """Of the reads of one storage."""

    def __init__(self) -> None:
        self.lookups = {"write_cache": 0, "read_cache": 0, "entry_log": 0, "joined": 0}
        """How many runs of entries were found where; `joined`: another reader was about to."""
        self.ahead_bytes = {"useful": 0, "wasted": 0}
        """What was read ahead and was asked for later, or was dropped before."""
        self.on_cold_wait: Callable[[float], None] = lambda _: None
        """Told how long each cold read waited for a thread, in seconds."""


class Group(NamedTuple):
    """One group commit of a journal."""

    body_bytes: int
    appends: int
    """Chunks of adds, fences and the like that it made durable together."""
    waited_s: float
    """How long the one that waited longest had waited when the write began."""
    seconds: float
    """Write and sync."""


class WriteStats:
    """Of the writes of one storage: group commits, flushes, and where its bytes are."""

    def __init__(self) -> None:
        self.on_group: Callable[[Group], None] = lambda _: None
        self.on_flush: Callable[[int, float], None] = lambda *_: None
        """Told of each flush that ended well: bytes of the write cache, seconds."""
        self.bytes_by_state: Callable[[], Mapping[str, int]] = dict
        """Bytes that a crash would have replayed, that wait in the write cache, that are flushed
        right now."""

    def group(self, group: Group) -> None:
        """A group commit has ended."""
        self.on_group(group)
