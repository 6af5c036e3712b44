"""The publish pipeline of a partition: sequence check, offset, ledger, confirmation.

    publish → dedup → offset → LedgerWriter.add … acks … → confirmed: cache, readers, answer

Promises: batches take effect and are confirmed in the order of the calls. A batch is answered only
when it, all batches before it, and the record that names its ledger are durable. With deferred
syncs, it is answered once an ack quorum has written it, and readable only once it is synced,
`deferred_sync_ms` later: so a power failure never removes what a reader has seen.

During a roll-over adds go to the new ledger, and their answers wait for the record.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import (
    BrokerError,
    NotOwner,
    OffsetMismatch,
    Overloaded,
    PartitionUnavailable,
    PublishOutcomeUnknown,
    TopicIsStream,
    unavailable,
)
from octavo.broker.log.cache import CachedBatch, PartitionTail
from octavo.broker.log.entry_index import EntryIndex
from octavo.broker.log.ledger_list import Contents, RolloverPolicy
from octavo.broker.log.record import OwnershipLost
from octavo.broker.policies import has_append_times, is_deferred
from octavo.broker.state.log import let_go
from octavo.broker.state.producers import Access, ProducerTable
from octavo.broker.state.stream import Append, StreamState
from octavo.broker.types import PartitionName, Published, TopicSettings
from octavo.ledger.actions import Ended, Forced
from octavo.ledger.errors import LedgerFenced, OutcomeUnknown, WriterBusy
from octavo.ledger.write.writer import LedgerWriter
from octavo.protocol.append_time import ROLL_AFTER_MS, SPAN_MS, stamped
from octavo.protocol.batch import NO_PRODUCER, BatchHeader, with_base_offset
from octavo.protocol.codes import OctavoError
from octavo.security.keys.errors import KeyMissing

_WAITING_FACTOR = 4
"""Bound on batches that wait for room, as a multiple of `inflight_bytes_max`."""
_LAST_ANSWERS_S = 2.0


class OpenSegment:
    __slots__ = (
        "added_bytes", "appended_ms", "base_offset", "contents", "created_ms", "entries",
        "last_entry", "released", "writer",
    )  # fmt: skip

    def __init__(
        self,
        writer: LedgerWriter | None,
        base_offset: int,
        created_ms: int,
        *,
        released: bool,
        appended_ms: int | None = None,
    ) -> None:
        self.writer = writer
        """None until the ledger is first needed."""
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.appended_ms = appended_ms
        """Base of the append times; None: the batches have none."""
        self.released = released
        """Whether the record names the ledger; until then no batch in it is answered."""
        self.entries = self.added_bytes = 0
        self.last_entry = -1
        self.contents = Contents()

    @property
    def ledger_id(self) -> int | None:
        return None if self.writer is None else self.writer.ledger_id

    def roll_due(self, policy: RolloverPolicy, now_ms: int) -> bool:
        if self.appended_ms is not None and now_ms - self.appended_ms > ROLL_AFTER_MS:
            return True
        return policy.due(self.added_bytes, self.entries, now_ms - self.created_ms)

    def is_made_otherwise(self, settings: TopicSettings) -> bool:
        """Return whether the settings now ask for other copies, acks, syncs or append times."""
        assert self.writer is not None
        metadata = self.writer.metadata
        made = (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        wanted = (settings.ensemble_size, settings.write_quorum, settings.ack_quorum)
        deferred = is_deferred(settings.policies)
        if (self.appended_ms is not None) != has_append_times(settings.policies):
            return True  # even if empty: the next batch needs the other kind of time
        return self.entries > 0 and (made != wanted or self.writer.deferred != deferred)


def _numbers_of(header: BatchHeader) -> tuple[int, int, int, int] | None:
    if header.producer_id == NO_PRODUCER or header.base_sequence < 0:
        return None
    return header.producer_id, header.producer_epoch, header.base_sequence, header.record_count


class _Job:
    __slots__ = (
        "access", "append", "batch", "entry_id", "expected_offset", "first_offset", "future",
        "header", "segment", "sequence", "size", "stored", "written",
    )  # fmt: skip

    def __init__(
        self,
        batch: bytes,
        header: BatchHeader,
        expected_offset: int | None,
        access: int | None,
        append: Append | None,
        future: asyncio.Future[Published],
    ) -> None:
        self.append = append
        self.access = access
        self.batch = batch
        self.header = header
        self.expected_offset = expected_offset
        self.future = future
        self.size = len(batch)
        self.first_offset = self.entry_id = -1
        self.segment: OpenSegment | None = None
        self.stored = self.written = False
        """`stored`: durable; `written`: on an ack quorum, perhaps not synced."""
        self.sequence = _numbers_of(header)

    def fail(self, error: OctavoError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Publisher:
    def __init__(
        self,
        name: PartitionName,
        config: BrokerConfig,
        segment: OpenSegment,
        producers: ProducerTable,
        tail: PartitionTail,
        index: EntryIndex,
        on_confirmed: Callable[[int, int], None],
        on_failed: Callable[[OctavoError], None],
        access: Access,
        clock: Callable[[], int],
        stream: StreamState | None = None,
    ) -> None:
        self._name = name
        self._clock = clock
        self.appended_ms = -1 if segment.appended_ms is None else segment.appended_ms
        self.stored_stream = stream
        self._stream = None if stream is None else stream.copy()
        self.closing: Append | None = None
        """The append that ended the stream without a batch."""
        self._access = access
        self._config = config
        self._tail = tail
        self._index = index
        self._on_confirmed = on_confirmed
        self._on_failed = on_failed
        self.stored_producers = producers
        self._producers = ProducerTable(config.producers_max)
        for state in producers.snapshot():
            self._producers.restore(state)
        self.segment = self._previous = segment
        self.confirmed_offset = self.next_offset = segment.base_offset
        self.inflight_bytes = 0
        self.stored_messages = self.stored_bytes = 0
        self._pending: deque[_Job] = deque()
        self._waiting: deque[_Job] = deque()
        self._waiting_bytes = 0
        self._until_confirmed: list[tuple[int, asyncio.Future[None]]] = []
        self._draining: asyncio.Task[None] | None = None
        self._deferred: deque[_Job] = deque()
        self._forcing: asyncio.Task[None] | None = None
        self._unanswered = 0
        """Adds whose outcome is not reported; counted after a failure, too."""
        self._all_answered: asyncio.Future[None] | None = None
        self.failed: OctavoError | None = None
        self.begin: Callable[[], Awaitable[None]] | None = None
        self._listen_to(segment)

    def describe(self) -> dict[str, int]:
        return {
            "inflight_bytes": self.inflight_bytes,
            "pending": len(self._pending),
            "waiting": len(self._waiting),
            "waiting_bytes": self._waiting_bytes,
            "deferred": len(self._deferred),
            "until_confirmed": sum(not one.done() for _, one in self._until_confirmed),
            "unanswered": self._unanswered,
        }

    def waits_in_vain(self) -> str:
        if not self._waiting or self._draining is not None or self.failed is not None:
            return ""
        return "publishes wait, and there is room" if self._has_room(self._waiting[0]) else ""

    async def publish(
        self,
        batch: bytes,
        header: BatchHeader,
        expected_offset: int | None,
        access: int | None = None,
        append: Append | None = None,
    ) -> Published:
        """Store one checked batch; see `Partition.publish`.

        The answer to a repeated append does not contain its place.
        """
        if self.failed is not None:
            raise self._not_stored(self.failed)
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        job = _Job(batch, header, expected_offset, access, append, future)
        if self._waiting or not self._has_room(job):
            self._queue(job)
        else:
            self._admit(job)
        try:
            async with asyncio.timeout(self._config.publish_timeout_ms / 1000):
                published = await future
                if published.duplicate:
                    await self.confirmed_up_to(job.first_offset + 1)
                return published
        except TimeoutError:
            raise self._too_late(job) from None
        except asyncio.CancelledError:
            self._give_up(job)
            raise

    def has(self, header: BatchHeader, append: Append | None = None) -> bool:
        try:
            if append is not None:
                return (
                    self._stream is not None
                    and append.producer is not None
                    and self._stream.check(append, self.next_offset) is not None
                )
            numbers = _numbers_of(header)
            return numbers is not None and self._producers.check(*numbers) is not None
        except BrokerError:
            return False

    async def confirmed_up_to(self, offset: int) -> None:
        if offset <= self.confirmed_offset:
            return
        if self.failed is not None:
            raise self._unknown(self.failed)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._until_confirmed.append((offset, done))
        await done

    def begin_stream(self, stream: StreamState) -> None:
        self.stored_stream, self._stream = stream, stream.copy()

    def let_close(self, append: Append) -> int | None:
        """Return None, or for a repeat the offset before which it was stored."""
        if self.failed is not None:
            raise self._not_stored(self.failed)
        assert self._stream is not None
        if append.producer is None and self._stream.closed:
            return self.next_offset
        end = self._stream.check(append, self.next_offset)
        if end is None:
            self.closing = append
            self._stream.accept(append, self.next_offset)
        return end

    def switch_to(self, segment: OpenSegment) -> None:
        """Write to this ledger, which starts at `next_offset`, or after inserted ledgers."""
        assert segment.base_offset >= self.next_offset
        assert self.segment.released, "one roll-over at a time"
        if segment.appended_ms is not None:
            assert segment.appended_ms >= self.appended_ms, "append times never go back"
            self.appended_ms = segment.appended_ms
        self._previous, self.segment = self.segment, segment
        self.next_offset = segment.base_offset
        self._listen_to(segment)

    @property
    def writer(self) -> LedgerWriter | None:
        return self.segment.writer

    def last_entry_of(self, ledger_id: int) -> int:
        segment = self._segment_of(ledger_id)
        return -1 if segment is None else segment.last_entry

    def contents_of(self, ledger_id: int) -> Contents:
        segment = self._segment_of(ledger_id)
        return Contents() if segment is None else segment.contents

    def _listen_to(self, segment: OpenSegment) -> None:
        """Follow the writer's events.

        If it ends, readers wait for its unconfirmed entries, so the ledger must be replaced without
        waiting for an add.
        """
        if segment.writer is not None:
            segment.writer.on_event.append(partial(self._writer_told, segment))

    def _writer_told(self, segment: OpenSegment, event: object) -> None:
        if isinstance(event, Ended):
            self.fail(event.error)
        elif isinstance(event, Forced) and self.failed is None:
            self._synced(segment, event.last_entry)

    def _segment_of(self, ledger_id: int) -> OpenSegment | None:
        for segment in (self.segment, self._previous):
            if segment.ledger_id == ledger_id:
                return segment
        return None

    async def abandon(self) -> None:
        """Drop the ledger without closing it: the next owner recovers it.

        Waits up to two seconds for pending adds, so that an owner that lost its partition unawares
        can log that it was fenced.
        """
        writer = self.writer
        if self._unanswered and writer is not None and writer.error is None:
            self._all_answered = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._all_answered,), timeout=_LAST_ANSWERS_S)
        self.let_go()

    def let_go(self) -> None:
        for segment in (self._previous, self.segment):
            if segment.writer is not None:
                let_go(segment.writer)

    def release(self, segment: OpenSegment, tail: PartitionTail | None = None) -> None:
        """Answer what this ledger has confirmed: the record names it now.

        `tail`: an empty tail, if ledgers were inserted before: the old tail cannot continue after
        them.
        """
        segment.released = True
        if tail is not None:
            assert self.confirmed_offset <= segment.base_offset
            self._tail = tail
            self.confirmed_offset = segment.base_offset
            self._wake()
            self._on_confirmed(0, 0)
        self._settle()

    def fail(self, error: OctavoError) -> None:
        if self.failed is not None:
            return
        if isinstance(error, OutcomeUnknown):
            error = error.cause
        self.failed = error
        for job in self._pending:
            job.fail(self._unknown(error))
        for _, done in self._until_confirmed:
            if not done.done():
                done.set_exception(self._unknown(error))
        self._refuse_waiting(error)
        self._pending.clear()
        self._until_confirmed.clear()
        self.inflight_bytes = 0
        for task in (self._draining, self._forcing):
            if task is not None:
                task.cancel()
        self._deferred.clear()
        self._on_failed(error)

    def _unknown(self, error: OctavoError) -> PublishOutcomeUnknown:
        return PublishOutcomeUnknown(
            f"{self._name}: the batch may or may not be stored: {error.name}: {error}; "
            "repeat it with the same producer sequence"
        )

    def _refuse_waiting(self, error: OctavoError) -> None:
        for job in self._waiting:
            job.fail(self._not_stored(error))
        self._waiting.clear()
        self._waiting_bytes = 0

    def _not_stored(self, error: OctavoError) -> BrokerError:
        why = f"{self._name}: not stored: {error.name}: {error}"
        if isinstance(error, NotOwner | LedgerFenced | OwnershipLost):
            return NotOwner(why)
        return unavailable(why, error)

    def _too_late(self, job: _Job) -> OctavoError:
        waited_ms = self._config.publish_timeout_ms
        if not self._give_up(job):
            return self._unknown(Overloaded(f"no ack quorum within {waited_ms} ms"))
        return Overloaded(f"{self._name}: no room within {waited_ms} ms; not stored")

    def _give_up(self, job: _Job) -> bool:
        if job not in self._waiting:
            return False
        self._waiting.remove(job)
        self._waiting_bytes -= job.size
        self._pump()
        return True

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def _has_room(self, job: _Job) -> bool:
        total = self.inflight_bytes + job.size
        return total <= self._config.inflight_bytes_max or not self._pending

    def _queue(self, job: _Job) -> None:
        if self._waiting_bytes > _WAITING_FACTOR * self._config.inflight_bytes_max:
            raise Overloaded(
                f"{self._name}: {self.inflight_bytes} bytes are in flight and "
                f"{self._waiting_bytes} wait; publish more slowly"
            )
        self._waiting.append(job)
        self._waiting_bytes += job.size

    def _admit(self, job: _Job) -> None:
        try:
            self._access.check(job.access, int(job.future.get_loop().time() * 1000))
            if self._stream is not None and self._is_repeat(job, self._stream):
                return
            known = None if job.sequence is None else self._producers.check(*job.sequence)
            if known is not None:
                job.first_offset = known.stored_from
                count = job.header.record_count
                job.future.set_result(
                    Published(known.first_offset, known.last_offset, -1, -1, count, True)
                )
                return
            # A repeat of a stored batch is no mismatch, so this check comes second.
            if job.expected_offset not in (None, self.next_offset):
                raise OffsetMismatch(
                    f"{self._name}: expected next offset {job.expected_offset}, "
                    f"it is {self.next_offset}",
                    self.next_offset,
                )
            self._add(job)
            if job.sequence is not None:
                self._producers.accept(*job.sequence, job.first_offset)
            if job.append is not None and self._stream is not None:
                self._stream.accept(job.append, self.next_offset)
        except WriterBusy:
            self._waiting.appendleft(job)
            self._waiting_bytes += job.size
            self._drain()
        except BrokerError as error:
            job.fail(error)
        except KeyMissing as error:
            job.fail(self._not_stored(error))
            self.fail(error)
        except OctavoError as error:
            job.fail(self._unknown(error))
            self.fail(error)

    def _is_repeat(self, job: _Job, stream: StreamState) -> bool:
        if job.append is None:
            raise TopicIsStream(
                f"{self._name} is a durable stream: append to it at /v1/durable-streams"
            )
        end = stream.check(job.append, self.next_offset)
        if end is None:
            return False
        job.first_offset = end - 1
        job.future.set_result(Published(-1, -1, -1, -1, job.header.record_count, True))
        return True

    def _add(self, job: _Job) -> None:
        segment, writer = self.segment, self.segment.writer
        if writer is None:
            raise WriterBusy(f"{self._name}: its next ledger is being made")
        header = self._timed(job.header, segment)
        stored = with_base_offset(
            job.batch, self.next_offset - segment.base_offset, header.partition_leader_epoch
        )
        job.entry_id = writer.add(stored, partial(self._added, job))
        job.batch = stored
        job.header = header
        job.segment = segment
        job.first_offset = self.next_offset
        self.next_offset += job.header.record_count
        self.inflight_bytes += job.size
        self._unanswered += 1
        segment.entries += 1
        segment.added_bytes += job.size
        self._pending.append(job)
        if writer.deferred:
            self._deferred.append(job)

    def _timed(self, header: BatchHeader, segment: OpenSegment) -> BatchHeader:
        """Return the header with its append time, which never goes back."""
        if segment.appended_ms is None:
            return header._replace(partition_leader_epoch=0)
        time_ms = max(self._clock(), self.appended_ms)
        if time_ms - segment.appended_ms >= SPAN_MS:
            # The ledger was not replaced for weeks, or the clock has jumped.
            error = PartitionUnavailable(
                f"{self._name}: not stored: ledger {segment.ledger_id} is too old for the "
                "current append time; another ledger is made"
            )
            self.fail(error)
            raise error
        self.appended_ms = time_ms
        return stamped(header, time_ms)

    def _added(self, job: _Job, _entry_id: int, error: OctavoError | None) -> None:
        self._unanswered -= 1
        waiter = self._all_answered
        if not self._unanswered and waiter is not None and not waiter.done():
            waiter.set_result(None)
        if error is not None:
            self.fail(error)
        elif self.failed is None:
            assert job.segment is not None
            job.written = True
            assert job.segment.writer is not None
            job.stored = not job.segment.writer.deferred
            self._settle()
            if not job.stored:
                self._force_soon(job.segment)

    def _force_soon(self, segment: OpenSegment) -> None:
        if self._forcing is None:
            self._forcing = asyncio.create_task(self._force(segment), name=f"force {self._name}")

    async def _force(self, segment: OpenSegment) -> None:
        """Sync what is written after a short wait; repeat while more is written."""
        try:
            await asyncio.sleep(self._config.deferred_sync_ms / 1000)
            assert segment.writer is not None, "something was added"
            await segment.writer.force()
        except OctavoError:
            return  # the writer has ended, and has reported it
        finally:
            self._forcing = None
        for job in self._pending:
            if job.written and not job.stored and job.segment is not None:
                self._force_soon(job.segment)
                return

    def _synced(self, segment: OpenSegment, last_entry: int) -> None:
        for job in self._pending:
            if job.segment is segment:
                if job.entry_id > last_entry:
                    break
                job.stored = True
        self._settle()

    def _settle(self) -> None:
        deferred = self._deferred
        while deferred and deferred[0].written:
            segment = deferred[0].segment
            assert segment is not None
            if not segment.released:
                break
            self._answer(deferred.popleft(), segment)
        pending = self._pending
        entries = size = 0
        while pending and pending[0].stored:
            segment = pending[0].segment
            assert segment is not None
            if not segment.released:
                break
            job = pending.popleft()
            self._confirm(job, segment)
            entries += 1
            size += job.size
        if not entries:
            return
        if self._until_confirmed:
            self._wake()
        if self._waiting:
            self._pump()
        self._on_confirmed(size, entries)

    def _confirm(self, job: _Job, segment: OpenSegment) -> None:
        header, first = job.header, job.first_offset
        assert first == self.confirmed_offset, "confirmations come in the order of the offsets"
        self.confirmed_offset = first + header.record_count
        self.inflight_bytes -= job.size
        self.stored_messages += header.record_count
        self.stored_bytes += job.size
        segment.contents = segment.contents.plus(header, job.size)
        segment.last_entry = job.entry_id
        ledger_id = segment.ledger_id
        assert ledger_id is not None
        if job.sequence is not None:
            self.stored_producers.accept(*job.sequence, first)
        if job.append is not None and self.stored_stream is not None:
            self.stored_stream.accept(job.append, self.confirmed_offset)
        self._index.note(ledger_id, first - segment.base_offset, job.entry_id)
        self._tail.append(CachedBatch(first, ledger_id, job.entry_id, header, job.batch))
        self._answer(job, segment)

    @staticmethod
    def _answer(job: _Job, segment: OpenSegment) -> None:
        if not job.future.done():
            first, count = job.first_offset, job.header.record_count
            ledger_id = segment.ledger_id
            assert ledger_id is not None
            job.future.set_result(
                Published(first, first + count - 1, ledger_id, job.entry_id, count, False)
            )

    def _wake(self) -> None:
        still = []
        for offset, done in self._until_confirmed:
            if offset > self.confirmed_offset:
                still.append((offset, done))
            elif not done.done():
                done.set_result(None)
        self._until_confirmed = still

    def _pump(self) -> None:
        while self._waiting and self._draining is None and self._has_room(self._waiting[0]):
            job = self._waiting.popleft()
            self._waiting_bytes -= job.size
            if not job.future.done():
                self._admit(job)

    def _drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drained(), name=f"drain {self._name}")

    async def _begun(self, begin: Callable[[], Awaitable[None]]) -> None:
        try:
            await begin()
        except OctavoError as error:
            if self.failed is None:
                self._refuse_waiting(error)

    async def _drained(self) -> None:
        try:
            if self.segment.writer is not None:
                await self.segment.writer.drain()
            elif self.begin is not None:
                await self._begun(self.begin)
        except OctavoError as error:
            self.fail(error)
        except Exception as error:  # publishers must get an error for a bug, too
            self.fail(
                PartitionUnavailable(f"{self._name}: nothing can be added to its ledger: {error!r}")
            )
            raise
        finally:
            self._draining = None
        self._pump()
