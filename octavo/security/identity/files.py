"""Read a file again when it changes.

It is read once it has stayed the same between two looks: a half-written list of revocations would
let the missing part in. If the file cannot be used, the old contents stay in force.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from octavo.security.settings import SecurityError

FILE_BYTES_MAX = 32 << 20
T = TypeVar("T")

log = structlog.get_logger()


class WatchedFile(Generic[T]):
    """Call `refresh` on a thread now and then."""

    def __init__(self, setting: str, path: str, parse: Callable[[bytes], T]) -> None:
        """Watch a file. Raises `SecurityError`, as `parse` does: the process then must not run."""
        self._setting, self._path, self._parse = setting, path, parse
        self._seen = self._settling = self._look()
        self.value = self._read()
        self._failed: str | None = None

    def refresh(self) -> bool:
        seen = self._look()
        settled, self._settling = seen == self._settling, seen
        if seen == self._seen or not settled:
            return False
        try:
            value = self._read()
        except SecurityError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.warning("security_file_not_loaded", reason=str(error))
            return False
        if self._look() != seen:
            return False
        self.value, self._seen, self._failed = value, seen, None
        log.info("security_file_loaded", path=self._path, setting=self._setting)
        return True

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> T:
        what = f"security setting {self._setting} = {self._path!r}"
        try:
            with Path(self._path).open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise SecurityError(f"{what}: {error.strerror}") from error
        if len(data) > FILE_BYTES_MAX:
            raise SecurityError(f"{what}: the file is longer than {FILE_BYTES_MAX >> 20} MiB")
        try:
            return self._parse(data)
        except SecurityError as error:
            raise SecurityError(f"{what}: {error}") from error
