"""Read the confirmed batches of an owned partition: by offset, time or message id, and at its end.

Recent batches come from the tail cache, older batches from the ledgers (log/reader.py).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import replace

from octavo.broker.errors import MessageNotFound, NotOwner, OffsetBeyondEnd, OffsetTrimmed
from octavo.broker.log.cache import PartitionTail, TailCache
from octavo.broker.log.ledger_list import Cut, ForkPoint, end_offset, is_measured, measured
from octavo.broker.log.reader import LedgerTimes, LogReader
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition.publisher import Publisher
from octavo.broker.types import MessageId, PartitionName, StoredBatch, Work
from octavo.ledger.encryption import Sealing
from octavo.ledger.errors import LedgerNotFound
from octavo.metadata.compactions import compacted_ledgers
from octavo.metadata.offloads import is_only_copy
from octavo.metadata.topics import PartitionLedger


class PartitionLog:
    def __init__(
        self,
        name: PartitionName,
        record: PartitionRecordKeeper,
        cache: TailCache,
        tail: PartitionTail,
        reader: LogReader,
        publisher: Publisher,
    ) -> None:
        self._name = name
        self._record = record
        self._cache = cache
        self._loop = asyncio.get_running_loop()
        self.tail = tail
        self.reader = reader
        reader.follow(self._last_entry)
        self.times = LedgerTimes(reader)
        self._publisher = publisher
        self._sealing: Sealing | None = None
        self._growth: dict[asyncio.Future[None], None] = {}
        self._closed: NotOwner | None = None
        self._leaving = 0
        self._read_messages = self._read_bytes = 0

    @property
    def work(self) -> Work:
        messages, size = self._publisher.stored_messages, self._publisher.stored_bytes
        return Work(messages + self._read_messages, size + self._read_bytes)

    @property
    def earliest_offset(self) -> int:
        return self._record.ledgers.earliest_offset

    @property
    def kept_from(self) -> int:
        """Return the first offset left after the trim that is being written."""
        return max(self._leaving, self.earliest_offset)

    def leave(self, offset: int) -> None:
        """Note a trim that is being written: no reader may seek before `offset`."""
        self._leaving = offset

    @property
    def end_offset(self) -> int:
        return self._publisher.confirmed_offset

    def renew_tail(self) -> PartitionTail:
        self.tail.clear()
        self.tail = self._cache.partition()
        return self.tail

    def follow(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.grown()

    def grown(self) -> None:
        writer = self._publisher.writer
        self._sealing = (writer and writer.sealing) or self._sealing
        waiters, self._growth = self._growth, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def close(self, error: NotOwner) -> None:
        self._closed = error
        self.grown()
        self.tail.clear()
        await self.reader.close()

    async def read(
        self, offset: int, bytes_max: int, count_max: int, wait_s: float
    ) -> list[StoredBatch]:
        self._check(offset)
        if offset < self.end_offset:
            offset = self._record.ledgers.shown_from(offset)
        if offset == self.end_offset:
            await self._wait_for_growth(offset, wait_s)
            if offset == self.end_offset:
                return []
            offset = self._record.ledgers.shown_from(offset)
        found = self.tail.read(offset, bytes_max, count_max)
        # If the key is unreadable, the ledger's reader reports why, or finds it wrapped again.
        if not found or (self._sealing is not None and not await self._sealing.is_readable()):
            found = await self.reader.read(offset, self.end_offset, bytes_max, count_max)
        for batch in found:
            self._read_messages += batch.header.record_count
            self._read_bytes += len(batch.data)
        return found

    async def fork_point(self, offset: int) -> ForkPoint:
        self._check(offset)
        if offset == self.earliest_offset:
            return ForkPoint(offset)
        segment = self._record.ledgers.find(offset - 1)
        if segment.count is not None and end_offset(segment) == offset:
            return ForkPoint(offset)
        kept = offset - segment.base_offset
        if segment.count is None:
            contents = self._publisher.contents_of(segment.ledger_id)
            messages, size = contents.messages, contents.payload_bytes
        else:
            messages, size = segment.count, segment.bytes
        found = self.tail.read(offset - 1, 1, 1)
        if found and found[0].ledger_id == segment.ledger_id:
            entry_id, header = found[0].entry_id, found[0].header
        else:
            entry_id = await self.reader.entry_of(segment, offset - 1)
            header = await self.reader.header_at(segment, entry_id)
        about = size * kept // max(1, messages)
        return ForkPoint(offset, Cut(segment.ledger_id, entry_id, about, header.first_timestamp))

    async def offset_at(self, time_ms: int, least: int = 0) -> int:
        passed, least = -1, max(least, self.earliest_offset)
        # Read the list again for each ledger: some may be trimmed meanwhile.
        while (segment := self._after(passed)) is not None:
            passed = segment.base_offset
            end = self.end_offset
            if least >= (end if segment.count is None else end_offset(segment)):
                continue
            try:
                found = await self._offset_in(segment, time_ms, least)
            except LedgerNotFound:
                if self._record.ledgers.segment_of(segment.ledger_id) is not None:
                    raise
                continue
            if found is not None and found >= self.earliest_offset:
                return self._record.ledgers.shown_from(found)
            if found is not None:  # retention has removed that message meanwhile
                passed, least = passed - 1, self.earliest_offset
                continue
            if segment.count is None:
                return end  # messages that came during the search were not checked
        return self.end_offset

    def _after(self, base_offset: int) -> PartitionLedger | None:
        segments = self._record.ledgers.segments
        place = bisect_right(segments, base_offset, key=lambda segment: segment.base_offset)
        return segments[place] if place < len(segments) else None

    async def _offset_in(self, segment: PartitionLedger, time_ms: int, least: int) -> int | None:
        if segment.count is not None:
            # An offloaded object has these times in its footer.
            if not is_measured(segment) and not is_only_copy(segment.offload):
                segment = measured(segment, await self.times.of(segment))
        else:
            contents = self._publisher.contents_of(segment.ledger_id)
            segment = replace(segment, last_ms=contents.last_ms, disorder_ms=contents.disorder_ms)
        if is_measured(segment) and segment.last_ms < time_ms:
            return None
        return await self.reader.offset_at(time_ms, segment, least)

    def forget(self, ledger_id: int) -> None:
        self.reader.forget(ledger_id)
        self.times.forget(ledger_id)

    async def position(self, message_id: MessageId) -> int:
        cached = self.tail.find(message_id.ledger_id, message_id.entry_id)
        if cached is not None and message_id.index < cached.header.record_count:
            return cached.base_offset + message_id.index
        try:
            return (await self.reader.batch_of(message_id)).base_offset + message_id.index
        except MessageNotFound as error:
            if message_id.ledger_id in compacted_ledgers(self._record.value):
                # A seek to an offset that retention removed would go elsewhere.
                raise MessageNotFound(
                    f"{error}: it is in a compacted view, which only compacted=true reads; "
                    "use the message's offset instead"
                ) from error
            raise

    def _check(self, offset: int) -> None:
        if self._closed is not None:
            raise self._closed
        earliest, end = self.earliest_offset, self.end_offset
        if offset < earliest:
            raise OffsetTrimmed(
                f"{self._name}: offset {offset} was trimmed; the earliest is {earliest}", earliest
            )
        if offset > end:
            raise OffsetBeyondEnd(
                f"{self._name}: offset {offset} is beyond the end; the next offset is {end}", end
            )

    async def _wait_for_growth(self, offset: int, wait_s: float) -> None:
        until_s = self._loop.time() + wait_s
        while offset == self.end_offset and self._loop.time() < until_s:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._growth[waiter] = None
            timer = self._loop.call_at(until_s, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._growth.pop(waiter, None)
            if self._closed is not None:
                raise self._closed

    def _last_entry(self, ledger_id: int) -> int:
        return self._publisher.last_entry_of(ledger_id)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
