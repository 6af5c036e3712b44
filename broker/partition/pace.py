"""How fast a compaction goes on: no faster than is needed, and with a share of the loop at most.

    reads       so many bytes a second, times how urgent it is: the more there is to do, the faster
    works       for a share of the loop's time at most, in turns of a millisecond

The share is what bounds it where messages come faster than they can be compacted. Without it a
compaction would take every other turn of the loop from those who publish.
"""

from __future__ import annotations

import asyncio

_TURN_S = 0.001
_LATE_S_MAX = 0.05
"""A loop that is busy gives a turn late; so much is made up for."""
_TURN_STEPS = 50
"""After so much work others get their turn, and after so many steps, should the clock stand."""


class Pace:
    """Of one run. `resume` after waiting for anything, `step` after working without waiting.

    `share` is of the loop's time: more than 0, at most 1.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_per_s: float, share: float) -> None:
        self._loop = loop
        self._bytes_per_s = bytes_per_s
        self._share = share
        self._read_free_s = self._work_free_s = self._resumed_s = loop.time()
        self._read = self._steps = 0
        self.urgency = 1.0
        """So many times faster than `bytes_per_s`."""

    def resume(self) -> None:
        """What was waited for is there: work begins now."""
        self._resumed_s = self._loop.time()

    async def step(self, read: int = 0) -> None:
        """Something was done, with so many bytes that were read; others get their turn in time."""
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
