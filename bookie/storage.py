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
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import structlog

from bookie.add_run import AddRun
from bookie.checkpoint import Checkpointer
from bookie.config import BookieConfig
from bookie.disk import Disk, DiskFull
from bookie.entry_log import EntryLogs
from bookie.index import LedgerIndex
from bookie.journal import Journal, JournalWriter
from bookie.journal_format import Meta, MetaOp, encode_meta
from bookie.journal_reader import GoodBlock, JournalReader
from bookie.lac_watch import LacWatches
from bookie.ledger_state import LedgerState, LedgerStates
from bookie.read_cache import CachedRun, ReadCache
from bookie.reads import ColdReads
from bookie.recover import load_states, make_folders, open_index
from bookie.replay import records_of
from bookie.write_cache import Half, Piece, WriteCache
from protocol.codes import (
    BookieError,
    BookieIOError,
    Code,
    NoSuchEntry,
    NoSuchLedger,
    ReadOnly,
    Unauthorized,
)
from protocol.entry import INVALID_ENTRY_ID
from protocol.frames import ADD_PREFIX_BYTES, LENGTH

Done = Callable[[Sequence[tuple[AddRun, Code]]], None]
P = ParamSpec("P")
R = TypeVar("R")
_LAC = struct.Struct(">q")
_LAC_AT = ADD_PREFIX_BYTES + 16
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
        self._logs = EntryLogs(disk, config.ledger_directories, config.entry_log_bytes_max)
        self._watches = LacWatches()
        self._fences: dict[int, asyncio.Future[None]] = {}
        self._unsure_fences: set[int] = set()
        self._pressure_listeners: list[Callable[[bool], None]] = []
        self._paused = False
        self._flush_wanted = asyncio.Event()
        self._flusher: asyncio.Task[None] | None = None
        self._failed: BaseException | None = None
        self.disk_full = False
        """Ordinary adds are refused with READ_ONLY until space returns; it ends by itself."""

    # Life

    async def start(self) -> None:
        """Open the files and replay the journal. Raises on damage it cannot vouch for."""
        config = self._config
        journal_directory = config.journal_directories[0]
        await self._flush_call(make_folders, self._disk, config.directories)
        mark, state_file = await self._flush_call(
            load_states, self._disk, config.ledger_directories, self._states
        )
        await self._flush_call(self._logs.open)
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
        reader = JournalReader(self._disk, journal_directory, mark)
        await self._replay(reader)
        writer = JournalWriter(
            self._disk,
            journal_directory,
            file_bytes_max=config.journal_file_bytes_max,
            preallocate_bytes=config.journal_preallocate_bytes,
            sync=config.journal_sync,
        )
        await self._flush_call(writer.open, reader.seal() + 1)
        self._journal = Journal(
            writer,
            executor=self._journal_executor,
            group_bytes_max=config.journal_group_bytes_max,
            on_fatal=self._fail,
        )
        self._flusher = asyncio.get_running_loop().create_task(self._flush_loop(), name="flush")

    async def _replay(self, reader: JournalReader) -> None:
        """Apply every good block of the journal; flush whenever the cache is full."""
        blocks = reader.blocks()
        count = 0
        while (block := await self._flush_call(_next_block, blocks)) is not None:
            for record in records_of(block.body):
                self._apply(record)
            count += 1
            if self._cache.is_full:
                await self._checkpointer.run(partial(_position_after, block), self._flushed)
        if count:
            _log.info("journal_replayed", blocks=count, end=reader.end)

    def _apply(self, record: AddRun | Meta) -> None:
        """Repeat what was durable; doing so twice does no harm."""
        state = self._states.get(record.ledger_id)
        if state is None:
            state = self._states.create(record.ledger_id, record.key)
        if isinstance(record, AddRun):
            self._store(record)
            return
        self._states.touch(record.ledger_id)
        match record.op:
            case MetaOp.FENCE:
                state.fenced = True
            case MetaOp.EXPLICIT_LAC:
                state.explicit_lac = max(state.explicit_lac, record.value)
            case MetaOp.DELETE:
                self._forget(record.ledger_id, state)

    async def close(self) -> None:
        """Drain the journal, flush, give the files back."""
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
            self._flusher = None
            self._watches.cancel_all()
            if self._failed is None:
                await self._journal.drain()
                await self.checkpoint()
            await self._journal.close()
            await self._flush_call(self._index.close)
            await self._flush_call(self._logs.close)
        for executor in (self._journal_executor, self._flush_executor, self._read_executor):
            executor.shutdown(wait=False)

    def _fail(self, error: BaseException) -> None:
        """Nothing can be promised any more."""
        if self._failed is None:
            self._failed = error
            _log.critical("storage_failed", error=str(error), kind=type(error).__name__)
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
        for run in runs:
            code = self._admit(run)
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

    def _admit(self, run: AddRun) -> Code:
        state = self._states.get(run.ledger_id)
        if state is None:
            if run.ledger_id < 0:
                return Code.BAD_REQUEST
            state = self._states.create(run.ledger_id, run.key)
        elif state.key != run.key:
            return Code.UNAUTHORIZED
        if run.first_entry < 0:
            return Code.BAD_REQUEST
        if state.deleted:
            return Code.NO_LEDGER if run.recovery else Code.FENCED  # BookKeeper #4462
        if not run.recovery:
            if state.fenced:
                return Code.FENCED
            if self.disk_full:
                return Code.READ_ONLY
        return _OK

    def _added(
        self, results: list[tuple[AddRun, Code]], done: Done, error: BaseException | None
    ) -> None:
        """The group that holds these runs is durable, or is not."""
        if error is None:
            for run, code in results:
                if code is _OK:
                    self._store(run)
            if self._cache.is_full:
                self._flush_wanted.set()
        else:
            self._note_full(error)
            failed = Code.READ_ONLY if isinstance(error, DiskFull) else Code.IO
            results = [(run, failed if code is _OK else code) for run, code in results]
        if self._paused or self._cache.is_full:
            self._update_pressure()
        done(results)

    def _store(self, run: AddRun) -> None:
        """A durable run becomes readable."""
        ledger_id = run.ledger_id
        state = self._states.get(ledger_id)
        if state is None or state.deleted:
            return
        self._cache.active.put(run)
        last = run.first_entry + run.count - 1
        if last > state.last_entry:
            state.last_entry = last
        lac = _LAC.unpack_from(run.frames, run.offsets[-1] + _LAC_AT)[0]
        if lac > state.lac:
            state.lac = lac
            self._watches.moved(ledger_id, state.last_add_confirmed)
        self._states.touch(ledger_id)

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

    def _known(self, ledger_id: int) -> LedgerState:
        state = self._states.get(ledger_id)
        if state is None or state.deleted:
            raise NoSuchLedger(f"ledger {ledger_id} is not known to this bookie")
        return state

    def _find(self, ledger_id: int, entry_id: int) -> Piece | CachedRun | None:
        return self._cache.find(ledger_id, entry_id) or self._read_cache.find(ledger_id, entry_id)

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        """The whole entry; −1 asks for the last one.

        Raises `NoSuchLedger`, `NoSuchEntry`, and `BookieIOError` when it cannot be told.
        """
        if entry_id == INVALID_ENTRY_ID:
            entry_id = self._known(ledger_id).last_entry
        return (await self.read_many(ledger_id, entry_id, 1, 0))[0]

    async def read_many(
        self, ledger_id: int, first: int, count_max: int, bytes_max: int
    ) -> list[bytes]:
        """Consecutive entries from `first` on: at least one, then while both bounds hold.

        An entry counts with the four bytes of its length, as it travels in a batch answer. Ends
        before the first entry that is not there. Raises as `read` for entry `first`.
        """
        self._known(ledger_id)
        found: list[bytes] = []
        size, entry_id = 0, first
        while len(found) < max(1, count_max) and entry_id >= 0:
            source = self._find(ledger_id, entry_id)
            if source is None:
                source = await self._cold.run_with(ledger_id, entry_id)
            if source is None:
                break
            for entry_id in range(entry_id, source.last + 1):  # noqa: B020
                entry = source.entry(entry_id)
                size += LENGTH.size + len(entry)
                if found and (size > bytes_max or len(found) >= count_max):
                    return found
                found.append(entry)
            entry_id = source.last + 1
        if not found:
            self._known(ledger_id)
            raise NoSuchEntry(f"ledger {ledger_id} entry {first} is not on this bookie")
        return found

    async def entries(self, ledger_id: int) -> list[tuple[int, int]]:
        """[(first, last), …] of all entries held, ascending, joined. Raises `NoSuchLedger`."""
        self._known(ledger_id)
        cached = self._cache.intervals(ledger_id)
        found: list[tuple[int, int]] = []
        for first, last in sorted(cached + await self._cold.intervals(ledger_id)):
            if found and first <= found[-1][1] + 1:
                found[-1] = (found[-1][0], max(found[-1][1], last))
            else:
                found.append((first, last))
        return found

    def ledgers(self) -> list[int]:
        """The ids of the ledgers this bookie knows, ascending."""
        return self._states.ids()

    # The state of a ledger

    def last_add_confirmed(self, ledger_id: int) -> int:
        """The highest LAC seen, in an entry or alone. Raises `NoSuchLedger`."""
        return self._known(ledger_id).last_add_confirmed

    def last_entry(self, ledger_id: int) -> int:
        """The highest entry id held; −1 for none. Raises `NoSuchLedger`."""
        return self._known(ledger_id).last_entry

    def is_fenced(self, ledger_id: int) -> bool:
        """Whether ordinary adds are refused. Raises `NoSuchLedger`."""
        return self._known(ledger_id).fenced

    def watch_lac(self, ledger_id: int, after: int) -> asyncio.Future[int]:
        """A future that ends with the LAC once it is above `after`; cancel it to give it up."""
        future = self._watches.park(ledger_id, after)
        state = self._states.get(ledger_id)
        if state is not None:
            self._watches.moved(ledger_id, state.last_add_confirmed)
        return future

    def _authorized(self, ledger_id: int, key: bytes) -> LedgerState:
        """The state, made when the ledger is new. Raises `Unauthorized`, `NoSuchLedger`."""
        state = self._states.get(ledger_id)
        if state is None:
            return self._states.create(ledger_id, key)
        if state.deleted:
            raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        if state.key != key:
            raise Unauthorized(f"ledger {ledger_id}: the master key is not the ledger's")
        return state

    async def fence(self, ledger_id: int, key: bytes) -> None:
        """Refuse ordinary adds from now on; durable on return, also for an unknown ledger (P23).

        Adds queued before are reported before this returns. Raises `Unauthorized`,
        `NoSuchLedger` (deleted), `ReadOnly` or `BookieIOError` when it could not be made durable.
        """
        state = self._authorized(ledger_id, key)
        pending = self._fences.get(ledger_id)
        if pending is None:
            if state.fenced and ledger_id not in self._unsure_fences:
                return
            state.fenced = True  # also when the journal fails: refusing more is always safe
            self._unsure_fences.add(ledger_id)
            self._states.touch(ledger_id)
            pending = self._journal_meta(encode_meta(MetaOp.FENCE, ledger_id, key))
            self._fences[ledger_id] = pending
            pending.add_done_callback(partial(self._fenced, ledger_id))
        await asyncio.shield(pending)

    def _fenced(self, ledger_id: int, done: asyncio.Future[None]) -> None:
        del self._fences[ledger_id]
        if not done.cancelled() and done.exception() is None:
            self._unsure_fences.discard(ledger_id)

    async def set_explicit_lac(self, ledger_id: int, key: bytes, lac: int) -> None:
        """Take a LAC that came alone; durable on return. Raises as `fence`."""
        state = self._authorized(ledger_id, key)
        if lac <= state.explicit_lac:
            return
        await self._journal_meta(encode_meta(MetaOp.EXPLICIT_LAC, ledger_id, key, lac))
        state.explicit_lac = max(state.explicit_lac, lac)
        self._states.touch(ledger_id)
        self._watches.moved(ledger_id, state.last_add_confirmed)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger: reads say `NoSuchLedger`, adds are refused for ever; durable."""
        state = self._states.get(ledger_id)
        if state is None or state.deleted:
            return
        self._forget(ledger_id, state)
        await self._journal_meta(encode_meta(MetaOp.DELETE, ledger_id, state.key))

    def _forget(self, ledger_id: int, state: LedgerState) -> None:
        state.deleted = True
        self._states.touch(ledger_id)
        self._cache.forget(ledger_id)
        self._read_cache.drop(ledger_id)
        self._checkpointer.forget_ledger(ledger_id)

    def _journal_meta(self, record: bytes) -> asyncio.Future[None]:
        """Journal a meta record; the future ends when it is durable."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
                return
            self._note_full(error)
            kind: type[BookieError] = ReadOnly if isinstance(error, DiskFull) else BookieIOError
            future.set_exception(kind(str(error)))

        self._journal.append([record], len(record), done)
        return future

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

    def _note_full(self, error: BaseException) -> None:
        if isinstance(error, DiskFull) and not self.disk_full:
            self.disk_full = True
            self._flush_wanted.set()
            _log.error("disk_full", error=str(error))

    async def _flush_loop(self) -> None:
        """Flush when the cache is full or old; after "disk full" try again until space returns."""
        interval_s = self._config.flush_interval_ms / 1000
        try:
            while True:
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
            self._note_full(error)
            await asyncio.sleep(_RETRY_FLUSH_S)
            self._flush_wanted.set()


def _position_after(block: GoodBlock) -> tuple[int, int]:
    return block.file_id, block.end


def _next_block(blocks: Iterator[GoodBlock]) -> GoodBlock | None:
    return next(blocks, None)
