"""Format 2: a row for each message, which query engines read, and entries rebuilt from the rows.

After each row group stands an entry table, which engines never see. It has the fields of each
entry and of its batch that the rows lack. An entry is encoded again from its rows; when the object
was written, the result was compared with the stored bytes. If the bytes differed (a batch that its
producer compressed, or encoded in an unusual way), the entry table has the payload itself.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import repeat
from typing import Any

from octavo.ledger.offload.entry_rows import digest_of
from octavo.protocol.append_time import ATTRIBUTE_APPEND_TIME
from octavo.protocol.batch import (
    ATTRIBUTE_COMPRESSION,
    MAGIC,
    BatchHeader,
    InvalidBatch,
    read_header,
)
from octavo.protocol.compression import UnsupportedCompression
from octavo.protocol.entry import Entry
from octavo.protocol.limits import TIMESTAMP_MS_MAX
from octavo.protocol.records import Record, rebuilt_batch, record_bytes
from octavo.protocol.windows import all_records

_ROW_BYTES = 32
"""The approximate memory of a row, without its key, value and headers."""
_HEADER_FIELDS = (
    "base_offset", "partition_leader_epoch", "attributes", "last_offset_delta", "first_timestamp",
    "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "record_count",
)  # fmt: skip
_NUMBERS = ("lac", "length", "digest", "rows", *_HEADER_FIELDS)


@cache
def rows_schema() -> Any:
    """Return the columns of messages: as `octavo pipeline table` makes them."""
    import pyarrow as pa

    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.schema(
        [
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestamp_ms", pa.int64()),
            ("key", pa.binary()),
            ("headers", headers),
            ("value", pa.binary()),
        ]
    )


@cache
def _entries_schema() -> Any:
    import pyarrow as pa

    numbers = [(name, pa.int64()) for name in _NUMBERS]
    return pa.schema([*numbers, ("sent_ms", pa.list_(pa.int64())), ("payload", pa.binary())])


class MessageRows:
    """Collects the entries of a row group, as messages."""

    def __init__(self, partition: int, base_offset: int, pieces: int) -> None:
        """Make rows; `pieces` are a large message's first entries, which are no messages."""
        self.schema = rows_schema()
        self.options: dict[str, Any] = {
            "use_dictionary": ["partition", "key", "headers.list.element.key"],
            "column_encoding": {
                "offset": "DELTA_BINARY_PACKED",
                "timestamp": "DELTA_BINARY_PACKED",
            },
            "write_statistics": True,
        }
        self._partition = partition
        self._base_offset = base_offset
        self._pieces = pieces
        self._clear()

    def _clear(self) -> None:
        self.bytes = 0
        self._offsets: list[int] = []
        self._times: list[int] = []
        self._records: list[Any] = []
        self._entries: list[tuple[Any, ...]] = []

    def add(self, entry: Entry, shown: BatchHeader) -> None:
        """Add the next entry; `shown` is its batch header, as readers are shown it."""
        payload = bytes(entry.payload)
        stored = read_header(payload)
        records = [] if entry.entry_id < self._pieces else _records(payload)
        sent = [one.timestamp for one in records]
        is_appended = bool(shown.attributes & ATTRIBUTE_APPEND_TIME)
        offsets = [one.offset for one in records]
        rebuilt = bool(records) and _is_exact(payload, stored, records)
        self._offsets += [self._base_offset + one for one in offsets]
        self._times += [shown.max_timestamp] * len(records) if is_appended else sent
        self._records += records
        self._entries.append(
            (
                entry.last_add_confirmed,
                entry.length,
                digest_of(entry),
                len(records),
                *(getattr(stored, name) for name in _HEADER_FIELDS),
                sent if rebuilt and is_appended else None,
                None if rebuilt else payload,
            )
        )
        self.bytes += sum(
            _ROW_BYTES + record_bytes(one.key, one.value, one.headers) for one in records
        )
        if not rebuilt:
            self.bytes += len(payload)

    def take(self) -> tuple[Any, bytes]:
        """Return the row group and the entry table that follows it, and forget them."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = zip(*self._entries, strict=True)
        entries = pa.Table.from_arrays(
            [
                pa.array(one, field.type)
                for one, field in zip(columns, _entries_schema(), strict=True)
            ],
            schema=_entries_schema(),
        )
        out = io.BytesIO()
        pq.write_table(
            entries,
            out,
            compression="zstd",
            use_dictionary=False,
            write_statistics=False,
            store_schema=False,
            column_encoding=dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED"),
        )
        table = _table(self._partition, self._offsets, self._times, self._records)
        self._clear()
        return table, out.getvalue()


def _records(payload: bytes) -> list[Any]:
    """Return the messages of a batch; none, if readers cannot see any either."""
    try:
        return all_records(payload)
    except (InvalidBatch, UnsupportedCompression):
        return []


def _is_exact(payload: bytes, header: BatchHeader, records: Sequence[Any]) -> bool:
    """Whether the batch is rebuilt byte for byte from its records."""
    if header.attributes & ATTRIBUTE_COMPRESSION:
        return False
    try:
        return rebuilt_batch(header, _rebuildable(header, records)) == payload
    except (InvalidBatch, ValueError, OverflowError, AssertionError):
        return False


def _rebuildable(header: BatchHeader, records: Iterable[Any]) -> Iterator[Record]:
    for one in records:
        yield Record(
            one.key, one.value, one.headers, one.timestamp, one.offset - header.base_offset
        )


def _table(partition: int, offsets: list[int], times: list[int], records: list[Any]) -> Any:
    import pyarrow as pa

    schema = rows_schema()
    inside = [time if 0 <= time <= TIMESTAMP_MS_MAX else None for time in times]
    outside = [None if 0 <= time <= TIMESTAMP_MS_MAX else time for time in times]
    headers = [[*map(_pair, one.headers)] if one.headers else None for one in records]
    ms = pa.timestamp("ms", tz="UTC")
    return pa.Table.from_arrays(
        [
            pa.repeat(pa.scalar(partition, pa.int32()), len(records)),
            pa.array(offsets, pa.int64()),
            pa.array(inside, ms).cast(schema.field("timestamp").type),
            pa.array(outside, pa.int64()),
            pa.array([one.key for one in records], pa.binary()),
            pa.array(headers, schema.field("headers").type)
            if any(headers)
            else pa.nulls(len(records), schema.field("headers").type),
            pa.array([one.value for one in records], pa.binary()),
        ],
        schema=schema,
    )


def _pair(header: tuple[str, bytes | None]) -> dict[str, Any]:
    return {"key": header[0], "value": header[1]}


def entries_of(
    read: Callable[[list[str]], Any], rest: bytes, about: tuple[int, int], first_entry: int
) -> Iterable[tuple[Entry, int]]:
    """Return the entries of a row group with their digests.

    `read(columns)` returns the table of the row group, `rest` is the entry table, `about` the
    ledger's id and its base offset in the partition.
    """
    import pyarrow.parquet as pq

    ledger_id, base_offset = about
    table = pq.read_table(io.BytesIO(rest), use_threads=False)
    columns = [table.column(name).to_pylist() for name in _entries_schema().names]
    any_rebuilt = any(payload is None for payload in columns[-1])
    rows = _Rows(read(_NEEDED), base_offset) if any_rebuilt else None
    for number, found in enumerate(zip(*columns, strict=True)):
        lac, length, digest, count, *fields, sent, payload = found
        if rows is not None:
            records = rows.next(count, fields[0], sent)
            if payload is None:
                base, epoch, *others = fields
                header = BatchHeader(base, 0, epoch, MAGIC, 0, *others)
                payload = rebuilt_batch(header, records)
        yield Entry(ledger_id, first_entry + number, lac, length, payload), digest


_NEEDED = ["offset", "timestamp", "timestamp_ms", "key", "headers", "value"]


class _Rows:
    """The messages of a row group, taken in their order."""

    def __init__(self, table: Any, base_offset: int) -> None:
        import pyarrow as pa

        self._at = 0
        self._base = base_offset
        self._offsets = table.column("offset").to_pylist()
        times = table.column("timestamp").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
        odd = table.column("timestamp_ms")
        self._times = (odd if times.null_count == len(odd) else times).to_pylist()
        if 0 < times.null_count < len(odd):
            others = odd.to_pylist()
            self._times = [
                other if time is None else time
                for time, other in zip(self._times, others, strict=True)
            ]
        self._keys = table.column("key").to_pylist()
        self._values = table.column("value").to_pylist()
        headers = table.column("headers")
        self._headers: Any = None if headers.null_count == len(headers) else headers.to_pylist()

    def next(self, count: int, base: int, sent: list[int] | None) -> Iterator[Record]:
        """Take the next messages, as records of a batch with this base offset in the ledger."""
        part = slice(self._at, self._at + count)
        self._at += count
        first = self._base + base
        deltas = [offset - first for offset in self._offsets[part]]
        times = self._times[part] if sent is None else sent
        headers = repeat(()) if self._headers is None else map(_pairs, self._headers[part])
        return map(Record, self._keys[part], self._values[part], headers, times, deltas)


def _pairs(headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    return [(one["key"], one["value"]) for one in headers or ()]
