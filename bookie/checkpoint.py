"""The checkpoint: the one place that orders flush → ledger state → mark → index → journal removal.

    1. on the loop, in one step: journal position, swap of the write cache, changed ledger states
    2. entry logs: append the sorted runs, slice by slice; sync
    3. index: forget deleted ledgers; ledger state: append the changed records; sync
    4. mark, in every ledger folder
    5. index: put the runs; flush; only now may reads stop looking at the flushed half
    6. journal files before the mark go

The index comes after the mark, for a start cuts the logs behind the mark and an index that was
ahead of it would name what is no longer there; one that is behind is brought up from the logs. A
deletion comes before it: nothing would repeat it later. Steps 3 and 4 are done whether or not there
were entries: a fence alone moves the mark too (BookKeeper PR #4843 forgot it when the write cache
was empty, and lost fences). A step that fails leaves the half in memory and the states dirty; the
next attempt repeats all of it, and repeating does no harm. A crash anywhere replays the journal
from the mark that stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import ParamSpec, TypeVar

from bookie.disk import Disk
from bookie.entry_log import EntryLogs
from bookie.index import IndexRun, LedgerIndex
from bookie.ledger_state import LedgerStates, StateFile
from bookie.mark import Mark, write_mark
from bookie.write_cache import Half, LogRun, WriteCache, log_runs

P = ParamSpec("P")
R = TypeVar("R")

LOG_RUN_BYTES_MAX = 64 * 1024
"""One log run, hence one index record: a random read reads and steps through no more."""
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
        self._executor = executor
        self._cache = cache
        self._logs = logs
        self._index = index
        self._states = states
        self._state_file = state_file
        self._lock = asyncio.Lock()
        self._pending: tuple[Half, tuple[int, int]] | None = None
        self._removed: list[int] = []
        self.mark = mark
        """The mark on disk."""

    def forget_ledger(self, ledger_id: int) -> None:
        """A ledger was deleted: the next checkpoint removes it from the index."""
        self._removed.append(ledger_id)

    async def run(
        self, position: Callable[[], tuple[int, int]], on_flushed: Callable[[Half], None]
    ) -> Mark:
        """One checkpoint. `position` is called in step 1: the journal is durable up to there.

        `on_flushed` is told, on the loop, when a half is in log and index. Raises what the disk
        raises; then nothing is lost and `run` may be called again.
        """
        async with self._lock:
            where = position()
            # What came after a failed attempt is in the active half: the mark may only move to
            # where the half that is left over from that attempt ends.
            half, where = self._pending or (self._cache.swap(), where)
            self._pending = (half, where)
            dirty = self._states.take_dirty()
            removed, self._removed = self._removed, []
            try:
                mark = await self._write(half, where, dirty, removed)
            except BaseException:
                self._states.put_back(dirty)
                self._removed = removed + self._removed
                raise
            self.mark = mark
            self._pending = None
            self._cache.drop_flushed()
            on_flushed(half)
            await self._call(self._state_file.remove_old)
            return mark

    async def _write(
        self, half: Half, where: tuple[int, int], dirty: list[int], removed: list[int]
    ) -> Mark:
        rewrite = self._state_file.wants_rewrite(len(self._states))
        wanted = self._states.all_ids() if rewrite else dirty
        records: list[bytes] = []
        for start in range(0, len(wanted), _STATE_SLICE):
            records += self._states.encode(wanted[start : start + _STATE_SLICE])
            await asyncio.sleep(0)
        runs = log_runs(half, LOG_RUN_BYTES_MAX)
        indexed: list[IndexRun] = []
        while batch := await self._call(self._append_slice, runs):
            indexed += batch
        covered = self._logs.position
        await self._call(self._logs.sync)
        if removed:
            await self._call(self._forget_in_index, removed)
        if rewrite:
            await self._call(self._state_file.rewrite, records)
        elif records:
            await self._call(self._state_file.append, records)
        mark = Mark(*where, *covered, self._state_file.file_id, self._state_file.offset)
        assert self.mark is None or mark[:2] >= self.mark[:2], "the mark never moves back"
        await self._call(write_mark, self._disk, self._directories, mark)
        await self._call(self._flush_index, indexed, covered)
        return mark

    def _append_slice(self, runs: Iterator[LogRun]) -> list[IndexRun]:
        batch = list(islice(runs, _SLICE_RUNS_MAX))
        if not batch:
            return []
        locations = self._logs.append(batch)
        return [
            IndexRun(run.ledger_id, run.first_entry, run.first_entry + run.entries - 1, location)
            for run, location in zip(batch, locations, strict=True)
        ]

    def _forget_in_index(self, removed: list[int]) -> None:
        for ledger_id in removed:
            self._index.delete_ledger(ledger_id)
        self._index.flush()

    def _flush_index(self, runs: list[IndexRun], covered: tuple[int, int]) -> None:
        if runs or self._index.covered != covered:
            self._index.put(runs, covered)
            self._index.flush()

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        assert not kwargs
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
