"""Read what is in no cache: index → entry log, with read-ahead into the read cache.

Reads have their own threads; ledgers take turns at them. An entry that several callers want is read
once.

During a burst of adds (`AddBurst`), only one thread reads, and rests. A read waits for adds at most
half of its time-out; urgent reads (of a recovery, or to compare a repeated add) do not.

If an entry is damaged, but the index names another place by then, compaction has moved it: read
there.
"""

from __future__ import annotations

import asyncio
import struct
from concurrent.futures import Executor

from octavo.bookie.back_pressure import AddBurst
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.damage import Damage, DamagedRead, DamageKind, DamageRegistry
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.index.index import IndexedExtent, LedgerIndex
from octavo.bookie.read.cache import CachedExtent, ReadCache
from octavo.bookie.read.read_ahead import ReadAhead
from octavo.bookie.stats import ReadStats
from octavo.protocol.codes import BookieIOError, TooManyRequests
from octavo.protocol.fair_queue import FairQueue

_REST_RATIO = 4
"""So reads use 20 % of a thread."""
_REST_S_MAX = 0.1
"""A read that waited long for the disk did not disturb the adds."""


class _Wanted:
    __slots__ = ("bytes_wanted", "entry_id", "future", "since")

    def __init__(self, entry_id: int, bytes_wanted: int, loop: asyncio.AbstractEventLoop) -> None:
        self.entry_id = entry_id
        self.bytes_wanted = bytes_wanted
        self.since = loop.time()
        self.future: asyncio.Future[CachedExtent | None] = loop.create_future()


class _Flight:
    """A read on a thread, and the callers that wait for it."""

    __slots__ = ("ahead_bytes", "began", "epoch", "first", "last", "ledger_id", "wanted")

    def __init__(
        self, ledger_id: int, first: int, last: int, ahead: int, epoch: int, began: float
    ) -> None:
        self.ledger_id = ledger_id
        self.first = first
        self.last = last
        """A guess: as many entries as the reader got last time."""
        self.ahead_bytes = ahead
        self.epoch = epoch
        self.began = began
        self.wanted: list[_Wanted] = []

    def may_bring(self, entry_id: int, epoch: int) -> bool:
        return self.epoch == epoch and self.first <= entry_id <= self.last


class ColdReads:
    def __init__(
        self,
        config: BookieConfig,
        *,
        executor: Executor,
        index: LedgerIndex,
        logs: EntryLogs,
        cache: ReadCache,
        damages: DamageRegistry,
        stats: ReadStats,
        burst: AddBurst,
    ) -> None:
        self._executor = executor
        self._threads = config.read_threads
        self._index = index
        self._logs = logs
        self._cache = cache
        self._ahead_bytes_max = config.read_ahead_bytes_max
        self._waiting_max = config.reads_waiting_max
        self.wait_s_max = config.read_wait_ms_max / 1000
        self._damages = damages
        self._stats = stats
        self._burst = burst
        self._ahead = ReadAhead(config.read_ahead_bytes_max, cache.bytes_max)
        self._loop = asyncio.get_running_loop()
        self._queue: FairQueue[int, _Wanted] = FairQueue()
        self._flights: list[_Flight] = []
        self._rest_until = 0.0
        self._rest: asyncio.TimerHandle | None = None
        self._epoch = 0

    def describe(self) -> dict[str, int]:
        return {"waiting": len(self._queue), "flights": len(self._flights)}

    def waits_in_vain(self) -> str:
        """Name work that could run; empty when there is none."""
        if not self._queue or len(self._flights) >= self._threads or self._rest is not None:
            return ""
        return "" if self._flights and self._burst.is_there else "reads wait, and a thread is free"

    def index_changed(self) -> None:
        """Note that a flush ended: earlier reads may have found older copies."""
        self._epoch += 1

    async def run_with(
        self, ledger_id: int, entry_id: int, bytes_wanted: int = 0, *, urgent: bool = False
    ) -> CachedExtent | None:
        """Return the extent that holds the entry, or None when the index has none.

        The next extents, up to `bytes_wanted`, are put into the cache if they are adjacent in the
        log. Raises `BookieIOError`, and `TooManyRequests` when too many reads wait already or this
        read gets no turn in time.
        """
        if len(self._queue) >= self._waiting_max:
            raise TooManyRequests(f"{len(self._queue)} reads wait for the disk, that is the limit")
        wanted = _Wanted(entry_id, bytes_wanted, self._loop)
        for flight in self._flights:
            if flight.ledger_id == ledger_id and flight.may_bring(entry_id, self._epoch):
                flight.wanted.append(wanted)
                return await wanted.future
        if urgent and len(self._flights) < self._threads:
            self._fly(ledger_id, wanted)
        else:
            self._queue.push(ledger_id, wanted)
            self._start()
        return await wanted.future

    def _start(self) -> None:
        """Give the free threads to the reads whose turn it is."""
        while self._queue and len(self._flights) < self._threads:
            ledger_id, wanted = self._queue.pop()
            if wanted.future.done():
                continue
            waited_s = self._loop.time() - wanted.since
            if self._makes_room(waited_s):
                self._queue.push_back(ledger_id, wanted)
                return
            self._stats.on_cold_wait(waited_s)
            if waited_s > self.wait_s_max:
                reason = f"a read waited {waited_s:.1f} s for the disk"
                wanted.future.set_exception(TooManyRequests(reason))
            elif (run := self._cache.find(ledger_id, wanted.entry_id)) is not None:
                self._stats.lookups["joined"] += 1
                wanted.future.set_result(run)
            else:
                self._fly(ledger_id, wanted)

    def _makes_room(self, waited_s: float) -> bool:
        """Whether it must yield to adds. If so, `_start` runs again later."""
        if not self._burst.is_there or waited_s > self.wait_s_max / 2:
            return False
        if self._flights:
            return True
        rests = self._loop.time() < self._rest_until
        if rests and self._rest is None:
            self._rest = self._loop.call_at(self._rest_until, self._rested)
        return rests

    def _rested(self) -> None:
        self._rest = None
        self._start()

    def _fly(self, ledger_id: int, wanted: _Wanted) -> None:
        now = self._loop.time()
        window, entries = self._ahead.window(ledger_id, wanted.entry_id, now)
        ahead = max(window, min(wanted.bytes_wanted, self._ahead_bytes_max))
        flight = _Flight(
            ledger_id, wanted.entry_id, wanted.entry_id + entries - 1, ahead, self._epoch, now
        )
        flight.wanted.append(wanted)
        flight.wanted += self._queue.take(
            ledger_id, lambda other: flight.may_bring(other.entry_id, self._epoch)
        )
        self._flights.append(flight)
        reading = self._loop.run_in_executor(
            self._executor, self._read, ledger_id, wanted.entry_id, ahead
        )
        reading.add_done_callback(lambda done: self._landed(flight, done))

    def _landed(self, flight: _Flight, done: asyncio.Future[list[CachedExtent]]) -> None:
        self._flights.remove(flight)
        now = self._loop.time()
        self._rest_until = now + min(_REST_RATIO * (now - flight.began), _REST_S_MAX)
        error = None if done.cancelled() else done.exception()
        found = [] if error is not None or done.cancelled() else done.result()
        # A flush ended during the read: the index may name newer copies.
        if flight.epoch == self._epoch:
            for run in found:
                self._cache.put(run)
        if found:
            self._ahead.ended(
                flight.ledger_id,
                flight.first,
                found[-1].last,
                flight.ahead_bytes,
                now,
            )
        for number, wanted in enumerate(flight.wanted):
            brought = [run for run in found if run.first <= wanted.entry_id <= run.last]
            if done.cancelled():
                wanted.future.cancel()
            if wanted.future.done():
                continue
            if brought:
                brought[0].is_ahead = False
                self._stats.lookups["joined"] += number > 0
                wanted.future.set_result(brought[0])
            elif wanted.entry_id != flight.first:
                self._queue.push(flight.ledger_id, wanted)
            elif error is not None:
                wanted.future.set_exception(error)
            else:
                wanted.future.set_result(None)
        self._start()

    def _read(self, ledger_id: int, entry_id: int, ahead: int) -> list[CachedExtent]:
        """Read; after damage look the entry up and read again, without read-ahead."""
        failed: Damage | None = None
        while True:
            try:
                return self._read_once(ledger_id, entry_id, ahead)
            except DamagedRead as error:
                damage = error.damage
                if failed is not None and failed[:3] == damage[:3]:
                    self._damages.add(damage)
                    raise
                failed, ahead = damage, 0

    def _read_once(self, ledger_id: int, entry_id: int, ahead: int) -> list[CachedExtent]:
        run = self._index.find(ledger_id, entry_id)
        if run is None:
            return []
        wanted = [run]
        at = run.location
        end = at.offset + at.length
        while ahead > 0:
            following = self._index.find(ledger_id, wanted[-1].last + 1)
            if following is None or following.location[:2] != (at.log_id, end):
                break
            if end + following.location.length - at.offset > at.length + ahead:
                break
            end += following.location.length
            wanted.append(following)
        try:
            data = self._logs.read_bytes(at.log_id, at.offset, end - at.offset)
            found = [self._decode(data, at.offset, run) for run in wanted]
        except DamagedRead as error:
            if len(wanted) == 1:
                error.damage = error.damage._replace(
                    ledger_id=ledger_id, first=run.first, last=run.last
                )
            raise
        for ahead_of_its_reader in found[1:]:
            ahead_of_its_reader.is_ahead = True
        return found

    def _decode(self, data: bytes, base: int, run: IndexedExtent) -> CachedExtent:
        at = run.location
        _, frames = self._logs.check_record(data, at.offset - base, at, run.ledger_id)
        try:
            return CachedExtent(run.ledger_id, run.first, run.last, frames)
        except (BookieIOError, struct.error) as error:
            path = self._logs.path_of(at.log_id)
            raise DamagedRead(
                f"entry log {path} at byte {at.offset}: {error}",
                Damage(DamageKind.WRONG_RECORD, path, at.offset, at.length),
            ) from error

    async def intervals(self, ledger_id: int) -> list[tuple[int, int]]:
        """Return (first, last) of every indexed extent."""
        runs = await asyncio.get_running_loop().run_in_executor(
            self._executor, self._index.runs, ledger_id
        )
        return [(run.first, run.last) for run in runs]


def joined(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges that touch or overlap; return them ascending."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found
