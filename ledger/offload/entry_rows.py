"""Format 1: a row for each entry, with its payload. For encrypted ledgers, and objects of 0.1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from crc32c import crc32c

from octavo.protocol.batch import BatchHeader
from octavo.protocol.entry import HEADER, Entry

_NUMBERS = ("entry", "offset", "count", "first_ms", "max_ms", "lac", "length")
_OF_ENTRY = ["entry", "lac", "length", "digest", "payload"]


def entry_head(entry: Entry) -> bytes:
    """Return the entry's header, as it precedes the payload at the bookies."""
    return HEADER.pack(entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length)


def digest_of(entry: Entry) -> int:
    """Return the CRC32C over the entry's header and payload."""
    return crc32c(entry.payload, crc32c(entry_head(entry)))


class EntryRows:
    """Collects the entries of a row group."""

    def __init__(self) -> None:
        import pyarrow as pa

        fields = [(name, pa.int64()) for name in _NUMBERS]
        self.schema = pa.schema([*fields, ("digest", pa.uint32()), ("payload", pa.binary())])
        self.options: dict[str, Any] = {"use_dictionary": False, "write_statistics": False}
        self._clear()

    def _clear(self) -> None:
        self.bytes = 0
        self._entries: list[Entry] = []
        self._headers: list[BatchHeader] = []

    def add(self, entry: Entry, header: BatchHeader) -> None:
        """Add the next entry; `header` is its batch header, as readers are shown it."""
        self._entries.append(entry)
        self._headers.append(header)
        self.bytes += len(entry.payload)

    def take(self) -> tuple[Any, bytes]:
        """Return the row group and what follows it in the object, and forget them."""
        import pyarrow as pa

        entries, headers = self._entries, self._headers
        columns = (
            [entry.entry_id for entry in entries],
            [header.base_offset for header in headers],
            [header.record_count for header in headers],
            [header.first_timestamp for header in headers],
            [header.max_timestamp for header in headers],
            [entry.last_add_confirmed for entry in entries],
            [entry.length for entry in entries],
            [digest_of(entry) for entry in entries],
            [entry.payload for entry in entries],
        )
        arrays = [
            pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)
        ]
        self._clear()
        return pa.Table.from_arrays(arrays, schema=self.schema), b""


def entries_of(read: Any, ledger_id: int) -> Iterable[tuple[Entry, int]]:
    """Return the entries of a row group with their digests. `read(columns)` returns a table."""
    table = read(_OF_ENTRY)
    columns = [table.column(number).to_pylist() for number in range(table.num_columns)]
    for entry_id, lac, length, digest, payload in zip(*columns, strict=True):
        yield Entry(ledger_id, entry_id, lac, length, payload), digest
