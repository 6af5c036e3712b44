"""The base class of all readers of a ledger, on bookies or in object stores."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from octavo.ledger.errors import BeyondLastConfirmed, LedgerError
from octavo.protocol.append_time import Appended, shown
from octavo.protocol.batch import BatchHeader, read_header
from octavo.protocol.entry import Entry

DISORDER_UNKNOWN = -1


class EntrySource(ABC):
    @property
    @abstractmethod
    def ledger_id(self) -> int: ...

    @property
    @abstractmethod
    def last_add_confirmed(self) -> int:
        """Return the LAC as far as this reader knows; −1 if there is none."""

    async def check_key(self) -> None:
        """Refuse if the key of an encrypted ledger cannot be used now.

        Raises `KeyMissing`, `KeySourceUnavailable`.
        """
        return

    @abstractmethod
    async def read(self, first: int, last: int) -> list[Entry]: ...

    @abstractmethod
    def batches(self, first: int, last: int) -> AsyncGenerator[list[Entry]]:
        """Yield the entries, while the next batch is being fetched."""

    async def entries(self, first: int, last: int) -> AsyncIterator[Entry]:
        """Yield the entries, while the next batch is being fetched."""
        async with contextlib.aclosing(self.batches(first, last)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def as_new_as(
        self,
        time_ms: int,
        start: int,
        last: int,
        disorder_ms: int,
        appended: Appended | None = None,
    ) -> Entry | None:
        """Find the first entry whose batch's newest timestamp is at least `time_ms`.

        `disorder_ms`: a batch's newest timestamp is lower than any earlier batch's by at most this.
        So if a batch is older than `time_ms - disorder_ms`, every earlier batch is older than
        `time_ms`, and a binary search is valid.

            sought 100, disorder 30:   60 | 75  90  70  85  105  80  120
                               too old    | read from here … ^

        With `DISORDER_UNKNOWN` all batches are read. `appended`: the ledger's append times.
        """
        if disorder_ms != DISORDER_UNKNOWN:
            high = last + 1
            while start < high:
                middle = (start + high) // 2
                (entry,) = await self.read(middle, middle)
                if newest_ms(entry, appended) < time_ms - disorder_ms:
                    start = middle + 1
                else:
                    high = middle
        if start > last:
            return None
        async with contextlib.aclosing(self.batches(start, last)) as batches:
            async for batch in batches:
                for entry in batch:
                    if newest_ms(entry, appended) >= time_ms:
                        return entry
        return None

    def _check_range(self, first: int, last: int) -> None:
        if first < 0 or last < first - 1:
            raise LedgerError(f"entries {first} to {last}: no range; needs 0 <= first <= last + 1")
        if last > self.last_add_confirmed:
            raise BeyondLastConfirmed(self.ledger_id, last, self.last_add_confirmed)


def newest_ms(entry: Entry, appended: Appended | None) -> int:
    """Return the newest timestamp, or the append time if the topic stores it."""
    return shown(read_header(entry.payload), appended).max_timestamp


async def header_of(reader: EntrySource, entry_id: int) -> BatchHeader:
    """Return the entry's batch header, whose base offset is relative to the ledger."""
    (entry,) = await reader.read(entry_id, entry_id)
    return read_header(entry.payload)


async def first_entry(
    reader: EntrySource, last: int, fits: Callable[[BatchHeader], bool]
) -> int | None:
    """Find the first fitting entry by binary search: every batch after it must fit too."""
    if last < 0 or not fits(await header_of(reader, last)):
        return None
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        if fits(await header_of(reader, middle)):
            high = middle
        else:
            low = middle + 1
    return low
