"""Whose turn it is to work on single messages: so many in one turn of the loop, whoever wants them.

Taking messages out of batches and making JSON of them takes microseconds each, and one call may ask
for thousands. Each call that leaves the loop now and then is not enough: sixty of them share the
next turn of it, and a publish that waits for that turn waits for all sixty. So all calls of a
broker count together, and those that come when a turn is used up go on one after the other.
"""

from __future__ import annotations

import asyncio

RECORDS_A_TURN = 500
"""After so many records, of whichever call, the loop turns: two or three milliseconds."""


class Turns:
    """One for all reads and receives of a broker."""

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
