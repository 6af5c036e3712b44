"""A `LedgerIndex` in memory, for the simulator and for tests of the layers above it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from octavo.bookie.index.index import ENTRY_MAX, IndexedExtent, cut


class MemoryIndex:
    """`flush` does nothing: a crash is a new object."""

    def __init__(self) -> None:
        self._firsts: dict[int, list[int]] = {}
        self._runs: dict[int, list[IndexedExtent]] = {}
        self._covered: tuple[int, int] | None = None

    @property
    def covered(self) -> tuple[int, int] | None:
        return self._covered

    def put(self, runs: Iterable[IndexedExtent], covered: tuple[int, int]) -> None:
        for new in runs:
            held = self._runs.setdefault(new.ledger_id, [])
            firsts = self._firsts.setdefault(new.ledger_id, [])
            start = bisect_right(firsts, new.first)
            if start and held[start - 1].last >= new.first:
                start -= 1
            end = start
            parts: list[IndexedExtent] = []
            while end < len(held) and held[end].first <= new.last:
                parts += cut(held[end], new)
                end += 1
            parts = sorted([*parts, new], key=lambda run: run.first)
            held[start:end] = parts
            firsts[start:end] = [run.first for run in parts]
        self._covered = covered

    def find(self, ledger_id: int, entry_id: int) -> IndexedExtent | None:
        held = self._runs.get(ledger_id, [])
        at = bisect_right(self._firsts.get(ledger_id, []), entry_id) - 1
        return held[at] if at >= 0 and held[at].last >= entry_id else None

    def runs(self, ledger_id: int, first: int = 0, last: int = ENTRY_MAX) -> list[IndexedExtent]:
        held = self._runs.get(ledger_id, [])
        start = max(0, bisect_right(self._firsts.get(ledger_id, []), first) - 1)
        if start < len(held) and held[start].last < first:
            start += 1
        return held[start : bisect_right(self._firsts.get(ledger_id, []), last)]

    def all_runs(self) -> Iterator[IndexedExtent]:
        for ledger_id in sorted(self._runs):
            yield from self.runs(ledger_id)

    def delete_ledger(self, ledger_id: int) -> None:
        self._runs.pop(ledger_id, None)
        self._firsts.pop(ledger_id, None)

    def flush(self) -> None:
        """See `LedgerIndex`."""

    def close(self) -> None:
        """See `LedgerIndex`."""
