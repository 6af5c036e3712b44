"""Measures how long an event loop stands still: its thread's processor time between two turns,
which does not grow when the machine does other work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

LOOP_STEPS, LOOP_S = 400_000, 0.019
"""The steps of a loop, and its seconds on the idle machine on which the bounds were set."""
TICK_S = 0.005


class LoopTime:
    """Measures the running loop from `start` to `stop`. Make it in the loop's own thread."""

    def __init__(self, tell: Callable[[float], object] | None = None) -> None:
        """Call `tell` with each stall, in seconds, right after it."""
        self.longest_s = 0.0
        self._tell = tell
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> LoopTime:
        self._last_s = time.thread_time()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return self

    def stop(self) -> None:
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
    """Return how much slower this machine is now than the machine of the bounds, at least 1.
    Processor time grows when two tests share a core's caches."""
    began_s = time.thread_time()
    found = 0
    for number in range(LOOP_STEPS):
        found += number & 7
    return max(1.0, (time.thread_time() - began_s) / LOOP_S)
