"""Read a ledger from its offloaded object, like a closed `LedgerReader`.

In the loop's executor, one row group at a time; the last one is kept, because readers usually
continue in it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from octavo.ledger.encryption import Opening
from octavo.ledger.errors import OffloadDamaged, OffloadUnavailable
from octavo.ledger.offload.format import ObjectFile
from octavo.ledger.offload.object_store import open_object
from octavo.ledger.read.entry_source import EntrySource, newest_ms
from octavo.metadata.topics import OffloadRecord
from octavo.protocol.append_time import Appended
from octavo.protocol.batch import read_header
from octavo.protocol.entry import Entry
from octavo.security.keys.data_keys import DataKeys
from octavo.security.keys.wrapped import Wrapped

T = TypeVar("T")


class OffloadedReader(EntrySource):
    """Read an offloaded ledger; `open_offloaded` makes it."""

    is_closed = True

    def __init__(
        self, ledger_id: int, url: str, file: ObjectFile, opening: Opening | None = None
    ) -> None:
        """Read from `file`; without `opening`, return entries as stored."""
        self._ledger_id = ledger_id
        self._url = url
        self._file = file
        self._opening = opening
        self._turn = asyncio.Lock()
        self._kept: tuple[int, list[Entry]] = (-1, [])

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    @property
    def last_add_confirmed(self) -> int:
        return self._file.about.entries - 1

    async def refresh(self) -> int:
        return self.last_add_confirmed

    async def wait_for(self, after: int, timeout_s: float) -> int:  # noqa: ARG002
        """Return the LAC at once: an offloaded ledger never grows."""
        return self.last_add_confirmed

    async def check_key(self) -> None:
        if self._opening is not None:
            await self._opening.check()

    async def close(self) -> None:
        async with self._turn:
            self._kept = (-1, [])
            await asyncio.get_running_loop().run_in_executor(None, self._file.close)

    # ------------------------------------------------------------------ entries

    async def read(self, first: int, last: int) -> list[Entry]:
        """Return entries. Raises `OffloadDamaged`, `OffloadUnavailable`."""
        return [entry async for entry in self.entries(first, last)]

    async def batches(self, first: int, last: int) -> AsyncGenerator[list[Entry]]:
        """Yield the entries of each row group, while the next one is being read."""
        self._check_range(first, last)
        if last < first:
            return
        group, end = self._file.group_of_entry(first), self._file.group_of_entry(last)
        ahead = self._begin(group)
        try:
            while True:
                found = await ahead
                if group < end:
                    ahead = self._begin(group + 1)
                base = self._file.first_entries[group]
                yield found[max(0, first - base) : last - base + 1]
                if group == end:
                    return
                group += 1
        finally:
            ahead.cancel()

    def _begin(self, group: int) -> asyncio.Task[list[Entry]]:
        task = asyncio.ensure_future(self._group(group))
        # If the reader stops early: mark the error as retrieved.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _group(self, group: int) -> list[Entry]:
        async with self._turn:
            kept, entries = self._kept
            if kept != group:
                entries = await _in_thread(self._url, lambda: self._file.entries(group))
                if self._opening is not None:
                    entries = await self._opening.opened(entries)
                self._kept = (group, entries)
            else:
                await self.check_key()
            return entries

    # ------------------------------------------------------------------ searches

    async def entry_holding(self, offset: int) -> int:
        """Return the entry that holds `offset`, which is relative to the ledger."""
        entries = await self._group(self._file.group_of_offset(offset))
        at = bisect_right(entries, offset, key=lambda entry: read_header(entry.payload).base_offset)
        return entries[at - 1].entry_id

    async def as_new_as(
        self,
        time_ms: int,
        start: int,
        last: int,
        disorder_ms: int,  # noqa: ARG002
        appended: Appended | None = None,
    ) -> Entry | None:
        """Read only one row group: the footer has each group's newest timestamp."""
        if start > last:
            return None
        for number in range(self._file.group_of_entry(start), len(self._file.groups)):
            if self._file.groups[number].newest_ms < time_ms:
                continue
            for entry in await self._group(number):
                newest = newest_ms(entry, appended)
                if start <= entry.entry_id <= last and newest >= time_ms:
                    return entry
        return None


async def open_offloaded(
    ledger_id: int,
    offload: OffloadRecord,
    keys: DataKeys | None = None,
) -> OffloadedReader:
    """Open the object that holds a ledger; `keys` as in `LedgerClient`.

    Raises `OffloadUnavailable`, and `OffloadDamaged` if it is incomplete or another copy's.
    """

    def opened() -> OffloadedReader:
        raw = open_object(offload.url)
        try:
            file = ObjectFile(raw, offload.url, offload.bytes, offload.footer_crc)
            about = file.about
            if (about.ledger_id, about.uuid) != (ledger_id, offload.uuid):
                raise OffloadDamaged(
                    f"{offload.url} is copy {about.uuid} of ledger {about.ledger_id}; expected is "
                    f"copy {offload.uuid} of ledger {ledger_id}"
                )
            if about.entries != offload.entries:
                raise OffloadDamaged(
                    f"{offload.url} has {about.entries} entries; {offload.entries} were written"
                )
        except BaseException:
            raw.close()
            raise
        opening = None
        if offload.encryption:
            text = offload.encryption.encode()
            opening = Opening(ledger_id, Wrapped.decode(f"ledger {ledger_id}", text), keys)
        return OffloadedReader(ledger_id, offload.url, file, opening)

    return await _in_thread(offload.url, opened)


async def _in_thread(url: str, work: Callable[[], T]) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(None, work)
    except OSError as error:
        raise OffloadUnavailable(f"{url} cannot be read: {error}") from error
