"""The checkpoint: the one place that orders flush → ledger state → mark → index → journal removal.

    1. on the loop, in one step: journal position, swap of the write cache, changed ledger states
    2. entry logs: append the sorted runs, slice by slice; sync
    3. ledger state: append the changed records; sync
    4. mark, in every ledger folder
    5. index: forget deleted ledgers; put the runs; flush; only now may reads stop looking at the
       flushed memtable
    6. journal files before the mark go

The index comes after the mark, for a start cuts the logs behind the mark and an index that was
ahead of it would name what is no longer there, or lack a ledger whose deletion was not durable. One
that is behind is brought up from the logs, and from the ledger state, which remembers who was
deleted (`forget_deleted`). Steps 3 and 4 are done whether or not there were entries: a fence alone
moves the mark too (BookKeeper PR #4843 forgot it when the write cache was empty, and lost fences).
A step that fails leaves the memtable as it is and the states dirty; the next attempt repeats all of
it, and repeating does no harm. A crash anywhere replays the journal from the mark that stands.

Compaction goes through here too, so that the index and the logs change in one order and nowhere
else. `relocate` copies records to the end of the logs: append → sync → mark (the same journal
position, the new log position) → index. `retire` removes a log: flush of the index, then unlink.
A crash in between leaves copies that nothing points to, or an old log from which everything has
moved; the next round finds both and goes on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from typing import ParamSpec, TypeVar

from octavo.bookie.disk.files import Disk, DiskFull
from octavo.bookie.entrylog.format import Extent
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.index.index import IndexedExtent, LedgerIndex
from octavo.bookie.index.log_slice import Stored, live_parts
from octavo.bookie.journal.mark import Mark, Position, write_mark
from octavo.bookie.ledgers.state import LedgerStates, StateFile
from octavo.bookie.write.cache import Memtable, WriteCache, extents
from octavo.protocol.codes import BookieIOError

P = ParamSpec("P")
R = TypeVar("R")

EXTENT_BYTES_MAX = 64 * 1024
"""One extent, hence one index record: a random read reads and steps through no more."""
_SLICE_RUNS_MAX = 16
"""Log runs written by one executor call, so that the loop gets the interpreter in between."""
_STATE_SLICE = 1000


class Checkpointer:
    """Runs checkpoints, one at a time."""

    def __init__(
        self,
        *,
        disk: Disk,
        directories: Sequence[str],
        journals: Sequence[str],
        executor: Executor,
        cache: WriteCache,
        logs: EntryLogs,
        index: LedgerIndex,
        states: LedgerStates,
        state_file: StateFile,
        mark: Mark | None,
    ) -> None:
        self._disk = disk
        self._directories = tuple(directories)
        self._journals = tuple(journals)
        self._executor = executor
        self._cache = cache
        self._logs = logs
        self._index = index
        self._states = states
        self._state_file = state_file
        self._lock = asyncio.Lock()
        self._dead: BaseException | None = None
        """What ended all this: a sync that failed says nothing when it is tried again."""
        self._pending: tuple[Memtable, tuple[Position, ...]] | None = None
        self._removed: list[int] = []
        self._index_behind = False
        """Whether the index holds changes that are not flushed."""
        self.mark = None if mark is None else replace(mark, folders=self._journals)
        """The mark on disk."""

    def vouched(self) -> tuple[int, int]:
        """Up to where, (log id, offset), the mark vouches for the entry logs."""
        return (0, 0) if self.mark is None else (self.mark.log_id, self.mark.log_offset)

    def settled_log_id(self) -> int:
        """Logs below it are vouched for by the mark, and wholly in the index. Blocking."""
        covered = self._index.covered
        return 0 if self.mark is None or covered is None else min(self.mark.log_id, covered[0])

    def forget_ledger(self, ledger_id: int) -> None:
        """A ledger was deleted: the next checkpoint removes it from the index."""
        self._removed.append(ledger_id)

    async def forget_deleted(self) -> None:
        """Once at a start: the last life may have ended before the index forgot who was deleted."""
        async with self._alone():
            await self._call(self._forget_deleted, self._states.deleted_ids(sys.maxsize))

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """One change at a time, and none behind an error that is final."""
        async with self._lock:
            if self._dead is not None:
                raise self._dead
            try:
                yield
            except (DiskFull, BookieIOError):
                raise
            except Exception as error:
                self._dead = error
                raise

    async def run(
        self, positions: Callable[[], tuple[Position, ...]], on_flushed: Callable[[Memtable], None]
    ) -> Mark:
        """One checkpoint. `positions` is called in step 1: so far each journal is durable.

        `on_flushed` is told, on the loop, when a memtable is in log and index. Raises what the disk
        raises; then nothing is lost and `run` may be called again.
        """
        async with self._alone():
            where = positions()
            # What came after a failed attempt is in the active memtable: the mark may only move to
            # where the memtable that is left over from that attempt ends.
            memtable, where = self._pending or (self._cache.swap(), where)
            self._pending = (memtable, where)
            dirty = self._states.take_dirty()
            removed, self._removed = self._removed, []
            try:
                mark = await self._write(memtable, where, dirty, removed)
            except BaseException:
                self._states.put_back(dirty)
                self._removed = removed + self._removed
                raise
            self._pending = None
            self._cache.drop_flushed()
            on_flushed(memtable)
            await self._call(self._state_file.remove_old)
            return mark

    async def _write(
        self, memtable: Memtable, where: tuple[Position, ...], dirty: list[int], removed: list[int]
    ) -> Mark:
        rewrite = self._state_file.wants_rewrite(len(self._states))
        wanted = self._states.all_ids() if rewrite else dirty
        records: list[bytes] = []
        for start in range(0, len(wanted), _STATE_SLICE):
            records += self._states.encode(wanted[start : start + _STATE_SLICE])
            await asyncio.sleep(0)
        runs = extents(memtable, EXTENT_BYTES_MAX)
        indexed: list[IndexedExtent] = []
        while batch := await self._call(self._append_slice, runs):
            indexed += batch
        covered = self._logs.position
        await self._call(self._logs.sync)
        if rewrite:
            await self._call(self._state_file.rewrite, records)
        elif records:
            await self._call(self._state_file.append, records)
        state = self._state_file.file_id, self._state_file.offset
        mark = Mark(where, *covered, *state, self._journals)
        await self._move_mark(mark)
        await self._call(self._flush_index, removed, indexed, covered)
        return mark

    async def _move_mark(self, mark: Mark) -> None:
        assert self.mark is None or mark.covers(self.mark), "the mark never moves back"
        await self._call(write_mark, self._disk, self._directories, mark)
        self.mark = mark

    # Compaction

    async def relocate(self, found: Sequence[Stored]) -> int:
        """Move what the index still maps to these records; returns the bytes of frames copied.

        Copied are exactly the entries of which no newer copy is indexed, and they stand behind all
        older copies: an index rebuilt from the logs comes out the same. Raises `DiskFull`: what
        was appended by then is in no index. Afterwards the index is not flushed yet: see `retire`.
        """
        async with self._alone():
            self._check_whole()
            assert self.mark is not None
            runs = iter(await self._call(live_parts, self._index, found))
            moved: list[IndexedExtent] = []
            while batch := await self._call(self._append_slice, runs):
                moved += batch
            if not moved:
                return 0
            covered = self._logs.position
            await self._call(self._logs.sync)
            await self._move_mark(replace(self.mark, log_id=covered[0], log_offset=covered[1]))
            await self._call(self._put, moved, covered)
            return sum(run.location.length for run in moved)

    async def retire(self, log_id: int) -> None:
        """Remove a log from which the caller has read every record and found none live."""
        async with self._alone():
            assert self.mark is not None
            assert log_id < self.mark.log_id, "the log that the mark names stays"
            await self._call(self._unlink, log_id)

    async def drop_markers(self, may_go: Callable[[int], bool], before_ms: int) -> int:
        """Forget those deleted ledgers that the caller lets go; returns how many went.

        Only one whose deletion is in the ledger state on the disk may go: what stands there of its
        life would else be believed once the mark has passed the journal's record of its end.
        """
        async with self._alone():
            gone = [
                ledger_id
                for ledger_id in self._states.deleted_ids(before_ms)
                if not self._states.is_changed(ledger_id) and may_go(ledger_id)
            ]
            for ledger_id in gone:
                self._states.drop(ledger_id)
            return len(gone)

    async def roll(self) -> None:
        """Begin a new entry log, so that the current one can be compacted. Raises `DiskFull`."""
        async with self._alone():
            self._check_whole()
            assert self.mark is not None
            await self._call(self._logs.roll)
            log_id, log_offset = self._logs.position
            await self._move_mark(replace(self.mark, log_id=log_id, log_offset=log_offset))
            await self._call(self._put, [], self._logs.position)

    def _check_whole(self) -> None:
        """Raises `DiskFull` after a checkpoint that did not end.

        It may have moved the mark past records that the index does not know yet, and their entries
        are in no journal that would be replayed: nothing may tell the index that it is complete.
        """
        if self.mark is None or self._pending is not None:
            raise DiskFull("a flush of the write cache has to succeed first")

    def _unlink(self, log_id: int) -> None:
        covered = self._index.covered
        assert covered is not None
        assert covered[0] > log_id, "what the index does not cover may be in no other place"
        if self._index_behind:
            self._index.flush()
            self._index_behind = False
        self._logs.remove(log_id)

    # Blocking steps

    def _append_slice(self, runs: Iterator[Extent]) -> list[IndexedExtent]:
        batch = list(islice(runs, _SLICE_RUNS_MAX))
        if not batch:
            return []
        locations = self._logs.append(batch)
        return [
            IndexedExtent(
                run.ledger_id, run.first_entry, run.first_entry + run.entries - 1, location
            )
            for run, location in zip(batch, locations, strict=True)
        ]

    def _forget_deleted(self, deleted: list[int]) -> None:
        left = [ledger_id for ledger_id in deleted if self._index.runs(ledger_id)]
        for ledger_id in left:
            self._index.delete_ledger(ledger_id)
        if left:
            self._index.flush()

    def _flush_index(
        self, removed: list[int], runs: list[IndexedExtent], covered: tuple[int, int]
    ) -> None:
        for ledger_id in removed:
            self._index_behind = True
            self._index.delete_ledger(ledger_id)
        if runs or self._index.covered != covered:
            self._put(runs, covered)
        if self._index_behind:
            self._index.flush()
            self._index_behind = False

    def _put(self, runs: list[IndexedExtent], covered: tuple[int, int]) -> None:
        self._index_behind = True
        self._index.put(runs, covered)

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        assert not kwargs
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
