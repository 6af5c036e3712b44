"""Entry logs: append sorted extents, read an extent back. Blocking; one appending thread at a time.

A restart begins a new log, so a torn tail is never appended to. A record that cannot be read is a
`BookieIOError` and never `NoSuchEntry` (BookKeeper #2908: a damaged log answered "no entry", and
recovery cut the ledger). A removed log frees its space when the reads under way have ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

from crc32c import crc32c

from octavo.bookie.disk.damage import Damage, DamagedRead, DamageKind
from octavo.bookie.disk.files import Disk, DiskError, File, NoDescriptorLeft
from octavo.bookie.entrylog.format import (
    FILE_HEADER_BYTES,
    FOOTER,
    MAP_FRONT,
    MAP_ITEM,
    MAP_MAGIC,
    RECORD_BYTES,
    Extent,
    Location,
    Record,
    decode_file_header,
    decode_footer,
    decode_record,
    encode_file_header,
    encode_map,
    encode_record,
    file_name,
    log_id_of,
)
from octavo.bookie.entrylog.open_logs import OpenLogs, open_logs_max
from octavo.bookie.entrylog.walk import LogWalk, Read, ledgers_map
from octavo.protocol.codes import BookieIOError, OctavoError, Scope

_RESERVE_BYTES = 16 * 1024 * 1024
_SCAN_BYTES = 4096
_BLANK_BYTES = 1024 * 1024


class EntryLogMissing(OctavoError):
    """A log that the journal mark names is missing: its entries would be reported absent."""

    name = "entry-log-missing"
    scope = Scope.PROCESS


class EntryLogs:
    def __init__(
        self,
        disk: Disk,
        directories: Sequence[str],
        log_bytes_max: int,
        open_max: int = 8,
    ) -> None:
        """Open the logs; the default of `open_max` suits tools, which read log after log."""
        assert directories
        self._disk = disk
        self._directories = tuple(directories)
        self._log_bytes_max = log_bytes_max
        self._paths: dict[int, str] = {}
        self._open = OpenLogs(open_logs_max(open_max, disk.descriptors_max()))
        self._current: File | None = None
        self._current_id = 0
        self._last_id = 0
        """Removed logs count too: no id is used twice."""
        self._offset = 0
        self._reserved = 0
        self._bytes_of: dict[int, int] = {}

    def open(self) -> None:
        for directory in self._directories:
            for name in self._disk.list_directory(directory):
                log_id = log_id_of(name)
                if log_id is not None:
                    self._paths[log_id] = f"{directory}/{name}"
        self._current_id = self._last_id = max(self._paths, default=0)

    def goes_behind(self, end: tuple[int, int]) -> bool:
        """Whether the logs hold anything, even damage, after `end` (log id, offset)."""
        if any(log_id > end[0] for log_id in self._paths):
            return True
        if end[0] not in self._paths:
            return False
        try:
            file = self._disk.open(self._paths[end[0]])
        except (FileNotFoundError, DiskError):
            return True
        try:
            return not is_blank(file, max(FILE_HEADER_BYTES, end[1]))
        except DiskError:
            return True
        finally:
            file.close()

    def cut_abandoned(
        self, mark: tuple[int, int], journaled: bool, *, missing: bool = False
    ) -> None:
        """Cut what follows `mark`: it may be torn, or only in the page cache; the journal has it
        too.

        If the mark and the first journal files are lost (`journaled` is false), `mark` is where the
        index ends, and good records after it are kept. Raises `EntryLogMissing`; if that loss is
        accepted (`missing`), a new log is begun.
        """
        if mark[0] and mark[0] not in self._paths and not missing:
            raise EntryLogMissing(
                f"entry log {file_name(mark[0])}, which the journal mark names, is in none of "
                f"{', '.join(self._directories)}: bring it back. If it is gone for good, start "
                "once with --accept-loss: what this bookie still has is served, what it may have "
                "lost is answered as unknown until it is re-replicated"
            )
        self._drop_unused(mark[0], journaled=journaled)
        for log_id in self.log_ids:
            if log_id >= mark[0]:
                self._offset = self._cut(log_id, mark[1] if log_id == mark[0] else 0, journaled)
        if missing:
            # The next mark must not name an older log than the last mark: that log would be cut.
            self._last_id = max(self._last_id, mark[0])
            self.roll()

    def _cut(self, log_id: int, vouched: int, journaled: bool) -> int:
        """Seal a log where its good records end, durably; return this end.

        If the file lost its end before `vouched`, that is damage, and the mark must not move back.
        """
        file = self._disk.open(self._paths[log_id], write=True)
        try:
            return self._cut_file(file, log_id, vouched, journaled)
        finally:
            file.close()

    def _cut_file(self, file: File, log_id: int, vouched: int, journaled: bool) -> int:
        size = file.size()
        if decode_file_header(file.pread(FILE_HEADER_BYTES, 0)) != log_id:
            return max(size, vouched)
        end = max(FILE_HEADER_BYTES, vouched)
        if not journaled:
            for record, location in self.scan(log_id, end):
                frames = file.pread(record.frames_bytes, location.offset + RECORD_BYTES)
                if len(frames) != record.frames_bytes or crc32c(frames) != record.frames_crc:
                    break  # the journal has these entries, or they were never acked
                end = location.offset + record.total_bytes
        if end <= size:
            self._seal_at(file, log_id, end)
        return end

    def _seal_at(self, file: File, log_id: int, end: int) -> None:
        """Seal a log at `end` if all records before can be read.

        Map and footer are written again: the previous process may have died before the sync.
        """
        bytes_of: dict[int, int] = {}
        found = FILE_HEADER_BYTES
        for record, location in self.scan(log_id):
            if location.offset >= end:
                break
            held = bytes_of.get(record.ledger_id, 0)
            bytes_of[record.ledger_id] = held + record.frames_bytes
            found = location.offset + location.length
        if found == end:
            write_tail(file, bytes_of, end)

    def _drop_unused(self, above: int, *, journaled: bool) -> None:
        """Empty, or with entries that are all in the journal.

        A flushed index may name their records, so the ids are not used again.
        """
        changed: dict[str, None] = {}
        for log_id in [found for found in self.log_ids if found > above]:
            path = self._paths[log_id]
            file = self._disk.open(path)
            unused = journaled or is_blank(file, FILE_HEADER_BYTES)
            file.close()
            if unused:
                self._disk.unlink(path)
                del self._paths[log_id]
                changed[path.rpartition("/")[0]] = None
        for directory in changed:
            self._disk.sync_directory(directory)
        self._current_id = max(self._paths, default=0)

    @property
    def log_ids(self) -> list[int]:
        return sorted(self._paths)

    @property
    def position(self) -> tuple[int, int]:
        return self._current_id, self._offset

    def append(self, runs: Sequence[Extent]) -> list[Location]:
        """Append extents, durable after `sync`; after `DiskFull` nothing was added."""
        total = sum(RECORD_BYTES + run.frames_bytes for run in runs)
        if self._current is None or (
            self._offset + total > self._log_bytes_max and self._offset > FILE_HEADER_BYTES
        ):
            self.roll()
        file = self._current
        assert file is not None
        self._reserve(file, self._offset + total)
        found: list[Location] = []
        buffers: list[bytes] = []
        offset = self._offset
        for run in runs:
            buffers.append(encode_record(run.ledger_id, run.first_entry, run.entries, run.frames))
            buffers += run.frames
            length = RECORD_BYTES + run.frames_bytes
            found.append(Location(self._current_id, offset, length))
            offset += length
        file.pwritev([b"".join(buffers)] if total < 4096 * len(buffers) else buffers, self._offset)
        self._offset = offset
        for run in runs:
            held = self._bytes_of.get(run.ledger_id, 0)
            self._bytes_of[run.ledger_id] = held + run.frames_bytes
        return found

    def sync(self) -> None:
        if self._current is not None:
            self._current.datasync()

    def _reserve(self, file: File, end: int) -> None:
        if end <= self._reserved:
            return
        wanted = max(end, min(self._reserved + _RESERVE_BYTES, self._log_bytes_max))
        file.preallocate(wanted)
        self._reserved = wanted

    def roll(self) -> None:
        """Begin the next log, in the folder with most room."""
        free = [self._disk.free_bytes(directory)[0] for directory in self._directories]
        directory = self._directories[free.index(max(free))]
        log_id = self._last_id + 1
        path = f"{directory}/{file_name(log_id)}"
        if self._disk.exists(path):
            self._disk.unlink(path)  # left by an attempt that failed; no index names it
        file = self._disk.open(path, create=True)
        try:
            file.preallocate(min(_RESERVE_BYTES, self._log_bytes_max))
            file.pwritev([encode_file_header(log_id)], 0)
            file.datasync()
            self._disk.sync_directory(directory)
            self.seal()
        except BaseException:
            file.close()
            raise
        self._current = file
        self._current_id = self._last_id = log_id
        self._offset = FILE_HEADER_BYTES
        self._reserved = min(_RESERVE_BYTES, self._log_bytes_max)
        self._bytes_of = {}
        self._paths[log_id] = path
        self._open.keep_for_writer(log_id, file)

    def seal(self) -> None:
        file = self._current
        if file is None:
            return
        write_tail(file, self._bytes_of, self._offset)
        self._current = None
        self._open.written(self._current_id)

    @property
    def open_count(self) -> int:
        return len(self._open)

    def size_of(self, log_id: int) -> int:
        """Return the log's size. Raises `DamagedRead`."""
        try:
            with self._file(log_id) as file:
                return file.size()
        except DiskError as error:
            raise self._unreadable(error, log_id, 0, 0) from error

    def remove(self, log_id: int) -> None:
        """Remove a log, durable on return; a read under way looks in the index again."""
        assert log_id < self._current_id
        path = self._paths.pop(log_id)
        try:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)
        except DiskError:
            self._paths[log_id] = path
            raise
        finally:
            self._open.drop(log_id)
        self._disk.sync_directory(path.rpartition("/")[0])

    def close(self) -> None:
        self._open.close()
        self._current = None

    @contextlib.contextmanager
    def _file(self, log_id: int) -> Iterator[File]:
        with self._open.use(log_id, partial(self._open_log, log_id)) as file:
            if log_id not in self._paths:  # it was removed while it was opened
                self._open.drop(log_id)
                raise LogRemoved(f"{file.path} was removed")
            yield file

    def _open_log(self, log_id: int) -> File:
        path = self.path_of(log_id)
        if log_id not in self._paths:
            raise DamagedRead(
                f"entry log {path} is missing", Damage(DamageKind.MISSING_FILE, path, 0, 0)
            )
        try:
            return self._disk.open(path)
        except NoDescriptorLeft:
            raise
        except (FileNotFoundError, DiskError) as error:
            gone = isinstance(error, FileNotFoundError)
            kind = DamageKind.MISSING_FILE if gone else DamageKind.UNREADABLE
            raise DamagedRead(
                f"entry log {path} cannot be opened: {error}", Damage(kind, path, 0, 0)
            ) from error

    def path_of(self, log_id: int) -> str:
        return self._paths.get(log_id) or f"{self._directories[0]}/{file_name(log_id)}"

    def read(self, location: Location, ledger_id: int) -> tuple[Record, bytes]:
        """Read a record and check it. Raises `BookieIOError`."""
        data = self.read_bytes(location.log_id, location.offset, location.length)
        return self.check_record(data, 0, location, ledger_id)

    def reader(self, log_id: int) -> Read:
        return lambda length, offset: self.read_bytes(log_id, offset, length)

    def read_bytes(self, log_id: int, offset: int, length: int) -> bytes:
        """Return fewer bytes at the end. Raises `DamagedRead`."""
        try:
            with self._file(log_id) as file:
                return file.pread(length, offset)
        except DiskError as error:
            raise self._unreadable(error, log_id, offset, length) from error

    def _unreadable(self, error: DiskError, log_id: int, offset: int, length: int) -> BookieIOError:
        if isinstance(error, NoDescriptorLeft):
            return BookieIOError(f"entry log {file_name(log_id)}: {error}")
        kind = DamageKind.UNREADABLE
        if isinstance(error, LogRemoved):
            kind = DamageKind.MISSING_FILE
        return DamagedRead(
            f"entry log {file_name(log_id)}: {error}",
            Damage(kind, self.path_of(log_id), offset, length),
        )

    def check_record(
        self, data: bytes, start: int, location: Location, ledger_id: int
    ) -> tuple[Record, bytes]:
        where = f"entry log {file_name(location.log_id)} at byte {location.offset}"
        record = decode_record(data, start)
        if record is None:
            short = len(data) < start + RECORD_BYTES
            kind = DamageKind.TRUNCATED if short else DamageKind.RECORD_HEADER
            raise self._damaged(kind, location, ledger_id, f"{where}: no good record header")
        if record.ledger_id != ledger_id or record.total_bytes != location.length:
            raise self._damaged(
                DamageKind.WRONG_RECORD,
                location,
                ledger_id,
                f"{where}: holds {record.frames_bytes} bytes of ledger {record.ledger_id}, the "
                f"index says {location.length - RECORD_BYTES} of ledger {ledger_id}",
            )
        frames = data[start + RECORD_BYTES : start + record.total_bytes]
        if len(frames) != record.frames_bytes or crc32c(frames) != record.frames_crc:
            short = len(frames) != record.frames_bytes
            raise self._damaged(
                DamageKind.TRUNCATED if short else DamageKind.EXTENT_CHECKSUM,
                location,
                ledger_id,
                f"{where}: the extent's checksum does not match its bytes",
            )
        return record, frames

    def _damaged(
        self, kind: DamageKind, location: Location, ledger_id: int, message: str
    ) -> DamagedRead:
        path = self.path_of(location.log_id)
        damage = Damage(kind, path, location.offset, location.length, ledger_id)
        return DamagedRead(message, damage)

    def ledgers_of(self, log_id: int) -> dict[int, int]:
        """Use a sealed log's map, else walk over it."""
        held = self._bytes_of
        if self._current is not None and log_id == self._current_id:
            return dict(held)
        sealed = ledgers_map(self.reader(log_id), self.size_of(log_id))
        if sealed is not None and sealed[1] is not None:
            return sealed[1]
        sums: dict[int, int] = {}
        for record, _ in self.scan_all(log_id):
            sums[record.ledger_id] = sums.get(record.ledger_id, 0) + record.frames_bytes
        return sums

    def scan_all(
        self, log_id: int, offset: int = 0, end: int = 0
    ) -> Iterator[tuple[Record, Location]]:
        """Yield all records. Raises `BookieIOError` when a record cannot be read.

        The mark vouches up to `end`; 0: all records.
        """
        found = max(offset, FILE_HEADER_BYTES)
        for record, location in self.scan(log_id, offset):
            if end and location.offset >= end:
                break
            found = location.offset + location.length
            yield record, location
        wanted = end or self._records_end(log_id, found)
        if found < wanted:
            raise BookieIOError(
                f"entry log {self._paths[log_id]} is damaged from byte {found} on: records up to "
                f"byte {wanted} cannot be found without the index. Restore the file or the index, "
                "or take this bookie out and have its ledgers re-replicated"
            )

    def _records_end(self, log_id: int, found: int) -> int:
        if self._current is not None and log_id == self._current_id:
            return self._offset
        size = self.size_of(log_id)
        footer = decode_footer(self.read_bytes(log_id, max(0, size - FOOTER.size), FOOTER.size))
        if footer is not None:
            return footer[0]
        try:
            with self._file(log_id) as file:
                if ends_at(file, found):
                    return found
        except DiskError as error:
            raise self._unreadable(error, log_id, found, 0) from error
        return size + 1

    def scan(self, log_id: int, offset: int = 0) -> Iterator[tuple[Record, Location]]:
        """Yield good records. Raises `BookieIOError` on a bad file."""
        its_id = decode_file_header(self.read_bytes(log_id, 0, FILE_HEADER_BYTES))
        if its_id != log_id:
            raise BookieIOError(f"entry log {self.path_of(log_id)}: {its_id}")
        read = self.reader(log_id)
        walk = LogWalk(read, log_id, start=offset, window_bytes=_SCAN_BYTES, headers_only=True)
        while (step := walk.next()).record is not None:
            yield step.record, step.location


class LogRemoved(DiskError):
    """A log was removed while a caller wanted to read it: look in the index again."""

    name = "log-removed"


def write_tail(file: File, bytes_of: dict[int, int], end: int) -> None:
    tail = encode_map(bytes_of, end)
    file.preallocate(end + len(tail))
    file.pwritev([tail], end)
    file.truncate(end + len(tail))
    file.datasync()


def ends_at(file: File, offset: int) -> bool:
    front = file.pread(MAP_FRONT.size, offset)
    if len(front) < MAP_FRONT.size:
        return False
    magic, count = MAP_FRONT.unpack(front)
    if magic != MAP_MAGIC or count * MAP_ITEM.size > file.size():
        return False
    body_bytes = MAP_FRONT.size + count * MAP_ITEM.size
    tail = file.pread(body_bytes + FOOTER.size, offset)
    footer = decode_footer(tail)
    return footer is not None and footer[0] == offset and footer[1] == crc32c(tail[:body_bytes])


def is_blank(file: File, offset: int) -> bool:
    while data := file.pread(_BLANK_BYTES, offset):
        if data.strip(b"\0"):
            return False
        offset += len(data)
    return True
