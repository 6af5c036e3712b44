"""Keep a metadata record in memory, and read it again after an alarm of its watch.

A reconnect raises every alarm, and an outage may follow, so an alarm forgets nothing: `value` waits
for a new reading at most until `FRESH_WITHIN_S` after the alarm, then returns the last known value.
This is safe: compare-and-set and fencing protect decisions that a cut-off broker must not make.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from octavo.metadata.store import MetadataUnavailable, SessionExpired

Value = TypeVar("Value")
FRESH_WITHIN_S = 0.3
"""A healthy store answers in milliseconds; an unhealthy store delays a call by this time."""


class WatchedRecord(Generic[Value]):
    def __init__(
        self,
        read: Callable[[], Awaitable[Value]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._read = read
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._last: tuple[Value] | None = None
        self._stale = True
        self._alarms = 0
        self._fresh_until = 0.0
        self._reading: asyncio.Future[None] | None = None

    @property
    def stale(self) -> bool:
        return self._stale

    @property
    def last(self) -> Value | None:
        return None if self._last is None else self._last[0]

    @property
    def fresh(self) -> Value | None:
        return None if self._stale or self._last is None else self._last[0]

    def alarm(self) -> None:
        self._alarms += 1
        if not self._stale:
            self._stale = True
            self._fresh_until = self._loop.time() + FRESH_WITHIN_S

    def note(self, value: Value) -> None:
        """Set a value that was learned without a reading; an alarm remains."""
        self._last = (value,)

    async def newest(self) -> Value:
        while self._stale or self._last is None:
            await asyncio.shield(self._begin())
        return self._last[0]

    async def value(self) -> Value:
        """Return the newest value, or the last known value while the store does not answer.

        Raises what reading raises if no value is known, or if the failure is no outage.
        """
        if self._last is None:
            return await self.newest()
        while self._stale:
            reading, left_s = self._begin(), self._fresh_until - self._loop.time()
            if left_s <= 0:
                break
            await asyncio.wait((reading,), timeout=left_s)
            if reading.done() and (error := reading.exception()) is not None:
                if not isinstance(error, MetadataUnavailable | SessionExpired):
                    raise error
                break
        return self._last[0]

    def _begin(self) -> asyncio.Future[None]:
        if self._reading is None:
            done = self._reading = self._loop.create_future()
            self._spawn(self._read_once(done)).add_done_callback(lambda _: self._end(done))
        return self._reading

    def _end(self, done: asyncio.Future[None]) -> None:
        if not done.done():  # cancelled, perhaps before it began
            self._reading = None
            done.set_exception(MetadataUnavailable("this broker is stopping"))
            done.exception()

    async def _read_once(self, done: asyncio.Future[None]) -> None:
        alarms = self._alarms
        try:
            value = await self._read()
        except Exception as error:
            self._reading = None
            done.set_exception(error)
            done.exception()  # marks the error as seen: there may be no waiter
        else:
            self._last = (value,)
            self._stale = alarms != self._alarms
            self._reading = None
            done.set_result(None)
