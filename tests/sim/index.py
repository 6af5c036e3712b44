"""The simulated index: like RocksDB without a WAL, only flushed data is sure to survive.

A crash keeps any prefix of the changes since the last flush.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from octavo.bookie.index.index import ENTRY_MAX, IndexedExtent
from octavo.protocol.codes import BookieIOError
from tests.support.memory_index import MemoryIndex

if TYPE_CHECKING:
    from tests.sim.disk_handle import SimHandle

Covered = tuple[int, int]
Change = tuple[list[IndexedExtent], Covered] | int
"""A put, or the ledger that was deleted."""


class KeptIndex:
    def __init__(self) -> None:
        self.flushed = MemoryIndex()
        self.unflushed: list[Change] = []
        self.damaged = ""
        """Why reads fail; empty while they succeed."""

    def flush(self, count: int | None = None) -> None:
        for change in self.unflushed[:count]:
            apply_change(self.flushed, change)
        self.unflushed.clear()


class SimIndexStore:
    def __init__(self) -> None:
        self.kept: dict[str, KeptIndex] = {}

    def open(self, handle: SimHandle, path: str) -> SimIndex:
        return SimIndex(self.kept.setdefault(path, KeptIndex()), handle, path)

    def crash(self, rng: random.Random | None) -> None:
        for kept in self.kept.values():
            last = len(kept.unflushed) if rng is not None else 0
            kept.flush(rng.choice((0, rng.randint(0, last))) if rng is not None and last else 0)


class SimIndex(MemoryIndex):
    def __init__(self, kept: KeptIndex, handle: SimHandle | None = None, path: str = "") -> None:
        super().__init__()
        self._firsts = {ledger: list(firsts) for ledger, firsts in kept.flushed._firsts.items()}
        self._runs = {ledger: list(runs) for ledger, runs in kept.flushed._runs.items()}
        self._covered = kept.flushed.covered
        self._kept = kept
        self._handle = handle
        self._path = path

    def _enter(self, call: str) -> None:
        if self._handle is not None:
            self._handle.enter(call, self._path)
        if self._kept.damaged:
            raise BookieIOError(f"index {self._path}: {call}: {self._kept.damaged}")

    def put(self, runs: Iterable[IndexedExtent], covered: Covered) -> None:
        self._enter("index_put")
        change = (list(runs), covered)
        super().put(*change)
        self._kept.unflushed.append(change)

    def find(self, ledger_id: int, entry_id: int) -> IndexedExtent | None:
        self._enter("index_find")
        return super().find(ledger_id, entry_id)

    def runs(self, ledger_id: int, first: int = 0, last: int = ENTRY_MAX) -> list[IndexedExtent]:
        self._enter("index_runs")
        return super().runs(ledger_id, first, last)

    def all_runs(self) -> Iterator[IndexedExtent]:
        self._enter("index_all")
        return super().all_runs()

    def delete_ledger(self, ledger_id: int) -> None:
        self._enter("index_delete")
        super().delete_ledger(ledger_id)
        self._kept.unflushed.append(ledger_id)

    def flush(self) -> None:
        self._enter("index_flush")
        self._kept.flush()
        if self._handle is not None:
            self._handle.leave("index_flush", self._path)


def apply_change(index: MemoryIndex, change: Change) -> None:
    if isinstance(change, int):
        index.delete_ledger(change)
    else:
        index.put(*change)
