"""A file with the end of each session of the embedded store, next to the database.

Heartbeats must not need the write lock: a process that is stopped while it holds it would end all
other sessions. `<database>-beats` holds a session's end, in milliseconds (signed 64-bit,
big-endian), at eight times its id. It is never synced, because a crash of the machine ends all
sessions.

A process that holds the write lock may end a session whose end has passed. So a heartbeat counts
only if it was written before the old end.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

_SLOT = struct.Struct(">q")


class SessionHeartbeats:
    """Methods may be called on any thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, session_id: int, ends_ms: int) -> None:
        """Let the session live until `ends_ms`. Raises `OSError`."""
        os.pwrite(self._fd, _SLOT.pack(ends_ms), _SLOT.size * session_id)

    def read(self, session_id: int) -> int:
        """Return 0 if it was never written. Raises `OSError`."""
        found = os.pread(self._fd, _SLOT.size, _SLOT.size * session_id)
        return int(_SLOT.unpack(found)[0]) if len(found) == _SLOT.size else 0

    def is_in_place(self) -> bool:
        """Whether the path still leads to this file."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except OSError:
            return False

    def close(self) -> None:
        os.close(self._fd)


class Lease:
    """How long our session certainly lives. Made on one thread, prolonged on another."""

    __slots__ = ("_beats", "_clock", "_timeout_ms", "ends_ms", "session_id")

    def __init__(
        self, beats: SessionHeartbeats, session_id: int, timeout_ms: int, clock: Callable[[], int]
    ) -> None:
        self._beats = beats
        self._clock = clock
        self._timeout_ms = timeout_ms
        self.session_id = session_id
        self.ends_ms = clock() + timeout_ms
        """Afterwards any process may have ended the session."""
        beats.write(session_id, self.ends_ms)

    @property
    def is_over(self) -> bool:
        """Whether another process may have ended the session: treat it as ended."""
        return self.ends_ms <= self._clock()

    def beat(self) -> None:
        """Raises `OSError`."""
        if self.is_over:
            return
        ends_ms = self._clock() + self._timeout_ms
        self._beats.write(self.session_id, ends_ms)
        # Only before the old end, no other process can have read it as past.
        if not self.is_over:
            self.ends_ms = ends_ms
