"""The job `compact`: keep the newest message of each key in a view of the topic.

    1. the partition's record: begun (run)          so that only one of two runs can publish
    2. first pass: key and offset of each message   Spark finds the newest of each key
    3. second pass: copy these into new ledgers     each message keeps its offset
    4. the partition's record: published            horizon and ledgers, in one compare-and-set
    5. after a grace period, ledgers of replaced views are removed from the record and deleted

A run reads the previous view and all messages after its horizon. If it dies, the previous view
stays, the next run starts from the beginning, and `gc` deletes the unnamed ledgers.
"""

from __future__ import annotations

import asyncio
import uuid as uuids
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from octavo.clock import wall_clock_ms
from octavo.ledger.errors import LedgerNotFound
from octavo.metadata.compactions import (
    CompactionLost,
    begun,
    collected,
    published,
    retired_before,
)
from octavo.metadata.offloads import change_partition
from octavo.metadata.store import RecordNotFound
from octavo.metadata.topics import CompactedLedger
from octavo.pipeline.compact_rules import (
    RETIRED_MAX,
    Chunk,
    Chunks,
    CompactPolicy,
    chunks_of,
    horizon_of,
    is_due,
    lost_before,
)
from octavo.pipeline.compact_tasks import (
    KEYS_SQL,
    MADE,
    MADE_SQL,
    Made,
    Place,
    Work,
    copied,
    keys_of,
)
from octavo.pipeline.interrupt import told
from octavo.pipeline.outcome import Finding, Outcome
from octavo.pipeline.runner import Run
from octavo.spark.cluster import Cluster, connected
from octavo.spark.options import Selection, source_options
from octavo.spark.planning import with_compacted
from octavo.spark.reading import Split
from octavo.spark.splits import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Name = tuple[str, str, int]


@dataclass(frozen=True)
class CompactOptions:
    """`bytes_per_s` limits what all tasks read together."""

    selection: Selection
    policy: CompactPolicy = field(default_factory=CompactPolicy)
    bytes_per_s: float | None = None
    dry_run: bool = False


def compact(run: Run, options: CompactOptions) -> Outcome:
    return _Compact(run, options).carry_out()


class _Compact:
    def __init__(self, run: Run, options: CompactOptions) -> None:
        self.run = run
        self.options = options
        self.policy = options.policy
        self.id = uuids.uuid4().hex
        self.done: Counter[str] = Counter()
        self.outcome = Outcome("compact")

    def carry_out(self) -> Outcome:
        topics = asyncio.run(self._topics())
        with told(self.outcome, self._sum_up):
            for number, (topic, partitions) in enumerate(sorted(topics.items()), 1):
                views = asyncio.run(self._begin(topic, partitions))
                if views:
                    self._topic(topic, views)
                if not self.options.dry_run:
                    asyncio.run(self._collect(topic, partitions))
                self.run.say(f"{number} of {len(topics)} topics: {topic}")
        return self.outcome

    def _sum_up(self) -> None:
        self.outcome.summary = {
            "partitions_compacted": self.done["compacted"],
            "partitions_up_to_date": self.done["up to date"],
            "messages_new": self.done["new"],
            "messages_kept": self.done["kept"],
            "tombstones_kept": self.done["tombstones"],
            "ledgers": self.done["ledgers"],
            "bytes": self.done["bytes"],
            "ledgers_deleted": self.done["deleted"],
            "dry_run": self.options.dry_run,
        }

    async def _topics(self) -> dict[str, list[int]]:
        async with connected(self.run.service) as cluster:
            return await cluster.partitions(self.options.selection)

    async def _begin(self, topic: str, partitions: list[int]) -> list[View]:
        views = []
        async with connected(self.run.service) as cluster:
            for number in partitions:
                record = await cluster.record(topic, number)
                view = with_compacted(await cluster.view_of(topic, number, record), record)
                if not is_due(view, self.policy, wall_clock_ms()):
                    self.done["up to date"] += 1
                    continue
                if view.compacted is not None and len(view.compacted.retired) > RETIRED_MAX:
                    self.outcome.found([_full(topic, number)])
                    continue
                if not self.options.dry_run:
                    # Take the view from the record as `begun` has written it: from here on, no
                    # other run can publish.
                    record = await change_partition(
                        cluster.topics,
                        _name(topic, number),
                        lambda record: begun(record, self.id, wall_clock_ms()),
                    )
                    view = with_compacted(await cluster.view_of(topic, number, record), record)
                views.append(view)
                self.done["new"] += view.end - max(horizon_of(view), view.earliest)
                if (lost := lost_before(view)) is not None:
                    what = f"offsets {lost[0]} to {lost[1]} were trimmed before they were compacted"
                    self.outcome.found([Finding("trimmed-before", f"{topic}/{number}", what)])
        return views

    def _topic(self, topic: str, views: list[View]) -> None:
        chunks = [
            chunk
            for place, view in enumerate(views)
            for chunk in chunks_of(place, view, self.policy)
        ]
        made: list[Made] = []
        if chunks:
            work = asyncio.run(self._work(topic, views, chunks))
            newest = self._newest(work)
            if self.options.dry_run:
                self.done["kept"] += newest.count()
                return
            made = self._copied(work, newest, chunks)
        if not self.options.dry_run:
            asyncio.run(self._publish(topic, views, chunks, made))

    async def _work(self, topic: str, views: list[View], chunks: list[Chunk]) -> Work:
        async with connected(self.run.service) as cluster:
            settings = await cluster.settings(topic)
            if settings is None:
                raise RecordNotFound(f"topic {topic} was deleted")
            splits = []
            for chunk in chunks:
                records = await cluster.records_for(part.ledger_id for part in chunk.parts)
                splits.append((chunk.place, Split(chunk.parts, records)))
        places = (Place(topic, one.partition, horizon_of(one), settings) for one in views)
        rate = self.options.bytes_per_s
        if rate is not None:
            rate /= self._tasks_at_once()
        given = {"service": self.run.service, "subscribe": topic}
        return Work(
            self.id, source_options(given, streaming=False), tuple(places), tuple(splits),
            self.policy, wall_clock_ms(), rate,
        )  # fmt: skip

    def _tasks_at_once(self) -> int:
        found = self.run.spark.sparkContext.defaultParallelism
        assert isinstance(found, int)
        return found

    def _newest(self, work: Work) -> DataFrame:
        from pyspark.sql import functions as f

        def keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    yield from keys_of(work, number)

        count = len(work.splits)
        numbers = self.run.spark.range(0, count, 1, count)
        rows: DataFrame = _arrow(numbers).mapInArrow(keys, KEYS_SQL)
        if not work.policy.keyless:
            rows = rows.where("key is not null")
        # Each message without a key is its own group: its offset keeps it apart.
        alone = f.when(f.col("key").isNull(), f.col("offset")).alias("alone")
        last = f.max(f.struct("offset", "gone")).alias("last")
        newest = rows.groupBy("place", "key", alone).agg(last)
        return newest.where("not last.gone").select("place", f.col("last.offset").alias("offset"))

    def _copied(self, work: Work, newest: DataFrame, chunks: list[Chunk]) -> list[Made]:
        found = Chunks(chunks)

        def chunk_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                places = batch.column("place").to_pylist()
                offsets = batch.column("offset")
                numbers = map(found.number_of, places, offsets.to_pylist())
                yield pa.RecordBatch.from_arrays(
                    [pa.array(numbers, pa.int32()), offsets], names=["chunk", "offset"]
                )

        def copy(rows: pa.Table) -> pa.Table:
            number = rows.column("chunk")[0].as_py()
            made = copied(work, number, rows.column("offset").to_pylist())
            return pa.Table.from_pylist([made._asdict()], MADE)

        placed = _arrow(newest).mapInArrow(chunk_of, "chunk INT, offset LONG")
        # Name the number of partitions: Spark would merge them by the tiny size of the offsets.
        grouped = placed.repartition(len(chunks), "chunk").groupBy("chunk")
        rows = _arrow(grouped).applyInArrow(copy, MADE_SQL).collect()
        return [Made(*row) for row in rows]

    async def _publish(
        self, topic: str, views: list[View], chunks: list[Chunk], made: Iterable[Made]
    ) -> None:
        ledgers: dict[int, list[CompactedLedger]] = {}
        for one in sorted(made):
            ledgers.setdefault(chunks[one.chunk].place, []).append(CompactedLedger(*one[1:]))
        async with connected(self.run.service) as cluster:
            for place, view in enumerate(views):
                mine = ledgers.get(place, [])
                try:
                    await self._publish_one(cluster, topic, view, mine)
                except (CompactionLost, RecordNotFound) as error:
                    # `gc` deletes the new ledgers: no record will ever name them.
                    self.run.say(f"not compacted: {topic}/{view.partition}: {error}")
                    continue
                self.done += Counter(
                    {
                        "compacted": 1,
                        "ledgers": len(mine),
                        "kept": sum(one.count for one in mine),
                        "tombstones": sum(one.tombstones for one in mine),
                        "bytes": sum(one.bytes for one in mine),
                    }
                )

    async def _publish_one(
        self, cluster: Cluster, topic: str, view: View, ledgers: list[CompactedLedger]
    ) -> None:
        now_ms = wall_clock_ms()
        await change_partition(
            cluster.topics,
            _name(topic, view.partition),
            lambda record: published(record, self.id, view.end, ledgers, now_ms),
        )

    async def _collect(self, topic: str, partitions: list[int]) -> None:
        until_ms = wall_clock_ms() - self.policy.grace_ms
        async with connected(self.run.service) as cluster:
            for number in partitions:
                found = await collect_retired(cluster, _name(topic, number), until_ms)
                self.done["deleted"] += len(found)


def _full(topic: str, partition: int) -> Finding:
    what = f"more than {RETIRED_MAX:,} ledgers of replaced views are kept: use a shorter --grace-s"
    return Finding("record-full", f"{topic}/{partition}", what)


def _arrow(frame: Any) -> Any:
    """Hide a frame from type checks: PySpark's hints do not allow functions that it accepts."""
    return frame


def _name(topic: str, partition: int) -> Name:
    namespace, _, name = topic.partition("/")
    return namespace, name, partition


async def collect_retired(cluster: Cluster, name: Name, until_ms: int) -> list[int]:
    try:
        record, _ = await cluster.topics.read_partition(*name)
        going = retired_before(record, until_ms)
        if not going:
            return []
        await change_partition(cluster.topics, name, lambda record: collected(record, going))
    except RecordNotFound:
        return []
    for ledger_id in going:
        await delete_ledger(cluster, ledger_id)
    return going


async def delete_ledger(cluster: Cluster, ledger_id: int) -> None:
    try:
        await cluster.ledgers.delete(ledger_id)
    except LedgerNotFound:
        return
