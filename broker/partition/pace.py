"""Limit the speed of a compaction, and its share of the event loop.

    reads       at most a set number of bytes a second, times the urgency: the more work, the faster
    works       for at most a share of the loop's time, in turns of a millisecond

The share is the limit when messages come faster than they can be compacted. Without it, a
compaction would take every other turn of the loop from publishers.
"""

from __future__ import annotations

import asyncio

_TURN_S = 0.001
_LATE_S_MAX = 0.05
"""A busy loop gives turns late; at most this delay is made up for."""
_TURN_STEPS = 50
"""End a turn after `_TURN_S` of work, or this many steps in case the clock stands still."""


class Pace:
    """Pace a run: call `resume` after each wait, and `step` after each piece of work.

    `share` is the share of the loop's time: more than 0, at most 1.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_per_s: float, share: float) -> None:
        self._loop = loop
        self._bytes_per_s = bytes_per_s
        self._share = share
        self._read_free_s = self._work_free_s = self._resumed_s = loop.time()
        self._read = self._steps = 0
        self.urgency = 1.0
        """Multiplies `bytes_per_s`."""

    def resume(self) -> None:
        """Begin to count working time now, after a wait."""
        self._resumed_s = self._loop.time()

    async def step(self, read: int = 0) -> None:
        """Count a step of work and the bytes it read; pause when a turn is over."""
        self._read += read
        self._steps += 1
        began_s, now_s = self._resumed_s, self._loop.time()
        worked_s = now_s - began_s
        read_s = self._read / (self._bytes_per_s * self.urgency)
        if max(worked_s, read_s) < _TURN_S and self._steps < _TURN_STEPS:
            return
        late_s = began_s - _LATE_S_MAX
        self._read_free_s = max(self._read_free_s, late_s) + read_s
        self._work_free_s = max(self._work_free_s, late_s) + worked_s / self._share
        self._read = self._steps = 0
        await asyncio.sleep(max(self._read_free_s, self._work_free_s) - now_s)
        self.resume()
