"""Bounds on bytes that all connections of a bookie share. Pure.

A bound per connection bounds nothing when there are ten thousand of them. Here is what they may
occupy together: answers that are made and not taken (`Budget`), frames of which a part has come
(`FrameRoom`). Neither loses anything and neither waits: they say who may go on, and the caller
leaves the others unread until there is room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

CHUNK_BYTES_MIN = 1024
"""A socket is never read by less, however short room is."""
_CHUNK_SHARE = 1024

T = TypeVar("T")


class Budget:
    """Bytes in use, and at most how many there should be.

    What is in use may go above the bound by what was begun below it: whoever begins something new
    asks `is_spent` first.
    """

    __slots__ = ("_listeners", "bytes_max", "peak", "used")

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        self.used = 0
        self.peak = 0
        """The most that ever was in use."""
        self._listeners: list[Callable[[], None]] = []

    def when_room(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time when it is spent no longer."""
        self._listeners.append(listener)

    @property
    def is_spent(self) -> bool:
        """Whether nothing new should begin."""
        return self.used >= self.bytes_max

    def change(self, by: int) -> None:
        """That many bytes more, or fewer, are in use."""
        before = self.used
        self.used = before + by
        assert self.used >= 0, "more was given back than was taken"
        if self.used > self.peak:
            self.peak = self.used
        if before >= self.bytes_max > self.used:
            for listener in tuple(self._listeners):
                listener()

    def share(self) -> int:
        """What one user may occupy: half of what is free.

        So whoever gives nothing back never takes all: n of them leave one part in n + 2 to the
        others, and who is alone gets half.
        """
        return max(0, self.bytes_max - self.used) // 2


class FrameRoom(Generic[T]):
    """Who may go on with a frame of which a part has come.

    A long frame is granted whole or not at all: so many half frames cannot wait for one another.
    Who is not granted waits in line, unread, and holds what had come by then; that is little,
    since sockets are read by small pieces (`chunk_bytes`) once half the room is taken. One grant
    is always given, however much the beginnings of others occupy.
    """

    __slots__ = ("_grants", "_on_grant", "_waiting", "bytes_max", "peak", "used")

    def __init__(self, bytes_max: int, on_grant: Callable[[T, int], None]) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        self._on_grant = on_grant
        """Told who is granted what it asked for, unless `ask` said so at once."""
        self.used = 0
        self.peak = 0
        self._grants = 0
        self._waiting: dict[T, int] = {}

    @property
    def is_pressed(self) -> bool:
        """Whether sockets should be read by small pieces."""
        return self.used > self.bytes_max // 2

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    @property
    def chunk_bytes(self) -> int:
        """How much to read from a socket at once while room is short."""
        return max(CHUNK_BYTES_MIN, (self.bytes_max - self.used) // _CHUNK_SHARE)

    def change(self, by: int) -> None:
        """That many bytes more, or fewer, of frames have come and are not whole."""
        self.used += by
        assert self.used >= 0, "more was given back than was taken"
        if self.used > self.peak:
            self.peak = self.used
        if by < 0 and self._waiting:
            self._grant()

    def ask(self, who: T, more: int) -> bool:
        """Whether `who` may receive `more` bytes, which count from now on; else it is in line."""
        if self._waiting or not self._fits(more):
            self._waiting[who] = more
            return False
        self._grants += 1
        self.change(more)
        return True

    def withdraw(self, who: T) -> None:
        """`who` waits no longer."""
        self._waiting.pop(who, None)

    def give_back(self, who: T, size: int, *, granted: bool) -> None:
        """`who` holds `size` bytes no longer, and waits no longer."""
        self._waiting.pop(who, None)
        self._grants -= granted
        self.change(-size)

    def _fits(self, more: int) -> bool:
        return not self._grants or self.used + more <= self.bytes_max

    def _grant(self) -> None:
        while self._waiting:
            who, more = next(iter(self._waiting.items()))
            if not self._fits(more):
                return
            del self._waiting[who]
            self._grants += 1
            self.change(more)
            self._on_grant(who, more)
