"""The source that Spark knows as `octavo`: batch and streaming reads of topics.

Spark pickles these objects to and fro: they hold values only, and connect where they work. What is
read is decided in splits.py, how in reading.py; the rules of Spark's own that are obeyed here
(offsets compare as text; no filter may be taken over; the last commit may never come) are in
docs/spark.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from octavo.loop_thread import LoopThread
from octavo.spark.cluster import Cluster, connected
from octavo.spark.columns import checked_schema, schema_of
from octavo.spark.options import (
    EARLIEST,
    LATEST,
    Bound,
    InvalidOption,
    SourceOptions,
    source_options,
)
from octavo.spark.reading import Split, SplitReader
from octavo.spark.splits import (
    Offsets,
    View,
    admitted,
    bytes_per_row,
    checked_range,
    pieces,
    shared_out,
)


class OctavoDataSource(DataSource):
    """`spark.read.format("octavo")` and `spark.readStream.format("octavo")`."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "octavo"

    def schema(self) -> StructType:
        """The columns, unless the query brings a projection of its own."""
        return schema_of(source_options(_without_ends(self.options), streaming=False))

    def reader(self, schema: StructType) -> OctavoReader:
        """For a batch query."""
        options = source_options(self.options, streaming=False)
        return OctavoReader(options, checked_schema(schema))

    def streamReader(self, schema: StructType) -> OctavoStreamReader:  # noqa: N802
        """For a stream."""
        options = source_options(self.options, streaming=True)
        return OctavoStreamReader(options, checked_schema(schema))


def _without_ends(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if not name.lower().startswith("ending")}


class OctavoReader(DataSourceReader):
    """One batch query: planned once, on the driver."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._splits = SplitReader(
            options.service, names, fail_on_data_loss=options.fail_on_data_loss
        )

    def partitions(self) -> list[InputPartition]:
        """The splits; at least one, which may be empty."""
        thread = LoopThread("octavo-spark")
        try:
            return list(thread.call(self._plan()))
        finally:
            thread.stop()

    async def _plan(self) -> list[Split]:
        options = self._options
        async with connected(options.service) as cluster:
            views = await views_of(cluster, await cluster.partitions(options.selection))
            start = await resolved(cluster, views, options.starting, options.latest_if_late)
            end = await resolved(cluster, views, options.ending, late_is_latest=True)
            return await planned(cluster, options, views, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        assert isinstance(partition, Split)
        return self._splits.read(partition)


class OctavoStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: lives on the driver as long as its query; a pickled twin reads in each task."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._splits = SplitReader(
            options.service, names, fail_on_data_loss=options.fail_on_data_loss
        )
        self._driver: _Driver | None = None
        self._frozen: Offsets | None = None
        self._waiting_since_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    @property
    def _at_driver(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins; the same again when asked again before it has begun."""
        return to_json(self._at_driver.first_offsets())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """By the query's options; Spark hands it to `latestOffset`."""
        options = self._options
        if options.rows_per_trigger_max is not None:
            return ReadMaxRows(options.rows_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next micro-batch reads. Both bounds of the query hold together."""
        begin = from_json(start)
        views = self._at_driver.views()
        end = {
            topic: {view.partition: view.end for view in views if view.topic == topic}
            for topic in sorted({view.topic for view in views})
        }
        if self._frozen is not None:
            end = {
                topic: {
                    n: min(offset, self._frozen.get(topic, {}).get(n, 0))
                    for n, offset in by.items()
                }
                for topic, by in end.items()
            }
        if isinstance(limit, ReadAllAvailable):
            return to_json(_never_back(begin, end))
        return to_json(self._admit(begin, _never_back(begin, end), views))

    def _admit(self, begin: Offsets, end: Offsets, views: list[View]) -> Offsets:
        options = self._options
        first = {
            (view.topic, view.partition): begin.get(view.topic, {}).get(view.partition, 0)
            for view in views
        }
        last = {(v.topic, v.partition): end[v.topic][v.partition] for v in views}
        rows = sum(max(0, last[key] - first[key]) for key in last)
        if options.rows_per_trigger_min is not None and rows < options.rows_per_trigger_min:
            now = time.monotonic()
            self._waiting_since_s = self._waiting_since_s or now
            if (now - self._waiting_since_s) * 1000 < options.trigger_delay_ms_max:
                return begin
        self._waiting_since_s = None
        mean = {(v.topic, v.partition): _mean(v) for v in views}
        reached = admitted(
            first,
            last,
            mean,
            rows_max=options.rows_per_trigger_max,
            bytes_max=options.bytes_per_trigger_max,
        )
        found: Offsets = {}
        for (topic, partition), offset in reached.items():
            found.setdefault(topic, {})[partition] = offset
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the topics end now: what a query's progress calls its lag."""
        return to_json(ends_of(self._at_driver.views()))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is there now, then end."""
        self._frozen = ends_of(self._at_driver.views())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits of one micro-batch: the same rows whenever the same range is asked for."""
        begin, until = from_json(start), from_json(end)
        return list(self._at_driver.splits(begin, until))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        assert isinstance(partition, Split)
        return self._splits.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing depends on it: Spark may never send the last one."""

    def stop(self) -> None:
        """Let go of connections."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None


class _Driver:
    """A stream's connection to the cluster, on a loop of its own."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._thread = LoopThread("octavo-spark")
        self._context = connected(options.service)
        try:
            self._cluster = self._thread.call(self._context.__aenter__())
        except BaseException:
            self._thread.stop()
            raise

    def close(self) -> None:
        self._thread.call(self._context.__aexit__(None, None, None))
        self._thread.stop()

    def views(self) -> list[View]:
        return self._thread.call(self._views())

    async def _views(self) -> list[View]:
        return await views_of(
            self._cluster, await self._cluster.partitions(self._options.selection)
        )

    def first_offsets(self) -> Offsets:
        return self._thread.call(self._first_offsets())

    async def _first_offsets(self) -> Offsets:
        options = self._options
        views = await self._views()
        return await resolved(self._cluster, views, options.starting, options.latest_if_late)

    def splits(self, start: Offsets, end: Offsets) -> list[Split]:
        return self._thread.call(self._plan(start, end))

    async def _plan(self, start: Offsets, end: Offsets) -> list[Split]:
        views = await views_of(self._cluster, {t: sorted(by) for t, by in end.items()})
        first = {
            view.topic: {
                one.partition: start.get(one.topic, {}).get(one.partition, 0)
                for one in views
                if one.topic == view.topic
            }
            for view in views
        }
        return await planned(self._cluster, self._options, views, first, end)


# ---------------------------------------------------------------------- what both have in common


async def views_of(cluster: Cluster, wanted: Mapping[str, list[int]]) -> list[View]:
    """All these partitions as they are now."""
    return [
        await cluster.view(topic, partition)
        for topic, partitions in sorted(wanted.items())
        for partition in partitions
    ]


def ends_of(views: list[View]) -> Offsets:
    """Where each ends."""
    found: Offsets = {}
    for view in views:
        found.setdefault(view.topic, {})[view.partition] = view.end
    return found


async def resolved(
    cluster: Cluster, views: list[View], bound: Bound, late_is_latest: bool
) -> Offsets:
    """A bound as an offset for each partition. Raises `InvalidOption`."""
    _refuse_strangers(views, bound)
    found: Offsets = {}
    for view in views:
        time_ms = bound.time_ms
        if time_ms is None:
            time_ms = bound.times_ms.get(view.topic, {}).get(view.partition)
        if time_ms is not None:
            offset = await cluster.offset_at(view, time_ms)
            if offset is None and not late_is_latest:
                raise InvalidOption(
                    f"topic {view.topic} partition {view.partition} has no message as new as "
                    f"{time_ms} ms; startingOffsetsByTimestampStrategy=latest begins at its end"
                )
            offset = view.end if offset is None else offset
        else:
            offset = bound.offsets.get(view.topic, {}).get(view.partition, bound.offset)
            offset = {EARLIEST: view.earliest, LATEST: view.end, None: view.end}.get(offset, offset)
        assert offset is not None
        found.setdefault(view.topic, {})[view.partition] = offset
    return found


def _refuse_strangers(views: list[View], bound: Bound) -> None:
    known = {(view.topic, view.partition) for view in views}
    for by_topic in (bound.offsets, bound.times_ms):
        for topic, by in by_topic.items():
            for partition in by:
                if (topic, partition) not in known:
                    raise InvalidOption(
                        f"an offset is given for topic {topic} partition {partition}, "
                        "which this query does not read"
                    )


async def planned(
    cluster: Cluster, options: SourceOptions, views: list[View], start: Offsets, end: Offsets
) -> list[Split]:
    """The splits of a range, with the records that reading them takes. Raises `DataLost`."""
    wanted = []
    row_bytes: dict[int, float] = {}
    for view in views:
        first, last = checked_range(
            view,
            start[view.topic][view.partition],
            end[view.topic][view.partition],
            fail=options.fail_on_data_loss,
        )
        wanted += pieces(view, first, last)
        row_bytes.update(bytes_per_row(view))
    shared = shared_out(
        wanted,
        row_bytes,
        split_bytes_max=options.split_bytes_max,
        rows_max=options.rows_per_split_max,
        splits_min=options.splits_min,
    )
    splits = []
    for parts in shared or [[]]:
        records = await cluster.records_for({part.ledger_id: None for part in parts})
        splits.append(Split(tuple(parts), records))
    return splits


def _mean(view: View) -> float:
    by_ledger = bytes_per_row(view)
    rows = view.end - view.earliest
    total = sum((span.end - span.base) * by_ledger[span.ledger_id] for span in view.spans)
    return total / rows if rows else 1.0


def _never_back(begin: Offsets, end: Offsets) -> Offsets:
    """A micro-batch never ends before it begins, whatever a bookie has told meanwhile."""
    return {
        topic: {n: max(offset, begin.get(topic, {}).get(n, 0)) for n, offset in by.items()}
        for topic, by in end.items()
    }


def to_json(offsets: Offsets) -> dict[str, Any]:
    """As Spark keeps them: Kafka's shape, and always in the same order, for it compares text."""
    return {
        topic: {str(n): offsets[topic][n] for n in sorted(offsets[topic])}
        for topic in sorted(offsets)
    }


def from_json(found: Mapping[str, Any] | str) -> Offsets:
    """What `to_json` made."""
    by_topic = json.loads(found) if isinstance(found, str) else found
    return {topic: {int(n): offset for n, offset in by.items()} for topic, by in by_topic.items()}
