"""Periodic work of an owned partition: checkpoint its producers, trim by retention."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.log.compaction_rules import covered_to
from octavo.broker.log.ledger_list import LedgerList
from octavo.broker.log.ledger_references import referrer_of
from octavo.broker.log.record import OwnershipLost, PartitionRecordKeeper, with_ledgers
from octavo.broker.log.retention import RetentionPolicy
from octavo.broker.partition.context import PartitionContext
from octavo.broker.partition.log import PartitionLog
from octavo.broker.partition.publisher import Publisher
from octavo.broker.state.format import Op, producers_op
from octavo.broker.subscriptions.subscriptions import SubscriptionSet
from octavo.broker.types import PartitionName, TopicSettings
from octavo.metadata.offloads import is_only_copy
from octavo.metadata.topics import PartitionLedger, PartitionRecord
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_CHECKPOINT_ENTRIES = 5_000
"""About the most batch headers that a take-over scans."""


class Maintenance:
    def __init__(
        self,
        name: PartitionName,
        context: PartitionContext,
        record: PartitionRecordKeeper,
        settings: Callable[[], TopicSettings],
        log: PartitionLog,
        subscriptions: SubscriptionSet,
        persist: Callable[[Op], Awaitable[None]],
        on_lost: Callable[[OctavoError], None],
    ) -> None:
        self._name = name
        self._context = context
        self._record = record
        self._settings = settings
        self._log = log
        self._subscriptions = subscriptions
        self._persist = persist
        self._on_lost = on_lost
        self._unscanned_bytes = self._unscanned_entries = 0
        self._checkpoint: asyncio.Task[None] | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._trimming = asyncio.Lock()

    def close(self) -> None:
        for task in (self._checkpoint, self._measuring):
            if task is not None:
                task.cancel()

    def confirmed(self, publisher: Publisher, payload_bytes: int, entries: int) -> None:
        self._unscanned_bytes += payload_bytes
        self._unscanned_entries += entries
        long = self._unscanned_bytes >= self._context.config.producer_checkpoint_bytes
        if (long or self._unscanned_entries >= _CHECKPOINT_ENTRIES) and self._checkpoint is None:
            self._unscanned_bytes = self._unscanned_entries = 0
            self._checkpoint = asyncio.create_task(
                self._write_checkpoint(publisher), name=f"checkpoint {self._name}"
            )

    async def _write_checkpoint(self, publisher: Publisher) -> None:
        try:
            await self._persist_producers(publisher)
        except Exception as error:
            # Nothing is lost: the next write begins with a snapshot of all producers.
            bug = None if isinstance(error, OctavoError) else error
            _log.warning(
                "checkpoint_failed", partition=str(self._name), reason=str(error), exc_info=bug
            )
        finally:
            self._checkpoint = None

    async def note_producers(self, publisher: Publisher) -> None:
        if len(publisher.stored_producers) or publisher.stored_stream is not None:
            await self._persist_producers(publisher)

    async def _persist_producers(self, publisher: Publisher) -> None:
        upto = publisher.confirmed_offset
        told = [producers_op(upto, publisher.stored_producers.take_changed())]
        if publisher.stored_stream is not None:
            told.append(publisher.stored_stream.change(upto))
        await asyncio.gather(*[self._persist(op) for op in told])

    async def trim(self, publisher: Publisher) -> None:
        """Remove ledgers that are beyond retention and acked by all subscriptions."""
        async with self._trimming:  # upkeep and a compaction may run at once
            try:
                await self._trim(publisher)
            except OwnershipLost as error:
                self._on_lost(error)

    async def truncate(self, publisher: Publisher, before: int) -> int:
        """Make the partition begin at `before`, whatever subscriptions need; return its
        beginning.
        """
        if before <= self._log.earliest_offset:
            return self._log.earliest_offset
        await self.follow_subscriptions()
        await self._subscriptions.pass_all_over(before)
        await self._persist_producers(publisher)
        held = self._record.ledgers

        def truncated(record: PartitionRecord) -> PartitionRecord:
            nonlocal held
            held = self._record.ledgers
            ledger_list = held.truncating(before)
            self._log.leave(ledger_list.earliest_offset)
            return with_ledgers(record, ledger_list)

        try:
            await self._record.change(truncated)
        except OwnershipLost as error:
            self._on_lost(error)
            raise
        await self._subscriptions.pass_all_over(before)  # one may have gone back meanwhile
        _log.info("partition_truncated", partition=str(self._name), before=before)
        await self._release(held)
        return self._log.earliest_offset

    async def follow_subscriptions(self) -> None:
        names = await self._context.topics.list_subscriptions(*self._name.topic_name)
        await self._subscriptions.follow(names)

    async def _date(self, now_ms: int) -> None:
        """Date ledgers whose messages have no usable time, so that they can expire."""
        if self._record.ledgers.dating(now_ms) is not self._record.ledgers:
            await self._record.change(
                lambda record: with_ledgers(record, self._record.ledgers.dating(now_ms))
            )

    async def _measure(self, segment: PartitionLedger) -> None:
        try:
            contents = await self._log.times.of(segment)
            await self._record.change(
                lambda record: with_ledgers(
                    record, self._record.ledgers.measuring(segment.ledger_id, contents)
                )
            )
        except OwnershipLost as error:
            self._on_lost(error)
        except Exception as error:
            # A ledger of unknown age is never trimmed by age.
            bug = None if isinstance(error, OctavoError) else error
            _log.warning(
                "ledger_not_measured", ledger_id=segment.ledger_id, reason=str(error), exc_info=bug
            )
        finally:
            self._measuring = None

    def retention(self, time: DeletionTime | None) -> RetentionPolicy:
        """Return what may be trimmed now; without `time`, nothing goes by age."""
        settings = self._settings()
        age_ms = None if time is None else settings.retention_ms
        # The newest messages may be in no view yet.
        compacted = settings.compaction_after_bytes is not None
        covered = covered_to(self._record.value) if compacted else None
        goes = compacted and settings.compaction_delete_raw
        return RetentionPolicy(age_ms, settings.retention_bytes, covered, goes)

    async def _trim(self, publisher: Publisher) -> None:
        open_bytes = publisher.segment.contents.payload_bytes
        time = self._context.deletion_time()
        now_ms = 0 if time is None else time.now_ms
        policy = self.retention(time)
        if policy.age_ms is not None and time is not None and not time.doubt:
            await self._date(time.date_ms)
        before = self._record.ledgers
        unknown = policy.to_measure(before, now_ms, open_bytes)
        if unknown is not None and self._measuring is None:
            # Measuring reads the whole ledger; the trim does not wait for it.
            self._measuring = asyncio.create_task(
                self._measure(unknown), name=f"measure ledger {unknown.ledger_id}"
            )
        if policy.trimming(before, now_ms, open_bytes) is before:
            return
        await self.follow_subscriptions()
        limit = self._subscriptions.oldest_unacked()
        if policy.trimming(before, now_ms, open_bytes, limit) is before:
            return
        scanned_from: int | None = None
        if len(publisher.stored_producers) or publisher.stored_stream is not None:
            # A take-over scans these batches; without them, a repeat could be stored twice.
            scanned_from = publisher.confirmed_offset
            await self._persist_producers(publisher)

        def trimmed(record: PartitionRecord) -> PartitionRecord:
            # Computed now: a subscription may have gone back. None may while the record is written.
            limits = [self._subscriptions.oldest_unacked(), scanned_from]
            limit = min((offset for offset in limits if offset is not None), default=None)
            ledger_list = policy.trimming(self._record.ledgers, now_ms, open_bytes, limit)
            self._log.leave(ledger_list.earliest_offset)
            return with_ledgers(record, ledger_list)

        await self._record.change(trimmed)
        await self._release(before)

    async def _release(self, before: LedgerList) -> None:
        for ledger_id in before.dropped_in(self._record.ledgers):
            _log.info("ledger_trimmed", partition=str(self._name), ledger=ledger_id)
            self._log.forget(ledger_id)
            segment = before.segment_of(ledger_id)
            if segment is not None and is_only_copy(segment.offload):
                continue  # the next offload removes objects that no record names
            mine = referrer_of(self._name, self._record.value.incarnation)
            await self._context.shared.release_quietly(ledger_id, mine)
