"""How long an event loop stands still: processor time of its thread from one turn to the next.

Processor time, not wall time: a machine that is busy with other work adds nothing to it, so a test
may hold a loop to a bound of milliseconds whatever else runs beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

LOOP_STEPS, LOOP_S = 400_000, 0.019
"""How long a loop of 400,000 steps took on the idle machine that the bounds were set on."""
TICK_S = 0.005
"""A loop that is busy for a shorter time is not noticed."""


class LoopTime:
    """Measures the running loop from `start` to `stop`; make it in the loop's own thread."""

    def __init__(self, tell: Callable[[float], object] | None = None) -> None:
        """`tell` is called with each stall, in seconds, right after it."""
        self.longest_s = 0.0
        self._tell = tell
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> LoopTime:
        """Begin to measure."""
        self._last_s = time.thread_time()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return self

    def stop(self) -> None:
        """End, and count the turn under way."""
        self._look()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now_s = time.thread_time()
        spent_s, self._last_s = now_s - self._last_s, now_s
        self.longest_s = max(self.longest_s, spent_s)
        if self._tell is not None:
            self._tell(spent_s)

    def _tick(self) -> None:
        self._look()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    async def __aenter__(self) -> LoopTime:
        return self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def slowness() -> float:
    """How much slower this machine is now than that of the bounds; 1 when it is faster.

    Processor time grows, too, where two tests share a core's caches or a machine is slower.
    """
    began_s = time.thread_time()
    found = 0
    for number in range(LOOP_STEPS):
        found += number & 7
    return max(1.0, (time.thread_time() - began_s) / LOOP_S)
