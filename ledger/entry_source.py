"""What every reader of a ledger does alike, wherever its entries lie."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator

from ledger.errors import BeyondLastConfirmed, LedgerError
from protocol.entry import Entry


class EntrySource(ABC):
    """A ledger's entries up to the last confirmed one, in runs as they come."""

    @property
    @abstractmethod
    def ledger_id(self) -> int:
        """Its id."""

    @property
    @abstractmethod
    def last_add_confirmed(self) -> int:
        """The last entry that may be read, as far as this reader knows; −1 when there is none."""

    @abstractmethod
    def batches(self, first: int, last: int) -> AsyncGenerator[list[Entry]]:
        """The entries `first` … `last`, as they come, the next batch under way."""

    async def entries(self, first: int, last: int) -> AsyncIterator[Entry]:
        """The same, one by one: the next batch is under way while one is being consumed."""
        async with contextlib.aclosing(self.batches(first, last)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    def _check_range(self, first: int, last: int) -> None:
        if first < 0 or last < first - 1:
            raise LedgerError(f"entries {first} to {last} are no range")
        if last > self.last_add_confirmed:
            raise BeyondLastConfirmed(self.ledger_id, last, self.last_add_confirmed)
