"""Batches opened for readers who want single messages: the bound on what that takes, and on time.

Kept open are the newest few, up to a bound in bytes over all partitions, as consumers take a batch
in parts. What is kept is the unpacked bytes and marks, never records as objects: these are made for
each reader, some at a time (protocol/windows.py). Batches that may be large are opened and used one
after the other, so beyond the bound there is one of them at most in memory (`RECORDS_BYTES_MAX`),
and readers of others do not wait: the loop has its turn every millisecond.
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
"""About what keeping a small batch costs beside its bytes."""
RECORDS_A_TURN = 500
"""After so many records, of whichever call, the loop turns: two or three milliseconds."""
_Key = tuple[int, int, int]
"""Ledger, entry and checksum: what a fork has of a batch that it was cut in is another batch."""


class Turns:
    """Whose turn it is to work on single messages: so many in one turn of the loop.

    Taking messages out of batches and making JSON of them takes microseconds each, and one call may
    ask for thousands. Each call that leaves the loop now and then is not enough: sixty of them
    share the next turn of it, and a publish that waits for that turn waits for all sixty. So all
    reads and receives of a broker count together, and those that come when a turn is used up go on
    one after the other.
    """

    def __init__(self) -> None:
        self._line = asyncio.Lock()
        self._records = 0
        """Since the loop turned."""

    async def take(self, records: int) -> None:
        """Return when so many `records` may be worked on without leaving the loop."""
        if self._records >= RECORDS_A_TURN:
            async with self._line:
                await asyncio.sleep(0)
                self._records = 0
        self._records += records


class OpenBatches:
    """All open batches of one broker."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[_Key, BatchWindows | InvalidBatch] = OrderedDict()
        self.kept_bytes = 0
        self._turn = asyncio.Lock()
        self.turns = Turns()
        """Of all who work on single messages of these batches."""

    @asynccontextmanager
    async def opened(self, batch: StoredBatch) -> AsyncGenerator[BatchWindows]:
        """The batch, for as long as the block lasts; the block waits for nothing but its turns.

        Raises `InvalidBatch` when it cannot be opened, `UnsupportedCompression`.
        """
        key = (batch.ledger_id, batch.entry_id, batch.header.crc)
        if not is_large(batch.header):
            yield await self._open(key, batch)
            return
        async with self._turn:
            yield await self._open(key, batch)

    @asynccontextmanager
    async def opening(self, batch: Buffer) -> AsyncGenerator[BatchWindows]:
        """The same for a batch that nobody is going to ask for again: it is not kept."""
        if not is_large(read_header(batch)):
            yield await open_batch(batch)
            return
        async with self._turn:
            yield await open_batch(batch)

    @asynccontextmanager
    async def readable(self, batch: StoredBatch) -> AsyncGenerator[ReadableBatch]:
        """The batch as a subscription needs it: whatever is the matter with it, it goes on."""
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
            return  # somebody else has opened it meanwhile
        self._kept[key] = found
        self.kept_bytes += _cost_bytes(found)
        while self.kept_bytes > self._bytes_max:
            self.kept_bytes -= _cost_bytes(self._kept.popitem(last=False)[1])


class ReadableBatch:
    """The messages of a batch by their number in it, one after the other."""

    def __init__(self, windows: BatchWindows | _Damaged, turns: Turns) -> None:
        self._windows = windows
        self._turns = turns
        self._first = 0
        self._records: list[Record] = []

    def holds(self, index: int) -> bool:
        """Whether this message is at hand; otherwise `turn_to` it."""
        return 0 <= index - self._first < len(self._records)

    async def turn_to(self, index: int) -> None:
        """Take this message apart, and those around it, when it is their turn.

        Where they are damaged (the checksum of the batch holds: its producer made it so) each of
        them is an empty message with a header that says why: a subscription must not stop there.
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
    """In place of the windows of a batch that cannot be opened."""

    def __init__(self, record_count: int, why: Exception) -> None:
        self._record_count = record_count
        self._why = why

    def span(self, index: int) -> range:
        """Messages to take together."""
        return range(index, min(index + WINDOW_RECORDS, self._record_count))

    def readable_window(self, index: int) -> tuple[int, list[Record]]:
        """See `BatchWindows.readable_window`."""
        return index, _empty(self.span(index), self._why)


def _empty(span: range, why: Exception) -> list[Record]:
    headers = ((ERROR_HEADER, str(why).encode()),)
    return [Record(None, None, headers, 0, index) for index in span]


def _cost_bytes(found: BatchWindows | InvalidBatch) -> int:
    held = found.held_bytes if isinstance(found, BatchWindows) else 0
    return held + OVERHEAD_BYTES
