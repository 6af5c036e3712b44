"""Clients that ask the topics where a time begins, and clocks that jump meanwhile."""

from __future__ import annotations

import random

from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName
from octavo.spark.cluster import Cluster as SparkCluster
from tests.sim.time_audit import TimeAudit
from tests.sim.time_options import FAR_MS, TimeOptions
from tests.sim.topic_client import EXPECTED, RETRY_S, TopicClient
from tests.sim.topic_load import TopicLoad

_DAY_MS = 24 * 3_600_000
_ASKED_IN_THE_END = 6


def telling_time(load: TopicLoad, rng: random.Random, name: PartitionName) -> int:
    log = load.audit.logs[name]
    stamp_ms = log.time_at(rng.choice(list(log.at))) if log.at else None
    if stamp_ms is None or rng.random() < 0.1:
        return load.cluster.loop.wall_ms() + rng.choice((-FAR_MS, 0, FAR_MS))
    return stamp_ms + rng.randint(-1, 1)


class TimeLoad:
    def __init__(self, load: TopicLoad, options: TimeOptions, audit: TimeAudit) -> None:
        self._load = load
        self._options = options
        self._audit = audit
        self._rng = load.cluster.loop.stream("time load")

    def clients(self) -> list[TopicClient]:
        return [
            TopicClient(self._load, f"t{number}", self._look_up)
            for number in range(1, self._options.lookups + 1)
        ]

    async def _look_up(self, client: TopicClient) -> None:
        load = self._load
        while not load.over:
            name = client.rng.choice(load.partitions)
            try:
                await self._ask(client, name, telling_time(self._load, client.rng, name))
            except EXPECTED:
                await client.pause(RETRY_S)
            await client.pause(load.options.pause_s)

    async def ask_in_the_end(self, client: TopicClient, name: PartitionName) -> None:
        if self._options.lookups:
            for _ in range(_ASKED_IN_THE_END):
                time_ms = telling_time(self._load, client.rng, name)
                while True:
                    try:
                        await self._ask(client, name, time_ms)
                        break
                    except EXPECTED:
                        await client.pause(RETRY_S)

    async def ask_spark(self, cluster: SparkCluster, name: PartitionName) -> None:
        log = self._load.audit.logs[name]
        view = await cluster.view(str(name.topic_name), name.partition)
        for _ in range(_ASKED_IN_THE_END if self._options.lookups else 0):
            time_ms = telling_time(self._load, self._rng, name)
            found = await cluster.offset_at(view, time_ms)
            end = view.end
            self._audit.looked_up(log, time_ms, end if found is None else found, end, "spark")

    async def _ask(self, client: TopicClient, name: PartitionName, time_ms: int) -> None:
        async def work(partition: Partition) -> tuple[int, int]:
            end = partition.next_offset  # it may grow during the search
            return await partition.offset_at(time_ms), end

        found, end = await client.ask(name, work)
        self._audit.looked_up(self._load.audit.logs[name], time_ms, found, end, "owner")

    # Clocks

    def begin_jumps(self) -> None:
        """Let the clock of a broker's machine jump sometimes, for a moment or for good."""
        if self._options.jump_mean_s is not None:
            pause_s = self._rng.expovariate(1 / self._options.jump_mean_s)
            self._load.cluster.loop.world_later(pause_s, self._jump)

    def _jump(self) -> None:
        load, rng = self._load, self._rng
        if load.over:
            return
        broker = load.brokers[rng.choice(list(load.brokers))]
        by_ms = rng.choice((8 * _DAY_MS, 3_600_000, -_DAY_MS, 0, 0))
        if broker.process is not None:
            broker.process.skew_ms = by_ms
            load.cluster.clocks.was_set(by_ms)
            load.cluster.trace.fault("broker_clock_jumps")
        self.begin_jumps()
