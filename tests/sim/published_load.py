"""Batches of Spark's sink that are published (`commit=producer`).

Drivers die during a publish, run a batch again in another order, or at the same time as a second
driver. Some come again with other rows, which must be refused. Options come from a separate stream,
so other seeds stay as they were.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from octavo.broker.types import PartitionName
from octavo.spark import commit as driver
from octavo.spark import sink_producer as producing
from octavo.spark.sink_options import SinkOptions, sink_options
from octavo.spark.sink_rows import Rows, Target, size_of
from tests.sim.published_audit import PublishedAudit, PublishedBatch
from tests.sim.tools import SERVICE
from tests.sim.topic_client import EXPECTED, TopicClient

if TYPE_CHECKING:
    from tests.sim.topic_load import TopicLoad

_SHARE = 0.35
_PAUSE_S = 0.05
_OPTIONS: SinkOptions = sink_options(
    {"service": "http://cluster", "topic": "t", "commit": "producer"}, streaming=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedOptions:
    queries: int = 0
    drivers: int = 1
    """Drivers of each checkpoint. Two are a mistake that must do no harm."""
    tasks: int = 1
    death_p: float = 0.0
    """How often a driver dies while it publishes."""
    repeat_p: float = 0.0
    """How often a committed batch is run again."""
    other_p: float = 0.0
    """How often a begun batch is run again with other rows."""
    timeout_ms: int = 1_000


def draw(rng: random.Random) -> PublishedOptions:
    if rng.random() >= _SHARE:
        return PublishedOptions()
    return PublishedOptions(
        queries=rng.choices((1, 2), (3, 1))[0],
        drivers=rng.choices((1, 2), (2, 1))[0],
        tasks=rng.choice((1, 3)),
        death_p=rng.choice((0.0, 0.2, 0.5)),
        repeat_p=rng.choice((0.1, 0.4)),
        other_p=rng.choice((0.0, 0.3)),
        timeout_ms=rng.choice((200, 1_000, 3_000)),
    )


class PublishedLoad:
    def __init__(self, load: TopicLoad, options: PublishedOptions, audit: PublishedAudit) -> None:
        self.load = load
        self.options = options
        self.audit = audit
        self._batches: dict[str, PublishedBatch] = {}
        """Checkpoint → its next batch, once it is planned."""

    def clients(self) -> list[TopicClient]:
        return [
            TopicClient(self.load, f"u{query}.{number}", partial(self._drive, f"u{query}"))
            for query in range(1, self.options.queries + 1)
            for number in range(1, self.options.drivers + 1)
        ]

    async def finish(self, client: TopicClient) -> None:
        for batch in list(self._batches.values()):
            while not batch.is_done:
                await self._run(client, batch)
                await client.pause(_PAUSE_S)

    # ------------------------------------------------------------------ a driver

    async def _drive(self, query: str, client: TopicClient) -> None:
        while not self.load.is_full:
            batch = self._next(query, client)
            rng = client.rng
            if self.audit.is_begun(batch) and rng.random() < self.options.other_p:
                await self._run_with_other_rows(client, batch)
            await self._run(client, batch)
            while batch.is_done and rng.random() < self.options.repeat_p:
                self._probe("repeated")
                await self._run(client, batch)
            await client.pause(self.load.options.pause_s)

    def _next(self, query: str, client: TopicClient) -> PublishedBatch:
        last = self._batches.get(query)
        if last is not None and not last.is_done:
            return last
        number = 0 if last is None else last.number + 1
        chosen = [name for name in self.load.partitions if client.rng.random() < 0.8]
        batch = PublishedBatch(
            query, number, {name: self._values(client, query, number) for name in chosen}
        )
        self._batches[query] = batch
        self.audit.planned(batch)
        return batch

    def _values(self, client: TopicClient, query: str, number: int) -> list[str]:
        count = client.rng.randint(1, self.load.options.batch_max)
        first = self.load.take_numbers(count)
        return [f"{query}.{number}-{first + n}" for n in range(count)]

    async def _run(self, client: TopicClient, batch: PublishedBatch) -> None:
        dies_s = client.rng.expovariate(10) if client.rng.random() < self.options.death_p else None
        try:
            async with asyncio.timeout(dies_s):
                won = await self._publish(client, batch, batch.values)
        except driver.SinkFailed:
            self._probe("failed")
        except EXPECTED:
            self._probe("died")
        else:
            self._probe("committed" if won else "committed_before")
            self.audit.told(batch)
            batch.is_done = True

    async def _run_with_other_rows(self, client: TopicClient, batch: PublishedBatch) -> None:
        """Run a batch with other rows, as from a source that does not repeat itself: none may be
        seen."""
        # A batch may have had no rows. Then any rows are other rows, and no rows are the same.
        names = batch.values or self.load.partitions
        values = {name: self._values(client, batch.query, batch.number) for name in names}
        self.audit.refused(values)
        try:
            if await self._publish(client, batch, values):
                self.audit.fails(f"X10 {batch} was begun, and is committed with other rows")
        except EXPECTED:  # refused, which is right, or never heard of
            self._probe("other_rows")

    async def _publish(
        self, client: TopicClient, batch: PublishedBatch, values: Mapping[PartitionName, list[str]]
    ) -> bool:
        shares = producing.together(self._tasks(client, values))
        assert producing.why_not_small(shares, _OPTIONS) is None
        producer = producing.producer_of(batch.query, batch.number)
        content = {
            target: (
                producing.fingerprint(share.rows),
                producing.record_batch(share, producer, _OPTIONS),
            )
            for target, share in shares.items()
        }
        timeout_ms = self.options.timeout_ms
        return await driver.publish(SERVICE, batch.query, batch.number, content, timeout_ms)

    def _tasks(
        self, client: TopicClient, values: Mapping[PartitionName, list[str]]
    ) -> list[dict[Target, Rows]]:
        """Distribute the rows to tasks, in any order, with the present time."""
        assert client.process is not None
        rng, now_ms = client.rng, client.process.clock_ms()
        tasks: list[dict[Target, Rows]] = [{} for _ in range(rng.randint(1, self.options.tasks))]
        for name, some in values.items():
            for value in rng.sample(some, len(some)):
                target = Target(str(name.topic_name), name.partition)
                rows = rng.choice(tasks).setdefault(target, Rows())
                row = (self.load.key_of(value), value.encode(), (), now_ms, 0)
                rows.rows.append(row)
                rows.bytes += size_of(row)
        return tasks

    def _probe(self, what: str) -> None:
        self.load.cluster.trace.probe(f"published.{what}")
