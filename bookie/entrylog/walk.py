"""Walks one entry log from its first byte to its last, and says of each record whether it is good.

Unlike `EntryLogs.scan` it does not stop at damage: it goes on at the next record that the index
knows, and names what it passed over. Every record header, run checksum and entry digest is checked
(record_check.py). Blocking; a file handle of its own, opened for each step, so that a log may go
in between. A read that the disk refuses is repeated once before it counts as damage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from octavo.bookie.disk.damage import Damage, DamageKind
from octavo.bookie.disk.files import Disk, DiskError, File
from octavo.bookie.entrylog.format import (
    FILE_HEADER_BYTES,
    FOOTER,
    MAP_MAGIC,
    RECORD_BYTES,
    Record,
    decode_file_header,
    decode_footer,
    decode_map,
    decode_record,
)
from octavo.bookie.entrylog.log import Location
from octavo.bookie.entrylog.record_check import frame_faults


class Walked(NamedTuple):
    """A record, or what stands in its place."""

    location: Location
    record: Record | None
    """None when there is no good header: nothing is known of what lay there."""
    faults: list[Damage]
    """Empty when all of it is good. Entries are those that the record claims."""


class _Window:
    """Reads ahead within one step; what the disk refuses is read again, and only as asked for."""

    def __init__(self, file: File, end: int, ahead_bytes: int) -> None:
        self._file = file
        self._end = end
        self._ahead_bytes = ahead_bytes
        self._base = 0
        self._data = b""

    def get(self, offset: int, length: int) -> bytes:
        """Fewer bytes at the end of the file. Raises `DiskError`, at the second refusal."""
        start = offset - self._base
        if start >= 0 and start + length <= len(self._data):
            return self._data[start : start + length]
        try:
            ahead = max(length, min(self._ahead_bytes, self._end - offset))
            self._base, self._data = offset, self._file.pread(ahead, offset)
        except DiskError:
            self._data = b""
            return self._file.pread(length, offset)
        return self._data[:length]


class LogWalk:
    """One pass over one log."""

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
        """`end` is where the mark ends to vouch for the log; None: all of it is vouched for.

        `starts` gives the offsets, ascending, at which the index knows records; asked only when a
        header is bad. `uncached` reads from the device instead of the system's memory.
        """
        self.path = path
        self.log_id = log_id
        self.offset = 0
        """Up to where it was walked."""
        self.end = end if end is not None else 0
        self.done = False
        self.ledgers: list[int] | None = None
        """Which ledgers a sealed log holds; None when no good map says so."""
        self._disk = disk
        self._whole = end is None
        self._starts = starts
        self._uncached = uncached
        self._map_fault = DamageKind.LEDGERS_MAP

    def step(self, bytes_max: int) -> list[Walked]:
        """The next records, of about `bytes_max` bytes.

        Raises `FileNotFoundError`, and `DiskError` when the file cannot even be opened.
        """
        file = self._disk.open(self.path)
        try:
            found = self._begin(file) if self.offset == 0 else []
            if self._uncached:
                file.uncache(self.offset, bytes_max)
            window = _Window(file, self.end, bytes_max)
            limit = self.offset + bytes_max
            while self.offset < min(limit, self.end):
                found.append(self._next(window))
            if self.offset >= self.end:
                self.done = True
        finally:
            file.close()
        return found

    def _begin(self, file: File) -> list[Walked]:
        """Judge the file's header and find out where its records end."""
        found: list[Walked] = []
        if self._whole:
            size = file.size()
            self.end = self._sealed_at(file, size) or size
        try:
            good = decode_file_header(_pread(file, FILE_HEADER_BYTES, 0)) == self.log_id
            kind = DamageKind.FILE_HEADER
        except DiskError:
            good, kind = False, DamageKind.UNREADABLE
        if not good:
            found.append(self._bad(kind, 0, FILE_HEADER_BYTES))
        self.offset = FILE_HEADER_BYTES
        return found

    def _sealed_at(self, file: File, size: int) -> int:
        """Where the map of a sealed log begins; 0 when there is none that can be trusted."""
        try:
            footer = decode_footer(_pread(file, FOOTER.size, max(0, size - FOOTER.size)))
            if footer is None or not FILE_HEADER_BYTES <= footer[0] <= size - FOOTER.size:
                return 0
            offset, crc = footer
            body = _pread(file, size - FOOTER.size - offset, offset)
        except DiskError:
            self._map_fault = DamageKind.UNREADABLE
            return 0
        held = decode_map(body, crc)
        if held is None:
            return 0
        self.ledgers = list(held)
        return offset

    def _next(self, window: _Window) -> Walked:
        at = self.offset
        try:
            front = window.get(at, RECORD_BYTES)
        except DiskError:
            return self._skip(DamageKind.UNREADABLE)
        record = decode_record(front)
        if record is None:
            if self._whole and self.ledgers is None and front.startswith(MAP_MAGIC):
                self.offset = self.end
                return self._bad(self._map_fault, at, self.end - at)
            short = len(front) < RECORD_BYTES
            return self._skip(DamageKind.TRUNCATED if short else DamageKind.RECORD_HEADER)
        location = Location(self.log_id, at, record.total_bytes)
        self.offset = at + record.total_bytes
        try:
            frames = window.get(at + RECORD_BYTES, record.frames_bytes)
        except DiskError:
            return Walked(location, record, [self._lost(DamageKind.UNREADABLE, location, record)])
        if len(frames) < record.frames_bytes or self.offset > self.end:
            return Walked(location, record, [self._lost(DamageKind.TRUNCATED, location, record)])
        return Walked(location, record, self._faults(location, record, frames))

    def _faults(self, location: Location, record: Record, frames: bytes) -> list[Damage]:
        """A fault of a whole record is placed where the record begins, as reads place it."""
        found: list[Damage] = []
        for kind, offset, length, first, last in frame_faults(record, frames):
            place = location[1:]
            if kind is DamageKind.ENTRY_DIGEST:
                place = (location.offset + RECORD_BYTES + offset, length)
            found.append(Damage(kind, self.path, *place, record.ledger_id, first, last))
        return found

    def _lost(self, kind: DamageKind, location: Location, record: Record) -> Damage:
        return Damage(
            kind,
            self.path,
            location.offset,
            location.length,
            record.ledger_id,
            record.first_entry,
            record.last_entry,
        )

    def _skip(self, kind: DamageKind) -> Walked:
        """Go on at the next record that the index knows."""
        at = self.offset
        following = next((start for start in self._starts() if start > at), self.end)
        self.offset = min(following, self.end)
        return self._bad(kind, at, self.offset - at)

    def _bad(self, kind: DamageKind, offset: int, length: int) -> Walked:
        location = Location(self.log_id, offset, length)
        return Walked(location, None, [Damage(kind, self.path, offset, length)])


def _pread(file: File, length: int, offset: int) -> bytes:
    """As `File.pread`; a refusal is repeated once."""
    try:
        return file.pread(length, offset)
    except DiskError:
        return file.pread(length, offset)
