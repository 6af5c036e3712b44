"""What a storage tells of its work: group commits, flushes, and where its bytes are.

Callbacks that do nothing until somebody sets them (the metrics do); they are called once per group
and once per flush, on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Group(NamedTuple):
    """One group commit of a journal."""

    body_bytes: int
    appends: int
    """Chunks of adds, fences and the like that it made durable together."""
    waited_s: float
    """How long the one that waited longest had waited when the write began."""
    seconds: float
    """Write and sync."""


class Figures:
    """The callbacks of one storage."""

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
