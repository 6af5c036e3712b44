"""The write cache: what is in the journal and not yet in an entry log. Pure.

A full or old memtable is swapped for an empty one and flushed, sorted by (ledger, entry). The
latest write of an entry wins: a batch cuts older batches that it overlaps (`IntervalMap`). Nothing
is dropped: when it `is_full`, the caller slows its writers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from octavo.bookie.adds import AddBatch
from octavo.bookie.entrylog.format import Extent
from octavo.protocol.frames import ADD_PREFIX_BYTES

_NEVER = 2**63
_RUN_OVERHEAD_BYTES = 320
"""The bytes that a batch costs in addition to its frames: batch, piece, list slots."""
_OFFSET_BYTES = {range: 0, array: 4, list: 36}
_SMALL_BYTES = 1024
_JOIN_RUNS = 64


class Piece(NamedTuple):
    """Entries `first … last` of `batch`, which may hold more."""

    first: int
    last: int
    batch: AddBatch

    def entry(self, entry_id: int) -> bytes:
        batch = self.batch
        index = entry_id - batch.first_entry
        offsets = batch.offsets
        end = offsets[index + 1] if index + 1 < batch.count else len(batch.frames)
        return batch.frames[offsets[index] + ADD_PREFIX_BYTES : end]

    def frames(self) -> bytes:
        batch = self.batch
        if self.first == batch.first_entry and self.last == batch.last_entry:
            return batch.frames
        index = self.last + 1 - batch.first_entry
        end = batch.offsets[index] if index < batch.count else len(batch.frames)
        return batch.frames[batch.offsets[self.first - batch.first_entry] : end]


def _cost(batch: AddBatch) -> int:
    listed = _OFFSET_BYTES.get(type(batch.offsets), 36) * batch.count
    return len(batch.frames) + _RUN_OVERHEAD_BYTES + listed


class IntervalMap:
    """The pieces of a ledger: ascending, never overlapping.

    Sixty-four small consecutive batches are joined, so that a stream of single adds does not cost
    an object for each entry.
    """

    __slots__ = ("_firsts", "_small", "pieces")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._small = 0
        """The last pieces that are whole small batches without a gap."""
        self.pieces: list[Piece] = []

    def put(self, batch: AddBatch) -> int:
        """Put a batch over older entries of the same ids; return the bytes that this costs."""
        first, last = batch.first_entry, batch.first_entry + batch.count - 1
        pieces = self.pieces
        if pieces and first <= pieces[-1].last:
            self._overlay(first, last, batch)
            return _cost(batch)
        follows = bool(pieces) and first == pieces[-1].last + 1
        self._firsts.append(first)
        pieces.append(Piece(first, last, batch))
        if len(batch.frames) > _SMALL_BYTES:
            self._small = 0
            return _cost(batch)
        self._small = self._small + 1 if follows else 1
        return _cost(batch) + (self._join() if self._small == _JOIN_RUNS else 0)

    def _join(self) -> int:
        """Join the last small batches; return the difference in bytes, which is negative."""
        batches = [piece.batch for piece in self.pieces[-_JOIN_RUNS:]]
        offsets = array("I")
        base = 0
        for batch in batches:
            offsets.extend([base + offset for offset in batch.offsets])
            base += len(batch.frames)
        joined = AddBatch(
            batches[0].ledger_id,
            batches[0].first_entry,
            len(offsets),
            batches[0].key,
            batches[0].recovery,
            b"".join([batch.frames for batch in batches]),
            offsets,
        )
        self.pieces[-_JOIN_RUNS:] = [Piece(joined.first_entry, joined.last_entry, joined)]
        del self._firsts[1 - _JOIN_RUNS :]
        self._small = 0
        return _cost(joined) - sum(map(_cost, batches))

    def _overlay(self, first: int, last: int, batch: AddBatch) -> None:
        self._small = 0
        pieces = self.pieces
        start = bisect_right(self._firsts, first)
        if start and pieces[start - 1].last >= first:
            start -= 1
        end = start
        new: list[Piece] = []
        after: list[Piece] = []
        while end < len(pieces) and pieces[end].first <= last:
            old = pieces[end]
            if old.first < first:
                new.append(Piece(old.first, first - 1, old.batch))
            if old.last > last:
                after.append(Piece(last + 1, old.last, old.batch))
            end += 1
        new.append(Piece(first, last, batch))
        new += after
        pieces[start:end] = new
        self._firsts[start:end] = [piece.first for piece in new]

    def find(self, entry_id: int) -> Piece | None:
        index = bisect_right(self._firsts, entry_id) - 1
        if index >= 0 and self.pieces[index].last >= entry_id:
            return self.pieces[index]
        return None

    def first_after(self, entry_id: int) -> int:
        """Return the first entry above `entry_id`; a huge number when there is none."""
        index = bisect_right(self._firsts, entry_id)
        return self._firsts[index] if index < len(self._firsts) else _NEVER


class Memtable:
    __slots__ = ("bytes", "ledgers")

    def __init__(self) -> None:
        self.ledgers: dict[int, IntervalMap] = {}
        self.bytes = 0

    def put(self, batch: AddBatch) -> None:
        found = self.ledgers.get(batch.ledger_id)
        if found is None:
            found = self.ledgers[batch.ledger_id] = IntervalMap()
        self.bytes += found.put(batch)

    def sorted_pieces(self) -> Iterator[tuple[int, Piece]]:
        for ledger_id in sorted(self.ledgers):
            found = self.ledgers.get(ledger_id)  # a ledger may be deleted meanwhile
            for piece in found.pieces if found is not None else ():
                yield ledger_id, piece


class WriteCache:
    """Used on the loop only; a memtable that is being flushed does not change."""

    __slots__ = ("active", "flushing", "memtable_bytes_max")

    def __init__(self, memtable_bytes_max: int) -> None:
        assert memtable_bytes_max > 0
        self.active = Memtable()
        self.flushing: Memtable | None = None
        self.memtable_bytes_max = memtable_bytes_max

    @property
    def is_full(self) -> bool:
        return self.active.bytes >= self.memtable_bytes_max

    def swap(self) -> Memtable:
        """Begin a flush. One flush at a time."""
        assert self.flushing is None
        self.flushing = self.active
        self.active = Memtable()
        return self.flushing

    def drop_flushed(self) -> None:
        """Drop the flushing memtable, all of which is in log and index."""
        self.flushing = None

    def find(self, ledger_id: int, entry_id: int) -> tuple[Piece | None, int]:
        """Return the newest piece that holds the entry, and the last entry for which it is newest.

        Without a piece, None and the last entry of the gap: a caller that reads older copies
        elsewhere looks here again after it.
        """
        last = _NEVER
        for table in (self.active, self.flushing):
            held = None if table is None else table.ledgers.get(ledger_id)
            if held is None:
                continue
            piece = held.find(entry_id)
            if piece is not None:
                return piece, min(last, piece.last)
            last = min(last, held.first_after(entry_id) - 1)
        return None, last

    def intervals(self, ledger_id: int) -> list[tuple[int, int]]:
        """Return (first, last) of every piece, unordered."""
        tables = (self.active,) if self.flushing is None else (self.active, self.flushing)
        return [
            (piece.first, piece.last)
            for table in tables
            if (found := table.ledgers.get(ledger_id)) is not None
            for piece in found.pieces
        ]

    def forget(self, ledger_id: int) -> None:
        self.active.ledgers.pop(ledger_id, None)
        if self.flushing is not None:
            self.flushing.ledgers.pop(ledger_id, None)


def extents(memtable: Memtable, extent_bytes_max: int) -> Iterator[Extent]:
    """Yield the entries by ledger and id, in extents of at most `extent_bytes_max` bytes.

    A single longer entry makes a longer extent.
    """
    ledger_id, first, count, length = -1, 0, 0, 0
    frames: list[bytes] = []
    for its_ledger, whole in memtable.sorted_pieces():
        for piece in _cut(whole, extent_bytes_max):
            data = piece.frames()
            joins = its_ledger == ledger_id and piece.first == first + count
            if frames and not (joins and length + len(data) <= extent_bytes_max):
                yield Extent(ledger_id, first, count, frames, length)
                frames = []
            if not frames:
                ledger_id, first, count, length, frames = its_ledger, piece.first, 0, 0, []
            frames.append(data)
            count += piece.last - piece.first + 1
            length += len(data)
    if frames:
        yield Extent(ledger_id, first, count, frames, length)


def _cut(piece: Piece, bytes_max: int) -> Iterator[Piece]:
    """Cut a piece into parts of at most `bytes_max` bytes, each with at least one entry."""
    batch = piece.batch
    if len(batch.frames) <= bytes_max:
        yield piece
        return
    offsets = batch.offsets
    first = piece.first
    while first <= piece.last:
        index = first - batch.first_entry
        start = offsets[index]
        end_index = bisect_right(offsets, start + bytes_max, lo=index + 1)
        if end_index == batch.count and len(batch.frames) - start <= bytes_max:
            last = piece.last
        else:  # the last frame that begins within `bytes_max` ends outside
            last = min(piece.last, max(first, batch.first_entry + end_index - 2))
        yield Piece(first, last, batch)
        first = last + 1
