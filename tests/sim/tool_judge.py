"""The end of a seed for Spark's side, after the faults.

The brokers alone finish every decided commit. Only orphans are collected. A last run moves every
closed ledger out of the bookies, and the whole log is read again. A deleted topic takes all its
ledgers with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from octavo.broker.bulkload.rules import KIND, KIND_KEY
from octavo.broker.errors import TopicNotFound
from octavo.broker.types import TopicName
from octavo.metadata.offloads import is_only_copy
from tests.sim.bulk_load_audit import BulkLoadAudit
from tests.sim.chain_audit import ChainAudit
from tests.sim.offload_audit import OffloadAudit
from tests.sim.offload_load import EVERYTHING, OffloadLoad
from tests.sim.sink_load import SinkLoad
from tests.sim.time_load import TimeLoad
from tests.sim.tools import Tools
from tests.sim.topic_client import EXPECTED, TopicClient
from tests.sim.topic_load import TopicLoad

_PAUSE_S = 0.05
_FINISHED_S_MAX = 25.0
"""A broker finishes others' work after ten seconds, or in its next life."""
_LONG_AGO_MS = -(10**9)
_BEHIND_S = 0.1
"""More than any metadata server is behind the others (`lag_ms`)."""

AtAny = Callable[[TopicClient, Callable[..., Awaitable[Any]]], Awaitable[Any]]


class ToolJudge:
    def __init__(
        self, tools: Tools, load: TopicLoad, chains: ChainAudit, topic: TopicName, times: TimeLoad
    ) -> None:
        cluster = tools.cluster
        self.cluster = cluster
        self.options = tools.options
        self.load = load
        self.topic = topic
        self.times = times
        self.tools = tools
        self.chains = chains
        told = cluster.trace, cluster.audit.fail
        self.bulk_loads = BulkLoadAudit(load.audit, cluster.audit, cluster.events, *told)
        self.offloads = OffloadAudit(tools.objects, cluster.audit, *told)
        chains.bulk_loads, chains.offloads = self.bulk_loads, self.offloads
        cluster.metadata.observers += [
            self.bulk_loads.changed,
            self.offloads.intent_changed,
            self._ledger_changed,
        ]
        self.sink = SinkLoad(load, tools, self.bulk_loads)
        self.offload = OffloadLoad(load, tools)
        load.others += [self.sink.clients, self.offload.clients]

    def _ledger_changed(self, change: Any) -> None:
        ledger_id = self.cluster._ledger_id(change.path) if change.value is None else None
        if ledger_id is not None:
            self.bulk_loads.ledger_deleted(ledger_id)

    async def finish(self) -> None:
        """Wait until every bulk load is complete and every orphan gone."""
        loop = self.cluster.loop
        healed_s = loop.time()
        while self.bulk_loads.unfinished:
            if loop.time() - healed_s > _FINISHED_S_MAX:
                self._fail(f"S8 nobody finishes {self.bulk_loads.unfinished}")
                return
            await asyncio.sleep(_PAUSE_S)
        await self._until_done(lambda: self.sink.collect(_LONG_AGO_MS))

    async def offload_all(self, client: TopicClient) -> None:
        if self.options.offloaders:
            await self._until_done(lambda: self.offload.run(EVERYTHING))
            await self._until_done(lambda: self._read_all(client))

    async def check(self, client: TopicClient, at_any: AtAny) -> None:
        await self._until_done(lambda: self.sink.collect(_LONG_AGO_MS))
        began_s = self.cluster.loop.time()
        while self._left() and self.cluster.loop.time() - began_s < _FINISHED_S_MAX:
            # The ledgers of a failed fork go once its failure is found out.
            await at_any(client, lambda broker: broker._shared.sweep(lambda _: True))
            await asyncio.sleep(_PAUSE_S)  # trimmed objects go after the record's change
        self.bulk_loads.check_whole(self._left())
        self.offloads.check_whole(await self._tidy())
        if self.options.deletes_topic:
            await self._delete(client, at_any)

    async def _delete(self, client: TopicClient, at_any: AtAny) -> None:
        links = [
            link
            for name, owned in self.chains.owned.items()
            if name.topic_name == self.topic
            for link in owned.record.ledgers
        ]
        self.cluster.trace.probe("topic.deleted")

        async def delete(broker: Any) -> None:
            try:
                await broker.topics.delete(self.topic)
            except TopicNotFound:
                pass  # the call before had no answer

        await at_any(client, delete)
        await self._tidy()
        self.offloads.check_whole(())
        for link in links:
            history = self.cluster.audit.ledgers[link.ledger_id]
            if not history.deleted and not is_only_copy(link.offload):
                self._fail(f"S8 ledger {link.ledger_id} of {self.topic} outlives its topic")

    async def _tidy(self) -> set[str]:
        """Remove objects that no record names; return the copies that records name.

        Retention continues: a copy that is trimmed after a run has read its record is left to the
        next run.
        """
        while True:
            named = self._copies()
            # wait until the run's server knows what is trimmed by now
            await asyncio.sleep(_BEHIND_S)
            await self._until_done(self.offload.tidy)
            if self._copies() == named:
                return named

    def _copies(self) -> set[str]:
        return {
            link.offload.uuid
            for owned in self.chains.owned.values()
            for link in owned.record.ledgers
            if link.offload is not None
        }

    async def _read_all(self, client: TopicClient) -> None:
        read_from = "offload" if self.options.read_from == "offload" else "auto"
        async with self.tools.connected(read_from=read_from) as cluster:
            for name in self.load.partitions:
                await self.offload.read(client, cluster, name)
                await self.times.ask_spark(cluster, name)

    def _left(self) -> list[int]:
        named = {
            link.ledger_id for owned in self.chains.owned.values() for link in owned.record.ledgers
        }
        return [
            ledger_id
            for ledger_id, history in self.cluster.audit.ledgers.items()
            if not history.deleted
            and history.record.custom.get(KIND_KEY) == KIND
            and ledger_id not in named
        ]

    async def _until_done(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Repeat until it succeeds: there are no faults, but settling may cost some attempts."""
        loop = self.cluster.loop
        began_s = loop.time()
        while True:
            try:
                await work()
                return
            except EXPECTED as error:
                if loop.time() - began_s > _FINISHED_S_MAX:
                    self._fail(f"S8 it does not come to its end: {error!r}")
                    return
                await asyncio.sleep(_PAUSE_S)

    def _fail(self, what: str) -> None:
        self.cluster.audit.fail(what)
