"""Drives the deletion clock: reads the clocks, and keeps the known time in the metadata.

Once a minute, while its clocks agree, the broker writes down its count; the store's timestamp of
that write is the second clock. When an operator confirms a time, the record's number of
confirmations rises, and every broker takes that time over. While the store is away the broker
counts on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from octavo.broker.clock.deletion_clock import ClockLimits, DeletionClock, DeletionTime, Reading
from octavo.metadata.clock import ClockRecord, ClockStore

_log = structlog.get_logger()
_STALE_BEATS = 3
"""After this many beats the store's time is too old to serve as the second clock."""


class Timekeeper:
    def __init__(
        self, store: ClockStore, wall: Callable[[], int], limits: ClockLimits, beat_ms: int
    ) -> None:
        self._store = store
        self._wall = wall
        self._limits = limits
        self._beat_ms = beat_ms
        self._loop = asyncio.get_running_loop()
        self._clock: DeletionClock | None = None
        self._confirmed = 0
        self._heard: tuple[int, int] | None = None
        """The store's time, and the steady time when it came."""
        self._doubted = False

    async def beat(self) -> None:
        if self._clock is None or not self._clock.has_begun:
            await self._write()  # learn the store's time before ours is written down
        await self._write()

    def now(self) -> DeletionTime | None:
        """Return the time for deletions; None: delete nothing."""
        if self._clock is None:
            return None
        reading = self._reading()
        silent = reading.store_ms is None and self._heard is not None
        if silent and not self._clock.has_begun:
            return None  # the store has a clock, which must be read again: ours may be wrong
        found = self._clock.observe(reading)
        if self._doubted and not found.doubt:
            _log.info("clock_believed")
        elif found.doubt and not self._doubted:
            _log.warning("clock_doubted", reason=found.doubt, late_ms=found.late_ms)
        self._doubted = bool(found.doubt)
        return found

    async def confirm(self) -> None:
        written = await self._store.write(
            lambda known: replace(
                known,
                time_ms=self._wall(),
                highest_ms=self._wall(),
                confirmed=known.confirmed + 1,
            )
        )
        self._learn(written.record)

    def _reading(self) -> Reading:
        steady_ms = self._steady_ms()
        store_ms = None
        if self._heard is not None:
            since_ms = steady_ms - self._heard[1]
            if since_ms <= _STALE_BEATS * self._beat_ms:
                store_ms = self._heard[0] + since_ms
        return Reading(steady_ms, self._wall(), store_ms)

    def _steady_ms(self) -> int:
        return int(self._loop.time() * 1000)

    async def _write(self) -> None:
        def counted(known: ClockRecord) -> ClockRecord:
            if self._clock is None:
                return known  # the first write only learns the store's time
            self._learn(known)
            found = self.now()
            if found is None or found.doubt:
                return known
            return replace(known, time_ms=found.now_ms, highest_ms=found.date_ms)

        record, store_ms = await self._store.write(counted)
        if store_ms is not None:
            self._heard = store_ms, self._steady_ms()
        self._learn(record)

    def _learn(self, record: ClockRecord) -> None:
        if self._clock is None:
            self._clock = DeletionClock(self._limits, record.time_ms or None, record.highest_ms)
        elif record.confirmed > self._confirmed:
            self._clock.confirm(record.time_ms)
        else:
            self._clock.date_from(record.highest_ms)
        self._confirmed = max(self._confirmed, record.confirmed)
