"""Decode the records of a batch in small parts. Pure.

Five megabytes may hold a million records, a hundred times as large as objects. A walk without
objects first proves the records' number and notes where each window begins; then any window can be
decoded alone. Between the small steps, the caller may let other work run.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import compress
from operator import attrgetter
from typing import Any

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch

from octavo.protocol.batch import (
    ATTRIBUTE_COMPRESSION,
    HEADER,
    HEADER_BYTES,
    BatchHeader,
    InvalidBatch,
    read_header,
)
from octavo.protocol.compression import Compression, compression_of, unpack
from octavo.protocol.entry import Buffer
from octavo.protocol.limits import RECORD_BYTES_MAX, RECORD_HEADERS_MAX
from octavo.protocol.odd_records import OddRecord, as_record, damaged, parse
from octavo.protocol.records import Record, not_records
from octavo.protocol.records import open_batch as open_records

WINDOW_RECORDS = 128
"""Decoding a window takes a tenth of a millisecond."""
WINDOW_BYTES = 2 * RECORD_HEADERS_MAX
"""A window is longer only for a single longer record."""
STEP_RECORDS = 2048
"""A step takes less than half a millisecond."""
_RECORD_BODY_BYTES_MIN = 6
_VARINT_BYTES_MAX = 5
_DAMAGED = (CorruptRecordException, ValueError, IndexError, OverflowError)
_offset = attrgetter("offset")


def packing_of(batch: Buffer) -> tuple[BatchHeader, Compression]:
    """Read header and compression. Raises `InvalidBatch`, `UnsupportedCompression`."""
    header = read_header(batch)
    if header.total_bytes != len(batch):
        raise InvalidBatch(
            f"record batch claims {header.total_bytes} bytes, {len(batch)} were given"
        )
    return header, compression_of(header.attributes & ATTRIBUTE_COMPRESSION)


class BatchWindows:
    """Call `step` until it returns False; then `window` returns the records around a number."""

    __slots__ = ("_data", "_firsts", "_index", "_position", "_starts", "header")

    def __init__(self, header: BatchHeader, data: bytes, start: int = 0) -> None:
        """Open records in windows; `data` from `start` on are the unpacked records."""
        self.header = header
        self._data = data
        self._firsts = array("I", [0])
        """The number of each window's first record."""
        self._starts = array("I", [start])
        """The position of each window's first record."""
        self._index = 0
        self._position = start

    @property
    def held_bytes(self) -> int:
        return len(self._data) + len(self._firsts) * 2 * self._firsts.itemsize

    @property
    def records_bytes(self) -> int:
        return len(self._data) - self._starts[0]

    def step(self) -> bool:
        """Walk on; return False at the end. Raises `InvalidBatch`."""
        data, end = self._data, len(self._data)
        index, position = self._index, self._position
        stop = min(self.header.record_count, index + STEP_RECORDS)
        full_at = self._firsts[-1] + WINDOW_RECORDS
        full_bytes = self._starts[-1] + WINDOW_BYTES
        try:
            while index < stop:
                start = position
                size = data[position]
                position += 1
                if size > 0x7F:
                    size, position = _varint(data, start)
                if size & 1 or size < 2 * _RECORD_BODY_BYTES_MIN:
                    raise self._damaged(index, "its length is too small for a record")
                position += size >> 1
                if index == full_at or (position > full_bytes and index > self._firsts[-1]):
                    self._firsts.append(index)
                    self._starts.append(start)
                    full_at, full_bytes = index + WINDOW_RECORDS, start + WINDOW_BYTES
                index += 1
        except IndexError:
            raise self._damaged(index, "the batch ends before it") from None
        if position > end:
            raise self._damaged(index - 1, "the batch ends within it")
        self._index, self._position = index, position
        if index < self.header.record_count:
            return True
        if position != end:
            raise self._too_long(position)
        return False

    def span(self, index: int) -> range:
        """Return the numbers of the window with record `index`."""
        return self.numbers(bisect_right(self._firsts, index) - 1)

    def window(self, index: int) -> tuple[int, list[Record]]:
        """Return the first number and the records of the window with record `index`.

        `offset_delta` is the record's number. Raises `InvalidBatch`.
        """
        at = bisect_right(self._firsts, index) - 1
        first = self._firsts[at]
        try:
            found = [
                Record(one.key, one.value, one.headers, one.timestamp, number)
                for number, one in enumerate(self._opened(at), first)
            ]
        except _DAMAGED:
            odd = self._one_by_one(at)
            found = [as_record(one, number) for number, one in enumerate(odd, first)]
        return first, found

    def readable_window(self, index: int) -> tuple[int, list[Record]]:
        """Return a window for readers: a damaged record becomes an empty message that says why."""
        try:
            return self.window(index)
        except InvalidBatch:
            at = bisect_right(self._firsts, index) - 1
            first = self._firsts[at]
            odd = self._one_by_one(at, marked=True)
            return first, [as_record(one, number) for number, one in enumerate(odd, first)]

    def gapped_window(self, index: int) -> tuple[int, list[Record]]:
        """Return a window of a compacted view, with the stored `offset_delta`."""
        at = bisect_right(self._firsts, index) - 1
        first = self._firsts[at]
        try:
            found = [
                Record(one.key, one.value, one.headers, one.timestamp, one.offset)
                for one in self._opened(at)
            ]
        except _DAMAGED:
            found = [as_record(one, one.offset) for one in self._one_by_one(at)]
        return first, found

    def keys(self, number: int) -> list[bytes | None]:
        try:
            return [one.key for one in self._opened(number)]
        except (*_DAMAGED, InvalidBatch):
            return [one.key for one in self._one_by_one(number, marked=True)]

    def chosen(self, number: int, marks: bytes) -> list[Record]:
        """Return the records whose byte in `marks` is not 0."""
        first = self._firsts[number]
        try:
            return [
                Record(one.key, one.value, one.headers, one.timestamp, at)
                for at, one in compress(enumerate(self._opened(number), first), marks)
            ]
        except (*_DAMAGED, InvalidBatch):
            odd = enumerate(self._one_by_one(number, marked=True), first)
            return [as_record(one, at) for at, one in compress(odd, marks)]

    def numbers(self, number: int) -> range:
        return range(self._firsts[number], self._last(number))

    def following(
        self, index: int, *, gaps: bool = False, marked: bool = False
    ) -> Iterator[tuple[int, list[Record]]]:
        """Yield windows, from that with record `index` on.

        `marked`: see `readable_window`. `gaps`: see `gapped_window`; the deltas must ascend to the
        header's last delta.
        """
        last = -1
        while index < self.header.record_count:
            read = self.readable_window if marked else self.window
            first, found = self.gapped_window(index) if gaps else read(index)
            for number, record in enumerate(found, first) if gaps else ():
                if not last < record.offset_delta <= self.header.last_offset_delta:
                    raise self._damaged(
                        number, f"an offset delta of {record.offset_delta} follows {last}"
                    )
                last = record.offset_delta
            yield first, found
            index = first + len(found)

    def marked(self) -> Iterable[OddRecord]:
        """Yield all records, damaged records marked; `offset` counts like `base_offset`."""
        for number in range(self.windows):
            for one in self._one_by_one(number, marked=True):
                yield one._replace(offset=one.offset + self.header.base_offset)

    @property
    def windows(self) -> int:
        return len(self._firsts)

    def prove_at_once(self) -> bool:
        """Check a small batch without walking over it first.

        False if it is long or damaged; then `step` and `prove`.
        """
        assert not self._index
        if self.records_bytes > WINDOW_BYTES:
            return False
        try:
            self.prove(0)
        except InvalidBatch:
            return False
        return True

    def prove(self, number: int) -> int:
        """Decode window `number` to prove it; return its number of records.

        Raises `InvalidBatch`, also if record numbers are not consecutive, or a record is too long.
        """
        first, after = self._firsts[number], self._last(number)
        size = self._end(number) - self._starts[number]
        if size > RECORD_BYTES_MAX:
            raise self._damaged(first, f"it has {size} bytes; the most is {RECORD_BYTES_MAX}")
        try:
            deltas = self._deltas(number)
        except _DAMAGED:
            deltas = [one.offset for one in self._one_by_one(number)]
        for index, delta in zip(range(first, after), deltas, strict=True):
            if delta != index:
                raise self._damaged(
                    index, f"its offset delta is {delta}; they count up by one, so {index} is right"
                )
        return after - first

    def prove_walked(self) -> Iterator[int]:
        """Find the damaged record, if any, after `step` has failed: raises `InvalidBatch`.

        A wrong length leads the walk astray, so it fails at a later record. Yields regularly.
        """
        for number in range(self.windows - 1):
            yield self.prove(number)
        self._one_by_one(self.windows - 1)

    def _deltas(self, number: int) -> list[int]:
        return list(map(_offset, self._opened(number)))

    def _last(self, number: int) -> int:
        after = number + 1
        return self._firsts[after] if after < len(self._firsts) else self.header.record_count

    def _end(self, number: int) -> int:
        after = number + 1
        return self._starts[after] if after < len(self._starts) else len(self._data)

    def _opened(self, number: int) -> DefaultRecordBatch:
        start, end = self._starts[number], self._end(number)
        if end - start > WINDOW_BYTES:
            self._check_headers(self._firsts[number], start)
        plain = self.header._replace(
            base_offset=0,
            batch_length=HEADER_BYTES - 12 + end - start,
            attributes=self.header.attributes & ~ATTRIBUTE_COMPRESSION,
            record_count=self._last(number) - self._firsts[number],
        )
        return DefaultRecordBatch(HEADER.pack(*plain) + self._data[start:end])

    def _one_by_one(self, number: int, *, marked: bool = False) -> list[OddRecord]:
        """Decode a window that the compiled codec refuses, record by record.

        A damaged record raises `InvalidBatch`, or is `marked`.
        """
        found: list[OddRecord] = []
        position, last = self._starts[number], self._end(number)
        for index in self.numbers(number):
            try:
                size, body = _varint(self._data, position)
            except IndexError:
                why = "the batch ends before it, or its length is a number without end"
                raise self._damaged(index, why) from None
            if size & 1 or size < 2 * _RECORD_BODY_BYTES_MIN:
                raise self._damaged(index, "its length is too small for a record")
            end = body + (size >> 1)
            if end > last:
                raise self._damaged(index, "the batch ends within it")
            try:
                found.append(parse(self._data, position, end, self.header))
            except ValueError as error:
                invalid = self._damaged(index, str(error))
                if not marked:
                    raise invalid from error
                found.append(damaged(self.header, index, str(invalid)))
            position = end
        if position != last:
            raise self._too_long(position)
        return found

    def _check_headers(self, index: int, position: int) -> None:
        """Bound the headers, because each would become three objects."""
        data = self._data
        try:
            _, position = _varint(data, position)
            position += 1
            _, position = _varint(data, position)
            _, position = _varint(data, position)
            for _ in ("key", "value"):
                size, position = _varint(data, position)
                position += 0 if size & 1 else size >> 1
            count = _varint(data, position)[0] >> 1
        except IndexError:
            raise self._damaged(index, "the batch ends within it") from None
        if count > RECORD_HEADERS_MAX:
            raise self._damaged(index, f"it has {count} headers; the most is {RECORD_HEADERS_MAX}")

    def _too_long(self, position: int) -> InvalidBatch:
        return InvalidBatch(
            f"record batch counts {self.header.record_count} records; "
            f"{len(self._data) - position} bytes follow the last one"
        )

    def _damaged(self, index: int, why: str) -> InvalidBatch:
        return InvalidBatch(f"record {index} of {self.header.record_count}: {why}")


def all_records(batch: Buffer) -> list[Any]:
    """Act like `records.open_batch`, with damaged records marked.

    If lengths or count are damaged, all are marked. Raises `UnsupportedCompression`; and
    `InvalidBatch` for a damaged compacted view, because only its records hold their offsets.
    """
    with contextlib.suppress(InvalidBatch, *not_records()):
        return list(open_records(batch))
    header, kind = packing_of(batch)
    packed = bytes(batch)
    try:
        records = unpack(kind, packed[HEADER_BYTES:]) if kind else packed[HEADER_BYTES:]
        windows = BatchWindows(header, records)
        while windows.step():
            pass
        return list(windows.marked())
    except InvalidBatch as error:
        if not header.is_dense:
            raise
        base, why = header.base_offset, str(error)
        return [damaged(header, base + index, why) for index in range(header.record_count)]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the unsigned number (twice the length; odd: negative) and the next position."""
    found = shift = 0
    while True:
        byte = data[position]
        position += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, position
        shift += 7
        if shift >= 7 * 2 * _VARINT_BYTES_MAX:
            raise IndexError("a number without end")
