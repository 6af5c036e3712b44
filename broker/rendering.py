"""Whose turn it is to make JSON of messages: one read at a time, and others get the loop between.

Each read that leaves the loop now and then is not enough: sixty of them share the next turn of it,
and a publish that waits for that turn waits for all sixty.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

RECORDS_A_TURN = 500
"""After so many records, of whichever read, the loop turns."""


class Rendering:
    """One for all reads of a broker."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._records = 0
        """Since the loop turned."""

    @asynccontextmanager
    async def turn(self, records: int) -> AsyncIterator[None]:
        """Within, and nobody else, `records` of them are looked at."""
        async with self._lock:
            yield
            self._records += records
            if self._records >= RECORDS_A_TURN:
                self._records = 0
                await asyncio.sleep(0)
