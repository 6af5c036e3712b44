"""How far the disk is behind the adds of all connections together, and what follows. Pure.

Counted is what adds occupy until it is on disk in the right place: bytes and objects that wait for
the journal, and what the write cache holds above its bound because the other half is still being
flushed. First those who send most are not read any further, then nobody who adds is, and what
comes in spite of it is refused, early and clearly. So memory is bounded however many there are,
and who sends little goes on while others flood.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable

from octavo.bookie.write.cache import WriteCache

RUN_BYTES = 700
"""What one waiting run of adds costs beside its frames: its objects, and its place in line."""
MODEST_BYTES = 64 * 1024
"""Who has less on its way to the disk may send on when only the greedy are stopped."""


_CHUNK_BYTES = (sys.maxsize, 32 * 1024, 1024, 1024)
"""By level: so thousands who each send once, while nobody has been stopped yet, bring little."""


class Pressure(enum.IntEnum):
    """Who has to wait."""

    NONE = 0
    GREEDY = 1
    """Connections with more than `MODEST_BYTES` on their way."""
    ALL = 2
    """Whoever has ever added, or is in the midst of a long frame."""
    FULL = 3
    """What comes in spite of it is answered TOO_MANY_REQUESTS."""


class AddPressure:
    """The level, and who wants to know when it changes."""

    def __init__(self, cache: WriteCache, queue_bytes_max: int, add_bytes_max: int) -> None:
        assert 0 < queue_bytes_max <= add_bytes_max
        self._cache = cache
        self._queue_bytes_max = queue_bytes_max
        self._all_bytes = queue_bytes_max + (add_bytes_max - queue_bytes_max) // 2
        self._add_bytes_max = add_bytes_max
        self._listeners: list[Callable[[Pressure], None]] = []
        self.level = Pressure.NONE
        self.used = 0
        self.peak = 0
        """The most that ever was in use."""

    def on_change(self, listener: Callable[[Pressure], None]) -> None:
        """Call `listener` with each new level."""
        self._listeners.append(listener)

    @property
    def chunk_bytes(self) -> int:
        """How much to read from a socket at once."""
        return _CHUNK_BYTES[self.level]

    @property
    def has_room_for_recovery(self) -> bool:
        """Whether adds that must not be refused may pass: they have a quarter more."""
        return self.used < self._add_bytes_max + self._add_bytes_max // 4

    def update(self, pending_bytes: int, pending_runs: int) -> None:
        """So much waits for the journal now."""
        cache = self._cache
        over = cache.active.bytes - cache.half_bytes_max
        used = pending_bytes + RUN_BYTES * pending_runs + max(0, over)
        self.used = used
        if used > self.peak:
            self.peak = used
        # One run always passes, however small the bounds: it alone is no crowd.
        if pending_runs <= 1 and over < 0:
            level = Pressure.NONE
        elif used >= self._add_bytes_max:
            level = Pressure.FULL
        elif used > self._all_bytes:
            level = Pressure.ALL
        elif used > (self._queue_bytes_max // 2 if self.level else self._queue_bytes_max) or (
            over >= 0 and cache.flushing is not None
        ):
            level = Pressure.GREEDY
        else:
            level = Pressure.NONE
        if level is not self.level:
            self.level = level
            for listener in tuple(self._listeners):
                listener(level)
