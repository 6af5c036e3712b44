"""The columns of a topic in Spark, and the conversion of stored batches to Arrow.

Names and types are as in Spark's Kafka source, so that queries can move over. The compiled codec
of aiokafka decodes a batch's records; only the requested columns are built.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from octavo.broker.types import DEFAULT_NAMESPACE
from octavo.protocol.limits import TIMESTAMP_MS_MAX
from octavo.protocol.windows import all_records
from octavo.spark.batches import StoredBatch
from octavo.spark.options import InvalidOption, SourceOptions

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
PLAIN: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}
HEADERS: dict[str, DataType] = {"headers": _HEADERS}
METADATA: dict[str, DataType] = {
    "ledger": LongType(),
    "entry": LongType(),
    "index": IntegerType(),
    "producer": LongType(),
    "epoch": IntegerType(),
    "sequence": LongType(),
}
"""Where a message is stored, and its producer's sequence; null if it was not idempotent."""
AS_STORED: dict[str, DataType] = {"timestampMillis": LongType()}
"""Columns only by request: the stored time, also if it is outside the calendar."""
EVERY = {**PLAIN, **HEADERS, **METADATA, **AS_STORED}

_ARROW: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "ledger": pa.int64(),
    "entry": pa.int64(),
    "index": pa.int32(),
    "producer": pa.int64(),
    "epoch": pa.int32(),
    "sequence": pa.int64(),
    "timestampMillis": pa.int64(),
}
_MS = pa.timestamp("ms", tz="UTC")
"""The unit of a record's time; Spark wants microseconds."""
_APPEND_TIME = 0x08


def schema_of(options: SourceOptions) -> StructType:
    """Return the columns of a query that gives no schema. Raises `InvalidOption`."""
    if options.columns is not None:
        return _struct(options.columns, "option columns names")
    names = list(PLAIN)
    if options.headers:
        names += HEADERS
    if options.metadata:
        names += METADATA
    return _struct(tuple(names), "")


def _struct(names: tuple[str, ...], what: str) -> StructType:
    unknown = [name for name in names if name not in EVERY]
    if unknown:
        raise InvalidOption(f"{what} {', '.join(unknown)}; the columns are {', '.join(EVERY)}")
    return StructType([StructField(name, EVERY[name]) for name in names])


def checked_schema(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """Return the schema's column names. Raises `InvalidOption` for a wrong name or type."""
    _struct(tuple(schema.names), "the schema names")
    if options.read_from == "broker" and "entry" in schema.names:
        raise InvalidOption(
            "column entry cannot be read with readFrom=broker, which does not know it: leave out "
            "this column"
        )
    for field in schema.fields:
        if field.dataType != EVERY[field.name]:
            raise InvalidOption(
                f"the schema gives column {field.name} the type {field.dataType.simpleString()}; "
                f"it must be {EVERY[field.name].simpleString()}"
            )
    return tuple(schema.names)


_OPTIONS = "octavo.options"
"""The key of a catalog table's options in the metadata of its first column."""


def with_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a catalog table that keep its options.

    Spark passes a table's options to the statement that creates it, and not to the queries of the
    table; to these it passes the columns, with their metadata.
    """
    if not options:
        return columns
    first, *rest = columns.fields
    kept = StructField(first.name, first.dataType, first.nullable, {_OPTIONS: dict(options)})
    return StructType([kept, *rest])


def options_in(columns: StructType) -> dict[str, str]:
    """Return the options that the columns of a catalog table keep."""
    for field in columns.fields:
        if _OPTIONS in (field.metadata or {}):
            return dict(field.metadata[_OPTIONS])
    return {}


class ArrowBuilder:
    """Collects messages for an Arrow batch."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._schema = pa.schema([(name, _ARROW[name]) for name in names])
        self._lists: dict[str, list[Any]] = {name: [] for name in names}
        self.rows = 0
        self.bytes = 0

    def add(self, batch: StoredBatch, start: int, end: int) -> None:
        """Add the batch's messages with offsets from `start` to before `end`."""
        if batch.header.is_dense:
            first = max(0, start - batch.base)
            last = min(batch.header.record_count, end - batch.base)
            if first >= last:
                return
            records = all_records(batch.data)[first:last]
        else:
            offsets, every = batch.numbered()
            first, last = bisect_left(offsets, start), bisect_left(offsets, end)
            if first >= last:
                return
            records = every[first:last]
        for name, column in self._lists.items():
            column.extend(_FILL[name](batch, records, first))
        self.rows += last - first
        self.bytes += len(batch.data) * (last - first) // batch.header.record_count

    def take(self) -> pa.RecordBatch:
        """Return the collected messages and empty the builder."""
        arrays = []
        for name, column in self._lists.items():
            array = pa.array(column, _MS if name == "timestamp" else _ARROW[name])
            arrays.append(array.cast(_ARROW[name]))
            column.clear()
        self.rows = self.bytes = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def shown(topic: str) -> str:
    """Return the topic's name without the default namespace."""
    return topic.removeprefix(f"{DEFAULT_NAMESPACE}/")


def _headers(headers: list[tuple[str, bytes | None]]) -> list[dict[str, Any]] | None:
    """Return null for no headers, as Spark's Kafka source does."""
    return [{"key": key, "value": value} for key, value in headers] or None


def _times(records: list[Any]) -> list[int | None]:
    """Return the times; null for a time outside the calendar (decision 63)."""
    times: list[int] = [one.timestamp for one in records]
    return [time if 0 <= time <= TIMESTAMP_MS_MAX else None for time in times]


def _sequences(batch: StoredBatch, first: int, count: int) -> list[int | None]:
    sequence = batch.header.base_sequence
    if batch.header.producer_id < 0 or sequence < 0:
        return [None] * count
    return [(sequence + first + number) % 2**31 for number in range(count)]


_FILL: dict[str, Callable[[StoredBatch, list[Any], int], Iterable[Any]]] = {
    "key": lambda _, records, __: [one.key for one in records],
    "value": lambda _, records, __: [one.value for one in records],
    "topic": lambda batch, records, __: [shown(batch.topic)] * len(records),
    "partition": lambda batch, records, __: [batch.partition] * len(records),
    "offset": lambda batch, records, first: batch.offsets(records, first),
    "timestamp": lambda _, records, __: _times(records),
    "timestampType": lambda batch, records, __: (
        [int(bool(batch.header.attributes & _APPEND_TIME))] * len(records)
    ),
    "headers": lambda _, records, __: [_headers(one.headers) for one in records],
    "ledger": lambda batch, records, __: [batch.ledger_id] * len(records),
    "entry": lambda batch, records, __: [batch.entry_id] * len(records),
    "index": lambda _, records, first: range(first, first + len(records)),
    "producer": lambda batch, records, __: (
        [batch.header.producer_id if batch.header.producer_id >= 0 else None] * len(records)
    ),
    "epoch": lambda batch, records, __: (
        [batch.header.producer_epoch if batch.header.producer_id >= 0 else None] * len(records)
    ),
    "sequence": lambda batch, records, first: _sequences(batch, first, len(records)),
    "timestampMillis": lambda _, records, __: [one.timestamp for one in records],
}
assert list(_FILL) == list(_ARROW) == list(EVERY)
