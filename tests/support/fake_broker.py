"""A broker's core in memory that opens thousands of partitions at once, for tests/unit/broker_http/
test_loop_turns. All other tests of HTTP use memory_cluster.py: what a fake answers may be wrong.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import aiohttp

from octavo.broker import audit as audit_log
from octavo.broker import errors
from octavo.broker.bulkload.driver import ANYBODY, CheckTaken, Committed, LoadPart, Offer, takes_all
from octavo.broker.bulkload.rules import Caller
from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.cluster.balance import Place
from octavo.broker.cluster.broker_status import BrokerStatus
from octavo.broker.cluster.membership import GoneBroker
from octavo.broker.cluster.schema_registry import SchemaRegistry
from octavo.broker.config import BrokerConfig
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.server import BrokerServer
from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.metrics import Duties
from octavo.broker.types import (
    AckId,
    BrokerInfo,
    Delivery,
    MessageId,
    Nack,
    Owner,
    PartitionName,
    PartitionStats,
    Published,
    Publishing,
    StoredBatch,
    SubscriptionInfo,
    SubscriptionSettings,
    SubscriptionStats,
    TopicInfo,
    TopicName,
    TopicSettings,
)
from octavo.metadata.bulk_loads import BulkLoadPart, BulkLoadRecord
from octavo.metadata.schemas import SchemaStore
from octavo.metadata.secret import SECRET_BYTES, SECRET_PATH, SecretRecord
from octavo.metadata.store import Record as Stored
from octavo.metadata.store import RecordNotFound, SessionState
from octavo.metadata.topic_records import NamespaceRecord, encode_record
from octavo.metadata.topic_settings import Policies
from octavo.protocol.ack_ids import each
from octavo.protocol.batch import check_batch, with_base_offset
from octavo.protocol.records import read_records
from tests.support.http_api import Api

NOW_MS = 1_700_000_000_000
CALL_KEY = b"the brokers' own key"


class FakeSubscription:
    def __init__(self, partition: FakePartition, info: SubscriptionInfo) -> None:
        self.partition = partition
        self.info = info
        start = info.settings.start
        self.next = partition.earliest_offset if start == "earliest" else partition.next_offset
        self.acked: set[int] = set()
        self.leases: dict[int, tuple[int, str]] = {}
        self.counts: dict[int, int] = {}
        self.lease = 0
        self.leased_max = 50_000

    async def receive(
        self,
        consumer: str,
        *,
        messages_max: int,
        wait_s: float = 0.0,
        request: str = "",
        out_max: int | None = None,
        generation: int | None = None,
        priority: int = 0,
    ) -> list[Delivery]:
        return self._take(consumer, messages_max)

    receive_batches = receive
    """Singly, as a real broker returns messages when whole batches would exceed the maximum."""

    def _take(self, consumer: str, most: int) -> list[Delivery]:
        found: list[Delivery] = []
        records = self.partition.all_records()
        while len(found) < most:
            if self.next < self.partition.next_offset and len(self.leases) < self.leased_max:
                offset = self.next
                self.next += 1
            else:
                break
            if offset in self.acked:
                continue
            self.lease += 1
            self.leases[offset] = (self.lease, consumer)
            self.counts[offset] = self.counts.get(offset, 0) + 1
            ack_id = AckId(self.partition.name.partition, offset, 1, self.lease)
            message_id, record = records[offset]
            found.append(Delivery(str(ack_id), offset, message_id, record, self.counts[offset]))
        return found

    async def acknowledge(
        self,
        ack_ids: Sequence[str] = (),
        *,
        up_to: int | None = None,
        nacks: Sequence[Nack] = (),
        extend: Sequence[str] = (),
        release: Sequence[str] = (),
    ) -> int:
        before = len(self.acked)
        stale = []
        for text in each(ack_ids):
            offset, lease = AckId.parse(text).offset, AckId.parse(text).lease
            if offset in self.acked:
                continue
            if self.leases.get(offset, (0, ""))[0] != lease:
                stale.append(text)
            else:
                del self.leases[offset]
                self.acked.add(offset)
        if stale:
            raise errors.StaleLease(f"{len(stale)} leases have ended", stale)
        return len(self.acked) - before

    @property
    def committed_offset(self) -> int:
        return next(n for n in itertools.count() if n not in self.acked)

    async def peek(self, messages_max: int) -> list[Delivery]:
        unacked = [n for n in self.partition.all_records() if n not in self.acked]
        records = self.partition.all_records()
        return [
            Delivery("", offset, *records[offset], self.counts.get(offset, 0))
            for offset in unacked[:messages_max]
        ]

    async def skip(self, count: int) -> int:
        unacked = [n for n in range(self.partition.next_offset) if n not in self.acked]
        self.acked |= set(unacked[:count])
        return len(unacked[:count])

    async def ack_before(self, offset: int) -> int:
        before = len(self.acked)
        self.acked |= set(range(offset))
        return len(self.acked) - before

    async def seek(self, offset: int, *, exactly: bool = False) -> int:
        self.next = max(self.partition.earliest_offset, min(offset, self.partition.next_offset))
        self.acked = set(range(self.next))
        self.leases.clear()
        return self.next

    def held_back(self, consumer: str = "") -> str | None:
        full = len(self.leases) >= self.leased_max and self.next < self.partition.next_offset
        return f"{len(self.leases)} messages are out" if full else None

    def stats(self) -> SubscriptionStats:
        return SubscriptionStats(
            name=self.info.name,
            type=self.info.settings.type,
            committed_offset=-1,
            next_offset=self.next,
            backlog=self.partition.next_offset - len(self.acked),
            unacked_ranges=0,
            leased=len(self.leases),
            redelivering=0,
            delayed=0,
            held_back=self.held_back(),
            consumers=(),
        )


class FakeBulkLoads:
    """Remembers commits; it neither writes nor loads a ledger."""

    def __init__(self) -> None:
        self.records: dict[str, BulkLoadRecord] = {}

    async def begin(
        self,
        bulk_load: str,
        batch: int,
        content: Mapping[PartitionName, str],
        load_part: LoadPart,
        caller: Caller = ANYBODY,
        check_taken: CheckTaken = takes_all,
    ) -> bool:
        return batch > self.records.get(bulk_load, BulkLoadRecord()).batch

    async def commit(
        self,
        bulk_load: str,
        batch: int,
        offers: Sequence[Offer],
        load_part: LoadPart,
        *,
        published: bool = False,
        caller: Caller = ANYBODY,
        check_taken: CheckTaken = takes_all,
    ) -> Committed:
        found = self.records.get(bulk_load, BulkLoadRecord())
        if batch <= found.batch:
            return Committed(found, True, {})
        parts = tuple(BulkLoadPart(*one.name, 0, one.ledgers) for one in offers)
        offsets = {one.name: await load_part(one.name, bulk_load, batch) for one in offers}
        record = self.records[bulk_load] = BulkLoadRecord(
            batch, parts, begun=batch if published else -1
        )
        return Committed(record, False, offsets)


class FakePartition:
    def __init__(self, name: PartitionName, cluster: FakeCluster) -> None:
        self.name = name
        self.cluster = cluster
        self.batches: list[StoredBatch] = []
        self.next_offset = 0
        self.earliest_offset = 0
        self.subscriptions: dict[str, FakeSubscription] = {}
        self.stream = SimpleNamespace(state=None)

    epoch = 1

    def wall_ms(self) -> int:
        return self.cluster.now_ms

    async def truncate(self, before: int) -> int:
        if before > self.next_offset:
            raise errors.OffsetBeyondEnd(f"the next offset is {self.next_offset}", before)
        self.earliest_offset = max(self.earliest_offset, before)
        return self.earliest_offset

    async def load_part(self, bulk_load: str, batch: int) -> int | None:
        assert bulk_load
        assert batch >= 0
        return self.next_offset

    async def publish(
        self,
        batch: bytes,
        *,
        expected_offset: int | None = None,
        checked: bool = False,
        access: int | None = None,
        own: bool = False,
    ) -> Published:
        assert isinstance(batch, bytes)
        # Check even where the caller vouches for the batch, so that a test sees a false claim.
        header = check_batch(batch)
        first, count = self.next_offset, header.record_count
        entry = len(self.batches)
        published = Published(first, first + count - 1, 7, entry, count, False)
        self.batches.append(StoredBatch(first, 7, entry, header, with_base_offset(batch, first)))
        self.next_offset += count
        await asyncio.sleep(0)
        return published

    def all_records(self) -> dict[int, tuple[MessageId, Any]]:
        return {
            batch.base_offset + index: (MessageId(7, batch.entry_id, index), record)
            for batch in self.batches
            for index, record in enumerate(read_records(batch.data))
        }

    async def resolve(
        self, *, at: MessageId | int | str | None = None, time_ms: int | None = None
    ) -> int:
        if time_ms is not None:
            for offset, (_, record) in sorted(self.all_records().items()):
                if record.timestamp_ms >= time_ms:
                    return offset
            return self.next_offset
        if isinstance(at, MessageId):
            for offset, (message_id, _) in self.all_records().items():
                if message_id == at:
                    return offset
            raise errors.MessageNotFound(f"no message {at} in {self.name}")
        ends: dict[Any, Any] = {"earliest": self.earliest_offset, "latest": self.next_offset}
        return cast(int, ends.get(at, at))

    async def subscribe(self, info: SubscriptionInfo) -> FakeSubscription:
        return self.subscriptions.setdefault(info.name, FakeSubscription(self, info))

    async def subscription(self, name: str) -> FakeSubscription:
        infos = self.cluster.subscriptions[self.name.topic_name]
        if name not in infos:
            raise errors.SubscriptionNotFound(f"no subscription {name}")
        return await self.subscribe(infos[name])

    def publishing(self) -> Publishing:
        return Publishing(0, 1000, None, ())

    async def stats(self) -> PartitionStats:
        return PartitionStats(
            name=self.name,
            broker_id=self.cluster.owners[self.name] or "",
            epoch=1,
            earliest_offset=self.earliest_offset,
            next_offset=self.next_offset,
            stored_bytes=sum(len(batch.data) for batch in self.batches),
            pending_bytes=0,
            ledgers=((7, 0),),
            last_add_confirmed=len(self.batches) - 1,
            producers=0,
            subscriptions={n: one.stats() for n, one in self.subscriptions.items()},
        )


class FakeStore:
    """The cluster's secret, and no other record."""

    url = "file:///fake.db"
    session_state = SessionState.CONNECTED

    def __init__(self) -> None:
        secret = encode_record(SecretRecord("5e" * SECRET_BYTES))
        self.records: dict[str, Stored] = {SECRET_PATH: Stored(secret, 0)}

    def on_session(self, listener: Any) -> None:
        pass

    async def children(self, path: str) -> Any:
        return ["k1", "k2", "k3"] if path.endswith("/cookies") else []

    def watch_children(self, path: str, on_change: Any) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    def watch(self, path: str, on_change: Callable[[], None]) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    async def sync(self) -> None:
        pass

    async def get(self, path: str) -> Stored:
        if path not in self.records:
            raise RecordNotFound(path)
        return self.records[path]


class FakeCluster:
    def __init__(self) -> None:
        self.namespaces = {"public": NamespaceRecord()}
        self.topics: dict[TopicName, TopicInfo] = {}
        self.subscriptions: dict[TopicName, dict[str, SubscriptionInfo]] = {}
        self.partitions: dict[PartitionName, FakePartition] = {}
        self.owners: dict[PartitionName, str | None] = {}
        self.brokers: dict[str, FakeBroker] = {}
        self.store: Any = FakeStore()
        self.now_ms = NOW_MS


class FakeBroker:
    def __init__(self, cluster: FakeCluster, broker_id: str, config: BrokerConfig) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.config = config
        self.url = ""
        self.bulk_loads = FakeBulkLoads()
        self.open_batches = OpenBatches(0)
        self.balance = SimpleNamespace(
            to_move=dict[PartitionName, str],
            unload=self.unload,
            place_of=lambda _: Place("it was first", broker_id, False, 5.0, 12.0),
        )
        self.statuses = SimpleNamespace(
            of=lambda other: cluster.brokers[other].standing(), age_s=lambda other: 0.0
        )
        self.topics = self.ownership = self.registry = self  # the fake plays all three parts
        self.schemas = SchemaRegistry(
            SchemaStore(cluster.store), lambda: NOW_MS, asyncio.ensure_future
        )
        self.tell_peer: Any = None
        self.ask_peer: Any = None
        self.letters = SimpleNamespace(pass_on=None)
        self.inactive = SimpleNamespace(ask=None)
        self.announce_to_peer: Any = None
        cluster.brokers[broker_id] = self

    def duties(self) -> Duties:
        return Duties()

    async def start(self, url: str) -> None:
        self.url = url

    async def give_away(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def namespace(self, name: str) -> NamespaceRecord:
        if name not in self.cluster.namespaces:
            raise errors.NamespaceNotFound(f"no namespace {name}")
        return self.cluster.namespaces[name]

    async def policies_of(self, namespace: str) -> Policies:
        return (await self.namespace(namespace)).policies

    async def list_namespaces(self) -> list[str]:
        return sorted(self.cluster.namespaces)

    async def create(
        self,
        name: TopicName,
        settings: TopicSettings,
        *,
        own: bool = False,
        for_stream: bool = False,
    ) -> tuple[TopicInfo, bool]:
        if name.namespace not in self.cluster.namespaces:
            raise errors.NamespaceNotFound(f"no namespace {name.namespace}")
        found = self.cluster.topics.get(name)
        if found is not None:
            if found.settings != settings:
                raise errors.SettingsConflict(f"{name} exists with other settings")
            return found, False
        info = self.cluster.topics[name] = TopicInfo(
            name, settings, NOW_MS, f"i{len(self.cluster.topics)}", for_stream=for_stream
        )
        self.cluster.subscriptions[name] = {}
        ids = sorted(self.cluster.brokers)
        for number in range(settings.partitions):
            partition = name.partition(number)
            self.cluster.partitions[partition] = FakePartition(partition, self.cluster)
            self.cluster.owners[partition] = ids[number % len(ids)]
        return info, True

    async def get(self, name: TopicName, incarnation: str | None = None) -> TopicInfo:
        try:
            found = self.cluster.topics[name]
        except KeyError:
            raise errors.TopicNotFound(f"there is no topic {name}") from None
        if incarnation and found.incarnation != incarnation:
            raise errors.TopicChanged(f"topic {name} is another one", looked=True)
        return found

    def standing(self) -> BrokerStatus:
        return BrokerStatus(False, len(self.open_partitions()))

    async def unload(self, name: PartitionName, to: str) -> BrokerInfo:
        self.cluster.owners[name] = to or self.broker_id
        return BrokerInfo(to or self.broker_id, "")

    def settings_of(self, name: TopicName, fallback: TopicSettings) -> TopicSettings:
        found = self.cluster.topics.get(name)
        namespace = self.cluster.namespaces.get(name.namespace, NamespaceRecord())
        return (fallback if found is None else found.settings).under(namespace.policies)

    async def names_in(self, namespace: str) -> list[str]:
        if namespace not in self.cluster.namespaces:
            raise errors.NamespaceNotFound(f"no namespace {namespace}")
        return sorted(name.topic for name in self.cluster.topics if name.namespace == namespace)

    async def create_subscription(
        self, topic: TopicName, name: str, settings: SubscriptionSettings
    ) -> tuple[SubscriptionInfo, bool]:
        await self.get(topic)
        infos = self.cluster.subscriptions[topic]
        if name in infos:
            if infos[name].settings != settings:
                raise errors.SettingsConflict(f"{name} exists with other settings")
            return infos[name], False
        infos[name] = SubscriptionInfo(name, settings, NOW_MS)
        return infos[name], True

    async def subscription(self, topic: TopicName, name: str) -> SubscriptionInfo:
        await self.get(topic)
        try:
            return self.cluster.subscriptions[topic][name]
        except KeyError:
            raise errors.SubscriptionNotFound(f"no subscription {name}") from None

    async def delete_subscription(self, topic: TopicName, name: str) -> None:
        await self.subscription(topic, name)
        del self.cluster.subscriptions[topic][name]

    async def owner_of(
        self, name: PartitionName, *, forwarded: bool = False, incarnation: str | None = None
    ) -> Owner:
        info = await self.get(name.topic_name, incarnation)
        if name not in self.cluster.owners:
            raise errors.PartitionNotFound(f"no partition {name}")
        owner = self.cluster.owners[name]
        if owner is None:
            raise errors.PartitionMoving(f"{name} has no owner at this moment")
        broker = self.cluster.brokers[owner]
        return Owner(owner, broker.url, broker is self, info.incarnation)

    def owner_changes(self, name: PartitionName) -> int:
        return 0

    async def partition(self, name: PartitionName) -> FakePartition:
        if self.cluster.owners.get(name) != self.broker_id:
            raise errors.NotOwner(f"{name} is not served here")
        return self.cluster.partitions[name]

    def open_partitions(self) -> list[FakePartition]:
        return [
            self.cluster.partitions[name]
            for name, owner in self.cluster.owners.items()
            if owner == self.broker_id
        ]

    def deletion_time(self) -> DeletionTime | None:
        return DeletionTime(NOW_MS, "", 0, NOW_MS)

    def gone(self) -> list[GoneBroker]:
        return []

    def brokers(self) -> list[BrokerInfo]:
        return [BrokerInfo(one.broker_id, one.url) for one in self.cluster.brokers.values()]


class Running:
    def __init__(self, api: Api) -> None:
        self.api = api


@asynccontextmanager
async def running() -> AsyncIterator[Running]:
    """Start one broker."""
    cluster = FakeCluster()
    server = BrokerServer(
        FakeBroker(cluster, "b0", BrokerConfig(broker_id="b0", port=0)),  # type: ignore[arg-type]
        store=cluster.store,
        ledgers=None,  # type: ignore[arg-type]
        clock=lambda: NOW_MS,
        call_key=CALL_KEY,
        http=HttpConfig(stop_timeout_ms=2000, moving_wait_ms=1500),
    )
    await server.start()
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        try:
            yield Running(Api(session, server.url))
        finally:
            # No broker serves the audit topic here, and a server would wait for it when it closes.
            with patch.object(audit_log, "CLOSE_S", 0.05):
                await server.stop()
