"""A metadata record in memory, read again after an alarm of its watch, and used without the store.

Every reconnect sounds the alarm of every watch, and what follows may be an outage: whatever needs
no change has to go on with what was known. So an alarm forgets nothing. Who asks waits for the new
reading, though no longer than `FRESH_WITHIN_S` after the alarm; from then on the last known value
serves until a reading succeeds. That is as safe as the time before the alarm, when the same value
served: what must not be decided by a broker that is cut off is decided by compare-and-set and by
fencing, never by what stands here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from octavo.metadata.store import MetadataUnavailable, SessionExpired

Value = TypeVar("Value")
FRESH_WITHIN_S = 0.3
"""A store that is well answers within milliseconds; one that is not shall cost no more."""


class WatchedRecord(Generic[Value]):
    """`read` reads the record; `spawn` runs a reading that all who ask meanwhile share."""

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
        """Whether it changed, or may have, since it was read."""
        return self._stale

    @property
    def last(self) -> Value | None:
        """As last known; None when it was never read."""
        return None if self._last is None else self._last[0]

    @property
    def fresh(self) -> Value | None:
        """As known, if no alarm has come since it was read."""
        return None if self._stale or self._last is None else self._last[0]

    def alarm(self) -> None:
        """The record may have changed."""
        self._alarms += 1
        if not self._stale:
            self._stale = True
            self._fresh_until = self._loop.time() + FRESH_WITHIN_S

    def note(self, value: Value) -> None:
        """What somebody learned by other means; an alarm before it still counts."""
        self._last = (value,)

    async def newest(self) -> Value:
        """As it stands after the last alarm. Raises what reading raises."""
        while self._stale or self._last is None:
            await asyncio.shield(self._begin())
        return self._last[0]

    async def value(self) -> Value:
        """The newest, or the last known while the store does not answer.

        Raises what reading raises when nothing is known, or when the answer is another error.
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
        """The reading under way, or a new one."""
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
            done.exception()  # nobody may be waiting any more
        else:
            self._last = (value,)
            self._stale = alarms != self._alarms
            self._reading = None
            done.set_result(None)
