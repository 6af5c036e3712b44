"""The walk over an entry log, record by record: the one way to go through a log.

`LogWalk` steps from header to header through a window over the log's bytes, and says of each step
what it found: a record, or what is wrong with it. What to do at a bad one is its caller's: starts
and counts stop there (`EntryLogs.scan`), compaction refuses the log (index/log_slice.py), `octavo
inspect` goes on at the next header that it finds, and `LogCheck` at the next record that the index
knows.

`LogCheck` is that last one, for the scrubber and the consistency check: it goes from the first byte
of a log to its last, names what it passed over, and looks at every record header, run checksum and
entry digest (record_check.py). Blocking; a file handle of its own, opened for each step, so that a
log may go in between. A read that the disk refuses is repeated once before it counts as damage.
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
"""(length, offset) → so many bytes of a log, fewer at its end."""


class Step(NamedTuple):
    """What one step of a walk found."""

    location: Location
    """Of no length when there is no good header: nobody knows how far the damage reaches."""
    record: Record | None
    frames: bytes
    """Without a good header: what stands in its place. Empty when only headers are walked over."""
    fault: DamageKind | None
    """None: header and length are good. Checksums of frames are the caller's."""


class LogWalk:
    """Steps over the records of one log from `start` to `end`.

    Behind a good header the walk goes on by itself, whatever is wrong with the frames; at a bad one
    it stands still until its caller sets `offset`.
    """

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
        """`window_bytes` is how much to read at once. What `read` raises goes to the caller, but
        for a `DiskError`: that is tried again for what is needed alone, then it is a fault."""
        self.offset = max(start, FILE_HEADER_BYTES)
        """Where the next step begins."""
        self._read = read
        self._log_id = log_id
        self._end = end
        self._window_bytes = window_bytes
        self._headers_only = headers_only
        self._base = 0
        self._data = b""

    def next(self) -> Step:
        """One step."""
        at = self.offset
        nowhere = Location(self._log_id, at, 0)
        record = decode_record(self._data, at - self._base) if at >= self._base else None
        if record is None:  # not in the window, or cut by its end, or bad: read it afresh
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
        """Whether the next record has been read already, all of it."""
        start = self.offset - self._base
        record = decode_record(self._data, start) if start >= 0 else None
        return record is not None and start + record.total_bytes <= len(self._data)

    def _get(self, offset: int, length: int) -> bytes:
        start = offset - self._base
        if start >= 0 and start + length <= len(self._data):
            return self._data[start : start + length]
        return self._fresh(offset, length)

    def _fresh(self, offset: int, length: int) -> bytes:
        """Fewer bytes at the end of the log. Raises `DiskError`, at the second refusal."""
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
    """Where the map of a sealed log of `size` bytes begins, and what it says: bytes by ledger.

    None when the log is not sealed: its last bytes are no footer. A map that is not as the footer
    says, or longer than `map_bytes_max`, is None in its place.
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
    """A record, or what stands in its place."""

    location: Location
    record: Record | None
    """None when there is no good header: nothing is known of what lay there."""
    faults: list[Damage]
    """Empty when all of it is good. Entries are those that the record claims."""


class LogCheck:
    """One pass over one log that looks at everything."""

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

    def step(self, bytes_max: int) -> list[Checked]:
        """The next records, of about `bytes_max` bytes.

        Raises `FileNotFoundError`, and `DiskError` when the file cannot even be opened.
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
        """Judge the file's header and find out where its records end."""
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
        """Where the map of a sealed log begins; 0 when there is none that can be trusted."""
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
        """A fault of a whole record is placed where the record begins, as reads place it."""
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
        """Go on at the next record that the index knows."""
        following = next((start for start in self._starts() if start > at), self.end)
        self.offset = min(following, self.end)
        return self._bad(kind, at, self.offset - at)

    def _bad(self, kind: DamageKind, offset: int, length: int) -> Checked:
        location = Location(self.log_id, offset, length)
        return Checked(location, None, [Damage(kind, self.path, offset, length)])


def _twice(file: File, length: int, offset: int) -> bytes:
    """As `File.pread`; a refusal is repeated once."""
    try:
        return file.pread(length, offset)
    except DiskError:
        return file.pread(length, offset)
