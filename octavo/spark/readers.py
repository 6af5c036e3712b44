"""The readers of the Spark source, for batches and for streams.

Spark pickles these objects between its processes, so they hold only values, and connect where they
run. planning.py decides what is read, reading.py reads it. docs/spark.md explains Spark's own rules
that matter here: offsets are compared as text, no filter may be taken over, the last commit may
never come.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from octavo.loop_thread import LoopThread
from octavo.spark.options import SourceOptions
from octavo.spark.planning import (
    compacted_at_once,
    planned,
    range_of,
    refuse_amid_compacted,
    resolved,
    views_of,
    within,
)
from octavo.spark.reading import Split, SplitReader
from octavo.spark.splits import (
    Incarnations,
    Minimum,
    Offsets,
    View,
    admitted,
    begun_anew,
    bytes_per_row_of,
    covers,
    ends_of,
    from_json,
    incarnations_in,
    incarnations_of,
    later,
    never_backwards,
    to_json,
)
from octavo.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    import pyarrow as pa


class OctavoReader(DataSourceReader):
    """Reads a batch query, planned once on the driver."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._splits = SplitReader(options, names)

    def partitions(self) -> list[InputPartition]:
        """Return the splits; at least one, which may be empty."""
        thread = LoopThread("octavo-spark")
        try:
            return list(thread.call(self._plan()))
        finally:
            thread.stop()

    async def _plan(self) -> list[Split]:
        from octavo.spark.cluster import connected  # slow to import, and tasks do not plan

        options = self._options
        async with connected(options.service, options.read_from) as cluster:
            wanted = await cluster.partitions(options.selection)
            views = await views_of(cluster, wanted, compacted=options.compacted)
            start, end = await range_of(cluster, views, options)
            refuse_amid_compacted(views, end)
            of = options.starting.incarnations, options.ending.incarnations
            return await planned(cluster, options, views, start, end, *of)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a split in a task."""
        assert isinstance(partition, Split)
        return self._splits.read(partition)


class _StreamReader(DataSourceStreamReader):
    """Reads a stream. Lives on the driver with its query; a pickled copy reads in each task."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._splits = SplitReader(options, names)
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    @property
    def _at_driver(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query starts; the same again if asked before it has begun."""
        return self._at_driver.first_offsets()

    def _until(
        self, views: list[View], start: Mapping[str, Any]
    ) -> tuple[Offsets, Offsets, Incarnations]:
        """Return from where to where the query can read after `start`, and of which topics."""
        fail = self._options.fail_on_data_loss
        begin = begun_anew(views, from_json(start), incarnations_in(start), fail=fail)
        # A bookie may report an earlier end than before: never end before the beginning.
        end = {name: max(to, begin.get(name, 0)) for name, to in ends_of(views).items()}
        # A topic that is just deleted has no incarnation now: its offsets keep the old name.
        return begin, end, incarnations_in(start) | incarnations_of(views)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the splits of a micro-batch: the same rows whenever the range is the same."""
        return list(self._at_driver.splits(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a split in a task."""
        assert isinstance(partition, Split)
        return self._splits.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark may never send the last commit, so nothing depends on it."""

    def stop(self) -> None:
        """Close the connections."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None


class UnlimitedStreamReader(_StreamReader):
    """Reads a stream on Spark 4.0 and 4.1, which pass no limits to a source.

    They do not say either how far the query has come. Within a process this object remembers it.
    After a restart it does not know, so a micro-batch may be planned that ends before its start:
    that is refused, because the batch after it would repeat rows.
    """

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        super().__init__(options, names)
        self._reached: dict[str, Any] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query starts, and remember it."""
        self._reached = super().initialOffset()
        return self._reached

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Return where the topics end now: a micro-batch reads everything that is there."""
        _, end, of = self._until(self._at_driver.views(), self._reached)
        self._reached = to_json(end, of)
        return self._reached

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the splits of a micro-batch. Raises `EndsBeforeStart`."""
        never_backwards(start, end)
        found = super().partitions(start, end)
        self._reached = later(self._reached, end)
        return found


class OctavoStreamReader(_StreamReader, SupportsTriggerAvailableNow):
    """Reads a stream, with the limits of its options."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        super().__init__(options, names)
        self._frozen: Offsets | None = None
        self._minimum = Minimum(options.rows_per_trigger_min, options.trigger_delay_ms_max)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the query's options, which Spark passes to `latestOffset`."""
        options = self._options
        if options.rows_per_trigger_max is not None:
            return ReadMaxRows(options.rows_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.rows_per_trigger_min is not None:
            return ReadMinRows(options.rows_per_trigger_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next micro-batch reads. All limits of the query apply together, even
        if `limit` does not name them; with `ReadAllAvailable`, none applies."""
        views = self._at_driver.views()
        begin, end, of = self._until(views, start)
        if self._frozen is not None:
            end = {
                name: max(min(to, self._frozen.get(name, 0)), begin.get(name, 0))
                for name, to in end.items()
            }
        if isinstance(limit, ReadAllAvailable):
            return to_json(end, of)
        first = {name: begin.get(name, 0) for name in end}
        # `_frozen` (`Trigger.AvailableNow`): read what is there, never wait for a minimum.
        if self._frozen is None and not self._minimum.is_met(
            sum(end[name] - first[name] for name in end), time.monotonic() * 1000
        ):
            return start
        reached = admitted(
            first,
            end,
            {view.name: bytes_per_row_of(view) for view in views},
            rows_max=self._options.rows_per_trigger_max,
            bytes_max=self._options.bytes_per_trigger_max,
        )
        # Read a compacted view as a whole: it may be replaced before the next batch.
        least = compacted_at_once(begin, end, views)
        return to_json({name: max(to, least[name]) for name, to in reached.items()}, of)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where the topics end now; the query's progress reports it as its lag."""
        views = self._at_driver.views()
        return to_json(ends_of(views), incarnations_of(views))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is there now, then end."""
        self._frozen = ends_of(self._at_driver.views())


class _Driver:
    """A stream's connection to the cluster, on its own event loop."""

    def __init__(self, options: SourceOptions) -> None:
        from octavo.spark.cluster import connected

        self._options = options
        self._thread = LoopThread("octavo-spark")
        self._context = connected(options.service, options.read_from)
        self._seen: list[View] | None = None
        try:
            self._cluster = self._thread.call(self._context.__aenter__())
        except BaseException:
            self._thread.stop()
            raise

    def close(self) -> None:
        self._thread.call(self._context.__aexit__(None, None, None))
        self._thread.stop()

    def views(self) -> list[View]:
        """Return the partitions as they are now; the next micro-batch is planned with them."""
        self._seen = None  # a failed look leaves no older views to plan with
        self._seen = self._thread.call(self._views())
        return self._seen

    async def _views(self) -> list[View]:
        wanted = await self._cluster.partitions(self._options.selection)
        return await views_of(self._cluster, wanted, compacted=self._options.compacted)

    def first_offsets(self) -> dict[str, Any]:
        return self._thread.call(self._first_offsets())

    async def _first_offsets(self) -> dict[str, Any]:
        options = self._options
        views = await self._views()
        start = await resolved(self._cluster, views, options.starting, options.latest_if_late)
        return to_json(within(views, start, options), incarnations_of(views))

    def splits(self, since: dict[str, Any], until: dict[str, Any]) -> list[Split]:
        return self._thread.call(self._plan(since, until))

    async def _plan(self, since: dict[str, Any], until: dict[str, Any]) -> list[Split]:
        start, end = from_json(since), from_json(until)
        wanted: dict[str, list[int]] = {}
        for topic, partition in sorted(end):
            wanted.setdefault(topic, []).append(partition)
        views, self._seen = self._seen, None
        if views is None or not covers(views, end):
            views = await views_of(self._cluster, wanted, compacted=self._options.compacted)
        of = incarnations_in(since), incarnations_in(until)
        return await planned(self._cluster, self._options, views, start, end, *of)
