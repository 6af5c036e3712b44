"""Batches unpacked for readers of single messages, with bounds on memory and time.

The newest few stay unpacked, because consumers take a batch in parts; record objects are made some
at a time. Large batches are unpacked one after another, so at most one is in memory beyond the
bound. The event loop gets control every millisecond.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from octavo.broker.types import StoredBatch
from octavo.ledger.read.open_batch import is_large, open_batch
from octavo.protocol.append_time import readable
from octavo.protocol.batch import InvalidBatch, read_header
from octavo.protocol.compression import UnsupportedCompression
from octavo.protocol.entry import Buffer
from octavo.protocol.odd_records import ERROR_HEADER
from octavo.protocol.records import Record
from octavo.protocol.windows import WINDOW_RECORDS, BatchWindows

OVERHEAD_BYTES = 1024
"""The cost of a kept small batch besides its bytes."""
RECORDS_A_TURN = 500
"""Records of all calls after which the event loop turns: two or three milliseconds."""
_Key = tuple[int, int, int]
"""Ledger, entry and checksum: a fork's part of a batch is a different batch."""


class Turns:
    """Bounds the work on single messages in each turn of the loop, over all calls.

    If calls only yielded now and then, sixty calls would share the next turn, and a publish would
    wait for them all.
    """

    def __init__(self) -> None:
        self._line = asyncio.Lock()
        self._records = 0

    async def take(self, records: int) -> None:
        if self._records >= RECORDS_A_TURN:
            async with self._line:
                await asyncio.sleep(0)
                self._records = 0
        self._records += records


class OpenBatches:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[_Key, BatchWindows | InvalidBatch] = OrderedDict()
        self.kept_bytes = 0
        self._turn = asyncio.Lock()
        self.turns = Turns()

    @asynccontextmanager
    async def opened(self, batch: StoredBatch) -> AsyncGenerator[BatchWindows]:
        """Unpack the batch for the block, which should await only `turns`."""
        key = (batch.ledger_id, batch.entry_id, batch.header.crc)
        if not is_large(batch.header):
            yield await self._open(key, batch)
            return
        async with self._turn:
            yield await self._open(key, batch)

    @asynccontextmanager
    async def opening(self, batch: Buffer) -> AsyncGenerator[BatchWindows]:
        if not is_large(read_header(batch)):
            yield await open_batch(batch)
            return
        async with self._turn:
            yield await open_batch(batch)

    @asynccontextmanager
    async def readable(self, batch: StoredBatch) -> AsyncGenerator[ReadableBatch]:
        """Unpack the batch for a subscription, which must get past damaged batches."""
        async with AsyncExitStack() as stack:
            windows: BatchWindows | _Damaged
            try:
                windows = await stack.enter_async_context(self.opened(batch))
            except (InvalidBatch, UnsupportedCompression) as error:
                windows = _Damaged(batch.header.record_count, error)
            yield ReadableBatch(windows, self.turns)

    async def _open(self, key: _Key, batch: StoredBatch) -> BatchWindows:
        found = self._kept.get(key)
        if found is None:
            try:
                found = await open_batch(readable(batch.header, batch.data))
            except InvalidBatch as error:
                found = error
            self._keep(key, found)
        else:
            self._kept.move_to_end(key)
        if isinstance(found, InvalidBatch):
            raise InvalidBatch(str(found))
        return found

    def _keep(self, key: _Key, found: BatchWindows | InvalidBatch) -> None:
        if key in self._kept:
            return  # another call has unpacked it meanwhile
        self._kept[key] = found
        self.kept_bytes += _cost_bytes(found)
        while self.kept_bytes > self._bytes_max:
            self.kept_bytes -= _cost_bytes(self._kept.popitem(last=False)[1])


class ReadableBatch:
    def __init__(self, windows: BatchWindows | _Damaged, turns: Turns) -> None:
        self._windows = windows
        self._turns = turns
        self._first = 0
        self._records: list[Record] = []

    def holds(self, index: int) -> bool:
        return 0 <= index - self._first < len(self._records)

    async def turn_to(self, index: int) -> None:
        """Unpack this message and its neighbours, at this call's turn.

        A damaged message becomes an empty message whose header says why: a subscription must not
        stop there. (The checksum is right: its producer made the damage.)
        """
        span = self._windows.span(index)
        await self._turns.take(len(span))
        try:
            self._first, self._records = self._windows.readable_window(index)
        except InvalidBatch as error:
            self._first, self._records = span.start, _empty(span, error)

    def __getitem__(self, index: int) -> Record:
        return self._records[index - self._first]


class _Damaged:
    def __init__(self, record_count: int, why: Exception) -> None:
        self._record_count = record_count
        self._why = why

    def span(self, index: int) -> range:
        return range(index, min(index + WINDOW_RECORDS, self._record_count))

    def readable_window(self, index: int) -> tuple[int, list[Record]]:
        return index, _empty(self.span(index), self._why)


def _empty(span: range, why: Exception) -> list[Record]:
    headers = ((ERROR_HEADER, str(why).encode()),)
    return [Record(None, None, headers, 0, index) for index in span]


def _cost_bytes(found: BatchWindows | InvalidBatch) -> int:
    held = found.held_bytes if isinstance(found, BatchWindows) else 0
    return held + OVERHEAD_BYTES
