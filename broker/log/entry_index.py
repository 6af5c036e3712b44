"""A sparse index in memory from offsets to entries of a ledger, filled by writes and reads.

A lookup gives the range of entries that can hold the offset; the reader narrows it by batch
headers. The points are bounded in number; losing them costs some reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import NamedTuple

_POINTS_MAX = 4_096
_LEDGERS_MAX = 256


class Bounds(NamedTuple):
    entry_low: int
    offset_low: int
    entry_high: int
    offset_high: int | None
    """The first offset of entry `entry_high + 1`."""


class _Points:
    __slots__ = ("entries", "offsets", "stride")

    def __init__(self) -> None:
        self.offsets = [0]
        self.entries = [0]
        self.stride = 1

    def note(self, offset: int, entry_id: int) -> None:
        if entry_id > self.entries[-1]:
            if entry_id - self.entries[-1] < self.stride:
                return
            self.offsets.append(offset)
            self.entries.append(entry_id)
        else:
            at = bisect_right(self.entries, entry_id)
            if self.entries[at - 1] == entry_id:
                return
            self.offsets.insert(at, offset)
            self.entries.insert(at, entry_id)
        if len(self.entries) > _POINTS_MAX:
            # The index becomes coarser as the ledger grows.
            del self.offsets[1::2], self.entries[1::2]
            self.stride *= 2


class EntryIndex:
    def __init__(self) -> None:
        self._ledgers: OrderedDict[int, _Points] = OrderedDict()

    def note(self, ledger_id: int, offset: int, entry_id: int) -> None:
        self._points(ledger_id).note(offset, entry_id)

    def bounds(self, ledger_id: int, offset: int, last_entry: int) -> Bounds:
        points = self._points(ledger_id)
        at = bisect_right(points.offsets, offset)
        assert at > 0
        low = at - 1
        if at < len(points.entries) and points.entries[at] <= last_entry + 1:
            high, high_offset = points.entries[at] - 1, points.offsets[at]
            return Bounds(points.entries[low], points.offsets[low], high, high_offset)
        return Bounds(points.entries[low], points.offsets[low], last_entry, None)

    def forget(self, ledger_id: int) -> None:
        self._ledgers.pop(ledger_id, None)

    def _points(self, ledger_id: int) -> _Points:
        points = self._ledgers.get(ledger_id)
        if points is None:
            points = self._ledgers[ledger_id] = _Points()
            if len(self._ledgers) > _LEDGERS_MAX:
                self._ledgers.popitem(last=False)
        else:
            self._ledgers.move_to_end(ledger_id)
        return points
