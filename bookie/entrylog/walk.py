"""Walk over an entry log, record by record. All code that goes through a log uses it.

At a bad record the caller of `LogWalk` decides; `LogCheck` names what it skipped, and checks all
checksums. Each step opens the file, so that a log may be removed in between. A refused read is
repeated once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from octavo.bookie.disk.damage import Damage, DamageKind
from octavo.bookie.disk.files import Disk, DiskError, File
from octavo.bookie.entrylog.format import (
    FILE_HEADER_BYTES,
    FOOTER,
    MAP_MAGIC,
    RECORD_BYTES,
    Location,
    Record,
    decode_file_header,
    decode_footer,
    decode_map,
    decode_record,
)
from octavo.bookie.entrylog.record_check import frame_faults

Read = Callable[[int, int], bytes]
"""(length, offset) → bytes, fewer at the log's end."""


class Step(NamedTuple):
    location: Location
    """The length is 0 without a good header."""
    record: Record | None
    frames: bytes
    """The frames, or the bytes in place of a bad header; empty when only headers are walked."""
    fault: DamageKind | None
    """None does not mean that the frames' checksums are good."""


class LogWalk:
    """Reads a log's records in order; at a bad header it stays until the caller sets `offset`."""

    def __init__(
        self,
        read: Read,
        log_id: int,
        *,
        start: int = 0,
        end: int = sys.maxsize,
        window_bytes: int,
        headers_only: bool = False,
    ) -> None:
        """Walk; after a `DiskError` read only the needed bytes again; a second error is a fault."""
        self.offset = max(start, FILE_HEADER_BYTES)
        self._read = read
        self._log_id = log_id
        self._end = end
        self._window_bytes = window_bytes
        self._headers_only = headers_only
        self._base = 0
        self._data = b""

    def next(self) -> Step:
        at = self.offset
        nowhere = Location(self._log_id, at, 0)
        record = decode_record(self._data, at - self._base) if at >= self._base else None
        if record is None:  # outside the window, or bad: read it again
            try:
                front = self._fresh(at, RECORD_BYTES)
            except DiskError:
                return Step(nowhere, None, b"", DamageKind.UNREADABLE)
            record = decode_record(front)
            if record is None:
                short = len(front) < RECORD_BYTES
                kind = DamageKind.TRUNCATED if short else DamageKind.RECORD_HEADER
                return Step(nowhere, None, front, kind)
        location = Location(self._log_id, at, record.total_bytes)
        self.offset = at + record.total_bytes
        frames = b""
        if not self._headers_only:
            try:
                frames = self._get(at + RECORD_BYTES, record.frames_bytes)
            except DiskError:
                return Step(location, record, b"", DamageKind.UNREADABLE)
            if len(frames) < record.frames_bytes:
                return Step(location, record, frames, DamageKind.TRUNCATED)
        fault = DamageKind.TRUNCATED if self.offset > self._end else None
        return Step(location, record, frames, fault)

    @property
    def is_ahead(self) -> bool:
        start = self.offset - self._base
        record = decode_record(self._data, start) if start >= 0 else None
        return record is not None and start + record.total_bytes <= len(self._data)

    def _get(self, offset: int, length: int) -> bytes:
        start = offset - self._base
        if start >= 0 and start + length <= len(self._data):
            return self._data[start : start + length]
        return self._fresh(offset, length)

    def _fresh(self, offset: int, length: int) -> bytes:
        """Read ahead, or after an error only `length`. Raises the second attempt's `DiskError`."""
        try:
            ahead = max(length, min(self._window_bytes, self._end - offset))
            self._base, self._data = offset, self._read(ahead, offset)
        except DiskError:
            self._data = b""
            return self._read(length, offset)
        return self._data[:length]


def ledgers_map(
    read: Read, size: int, map_bytes_max: int = sys.maxsize
) -> tuple[int, dict[int, int] | None] | None:
    """Return where a sealed log's map begins, and the map.

    The map is None when it does not match the footer, or is longer than `map_bytes_max`.
    """
    footer = decode_footer(read(FOOTER.size, max(0, size - FOOTER.size)))
    if footer is None:
        return None
    offset, crc = footer
    length = size - FOOTER.size - offset
    if offset < FILE_HEADER_BYTES or not 0 < length <= map_bytes_max:
        return offset, None
    return offset, decode_map(read(length, offset), crc)


class Checked(NamedTuple):
    location: Location
    record: Record | None
    """None: the contents are unknown."""
    faults: list[Damage]
    """The faults name the entries that the record claims to hold."""


class LogCheck:
    def __init__(
        self,
        disk: Disk,
        path: str,
        log_id: int,
        *,
        end: int | None = None,
        starts: Callable[[], Sequence[int]] = tuple,
        uncached: bool = False,
    ) -> None:
        """Check a log up to `end`, the mark's; None: the whole log.

        `starts`: the index's offsets, asked only after a bad header. `uncached`: read from the
        device.
        """
        self.path = path
        self.log_id = log_id
        self.offset = 0
        self.end = end if end is not None else 0
        self.done = False
        self.ledgers: list[int] | None = None
        """None if the log has no good map."""
        self._disk = disk
        self._whole = end is None
        self._starts = starts
        self._uncached = uncached
        self._map_fault = DamageKind.LEDGERS_MAP

    def step(self, bytes_max: int) -> list[Checked]:
        """Walk over about `bytes_max` bytes.

        Raises `FileNotFoundError`, and `DiskError` when the file cannot be opened.
        """
        file = self._disk.open(self.path)
        try:
            found = self._begin(file) if self.offset == 0 else []
            if self._uncached:
                file.uncache(self.offset, bytes_max)
            limit = min(self.offset + bytes_max, self.end)
            walk = LogWalk(
                file.pread, self.log_id, start=self.offset, end=self.end, window_bytes=bytes_max
            )
            while self.offset < limit:
                found.append(self._judge(walk.next()))
                if found[-1].record is None:
                    walk.offset = self.offset
                else:
                    self.offset = walk.offset
            if self.offset >= self.end:
                self.done = True
        finally:
            file.close()
        return found

    def _begin(self, file: File) -> list[Checked]:
        found: list[Checked] = []
        if self._whole:
            size = file.size()
            self.end = self._sealed_at(file, size) or size
        try:
            good = decode_file_header(_twice(file, FILE_HEADER_BYTES, 0)) == self.log_id
            kind = DamageKind.FILE_HEADER
        except DiskError:
            good, kind = False, DamageKind.UNREADABLE
        if not good:
            found.append(self._bad(kind, 0, FILE_HEADER_BYTES))
        self.offset = FILE_HEADER_BYTES
        return found

    def _sealed_at(self, file: File, size: int) -> int:
        """Return where the records of a sealed log end; 0 when no map can be trusted."""
        try:
            found = ledgers_map(partial(_twice, file), size)
        except DiskError:
            self._map_fault = DamageKind.UNREADABLE
            return 0
        if found is None or found[1] is None:
            return 0
        self.ledgers = list(found[1])
        return found[0]

    def _judge(self, step: Step) -> Checked:
        location, record, frames, fault = step
        if record is None:
            assert fault is not None
            if self._whole and self.ledgers is None and frames.startswith(MAP_MAGIC):
                self.offset = self.end
                return self._bad(self._map_fault, location.offset, self.end - location.offset)
            return self._skip(fault, location.offset)
        if fault is not None:
            return Checked(location, record, [self._damage(fault, location, record)])
        return Checked(location, record, self._faults(location, record, frames))

    def _faults(self, location: Location, record: Record, frames: bytes) -> list[Damage]:
        """Return the record's faults; a fault of all of it is placed at its beginning."""
        found: list[Damage] = []
        for kind, offset, length, first, last in frame_faults(record, frames):
            place = location[1:]
            if kind is DamageKind.ENTRY_DIGEST:
                place = (location.offset + RECORD_BYTES + offset, length)
            found.append(Damage(kind, self.path, *place, record.ledger_id, first, last))
        return found

    def _damage(self, kind: DamageKind, location: Location, record: Record) -> Damage:
        claimed = record.ledger_id, record.first_entry, record.last_entry
        return Damage(kind, self.path, location.offset, location.length, *claimed)

    def _skip(self, kind: DamageKind, at: int) -> Checked:
        following = next((start for start in self._starts() if start > at), self.end)
        self.offset = min(following, self.end)
        return self._bad(kind, at, self.offset - at)

    def _bad(self, kind: DamageKind, offset: int, length: int) -> Checked:
        location = Location(self.log_id, offset, length)
        return Checked(location, None, [Damage(kind, self.path, offset, length)])


def _twice(file: File, length: int, offset: int) -> bytes:
    try:
        return file.pread(length, offset)
    except DiskError:
        return file.pread(length, offset)
