"""The read cache: extents read from entry logs, bounded by bytes, least recently used first out.
Pure.

The offsets of an extent's entries are computed once; entries of the same length are split by C
code. Extents that a reader has finished are dropped before extents that no reader has reached, so
that catching-up readers leave each other's read-ahead.
"""

from __future__ import annotations

import functools
import operator
import struct
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from itertools import repeat

from octavo.bookie.stats import ReadStats
from octavo.protocol.codes import BookieIOError
from octavo.protocol.frames import ADD_IDS, ADD_PREFIX_BYTES, LENGTH

_RUN_OVERHEAD_BYTES = 400


@functools.lru_cache(maxsize=64)
def _ids_layout(frame_bytes: int) -> struct.Struct:
    return struct.Struct(f">I24xqq{frame_bytes - ADD_IDS.size}x")


@functools.lru_cache(maxsize=64)
def _entry_layout(frame_bytes: int) -> struct.Struct:
    return struct.Struct(f">{ADD_PREFIX_BYTES}x{frame_bytes - ADD_PREFIX_BYTES}s")


def cut_alike(frames: bytes, start: int, count: int, frame_bytes: int) -> list[bytes]:
    """Cut frames that have the same length."""
    end = start + count * frame_bytes
    stretch = memoryview(frames)[start:end]
    return [entry for (entry,) in _entry_layout(frame_bytes).iter_unpack(stretch)]


def _all_alike(frames: bytes, ledger_id: int) -> range | None:
    """Return the frames' offsets if all have one length and consecutive ids."""
    if len(frames) < ADD_IDS.size:
        return None
    length, _, _, its_ledger, first = ADD_IDS.unpack_from(frames, 0)
    size = LENGTH.size + length
    count, rest = divmod(len(frames), size)
    if rest or size < ADD_IDS.size or its_ledger != ledger_id:
        return None
    found = _ids_layout(size).iter_unpack(frames)
    wanted = zip(repeat(length), repeat(ledger_id), range(first, first + count), strict=False)
    return range(0, len(frames), size) if all(map(operator.eq, found, wanted)) else None


class CachedExtent:
    __slots__ = ("bytes", "end", "first", "frames", "is_ahead", "last", "ledger_id", "offsets")

    def __init__(self, ledger_id: int, first: int, last: int, frames: bytes) -> None:
        """Cache entries of `frames`, which may hold more. Raises `BookieIOError`."""
        self.ledger_id = ledger_id
        self.first = first
        self.last = last
        self.frames = frames
        self.is_ahead = False
        """Whether the extent was read ahead and no reader has asked for it yet."""
        self.offsets: Sequence[int]
        alike = _all_alike(frames, ledger_id)
        skipped = first - ADD_IDS.unpack_from(frames, 0)[4] if alike else 0
        if alike and skipped >= 0 and skipped + last - first < len(alike):
            self.offsets = alike[skipped : skipped + last - first + 1]
            self.end = self.offsets[-1] + alike.step
            self.bytes = len(frames) + _RUN_OVERHEAD_BYTES
        else:
            self.offsets, self.end = self._step_through(ledger_id, first, last, frames)
            self.bytes = len(frames) + 36 * len(self.offsets) + _RUN_OVERHEAD_BYTES

    @staticmethod
    def _step_through(
        ledger_id: int, first: int, last: int, frames: bytes
    ) -> tuple[list[int], int]:
        offsets: list[int] = []
        offset, end, expected = 0, len(frames), -1
        while offset < end:
            length, _, _, its_ledger, entry_id = ADD_IDS.unpack_from(frames, offset)
            if its_ledger != ledger_id or (expected >= 0 and entry_id != expected):
                raise BookieIOError(
                    f"ledger {ledger_id} entry {expected}: the entry log holds ledger "
                    f"{its_ledger} entry {entry_id} in its place"
                )
            if first <= entry_id <= last:
                offsets.append(offset)
            expected = entry_id + 1
            offset += LENGTH.size + length
            if entry_id == last:
                break
        if len(offsets) != last - first + 1:
            raise BookieIOError(
                f"ledger {ledger_id}: the entry log holds {len(offsets)} of the entries "
                f"{first} to {last}"
            )
        return offsets, offset

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def entry(self, entry_id: int) -> bytes:
        index = entry_id - self.first
        end = self.end if entry_id == self.last else self.offsets[index + 1]
        return self.frames[self.offsets[index] + ADD_PREFIX_BYTES : end]


class ReadCache:
    def __init__(self, bytes_max: int, stats: ReadStats | None = None) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        self._runs: OrderedDict[tuple[int, int], CachedExtent] = OrderedDict()
        self._firsts: dict[int, list[int]] = {}
        self.bytes = 0
        self._ahead_bytes = (stats or ReadStats()).ahead_bytes

    def find(self, ledger_id: int, entry_id: int) -> CachedExtent | None:
        """Return the extent that holds the entry, and count it as used."""
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return None
        at = bisect_right(firsts, entry_id) - 1
        if at < 0:
            return None
        key = (ledger_id, firsts[at])
        run = self._runs[key]
        if run.last < entry_id:
            return None
        if run.is_ahead:
            run.is_ahead = False
            self._ahead_bytes["useful"] += run.bytes
        self._runs.move_to_end(key)
        return run

    def passed(self, run: CachedExtent) -> None:
        """Drop this extent first: a reader has finished it."""
        key = (run.ledger_id, run.first)
        if self._runs.get(key) is run:
            self._runs.move_to_end(key, last=False)

    def put(self, run: CachedExtent) -> None:
        """Drop overlapped extents, then the least recently used."""
        self.drop(run.ledger_id, run.first, run.last)
        if run.bytes > self.bytes_max // 2:
            return
        self._runs[run.ledger_id, run.first] = run
        insort(self._firsts.setdefault(run.ledger_id, []), run.first)
        self.bytes += run.bytes
        while self.bytes > self.bytes_max:
            self._remove(*next(iter(self._runs)))

    def drop(self, ledger_id: int, first: int = 0, last: int = 2**63) -> None:
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return
        at = max(0, bisect_right(firsts, first) - 1)
        for found in [found for found in firsts[at:] if found <= last]:
            if self._runs[ledger_id, found].last >= first:
                self._remove(ledger_id, found)

    def _remove(self, ledger_id: int, first: int) -> None:
        run = self._runs.pop((ledger_id, first))
        self.bytes -= run.bytes
        if run.is_ahead:
            self._ahead_bytes["wasted"] += run.bytes
        firsts = self._firsts[ledger_id]
        del firsts[bisect_right(firsts, first) - 1]
        if not firsts:
            del self._firsts[ledger_id]
