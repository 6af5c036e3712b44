"""What the closed ledgers of a partition hold by time, where their links do not say it.

A ledger that was closed by recovery, or by a version that looked at its first and last batch only,
has a link with an unknown `disorder_ms`: its newest message may be newer than `last_ms`. Whoever
needs to know has it read whole once; what was learned is kept while the partition is open here.
Cost: a ledger's bytes once, one ledger at a time; of each some numbers in memory.
"""

from __future__ import annotations

import asyncio

from octavo.broker.log.chain import Contents
from octavo.broker.log.reader import LogReader
from octavo.metadata.topics import PartitionLedger


class LedgerTimes:
    """Measures the ledgers of one partition."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._known: dict[int, Contents] = {}
        self._turn = asyncio.Lock()

    async def of(self, link: PartitionLedger) -> Contents:
        """What a closed ledger holds. Raises what reading it raises."""
        async with self._turn:  # of those who ask for the same ledger only the first one reads it
            contents = self._known.get(link.ledger_id)
            if contents is None:
                contents = self._known[link.ledger_id] = await self._reader.contents_of(link)
            return contents

    def forget(self, ledger_id: int) -> None:
        """The ledger left the chain."""
        self._known.pop(ledger_id, None)
