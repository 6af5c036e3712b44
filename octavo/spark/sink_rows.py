"""Turn a Spark task's rows into record batches by topic and partition. Pure but for the clock.

Options override columns, as in Kafka's sink, and a partition overrides the key, which chooses by
murmur2. A task's rows without a key all go to the same partition. Rows of a partition keep their
order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from octavo.client.types import TopicName
from octavo.protocol.codes import OctavoError
from octavo.protocol.large import LARGE_HEADER, LargeBody, large_body_of
from octavo.protocol.records import build_batch, partition_for
from octavo.spark.sink_options import SinkOptions

RECORD_OVERHEAD_BYTES = 16
RECORDS_MAX = 50_000
_TIMES = {"timestamp", "timestampMillis"}
KEYS_REMEMBERED_MAX, KEY_BYTES_REMEMBERED_MAX = 65_536, 64
Row = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int, int]


class BadRow(OctavoError):
    """The message names the column and what it must be."""

    name = "bad-row"


class Target(NamedTuple):
    """`topic` is `namespace/topic`."""

    topic: str
    partition: int


class Origin(NamedTuple):
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"the message at offset {self.offset} of {self.topic}/{self.partition}"


class LargeRow(NamedTuple):
    """A row that stands for a large message, whose body is still where the row was read."""

    row: Row
    body: LargeBody
    origin: Origin


class Rows:
    """Rows in order. `bytes` is about their size in a record batch."""

    __slots__ = ("bytes", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.bytes = 0


class RowRouter:
    def __init__(
        self, options: SinkOptions, partitions: Callable[[str], int], turn: int, now_ms: int
    ) -> None:
        """Collect rows; `turn` spreads rows without a key, `now_ms` dates rows without a time."""
        self._options = options
        self._partitions = partitions
        self._turn = turn
        self._now_ms = now_ms
        self._lanes: dict[Target, Rows] = {}
        self._names: dict[str, str] = {}
        self._of_key: dict[bytes | None, int] = {}

    @property
    def held_bytes(self) -> int:
        """Return about the size of the rows that are not in a record batch yet."""
        return sum(lane.bytes for lane in self._lanes.values())

    def add(self, batch: pa.RecordBatch) -> list[tuple[Target, bytes | LargeRow]]:
        """Take rows; return the record batches that are full, and rows whose body is still to be
        copied.

        Before a large message, also returns the partition's batch that is not full. Raises
        `BadRow`.
        """
        full: list[tuple[Target, bytes | LargeRow]] = []
        start = 0
        for index in _large(batch):
            self._add(batch.slice(start, index - start), full)
            ((target, (row,)),) = self._routed(batch.slice(index, 1)).items()
            body = large_body_of(row[2])
            if body is not None and body.pieces and not row[1]:
                lane = self._lanes.get(target)
                if lane is not None and lane.rows:
                    full.append((target, self._built(lane)))
                full.append((target, LargeRow(row, body, _origin(batch, index, body))))
                start = index + 1
            else:
                start = index
        self._add(batch.slice(start), full)
        return full

    def _add(self, batch: pa.RecordBatch, full: list[tuple[Target, bytes | LargeRow]]) -> None:
        for target, some in self._routed(batch).items() if batch.num_rows else ():
            self._fill(target, some, full)

    def _routed(self, batch: pa.RecordBatch) -> Mapping[Target, list[Row]]:
        count = batch.num_rows
        names = set(batch.schema.names)
        keys: list[bytes | None] = _binary(batch, "key") if "key" in names else [None] * count
        values = _binary(batch, "value")
        headers = _headers(batch) if "headers" in names else repeat((), count)
        times = _times(batch, self._now_ms) if names & _TIMES else repeat(self._now_ms, count)
        rows = zip(keys, values, headers, times, repeat(0, count), strict=True)
        topic, chosen = self._options.topic, self._options.partition
        if topic is None or (chosen is None and "partition" in names):
            return self._by_columns(batch, rows, names)
        return self._by_keys(topic, rows, is_plain="key" not in names)

    def _by_keys(
        self, topic: str, rows: Iterable[Row], *, is_plain: bool
    ) -> dict[Target, list[Row]]:
        """Handle the usual case with little work for each row: one topic, keys decide."""
        count = self._partitions(topic)
        chosen = self._options.partition
        if chosen is not None:
            return {self._target(topic, chosen, count): list(rows)}
        turn = self._turn % count
        if is_plain:
            return {Target(topic, turn): list(rows)}
        lists: list[list[Row]] = [[] for _ in range(count)]
        of_key = self._of_key
        for row in rows:
            key = row[0]
            number = of_key.get(key)
            if number is None:
                number = turn if key is None else partition_for(key, count)
                if (
                    len(of_key) < KEYS_REMEMBERED_MAX
                    and len(key or b"") <= KEY_BYTES_REMEMBERED_MAX
                ):
                    of_key[key] = number
            lists[number].append(row)
        return {Target(topic, number): some for number, some in enumerate(lists) if some}

    def _by_columns(
        self, batch: pa.RecordBatch, rows: Iterable[Row], names: set[str]
    ) -> dict[Target, list[Row]]:
        count = batch.num_rows
        topics: Iterable[str] = repeat(self._options.topic or "", count)
        if self._options.topic is None:
            topics = map(self._topic, batch.column("topic").to_pylist())
        chosen: Iterable[int | None] = repeat(self._options.partition, count)
        if "partition" in names and self._options.partition is None:
            chosen = batch.column("partition").to_pylist()
        found: dict[Target, list[Row]] = {}
        for topic, number, row in zip(topics, chosen, rows, strict=True):
            partitions = self._partitions(topic)
            if number is None:
                key = row[0]
                turn = self._turn % partitions
                number = turn if key is None else partition_for(key, partitions)
            found.setdefault(self._target(topic, number, partitions), []).append(row)
        return found

    def _target(self, topic: str, number: int, count: int) -> Target:
        if not 0 <= number < count:
            raise BadRow(f"topic {topic} has partitions 0 to {count - 1}, not {number}")
        return Target(topic, number)

    def _fill(
        self, target: Target, fresh: list[Row], full: list[tuple[Target, bytes | LargeRow]]
    ) -> None:
        """Add rows of a partition; end a batch where the next row would be too much.

        The rows alone decide, not the Arrow batches that they came in. A long row begins a new
        batch: with the rows before it, it might not fit an entry.
        """
        lane = self._lanes.setdefault(target, Rows())
        ends = list(accumulate(map(size_of, fresh)))
        start = 0
        while start < len(fresh):
            before = ends[start - 1] if start else 0
            room = before + self._options.batch_bytes - lane.bytes
            end = min(bisect_right(ends, room, start), start + RECORDS_MAX - len(lane.rows))
            if not lane.rows:
                end = max(end, start + 1)
            lane.rows += fresh[start:end]
            lane.bytes += (ends[end - 1] if end else 0) - before
            if end < len(fresh) or len(lane.rows) >= RECORDS_MAX:
                full.append((target, self._built(lane)))
            start = end

    def rest(self) -> list[tuple[Target, bytes]]:
        return [(target, self._built(lane)) for target, lane in self._lanes.items() if lane.rows]

    def take(self) -> dict[Target, Rows]:
        taken, self._lanes = self._lanes, {}
        return {target: lane for target, lane in taken.items() if lane.rows}

    def _built(self, lane: Rows) -> bytes:
        rows, lane.rows, lane.bytes = lane.rows, [], 0
        return _built(rows, self._options)

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
    """Return record batches, divided as by a `RowRouter`."""
    some: list[Row] = []
    some_bytes = 0
    for row in share.rows:
        size = size_of(row)
        if some and (some_bytes + size > options.batch_bytes or len(some) >= RECORDS_MAX):
            yield _built(some, options)
            some, some_bytes = [], 0
        some.append(row)
        some_bytes += size
    if some:
        yield _built(some, options)


def _built(rows: list[Row], options: SinkOptions) -> bytes:
    return build_batch(rows, compression=options.compression)  # type: ignore[arg-type]


def size_of(row: Row) -> int:
    key, value, headers, _, _ = row
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
    """Return the column timestamp; where it is null, timestampMillis, which may be any number."""
    times: list[int | None] = [None] * batch.num_rows
    if "timestamp" in batch.schema.names:
        column = batch.column("timestamp").cast(pa.timestamp("ms", tz="UTC"), safe=False)
        times = column.cast(pa.int64()).to_pylist()
        if any(time is not None and time < 0 for time in times):
            raise BadRow("column timestamp is before 1970 in a row")
    if "timestampMillis" in batch.schema.names:
        stored = batch.column("timestampMillis").to_pylist()
        times = [raw if time is None else time for time, raw in zip(times, stored, strict=True)]
    return [now_ms if time is None else time for time in times]


def _large(batch: pa.RecordBatch) -> list[int]:
    """Return the indexes of rows with a header of the large messages' name."""
    if "headers" not in batch.schema.names:
        return []
    headers = batch.column("headers")
    names = pc.struct_field(pc.list_flatten(headers), "key")
    if not pc.any(pc.equal(names, LARGE_HEADER)).as_py():
        return []
    rows = pc.filter(pc.list_parent_indices(headers), pc.equal(names, LARGE_HEADER))
    return sorted(set(rows.to_pylist()))


def _origin(batch: pa.RecordBatch, index: int, body: LargeBody) -> Origin:
    found = batch.column("origin")[index].as_py() if "origin" in batch.schema.names else None
    if found is None or None in found.values():
        raise BadRow(
            f"a row is a large message, whose body of {body.size} bytes is not in a column. To "
            "copy it, add a column origin, struct(topic, partition, offset) from the source; or "
            f"leave such rows out: NOT exists(headers, h -> h.key = '{LARGE_HEADER}')"
        )
    return Origin(**found)


def _headers(batch: pa.RecordBatch) -> list[Sequence[tuple[str, bytes | None]]]:
    found: list[Any] = batch.column("headers").to_pylist()
    return [[(one["key"], one["value"]) for one in row] if row else () for row in found]
