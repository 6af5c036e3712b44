"""Compact a partition, as a broker's own run: two passes, one new view.

    1. the record: begun (run)     so of all runs, jobs' too, only one can publish
    2. both passes                 the new view's messages into new ledgers
    3. the record: published       horizon and ledgers, in one compare-and-set
    4. after a grace               earlier views' ledgers leave the record, then are deleted

A run reads only closed ledgers, and the view that its own `begun` found: so safety does not depend
on who owns the partition. After a crash the old view is valid, and the next run replaces this run
in the record, so no record will name the new ledgers.

`Pace` limits bytes a second and the share of the loop's time, without which a compaction would take
every other turn from publishers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial

import structlog

from octavo.broker.log.compaction_rules import (
    RUN_PREFIX,
    Choice,
    CompactionPolicy,
    Dirt,
    NewestOffsets,
    Room,
    dirt_of,
    is_due,
    is_ours_to_begin,
    ledger_bytes,
    run_messages_max,
    urgency,
)
from octavo.broker.log.orphan_ledgers import compaction_custom_of
from octavo.broker.log.reader import LogReader
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition.compacted import CompactedReader
from octavo.broker.partition.context import PartitionContext
from octavo.broker.state.log import delete_quietly
from octavo.broker.types import PartitionName, StoredBatch, TopicSettings
from octavo.ledger.encryption import plain_length
from octavo.ledger.errors import LedgerError
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.compactions import (
    CompactionLost,
    begun,
    collected,
    published,
    retired_before,
)
from octavo.metadata.offloads import change_partition
from octavo.metadata.topics import CompactedLedger, CompactionRecord, PartitionRecord
from octavo.protocol.append_time import readable
from octavo.protocol.codes import OctavoError
from octavo.protocol.compression import Compression
from octavo.protocol.records import (
    RECORD_OVERHEAD_BYTES,
    Record,
    build_gapped_batch,
    record_bytes,
)
from octavo.protocol.windows import BatchWindows

_log = structlog.get_logger()


_TURN_S = 0.001
_LATE_S_MAX = 0.05
"""A busy loop gives turns late; at most this delay is caught up."""
_TURN_STEPS = 50


class Pace:
    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_per_s: float, share: float) -> None:
        self._loop = loop
        self._bytes_per_s = bytes_per_s
        self._share = share
        self._read_free_s = self._work_free_s = self._resumed_s = loop.time()
        self._read = self._steps = 0
        self.urgency = 1.0

    def resume(self) -> None:
        self._resumed_s = self._loop.time()

    async def step(self, read: int = 0) -> None:
        self._read += read
        self._steps += 1
        began_s, now_s = self._resumed_s, self._loop.time()
        worked_s = now_s - began_s
        read_s = self._read / (self._bytes_per_s * self.urgency)
        if max(worked_s, read_s) < _TURN_S and self._steps < _TURN_STEPS:
            return
        late_s = began_s - _LATE_S_MAX
        self._read_free_s = max(self._read_free_s, late_s) + read_s
        self._work_free_s = max(self._work_free_s, late_s) + worked_s / self._share
        self._read = self._steps = 0
        await asyncio.sleep(max(self._read_free_s, self._work_free_s) - now_s)
        self.resume()


_READ_BYTES = 1024 * 1024
_READ_COUNT = 1_000_000
_BATCH_BYTES = 128 * 1024
"""Messages in an entry of a view; compressing them takes about a millisecond."""
_DELTA_MAX = 2**31 - 1
_Window = list[tuple[int, Record]]


class Compactor:
    def __init__(
        self,
        name: PartitionName,
        incarnation: str,
        context: PartitionContext,
        record: PartitionRecordKeeper,
        settings: Callable[[], TopicSettings],
        log: LogReader,
        view: CompactedReader,
    ) -> None:
        self._name = name
        self._incarnation = incarnation
        self._context = context
        self._record = record
        self._settings = settings
        self._log = log
        self._view = view
        self._loop = asyncio.get_running_loop()

    @property
    def uncompacted(self) -> tuple[int, bool] | None:
        view, policy = self._record.value.compaction, self._policy()
        if policy is None:
            return None
        dirt = dirt_of(self._record.ledgers, view)
        return dirt.bytes, is_due(dirt, view, policy, self._now())

    @property
    def is_due(self) -> bool:
        record, uncompacted = self._record.value, self.uncompacted
        if uncompacted is not None and uncompacted[1]:
            config = self._context.config
            return is_ours_to_begin(
                record.compaction, self._context.clock(), config.compaction_yield_ms
            )
        return uncompacted is not None and bool(self._retired(record))

    async def work(self) -> None:
        """Compact if due, and remove old views' ledgers; one partition of the broker at a time."""
        async with self._context.compacting:
            await self._record.look(newest=True)  # a job may have begun or published a view
            record, policy = self._record.value, self._policy()
            dirt = dirt_of(self._record.ledgers, record.compaction)
            if policy is not None and is_due(dirt, record.compaction, policy, self._now()):
                try:
                    await self._run(policy)
                except CompactionLost as error:
                    _log.info("compaction_lost", partition=str(self._name), reason=str(error))
        await self._collect()

    def _policy(self) -> CompactionPolicy | None:
        settings = self._settings()
        after_bytes = settings.compaction_after_bytes
        if after_bytes is None:
            return None
        return CompactionPolicy(
            after_bytes, settings.compaction_dirty_ratio, settings.compaction_tombstones_ms
        )

    def _now(self) -> int | None:
        time = self._context.deletion_time()
        return None if time is None else time.now_ms

    async def _run(self, policy: CompactionPolicy) -> None:
        started_s = self._loop.time()
        run = f"{RUN_PREFIX}{self._record.value.epoch}-{self._context.rng.getrandbits(64):016x}"
        yield_ms = self._context.config.compaction_yield_ms
        await self._change(
            lambda record: begun_by_broker(record, run, self._context.clock(), yield_ms)
        )
        await self._record.look(newest=True)
        before = self._record.value.compaction
        if before is None or before.run != run:
            raise CompactionLost(f"run {run} was replaced before it began")
        dirt = dirt_of(self._record.ledgers, before)
        config = self._context.config
        share = config.compaction_load_percent / 100
        pace = Pace(self._loop, config.compaction_bytes_per_s, share)
        newest = NewestOffsets(dirt.start, config.compaction_keys_max, run_messages_max(dirt))
        end = await self._first_pass(dirt, newest, pace)
        choice = Choice(newest, policy.tombstones_ms, self._now())
        size = ledger_bytes(dirt, before, self._settings().rollover_bytes)
        target = _Target(self._context, self._new_ledger(run), size, pace)
        try:
            async with aclosing(self._kept_before(before, choice, pace)) as kept:
                async for window in kept:
                    await target.add(window)
            async with aclosing(self._kept_of_new(dirt.start, end, newest, pace)) as kept:
                async for window in kept:
                    await target.add(window)
            made = await target.close()
        except BaseException:
            target.discard()
            raise
        horizon = max(end, before.horizon)
        try:
            await self._change(
                lambda record: published(record, run, horizon, made, self._context.clock())
            )
        except CompactionLost:
            target.discard()  # after any other error, the record may name its ledgers
            raise
        await self._record.look(newest=True)
        _log.info(
            "partition_compacted", partition=str(self._name), horizon=horizon,
            messages_new=end - dirt.start, keys_new=len(newest),
            messages_kept=sum(one.count for one in made), ledgers=len(made),
            bytes=sum(one.bytes for one in made), whole=end == dirt.end,
            duration_ms=round((self._loop.time() - started_s) * 1000),
        )  # fmt: skip

    async def _first_pass(self, dirt: Dirt, newest: NewestOffsets, pace: Pace) -> int:
        """Note each key's newest offset; return the run's end: earlier if the table is full."""
        end = dirt.end
        async with aclosing(self._batches(dirt.start, dirt.end, pace)) as batches:
            async for batch in batches:
                if newest.is_full:
                    end = batch.base_offset
                    break
                async with self._opening(batch) as windows:
                    for number, first, count in _windows(windows, batch.base_offset, dirt.end):
                        newest.note(first, windows.keys(number)[:count])
                        await pace.step()
        for _ in newest.settling():
            await pace.step()
        return end

    async def _kept_before(
        self, before: CompactionRecord, choice: Choice, pace: Pace
    ) -> AsyncGenerator[_Window]:
        at = 0
        while before.ledgers and at < before.horizon:
            batches, following, horizon = await self._view.read(at, Room(_READ_BYTES, _READ_COUNT))
            if horizon != before.horizon:
                raise CompactionLost("another run has published meanwhile")
            pace.resume()
            for one in batches:
                async with self._opening(one) as windows:
                    for _, records in windows.following(0, gaps=True):
                        found = [
                            (one.base_offset + record.offset_delta, record) for record in records
                        ]
                        yield [
                            (offset, record)
                            for offset, record in found
                            if at <= offset < horizon and choice.keeps(record)
                        ]
                        await pace.step()
                await pace.step(len(one.data))
            at = following

    async def _kept_of_new(
        self, start: int, end: int, newest: NewestOffsets, pace: Pace
    ) -> AsyncGenerator[_Window]:
        """Yield the messages to keep from the log, opening only batches that have some."""
        async with aclosing(self._batches(start, end, pace)) as batches:
            async for batch in batches:
                base, count = batch.base_offset, batch.header.record_count
                if not any(newest.staying(base, min(count, end - base))):
                    continue
                async with self._opening(batch) as windows:
                    for number, first, count in _windows(windows, base, end):
                        marks = newest.staying(first, count)
                        if any(marks):
                            records = windows.chosen(number, marks)
                            yield [(base + record.offset_delta, record) for record in records]
                            await pace.step()

    def _opening(self, batch: StoredBatch) -> AbstractAsyncContextManager[BatchWindows]:
        return self._context.open_batches.opening(readable(batch.header, batch.data))

    async def _batches(self, start: int, end: int, pace: Pace) -> AsyncGenerator[StoredBatch]:
        at = self._record.ledgers.shown_from(start)
        while at < end:
            read = await self._log.read(at, end, _READ_BYTES, _READ_COUNT)
            policy = self._policy()
            if policy is not None:  # compaction may have been turned off
                dirt = dirt_of(self._record.ledgers, self._record.value.compaction)
                pace.urgency = urgency(dirt, policy)
            pace.resume()
            for batch in read:
                yield batch
                await pace.step(len(batch.data))
                at = batch.next_offset
                if at >= end:
                    break
            at = self._record.ledgers.shown_from(at)

    def _labels(self, run: str) -> dict[str, bytes]:
        return compaction_custom_of(self._name, self._incarnation, run)

    def _new_ledger(self, run: str) -> Callable[[], asyncio.Future[LedgerWriter]]:
        settings = self._settings()

        async def make() -> LedgerWriter:
            return await self._context.ledgers.create(
                ensemble_size=settings.ensemble_size,
                write_quorum=settings.write_quorum,
                ack_quorum=settings.ack_quorum,
                custom=self._labels(run),
                encrypted_for=self._name.namespace if settings.encrypted else None,
            )

        # The ledger client holds the task, because this task may be cancelled.
        return lambda: self._context.ledgers.spawn(make())

    async def _change(self, make: Callable[[PartitionRecord], PartitionRecord]) -> PartitionRecord:
        """Compare-and-set the record; raise `CompactionLost` if the topic is gone."""

        def checked(record: PartitionRecord) -> PartitionRecord:
            if record.deleted or record.incarnation != self._incarnation:
                raise CompactionLost(f"topic {self._name.topic_name} was deleted")
            return make(record)

        namespace, topic, number = self._name
        return await change_partition(
            self._context.topics, (namespace, topic, number), checked,
            timeout_s=self._context.config.open_timeout_ms / 1000,
        )  # fmt: skip

    def _retired(self, record: PartitionRecord) -> list[int]:
        now_ms = self._now()
        if now_ms is None:
            return []
        return retired_before(record, now_ms - self._context.config.compaction_grace_ms)

    async def _collect(self) -> None:
        going = self._retired(self._record.value)
        if not going:
            return
        await self._change(partial(collected, ledger_ids=going))
        await self._record.look(newest=True)
        for ledger_id in going:
            await delete_quietly(self._context.ledgers, ledger_id)


def begun_by_broker(
    record: PartitionRecord, run: str, now_ms: int, yield_ms: int
) -> PartitionRecord:
    """Raise `CompactionLost` if an operator's job is compacting."""
    if not is_ours_to_begin(record.compaction, now_ms, yield_ms):
        raise CompactionLost("a job compacts this partition now")
    return begun(record, run, now_ms)


def _windows(windows: BatchWindows, base: int, end: int) -> Iterator[tuple[int, int, int]]:
    for number in range(windows.windows):
        numbers = windows.numbers(number)
        count = min(len(numbers), end - base - numbers.start)
        if count > 0:
            yield number, base + numbers.start, count


class _Target:
    def __init__(
        self,
        context: PartitionContext,
        new_ledger: Callable[[], asyncio.Future[LedgerWriter]],
        ledger_bytes: int,
        pace: Pace,
    ) -> None:
        self._context = context
        self._pace = pace
        self._new_ledger = new_ledger
        self._ledger_bytes = ledger_bytes
        self._making: asyncio.Future[LedgerWriter] | None = None
        self._writer: LedgerWriter | None = None
        self._made: list[CompactedLedger] = []
        self._rows: list[Record] = []
        self._rows_from = self._rows_bytes = 0
        self._first = self._last = -1
        self._count = self._bytes = self._entries = 0
        self._tombstones, self._tombstone_ms = 0, -1
        self._error: OctavoError | None = None

    async def add(self, messages: _Window) -> None:
        for offset, record in messages:
            await self._add(offset, record)

    async def _add(self, offset: int, record: Record) -> None:
        size = RECORD_OVERHEAD_BYTES + record_bytes(record.key, record.value, record.headers)
        far = offset - self._rows_from > _DELTA_MAX
        if self._rows and (self._rows_bytes + size > _BATCH_BYTES or far):
            await self._flush()
            if self._bytes >= self._ledger_bytes:
                await self._close_ledger()
        if not self._rows:
            self._rows_from = offset
        if not self._count:
            self._first = offset
        self._rows.append(record._replace(offset_delta=offset - self._rows_from))
        self._rows_bytes += size
        self._last = offset
        self._count += 1
        if record.key is not None and record.value is None:
            oldest = self._tombstone_ms
            time_ms = record.timestamp_ms
            self._tombstone_ms = min(oldest, time_ms) if self._tombstones else time_ms
            self._tombstones += 1

    async def close(self) -> list[CompactedLedger]:
        if self._rows:
            await self._flush()
        if self._count:
            await self._close_ledger()
        return self._made

    def discard(self) -> None:
        """Delete all ledgers made so far; a sweep finds the rest."""
        ledgers = self._context.ledgers
        if self._making is not None:
            ledgers.spawn(_discarded(self._context, self._making))
        for one in self._made:
            ledgers.spawn(delete_quietly(ledgers, one.ledger_id))

    async def _flush(self) -> None:
        if self._writer is None:
            self._making = self._new_ledger()
            self._writer = await asyncio.shield(self._making)
            self._pace.resume()
        base = self._rows_from - self._first
        batch = build_gapped_batch(self._rows, base, compression=Compression.ZSTD)
        if len(batch) > self._context.config.batch_bytes_max:
            batch = build_gapped_batch(self._rows, base)  # incompressible
        await self._pace.step()
        await self._writer.drain()
        self._pace.resume()
        self._writer.add(batch, self._added)
        self._entries += 1
        self._bytes += len(batch)
        self._rows, self._rows_bytes = [], 0

    def _added(self, _: int, error: OctavoError | None) -> None:
        self._error = self._error or error

    async def _close_ledger(self) -> None:
        writer = self._writer
        assert writer is not None
        metadata = await writer.close()
        if self._error is not None:
            raise self._error
        size = plain_length(metadata)
        if (metadata.last_entry, size) != (self._entries - 1, self._bytes):
            raise LedgerError(
                f"ledger {writer.ledger_id} was closed at entry {metadata.last_entry} with {size} "
                f"bytes; {self._entries} entries were written"
            )
        self._made.append(
            CompactedLedger(
                writer.ledger_id, self._first, self._last, self._count, self._bytes,
                self._tombstones, self._tombstone_ms,
            )
        )  # fmt: skip
        self._pace.resume()
        self._writer = self._making = None
        self._count = self._bytes = self._entries = 0
        self._tombstones, self._tombstone_ms = 0, -1


async def _discarded(context: PartitionContext, making: asyncio.Future[LedgerWriter]) -> None:
    with contextlib.suppress(OctavoError):  # if it was not made
        await context.ledgers.discard(await making)
