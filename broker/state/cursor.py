"""A subscription's cursor: the first unacked offset, and the acks beyond it. Pure.

Acks come in any order, with any number of holes: a sparse bitmap of 4,096-bit chunks holds a
million in some hundred kilobytes (Pulsar keeps only 10,000 ranges durable: #25540). An acked offset
stays acked until `reset`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_CHUNK_SHIFT = 12
_CHUNK = 1 << _CHUNK_SHIFT
_LOW = _CHUNK - 1

Range = tuple[int, int]
"""Offsets from the first (included) to the second (excluded)."""


class Cursor:
    __slots__ = ("_beyond", "_chunks", "_floor")

    def __init__(self, committed_offset: int = 0) -> None:
        assert committed_offset >= 0
        self._floor = committed_offset
        self._chunks: dict[int, int] = {}
        self._beyond = 0

    @property
    def committed_offset(self) -> int:
        return self._floor

    @property
    def acked_beyond(self) -> int:
        return self._beyond

    def reset(self, committed_offset: int) -> None:
        """Ack all offsets before `committed_offset`, and none from there on."""
        assert committed_offset >= 0
        self._floor = committed_offset
        self._chunks.clear()
        self._beyond = 0

    def is_acked(self, offset: int) -> bool:
        if offset < self._floor:
            return True
        return bool(self._chunks.get(offset >> _CHUNK_SHIFT, 0) >> (offset & _LOW) & 1)

    def ack(self, start: int, end: int) -> int:
        """Ack from `start` up to `end` (excluded); return how many were not acked before."""
        start = max(start, self._floor)
        if start >= end:
            return 0
        if start == self._floor:
            return self._raise_floor(end)
        new = 0
        first, last = start >> _CHUNK_SHIFT, (end - 1) >> _CHUNK_SHIFT
        for index in range(first, last + 1):
            low = start & _LOW if index == first else 0
            high = ((end - 1) & _LOW) + 1 if index == last else _CHUNK
            before = self._chunks.get(index, 0)
            after = before | ((1 << (high - low)) - 1) << low
            new += (after ^ before).bit_count()
            self._chunks[index] = after
        self._beyond += new
        return new

    def backlog(self, end: int) -> int:
        return max(0, end - self._floor - self._beyond)

    def next_unacked(self, offset: int) -> int:
        offset = max(offset, self._floor)
        while (bits := self._chunks.get(offset >> _CHUNK_SHIFT, 0) >> (offset & _LOW)) & 1:
            run = _trailing_ones(bits)
            offset += run
            if offset & _LOW:
                break
        return offset

    def first_unacked(self, count: int, end: int) -> list[int]:
        found: list[int] = []
        at = self._floor
        while len(found) < count:
            start = self.next_unacked(at)
            at = self.next_acked(start, min(end, start + count - len(found)))
            if start >= at:
                break
            found.extend(range(start, at))
        return found

    def after_unacked(self, count: int, end: int) -> int:
        at = self._floor
        for index in sorted(self._chunks):
            base = index << _CHUNK_SHIFT
            if count <= base - at:
                break
            count -= max(0, base - at)
            at = max(at, base)
            bits = self._chunks[index] >> (at - base)
            size = _CHUNK - (at - base)
            free = size - bits.bit_count()
            if count <= free:
                while True:  # find the place in this chunk
                    count -= not bits & 1
                    at += 1
                    if not count:
                        return min(at, end)
                    bits >>= 1
            count -= free
            at = base + _CHUNK
        return min(at + count, end)

    def next_acked(self, offset: int, limit: int) -> int:
        if offset < self._floor:
            return min(offset, limit)
        while offset < limit:
            if bits := self._chunks.get(offset >> _CHUNK_SHIFT, 0) >> (offset & _LOW):
                return min(limit, offset + _trailing_zeros(bits))
            offset = ((offset >> _CHUNK_SHIFT) + 1) << _CHUNK_SHIFT
        return limit

    def ranges(self) -> Iterator[Range]:
        start = end = -1
        for index in sorted(self._chunks):
            base = index << _CHUNK_SHIFT
            bits = self._chunks[index]
            while bits:
                skip = _trailing_zeros(bits)
                bits >>= skip
                run = _trailing_ones(bits)
                bits >>= run
                base += skip
                if base != end:
                    if end >= 0:
                        yield start, end
                    start = base
                end = base = base + run
        if end >= 0:
            yield start, end

    def hole_count(self) -> int:
        """Count the unacked ranges before the highest acked offset."""
        count = 0
        carried = (-1, 0)
        for index in sorted(self._chunks):
            bits = self._chunks[index]
            joined = carried == (index - 1, 1)
            count += (bits & ~(bits << 1)).bit_count() - (1 if joined and bits & 1 else 0)
            carried = (index, bits >> _LOW)
        return count

    def dump(self) -> list[tuple[int, bytes]]:
        """Return the bitmap as (chunk number, bits little-endian without trailing zero bytes)."""
        return [
            (index, bits.to_bytes((bits.bit_length() + 7) // 8, "little"))
            for index, bits in sorted(self._chunks.items())
        ]

    def load(self, chunks: Iterable[tuple[int, bytes]]) -> None:
        for index, raw in chunks:
            bits = int.from_bytes(raw, "little")
            base = index << _CHUNK_SHIFT
            assert bits < 1 << _CHUNK
            if base + bits.bit_length() <= self._floor:
                continue
            if base < self._floor:
                bits = bits >> (self._floor - base) << (self._floor - base)
            before = self._chunks.get(index, 0)
            self._chunks[index] = before | bits
            self._beyond += ((before | bits) ^ before).bit_count()
        self._advance()

    def _raise_floor(self, end: int) -> int:
        first, last = self._floor >> _CHUNK_SHIFT, (end - 1) >> _CHUNK_SHIFT
        known = 0
        if self._chunks:
            few = last - first < len(self._chunks)
            for index in range(first, last + 1) if few else list(self._chunks):
                if not first <= index <= last or index not in self._chunks:
                    continue
                bits = self._chunks.pop(index)
                if index == last and (rest := bits >> (keep := ((end - 1) & _LOW) + 1)):
                    self._chunks[index] = rest << keep
                    bits &= (1 << keep) - 1
                known += bits.bit_count()
        new = end - self._floor - known
        self._floor = end
        self._beyond -= known
        self._advance()
        return new

    def _advance(self) -> None:
        while bits := self._chunks.get(index := self._floor >> _CHUNK_SHIFT, 0):
            low = self._floor & _LOW
            run = _trailing_ones(bits >> low)
            if not run:
                return
            self._floor += run
            self._beyond -= run
            if rest := bits >> (low + run):
                self._chunks[index] = rest << (low + run)
                return
            del self._chunks[index]


def _trailing_ones(bits: int) -> int:
    return (~bits & bits + 1).bit_length() - 1


def _trailing_zeros(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def ranges_of(offsets: Iterable[int]) -> list[Range]:
    """Join ascending offsets into ranges that do not touch."""
    found: list[Range] = []
    start = end = -1
    for offset in offsets:
        if offset == end:
            end += 1
            continue
        assert offset > end, "offsets must be ascending"
        if end >= 0:
            found.append((start, end))
        start, end = offset, offset + 1
    if end >= 0:
        found.append((start, end))
    return found


def pack_ranges(ranges: Iterable[Range]) -> list[int]:
    """Encode ascending ranges as gap, length, …; the first gap counts from 0."""
    packed: list[int] = []
    before = 0
    for start, end in ranges:
        assert before <= start < end
        packed += (start - before, end - start)
        before = end
    return packed


def unpack_ranges(packed: list[int]) -> list[Range]:
    """Decode `pack_ranges`; raise ValueError for impossible numbers."""
    if len(packed) % 2 or any(gap < 0 for gap in packed) or any(n < 1 for n in packed[1::2]):
        raise ValueError("acked ranges are not pairs of a gap and a length")
    found: list[Range] = []
    end = 0
    for gap, length in zip(packed[::2], packed[1::2], strict=True):
        found.append((end + gap, end + gap + length))
        end += gap + length
    return found
