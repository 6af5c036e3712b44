"""Bookies, metadata and whole broker cores in one process, for tests of the broker core."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from octavo.broker.broker import Broker
from octavo.broker.config import BrokerConfig
from octavo.broker.errors import OwnerUnreachable, PartitionMoving
from octavo.broker.http.forwarding import with_owner
from octavo.broker.partition.partition import Partition
from octavo.broker.types import BrokerInfo, Owner, PartitionName, TopicName, TopicSettings
from octavo.ledger.client import LedgerClient
from octavo.ledger.options import LedgerOptions
from octavo.metadata.opening import open_store
from octavo.metadata.store import MetadataStore
from octavo.protocol.records import Record, build_batch, read_records
from tests.support.ledger_cluster import QUICK, Cluster, running_cluster

SESSION_TIMEOUT_MS = 2_000
FAST: dict[str, Any] = {
    "reopen_delay_ms": 50,
    "reopen_delay_ms_max": 200,
    "handover_timeout_ms": 1_000,
    "balance_after_ms": 600_000,
}
T = TypeVar("T")
TOPIC = TopicName("public", "flights")


class Clock:
    """Milliseconds since the epoch, set by the test."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class RunningBroker:
    """A broker with a metadata session and a ledger client of its own."""

    def __init__(self, broker: Broker, store: MetadataStore, ledgers: LedgerClient) -> None:
        self.broker = broker
        self.store = store
        self.ledgers = ledgers
        self.gone = False

    async def close(self) -> None:
        if not self.gone:
            self.gone = True
            await self.broker.close()
            await self.ledgers.close()
            await self.store.close()

    async def vanish(self) -> None:
        """What the others see of a crash: the session ends; the broker itself hears nothing."""
        self.gone = True
        await self.store.close()

    async def expire(self) -> None:
        """End the session behind the broker's back, as after a pause longer than its timeout."""
        store: Any = self.store
        lease = store._file._lease
        store._file._beats.write(lease.session_id, 0)
        lease.ends_ms = 0

    async def bury(self) -> None:
        """Stop what still runs of a broker that has vanished."""
        with contextlib.suppress(Exception):
            await self.broker.close()
        await self.ledgers.close()


class BrokerCluster:
    """Brokers A, B, … over the bookies of `cluster`."""

    def __init__(
        self, cluster: Cluster, folder: Path, session_timeout_ms: int = SESSION_TIMEOUT_MS
    ) -> None:
        self.cluster = cluster
        self._session_timeout_ms = session_timeout_ms
        self.clock = Clock()
        self._url = f"file://{folder / 'metadata.db'}"
        self._running: list[RunningBroker] = []

    async def start(self, broker_id: str, *, deaf: bool = False, **config: Any) -> RunningBroker:
        """`deaf`: none of its watches ever fires."""
        store = open_store(self._url, session_timeout_ms=self._session_timeout_ms)
        if deaf:
            muted: Any = store
            for kind in ("watch", "watch_children"):
                setattr(muted, kind, _muted(getattr(store, kind)))
        await store.start()
        rng = random.Random(f"{broker_id} {len(self._running)}")
        ledgers = LedgerClient(store, rng=rng, options=LedgerOptions(**QUICK), clock=self.clock)
        await ledgers.start()
        broker = Broker(
            store,
            ledgers,
            BrokerConfig(broker_id=broker_id, **{**FAST, **config}),
            rng=rng,
            clock=self.clock,
        )
        broker.tell_peer = self._tell_peer
        broker.ask_peer = self._ask_peer
        await broker.start(f"http://{broker_id}.test")
        running = RunningBroker(broker, store, ledgers)
        self._running.append(running)
        return running

    async def at_owner(
        self,
        node: Broker,
        name: PartitionName,
        work: Callable[[Partition], Awaitable[T]],
        *,
        forwarded: bool = False,
        incarnation: str | None = None,
    ) -> T:
        """What `work` gives at the partition's owner, asked for at `node`: the production proxy."""
        call: Any = SimpleNamespace(
            services=SimpleNamespace(broker=node, config=SimpleNamespace(moving_wait_ms=2_000)),
            forwarded=forwarded,
            incarnation=incarnation,
            names_incarnation=False,
            owner_url="",
        )

        async def there(owner: Owner) -> T:
            for one in self._running:
                if one.broker.broker_id == owner.broker_id and not one.gone:
                    return await self.at_owner(
                        one.broker, name, work, forwarded=True, incarnation=owner.incarnation
                    )
            raise OwnerUnreachable(owner.broker_id)

        return await with_owner(call, name, work, there)

    async def _tell_peer(self, peer: BrokerInfo, name: TopicName, incarnation: str) -> list[int]:
        for running in self._running:
            if running.broker.broker_id == peer.broker_id and not running.gone:
                return await running.broker.let_go(name, incarnation)
        raise ConnectionRefusedError(peer.url)

    async def _ask_peer(self, peer: BrokerInfo, name: PartitionName, incarnation: str) -> None:
        for running in self._running:
            if running.broker.broker_id == peer.broker_id and not running.gone:
                return await self.at_owner(
                    running.broker, name, _nothing, forwarded=True, incarnation=incarnation
                )
        raise ConnectionRefusedError(peer.url)

    async def close(self) -> None:
        for running in self._running:
            if running.gone:
                await running.bury()
            else:
                await running.close()


async def _nothing(_: Partition) -> None:
    """All that a broker wants of an heir is that it serves."""


def _muted(watch: Any) -> Any:
    return lambda path, on_change: watch(path, lambda: None)


@contextlib.asynccontextmanager
async def running_brokers(folder: Path, bookies: int = 3) -> AsyncIterator[BrokerCluster]:
    """A cluster without brokers yet; everything is stopped at the end."""
    async with running_cluster(folder, bookies) as cluster:
        brokers = BrokerCluster(cluster, folder)
        try:
            yield brokers
        finally:
            await brokers.close()


async def make_topic(broker: Broker, name: TopicName = TOPIC, **settings: Any) -> PartitionName:
    """Create a topic; the name of its partition 0."""
    await broker.topics.create(name, TopicSettings(**settings))
    return name.partition(0)


async def owned(broker: Broker, name: PartitionName) -> Partition:
    """The partition, claimed and opened here whatever the preference."""
    async with asyncio.timeout(15):
        while True:
            try:
                owner = await broker.ownership.owner_of(name, forwarded=True)
            except PartitionMoving:
                await asyncio.sleep(0.01)
            else:
                assert owner.local, owner
                return await broker.ownership.partition(name)


def batch(count: int = 1, *, tag: str = "m", time_ms: int = 1_000, **producer: int) -> bytes:
    """A batch of messages whose values are `tag` and their number."""
    return build_batch(
        [Record(b"k", f"{tag}-{i}".encode(), (), time_ms + i) for i in range(count)], **producer
    )


async def values(partition: Partition, start: int = 0) -> list[str]:
    """The values of all messages from `start` on, each at its own offset."""
    found: list[str] = []
    offset = start
    while offset < partition.next_offset:
        for stored in await partition.read(offset, bytes_max=100_000, count_max=10_000):
            records = list(read_records(stored.data))
            assert stored.base_offset <= offset < stored.next_offset
            found += [(r.value or b"").decode() for r in records[offset - stored.base_offset :]]
            offset = stored.next_offset
    return found


async def until(condition: Callable[[], Any], what: str, timeout_s: float = 15.0) -> None:
    """Wait until the condition holds; fail with `what` if it does not."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s: {what}") from None
