"""Writes, reads and checks an offloaded ledger as a Parquet object (docs/formats/offload.md).

It has a row for each message (message_rows.py) or each entry (entry_rows.py). The entries come back
as they were, checked by the digest of their writer. All methods block. Only processes that offload,
or read offloaded ledgers, need pyarrow.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from crc32c import crc32c

from octavo.ledger.errors import OffloadDamaged
from octavo.ledger.offload import entry_rows, message_rows
from octavo.ledger.offload.entry_rows import EntryRows, digest_of, entry_head
from octavo.ledger.offload.message_rows import MessageRows
from octavo.protocol.batch import BatchHeader, InvalidBatch, read_header
from octavo.protocol.entry import Entry

BY_ENTRY, BY_MESSAGE = 1, 2
"""The formats of the rows."""
GROUP_BYTES = 2 * 2**20
"""Bytes of messages in a row group; a reader reads a whole row group."""
GROUP_ENTRIES_MAX = 20_000
ABOUT_KEY = b"octavo.offload"


class Group(NamedTuple):
    """A row group: its bytes `start` to `end` (excluded), their CRC32C, and its first entry.

    `first_offset` is relative to the ledger. Rows end, and an entry table begins, at `rows_end`. A
    group without rows (pieces of a large message) is none to Parquet.
    """

    start: int
    end: int
    crc: int
    first_entry: int
    first_offset: int
    newest_ms: int
    rows_end: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class About:
    ledger_id: int
    uuid: str
    topic: str
    partition: int
    base_offset: int
    entries: int
    format: int = BY_MESSAGE
    pieces: int = 0
    """The first entries, if they are pieces of a large message."""


class Written(NamedTuple):
    """Size, CRC32C of the footer, entries and their checksum."""

    bytes: int
    footer_crc: int
    entries: int
    crc: int


class Checksum:
    """CRC32C over header and payload of all entries in order."""

    def __init__(self) -> None:
        self.crc = 0
        self.entries = 0

    def add(self, entry: Entry) -> None:
        self.crc = crc32c(entry.payload, crc32c(entry_head(entry), self.crc))
        self.entries += 1


class _Sink(io.RawIOBase):
    """Counts and checksums what it passes to `file`."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size = 0
        self.crc = 0
        self.start = 0
        self._discards = False

    def begin(self) -> None:
        self.start, self.crc = self.size, 0

    def discard(self) -> None:
        """Drop the bytes; the file may be closed already."""
        self._discards = True

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        if self._discards:
            return len(data)
        self._file.write(data)
        self.crc = crc32c(data, self.crc)
        self.size += len(data)
        return len(data)


class ObjectWriter:
    """A context manager: if the block ends before `close`, pyarrow writes no footer, not even at
    garbage collection.
    """

    def __init__(self, file: Any, about: About) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._about = about
        self._rows: EntryRows | MessageRows = (
            EntryRows()
            if about.format == BY_ENTRY
            else MessageRows(about.partition, about.base_offset, about.pieces)
        )
        self._first: tuple[Entry, BatchHeader] | None = None
        """The first entry of the row group."""
        self._newest_ms = 0
        self._groups: list[Group] = []
        self.checksum = Checksum()
        self._sink = _Sink(file)
        # Arrow counts the bytes that pass through this, so row groups and entry tables both must.
        self._out = pa.PythonFile(self._sink, mode="w")
        self._file = pq.ParquetWriter(
            self._out, self._rows.schema, compression="zstd", **self._rows.options
        )

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file, so that pyarrow writes nothing more."""
        self._sink.discard()
        try:
            self._file.close()
        except Exception:
            self._file.is_open = False  # otherwise garbage collection would try again

    def add(self, entries: Iterable[Entry], headers: Sequence[BatchHeader] | None = None) -> None:
        """Add entries, none left out; `headers` are the batch headers of encrypted entries."""
        entries = list(entries)
        if headers is None:
            headers = [read_header(entry.payload) for entry in entries]
        for entry, header in zip(entries, headers, strict=True):
            assert entry.entry_id == self.checksum.entries, "entries come in order, none left out"
            self.checksum.add(entry)
            if self._first is None:
                self._first = entry, header
                self._newest_ms = header.max_timestamp
            self._newest_ms = max(self._newest_ms, header.max_timestamp)
            self._rows.add(entry, header)
            count = self.checksum.entries - self._first[0].entry_id
            if self._rows.bytes >= GROUP_BYTES or count >= GROUP_ENTRIES_MAX:
                self._write_group()

    def close(self) -> Written:
        """Write the footer, without which an object is not complete."""
        assert self.checksum.entries == self._about.entries, "the whole ledger"
        self._write_group()
        about = {**asdict(self._about), "groups": self._groups}
        self._file.add_key_value_metadata({ABOUT_KEY.decode(): json.dumps(about)})
        self._sink.begin()
        self._file.close()
        # Only the footer was left to write.
        return Written(self._sink.size, self._sink.crc, self.checksum.entries, self.checksum.crc)

    def _write_group(self) -> None:
        if self._first is None:
            return
        entry, header = self._first
        table, rest = self._rows.take()
        self._sink.begin()
        if table.num_rows:
            self._file.write_table(table, row_group_size=table.num_rows)
        rows_end = self._sink.size
        self._out.write(rest)
        self._groups.append(
            Group(
                self._sink.start,
                self._sink.size,
                self._sink.crc,
                entry.entry_id,
                header.base_offset,
                self._newest_ms,
                rows_end,
                table.num_rows,
            )
        )
        self._first = None


class ObjectFile:
    """pyarrow may crash the process on damage, so it gets only bytes whose checksum holds: the
    footer's by the partition's record, row groups' by the footer.

    Blocking; `what` names the object in errors. Raises `OffloadDamaged`, and errors of the file
    system.
    """

    def __init__(self, file: Any, what: str, size: int, footer_crc: int) -> None:
        import pyarrow.parquet as pq

        self._what = what
        self._raw = file
        # The thread of a cancelled caller may still be reading.
        self._turn = threading.Lock()
        with _reading(what):
            footer = self._footer(size, footer_crc)
            self._metadata = pq.read_metadata(io.BytesIO(footer))
        self.about, self.groups = self._read_about()
        self.first_entries = [group.first_entry for group in self.groups]
        # Groups without rows are none to Parquet.
        has_rows = [self.about.format == BY_ENTRY or group.rows > 0 for group in self.groups]
        self._row_groups = [*accumulate(has_rows, initial=0)]
        self._check_count()

    def _check_count(self) -> None:
        rows, about = self._metadata.num_rows, self.about
        if about.format not in (BY_ENTRY, BY_MESSAGE):
            raise OffloadDamaged(
                f"{self._what} has format {about.format}, of a newer version; known are 1 and 2"
            )
        said = about.entries
        if about.format == BY_MESSAGE:
            said = sum(group.rows for group in self.groups)
        if rows != said:
            raise OffloadDamaged(f"{self._what} has {rows} rows, its footer says {said}")

    def _footer(self, size: int, footer_crc: int) -> bytes:
        self._raw.seek(0, 2)
        if self._raw.tell() != size:
            raise OffloadDamaged(f"{self._what} has {self._raw.tell()} bytes; {size} were written")
        length = int.from_bytes(self._bytes(max(0, size - 8), size)[:4], "little") + 8
        footer = self._bytes(max(0, size - length), size)
        if crc32c(footer) != footer_crc:
            raise OffloadDamaged(f"{self._what}: the checksum of its footer does not match")
        return footer

    def _bytes(self, start: int, end: int) -> bytes:
        self._raw.seek(start)
        data = bytes(self._raw.read(end - start))
        if len(data) != end - start:
            raise OffloadDamaged(f"{self._what} ends at byte {start + len(data)}, before {end}")
        return data

    def _read_about(self) -> tuple[About, list[Group]]:
        try:
            about = json.loads(self._metadata.metadata[ABOUT_KEY])
            groups = [Group(*one) for one in about.pop("groups")]
            return About(**about), groups
        except (TypeError, KeyError, ValueError) as error:
            raise OffloadDamaged(f"{self._what} does not say which ledger it holds") from error

    def close(self) -> None:
        with self._turn, contextlib.suppress(OSError):
            self._raw.close()

    def group_of_entry(self, entry_id: int) -> int:
        return bisect_right(self.first_entries, entry_id) - 1

    def group_of_offset(self, offset: int) -> int:
        return bisect_right([group.first_offset for group in self.groups], offset) - 1

    def entries(self, group: int) -> list[Entry]:
        """Return all entries of a row group, each checked by its digest."""
        wanted = self.first_entries[group]
        end = [*self.first_entries, self.about.entries][group + 1]
        found = []
        with _reading(self._what):
            for entry, digest in self._stored(group):
                if entry.entry_id != wanted or digest_of(entry) != digest:
                    raise OffloadDamaged(
                        f"{self._what}: the digest of ledger {self.about.ledger_id} entry {wanted} "
                        "does not match"
                    )
                wanted += 1
                found.append(entry)
        if wanted != end:
            raise OffloadDamaged(f"{self._what} has no entry {wanted} of {self.about.entries}")
        return found

    def _stored(self, number: int) -> Iterable[tuple[Entry, int]]:
        """Return the entries of a row group with their digests, neither of them checked."""
        import pyarrow.parquet as pq

        group, about = self.groups[number], self.about
        with self._turn:
            data = self._bytes(group.start, group.end)
        if crc32c(data) != group.crc:
            raise OffloadDamaged(
                f"{self._what}: the checksum of bytes {group.start} to {group.end} does not match "
                f"(ledger {about.ledger_id} from entry {group.first_entry} on)"
            )

        def read(columns: list[str]) -> Any:
            window = _Window(data, group.start)
            file = pq.ParquetFile(window, metadata=self._metadata, pre_buffer=False)
            return file.read_row_group(self._row_groups[number], columns, use_threads=False)

        if about.format == BY_ENTRY:
            return entry_rows.entries_of(read, about.ledger_id)
        of = about.ledger_id, about.base_offset
        rest = data[group.rows_end - group.start :]
        return message_rows.entries_of(read, rest, of, group.first_entry)


class _Window(io.RawIOBase):
    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        self._start = start
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        end = self._start + len(self._data)
        self._at = offset + (0, self._at, end)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        begin = self._at - self._start
        assert begin >= 0, "pyarrow reads within the row group"
        found = self._data[begin:] if size < 0 else self._data[begin : begin + size]
        self._at += len(found)
        return found


class _reading:  # noqa: N801
    """Turns pyarrow's errors into `OffloadDamaged`."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        # An OSError of the file system passes unchanged.
        if isinstance(error, (ValueError, TypeError, InvalidBatch)):
            raise OffloadDamaged(f"{self._what} is damaged: {error}") from error
