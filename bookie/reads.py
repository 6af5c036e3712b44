"""Cold reads: index → entry log, with read-ahead into the read cache, on threads of their own.

Reads never wait for writes: these threads are not the journal's. A reader that goes on where the
last cold read of its ledger ended gets the following log runs too, for they lie next to one
another; a random reader gets one log run.

Damage that a read meets is reported to the bookie's registry (damage.py), unless the index names
another place by then: compaction moves entries and removes the log that held them.
"""

from __future__ import annotations

import asyncio
import struct
from concurrent.futures import Executor

from bookie.damage import Damage, DamagedRead, DamageKind, DamageRegistry
from bookie.entry_log import EntryLogs
from bookie.index import IndexRun, LedgerIndex
from bookie.read_cache import CachedRun, ReadCache
from protocol.codes import BookieIOError

_FOLLOWED_LEDGERS_MAX = 4096


class ColdReads:
    """Reads what is in no cache."""

    def __init__(
        self,
        *,
        executor: Executor,
        index: LedgerIndex,
        logs: EntryLogs,
        cache: ReadCache,
        ahead_bytes_max: int,
        damages: DamageRegistry,
    ) -> None:
        self._executor = executor
        self._index = index
        self._logs = logs
        self._cache = cache
        self._ahead_bytes_max = ahead_bytes_max
        self._damages = damages
        self._next_entry: dict[int, int] = {}
        """Where the last cold read of a ledger ended: a read from there is sequential."""
        self._epoch = 0

    def index_changed(self) -> None:
        """A flush ended: what a read found before may no longer be the newest copy."""
        self._epoch += 1

    async def run_with(self, ledger_id: int, entry_id: int) -> CachedRun | None:
        """The run that holds the entry, or None when the index has none. Raises `BookieIOError`."""
        ahead = self._ahead_bytes_max if self._next_entry.get(ledger_id) == entry_id else 0
        epoch = self._epoch
        found = await asyncio.get_running_loop().run_in_executor(
            self._executor, self._read, ledger_id, entry_id, ahead
        )
        if not found:
            return None
        if epoch == self._epoch:
            for run in found:
                self._cache.put(run)
        if len(self._next_entry) >= _FOLLOWED_LEDGERS_MAX:
            self._next_entry.clear()
        self._next_entry[ledger_id] = found[-1].last + 1
        return found[0]

    def _read(self, ledger_id: int, entry_id: int, ahead: int) -> list[CachedRun]:
        """As `_read_once`. What fails is looked up and read once more, without the read-ahead."""
        failed: Damage | None = None
        while True:
            try:
                return self._read_once(ledger_id, entry_id, ahead)
            except DamagedRead as error:
                damage = error.damage
                if failed is not None and failed[:3] == damage[:3]:
                    self._damages.add(damage)
                    raise
                failed, ahead = damage, 0

    def _read_once(self, ledger_id: int, entry_id: int, ahead: int) -> list[CachedRun]:
        """The run that holds the entry, then those that follow within `ahead` bytes."""
        run = self._index.find(ledger_id, entry_id)
        if run is None:
            return []
        wanted = [run]
        at = run.location
        end = at.offset + at.length
        while ahead > 0:
            following = self._index.find(ledger_id, wanted[-1].last + 1)
            if following is None or following.location[:2] != (at.log_id, end):
                break
            if end + following.location.length - at.offset > at.length + ahead:
                break
            end += following.location.length
            wanted.append(following)
        try:
            data = self._logs.read_bytes(at.log_id, at.offset, end - at.offset)
            return [self._decode(data, at.offset, run) for run in wanted]
        except DamagedRead as error:
            if len(wanted) == 1:
                error.damage = error.damage._replace(
                    ledger_id=ledger_id, first=run.first, last=run.last
                )
            raise

    def _decode(self, data: bytes, base: int, run: IndexRun) -> CachedRun:
        at = run.location
        _, frames = self._logs.check_record(data, at.offset - base, at, run.ledger_id)
        try:
            return CachedRun(run.ledger_id, run.first, run.last, frames)
        except (BookieIOError, struct.error) as error:
            path = self._logs.path_of(at.log_id)
            raise DamagedRead(
                f"entry log {path} at byte {at.offset}: {error}",
                Damage(DamageKind.WRONG_RECORD, path, at.offset, at.length),
            ) from error

    async def intervals(self, ledger_id: int) -> list[tuple[int, int]]:
        """(first, last) of every indexed run of a ledger."""
        runs = await asyncio.get_running_loop().run_in_executor(
            self._executor, self._index.runs, ledger_id
        )
        return [(run.first, run.last) for run in runs]


def joined(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same entries as few ascending (first, last)."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found
