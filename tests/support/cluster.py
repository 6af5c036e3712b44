"""A cluster in this process, for tests: bookies, ledger clients, brokers as cores or behind HTTP.

    async with running_cluster(folder) as cluster:  # three bookies, no broker yet
        client = await cluster.client()             # of ledgers
        one = await cluster.start("A")              # a broker's core, on the test's clock
        api = await cluster.start_broker("B")       # a broker behind real HTTP

`running_cluster(folder, bookies=5, brokers=2)` starts brokers behind HTTP too. The end of the block
stops everything. Real processes: tests/support/processes; simulated ones: tests/sim.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import aiohttp
import pytest

from octavo.bookie.disk.files import Disk
from octavo.bookie.node import BookieNode
from octavo.bookie.wire.guard import Guard, KnowsCallers
from octavo.broker.broker import Broker
from octavo.broker.config import BrokerConfig
from octavo.broker.errors import OwnerUnreachable, PartitionMoving
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.forwarding import with_owner
from octavo.broker.http.server import BrokerServer
from octavo.broker.operations.upgrade import KEY_USE
from octavo.broker.partition.handover_messages import Handover, HandoverNotice
from octavo.broker.partition.partition import Partition
from octavo.broker.types import BrokerInfo, Owner, PartitionName, TopicName, TopicSettings
from octavo.clock import wall_clock_ms
from octavo.keys import data_keys_of
from octavo.ledger.client import LedgerClient
from octavo.ledger.options import LedgerOptions
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.opening import SESSION_TIMEOUT_MS as SHIPPED_SESSION_TIMEOUT_MS
from octavo.metadata.opening import open_store
from octavo.metadata.secret import cluster_secret
from octavo.metadata.store import MetadataStore
from octavo.protocol.records import Record, build_batch, read_records
from octavo.security.bookie_tokens import BookieTokens, Prove, node_prover
from octavo.security.keys.config import KeysConfig
from octavo.security.keys.data_keys import DataKeys
from octavo.security.policy import PolicyRecord, PolicyStore, make_rule, rule_record
from octavo.tls.contexts import Certificates
from tests.support.http_api import Api
from tests.support.kit.quiescence import held_after_close
from tests.support.raw_bookie import config_in, new_node, open_metadata
from tests.support.served import served

QUICK: dict[str, Any] = {
    "add_timeout_s": 10.0,
    "read_timeout_s": 10.0,
    "connect_timeout_s": 10.0,
    "stall_timeout_s": 5.0,
    "retry_failed_bookie_ms": 100.0,
    "speculative_read_ms": 100.0,
    "suspect_ms": 1_000.0,
}
PATIENT: dict[str, Any] = QUICK | {
    "add_timeout_s": 60.0,
    "read_timeout_s": 60.0,
    "connect_timeout_s": 60.0,
}
"""Deadlines for tests in which every bookie answers: a disk that stalls for seconds ends
nothing."""
SESSION_TIMEOUT_MS = 10_000
PATIENT_SESSION_TIMEOUT_MS = 60_000
FAST: dict[str, Any] = {
    "reopen_delay_ms": 50,
    "reopen_delay_ms_max": 200,
    "stop_handover_ms": 1_000,
    "handover_timeout_ms": 1_000,
    "balance_after_ms": 600_000,
}
LEASED_MAX = 50_000
GIVEN_BACK_S_MAX = 30.0
T = TypeVar("T")
TOPIC = TopicName("public", "flights")


class Clock:
    """Milliseconds since the epoch, set by the test."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class RunningBroker:
    """A broker with its own metadata session and ledger client, like a broker process."""

    def __init__(self, broker: Broker, store: MetadataStore, ledgers: LedgerClient) -> None:
        self.broker = broker
        self.store = store
        self.ledgers = ledgers
        self.server: BrokerServer | None = None
        self.gone = False

    async def close(self) -> None:
        if not self.gone:
            self.gone = True
            await (self.broker.close() if self.server is None else self.server.stop())
            await self.ledgers.close()
            await self.store.close()

    async def vanish(self) -> None:
        """End the broker's session and tell it nothing, as other brokers see a crash."""
        self.gone = True
        await self.store.close()

    async def expire(self) -> None:
        """End the session without telling the broker, as after a pause longer than its timeout."""
        store: Any = self.store
        lease = store._file._lease
        store._file._beats.write(lease.session_id, 0)
        lease.ends_ms = 0

    async def bury(self) -> None:
        with contextlib.suppress(Exception):
            await self.broker.close()
        await self.ledgers.close()


class Cluster:
    """Bookies b1, b2, … over one embedded store, and the clients and brokers that a test adds."""

    def __init__(
        self,
        folder: Path,
        store: MetadataStore,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        tls: Certificates | None = None,
        guarded: bool = False,
        patient: bool = False,
    ) -> None:
        self.folder = folder
        self._deadlines = PATIENT if patient else QUICK
        self.store = store
        self.guarded = guarded
        """Whether bookies authenticate callers once the policy demands it, and our clients
        prove themselves."""
        self.authenticates: KnowsCallers | None = None
        """Checks client certificates on bookies that start from now on."""
        self.tls = tls
        """All nodes share it: they run in one process."""
        self.keys: KeysConfig | None = None
        """Settings of ledger clients and brokers; each reads its keys itself."""
        self.clock = Clock()
        self.nodes: dict[str, BookieNode] = {}
        self.brokers: dict[str, RunningBroker] = {}
        self.apis: dict[str, Api] = {}
        self._session_timeout_ms = session_timeout_ms
        self._clients: list[LedgerClient] = []
        self._running: list[RunningBroker] = []
        self._http: aiohttp.ClientSession | None = None

    def parts(self) -> list[object]:
        living = [one for one in self._running if not one.gone]
        brokers = [part for one in living for part in (one.server, one.broker, one.ledgers)]
        return [*brokers, *self._clients, *self.nodes.values()]

    async def close(self) -> None:
        for running in self._running:
            await (running.bury() if running.gone else running.close())
        if self._http is not None:
            await self._http.close()
        for client in self._clients:
            await client.close()
        for name in tuple(self.nodes):
            await self.stop_bookie(name)

    # Bookies, and clients of their ledgers

    async def start_bookie(self, name: str, *, disk: Disk | None = None, **how: Any) -> BookieNode:
        """Start a bookie. A bookie with a known name gets its old folder back."""
        config = config_in(self.folder / name, bookie_id=name, **how)
        guard = Guard(self.store, wall_clock_ms, self.authenticates) if self.guarded else None
        node = new_node(config, self.store, disk, self.tls, guard)
        await node.start()
        self.nodes[name] = node
        return node

    async def stop_bookie(self, name: str) -> None:
        await self.nodes.pop(name).stop()

    async def client(self, seed: int = 1, **options: Any) -> LedgerClient:
        client = LedgerClient(
            self.store,
            rng=random.Random(seed),
            options=LedgerOptions(**{**self._deadlines, **options}),
            clock=lambda: 1_700_000_000_000,
            tls=self.tls,
            prove=await self.prove_as("client"),
            keys=self._own_keys(),
        )
        await client.start()
        self._clients.append(client)
        return client

    def _own_keys(self) -> DataKeys | None:
        return None if self.keys is None else data_keys_of(self.keys)

    async def drop_client(self, client: LedgerClient) -> None:
        self._clients.remove(client)
        await client.close()

    # Access

    async def prove_as(self, name: str) -> Prove | None:
        return await node_prover(self.store, name, wall_clock_ms) if self.guarded else None

    async def tokens(self) -> BookieTokens:
        return BookieTokens(await cluster_secret(self.store), wall_clock_ms)

    async def secure(self, *rules: tuple[str, str, str], secured: bool = True) -> None:
        """Replace all rules by these: principal, operations, resource. Return once the bookies
        know them."""
        made = tuple(
            rule_record(make_rule(principal, operations, resource, allow=True))
            for principal, operations, resource in rules
        )
        read = await PolicyStore(self.store).change(lambda _: PolicyRecord(secured, made))
        for node in self.nodes.values():
            guard = node._guard
            assert guard is not None, "for a guarded cluster"
            async with asyncio.timeout(10):
                while guard.authority.version != read.version:
                    await guard.authority.until_changed(guard.authority.generation)

    # Brokers

    async def start(self, broker_id: str, *, deaf: bool = False, **config: Any) -> RunningBroker:
        """Start a broker's core. With `deaf`, none of its watches fires."""
        made = BrokerConfig(broker_id=broker_id, **{**FAST, **config})
        running = await self._open_broker(made, self.clock, deaf=deaf)
        running.broker.tell_peer = self._tell_peer
        running.broker.ask_peer = self._ask_peer
        running.broker.letters.pass_on = self._pass_letter_on
        running.broker.announce_to_peer = self._announce_to_peer
        await running.broker.start(f"http://{broker_id}.test")
        return running

    async def start_broker(self, name: str, core: dict[str, Any] | None = None, **http: Any) -> Api:
        """Start a broker behind HTTP. `core` has settings of the core behind it."""
        settings: dict[str, Any] = {
            "trim_interval_ms": 200,
            "stop_handover_ms": 1_000,
            "handover_timeout_ms": 1_000,
            "leased_messages_max": LEASED_MAX,
            "delayed_messages_max": LEASED_MAX,
        }
        config = BrokerConfig(broker_id=name, port=0, **(settings | (core or {})))
        running = await self._open_broker(config, wall_clock_ms)
        server = running.server = BrokerServer(
            running.broker,
            store=running.store,
            ledgers=running.ledgers,
            clock=wall_clock_ms,
            call_key=(await cluster_secret(running.store)).key(KEY_USE),
            http=HttpConfig(**http),
            tls=self.tls,
        )
        await server.start()
        if self._http is None:
            context = self.tls.client if self.tls else None
            self._http = aiohttp.ClientSession(
                auto_decompress=False,
                connector=aiohttp.TCPConnector(ssl=context if context else True),
            )
        self.apis[name] = Api(self._http, server.url)
        return self.apis[name]

    async def _open_broker(
        self, config: BrokerConfig, clock: Callable[[], int], *, deaf: bool = False
    ) -> RunningBroker:
        store = open_store(self.store.url, session_timeout_ms=self._session_timeout_ms)
        if deaf:
            muted: Any = store
            for kind in ("watch", "watch_children"):
                setattr(muted, kind, _muted(getattr(store, kind)))
        await store.start()
        rng = random.Random(f"{config.broker_id} {len(self._running)}")
        ledgers = LedgerClient(
            store,
            rng=rng,
            options=LedgerOptions(**self._deadlines),
            clock=clock,
            tls=self.tls,
            prove=await self.prove_as(config.broker_id),
            keys=self._own_keys(),
        )
        await ledgers.start()
        broker = Broker(store, ledgers, config, rng=rng, clock=clock)
        running = RunningBroker(broker, store, ledgers)
        self._running.append(running)
        self.brokers[config.broker_id] = running
        return running

    async def stop_broker(self, name: str) -> None:
        self.apis.pop(name, None)
        running = self.brokers.pop(name)
        self._running.remove(running)
        await running.close()

    @property
    def api(self) -> Api:
        return next(iter(self.apis.values()))

    async def owner_of(self, path: str) -> str:
        answer = await self.api.get(path)
        assert answer.status == 200, answer
        owner: str = answer.json()["owner"]
        return owner

    async def at_owner(
        self, node: Broker, name: PartitionName, work: Callable[[Partition], Awaitable[T]]
    ) -> T:
        """Run `work` at the partition's owner by asking `node`, through the production
        forwarding."""
        call: Any = SimpleNamespace(
            services=SimpleNamespace(
                broker=node,
                config=SimpleNamespace(moving_wait_ms=2_000),
                quotas=SimpleNamespace(owned=lambda _call, _namespace: None),
            ),
            incarnation=None,
            names_incarnation=False,
            owner_url="",
        )

        async def there(owner: Owner) -> T:
            peer = self._living(owner.broker_id)
            if peer is None:
                raise OwnerUnreachable(owner.broker_id)
            return await served(peer, name, owner.incarnation, work)

        return await with_owner(call, name, work, there)

    def _living(self, broker_id: str) -> Broker | None:
        living = (one.broker for one in self._running if not one.gone)
        return next((broker for broker in living if broker.broker_id == broker_id), None)

    async def _tell_peer(self, peer: BrokerInfo, name: TopicName, incarnation: str) -> list[int]:
        broker = self._living(peer.broker_id)
        if broker is None:
            raise ConnectionRefusedError(peer.url)
        return await broker.let_go(name, incarnation)

    async def _pass_letter_on(self, owner: Owner, name: PartitionName, batch: bytes) -> None:
        partition = await owned(self.brokers[owner.broker_id].broker, name)
        await partition.store_copy(batch)

    async def _announce_to_peer(
        self, peer: BrokerInfo, name: PartitionName, foretold: HandoverNotice
    ) -> None:
        broker = self._living(peer.broker_id)
        if broker is None:
            raise ConnectionRefusedError(peer.url)
        await broker.ownership.prepare(name, foretold)

    async def _ask_peer(self, peer: BrokerInfo, name: PartitionName, handed: Handover) -> None:
        broker = self._living(peer.broker_id)
        if broker is None:
            raise ConnectionRefusedError(peer.url)
        await broker.ownership.take(name, handed)


def _muted(watch: Any) -> Any:
    return lambda path, on_change: watch(path, lambda: None)


@contextlib.asynccontextmanager
async def running_cluster(
    folder: Path,
    bookies: int = 3,
    *,
    brokers: int = 0,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    tls: Certificates | None = None,
    guarded: bool = False,
    patient: bool = False,
    **how: Any,
) -> AsyncIterator[Cluster]:
    """Run bookies with the settings `how`, and brokers behind HTTP, `broker-0` first. With
    `patient`, sessions and requests outlast a machine that stands still for seconds."""
    bookies_session_ms = SHIPPED_SESSION_TIMEOUT_MS
    if patient:
        bookies_session_ms = session_timeout_ms = PATIENT_SESSION_TIMEOUT_MS
    async with open_metadata(folder, bookies_session_ms) as store:
        cluster = Cluster(folder, store, session_timeout_ms, tls, guarded, patient)
        try:
            for number in range(1, bookies + 1):
                await cluster.start_bookie(f"b{number}", **how)
            for number in range(brokers):
                await cluster.start_broker(f"broker-{number}")
            yield cluster
        except BaseException:
            await cluster.close()
            raise
        parts = cluster.parts()
        await cluster.close()
        await _all_given_back(parts)


async def _all_given_back(parts: list[object]) -> None:
    """Wait until calls that the close cut off have returned what they counted: threads end
    later."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + GIVEN_BACK_S_MAX
    while left := held_after_close(parts):
        assert loop.time() < until_s, f"counted, and not given back at the end: {left}"
        await asyncio.sleep(0.01)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run three bookies without a broker, for a folder whose conftest.py imports this fixture."""
    async with running_cluster(tmp_path) as running:
        yield running


# -- ledgers


def payload_of(entry_id: int, size: int = 100) -> bytes:
    return b"%d:" % entry_id + b"x" * (size - len(b"%d:" % entry_id))


async def add_many(writer: LedgerWriter, count: int, size: int = 100) -> None:
    last: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    first = writer.last_add_pushed + 1
    errors: list[Any] = []
    order: list[int] = []

    def done(entry_id: int, error: Exception | None) -> None:
        order.append(entry_id)
        if error is not None:
            errors.append(error)
        if entry_id == first + count - 1:
            last.set_result(None)

    for entry_id in range(first, first + count):
        assert writer.add(payload_of(entry_id, size), done) == entry_id
    async with asyncio.timeout(30):
        await last
    assert not errors, errors[:3]
    assert order == list(range(first, first + count))


# -- topics


async def make_topic(broker: Broker, name: TopicName = TOPIC, **settings: Any) -> PartitionName:
    await broker.topics.create(name, TopicSettings(**settings))
    return name.partition(0)


async def owned(broker: Broker, name: PartitionName) -> Partition:
    """Claim and open the partition here, whatever the preference."""
    async with asyncio.timeout(60):
        while True:
            try:
                owner = await broker.ownership.owner_of(name, forwarded=True)
            except PartitionMoving:
                await asyncio.sleep(0.01)
            else:
                assert owner.local, owner
                return await broker.ownership.partition(name)


def batch(count: int = 1, *, tag: str = "m", time_ms: int = 1_000, **producer: int) -> bytes:
    return build_batch(
        [Record(b"k", f"{tag}-{i}".encode(), (), time_ms + i) for i in range(count)], **producer
    )


async def values(partition: Partition, start: int = 0) -> list[str]:
    """Return the values of all messages from `start` on; check that offsets have no gap."""
    found: list[str] = []
    offset = start
    while offset < partition.next_offset:
        for stored in await partition.read(offset, bytes_max=100_000, count_max=10_000):
            records = list(read_records(stored.data))
            assert stored.base_offset <= offset < stored.next_offset
            found += [(r.value or b"").decode() for r in records[offset - stored.base_offset :]]
            offset = stored.next_offset
    return found


async def until(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s: {what}") from None
