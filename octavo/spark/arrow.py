"""The conversion of stored batches to Arrow. The compiled codec of aiokafka decodes a batch's
records; only the requested columns are built."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from octavo.broker.types import DEFAULT_NAMESPACE
from octavo.protocol.limits import TIMESTAMP_MS_MAX
from octavo.protocol.windows import all_records
from octavo.spark.batches import StoredBatch
from octavo.spark.columns import EVERY

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
