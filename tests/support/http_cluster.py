"""Brokers with real ledgers in one process, reached over real HTTP: bookies, metadata, brokers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from octavo.broker.broker import Broker
from octavo.broker.config import BrokerConfig
from octavo.broker.http.broker_calls import KEY_USE
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.server import BrokerServer
from octavo.clock import wall_clock_ms
from octavo.ledger.client import LedgerClient
from octavo.ledger.options import LedgerOptions
from octavo.metadata.opening import open_store
from octavo.metadata.secret import cluster_secret
from octavo.metadata.store import MetadataStore
from tests.support.fake_broker import Answer, Api, until
from tests.support.ledger_cluster import QUICK, Cluster, running_cluster

__all__ = ["Answer", "Api", "HttpCluster", "running_brokers", "until"]

LEASED_MAX = 50_000


class Node:
    """One broker with a metadata session and ledger client of its own, as a process has."""

    def __init__(
        self, store: MetadataStore, ledgers: LedgerClient, broker: Broker, server: BrokerServer
    ) -> None:
        self.store = store
        self.ledgers = ledgers
        self.broker = broker
        self.server = server


class HttpCluster:
    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.session = session
        self.nodes: dict[str, Node] = {}
        self.apis: dict[str, Api] = {}

    async def start_broker(self, name: str, **http: Any) -> Api:
        store = open_store(self.cluster.store.url, session_timeout_ms=2000)
        await store.start()
        ledgers = LedgerClient(
            store, rng=random.Random(name), options=LedgerOptions(**QUICK), clock=wall_clock_ms
        )
        await ledgers.start()
        broker = Broker(
            store,
            ledgers,
            BrokerConfig(
                broker_id=name,
                port=0,
                trim_interval_ms=200,
                leased_messages_max=LEASED_MAX,
                delayed_messages_max=LEASED_MAX,
            ),
            rng=random.Random(name),
            clock=wall_clock_ms,
        )
        server = BrokerServer(
            broker,
            store=store,
            ledgers=ledgers,
            clock=wall_clock_ms,
            call_key=(await cluster_secret(store)).key(KEY_USE),
            http=HttpConfig(**http),
        )
        await server.start()
        self.nodes[name] = Node(store, ledgers, broker, server)
        self.apis[name] = Api(self.session, server.url)
        return self.apis[name]

    async def stop_broker(self, name: str) -> None:
        node = self.nodes.pop(name)
        del self.apis[name]
        await node.server.stop()
        await node.ledgers.close()
        await node.store.close()

    @property
    def api(self) -> Api:
        return next(iter(self.apis.values()))

    async def owner_of(self, path: str) -> str:
        """The broker that serves a partition, by its `…/partitions/{n}` path."""
        answer = await self.api.get(path)
        assert answer.status == 200, answer
        owner: str = answer.json()["owner"]
        return owner


@contextlib.asynccontextmanager
async def running_brokers(
    folder: Path, brokers: int = 2, bookies: int = 3
) -> AsyncIterator[HttpCluster]:
    async with (
        running_cluster(folder, bookies) as cluster,
        aiohttp.ClientSession(auto_decompress=False) as session,
    ):
        found = HttpCluster(cluster, session)
        try:
            for number in range(brokers):
                await found.start_broker(f"broker-{number}")
            yield found
        finally:
            for name in tuple(found.nodes):
                await found.stop_broker(name)
