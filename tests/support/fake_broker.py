"""A broker core in memory, for fast tests of the HTTP side: real semantics without ledgers.

Several `FakeBroker`s of one `FakeCluster` share topics and logs. `cluster.owners` says which broker
serves a partition; a test moves a partition by changing it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
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
from octavo.broker.cluster.forks import OwnersPoint
from octavo.broker.cluster.membership import GoneBroker
from octavo.broker.cluster.schema_registry import SchemaRegistry
from octavo.broker.config import BrokerConfig
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.server import BrokerServer
from octavo.broker.log.ledger_list import Cut, ForkPoint
from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.metrics import Duties
from octavo.broker.partition.compacted import CompactedPage
from octavo.broker.partition.handover_messages import Handover, HandoverNotice
from octavo.broker.partition.message_batcher import Joined, Placed
from octavo.broker.partition.stream import PartitionStream
from octavo.broker.state.producers import BROKERS, Access, AccessState
from octavo.broker.state.stream import Append, StreamState
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
from octavo.metadata.schemas import SCHEMAS_ROOT, SchemaStore
from octavo.metadata.secret import SECRET_BYTES, SECRET_PATH, SecretRecord
from octavo.metadata.store import Record as Stored
from octavo.metadata.store import RecordExists, RecordNotFound, SessionState, VersionConflict
from octavo.metadata.topic_records import ForkRecord, NamespaceRecord, encode_record
from octavo.metadata.topic_settings import Policies
from octavo.protocol.ack_ids import each
from octavo.protocol.batch import check_batch, read_header, with_base_offset
from octavo.protocol.large import PIECE_BYTES, LargeBody, Piece, large_body_of
from octavo.protocol.records import Record, build_batch, read_records
from tests.support.http_api import Answer, Api, until

__all__ = ["Answer", "Api", "until"]

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
        self.redeliver: list[int] = []
        self.counts: dict[int, int] = {}
        self.lease = 0
        self.holder: str | None = None
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
        if self.info.settings.type == "exclusive":
            if self.holder not in (None, consumer):
                raise errors.SubscriptionBusy(f"{self.holder} holds it")
            self.holder = consumer
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            found = self._take(consumer, messages_max)
            left = deadline - asyncio.get_running_loop().time()
            if found or left <= 0:
                return found
            await self.partition.wait(left)

    receive_batches = receive
    """Singly, as a real broker returns messages when whole batches would exceed the maximum."""

    def _take(self, consumer: str, most: int) -> list[Delivery]:
        found: list[Delivery] = []
        records = self.partition.all_records()
        while len(found) < most:
            if self.redeliver:
                offset = self.redeliver.pop(0)
            elif self.next < self.partition.next_offset and len(self.leases) < self.leased_max:
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
        if up_to is not None and self.info.settings.type == "shared":
            raise errors.CUMULATIVE_ACK_NOT_ALLOWED("shared subscriptions ack one by one")
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
        for nack_id in each([*(nack.ack_id for nack in nacks), *release]):
            offset = AckId.parse(nack_id).offset
            if self.leases.pop(offset, None):
                self.redeliver.append(offset)
        for nack_id in each(release):
            self.counts[AckId.parse(nack_id).offset] -= 1
        if nacks or release:
            self.partition.wake()
        if up_to is not None:
            self.acked |= set(range(up_to + 1))
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
        if exactly and offset < self.partition.earliest_offset:
            raise errors.OffsetTrimmed("it is gone", self.partition.earliest_offset)
        if exactly and offset > self.partition.next_offset:
            raise errors.OffsetBeyondEnd("not yet", self.partition.next_offset)
        self.next = max(self.partition.earliest_offset, min(offset, self.partition.next_offset))
        self.acked = set(range(self.next))
        self.leases.clear()
        self.redeliver.clear()
        return self.next

    def unacked_limits(self) -> tuple[int, int | None]:
        return self.leased_max, None

    def waiting(self) -> list[str]:
        return [f"{len(self.leases)} messages are out"] if self.leases else []

    def held_back(self, consumer: str = "") -> str | None:
        full = len(self.leases) >= self.leased_max and self.next < self.partition.next_offset
        return f"{len(self.leases)} messages are out" if full else None

    def use(self) -> None:
        """A fake forgets no subscription."""

    def stats(self) -> SubscriptionStats:
        return SubscriptionStats(
            name=self.info.name,
            type=self.info.settings.type,
            committed_offset=-1,
            next_offset=self.next,
            backlog=self.partition.next_offset - len(self.acked),
            unacked_ranges=0,
            leased=len(self.leases),
            redelivering=len(self.redeliver),
            delayed=0,
            held_back=self.held_back(),
            consumers=(),
        )


class FakeBulkLoads:
    """Remembers commits; it neither writes nor loads a ledger."""

    def __init__(self) -> None:
        self.records: dict[str, BulkLoadRecord] = {}
        self.asked: list[tuple[str, int, Sequence[Offer]]] = []
        self.begun: list[tuple[str, int, Mapping[str, str]]] = []
        self.callers: list[Caller] = []

    async def begin(
        self,
        bulk_load: str,
        batch: int,
        content: Mapping[PartitionName, str],
        load_part: LoadPart,
        caller: Caller = ANYBODY,
        check_taken: CheckTaken = takes_all,
    ) -> bool:
        self.callers.append(caller)
        self.begun.append((bulk_load, batch, {str(name): said for name, said in content.items()}))
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
        self.callers.append(caller)
        self.asked.append((bulk_load, batch, offers))
        found = self.records.get(bulk_load, BulkLoadRecord())
        if batch <= found.batch:
            return Committed(found, True, {})
        parts = tuple(BulkLoadPart(*one.name, 0, one.ledgers) for one in offers)
        offsets = {one.name: await load_part(one.name, bulk_load, batch) for one in offers}
        record = self.records[bulk_load] = BulkLoadRecord(
            batch, parts, begun=batch if published else -1
        )
        return Committed(record, False, offsets)

    async def abort(
        self, bulk_load: str, batch: int, ledgers: Sequence[int], caller: Caller = ANYBODY
    ) -> list[int]:
        self.callers.append(caller)
        assert bulk_load
        assert batch >= 0
        return list(ledgers)

    async def newest(self, bulk_load: str) -> BulkLoadRecord:
        return self.records.get(bulk_load, BulkLoadRecord())


class FakeCompacted:
    """Compaction without a view: reads the partition itself."""

    def __init__(self, partition: FakePartition) -> None:
        self.partition = partition

    async def resolve(self, **where: Any) -> int:
        return await self.partition.resolve(**where)

    async def read(self, offset: int, **bounds: Any) -> CompactedPage:
        batches = await self.partition.read(offset, **bounds)
        return CompactedPage(batches, offset, batches[-1].next_offset if batches else offset)


class FakePipeline:
    """The publisher of a durable stream; everything is stored at once."""

    failed = None
    closing: Append | None = None

    def __init__(self, partition: FakePartition) -> None:
        self.partition = partition
        self.stored_stream: StreamState | None = None

    @property
    def next_offset(self) -> int:
        return self.partition.next_offset

    confirmed_offset = next_offset

    def begin_stream(self, stream: StreamState) -> None:
        self.stored_stream = stream

    def let_close(self, append: Append) -> int | None:
        assert self.stored_stream is not None
        if append.producer is None and self.stored_stream.closed:
            return self.next_offset
        end = self.stored_stream.check(append, self.next_offset)
        if end is None:
            self.closing = append
        return end

    async def confirmed_up_to(self, offset: int) -> None:
        assert offset <= self.next_offset

    async def store(self, batch: bytes, append: Append, expected: int | None) -> int | None:
        stream = self.stored_stream
        assert stream is not None
        if stream.check(append, self.next_offset) is not None:
            return None
        await self.partition.store(batch, expected_offset=expected)
        stream.accept(append, self.next_offset)
        return self.next_offset

    async def persist(self, op: Any) -> None:
        pass


class FakeBody:
    def __init__(self, offset: int, data: bytes, record: Record) -> None:
        self.offset = offset
        self.data = data
        self.size = len(data)
        large = large_body_of(record.headers)
        self.large = large if large and large.pieces else None

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        yield self.data

    async def piece(self, number: int) -> Piece:
        if self.large is None:
            return Piece("", 0, self.data)
        start = number * PIECE_BYTES
        return Piece(self.large.upload, number, self.data[start : start + PIECE_BYTES])


class FakeUpload:
    """An upload whose pieces take no offsets."""

    def __init__(self, partition: FakePartition, upload: str) -> None:
        self.upload = upload or "u"
        self._known_as = upload
        self._partition = partition
        self._parts: list[bytes] = []

    async def add(self, data: bytes) -> None:
        self._parts.append(data)

    async def finish(self, message: Record, body: LargeBody) -> Published:
        assert body.pieces == len(self._parts)
        batch = build_batch([message._replace(headers=[*message.headers, body.header()])])
        published = await self._partition.publish(batch)
        self._partition.bodies[published.first_offset] = b"".join(self._parts)
        if self._known_as:
            self._partition.uploads[self._known_as] = published
        return published

    def discard(self) -> None:
        self._parts.clear()


class FakePartition:
    def __init__(self, name: PartitionName, cluster: FakeCluster) -> None:
        self.name = name
        self.cluster = cluster
        self.batches: list[StoredBatch] = []
        self.next_offset = 0
        self.earliest_offset = 0
        self.producers: dict[int, tuple[int, int, dict[int, Published]]] = {}
        self.subscriptions: dict[str, FakeSubscription] = {}
        self.waiters: set[asyncio.Future[None]] = set()
        self.before_publish: Callable[[], Any] | None = None
        self.exclusive = Access(AccessState())
        self.pipeline = FakePipeline(self)
        self.stream = PartitionStream(
            name, lambda: cast(Any, self.pipeline), self.pipeline.store, self.pipeline.persist,
            self.prove, lambda: DeletionTime(cluster.now_ms, "", 0, cluster.now_ms), 100,
        )  # fmt: skip
        self.bodies: dict[int, bytes] = {}
        self.uploads: dict[str, Published] = {}

    epoch = 1

    @property
    def incarnation(self) -> str:
        return self.cluster.topics[self.name.topic_name].incarnation

    def wall_ms(self) -> int:
        return self.cluster.now_ms

    async def truncate(self, before: int) -> int:
        if before > self.next_offset:
            raise errors.OffsetBeyondEnd(f"the next offset is {self.next_offset}", before)
        self.earliest_offset = max(self.earliest_offset, before)
        return self.earliest_offset

    async def fork_point(self, offset: int) -> ForkPoint:
        if offset > self.next_offset:
            raise errors.OffsetBeyondEnd(f"the next offset is {self.next_offset}", offset)
        return ForkPoint(offset, Cut(7, 0, 0, -1) if offset else None)

    def is_subscription_unused(self, name: str, for_ms: int, retire_s: float = 0.0) -> bool:
        return False

    def is_unused(self, for_ms: int, retire_s: float = 0.0) -> bool:
        return False

    async def prove(self) -> None:
        pass

    async def load_part(self, bulk_load: str, batch: int) -> int | None:
        assert bulk_load
        assert batch >= 0
        return self.next_offset

    def check_due(self, record: Record) -> None:
        """Topics of a fake have no time to live."""

    async def store_copy(self, batch: bytes) -> None:
        await self.store(batch, access=BROKERS)

    async def begin_large(self, upload: str, access: int | None = None) -> FakeUpload | Published:
        self.exclusive.check(access, 0)
        found = self.uploads.get(upload)
        return FakeUpload(self, upload) if found is None else found._replace(duplicate=True)

    async def body(self, offset: int) -> FakeBody:
        if offset not in (found := self.all_records()):
            raise errors.MessageNotFound(f"there is no message at offset {offset} yet")
        record = found[offset][1]
        return FakeBody(offset, self.bodies.get(offset, record.value or b""), record)

    async def body_piece(self, offset: int, number: int) -> Piece:
        return await (await self.body(offset)).piece(number)

    async def publish_single(self, record: Record) -> Placed:
        batch = build_batch([record])
        return Placed(await self.publish(batch), 0, len(batch))

    def join_single(self, record: Record) -> Joined:
        batch = build_batch([record])

        async def stored() -> tuple[Published, int]:
            return await self.publish(batch), len(batch)

        return Joined(asyncio.ensure_future(stored()), 0)

    @property
    def access(self) -> AccessState:
        return self.exclusive.state

    async def acquire_access(
        self, producer: str, *, session_ms: int, fencing: bool, wait_s: float = 0.0
    ) -> tuple[AccessState, int]:
        found = self.exclusive.acquire(producer, 0, session_ms=session_ms, fencing=fencing)
        return found, self.next_offset

    async def release_access(self, epoch: int) -> None:
        self.exclusive.release(epoch)

    async def publish(
        self,
        batch: bytes,
        *,
        expected_offset: int | None = None,
        checked: bool = False,
        access: int | None = None,
        own: bool = False,
    ) -> Published:
        access = BROKERS if own else access
        if self.pipeline.stored_stream is not None:
            raise errors.TopicIsStream(f"{self.name} is a durable stream")
        return await self.store(batch, expected_offset=expected_offset, access=access)

    async def store(
        self, batch: bytes, *, expected_offset: int | None = None, access: int | None = None
    ) -> Published:
        assert isinstance(batch, bytes)
        # Check even where the caller vouches for the batch, so that a test sees a false claim.
        header = check_batch(batch)
        if self.before_publish is not None:
            self.before_publish()
        self.exclusive.check(access, 0)
        if expected_offset is not None and expected_offset != self.next_offset:
            raise errors.OffsetMismatch(
                f"the next offset is {self.next_offset}, not {expected_offset}", self.next_offset
            )
        first, count = self.next_offset, header.record_count
        entry = len(self.batches)
        published = Published(first, first + count - 1, 7, entry, count, False)
        if header.producer_id >= 0:
            epoch, following, seen = self.producers.get(header.producer_id, (0, 0, {}))
            if header.producer_epoch < epoch:
                raise errors.StaleProducerEpoch(f"epoch {epoch} has published")
            if header.producer_epoch > epoch:
                following, seen = 0, {}
            if header.base_sequence in seen:
                return seen[header.base_sequence]._replace(duplicate=True)
            if header.base_sequence != following:
                raise errors.SequenceGap(f"expected {following}", following)
            seen[header.base_sequence] = published
            self.producers[header.producer_id] = (header.producer_epoch, following + count, seen)
        self.batches.append(StoredBatch(first, 7, entry, header, with_base_offset(batch, first)))
        self.next_offset += count
        self.wake()
        await asyncio.sleep(0)
        return published

    def wake(self) -> None:
        self.stream.wake()
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()

    async def wait(self, seconds: float) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.add(waiter)
        try:
            await asyncio.wait({waiter}, timeout=seconds)
        finally:
            self.waiters.discard(waiter)

    def all_records(self) -> dict[int, tuple[MessageId, Any]]:
        return {
            batch.base_offset + index: (MessageId(7, batch.entry_id, index), record)
            for batch in self.batches
            for index, record in enumerate(read_records(batch.data))
        }

    async def read(
        self, offset: int, *, bytes_max: int, count_max: int, wait_s: float = 0.0
    ) -> list[StoredBatch]:
        if offset < self.earliest_offset:
            raise errors.OffsetTrimmed(f"{offset} is trimmed", self.earliest_offset)
        if offset > self.next_offset:
            raise errors.OffsetBeyondEnd(
                f"offset {offset} is beyond the end, {self.next_offset}", self.next_offset
            )
        if offset == self.next_offset and wait_s:
            await self.wait(wait_s)
        found: list[StoredBatch] = []
        size = count = 0
        for batch in self.batches:
            if batch.next_offset <= offset:
                continue
            if found and (size + len(batch.data) > bytes_max or count >= count_max):
                break
            found.append(batch)
            size += len(batch.data)
            count += batch.next_offset - max(offset, batch.base_offset)
        return found

    @property
    def compacted(self) -> FakeCompacted:
        return FakeCompacted(self)

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
            producers=len(self.producers),
            subscriptions={n: one.stats() for n, one in self.subscriptions.items()},
        )


async def three_bookies(path: str) -> list[str]:
    return ["b1", "b2", "b3"] if path.endswith("/cookies") else []


class FakeStore:
    """Records in a dictionary, with watches that fire at once."""

    url = "file:///fake.db"
    session_state = SessionState.CONNECTED

    def __init__(self) -> None:
        secret = encode_record(SecretRecord("5e" * SECRET_BYTES))
        self.records: dict[str, Stored] = {SECRET_PATH: Stored(secret, 0)}
        self.watches: list[tuple[str, Callable[[], None]]] = []

    def on_session(self, listener: Any) -> None:
        pass

    async def children(self, path: str) -> Any:
        if path.startswith(SCHEMAS_ROOT):
            return sorted(one.rpartition("/")[2] for one in self.records if one.startswith(path))
        return await three_bookies(path)

    def watch_children(self, path: str, on_change: Any) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    def watch(self, path: str, on_change: Callable[[], None]) -> Any:
        self.watches.append((path, on_change))
        return SimpleNamespace(cancel=lambda: self.watches.remove((path, on_change)))

    async def sync(self) -> None:
        pass

    async def get(self, path: str) -> Stored:
        if path not in self.records:
            raise RecordNotFound(path)
        return self.records[path]

    async def create(self, path: str, value: bytes) -> None:
        if path in self.records:
            raise RecordExists(path)
        self._set(path, value, 0)

    async def put(self, path: str, value: bytes, version: int) -> int:
        if (await self.get(path))[1] != version:
            raise VersionConflict(path)
        return self._set(path, value, version + 1)

    async def delete(self, path: str, version: int) -> None:
        if (await self.get(path))[1] != version:
            raise VersionConflict(path)
        del self.records[path]

    def _set(self, path: str, value: bytes, version: int) -> int:
        self.records[path] = Stored(value, version)
        for watched, on_change in tuple(self.watches):
            if watched == path:
                on_change()
        return version


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


class FakeStreams:
    """Streams that are removed, when due, at the next request."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker

    def is_due(self, partition: FakePartition) -> bool:
        state = partition.stream.state
        return state is not None and (state.is_gone or partition.stream.is_over)

    async def look(self, partition: FakePartition) -> bool:
        if not partition.stream.is_over and await self.has_forks(partition):
            return False
        await self.delete(partition.name.topic_name, partition.incarnation)
        return True

    def begin(self, partition: FakePartition) -> None:
        del self.broker.cluster.topics[partition.name.topic_name]

    async def delete(self, name: TopicName, incarnation: str) -> None:
        await self.broker.delete(name, incarnation)

    async def has_forks(self, partition: FakePartition) -> bool:
        return any(
            one.fork is not None and one.fork.incarnation == partition.incarnation
            for one in self.broker.cluster.topics.values()
        )


class FakeBroker:
    def __init__(self, cluster: FakeCluster, broker_id: str, config: BrokerConfig) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.config = config
        self.url = ""
        self.closed = False
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
        self.draining = False
        self.foretold: list[HandoverNotice] = []
        self.taken: list[tuple[PartitionName, Handover]] = []
        self.topics = self.ownership = self.registry = self  # the fake plays all three parts
        self.forks = self
        self.streams = FakeStreams(self)
        self.forgotten: list[TopicName] = []
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
        self.closed = True

    async def create_namespace(self, name: str, encrypted: bool | None = None) -> bool:
        new = name not in self.cluster.namespaces
        before = self.cluster.namespaces.get(name, NamespaceRecord())
        if encrypted is not None:
            before = replace(before, encrypted=encrypted)
        self.cluster.namespaces[name] = before
        return new

    async def namespace(self, name: str) -> NamespaceRecord:
        if name not in self.cluster.namespaces:
            raise errors.NamespaceNotFound(f"no namespace {name}")
        return self.cluster.namespaces[name]

    async def policies_of(self, namespace: str) -> Policies:
        return (await self.namespace(namespace)).policies

    async def set_policies(
        self, namespace: str, change: Callable[[NamespaceRecord], NamespaceRecord]
    ) -> NamespaceRecord:
        self.cluster.namespaces[namespace] = change(await self.namespace(namespace))
        return self.cluster.namespaces[namespace]

    async def delete_namespace(self, name: str) -> None:
        if await self.names_in(name):
            raise errors.NAMESPACE_NOT_EMPTY(f"{name} has topics")
        del self.cluster.namespaces[name]

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

    async def make(
        self,
        source: TopicInfo,
        name: TopicName,
        points: Mapping[int, OwnersPoint],
        *,
        for_stream: bool = False,
    ) -> TopicInfo:
        if name in self.cluster.topics:
            raise errors.TopicExists(f"{name} is there already")
        await self.create(name, source.settings, for_stream=for_stream)
        offsets = {number: one.point.offset for number, one in points.items()}
        for number, end in offsets.items():
            fork = self.cluster.partitions[name.partition(number)]
            whole = self.cluster.partitions[source.name.partition(number)].batches
            fork.batches = [batch for batch in whole if batch.next_offset <= end]
            fork.next_offset = end
        forked = ForkRecord(source.name.topic, source.incarnation, offsets, made=True)
        self.cluster.topics[name] = made = self.cluster.topics[name]._replace(fork=forked)
        return made

    async def get(self, name: TopicName, incarnation: str | None = None) -> TopicInfo:
        try:
            found = self.cluster.topics[name]
        except KeyError:
            raise errors.TopicNotFound(f"there is no topic {name}") from None
        if incarnation and found.incarnation != incarnation:
            raise errors.TopicChanged(f"topic {name} is another one", looked=True)
        return found

    async def drain(self) -> None:
        if len(self.cluster.brokers) == 1:
            raise errors.NoOtherBroker("no other broker could take what this one serves")
        self.draining = True

    async def undrain(self) -> None:
        self.draining = False

    def standing(self) -> BrokerStatus:
        return BrokerStatus(self.draining, len(self.open_partitions()))

    def no_such_broker(self, broker_id: str) -> errors.BrokerError:
        return errors.BROKER_NOT_FOUND(f"no live broker is called {broker_id}")

    async def prepare(self, name: PartitionName, foretold: HandoverNotice) -> None:
        self.foretold.append(foretold)

    async def take(self, name: PartitionName, handed: Handover) -> None:
        self.taken.append((name, handed))

    async def unload(self, name: PartitionName, to: str) -> BrokerInfo:
        self.cluster.owners[name] = to or self.broker_id
        return BrokerInfo(to or self.broker_id, "")

    def settings_of(self, name: TopicName, fallback: TopicSettings) -> TopicSettings:
        found = self.cluster.topics.get(name)
        namespace = self.cluster.namespaces.get(name.namespace, NamespaceRecord())
        return (fallback if found is None else found.settings).under(namespace.policies)

    def doubt_owner(self, name: PartitionName) -> None:
        pass

    def forget(self, name: TopicName) -> None:
        self.forgotten.append(name)

    async def let_go(self, name: TopicName, incarnation: str) -> list[int]:
        return []

    async def update(self, name: TopicName, settings: TopicSettings) -> TopicInfo:
        info = await self.get(name)
        if settings.partitions < info.settings.partitions:
            raise errors.InvalidSettings("partitions may only grow")
        self.cluster.topics[name] = replaced = info._replace(settings=settings)
        return replaced

    async def delete(self, name: TopicName, incarnation: str | None = None) -> None:
        await self.get(name, incarnation)
        del self.cluster.topics[name]

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

    async def list_subscriptions(self, topic: TopicName) -> list[SubscriptionInfo]:
        await self.get(topic)
        return list(self.cluster.subscriptions[topic].values())

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

    async def check_registered(self, owner: Owner) -> None:
        pass

    def owner_changes(self, name: PartitionName) -> int:
        return 0

    async def until_owner_changes(self, name: PartitionName, seen: int, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    async def partition(self, name: PartitionName) -> FakePartition:
        if self.cluster.owners.get(name) != self.broker_id:
            raise errors.NotOwner(f"{name} is not served here")
        return self.cluster.partitions[name]

    def fresh(self, name: TopicName) -> TopicInfo | None:
        return self.cluster.topics.get(name)

    def at_hand(self, name: PartitionName, incarnation: str) -> FakePartition | None:
        topic = self.fresh(name.topic_name)
        if topic is None or topic.incarnation != incarnation:
            return None
        return (
            self.cluster.partitions[name] if self.cluster.owners[name] == self.broker_id else None
        )

    def other_at_hand(self, name: PartitionName, incarnation: str) -> Owner | None:
        owner = self.cluster.owners[name]
        if owner in (None, self.broker_id):
            return None
        broker = self.cluster.brokers[str(owner)]
        return Owner(broker.broker_id, broker.url, False, incarnation)

    def open_partitions(self) -> list[FakePartition]:
        return [
            self.cluster.partitions[name]
            for name, owner in self.cluster.owners.items()
            if owner == self.broker_id
        ]

    def deletion_time(self) -> DeletionTime | None:
        return DeletionTime(NOW_MS, "", 0, NOW_MS)

    async def confirm_clock(self) -> DeletionTime | None:
        return self.deletion_time()

    def gone(self) -> list[GoneBroker]:
        return []

    def brokers(self) -> list[BrokerInfo]:
        return [BrokerInfo(one.broker_id, one.url) for one in self.cluster.brokers.values()]


class Running:
    """Brokers of a fake cluster that listen."""

    def __init__(self, cluster: FakeCluster, servers: list[BrokerServer], apis: list[Api]) -> None:
        self.cluster = cluster
        self.store = cluster.store
        self.servers = servers
        self.apis = apis
        self.api = apis[0]

    def partition(self, topic: str, number: int = 0) -> FakePartition:
        return self.cluster.partitions[TopicName.parse(topic).partition(number)]


@asynccontextmanager
async def running(
    brokers: int = 1,
    *,
    authority: Any = None,
    authenticator: Any = None,
    security: Any = None,
    tls: Any = None,
    clock: Any = lambda: NOW_MS,
    **http: Any,
) -> AsyncIterator[Running]:
    """Start brokers; all share `authority`."""
    cluster = FakeCluster()
    servers = []
    config = replace(HttpConfig(stop_timeout_ms=2000, moving_wait_ms=1500), **http)
    for number in range(brokers):
        broker = FakeBroker(cluster, f"b{number}", BrokerConfig(broker_id=f"b{number}", port=0))
        server = BrokerServer(
            broker,  # type: ignore[arg-type]
            store=cluster.store,
            ledgers=None,  # type: ignore[arg-type]
            clock=clock,
            call_key=CALL_KEY,
            http=config,
            authority=authority,
            authenticator=authenticator,
            security=security,
            tls=tls,
        )
        await server.start()
        servers.append(server)
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        try:
            yield Running(cluster, servers, [Api(session, server.url) for server in servers])
        finally:
            # No broker serves the audit topic here, and a server would wait for it when it closes.
            with patch.object(audit_log, "CLOSE_S", 0.05):
                for server in servers:
                    await server.stop()


def header_of(batch: bytes) -> Any:
    return read_header(batch)
