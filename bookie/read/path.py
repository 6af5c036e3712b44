"""Find an entry: in the write cache, then the read cache, then the entry log.

Readers see only what survives a power failure, except adds whose writer deferred the sync. Absent
(`NoSuchEntry`) is kept apart from unknown (`BookieIOError`, `UnknownState`).

Found entries count in the budget of answers. While it is spent, no read continues, and a read that
has found entries returns them.
"""

from __future__ import annotations

import asyncio
from collections import deque

from octavo.bookie.back_pressure import Budget
from octavo.bookie.ledgers.control import LedgerControl
from octavo.bookie.read.cache import CachedExtent, ReadCache, cut_alike
from octavo.bookie.read.cold_reads import ColdReads, joined
from octavo.bookie.write.cache import Piece, WriteCache
from octavo.protocol.codes import BookieError, NoSuchEntry, TooManyRequests, UnknownState
from octavo.protocol.entry import INVALID_ENTRY_ID
from octavo.protocol.frames import ADD_PREFIX_BYTES, LENGTH

_LISTS_AT_ONCE = 2
"""A list with many holes takes megabytes."""


class _Sought:
    __slots__ = ("bytes_max", "count_max", "entries", "ledger_id", "next_entry", "size")

    def __init__(self, ledger_id: int, first: int, count_max: int, bytes_max: int) -> None:
        self.ledger_id = ledger_id
        self.next_entry = first
        self.count_max = max(1, count_max)
        self.bytes_max = bytes_max
        self.entries: list[bytes] = []
        self.size = 0

    def take(self, source: Piece | CachedExtent, last: int) -> bool:
        """Take entries up to `last` and the bounds; return whether a bound was met."""
        base, offsets = (
            (source.first, source.offsets)
            if isinstance(source, CachedExtent)
            else (source.batch.first_entry, source.batch.offsets)
        )
        frames = source.frames if isinstance(source, CachedExtent) else source.batch.frames
        if isinstance(offsets, range):
            return self._take_alike(frames, offsets, base, last)
        for entry_id in range(self.next_entry, last + 1):
            entry = source.entry(entry_id)
            size = self.size + LENGTH.size + len(entry)
            if self.entries and (size > self.bytes_max or len(self.entries) >= self.count_max):
                return True
            self.size = size
            self.entries.append(entry)
        self.next_entry = last + 1
        return len(self.entries) >= self.count_max

    def _take_alike(self, frames: bytes, offsets: range, base: int, last: int) -> bool:
        """Take frames of the same length, without Python code for each entry."""
        cost = offsets.step - ADD_PREFIX_BYTES + LENGTH.size
        fitting = (self.bytes_max - self.size) // cost
        count = min(self.count_max - len(self.entries), max(fitting, 0 if self.entries else 1))
        there = last + 1 - self.next_entry
        if count > there:
            count = there
        start = offsets[self.next_entry - base]
        self.entries += cut_alike(frames, start, count, offsets.step)
        self.size += count * cost
        self.next_entry += count
        return count < there or len(self.entries) >= self.count_max


class ReadPath:
    def __init__(
        self,
        control: LedgerControl,
        write_cache: WriteCache,
        read_cache: ReadCache,
        cold: ColdReads,
        answers: Budget,
        lookups: dict[str, int],
    ) -> None:
        self._control = control
        self._write_cache = write_cache
        self._read_cache = read_cache
        self._cold = cold
        self._answers = answers
        self._lookups = lookups
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._listing = asyncio.Semaphore(_LISTS_AT_ONCE)
        answers.when_room(self._room)

    def describe(self) -> dict[str, int]:
        return {"waiting": sum(not one.done() for one in self._waiting)}

    def waits_in_vain(self) -> str:
        """Name work that could run; empty when there is none."""
        waits = not self._answers.is_spent and any(not one.done() for one in self._waiting)
        return "reads wait for room, and there is room" if waits else ""

    def read_now(
        self, ledger_id: int, first: int, count_max: int, bytes_max: int
    ) -> list[bytes] | None:
        """Act as `read_many`; None if it would wait. `first` −1: the last entry."""
        if first == INVALID_ENTRY_ID:
            first = self._control.last_entry(ledger_id)
        self._control.known(ledger_id)
        sought = _Sought(ledger_id, first, count_max, bytes_max)
        # Most of what fits is enough: the rest would cost a read from the disk.
        if self._gather(sought) or sought.size > bytes_max // 2 > 0:
            return sought.entries
        return None

    async def read(self, ledger_id: int, entry_id: int, *, urgent: bool = False) -> bytes:
        """Return an entry; −1 asks for the last entry.

        Raises `NoSuchLedger`, `NoSuchEntry`; `BookieIOError`, `UnknownState` if it cannot tell.
        """
        if entry_id == INVALID_ENTRY_ID:
            entry_id = self._control.last_entry(ledger_id)
        return (await self.read_many(ledger_id, entry_id, 1, 0, urgent=urgent))[0]

    async def read_many(
        self, ledger_id: int, first: int, count_max: int, bytes_max: int, *, urgent: bool = False
    ) -> list[bytes]:
        """Return consecutive entries: at least one, then while both bounds hold.

        Each counts four bytes more, as in a batch answer. The result ends before the first missing
        or unreadable entry. If that is `first`, raises like `read`.
        """
        self._control.known(ledger_id)
        sought = _Sought(ledger_id, first, count_max, bytes_max)
        while first >= 0:
            if self._answers.is_spent and not sought.entries:
                await self._wait_for_room()
            if self._gather(sought) or (sought.entries and self._answers.is_spent):
                break
            held = sought.size
            self._answers.change(held)
            try:
                run = await self._cold.run_with(
                    ledger_id, sought.next_entry, max(0, bytes_max - held), urgent=urgent
                )
            except BookieError:
                if sought.entries:
                    break
                raise
            finally:
                self._answers.change(-held)
            if run is None or (sought.entries and self._answers.is_spent):
                break
            if self._answers.is_spent:
                run = None  # the cache may have dropped it: free its memory while this read waits
                continue
            # A newer copy may have been added meanwhile.
            newer, last = self._write_cache.find(ledger_id, sought.next_entry)
            if newer is not None:
                continue
            self._lookups["entry_log"] += 1
            if self._take(sought, run, last):
                break
        if not sought.entries:
            self._control.known(ledger_id)
            self._control.require_certain(ledger_id, f"had entry {first}")
            raise NoSuchEntry(f"ledger {ledger_id} entry {first} is not on this bookie")
        return sought.entries

    def _gather(self, sought: _Sought) -> bool:
        """Gather from the caches; return whether a bound or the ledger's end was reached."""
        ledger_id = sought.ledger_id
        while sought.next_entry >= 0:
            where = "write_cache"
            source: Piece | CachedExtent | None
            source, last = self._write_cache.find(ledger_id, sought.next_entry)
            if source is None:
                where = "read_cache"
                source = self._read_cache.find(ledger_id, sought.next_entry)
            if source is None:
                return bool(sought.entries) and self._is_behind(ledger_id, sought.next_entry)
            self._lookups[where] += 1
            if self._take(sought, source, last):
                return True
        return False

    def _is_behind(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the entry is surely above the last entry that this bookie has.

        So a reader that follows a ledger's end never needs the index.
        """
        try:
            return entry_id > self._control.last_entry(ledger_id)
        except UnknownState:
            return False

    def _take(self, sought: _Sought, source: Piece | CachedExtent, last: int) -> bool:
        bound_met = sought.take(source, min(last, source.last))
        if isinstance(source, CachedExtent) and sought.next_entry > source.last:
            self._read_cache.passed(source)
        return bound_met

    async def _wait_for_room(self) -> None:
        """Wait until answers have room. Raises `TooManyRequests` when that takes too long."""
        deadline = asyncio.get_running_loop().time() + self._cold.wait_s_max
        while self._answers.is_spent:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(room)
            try:
                async with asyncio.timeout_at(deadline):
                    await room
            except TimeoutError:
                raise TooManyRequests(
                    f"answers of {self._answers.used} bytes wait for their clients to read them"
                ) from None

    def _room(self) -> None:
        while self._waiting:
            room = self._waiting.popleft()
            if not room.done():
                room.set_result(None)

    async def entries(self, ledger_id: int) -> list[tuple[int, int]]:
        """Return [(first, last), …] of all entries here, ascending, joined.

        A list may be long, so few are made at once. The caller must encode it before it awaits
        anything. Raises `NoSuchLedger`, `TooManyRequests`.
        """
        self._control.sure(ledger_id, "had more entries")
        try:
            async with asyncio.timeout(self._cold.wait_s_max):
                await self._listing.acquire()
        except TimeoutError:
            raise TooManyRequests(f"{_LISTS_AT_ONCE} lists of entries are being made") from None
        try:
            if self._answers.is_spent:
                await self._wait_for_room()
            return await self.held(ledger_id)
        finally:
            self._listing.release()

    async def held(self, ledger_id: int) -> list[tuple[int, int]]:
        """Return the entries here, also for unknown ledgers; in limbo some may be missing."""
        cached = self._write_cache.intervals(ledger_id)
        return joined(cached + await self._cold.intervals(ledger_id))
