"""Offloaded objects in the simulator: in memory, behind pyarrow's file-system calls.

The Parquet is real. When a process dies while it writes, a file system keeps the bytes so far, and
an object store none; each seed is one of the two.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs  # noqa: F401  # imported by those who list objects, when they do

from tests.sim.loop import SimLoop
from tests.sim.process import current_process

Removed = Callable[[str], None]


def _use_once() -> None:
    """Import what pyarrow imports at its first use, which the guard would forbid."""
    file = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array([1], pa.int64())}), file, compression="zstd")
    pq.read_table(io.BytesIO(file.getvalue()), use_threads=False).column(0).to_pylist()


_use_once()


class SimObjects:
    type_name = "sim"

    def __init__(self, loop: SimLoop, fails_p: float) -> None:
        self.objects: dict[str, bytearray] = {}
        self.fails_p = fails_p
        """How often a call fails. The nemesis sets it to 0 in the end."""
        self.on_removed: list[Removed] = []
        self._rng = loop.stream("objects")
        self._trace = loop.trace
        self.keeps_halves = self._rng.random() < 0.5
        """Whether an object exists from its first byte on, like a file, or only when it is
        whole."""

    def file_system(self, url: str) -> tuple[SimObjects, str]:
        return self, url.partition("://")[2]

    def bytes_of(self, url: str) -> bytes | None:
        found = self.objects.get(url.partition("://")[2])
        return None if found is None else bytes(found)

    def _maybe_fail(self, what: str) -> None:
        if self.fails_p and self._rng.random() < self.fails_p:
            self._trace.fault("object store fails")
            raise OSError(5, f"{what}: the object store does not answer")

    # The used part of pyarrow's FileSystem

    def create_dir(self, path: str, *, recursive: bool) -> None:
        assert recursive

    def open_output_stream(self, path: str) -> contextlib.closing[_Output]:
        self._maybe_fail(path)
        return contextlib.closing(_Output(self, path))

    def open_input_file(self, path: str) -> _Input:
        self._maybe_fail(path)
        if path not in self.objects:
            raise FileNotFoundError(2, f"no such object: {path}")
        return _Input(self, path)

    def delete_file(self, path: str) -> None:
        self._maybe_fail(path)
        if path not in self.objects:
            raise FileNotFoundError(2, f"no such object: {path}")
        del self.objects[path]
        for told in self.on_removed:
            told(path)
        self._maybe_fail(path)  # done all the same

    def get_file_info(self, selector: Any) -> list[SimpleNamespace]:
        assert selector.allow_not_found
        self._maybe_fail(selector.base_dir)
        folder = selector.base_dir.rstrip("/") + "/"
        return [
            SimpleNamespace(path=path, base_name=path.removeprefix(folder))
            for path in self.objects
            if path.startswith(folder)
        ]


class _Output:
    """An object being written. Bytes that a dead process has not written yet are lost."""

    def __init__(self, store: SimObjects, path: str) -> None:
        self._store = store
        self._path = path
        self._data = bytearray()
        self._process = current_process()
        self._is_open = True
        if store.keeps_halves:
            store.objects[path] = self._data

    def write(self, data: Any) -> int:
        if self._process is not None and self._process.alive:
            self._store._maybe_fail(self._path)
            self._data += data
        return len(data)

    def close(self) -> None:
        """Close as pyarrow's streams do, also when the writer gives up: the bytes so far are
        kept."""
        if self._is_open and self._process is not None and self._process.alive:
            self._is_open = False
            self._store._maybe_fail(self._path)
            if not self._store.keeps_halves:
                self._store.objects[self._path] = self._data


class _Input:
    """An object open for reading. When it is removed meanwhile, a file can still be read, an object
    cannot."""

    def __init__(self, store: SimObjects, path: str) -> None:
        self._store = store
        self._path = path
        self._data = store.objects[path]
        self._at = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._data))[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        self._store._maybe_fail(self._path)
        if not self._store.keeps_halves and self._path not in self._store.objects:
            raise FileNotFoundError(2, f"no such object: {self._path}")
        found = bytes(self._data[self._at : self._at + size])
        self._at += len(found)
        return found

    def close(self) -> None: ...
