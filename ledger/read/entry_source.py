"""What every reader of a ledger does alike, wherever its entries lie."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from octavo.ledger.errors import BeyondLastConfirmed, LedgerError
from octavo.protocol.append_time import Appended, shown
from octavo.protocol.batch import BatchHeader, read_header
from octavo.protocol.entry import Entry

DISORDER_UNKNOWN = -1
"""The disorder of a ledger of which nobody has looked at every batch."""


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

    async def check_key(self) -> None:
        """Of an encrypted ledger: whether what was read of it may be given away now.

        Raises `KeyMissing`, `KeySourceUnavailable`.
        """
        return

    @abstractmethod
    async def read(self, first: int, last: int) -> list[Entry]:
        """The entries `first` … `last`."""

    @abstractmethod
    def batches(self, first: int, last: int) -> AsyncGenerator[list[Entry]]:
        """The entries `first` … `last`, as they come, the next batch under way."""

    async def entries(self, first: int, last: int) -> AsyncIterator[Entry]:
        """The same, one by one: the next batch is under way while one is being consumed."""
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
        """The first entry from `start` to `last` whose batch is, by its header, as new as that.

        None: all are older. `appended`: the ledger's append times. `disorder_ms`: no batch's newest
        timestamp lies further below that of an earlier one (`DISORDER_UNKNOWN`: nobody knows). It
        makes halving right: before a batch that is older than the time sought by more than that
        there is none that is new enough.

            sought 100, disorder 30:   60 | 75  90  70  85  105  80  120
                             surely before | read from here … ^

        Cost: some single reads, then all that came within the disorder, or all there is where
        that is not known, about a mebibyte at a time.
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
            raise LedgerError(f"entries {first} to {last} are no range")
        if last > self.last_add_confirmed:
            raise BeyondLastConfirmed(self.ledger_id, last, self.last_add_confirmed)


def newest_ms(entry: Entry, appended: Appended | None) -> int:
    """The newest timestamp of a batch, as its header is shown."""
    return shown(read_header(entry.payload), appended).max_timestamp


async def header_of(reader: EntrySource, entry_id: int) -> BatchHeader:
    """The header of the batch in an entry; its base offset is relative to the ledger."""
    (entry,) = await reader.read(entry_id, entry_id)
    return read_header(entry.payload)


async def first_entry(
    reader: EntrySource, last: int, fits: Callable[[BatchHeader], bool]
) -> int | None:
    """The first entry up to `last` whose batch fits, when all after it fit too; by halving."""
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
