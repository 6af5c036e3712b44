"""Decide how far to read ahead for each reader. Pure.

A reader is known by the place where it will continue: (ledger, entry). A reader that continues gets
more each time, up to the bound; a reader that jumps gets only what it asked for. All together get
half of the read cache, so that none drives out another's entries.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

_FIRST_BYTES = 128 * 1024
_READERS_MAX = 4096
_SILENT_S = 5.0
"""After this time a silent reader has no claim on the cache."""


class Reader(NamedTuple):
    window_bytes: int
    entries: int
    seen_s: float


class ReadAhead:
    def __init__(self, ahead_bytes_max: int, cache_bytes_max: int) -> None:
        self._ahead_bytes_max = ahead_bytes_max
        self._cache_bytes_max = cache_bytes_max
        self._readers: OrderedDict[tuple[int, int], Reader] = OrderedDict()

    def window(self, ledger_id: int, entry_id: int, now_s: float) -> tuple[int, int]:
        """Return (bytes to read beyond the extent, entries to expect)."""
        reader = self._readers.get((ledger_id, entry_id))
        if reader is None:
            return 0, 1
        self._forget_silent(now_s)
        share = self._cache_bytes_max // (2 * max(1, len(self._readers)))
        return min(reader.window_bytes, share), max(1, reader.entries)

    def ended(self, ledger_id: int, first: int, last: int, window_bytes: int, now_s: float) -> None:
        """Expect the reader to continue after `last`."""
        before = self._readers.pop((ledger_id, first), None)
        grown = _FIRST_BYTES if before is None else 2 * max(before.window_bytes, window_bytes)
        window = min(self._ahead_bytes_max, grown)
        self._readers[ledger_id, last + 1] = Reader(window, last - first + 1, now_s)
        while len(self._readers) > _READERS_MAX:
            self._readers.popitem(last=False)

    def _forget_silent(self, now_s: float) -> None:
        while self._readers:
            key, reader = next(iter(self._readers.items()))
            if now_s - reader.seen_s < _SILENT_S:
                return
            del self._readers[key]
