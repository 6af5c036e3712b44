"""The storage engine of a bookie: add, read, fence, delete, checkpoint, over the parts beside it.

Promises. An add, a fence, an explicit LAC or a deletion that was reported done survives any crash.
A fence is in line with adds: those queued before it are answered first, later ones are refused.
Reads see only what is durable, wait for no write, and tell absent (`NoSuchEntry`) from unknown
(`BookieIOError`). Memory is bounded: past its bounds `on_pressure` asks the connections to read
less; nothing is dropped. Relies on: journal.py (durable, in order), checkpoint.py (order of flush).
On a crash: the index, the logs and the ledger state hold what is before the mark; the journal holds
the rest and is replayed. `SyncFailed` is final: `on_fatal` is told and nothing is acked any more.

All methods are called on the event loop. Blocking calls run in three executors: the journal's, the
flush's, the readers', so that neither waits for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar, cast

import structlog

from bookie.add_run import AddRun
from bookie.checkpoint import Checkpointer
from bookie.config import BookieConfig, BookieConfigError
from bookie.disk import Disk, DiskFull
from bookie.entry_log import EntryLogs
from bookie.index import LedgerIndex
from bookie.journal import Journal, JournalWriter
from bookie.journal_reader import GoodBlock, JournalReader
from bookie.ledger_control import LedgerControl
from bookie.ledger_state import LedgerStates
from bookie.read_cache import CachedRun, ReadCache
from bookie.reads import ColdReads, joined
from bookie.recover import load_states, make_folders, open_index
from bookie.replay import records_of
from bookie.write_cache import Half, Piece, WriteCache
from protocol.codes import Code, NoSuchEntry
from protocol.entry import INVALID_ENTRY_ID
from protocol.frames import LENGTH

Done = Callable[[Sequence[tuple[AddRun, Code]]], None]
P = ParamSpec("P")
R = TypeVar("R")
_RETRY_FLUSH_S = 1.0
_OK = Code.OK

_log = structlog.get_logger()


def _ignore(error: BaseException) -> None:
    """For a storage whose owner does not ask."""


class Storage:
    """One bookie's entries and what it promised about their ledgers."""

    _journal: Journal
    _checkpointer: Checkpointer
    _cold: ColdReads

    def __init__(
        self,
        config: BookieConfig,
        *,
        disk: Disk,
        index_opener: Callable[[str], LedgerIndex] | None = None,
        on_fatal: Callable[[BaseException], None] = _ignore,
    ) -> None:
        self._config = config
        self._disk = disk
        self._index_opener = index_opener
        self.on_fatal = on_fatal
        """Called once when nothing can be promised any more: the process has to end."""
        self._journal_executor: Executor = ThreadPoolExecutor(1, "octavo-journal")
        self._flush_executor: Executor = ThreadPoolExecutor(1, "octavo-flush")
        self._read_executor: Executor = ThreadPoolExecutor(2, "octavo-read")
        self._cache = WriteCache(config.write_cache_bytes_max)
        self._read_cache = ReadCache(config.read_cache_bytes_max)
        self._states = LedgerStates()
        self._index: LedgerIndex | None = None
        self._logs = EntryLogs(disk, config.ledger_directories, config.entry_log_bytes_max)
        self._control = LedgerControl(self._states, self._deleted)
        self._pressure_listeners: list[Callable[[bool], None]] = []
        self._paused = False
        self._flush_wanted = asyncio.Event()
        self._flusher: asyncio.Task[None] | None = None
        self._closing = False
        self._failed: BaseException | None = None
        self.disk_full = False
        """Ordinary adds are refused with READ_ONLY until space returns; it ends by itself."""
        self.on_group: Callable[[int, float], None] = lambda *_: None
        """Told of every group commit: bytes, and seconds of its write and sync."""
        self.lookups = {"write_cache": 0, "read_cache": 0, "entry_log": 0}
        """How many runs of entries were found where."""

    # Life

    async def start(self) -> None:
        """Open the files and replay the journal. Raises on damage it cannot vouch for."""
        config = self._config
        if len(config.journal_directories) != 1:
            raise BookieConfigError(
                f"bookie setting journal_directories = {config.journal_directories!r}: name one "
                "folder; for more journals run more bookies"
            )
        journal_directory = config.journal_directories[0]
        await self._flush_call(make_folders, self._disk, config.directories)
        mark, state_file = await self._flush_call(
            load_states, self._disk, config.ledger_directories, self._states
        )
        await self._flush_call(self._logs.open)
        reader = JournalReader(self._disk, journal_directory, mark)
        whole = await self._flush_call(reader.is_whole)  # asked before anything is cut
        await self._flush_call(self._logs.cut_abandoned, mark[2:4] if mark else (0, 0), whole)
        self._index = await self._flush_call(
            open_index,
            config.ledger_directories[0],
            self._logs,
            mark,
            self._states,
            self._index_opener,
        )
        self._cold = ColdReads(
            executor=self._read_executor,
            index=self._index,
            logs=self._logs,
            cache=self._read_cache,
            ahead_bytes_max=config.read_ahead_bytes_max,
        )
        self._checkpointer = Checkpointer(
            disk=self._disk,
            directories=config.ledger_directories,
            executor=self._flush_executor,
            cache=self._cache,
            logs=self._logs,
            index=self._index,
            states=self._states,
            state_file=state_file,
            mark=mark,
        )
        await self._replay(reader)
        writer = JournalWriter(
            self._disk,
            journal_directory,
            file_bytes_max=config.journal_file_bytes_max,
            preallocate_bytes=config.journal_preallocate_bytes,
            sync=config.journal_sync,
        )
        await self._flush_call(writer.open, await self._flush_call(reader.seal) + 1)
        self._journal = Journal(
            writer,
            executor=self._journal_executor,
            group_bytes_max=config.journal_group_bytes_max,
            on_fatal=self._fail,
            on_group=lambda size, seconds: self.on_group(size, seconds),
        )
        self._control.journal_to(self._journal)
        self._flusher = asyncio.get_running_loop().create_task(self._flush_loop(), name="flush")

    async def _replay(self, reader: JournalReader) -> None:
        """Apply every good block of the journal; flush whenever the cache is full, and at the end.

        What was read may be in the page cache alone, because its sync failed or never came:
        nothing of it, a fence least of all, counts as durable before it is written anew.
        """
        blocks, count, end = reader.blocks(), 0, (0, 0)

        def replayed() -> tuple[int, int]:
            return end

        while (block := await self._flush_call(_next_block, blocks)) is not None:
            for record in records_of(block.body):
                if self._control.replay(record):
                    self._cache.active.put(cast(AddRun, record))
            count, end = count + 1, (block.file_id, block.end)
            if self._cache.is_full:
                await self._checkpointer.run(replayed, self._flushed)
        if count:
            try:
                await self._checkpointer.run(replayed, self._flushed)
            except DiskFull as error:
                _log.warning("flush_left_to_replay", error=str(error))
            _log.info("journal_replayed", blocks=count, end=end)

    async def close(self) -> None:
        """Drain the journal, flush, give the files back."""
        if self._flusher is not None:
            # Not cancelled: half a checkpoint would leave the other half to the next replay.
            self._closing = True
            self._flush_wanted.set()
            await asyncio.gather(self._flusher, return_exceptions=True)
            self._flusher = None
            self._control.close()
            try:
                if self._failed is None:
                    await self._journal.drain()
                    await self.checkpoint()
            except DiskFull as error:
                _log.warning("flush_left_to_replay", error=str(error))
            finally:
                await self._journal.close()
        try:
            if self._index is not None:
                await self._flush_call(self._index.close)
        finally:
            await self._flush_call(self._logs.close)
            for executor in (self._journal_executor, self._flush_executor, self._read_executor):
                executor.shutdown(wait=False)

    def _fail(self, error: BaseException) -> None:
        """Nothing can be promised any more."""
        if self._failed is None:
            self._failed = error
            _log.critical("storage_failed", error=str(error), kind=type(error).__name__)
            self._journal.stop(error)
            self.on_fatal(error)

    async def _flush_call(self, function: Callable[P, R], *args: P.args, **_: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(
            self._flush_executor, partial(function, *args)
        )

    # Adding

    def add(self, runs: Sequence[AddRun], done: Done) -> None:
        """Admit `runs` in order; `done` gets each with its code when the group is durable.

        A run is taken or refused whole. If all are refused `done` is called at once.
        """
        results: list[tuple[AddRun, Code]] = []
        buffers: list[bytes] = []
        length = 0
        admit = self._control.admit
        for run in runs:
            code = admit(run, read_only=self.disk_full)
            results.append((run, code))
            if code is _OK:
                buffers.append(run.frames)
                length += len(run.frames)
        if not buffers:
            done(results)
            return
        self._journal.append(buffers, length, partial(self._added, results, done))
        if not self._paused:
            self._update_pressure()

    def _added(
        self, results: list[tuple[AddRun, Code]], done: Done, error: BaseException | None
    ) -> None:
        """The group that holds these runs is durable, or is not."""
        if error is None:
            for run, code in results:
                if code is _OK and self._control.stored(run):
                    self._cache.active.put(run)
            if self._journal.short_of_space:
                self._note_full("the journal cannot reserve room ahead")
            if self._cache.is_full:
                self._flush_wanted.set()
        else:
            if isinstance(error, DiskFull):
                self._note_full(str(error))
            failed = Code.READ_ONLY if isinstance(error, DiskFull) else Code.IO
            results = [(run, failed if code is _OK else code) for run, code in results]
        if self._paused or self._cache.is_full:
            self._update_pressure()
        done(results)

    # Pressure

    @property
    def pending_add_bytes(self) -> int:
        """Bytes admitted and not yet durable."""
        return self._journal.pending_bytes

    @property
    def paused(self) -> bool:
        """Whether connections should read no more adds."""
        return self._paused

    def on_pressure(self, listener: Callable[[bool], None]) -> None:
        """Call `listener(True)` when adds should be slowed, `listener(False)` when not."""
        self._pressure_listeners.append(listener)

    def _update_pressure(self) -> None:
        pending, bound = self._journal.pending_bytes, self._config.journal_queue_bytes_max
        caches_full = self._cache.is_full and self._cache.flushing is not None
        paused = caches_full or pending > (bound // 2 if self._paused else bound)
        if paused != self._paused:
            self._paused = paused
            for listener in self._pressure_listeners:
                listener(paused)

    # Reading

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        """The whole entry; −1 asks for the last one.

        Raises `NoSuchLedger`, `NoSuchEntry`, and `BookieIOError` when it cannot be told.
        """
        if entry_id == INVALID_ENTRY_ID:
            entry_id = self._control.known(ledger_id).last_entry
        return (await self.read_many(ledger_id, entry_id, 1, 0))[0]

    async def read_many(
        self, ledger_id: int, first: int, count_max: int, bytes_max: int
    ) -> list[bytes]:
        """Consecutive entries from `first` on: at least one, then while both bounds hold.

        An entry counts with the four bytes of its length, as it travels in a batch answer. Ends
        before the first entry that is not there. Raises as `read` for entry `first`.
        """
        self._control.known(ledger_id)
        found: list[bytes] = []
        size, entry_id = 0, first
        while len(found) < max(1, count_max) and entry_id >= 0:
            source: Piece | CachedRun | None
            where = "write_cache"
            source, last = self._cache.find(ledger_id, entry_id)
            if source is None:
                where = "read_cache"
                source = self._read_cache.find(ledger_id, entry_id)
            if source is None:
                where = "entry_log"
                source = await self._cold.run_with(ledger_id, entry_id)
            if source is None:
                break
            self.lookups[where] += 1
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
            raise NoSuchEntry(f"ledger {ledger_id} entry {first} is not on this bookie")
        return found

    async def entries(self, ledger_id: int) -> list[tuple[int, int]]:
        """[(first, last), …] of all entries held, ascending, joined. Raises `NoSuchLedger`."""
        self._control.known(ledger_id)
        cached = self._cache.intervals(ledger_id)
        return joined(cached + await self._cold.intervals(ledger_id))

    def ledgers(self) -> list[int]:
        """The ids of the ledgers this bookie knows, ascending."""
        return self._states.ids()

    # The state of a ledger

    def last_add_confirmed(self, ledger_id: int) -> int:
        """The highest LAC seen, in an entry or alone. Raises `NoSuchLedger`."""
        return self._control.known(ledger_id).last_add_confirmed

    def last_entry(self, ledger_id: int) -> int:
        """The highest entry id held; −1 for none. Raises `NoSuchLedger`."""
        return self._control.known(ledger_id).last_entry

    def is_fenced(self, ledger_id: int) -> bool:
        """Whether ordinary adds are refused. Raises `NoSuchLedger`."""
        return self._control.known(ledger_id).fenced

    def watch_lac(self, ledger_id: int, after: int) -> asyncio.Future[int]:
        """A future that ends with the LAC once it is above `after`; cancel it to give it up."""
        return self._control.watch_lac(ledger_id, after)

    async def fence(self, ledger_id: int, key: bytes) -> None:
        """Refuse ordinary adds from now on; see `LedgerControl.fence`."""
        await self._control.fence(ledger_id, key)

    async def set_explicit_lac(self, ledger_id: int, key: bytes, lac: int) -> None:
        """Take a LAC that came alone; durable on return. Raises as `fence`."""
        await self._control.set_explicit_lac(ledger_id, key, lac)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger: reads say `NoSuchLedger`, adds are refused for ever; durable."""
        await self._control.delete(ledger_id)

    def _deleted(self, ledger_id: int) -> None:
        self._cache.forget(ledger_id)
        self._read_cache.drop(ledger_id)
        self._checkpointer.forget_ledger(ledger_id)

    async def force(self, ledger_id: int) -> None:  # noqa: ARG002
        """All that was acked before is durable on return, also with `journal_sync` off."""
        if not self._config.journal_sync:
            await self._journal.sync()

    # Flushing

    async def checkpoint(self) -> None:
        """Flush all that is durable in the journal, move the mark, remove old journal files."""
        mark = await self._checkpointer.run(lambda: self._journal.durable_position, self._flushed)
        await self._journal.remove_below(mark.file_id)

    def _flushed(self, half: Half) -> None:
        """A half of the write cache is in log and index."""
        self._cold.index_changed()
        for ledger_id, held in half.ledgers.items():
            self._read_cache.drop(ledger_id, held.pieces[0].first, held.pieces[-1].last)
        if self._paused:
            self._update_pressure()

    def _note_full(self, why: str) -> None:
        if not self.disk_full:
            self.disk_full = True
            self._flush_wanted.set()
            _log.error("disk_full", error=why)

    async def _flush_loop(self) -> None:
        """Flush when the cache is full or old; after "disk full" try again until space returns."""
        interval_s = self._config.flush_interval_ms / 1000
        try:
            while not self._closing:
                try:
                    async with asyncio.timeout(interval_s):
                        await self._flush_wanted.wait()
                except TimeoutError:
                    pass
                self._flush_wanted.clear()
                await self._flush_once()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(error)
            raise

    async def _flush_once(self) -> None:
        changed = self._cache.active.ledgers or self._cache.flushing or self._states.is_dirty
        if not changed and not self.disk_full:
            return
        try:
            await self.checkpoint()
            if self.disk_full:
                await self._journal.reserve()
                self.disk_full = False
                _log.info("disk_space_returned")
        except DiskFull as error:
            self._note_full(str(error))
            await asyncio.sleep(_RETRY_FLUSH_S)
            self._flush_wanted.set()


def _next_block(blocks: Iterator[GoodBlock]) -> GoodBlock | None:
    return next(blocks, None)
