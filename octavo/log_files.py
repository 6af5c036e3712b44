"""A log file that stays bounded: it is put aside when it is full, and the oldest one goes.

    broker-1.jsonl      written now, at most `bytes_max`
    broker-1.jsonl.1    the one before it, and so on; `files_max` in all

A line is one write, and stands in one file as a whole. What an interpreter says by itself (its
standard output and error, if they were led into the log) follows into the new file.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path


def put_aside(path: Path, files_max: int) -> None:
    """Make room for a new file at `path`: each one gets the next number, the last one goes."""
    names = [path, *(path.with_name(f"{path.name}.{n}") for n in range(1, files_max))]
    for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
        with contextlib.suppress(FileNotFoundError):
            newer.replace(older)
    if len(names) == 1:
        path.unlink(missing_ok=True)


class LogFile:
    """What structlog writes to; any thread may. A disk without room loses lines, and no more."""

    def __init__(self, path: Path, *, bytes_max: int, files_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._lock = threading.Lock()
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    def write(self, text: str) -> int:
        """One line or more."""
        data = text.encode("utf-8", "backslashreplace")
        with self._lock, contextlib.suppress(OSError):
            size = os.fstat(self._file.fileno()).st_size  # others may write to it as well
            if size and size + len(data) > self._bytes_max:
                self._begin_anew()
            self._file.write(data)
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def isatty(self) -> bool:
        """Never a terminal."""
        return False

    def _begin_anew(self) -> None:
        put_aside(self._path, self._files_max)
        full, self._file = self._file, open(self._path, "ab", buffering=0)  # noqa: SIM115
        was = os.fstat(full.fileno())
        for stream in filter(None, (sys.__stdout__, sys.__stderr__)):  # a daemon may have none
            with contextlib.suppress(OSError, ValueError):  # closed, or without a descriptor
                if os.path.samestat(was, os.fstat(stream.fileno())):
                    os.dup2(self._file.fileno(), stream.fileno())
        full.close()
