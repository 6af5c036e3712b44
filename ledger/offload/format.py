"""An offloaded ledger as a Parquet object: written, read back, checked (docs/formats/offload.md).

A row is an entry as it was stored, with its writer's digest. All methods block. Only processes that
offload, or read offloaded ledgers, need pyarrow.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from crc32c import crc32c

from octavo.ledger.errors import OffloadDamaged
from octavo.protocol.batch import BatchHeader, read_header
from octavo.protocol.entry import HEADER, Entry

FORMAT = 1
GROUP_BYTES = 2 * 2**20
"""A reader reads a whole row group."""
GROUP_ENTRIES_MAX = 20_000
ABOUT_KEY = b"octavo.offload"
_NUMBERS = ("entry", "offset", "count", "first_ms", "max_ms", "lac", "length")


class Group(NamedTuple):
    """`end` is excluded; `first_offset` is relative to the ledger."""

    start: int
    end: int
    crc: int
    first_entry: int
    first_offset: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class About:
    ledger_id: int
    uuid: str
    topic: str
    partition: int
    base_offset: int
    entries: int
    format: int = FORMAT


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
        self.crc = crc32c(entry.payload, crc32c(_header(entry), self.crc))
        self.entries += 1


def _header(entry: Entry) -> bytes:
    return HEADER.pack(entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length)


def _schema() -> Any:
    import pyarrow as pa

    fields = [(name, pa.int64()) for name in _NUMBERS]
    return pa.schema([*fields, ("digest", pa.uint32()), ("payload", pa.binary())])


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
        """The file may be closed."""
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
        import pyarrow.parquet as pq

        self._schema = _schema()
        self._about = about
        self._rows: list[Entry] = []
        self._headers: list[BatchHeader] = []
        self._rows_bytes = 0
        self._groups: list[Group] = []
        self.checksum = Checksum()
        self._sink = _Sink(file)
        self._file = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            use_dictionary=False,
            write_statistics=False,
        )

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """pyarrow must write nothing more."""
        self._sink.discard()
        try:
            self._file.close()
        except Exception:
            self._file.is_open = False  # otherwise garbage collection would try again

    def add(self, entries: Iterable[Entry], headers: Sequence[BatchHeader] | None = None) -> None:
        """None may be left out. `headers`: the batch headers of encrypted entries."""
        entries = list(entries)
        if headers is None:
            headers = [read_header(entry.payload) for entry in entries]
        for entry, header in zip(entries, headers, strict=True):
            assert entry.entry_id == self.checksum.entries, "entries come in order, none left out"
            self.checksum.add(entry)
            self._rows.append(entry)
            self._headers.append(header)
            self._rows_bytes += len(entry.payload)
            if self._rows_bytes >= GROUP_BYTES or len(self._rows) >= GROUP_ENTRIES_MAX:
                self._write_group()

    def close(self) -> Written:
        """An object without the footer is not complete."""
        assert self.checksum.entries == self._about.entries, "the whole ledger"
        self._write_group()
        about = {**asdict(self._about), "groups": self._groups}
        self._file.add_key_value_metadata({ABOUT_KEY.decode(): json.dumps(about)})
        self._sink.begin()
        self._file.close()
        # Only the footer was left to write.
        return Written(self._sink.size, self._sink.crc, self.checksum.entries, self.checksum.crc)

    def _write_group(self) -> None:
        import pyarrow as pa

        if not self._rows:
            return
        headers = self._headers
        columns = (
            [entry.entry_id for entry in self._rows],
            [header.base_offset for header in headers],
            [header.record_count for header in headers],
            [header.first_timestamp for header in headers],
            [header.max_timestamp for header in headers],
            [entry.last_add_confirmed for entry in self._rows],
            [entry.length for entry in self._rows],
            [crc32c(entry.payload, crc32c(_header(entry))) for entry in self._rows],
            [entry.payload for entry in self._rows],
        )
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(columns, self._schema, strict=True)
        ]
        self._sink.begin()
        self._file.write_table(
            pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=len(self._rows)
        )
        self._groups.append(
            Group(
                self._sink.start,
                self._sink.size,
                self._sink.crc,
                self._rows[0].entry_id,
                headers[0].base_offset,
                max(header.max_timestamp for header in headers),
            )
        )
        self._rows, self._headers, self._rows_bytes = [], [], 0


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
        rows = self._metadata.num_rows
        if rows != self.about.entries:
            raise OffloadDamaged(f"{what} has {rows} entries, its footer says {self.about.entries}")

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
        """Each checked by its digest."""
        found = []
        wanted = self.first_entries[group]
        for entry_id, lac, length, digest, payload in self._rows(group):
            entry = Entry(self.about.ledger_id, entry_id, lac, length, payload)
            if entry_id != wanted or crc32c(payload, crc32c(_header(entry))) != digest:
                raise OffloadDamaged(
                    f"{self._what}: the digest of ledger {self.about.ledger_id} entry {wanted} "
                    "does not match"
                )
            wanted += 1
            found.append(entry)
        return found

    def _rows(self, group: int) -> Iterable[tuple[int, int, int, int, bytes]]:
        import pyarrow.parquet as pq

        place = self.groups[group]
        with self._turn, _reading(self._what):
            data = self._bytes(place.start, place.end)
        if crc32c(data) != place.crc:
            raise OffloadDamaged(
                f"{self._what}: the checksum of bytes {place.start} to {place.end} does not match "
                f"(ledger {self.about.ledger_id} from entry {place.first_entry} on)"
            )
        with _reading(self._what):
            file = pq.ParquetFile(
                _Window(data, place.start), metadata=self._metadata, pre_buffer=False
            )
            table = file.read_row_group(
                group, columns=["entry", "lac", "length", "digest", "payload"], use_threads=False
            )
        columns = [table.column(number).to_pylist() for number in range(table.num_columns)]
        return zip(*columns, strict=True)


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
        if isinstance(error, ValueError):
            raise OffloadDamaged(f"{self._what} is damaged: {error}") from error
