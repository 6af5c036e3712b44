"""Spark's sink: batches of a query, each committed once, whatever happens to its driver.

A query is a driver with its tasks, in one process. Its checkpoint, as Spark's, has the number of
the next batch. Tasks fail or run twice, a batch is given up, a commit's outcome stays unknown, the
driver dies anywhere: each time the batch is written again, to new ledgers, under the same number.
The code that writes, commits and gives up is the sink's own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.broker.types import PartitionName
from octavo.spark import commit as driver
from octavo.spark.orphans import collect_orphans
from octavo.spark.sink_ledgers import TaskLedgers
from octavo.spark.sink_message import Written
from octavo.spark.sink_rows import Target
from tests.sim.bulk_load_audit import Attempt, BulkLoadAudit
from tests.sim.tools import SERVICE, ToolCluster, Tools
from tests.sim.topic_client import EXPECTED, TopicClient

if TYPE_CHECKING:
    from tests.sim.topic_load import TopicLoad

_WRITE_S = 3.0
"""Spark ends a task that takes far longer."""
_BATCHES_MAX = 3
"""The most entries of a private ledger."""


@dataclass
class Query:
    """A checkpoint."""

    name: str
    batch: int = 0
    attempts: int = 0


class SinkLoad:
    """All queries of a seed, and their orphan collectors."""

    def __init__(self, load: TopicLoad, tools: Tools, audit: BulkLoadAudit) -> None:
        self.load = load
        self.tools = tools
        self.options = tools.options
        self.audit = audit
        self.queries: dict[str, Query] = {}

    def clients(self) -> list[TopicClient]:
        """Return the clients of the safety phase."""
        options = self.options
        return [
            *[TopicClient(self.load, f"t{n}", self._query) for n in range(1, options.queries + 1)],
            *[
                TopicClient(self.load, f"g{n}", self._collect)
                for n in range(1, options.collectors + 1)
            ],
        ]

    # ------------------------------------------------------------------ a query

    async def _query(self, client: TopicClient) -> None:
        query = self.queries.setdefault(client.name, Query(client.name))
        while not self.load.is_full:
            try:
                async with self.tools.connected() as cluster:
                    while not self.load.is_full:
                        await self._batch(client, cluster, query)
                        await client.pause(self.load.options.pause_s)
            except EXPECTED as error:
                self._probe(f"query_ends.{type(error).__name__}")
                await client.pause(0.1)

    async def _batch(self, client: TopicClient, cluster: ToolCluster, query: Query) -> None:
        """Attempt the query's batch once."""
        rng, timeout_ms = client.rng, self.options.commit_timeout_ms
        query.attempts += 1
        attempt = Attempt(query.name, query.batch, query.attempts)
        written = await self._write(client, cluster, attempt)
        if not written:
            return
        self.audit.wrote(attempt)
        call = SERVICE, attempt.bulk_load, attempt.batch, written, timeout_ms
        if rng.random() < self.options.abort_p:
            self._probe("given_up_before")
            await driver.abort(*call)
            return
        self.audit.offers(attempt)
        try:
            won = await driver.commit(*call)
            self.audit.told(attempt, won=won)
            # the driver died before it noted the commit
            while rng.random() < self.options.repeat_p:
                self._probe("repeated")
                self.audit.told(attempt, won=await driver.commit(*call))
        except driver.SinkFailed:
            self._probe("commit_failed")
            if rng.random() < 0.7:
                await driver.abort(*call)
            return
        query.batch = attempt.batch + 1

    # ------------------------------------------------------------------ its tasks

    async def _write(
        self, client: TopicClient, cluster: ToolCluster, attempt: Attempt
    ) -> list[Written]:
        """Return what all tasks wrote, or nothing when a task failed; then all is given up."""
        rng = client.rng
        tasks = [
            self._task(client, cluster, attempt, number)
            for number in range(rng.randint(1, self.options.tasks))
        ]
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for one in done:
            if isinstance(one, BaseException) and not isinstance(one, EXPECTED):
                raise one
        written = []
        for one in done:
            if not isinstance(one, BaseException):
                for ledger, values in one:
                    attempt.parts.setdefault(_name(ledger), {})[ledger.ledger_id] = values
                    written.append(ledger)
        if any(isinstance(one, BaseException) for one in done):
            self._probe("task_failed")
            batch = attempt.bulk_load, attempt.batch
            await driver.abort(SERVICE, *batch, written, self.options.commit_timeout_ms)
            return []
        return written

    async def _task(
        self, client: TopicClient, cluster: ToolCluster, attempt: Attempt, number: int
    ) -> list[tuple[Written, list[str]]]:
        """Write and close rows for some partitions; sometimes twice, of which one counts."""
        rng = client.rng
        rows = {
            name: [self._rows(client, attempt, number) for _ in range(rng.randint(1, _BATCHES_MAX))]
            for name in self.load.partitions
            if rng.random() < 0.8
        }
        if rng.random() < self.options.twin_p:
            self._probe("twin")
            await self._run(client, cluster, attempt, f"{number}.twin", rows)
        written = await self._run(client, cluster, attempt, str(number), rows)
        return [(one, [value for batch in rows[_name(one)] for value in batch]) for one in written]

    async def _run(
        self,
        client: TopicClient,
        cluster: ToolCluster,
        attempt: Attempt,
        task: str,
        rows: dict[PartitionName, list[list[str]]],
    ) -> tuple[Written, ...]:
        ledgers = TaskLedgers(cluster, attempt.bulk_load, attempt.batch, f"{attempt.number}.{task}")
        try:
            async with asyncio.timeout(_WRITE_S):
                await ledgers.write(
                    [
                        (
                            Target(str(name.topic_name), name.partition),
                            self.load.batch(client, values),
                        )
                        for name, batches in rows.items()
                        for values in batches
                    ]
                )
                return await ledgers.close()
        except EXPECTED:
            await ledgers.discard()
            raise

    def _rows(self, client: TopicClient, attempt: Attempt, task: int) -> list[str]:
        count = client.rng.randint(1, self.load.options.batch_max)
        first = self.load.take_numbers(count)
        front = f"{attempt.bulk_load}.{attempt.batch}.{attempt.number}.{task}"
        return [f"{front}-{first + n}" for n in range(count)]

    def _probe(self, what: str) -> None:
        self.load.cluster.trace.probe(f"sink.{what}")

    # ------------------------------------------------------------------ orphans

    async def _collect(self, client: TopicClient) -> None:
        """Give up batches older than the grace, even unfinished ones: that is allowed, if
        unkind."""
        while not self.load.over:
            await client.pause(0.2)
            try:
                await self.collect(self.options.orphan_grace_ms)
            except EXPECTED as error:
                self._probe(f"orphans_left.{type(error).__name__}")

    async def collect(self, grace_ms: int) -> int:
        """Return how many unnamed private ledgers were looked at. Raises `EXPECTED`."""
        found = await collect_orphans(SERVICE, grace_ms=grace_ms)
        for one in found:
            for _ in one.deleted:
                self._probe("orphan_collected")
        return sum(len(one.looked_at) for one in found)


def _name(written: Written) -> PartitionName:
    namespace, topic = written.topic.split("/")
    return PartitionName(namespace, topic, written.partition)
