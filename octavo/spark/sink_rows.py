"""Rows of a Spark task, made into record batches by topic and partition. Pure but for the clock.

As Kafka's sink: the option `topic` overrides the column; a column (or option) `partition` goes
before the key, the key picks the partition as Kafka's clients do (murmur2), and rows without a key
fill one partition, another one for each task. Within a partition rows keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from octavo.client.types import TopicName
from octavo.spark.sink_options import SinkOptions
from protocol.codes import OctavoError
from protocol.records import build_batch, partition_for

RECORD_OVERHEAD_BYTES = 16
RECORDS_MAX = 50_000
Row = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int, int]


class BadRow(OctavoError):
    """A row that cannot be a message. Says which column and what it must be."""

    name = "bad-row"


class Target(NamedTuple):
    """Where a batch goes. `topic` is `namespace/topic`."""

    topic: str
    partition: int


class Rows:
    """Rows of one partition, in order. `bytes` is about what they take in a record batch."""

    __slots__ = ("bytes", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.bytes = 0


class RowRouter:
    """Takes Arrow batches, gives record batches. `partitions` tells how many a topic has."""

    def __init__(
        self, options: SinkOptions, partitions: Callable[[str], int], turn: int, now_ms: int
    ) -> None:
        """`turn` spreads rows without a key; `now_ms` is the time of rows without one."""
        self._options = options
        self._partitions = partitions
        self._turn = turn
        self._now_ms = now_ms
        self._lanes: dict[Target, Rows] = {}
        self._names: dict[str, str] = {}

    @property
    def held_bytes(self) -> int:
        """About what the rows take that are still here."""
        return sum(lane.bytes for lane in self._lanes.values())

    def add(self, batch: pa.RecordBatch) -> list[tuple[Target, bytes]]:
        """Take rows; the record batches that are full by now. Raises `BadRow`."""
        count = batch.num_rows
        names = set(batch.schema.names)
        keys: list[bytes | None] = _binary(batch, "key") if "key" in names else [None] * count
        values = _binary(batch, "value")
        headers = _headers(batch) if "headers" in names else [()] * count
        times = _times(batch, self._now_ms) if "timestamp" in names else [self._now_ms] * count
        targets = self._targets(batch, keys, names)
        full = []
        for key, value, header, time_ms, target in zip(
            keys, values, headers, times, targets, strict=True
        ):
            lane = self._lanes.get(target)
            if lane is None:
                lane = self._lanes[target] = Rows()
            size = _size_of(key, value, header)
            # A long row begins a batch of its own, or the two would not fit an entry.
            if lane.rows and lane.bytes + size > self._options.batch_bytes:
                full.append((target, self._built(lane)))
            lane.rows.append((key, value, header, time_ms, 0))
            lane.bytes += size
            if len(lane.rows) >= RECORDS_MAX:
                full.append((target, self._built(lane)))
        return full

    def rest(self) -> list[tuple[Target, bytes]]:
        """What is left."""
        return [(target, self._built(lane)) for target, lane in self._lanes.items() if lane.rows]

    def take(self) -> dict[Target, Rows]:
        """What is left, as rows."""
        taken, self._lanes = self._lanes, {}
        return {target: lane for target, lane in taken.items() if lane.rows}

    def _built(self, lane: Rows) -> bytes:
        rows, lane.rows, lane.bytes = lane.rows, [], 0
        return _built(rows, self._options)

    def _targets(
        self, batch: pa.RecordBatch, keys: list[bytes | None], names: set[str]
    ) -> list[Target]:
        topics = [self._options.topic] * len(keys)
        if self._options.topic is None:
            topics = [self._topic(text) for text in batch.column("topic").to_pylist()]
        chosen = [self._options.partition] * len(keys)
        if "partition" in names and self._options.partition is None:
            chosen = batch.column("partition").to_pylist()
        found = []
        for topic, key, number in zip(topics, keys, chosen, strict=True):
            assert topic is not None
            count = self._partitions(topic)
            if number is None:
                number = self._turn % count if key is None else partition_for(key, count)
            elif not 0 <= number < count:
                raise BadRow(f"topic {topic} has partitions 0 to {count - 1}, not {number}")
            found.append(Target(topic, number))
        return found

    def _topic(self, text: str | None) -> str:
        if text is None:
            raise BadRow("column topic is null in a row, and there is no option topic")
        if text not in self._names:
            try:
                self._names[text] = str(TopicName.of(text))
            except OctavoError as error:
                raise BadRow(f"column topic: {error}") from error
        return self._names[text]


def batches_of(share: Rows, options: SinkOptions) -> Iterator[bytes]:
    """As many record batches as the rows need, cut as a `RowRouter` cuts."""
    some: list[Row] = []
    some_bytes = 0
    for row in share.rows:
        size = _size_of(*row[:3])
        if some and (some_bytes + size > options.batch_bytes or len(some) >= RECORDS_MAX):
            yield _built(some, options)
            some, some_bytes = [], 0
        some.append(row)
        some_bytes += size
    if some:
        yield _built(some, options)


def _built(rows: list[Row], options: SinkOptions) -> bytes:
    return build_batch(rows, compression=options.compression)  # type: ignore[arg-type]


def _size_of(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    if headers:
        size += sum(2 * len(name) + len(text or b"") + 4 for name, text in headers)
    return size


def _binary(batch: pa.RecordBatch, name: str) -> list[bytes | None]:
    column = batch.column(name)
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _times(batch: pa.RecordBatch, now_ms: int) -> list[int]:
    column = batch.column("timestamp").cast(pa.timestamp("ms", tz="UTC"), safe=False)
    times = column.cast(pa.int64()).to_pylist()
    if any(time is not None and time < 0 for time in times):
        raise BadRow("column timestamp is before 1970 in a row")
    return [now_ms if time is None else time for time in times]


def _headers(batch: pa.RecordBatch) -> list[Sequence[tuple[str, bytes | None]]]:
    found: list[Any] = batch.column("headers").to_pylist()
    return [[(one["key"], one["value"]) for one in row] if row else () for row in found]
