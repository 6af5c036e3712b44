"""Brokers behind HTTP over bookies and metadata in memory: the whole product but disks and sockets
of bookies.

    async with running(2) as two:                     # brokers b0 and b1, three bookies
        await two.api.put("/v1/topics/public/one", json={})
        await two.move("one", "b1")
        records = await two.records("one")

It starts in a few milliseconds. Faults are set where they arise: `two.bookies["k1"].hold()`, a
bookie that is full or down, metadata that is away; `before_publish` stands between a partition and
its callers. Real bookies: tests/support/cluster.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import aiohttp

from octavo.broker import audit as audit_log
from octavo.broker.broker import Broker
from octavo.broker.config import BrokerConfig
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.server import BrokerServer
from octavo.broker.operations.upgrade import KEY_USE
from octavo.broker.partition.partition import Partition
from octavo.broker.types import MessageId, PartitionName, StoredBatch, TopicName
from octavo.ledger.options import LedgerOptions
from octavo.metadata.secret import SECRET_BYTES, SECRET_PATH, ClusterSecret, SecretRecord
from octavo.metadata.topic_records import encode_record
from octavo.protocol.records import Record, read_records
from tests.support.http_api import Api
from tests.support.memory_bookies import MemoryBookie, MemoryLedgerClient, register
from tests.support.memory_metadata import MemoryMetadata, MemoryStore

NOW_MS = 1_700_000_000_000
_SECRET = b"^" * SECRET_BYTES
CALL_KEY = ClusterSecret(_SECRET).key(KEY_USE)
_CORE: dict[str, Any] = {
    "reopen_delay_ms": 50,
    "reopen_delay_ms_max": 200,
    "stop_handover_ms": 1_000,
    "handover_timeout_ms": 1_000,
    "balance_after_ms": 600_000,
}


class Running:
    """Brokers b0, b1, … that listen."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadata()
        self.store = self.metadata.open()
        """A session of the test's own."""
        self.bookies = {name: MemoryBookie(name) for name in ("k1", "k2", "k3")}
        self.servers: list[BrokerServer] = []
        self.apis: list[Api] = []
        self.brokers: dict[str, Broker] = {}
        self.stores: dict[str, MemoryStore] = {}
        """The session of each broker."""
        self._ledgers: list[MemoryLedgerClient] = []
        self._dead: set[str] = set()

    @property
    def api(self) -> Api:
        return self.apis[0]

    async def new_server(
        self, name: str, clock: Callable[[], int], core: dict[str, Any] | None = None, **how: Any
    ) -> BrokerServer:
        """Make a broker that does not listen yet."""
        store = self.stores[name] = self.metadata.open()
        rng = random.Random(name)
        ledgers = MemoryLedgerClient(
            store, self.bookies, rng=rng, options=LedgerOptions(), clock=clock
        )
        await ledgers.start()
        self._ledgers.append(ledgers)
        config = BrokerConfig(**{"broker_id": name, "port": 0, **_CORE, **(core or {})})
        broker = self.brokers[name] = Broker(store, ledgers, config, rng=rng, clock=clock)
        return BrokerServer(
            broker, store=store, ledgers=ledgers, clock=clock, call_key=CALL_KEY, **how
        )

    async def close(self) -> None:
        for broker in self.brokers.values():
            broker._leaving = True  # none hands its partitions to another
        await asyncio.gather(*(server.stop() for server in self.servers))
        for ledgers in self._ledgers:
            await ledgers.close()
        for store in tuple(self.metadata.stores):
            await store.close()

    # -- partitions

    def name(self, topic: str, number: int = 0) -> PartitionName:
        return TopicName.parse(topic).partition(number)

    def open_partition(self, topic: str, number: int = 0) -> Partition | None:
        """Return the partition where it is open; None when no broker has opened it."""
        name = self.name(topic, number)
        for broker in self._living():
            for partition in broker.ownership.open_partitions():
                if partition.name == name:
                    return partition
        return None

    def _living(self) -> list[Broker]:
        return [one for name, one in self.brokers.items() if name not in self._dead]

    async def partition(self, topic: str, number: int = 0) -> Partition:
        """Return the partition; its owner opens it if need be."""
        serving = self.brokers[await self.owner(topic, number)]
        return await serving.ownership.partition(self.name(topic, number))

    async def owner(self, topic: str, number: int = 0) -> str:
        """Return the broker that serves the partition; it opens it if need be."""
        name = self.name(topic, number)
        owner = await self._living()[0].ownership.owner_of(name)
        if not owner.local:
            owner = await self.brokers[owner.broker_id].ownership.owner_of(name)
        assert owner.broker_id not in self._dead
        return owner.broker_id

    def next_offset(self, topic: str, number: int = 0) -> int:
        found = self.open_partition(topic, number)
        return 0 if found is None else found.next_offset

    async def batches(self, topic: str, number: int = 0) -> list[StoredBatch]:
        """Read all batches of the partition."""
        partition = await self.partition(topic, number)
        found: list[StoredBatch] = []
        offset = partition.earliest_offset
        while offset < partition.next_offset:
            found += await partition.read(offset, bytes_max=10_000_000, count_max=1_000_000)
            offset = found[-1].next_offset
        return found

    async def records(self, topic: str, number: int = 0) -> dict[int, tuple[MessageId, Record]]:
        """Read all messages of the partition, by offset."""
        return {
            batch.base_offset + index: (MessageId(batch.ledger_id, batch.entry_id, index), record)
            for batch in await self.batches(topic, number)
            for index, record in enumerate(read_records(batch.data))
        }

    def waiting(self, topic: str, number: int = 0) -> int:
        """Count the calls that wait at the partition for new messages."""
        found = self.open_partition(topic, number)
        if found is None:
            return 0
        subscriptions = found._subscriptions._open.values()
        return len(found._log._growth) + sum(len(one._waiters) for one in subscriptions)

    def leased(self, topic: str, number: int = 0) -> int:
        """Count the messages that are leased to consumers."""
        found = self.open_partition(topic, number)
        if found is None:
            return 0
        return sum(one.stats().leased for one in found._subscriptions._open.values())

    async def topics(self, namespace: str = "public") -> list[str]:
        """List the topics that exist."""
        return await self._living()[0].topics.names_in(namespace)

    # -- faults

    def hold(self) -> None:
        """Let all bookies answer nothing until `go_on`."""
        for bookie in self.bookies.values():
            bookie.hold()

    def go_on(self) -> None:
        for bookie in self.bookies.values():
            bookie.go_on()

    async def before_publish(self, topic: str, fail: Callable[[], None], number: int = 0) -> None:
        """Call `fail`, which may raise, before each batch is stored."""
        publisher: Any = (await self.partition(topic, number))._publisher
        publish = publisher.publish

        async def failing(*args: Any, **kwargs: Any) -> Any:
            fail()
            return await publish(*args, **kwargs)

        publisher.publish = failing

    async def vanish(self, name: str) -> None:
        """Make a broker unreachable, while its session lives."""
        server = self.servers[list(self.brokers).index(name)]
        assert server._listener is not None
        assert server._http is not None
        server._listener.close()
        server._services.door.close()
        await server._http.shutdown(timeout=0)

    async def die(self, name: str) -> None:
        """Make a broker unreachable, and end its session: another broker takes over."""
        await self.vanish(name)
        await self.stores[name].close()
        self._dead.add(name)

    async def move(self, topic: str, to: str, number: int = 0) -> None:
        """Hand the partition over to this broker."""
        owner = await self.owner(topic, number)
        if owner != to:
            await self.brokers[owner].balance.unload(self.name(topic, number), to)


@asynccontextmanager
async def running(
    brokers: int = 1,
    *,
    authority: Any = None,
    authenticator: Any = None,
    security: Any = None,
    tls: Any = None,
    clock: Any = lambda: NOW_MS,
    core: dict[str, Any] | None = None,
    registered: dict[str, str] | None = None,
    **http: Any,
) -> AsyncIterator[Running]:
    """Start brokers; all share `authority`. `core` has settings of the brokers' core; `registered`
    has the addresses of brokers that register a wrong address."""
    found = Running()
    await found.store.create(SECRET_PATH, encode_record(SecretRecord(_SECRET.hex())))
    await register(found.store, found.bookies)
    config = replace(HttpConfig(stop_timeout_ms=2000, moving_wait_ms=1500), **http)
    how = {"authority": authority, "authenticator": authenticator, "security": security}
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        try:
            for number in range(brokers):
                name = f"b{number}"
                server = await found.new_server(name, clock, core, http=config, tls=tls, **how)
                if registered and name in registered:
                    broker: Any = found.brokers[name]
                    start, address = broker.start, registered[name]
                    broker.start = lambda _, start=start, address=address: start(address)
                found.servers.append(server)
                await server.start()
                found.apis.append(Api(session, server.url))
            yield found
        finally:
            with patch.object(audit_log, "CLOSE_S", 0.05):
                await found.close()
