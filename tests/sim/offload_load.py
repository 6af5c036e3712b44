"""Runs that move closed ledgers out of the bookies, and readers of the moved ledgers.

A run is the job's own steps in one process, without Spark; it may die anywhere, and two may run at
once. A ledger reader is Spark's source, without a broker.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from octavo.broker.types import PartitionName, StoredBatch
from octavo.pipeline.offload import OffloadOptions, _Offload, remove_orphans
from octavo.pipeline.offload_copy import copy
from octavo.pipeline.offload_rules import OffloadPolicy, waves
from octavo.pipeline.outcome import Outcome
from octavo.protocol.append_time import shown
from octavo.protocol.batch import read_header, with_base_offset
from octavo.spark.options import Selection
from octavo.spark.splits import pieces
from tests.sim.tools import FOLDER, SERVICE, ToolCluster, Tools
from tests.sim.topic_client import EXPECTED, TopicClient

if TYPE_CHECKING:
    from tests.sim.topic_load import TopicLoad

_AT_ONCE = 2
_PAUSE_S = 0.08
EVERYTHING = OffloadPolicy(
    age_ms=-(10**9), drop_lag_ms=-(10**9), grace_ms=-(10**9), forget_ms=-(10**9)
)
"""A policy that moves every ledger, whatever the clocks say."""


class OffloadLoad:
    def __init__(self, load: TopicLoad, tools: Tools) -> None:
        self.load = load
        self.tools = tools
        self.options = tools.options

    def clients(self) -> list[TopicClient]:
        options = self.options
        return [
            *[TopicClient(self.load, f"o{n}", self._run) for n in range(1, options.offloaders + 1)],
            *[
                TopicClient(self.load, f"x{n}", self._read)
                for n in range(1, options.ledger_readers + 1)
            ],
        ]

    # ------------------------------------------------------------------ runs

    async def _run(self, client: TopicClient) -> None:
        while not self.load.over:
            await client.pause(_PAUSE_S)
            try:
                await self.run(self.options.policy)
            except EXPECTED as error:
                self._probe(f"run_ends.{type(error).__name__}")

    async def run(self, policy: OffloadPolicy) -> Outcome:
        """Run the job once: `_Offload.carry_out` without Spark. Raises `EXPECTED`."""
        topics = tuple(dict.fromkeys(str(name.topic_name) for name in self.load.partitions))
        run = SimpleNamespace(service=SERVICE, say=lambda _: None)
        job = _Offload(cast(Any, run), OffloadOptions(Selection(topics=topics), FOLDER, policy))
        outcome = Outcome("offload")
        plan = await job._plan()
        for wave in waves(plan.copies, _AT_ONCE):
            tasks = await job._begin(wave)
            found = await asyncio.gather(*map(copy, tasks))
            await job._finish(list(found), outcome)
        await job._tidy(plan, outcome)
        for kind, count in outcome.counts.items():
            self.load.cluster.trace.probe(f"offload.finding.{kind}", count)
        return outcome

    async def tidy(self) -> None:
        async with self.tools.connected() as cluster:
            await remove_orphans(cluster, EVERYTHING)

    # ------------------------------------------------------------------ ledger readers

    async def _read(self, client: TopicClient) -> None:
        while not self.load.over:
            await client.pause(_PAUSE_S)
            name = client.rng.choice(self.load.partitions)
            try:
                async with self.tools.connected(SERVICE, self.options.read_from) as cluster:
                    await self.read(client, cluster, name)
            except EXPECTED as error:
                self._probe(f"ledger_read_ends.{type(error).__name__}")

    async def read(self, client: TopicClient, cluster: ToolCluster, name: PartitionName) -> None:
        log = self.load.audit.logs[name]
        view = await cluster.view(str(name.topic_name), name.partition)
        for piece in pieces(view, view.earliest, view.end):
            at = piece.start
            async for entries in cluster.entries(piece):
                for entry in entries:
                    header = shown(read_header(entry.payload), piece.appended)
                    base = piece.base + header.base_offset
                    if base != at:
                        log.fails(f"ledger {piece.ledger_id} goes on at {base}, not at {at}")
                    data = with_base_offset(entry.payload, base, header.partition_leader_epoch)
                    served = header._replace(base_offset=base)
                    log.batch(
                        StoredBatch(base, piece.ledger_id, entry.entry_id, served, data),
                        f"ledger reader {client.name}",
                    )
                    at = base + header.record_count
            if at < piece.end:
                log.fails(f"ledger {piece.ledger_id} ended at {at}, expected was {piece.end}")
            self._probe("read_from_object" if piece.offload else "read_from_bookies")

    def _probe(self, what: str) -> None:
        self.load.cluster.trace.probe(f"offload.{what}")
