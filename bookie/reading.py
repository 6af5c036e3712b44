"""Where an entry is found: write cache, then read cache, then entry log; never behind a write.

Everything in the write cache is durable, so a reader sees only what a power failure leaves. Absent
(`NoSuchEntry`) is told from unknown (`BookieIOError`). Used on the loop; only cold reads block,
on threads of their own (reads.py).
"""

from __future__ import annotations

from bookie.ledger_control import LedgerControl
from bookie.read_cache import CachedRun, ReadCache
from bookie.reads import ColdReads, joined
from bookie.write_cache import Piece, WriteCache
from protocol.codes import NoSuchEntry
from protocol.entry import INVALID_ENTRY_ID
from protocol.frames import LENGTH


class Reading:
    """Reads of one storage."""

    def __init__(
        self,
        control: LedgerControl,
        write_cache: WriteCache,
        read_cache: ReadCache,
        cold: ColdReads,
        lookups: dict[str, int],
    ) -> None:
        self._control = control
        self._write_cache = write_cache
        self._read_cache = read_cache
        self._cold = cold
        self._lookups = lookups

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        """See `Storage.read`."""
        if entry_id == INVALID_ENTRY_ID:
            entry_id = self._control.sure(ledger_id, "has a later entry").last_entry
        return (await self.read_many(ledger_id, entry_id, 1, 0))[0]

    async def read_many(
        self, ledger_id: int, first: int, count_max: int, bytes_max: int
    ) -> list[bytes]:
        """See `Storage.read_many`."""
        self._control.known(ledger_id)
        found: list[bytes] = []
        size, entry_id = 0, first
        while len(found) < max(1, count_max) and entry_id >= 0:
            source: Piece | CachedRun | None
            where = "write_cache"
            source, last = self._write_cache.find(ledger_id, entry_id)
            if source is None:
                where = "read_cache"
                source = self._read_cache.find(ledger_id, entry_id)
            if source is None:
                where = "entry_log"
                source = await self._cold.run_with(ledger_id, entry_id)
            if source is None:
                break
            self._lookups[where] += 1
            last = min(last, source.last)
            for current in range(entry_id, last + 1):
                entry = source.entry(current)
                size += LENGTH.size + len(entry)
                if found and (size > bytes_max or len(found) >= count_max):
                    return found
                found.append(entry)
            entry_id = last + 1
        if not found:
            self._control.known(ledger_id)
            self._control.deny(ledger_id, f"had entry {first}")
            raise NoSuchEntry(f"ledger {ledger_id} entry {first} is not on this bookie")
        return found

    async def entries(self, ledger_id: int) -> list[tuple[int, int]]:
        """See `Storage.entries`."""
        self._control.sure(ledger_id, "had more entries")
        cached = self._write_cache.intervals(ledger_id)
        return joined(cached + await self._cold.intervals(ledger_id))
