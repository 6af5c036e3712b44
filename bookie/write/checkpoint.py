"""The checkpoint: the only place that orders flush → ledger state → mark → index → journal removal.

    1. on the loop, in one step: journal position, swap of the write cache, changed ledger states
    2. entry logs: append the sorted extents, slice by slice; sync
    3. ledger state: append the changed records; sync
    4. mark, in every ledger folder
    5. index: forget deleted ledgers; put the extents; flush. Only now may reads stop looking at
       the flushed memtable
    6. remove journal files before the mark

A start cuts the logs after the mark, so the index comes after it: an index ahead would name records
that were cut. An index behind is completed from the logs and the ledger state. Steps 3 and 4 run
even without entries: a fence alone moves the mark too (BookKeeper PR #4843: fences were lost). A
failed step keeps the memtable and the changed states, and the next attempt repeats all steps.

Compaction changes index and logs in the same order. `relocate`: append → sync → mark (the same
journal position, the new log position) → index. `retire`: flush of the index, then unlink. A crash
in between leaves copies that the index does not point to, or an old log whose records have all
moved.
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
"""An extent is an index record, and the most that a random read reads."""
_SLICE_RUNS_MAX = 16
"""Bounds an executor call, so that the loop gets the interpreter in between."""
_STATE_SLICE = 1000


class Checkpointer:
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
        """The error that ended checkpoints: after a failed sync, a repeated sync proves nothing."""
        self._pending: tuple[Memtable, tuple[Position, ...]] | None = None
        self._removed: list[int] = []
        self._index_behind = False
        """The index holds changes that are not flushed."""
        self.mark = None if mark is None else replace(mark, folders=self._journals)

    def vouched(self) -> tuple[int, int]:
        """Return the (log id, offset) up to which the mark vouches for the entry logs."""
        return (0, 0) if self.mark is None else (self.mark.log_id, self.mark.log_offset)

    def settled_log_id(self) -> int:
        """Mark and index cover every log below this id. Blocking."""
        covered = self._index.covered
        return 0 if self.mark is None or covered is None else min(self.mark.log_id, covered[0])

    def forget_ledger(self, ledger_id: int) -> None:
        """Remove a deleted ledger from the index in the next checkpoint."""
        self._removed.append(ledger_id)

    async def forget_deleted(self) -> None:
        """Remove all deleted ledgers at a start: a crash may have come before that."""
        async with self._alone():
            await self._call(self._forget_deleted, self._states.deleted_ids(sys.maxsize))

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Allow a single change at a time, and none after a final error."""
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
        """Flush the write cache and advance the mark.

        `positions`, called in step 1, returns how far journals are durable. `on_flushed` is called
        when a memtable is in log and index. Raises the disk's errors; nothing is lost by them.
        After `DiskFull`, `run` may be called again.
        """
        async with self._alone():
            where = positions()
            # After a failed attempt, its memtable is flushed first, and the mark may only move to
            # where that memtable ends.
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
        """Copy the entries that the index still maps to these records; return the bytes copied.

        They go to a place after all older copies, so an index rebuilt from the logs is the same.
        Raises `DiskFull`; copies appended until then are not in the index. The index is not flushed
        yet: see `retire`.
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
        """Remove a log in which the caller found no live entry; it has read every record."""
        async with self._alone():
            assert self.mark is not None
            assert log_id < self.mark.log_id, "the log that the mark names stays"
            await self._call(self._unlink, log_id)

    async def drop_markers(self, may_go: Callable[[int], bool], before_ms: int) -> int:
        """Forget ledgers deleted before `before_ms`, where `may_go` allows it; return how many.

        The deletion must be in the ledger state on disk: the mark may pass the journal's record of
        it, and a start would find the ledger alive.
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
        """Begin a new log, so that the current log can be compacted. Raises `DiskFull`."""
        async with self._alone():
            self._check_whole()
            assert self.mark is not None
            await self._call(self._logs.roll)
            log_id, log_offset = self._logs.position
            await self._move_mark(replace(self.mark, log_id=log_id, log_offset=log_offset))
            await self._call(self._put, [], self._logs.position)

    def _check_whole(self) -> None:
        """Raise `DiskFull` after a failed checkpoint.

        It may have moved the mark past records that the index lacks, and no replay brings them: the
        index is incomplete.
        """
        if self.mark is None or self._pending is not None:
            raise DiskFull("the next flush of the write cache must succeed first")

    def _unlink(self, log_id: int) -> None:
        covered = self._index.covered
        assert covered is not None
        assert covered[0] > log_id, "entries that the index does not cover may have no other copy"
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
