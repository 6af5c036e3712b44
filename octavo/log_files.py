"""Rotate log files: rename a full file, and delete the oldest.

    broker-1.jsonl      the current file, at most `bytes_max`
    broker-1.jsonl.1    the file before, and so on; `files_max` files in all

A line is a single write, so it is never split. A standard output or error that was redirected to
the file follows to the new file.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path


def put_aside(path: Path, files_max: int) -> None:
    names = [path, *(path.with_name(f"{path.name}.{n}") for n in range(1, files_max))]
    for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
        with contextlib.suppress(FileNotFoundError):
            newer.replace(older)
    if len(names) == 1:
        path.unlink(missing_ok=True)


class LogFile:
    """Writes lines from any thread. On a full disk, lines are lost without an error."""

    def __init__(self, path: Path, *, bytes_max: int, files_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._lock = threading.Lock()
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        with self._lock, contextlib.suppress(OSError):
            size = os.fstat(self._file.fileno()).st_size  # standard error may write here too
            if size and size + len(data) > self._bytes_max:
                self._begin_anew()
            self._file.write(data)
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
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
