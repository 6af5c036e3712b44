"""A file that several threads read and one removes: it is closed after the last read under way.

The number of a closed file goes to the next one that is opened, so a read between the closing and
its own system call would return another file's bytes. Here a removed file refuses further reads
(`LogRemoved`), and its space is given back when those under way have ended.
"""

from __future__ import annotations

import threading

from octavo.bookie.disk.files import DiskError, File


class LogRemoved(DiskError):
    """The log was removed while somebody wanted to read it: ask the index again."""

    name = "log-removed"


class LogHandle:
    """The readers' side of one entry log's file. May be used by any thread."""

    __slots__ = ("_file", "_lock", "_reads", "_removed")

    def __init__(self, file: File) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._reads = 0
        self._removed = False

    @property
    def path(self) -> str:
        """Where it lies, or lay."""
        return self._file.path

    def size(self) -> int:
        """Bytes of the file. Raises `LogRemoved`."""
        self._begin()
        try:
            return self._file.size()
        finally:
            self._end()

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file. Raises `LogRemoved`."""
        self._begin()
        try:
            return self._file.pread(length, offset)
        finally:
            self._end()

    def remove(self) -> None:
        """No read begins any more; close when those under way have ended."""
        with self._lock:
            self._removed = True
            last = not self._reads
        if last:
            self._file.close()

    def close(self) -> None:
        """Close now. The caller knows that nobody reads."""
        self._file.close()

    def _begin(self) -> None:
        with self._lock:
            if self._removed:
                raise LogRemoved(f"{self._file.path} was removed")
            self._reads += 1

    def _end(self) -> None:
        with self._lock:
            self._reads -= 1
            last = self._removed and not self._reads
        if last:
            self._file.close()
