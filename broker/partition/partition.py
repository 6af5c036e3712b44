"""An owned partition: publish, read, subscriptions.

Promises: a publish that returned is durable on an ack quorum and keeps its offset for ever; offsets
have no gaps; a repeated producer sequence is stored once. This relies on fencing: after a take-over
the old owner's ledger takes no more adds. After a crash the next owner recovers the last ledger and
replays the state ledger.

    state       means                                            leaves by
    OPEN        it is served                                     its ledger failed, lost, close
    REOPENING   its ledger failed (too few bookies); another     reopened, lost, close
                ledger is being begun
    CLOSED      lost, or handed over                             never
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import zlib
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial

import structlog

from octavo.broker.bulkload.rules import check_copy_taken, check_large_taken
from octavo.broker.errors import (
    BATCH_TOO_LONG,
    DueAfterExpiry,
    ExclusiveProducer,
    NotOwner,
    OffsetBeyondEnd,
    OffsetMismatch,
    PartitionMoving,
    PartitionUnavailable,
    ProducerBusy,
    PublishOutcomeUnknown,
    SchemaMismatch,
    SequenceGap,
    StaleProducerAccess,
    TopicIsStream,
    TopicNotFound,
)
from octavo.broker.internal_topics import check_not_internal
from octavo.broker.log.cache import PartitionTail
from octavo.broker.log.compaction_rules import compacted_figures
from octavo.broker.log.entry_index import EntryIndex
from octavo.broker.log.ledger_list import ForkPoint, Range
from octavo.broker.log.open_batches import ReadableBatch
from octavo.broker.log.reader import LogReader
from octavo.broker.log.record import OwnershipLost, PartitionRecordKeeper, with_ledgers
from octavo.broker.partition.backlogs import Backlogs
from octavo.broker.partition.compacted import CompactedLog
from octavo.broker.partition.compactor import Compactor
from octavo.broker.partition.context import PartitionContext, SchemaCheck
from octavo.broker.partition.handover_messages import STATE_BYTES_MAX, HandoverNotice, HandoverState
from octavo.broker.partition.large import (
    BodyReader,
    LargeUpload,
    open_body,
    piece_at,
    placed,
    take_copy,
)
from octavo.broker.partition.log import PartitionLog
from octavo.broker.partition.maintenance import Maintenance
from octavo.broker.partition.message_batcher import Joined, MessageBatcher, Placed
from octavo.broker.partition.opening import Opened, PartitionOpener
from octavo.broker.partition.part_loader import PartLoader
from octavo.broker.partition.publisher import OpenSegment, Publisher
from octavo.broker.partition.rollover import Rollover
from octavo.broker.partition.stream import PartitionStream
from octavo.broker.policies import Stored, why_never_due
from octavo.broker.state.format import Op, access_op, snapshot
from octavo.broker.state.log import StateLog, delete_quietly
from octavo.broker.state.producers import BROKERS, Access, AccessState
from octavo.broker.state.stream import Append
from octavo.broker.subscriptions.last_used import LastUsed
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.subscriptions.subscriptions import SubscriptionSet
from octavo.broker.types import (
    MessageId,
    PartitionName,
    PartitionState,
    PartitionStats,
    Published,
    Publishing,
    StoredBatch,
    SubscriptionInfo,
    TopicSettings,
    Work,
)
from octavo.ledger.errors import LedgerFenced
from octavo.ledger.read.open_batch import open_batch
from octavo.metadata.ledgers import LedgerMetadata
from octavo.metadata.topics import PartitionRecord
from octavo.protocol.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELAYED,
    ATTRIBUTE_TRANSACTIONAL,
    NO_PRODUCER,
    BatchHeader,
    InvalidBatch,
    check_batch,
    read_header,
)
from octavo.protocol.codes import OctavoError
from octavo.protocol.due import due_of
from octavo.protocol.large import Piece
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.records import Record

_log = structlog.get_logger()

NEXT_STATES: Mapping[PartitionState, frozenset[PartitionState]] = {
    PartitionState.OPEN: frozenset({PartitionState.REOPENING, PartitionState.CLOSED}),
    PartitionState.REOPENING: frozenset({PartitionState.OPEN, PartitionState.CLOSED}),
    PartitionState.CLOSED: frozenset(),
}


class PartitionOpening:
    def __init__(
        self,
        name: PartitionName,
        incarnation: str,
        context: PartitionContext,
        settings: Callable[[], TopicSettings],
        on_lost: Callable[[Partition], None],
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        """The topic's incarnation: a later topic of the name needs another object."""
        self.context = context
        self.settings = settings
        self.on_lost = on_lost
        timeout_ms = context.config.open_timeout_ms
        self.record = PartitionRecordKeeper(context.topics, name, timeout_ms, incarnation)
        self.index = EntryIndex()
        self.reader = LogReader(
            name, context.ledgers, self.record, self.index, context.read_ahead, _none_is_written,
            context.open_batches.opening,
        )  # fmt: skip
        self.opener = PartitionOpener(
            name, context.config, context.ledgers, self.record, self.reader, settings,
            context.clock, context.spawn,
        )  # fmt: skip

    async def open(self) -> Partition:
        started_s = asyncio.get_running_loop().time()
        opened = await self.opener.take_over()
        return self._opened("partition_taken_over", opened, started_s)

    async def open_as_left(
        self, end: HandoverState, claim: Callable[[], Awaitable[None]]
    ) -> Partition | None:
        """Returns None if `end` does not fit; the claim then stands."""
        started_s = asyncio.get_running_loop().time()
        taking = asyncio.ensure_future(self.opener.take_as_left(end))
        try:
            await claim()
            opened = await taking
            if opened is None:
                return None
            await self.record.check_topic()  # a deletion may not have seen our claim
            return self._opened("partition_taken_as_left", opened, started_s)
        except BaseException:
            taking.cancel()
            await asyncio.wait((taking,))
            if not taking.cancelled() and not taking.exception() and (opened := taking.result()):
                opened.let_go()
            raise

    def _opened(self, event: str, opened: Opened, started_s: float) -> Partition:
        partition = Partition(self, opened)
        partition.tell_opened(event, opened, started_s)
        return partition

    async def close(self) -> None:
        self.opener.unprepare()
        await self.reader.close()


def _none_is_written(ledger_id: int) -> int:
    raise AssertionError(f"ledger {ledger_id} is taken to be open, but has no writer yet")


class Partition:
    def __init__(self, opening: PartitionOpening, opened: Opened) -> None:
        name, context = opening.name, opening.context
        self.name = name
        self.incarnation = opening.incarnation
        self.state = PartitionState.OPEN
        self._context = context
        self._config = context.config
        self._settings = opening.settings
        self._on_lost = opening.on_lost
        self._loop = asyncio.get_running_loop()
        self._record = opening.record
        self._index = opening.index
        self._opener = opening.opener
        self._reopening: asyncio.Task[None] | None = None
        self._gone: NotOwner | None = None
        self._used_s = self._loop.time()
        self._kept_up_s = -math.inf
        self._retired_until_s = 0.0
        self._access = Access(opened.state.access)
        self._access_changed = asyncio.Event()
        tail = context.tail_cache.partition()
        self._publisher = self._new_publisher(opened, tail)
        self.stream = PartitionStream(
            name, lambda: self._publisher, self._store_append, self.persist, self.prove,
            context.deletion_time, context.config.producers_max,
        )  # fmt: skip
        self._log = PartitionLog(
            name, self._record, context.tail_cache, tail, opening.reader, self._publisher
        )
        self._compacted = CompactedLog(
            name, context.ledgers, self._record, self._log, context.open_batches.opening
        )
        self._compactor = Compactor(
            name, opening.incarnation, context, self._record, self._settings, opening.reader,
            self._compacted.view,
        )  # fmt: skip
        uses = LastUsed(
            self._loop.time, context.deletion_time,
            lambda: self._settings().policies.subscription_expiry_ms,
            lambda op: self._state_log.note(op),
        )  # fmt: skip
        self._subscriptions = SubscriptionSet(
            self, context.config, lambda sub: context.subscription_info(name, sub), self.persist,
            context.letters, uses,
        )  # fmt: skip
        self._subscriptions.restore(opened.state.cursors)
        self._maintenance = Maintenance(
            name, context, self._record, self._settings, self._log, self._subscriptions,
            lambda op: self._state_log.append(op), self._lost,
        )  # fmt: skip
        self._backlogs = Backlogs(
            name, context, self._settings, self._subscriptions, self.persist, self._stored,
            opened.state.ages,
        )  # fmt: skip
        self._part_loader = PartLoader(name, context, self._record)
        self._state_log = StateLog(
            context.ledgers, self._record, name, context.config, self._settings, self._snapshot,
            self._lost, opened.state_writer,
        )  # fmt: skip
        self._rollover = self._new_rollover()
        self._gathering = MessageBatcher(partial(self.publish, checked=True, fits=True))
        self._left: list[Op] = []
        """Leases to write at the end, for a successor that can read them."""
        self._check_turns = asyncio.Lock()
        """Batches are stored in the order in which they came to be checked."""
        self._checking = 0

    def describe(self) -> dict[str, int]:
        return {"checking": self._checking}

    @property
    def epoch(self) -> int:
        return self._record.value.epoch

    @property
    def lease_epoch(self) -> int:
        """Return the epoch in ack ids; it differs between incarnations of the topic."""
        return (zlib.crc32(self.incarnation.encode()) << 32) + self.epoch

    @property
    def earliest_offset(self) -> int:
        return self._log.earliest_offset

    @property
    def kept_from(self) -> int:
        """Return the earliest offset, already without messages that a trim is removing."""
        return self._log.kept_from

    @property
    def ledger_ids(self) -> tuple[int, ...]:
        return tuple(segment.ledger_id for segment in self._record.ledgers.segments)

    @property
    def next_offset(self) -> int:
        return self._log.end_offset

    @property
    def settings(self) -> TopicSettings:
        return self._settings()

    @property
    def work(self) -> Work:
        return self._log.work

    def publishing(self) -> Publishing:
        publisher, most = self._publisher, self._config.inflight_bytes_max
        why = []
        if publisher.waiting_bytes:
            why.append(
                f"{publisher.waiting_bytes} bytes wait for room: {publisher.inflight_bytes} are on "
                f"their way to bookies, and inflight_bytes_max is {most}"
            )
        holder = self._access.state.producer
        if holder:
            why.append(f"producer {holder!r} has exclusive access: no other client may publish")
        if self.state is not PartitionState.OPEN:
            why.append("its ledger has failed: it is being opened again")
        return Publishing(
            publisher.inflight_bytes, most, holder or None, tuple(why), self._backlogs.over
        )

    @property
    def ledgers(self) -> tuple[tuple[int, int], ...]:
        segments = self._record.ledgers.segments
        return tuple((segment.ledger_id, segment.base_offset) for segment in segments)

    async def stats(self) -> PartitionStats:
        subscriptions = await self._subscriptions.stats()
        publisher, segment = self._publisher, self._publisher.segment
        return PartitionStats(
            name=self.name,
            broker_id=self._context.broker_id(),
            epoch=self.epoch,
            earliest_offset=self.earliest_offset,
            next_offset=self.next_offset,
            stored_bytes=self._record.ledgers.closed_bytes + segment.contents.payload_bytes,
            pending_bytes=publisher.inflight_bytes,
            ledgers=self.ledgers,
            last_add_confirmed=segment.last_entry,
            producers=len(publisher.stored_producers),
            subscriptions=subscriptions,
            kept_because=self._why_kept(),
            compacted=compacted_figures(self._record.value.compaction),
            uncompacted=self._compactor.uncompacted,
            stream=publisher.stored_stream is not None,
        )

    def _why_kept(self) -> str:
        time = self._context.deletion_time()
        return self._maintenance.retention(time).why_kept(
            self._record.ledgers,
            0 if time is None else time.now_ms,
            self._publisher.segment.contents.payload_bytes,
            self._subscriptions.committed(),
        )

    async def publish(
        self,
        batch: bytes,
        *,
        expected_offset: int | None = None,
        checked: bool = False,
        fits: bool = False,
        access: int | None = None,
        own: bool = False,
    ) -> Published:
        """Store one RecordBatch v2 unchanged; return its place once it is durable.

        Its header has producer id, epoch and base sequence (-1: not idempotent). `expected_offset`:
        store only there. `checked`: `check_batch` passed. `fits`: the schema and the due times are
        checked, too. `access`: the publisher's epoch of exclusive access. `own`: a broker's batch
        for an internal topic, or a copy, exempt from schema, backlog and exclusive access.

        Calls take effect in their order. After any error but `PublishOutcomeUnknown` nothing was
        stored.
        """
        published = await self._publish(
            batch, expected_offset=expected_offset, checked=checked, fits=fits, access=access,
            own=own,
        )  # fmt: skip
        return await self._proved(published)

    async def store_copy(self, batch: bytes) -> None:
        """Store a dead letter or a retry; skip a copy that is already stored.

        Schema, quotas, exclusive access and `batch_bytes_max` never refuse a copy: it was admitted
        as a message, and its original waits.
        """
        check_not_internal(self.name.topic_name)
        await self._proved(await self._publish(batch, own=True))

    async def _proved(self, published: Published) -> Published:
        """Complete a duplicate's answer: prove ownership, and add its remembered place."""
        if published.duplicate:
            try:
                await self.prove()
            except PartitionUnavailable as error:
                raise PublishOutcomeUnknown(
                    f"{error}; repeat it with the same producer sequence"
                ) from error
            if published.first_offset >= self.earliest_offset:
                first = await self.read(published.first_offset, bytes_max=1, count_max=1)
                return published._replace(ledger_id=first[0].ledger_id, entry_id=first[0].entry_id)
        return published

    async def _publish(
        self,
        batch: bytes,
        *,
        expected_offset: int | None = None,
        checked: bool = False,
        fits: bool = False,
        access: int | None = None,
        append: Append | None = None,
        own: bool = False,
    ) -> Published:
        if own:
            access, fits = BROKERS, True
        else:
            check_not_internal(self.name.topic_name)
        header = read_header(batch) if checked else check_batch(batch)
        if header.total_bytes != len(batch):
            raise InvalidBatch(
                f"a publish takes a single record batch: the batch has {header.total_bytes} bytes, "
                f"but the call has {len(batch)}"
            )
        most = ENTRY_PAYLOAD_BYTES_MAX if own else self._config.batch_bytes_max
        if len(batch) > most:
            raise BATCH_TOO_LONG(f"the batch has {len(batch)} bytes; one entry holds {most}")
        if header.producer_id < NO_PRODUCER and not own:
            raise InvalidBatch(
                f"producer id {header.producer_id}: ids below {NO_PRODUCER} are brokers' own; a "
                f"producer has an id from 0 on, and a batch of no producer {NO_PRODUCER}"
            )
        if header.attributes & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL):
            raise InvalidBatch("transactional and control batches are not supported")
        self._check_open()
        # A repeat of a stored batch must not be refused: that would say that nothing was stored.
        if not own and not self._publisher.has(header, append):
            if not fits:
                await self._check_messages(batch, header)
            await self._backlogs.admit()
            self._check_open()
        try:
            return await self._publisher.publish(batch, header, expected_offset, access, append)
        except (SequenceGap, OffsetMismatch, ExclusiveProducer, StaleProducerAccess):
            await self.prove()  # if there is a successor, it may have the missing messages
            raise

    async def _store_append(self, batch: bytes, append: Append, expected: int | None) -> int | None:
        """Return the stream's end, None for a repeat."""
        published = await self._publish(
            batch, expected_offset=expected, checked=True, append=append
        )
        return None if published.duplicate else published.last_offset + 1

    async def publish_single(self, record: Record) -> Placed:
        """Store an unnumbered message, perhaps in a shared batch."""
        check_not_internal(self.name.topic_name)
        self.check_due(record)
        if self._settings().schema_validate:
            check = await self._schema_checker()
            if (misfit := await check.misfit([record])) is not None:
                raise SchemaMismatch(f"the message was not stored: {misfit[1]}", 0)
        return await self._gathering.publish(record)

    async def _schema_checker(self) -> SchemaCheck:
        subject = self._settings().schema_subject
        assert subject is not None, "checked where settings are made"
        return await self._context.schema_checker((self.name.namespace, subject))

    def check_due(self, record: Record) -> None:
        due_ms = due_of(record.headers)
        why = why_never_due(due_ms, self._context.clock(), self._settings().policies)
        if why is not None:
            raise DueAfterExpiry(f"{self.name}: the message was not stored: {why}")

    async def _check_messages(self, batch: bytes, header: BatchHeader) -> None:
        """Raise `SchemaMismatch` or `DueAfterExpiry` for the first bad message.

        A batch that needs no check waits for the checks of earlier batches, so that it overtakes
        none of its producer.
        """
        settings = self._settings()
        is_delayed = header.attributes & ATTRIBUTE_DELAYED
        looks_at_times = bool(is_delayed and settings.policies.ttl_ms is not None)
        if not (settings.schema_validate or looks_at_times or self._checking):
            return
        self._checking += 1
        try:
            async with self._check_turns:
                if settings.schema_validate or looks_at_times:
                    check = await self._schema_checker() if settings.schema_validate else None
                    await self._check_each(batch, check, looks_at_times=looks_at_times)
        finally:
            self._checking -= 1

    async def _check_each(
        self, batch: bytes, check: SchemaCheck | None, *, looks_at_times: bool
    ) -> None:
        policies, now_ms = self._settings().policies, self._context.clock()
        where = "message {} of its batch, and so none of it, was stored: {}"
        opened = await open_batch(batch)
        for index, records in opened.following(0):
            misfit = None if check is None else await check.misfit(records)
            if misfit is not None:
                number = index + misfit[0]
                raise SchemaMismatch(where.format(number, misfit[1]), number)
            for number, record in enumerate(records if looks_at_times else (), index):
                why = why_never_due(due_of(record.headers), now_ms, policies)
                if why is not None:
                    raise DueAfterExpiry(f"{self.name}: {where.format(number, why)}")
            await asyncio.sleep(0)

    def join_single(self, record: Record) -> Joined:
        """Do what `publish_single` does without waiting, if the topic lacks a schema and the
        message a due time.
        """
        check_not_internal(self.name.topic_name)
        return self._gathering.join(record)

    @property
    def access(self) -> AccessState:
        return self._access.state

    async def acquire_access(
        self, producer: str, *, session_ms: int, fencing: bool, wait_s: float = 0.0
    ) -> tuple[AccessState, int]:
        """Give `producer` exclusive access; return its state with the new epoch, and the next
        offset.

        All others' messages lie before that offset, and are durable. Waits up to `wait_s` for the
        present holder.
        """
        check_not_internal(self.name.topic_name)
        self._check_is_no_stream()
        until_s = self._loop.time() + wait_s
        while True:
            self._check_open()
            try:
                now_ms = int(self._loop.time() * 1000)
                state = self._access.acquire(
                    producer, now_ms, session_ms=session_ms, fencing=fencing
                )
                break
            except ProducerBusy as error:
                left_s = until_s - self._loop.time()
                if left_s <= 0:
                    await self.prove()
                    raise
                self._access_changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, (error.left_ms + 1) / 1000)):
                        await self._access_changed.wait()
        publisher = self._publisher
        upto = publisher.next_offset
        await self._state_log.append(access_op(state))
        await publisher.confirmed_up_to(upto)
        return state, upto

    async def release_access(self, epoch: int) -> None:
        self._check_open()
        try:
            state = self._access.release(epoch)
        except StaleProducerAccess:
            await self.prove()
            raise
        await self._state_log.append(access_op(state or self._access.state))
        self._access_changed.set()

    async def begin_large(self, upload: str, access: int | None = None) -> LargeUpload | Published:
        """Begin to receive a large message; if it is already stored, return its place.

        `upload`: the publisher's name for it, equal in each repetition, or empty.
        """
        check_not_internal(self.name.topic_name)
        self._check_open()
        if upload and (found := self._record.ledgers.uploaded(upload)) is not None:
            await self.prove()
            stored = placed(found, duplicate=True)
            if stored.last_offset >= self.next_offset:
                raise PartitionUnavailable(f"{self.name} is being opened again; ask again")
            return stored
        settings, ledgers = self._settings(), len(self._record.ledgers.segments)
        self._check_access(access)
        if access == BROKERS:
            check_copy_taken(self.name, settings, ledgers)
        else:
            check_large_taken(self.name, settings, ledgers)
            await self._backlogs.admit()
            self._check_open()
        return LargeUpload(
            self.name, upload, self._context, self._record, settings, self._rollover,
            partial(self._check_access, access),
        )  # fmt: skip

    async def copy_large(self, upload: str, copy: Record, parts: AsyncIterable[bytes]) -> Published:
        begun = await self.begin_large(upload, BROKERS)
        if isinstance(begun, Published):
            return begun
        try:
            return await take_copy(begun, copy, parts)
        finally:
            begun.discard()

    def _check_is_no_stream(self) -> None:
        if self._publisher.stored_stream is not None:
            raise TopicIsStream(
                f"{self.name} is a durable stream: append to it at /v1/durable-streams"
            )

    def _check_access(self, access: int | None) -> None:
        self._check_is_no_stream()
        self._access.check(access, int(self._loop.time() * 1000))

    async def body(self, offset: int) -> BodyReader:
        self._check_open()
        return await open_body(self._log, self._record, self.readable, offset)

    async def body_piece(self, offset: int, number: int) -> Piece:
        self._check_open()
        return await piece_at(self._log, self._record, offset, number)

    async def large_body(self, offset: int) -> BodyReader | None:
        return await self.body(offset) if self._record.ledgers.find(offset).pieces else None

    async def prove(self) -> None:
        """Return when it is certain that this broker owned the partition at the call.

        A repeat, or a refusal because something is missing, stores nothing, so fencing does not
        refuse it; an owner with a successor must not give such answers.
        """
        await self._state_log.prove()

    async def load_part(self, bulk_load: str, batch: int) -> int | None:
        """Insert this partition's part of a committed bulk load, once.

        Returns its first offset, or None if there is no such part.
        """
        self._check_open()
        return await self._part_loader.load(self._rollover, bulk_load, batch)

    async def read(
        self, offset: int, *, bytes_max: int, count_max: int, wait_s: float = 0.0
    ) -> list[StoredBatch]:
        """Read whole batches from the batch that contains `offset`; the caller skips earlier
        records.

        Returns at least one batch if there is any, else at most `bytes_max` bytes and `count_max`
        messages. At the end, waits up to `wait_s`, then returns [].
        """
        self._check_open()
        return await self._log.read(offset, bytes_max, count_max, wait_s)

    async def offset_at(self, time_ms: int) -> int:
        """Return the first offset with a message as new as `time_ms`, or the end.

        Timestamps need not ascend (Kafka's rule).
        """
        self._check_open()
        return await self._log.offset_at(time_ms)

    async def position(self, message_id: MessageId) -> int:
        self._check_open()
        return await self._log.position(message_id)

    async def resolve(
        self, *, at: MessageId | int | str | None = None, time_ms: int | None = None
    ) -> int:
        if time_ms is not None:
            return await self.offset_at(time_ms)
        if isinstance(at, MessageId):
            return await self.position(at)
        self._check_open()
        if isinstance(at, int):
            return at
        assert at in ("earliest", "latest"), at
        return self.earliest_offset if at == "earliest" else self.next_offset

    async def truncate(self, before: int) -> int:
        """Remove all messages before an offset for good; return the first offset left.

        Subscriptions skip them.
        """
        self._check_open()
        if before > self.next_offset:
            raise OffsetBeyondEnd(
                f"{self.name}: offset {before} is beyond the end; the next offset is "
                f"{self.next_offset}",
                self.next_offset,
            )
        try:
            return await self._maintenance.truncate(self._publisher, before)
        except OwnershipLost as error:
            raise NotOwner(f"{self.name} is served by another broker now: {error}") from error

    async def fork_point(self, offset: int) -> ForkPoint:
        self._check_open()
        return await self._log.fork_point(offset)

    @property
    def compacted(self) -> CompactedLog:
        self._check_open()
        return self._compacted

    async def subscribe(self, info: SubscriptionInfo) -> Subscription:
        self._check_open()
        found = await self._subscriptions.make(info)
        found.use()
        return found

    async def subscription(self, name: str) -> Subscription:
        self._check_open()
        return await self._subscriptions.get(name)

    def readable(self, batch: StoredBatch) -> AbstractAsyncContextManager[ReadableBatch]:
        return self._context.open_batches.readable(batch)

    def wall_ms(self) -> int:
        return self._context.clock()

    @property
    def hidden(self) -> Sequence[Range]:
        return self._record.ledgers.hidden

    async def persist(self, op: Op) -> None:
        self._check_open()
        await self._state_log.append(op)
        self._backlogs.acked()

    def announce(self) -> HandoverNotice:
        record = self._record.value
        return HandoverNotice(self.incarnation, record.epoch, record.state_ledger is not None)

    async def close(self, *, graceful: bool) -> None:
        if self.state is PartitionState.CLOSED:
            return
        self._stop_serving(NotOwner(f"{self.name} is being handed over; ask again"))
        if graceful:
            self._leave_leases()
        try:
            if graceful:
                closed = await self._close_log()
                if closed is not None and self._state_log.is_written:
                    with contextlib.suppress(OctavoError):
                        await self._maintenance.note_producers(self._publisher)
                await self._state_log.close(drain=True)
                if closed is not None:
                    with contextlib.suppress(OctavoError):
                        await self._say_closed(closed)
        finally:
            await self._release()

    async def _say_closed(self, closed: LedgerMetadata) -> None:
        """Record how the newest ledger ends, so that the next owner need not recover it."""
        publisher, contents = self._publisher, self._publisher.segment.contents
        if closed.last_entry != publisher.segment.last_entry:
            return
        last = self._record.ledgers.last
        if last is None or last.ledger_id != closed.ledger_id:
            return  # the record names a later ledger
        has_none = not len(publisher.stored_producers) and publisher.stored_stream is None

        def closing(record: PartitionRecord) -> PartitionRecord:
            ledger_list = self._record.ledgers.closing_last(
                closed.ledger_id, contents, self._context.clock()
            )
            if has_none:
                record = replace(record, producers_upto=ledger_list.end_offset)
            return with_ledgers(record, ledger_list)

        await self._record.change(closing)
        if not contents.messages:
            await delete_quietly(self._context.ledgers, closed.ledger_id)

    async def _close_log(self) -> LedgerMetadata | None:
        publisher = self._publisher
        if publisher.failed is None:
            await self._rollover.close()
        # After a failed roll-over, it is unknown which ledger the record names last.
        if publisher.failed is None:
            with contextlib.suppress(OctavoError):
                await publisher.confirmed_up_to(publisher.next_offset)
                if publisher.writer is not None:
                    return await publisher.writer.close()
        return None

    async def hand_off(self, on_drained: Callable[[HandoverState | None], None]) -> None:
        """Stop serving, and close the ledgers.

        Calls `on_drained` with the end, or None if unknown, when pending work is stored, before the
        ledgers are closed.
        """
        if self.state is PartitionState.CLOSED:
            on_drained(None)
            return
        was_open = self.state is PartitionState.OPEN
        self._stop_serving(NotOwner(f"{self.name} is being handed over; ask again"))
        self._leave_leases()
        try:
            on_drained(await self._drained() if was_open else None)
            await asyncio.gather(self._close_log(), self._state_log.close(drain=True))
        finally:
            self._context.spawn(self._release())

    def _leave_leases(self) -> None:
        if self._context.leases_are_read():
            self._left = self._subscriptions.leave(self.epoch)
            if self._left:
                self._state_log.note(*self._left)

    async def _drained(self) -> HandoverState | None:
        publisher = self._publisher
        await asyncio.gather(self._rollover.close(), self._state_log.drain())
        if publisher.failed is None:
            with contextlib.suppress(OctavoError):
                await publisher.confirmed_up_to(publisher.next_offset)
        if publisher.failed or publisher.confirmed_offset != publisher.next_offset:
            return None
        record, segment = self._record.value, publisher.segment
        if segment.ledger_id is None:
            return None  # the successor has nothing to read
        state: tuple[bytes, ...] = ()
        if record.state_ledger is not None or self._publisher.stored_producers:
            state = tuple(self._snapshot())
        if sum(map(len, state)) > STATE_BYTES_MAX:
            return None
        return HandoverState(
            record.epoch, segment.ledger_id, segment.last_entry, segment.contents,
            record.state_ledger, state,
        )  # fmt: skip

    def abandon(self, why: str) -> None:
        self._lost(NotOwner(f"{self.name}: {why}"))

    def _new_publisher(self, opened: Opened, tail: PartitionTail) -> Publisher:
        ledgers, clock = self._record.ledgers, self._context.clock
        if opened.writer is None:
            begins, appended_ms = ledgers.end_offset, None
        else:
            assert ledgers.last is not None
            begins, appended_ms = ledgers.last.base_offset, ledgers.last.appended_ms
        segment = OpenSegment(
            opened.writer, begins, clock(), released=True, appended_ms=appended_ms
        )
        if opened.state.stream is not None:
            opened.state.stream.producers_max = self._config.producers_max
        publisher = Publisher(
            self.name, self._config, segment, opened.producers, tail, self._index,
            self._confirmed, self._publisher_failed, self._access, clock, opened.state.stream,
        )  # fmt: skip
        publisher.appended_ms = max(publisher.appended_ms, ledgers.newest_append_ms)
        return publisher

    def _new_rollover(self) -> Rollover:
        return Rollover(
            self.name, self._publisher, self._record, self._context.ledgers, self._settings,
            self._context.clock, self._context.spawn, self._log.renew_tail,
        )  # fmt: skip

    def tell_opened(self, event: str, opened: Opened, started_s: float) -> None:
        recovered = opened.recovered
        _log.info(
            event, partition=str(self.name), broker=self._context.broker_id(), epoch=self.epoch,
            ledger=None if recovered is None else recovered.ledger_id,
            last_entry=None if recovered is None else recovered.last_entry,
            new_ledger=None if opened.writer is None else opened.writer.ledger_id,
            next_offset=self.next_offset,
            duration_ms=round((self._loop.time() - started_s) * 1000, 1),
        )  # fmt: skip

    def _check_open(self) -> None:
        if self._gone is not None:
            raise self._gone
        self._used_s = self._loop.time()
        if self._used_s < self._retired_until_s:
            raise PartitionMoving(
                f"{self.name}: the topic was unused for long, and is about to be deleted by its "
                "policy delete_when_inactive; ask again"
            )

    def is_unused(self, for_ms: int, retire_s: float = 0.0) -> bool:
        """Whether nothing has used the partition for `for_ms`.

        If so, refuse all calls for the next `retire_s`, in which the topic may be deleted; a
        refused client may retry, and its call counts as a use.
        """
        now_s = self._loop.time()
        quiet = self._gone is None and not self._publisher.inflight_bytes
        unused = quiet and (now_s - self._used_s) * 1000 >= for_ms
        if retire_s:
            self._retired_until_s = now_s + retire_s if unused else 0.0
        return unused

    def is_subscription_unused(self, name: str, for_ms: int, retire_s: float = 0.0) -> bool:
        return self._gone is None and self._subscriptions.is_unused(name, for_ms, retire_s)

    def unused_subscriptions(self, for_ms: int, durable: bool = True) -> list[str]:
        gone = self._gone is not None
        return [] if gone else self._subscriptions.unused(for_ms, durable=durable)

    @property
    def knows_subscriptions(self) -> bool:
        return self._subscriptions.is_followed

    async def know_subscriptions(self) -> None:
        await self._maintenance.follow_subscriptions()

    def _confirmed(self, payload_bytes: int, entries: int) -> None:
        self._log.grown()
        self.stream.wake()
        self._subscriptions.wake()
        self._rollover.look()
        self._maintenance.confirmed(self._publisher, payload_bytes, entries)
        self._backlogs.confirmed(payload_bytes)

    def _stored(self) -> list[Stored]:
        publisher, found = self._publisher, list[Stored]()
        last = publisher.segment
        parts = [(one.ledger_id, one.base_offset, one) for one in self._record.ledgers.segments]
        for ledger_id, base, one in parts:
            if one.count is not None:
                found.append(Stored(base, base + one.count, one.bytes))
            else:
                contents = publisher.contents_of(ledger_id)
                found.append(Stored(base, base + contents.messages, contents.payload_bytes))
        is_named = bool(parts) and parts[-1][0] == last.ledger_id
        if last.ledger_id is not None and not is_named:  # a roll-over will name it
            contents = last.contents
            end = last.base_offset + contents.messages
            found.append(Stored(last.base_offset, end, contents.payload_bytes))
        return found

    def _snapshot(self) -> Iterator[bytes]:
        publisher = self._publisher
        publisher.stored_producers.take_changed()
        return snapshot(
            self._subscriptions.cursors(),
            publisher.stored_producers.snapshot(),
            publisher.confirmed_offset,
            self._backlogs.ages.marks,
            self._subscriptions.deliveries(),
            self._subscriptions.seeks(),
            self._access.state,
            publisher.stored_stream,
            self._subscriptions.used_ms(),
            self._left,
        )

    def _publisher_failed(self, error: OctavoError) -> None:
        if isinstance(error, LedgerFenced | OwnershipLost):
            self._lost(error)
        elif self._gone is None:
            self._enter(PartitionState.REOPENING)
            _log.warning("partition_unavailable", partition=str(self.name), reason=str(error))
            self._reopening = asyncio.create_task(self._reopen(), name=f"reopen {self.name}")

    async def _reopen(self) -> None:
        failed, started_s = self._publisher, self._loop.time()
        await self._rollover.cancel()
        failed.let_go()
        pauses = self._context.reopen_pauses()
        while self._gone is None:
            try:
                opened = await self._opener.reopen(
                    failed.stored_producers, failed.confirmed_offset, failed.stored_stream
                )
            except (OwnershipLost, TopicNotFound) as error:
                self._lost(error)
                return
            except Exception as error:  # retry after a bug, too, and log it
                failed.failed = PartitionUnavailable(str(error) or repr(error))
                bug = None if isinstance(error, OctavoError) else error
                _log.warning(
                    "partition_unavailable",
                    partition=str(self.name),
                    reason=str(error),
                    exc_info=bug,
                )
                await asyncio.sleep(pauses.next_s())
            else:
                self._publisher = self._new_publisher(opened, self._log.renew_tail())
                self._rollover = self._new_rollover()
                self._enter(PartitionState.OPEN)
                self._log.follow(self._publisher)
                self._subscriptions.wake()
                self.tell_opened("partition_reopened", opened, started_s)
                return

    def _lost(self, error: OctavoError) -> None:
        if self._gone is not None:
            return
        _log.warning("partition_lost", partition=str(self.name), reason=str(error))
        self._stop_serving(NotOwner(f"{self.name} is served by another broker now: {error}"))
        self._context.spawn(self._release())
        self._on_lost(self)

    def _stop_serving(self, gone: NotOwner) -> None:
        self._gone = gone
        self._enter(PartitionState.CLOSED)
        if self._reopening is not None and self._reopening is not asyncio.current_task():
            self._reopening.cancel()
        self._subscriptions.close(gone)
        self.stream.wake()
        self._backlogs.close()

    def _enter(self, state: PartitionState) -> None:
        assert state in NEXT_STATES[self.state], (self.state, state)
        self.state = state

    async def _release(self) -> None:
        assert self._gone is not None
        self._publisher.fail(self._gone)
        self._maintenance.close()
        await self._rollover.cancel()
        await self._state_log.close(drain=False)
        await self._log.close(self._gone)
        await self._compacted.close(self._gone)
        await self._publisher.abandon()

    def upkeep_is_due(self, quiet_s: float) -> bool:
        """Return whether it was used since the last upkeep, or that is `quiet_s` ago; if so, note
        upkeep.
        """
        now_s = self._loop.time()
        if self._used_s < self._kept_up_s and now_s - self._kept_up_s < quiet_s:
            return False
        self._kept_up_s = now_s
        return True

    async def maintain(self) -> None:
        """Roll over, expire and trim; call periodically."""
        if self.state is PartitionState.OPEN:
            self._rollover.look()
            self._state_log.look()
            await self.stream.settle()
            await self._backlogs.keep()
            self._subscriptions.look()
            self._subscriptions.keep_uses()
            await self._subscriptions.drop_gone(self._context.config.non_durable_expiry_ms)
            await self._maintenance.trim(self._publisher)

    @property
    def compaction_is_due(self) -> bool:
        return self.state is PartitionState.OPEN and self._compactor.is_due

    async def compact(self) -> None:
        await self._compactor.work()
        if self.state is PartitionState.OPEN:
            await self._maintenance.trim(self._publisher)
