"""The storage engine of a bookie: its parts, what starts and ends them, and the way of an add.

Reads are `Storage.reads` (read/path.py); fences, LACs and what is known of a ledger are
`Storage.control` (ledgers/control.py).

Promises. An add, a fence, an explicit LAC or a deletion that was reported done survives any crash.
A fence is in line with adds: those queued before it are answered first, later ones are refused.
Reads see only what is durable, wait for no write, and tell absent (`NoSuchEntry`) from unknown
(`BookieIOError`). Memory is bounded: past its bounds `pressure` asks the connections to read
less; nothing is dropped. Relies on: journal/journal.py (durable, in order), write/checkpoint.py
(order of flush). On a crash: the index, the logs and the ledger state hold what is before the mark;
the journal holds the rest and is replayed. `SyncFailed` is final: `on_fatal` is told and nothing is
acked any more.

All methods are called on the event loop. Blocking calls run in three executors: the journal's, the
flush's, the readers', so that neither waits for another.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

import structlog

from octavo.bookie.adds import AddBatch
from octavo.bookie.back_pressure import AddPressure, Budget
from octavo.bookie.check.consistency import check_at_start
from octavo.bookie.check.scrub import Scrubber
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.damage import DamageRegistry, OnLoss, tell_losses
from octavo.bookie.disk.files import Blocking, Disk, DiskFull
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.gc.compaction import Compactor, Pace
from octavo.bookie.index.index import LedgerIndex
from octavo.bookie.journal.journal import Journal, Journals, drive
from octavo.bookie.ledgers.control import LedgerControl
from octavo.bookie.ledgers.limbo import Limbo, LimboFile
from octavo.bookie.ledgers.state import LedgerStates
from octavo.bookie.read.cache import ReadCache
from octavo.bookie.read.path import ReadPath
from octavo.bookie.read.scheduler import ColdReads
from octavo.bookie.startup.opening import begin_journals, open_files, replay
from octavo.bookie.stats import ReadStats, WriteStats
from octavo.bookie.write.cache import Memtable, WriteCache
from octavo.bookie.write.checkpoint import Checkpointer
from octavo.bookie.write.flushing import Flushing
from octavo.bookie.write.repeats import Done, Repeats, Results
from octavo.protocol.codes import Code

_OK = Code.OK

_log = structlog.get_logger()


def _ignore(error: BaseException) -> None:
    """For a storage whose owner does not ask."""


class Storage:
    """One bookie's entries and what it promised about their ledgers."""

    _journals: Journals
    _checkpointer: Checkpointer
    _cold: ColdReads
    reads: ReadPath
    """Reads; there once started, as are the next two."""
    repeats: Repeats
    """Adds of what may be here already."""
    compactor: Compactor
    """Empties and removes entry logs; the collector tells it which."""

    def __init__(
        self,
        config: BookieConfig,
        *,
        disk: Disk,
        index_opener: Callable[[str], LedgerIndex] | None = None,
        on_fatal: Callable[[BaseException], None] = _ignore,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        """`clock` gives wall-clock milliseconds, for what people read."""
        self._config = config
        self._disk = disk
        self._index_opener = index_opener
        self.on_fatal = on_fatal
        """Called once when nothing can be promised any more: the process has to end."""
        self._journal_executors: list[Executor] = [
            ThreadPoolExecutor(1, f"octavo-journal-{index}")
            for index in range(len(config.journal_directories))
        ]
        self._flush_executor: Executor = ThreadPoolExecutor(1, "octavo-flush")
        self._read_executor: Executor = ThreadPoolExecutor(config.read_threads, "octavo-read")
        self._gc_executor: Executor = ThreadPoolExecutor(1, "octavo-gc")
        self._flush_call = Blocking(self._flush_executor)
        self._clock = clock
        self._cache = WriteCache(config.write_cache_bytes_max)
        self.read_stats = ReadStats()
        self._read_cache = ReadCache(config.read_cache_bytes_max, self.read_stats)
        self.answers = Budget(config.answer_bytes_max)
        """What reads have found and nobody has taken yet."""
        self._states = LedgerStates()
        self._index: LedgerIndex | None = None
        self.logs = EntryLogs(disk, config.ledger_directories, config.entry_log_bytes_max)
        self.limbo = Limbo()
        """Of which ledgers this bookie may have lost something."""
        self.limbo_file = LimboFile(
            self.limbo, disk, config.ledger_directories, self._flush_call, self._fail
        )
        """Where that stands; for who can say that they are whole again."""
        unlisted_max = config.unlisted_ledgers_max
        self.control = LedgerControl(self._states, self._deleted, self.limbo, unlisted_max)
        """Fences, LACs, and what is known of each ledger."""
        self._flushing: Flushing | None = None
        self.damages = DamageRegistry(clock)
        """What is known to be damaged on the disks."""
        self.scrubber: Scrubber | None = None
        """Reads the entry logs back; its owner runs it. There once started."""
        self.pressure = AddPressure(
            self._cache, config.journal_queue_bytes_max, config.add_bytes_max
        )
        """How far the disk is behind the adds, and who has to wait for it."""
        self._failed: BaseException | None = None
        self.on_loss: OnLoss | None = None
        """Told what a start found lost, if that is accepted; limbo is durable on return."""
        self.write_stats = WriteStats()

    # Life

    async def start(self) -> None:
        """Open the files and replay the journal. Raises on damage it cannot vouch for."""
        config, blocking = self._config, self._flush_call
        parts = self._states, self.logs, self._index_opener
        opened = await open_files(config, self._disk, *parts, blocking, self.on_loss)
        self._index = opened.index
        await tell_losses(opened.losses, self.damages, self.on_loss)
        self._begin_reads(opened.index)
        self._checkpointer = Checkpointer(
            disk=self._disk,
            directories=config.ledger_directories,
            journals=config.journal_directories,
            executor=self._flush_executor,
            cache=self._cache,
            logs=self.logs,
            index=opened.index,
            states=self._states,
            state_file=opened.state_file,
            mark=opened.mark,
        )
        self.compactor = self._new_compactor(opened.index)
        self.scrubber = Scrubber(
            disk=self._disk,
            logs=self.logs,
            index=opened.index,
            damages=self.damages,
            vouched=self._vouched,
            bytes_per_s=config.scrub_bytes_per_s,
            interval_s=config.scrub_interval_ms / 1000,
        )
        parties = self.control, self._cache, self._checkpointer
        await replay(opened.journals, *parties, self._flushed, blocking)
        await self._checkpointer.forget_deleted()
        if config.consistency_check_on_start:
            await blocking(
                check_at_start,
                self._disk,
                self.logs,
                opened.index,
                self._states,
                self.damages,
                self._vouched(),
                config.ledger_directories[0],
            )
        await self.limbo_file.load()
        self._journals = drive(
            await begin_journals(config, self._disk, opened.journals, blocking),
            self._journal_executors,
            group_bytes_max=config.journal_group_bytes_max,
            on_fatal=self._fail,
            stats=self.write_stats,
        )
        self.control.journal_to(self._journals)
        self.repeats = Repeats(
            self.reads,
            lambda batch: self.control.admission(batch, read_only=self.disk_full),
            self._journals,
            self._commit,
            self._update_pressure,
        )
        self._flushing = Flushing(
            self._checkpointer,
            self._journals,
            self._cache,
            self._states,
            interval_s=config.flush_interval_ms / 1000,
            on_flushed=self._flushed,
            on_fatal=self._fail,
        )

    def _begin_reads(self, index: LedgerIndex) -> None:
        self._cold = ColdReads(
            self._config,
            executor=self._read_executor,
            index=index,
            logs=self.logs,
            cache=self._read_cache,
            damages=self.damages,
            stats=self.read_stats,
        )
        caches = self._cache, self._read_cache
        lookups = self.read_stats.lookups
        self.reads = ReadPath(self.control, *caches, self._cold, self.answers, lookups)

    def _new_compactor(self, index: LedgerIndex) -> Compactor:
        return Compactor(
            logs=self.logs,
            index=index,
            checkpointer=self._checkpointer,
            executor=self._gc_executor,
            control=self.control,
            damages=self.damages,
            pace=Pace(self._config.gc_bytes_per_s),
            on_fatal=self._fail,
        )

    def _vouched(self) -> tuple[int, int]:
        """Up to where the mark vouches for the entry logs."""
        mark = self._checkpointer.mark
        return (0, 0) if mark is None else (mark.log_id, mark.log_offset)

    async def close(self) -> None:
        """Drain the journal, flush, give the files back."""
        if self.scrubber is not None:
            await self.scrubber.stop()
        if self._flushing is not None and await self._flushing.stop():
            self.control.close()
            await self.repeats.close()
            try:
                if self._failed is None:
                    await self._journals.drain()
                    await self.checkpoint()
            except DiskFull as error:
                _log.warning("flush_left_to_replay", error=str(error))
            finally:
                await self._journals.close()
        try:
            if self._index is not None:
                await self._flush_call(self._index.close)
        finally:
            await self._flush_call(self.logs.close)
            for executor in self.executors:
                executor.shutdown(wait=False)

    @property
    def executors(self) -> list[Executor]:
        """The threads of this storage."""
        others = self._flush_executor, self._read_executor, self._gc_executor
        return [*self._journal_executors, *others]

    def _fail(self, error: BaseException) -> None:
        """Nothing can be promised any more."""
        if isinstance(error, GeneratorExit):
            return  # the loop that ran it is gone, and with it everybody who could be told
        if self._failed is None:
            self._failed = error
            _log.critical("storage_failed", error=str(error), kind=type(error).__name__)
            self._journals.stop(error)
            self.on_fatal(error)

    # Adding

    def add(self, batches: Sequence[AddBatch], done: Done, lane: Hashable = 0) -> None:
        """Admit `batches` in order; `done` gets each with its code when the group is durable.

        A batch is taken or refused whole. `done` gets some of them at a time: those of a journal;
        at once what is refused; alone what may be here (write/repeats.py). Lanes take turns at a
        journal.
        """
        if (only := self._journals.only) is not None:
            self._add_to(only, batches, done, lane)
            return
        for journal, part in self._journals.split(batches):
            self._add_to(journal, part, done, lane)

    def _add_to(
        self, journal: Journal, batches: Sequence[AddBatch], done: Done, lane: Hashable
    ) -> None:
        results: Results = []
        admit, read_only = self.control.admit, self.disk_full
        for batch in batches:
            code = admit(batch, read_only=read_only)
            if code is None:
                self.repeats.take(batch, done, lane)
            else:
                results.append((batch, code))
        if results:
            self._commit(journal, results, done, lane)

    def _commit(self, journal: Journal, results: Results, done: Done, lane: Hashable) -> None:
        """Make durable what is admitted; `done` gets all of `results` then, or at once."""
        buffers = [batch.frames for batch, code in results if code is _OK]
        if buffers:
            added = partial(self._added, journal, results, done)
            journal.append(buffers, sum(map(len, buffers)), added, lane)
            self._update_pressure()
        else:
            done(results)

    def _added(
        self, journal: Journal, results: Results, done: Done, error: BaseException | None
    ) -> None:
        """The group that holds these batches is durable, or is not."""
        flushing = self._flushing
        assert flushing is not None
        if error is None:
            for batch, code in results:
                if code is _OK and self.control.stored(batch):
                    self._cache.active.put(batch)
            if journal.short_of_space:
                flushing.note_full("the journal cannot reserve room ahead")
            if self._cache.is_full:
                flushing.wanted.set()
        else:
            if isinstance(error, DiskFull):
                flushing.note_full(str(error))
            failed = Code.READ_ONLY if isinstance(error, DiskFull) else Code.IO
            results = [(batch, failed if code is _OK else code) for batch, code in results]
        if self.pressure.level or self._cache.is_full:
            self._update_pressure()
        done(results)

    # Pressure

    @property
    def pending_add_bytes(self) -> int:
        """Bytes admitted and not yet durable."""
        return self._journals.pending_bytes

    def _update_pressure(self) -> None:
        journals, repeats = self._journals, self.repeats
        used = journals.pending_bytes + repeats.bytes
        self.pressure.update(used, journals.pending_buffers + repeats.count)

    # Ledgers

    def ledgers(self) -> list[int]:
        """The ids of the ledgers this bookie knows, ascending."""
        return self._states.ids()

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger: reads say `NoSuchLedger`, adds are refused for ever; durable."""
        await self.control.delete(ledger_id, self._clock())

    def _deleted(self, ledger_id: int) -> None:
        self._cache.forget(ledger_id)
        self._read_cache.drop(ledger_id)
        self._checkpointer.forget_ledger(ledger_id)

    async def force(self, ledger_id: int) -> None:
        """All that was acked before is durable on return, also with `journal_sync` off."""
        if not self._config.journal_sync:
            await self._journals.of(ledger_id).sync()

    # Flushing

    @property
    def disk_full(self) -> bool:
        """Whether ordinary adds are refused with READ_ONLY until space returns, by itself."""
        return self._flushing is not None and self._flushing.disk_full

    async def checkpoint(self) -> None:
        """Flush all that is durable in the journals, move the mark, remove old journal files."""
        assert self._flushing is not None
        await self._flushing.checkpoint()

    def _flushed(self, memtable: Memtable) -> None:
        """A memtable is in log and index."""
        self._cold.index_changed()
        for ledger_id, held in memtable.ledgers.items():
            self._read_cache.drop(ledger_id, held.pieces[0].first, held.pieces[-1].last)
        if self.pressure.level:
            self._update_pressure()
