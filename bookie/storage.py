"""The storage engine of a bookie: its parts, how they start and end, and the path of an add.

- An add, fence, explicit LAC or deletion that was reported done survives any crash. A deferred add
  survives once a later `force`, fence or add that is not deferred is done.
- Adds queued before a fence are answered first, later adds are refused.
- Reads see only what is durable or deferred, wait for no write, and tell absent from unknown.
- Memory is bounded: above its bounds `pressure` asks the connections to read less.

After a crash, everything before the mark is in index, logs and ledger state; the journal has the
rest. `SyncFailed` is final: `on_fatal` is called and nothing is acked any more. Blocking calls run
in executors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog

from octavo.bookie.adds import AddBatch
from octavo.bookie.back_pressure import AddBurst, AddPressure, Budget
from octavo.bookie.check.consistency import check_at_start
from octavo.bookie.check.scrub import Scrubber
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.damage import DamageRegistry, OnLoss, tell_losses
from octavo.bookie.disk.files import Blocking, Disk, DiskFull
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.gc.compaction import Compactor, Pace
from octavo.bookie.index.index import LedgerIndex
from octavo.bookie.journal.journal import Journal, JournalWriter, drive
from octavo.bookie.journal.thread import JournalThread
from octavo.bookie.ledgers.control import LedgerControl, LedgerReplay
from octavo.bookie.ledgers.limbo import Limbo, LimboFile, read_limbo
from octavo.bookie.ledgers.state import LedgerStates
from octavo.bookie.read.cache import ReadCache
from octavo.bookie.read.cold_reads import ColdReads
from octavo.bookie.read.path import ReadPath
from octavo.bookie.startup.opening import Opened, begin_journals, open_files, replay
from octavo.bookie.stats import ReadStats, WriteStats
from octavo.bookie.write.cache import Memtable, WriteCache
from octavo.bookie.write.checkpoint import Checkpointer
from octavo.bookie.write.duplicate_adds import Done, DuplicateAdds, Results
from octavo.bookie.write.flushing import Flushing
from octavo.protocol.codes import Code, OctavoError

_OK = Code.OK

_log = structlog.get_logger()


def _ignore(error: BaseException) -> None: ...


class _Threads:
    """A storage's threads: journals, flushes, reads and garbage do not wait for each other."""

    def __init__(self, config: BookieConfig) -> None:
        self.journals: list[Executor] = [
            JournalThread(f"octavo-journal-{index}")
            for index in range(len(config.journal_directories))
        ]
        self.flush: Executor = ThreadPoolExecutor(1, "octavo-flush")
        self.read: Executor = ThreadPoolExecutor(config.read_threads, "octavo-read")
        self.gc: Executor = ThreadPoolExecutor(1, "octavo-gc")

    @property
    def all(self) -> list[Executor]:
        return [*self.journals, self.flush, self.read, self.gc]

    def end(self) -> None:
        for executor in self.all:
            executor.shutdown(wait=False)


@dataclass(frozen=True)
class _Restored:
    """The state that a start restored from disks and journals, flushed, with new journal files."""

    states: LedgerStates
    cache: WriteCache
    index: LedgerIndex
    checkpointer: Checkpointer
    damages: DamageRegistry
    limbo: Limbo
    unsure_deletions: dict[int, None]
    writers: list[JournalWriter]


class Storage:
    """Stores a bookie's entries; `open` makes it."""

    def __init__(
        self,
        config: BookieConfig,
        threads: _Threads,
        logs: EntryLogs,
        restored: _Restored,
        *,
        disk: Disk,
        on_fatal: Callable[[BaseException], None],
        clock: Callable[[], int],
    ) -> None:
        self._config = config
        self._threads = threads
        self._on_fatal = on_fatal
        self._flush_call = Blocking(threads.flush)
        self._clock = clock
        self._failed: BaseException | None = None
        self.logs = logs
        self._states, self._cache = restored.states, restored.cache
        self._index, self._checkpointer = restored.index, restored.checkpointer
        self.read_stats = ReadStats()
        self.write_stats = WriteStats()
        self._read_cache = ReadCache(config.read_cache_bytes_max, self.read_stats)
        self.answers = Budget(config.answer_bytes_max)
        """Answers that clients have not taken yet."""
        self.limbo = restored.limbo
        """The ledgers of which this bookie may have lost something."""
        self.limbo_file = LimboFile(
            self.limbo, disk, config.ledger_directories, self._flush_call, self._fail
        )
        """Re-replication calls it when ledgers are complete again."""
        self.damages = restored.damages
        self._journals = drive(
            restored.writers,
            threads.journals,
            group_bytes_max=config.journal_group_bytes_max,
            on_fatal=self._fail,
            stats=self.write_stats,
        )
        self.control = LedgerControl(
            self._states,
            self._journals,
            self._deleted,
            self.limbo,
            config.unlisted_ledgers_max,
            restored.unsure_deletions,
        )
        self._burst = AddBurst()
        self._cold = self._new_cold_reads()
        caches, lookups = (self._cache, self._read_cache), self.read_stats.lookups
        self.reads = ReadPath(self.control, *caches, self._cold, self.answers, lookups)
        self.compactor = self._new_compactor()
        self.scrubber = self._new_scrubber(disk)
        self.pressure = AddPressure(
            self._cache, config.journal_queue_bytes_max, config.add_bytes_max
        )
        self.duplicate_adds = DuplicateAdds(
            self.reads,
            lambda batch: self.control.admission(batch, read_only=self.disk_full),
            self._journals,
            self._commit,
            self._update_pressure,
        )
        self._flushing = self._new_flushing()

    # Start and end

    @classmethod
    async def open(
        cls,
        config: BookieConfig,
        *,
        disk: Disk,
        index_opener: Callable[[str], LedgerIndex] | None = None,
        on_fatal: Callable[[BaseException], None] = _ignore,
        clock: Callable[[], int] = lambda: 0,
        on_loss: OnLoss | None = None,
    ) -> Storage:
        """Open the files and replay the journals.

        `on_fatal` is called once when nothing can be promised any more: the process must end.
        `clock` gives wall-clock milliseconds. With `on_loss` losses are accepted: it gets them, and
        must make limbo durable before it returns.
        """
        threads = _Threads(config)
        bounds = config.entry_log_bytes_max, config.open_entry_logs_max
        logs = EntryLogs(disk, config.ledger_directories, *bounds)
        blocking = Blocking(threads.flush)
        damages = DamageRegistry(clock)
        try:
            states = LedgerStates()
            parts = states, logs, index_opener
            opened = await open_files(config, disk, *parts, blocking, on_loss)
            try:
                await tell_losses(opened.losses, damages, on_loss)
                restored = await _restore(config, disk, blocking, logs, states, damages, opened)
            except BaseException:
                with suppress(OctavoError):
                    await blocking(opened.index.close)
                raise
        except BaseException:
            try:
                with suppress(OctavoError):
                    await blocking(logs.close)
            finally:
                threads.end()
            raise
        return cls(config, threads, logs, restored, disk=disk, on_fatal=on_fatal, clock=clock)

    def _new_cold_reads(self) -> ColdReads:
        return ColdReads(
            self._config,
            executor=self._threads.read,
            index=self._index,
            logs=self.logs,
            cache=self._read_cache,
            damages=self.damages,
            stats=self.read_stats,
            burst=self._burst,
        )

    def _new_compactor(self) -> Compactor:
        return Compactor(
            logs=self.logs,
            index=self._index,
            checkpointer=self._checkpointer,
            executor=self._threads.gc,
            control=self.control,
            damages=self.damages,
            pace=Pace(self._config.gc_bytes_per_s),
            on_fatal=self._fail,
        )

    def _new_scrubber(self, disk: Disk) -> Scrubber:
        return Scrubber(
            disk=disk,
            logs=self.logs,
            index=self._index,
            damages=self.damages,
            vouched=self._checkpointer.vouched,
            bytes_per_s=self._config.scrub_bytes_per_s,
            interval_s=self._config.scrub_interval_ms / 1000,
        )

    def _new_flushing(self) -> Flushing:
        return Flushing(
            self._checkpointer,
            self._journals,
            self._cache,
            self._states,
            interval_s=self._config.flush_interval_ms / 1000,
            on_flushed=self._flushed,
            on_fatal=self._fail,
        )

    async def close(self) -> None:
        """Drain the journal, flush, close the files."""
        await self.scrubber.stop()
        if not await self._flushing.stop():
            return  # the storage was closed before
        self.control.close()
        await self.duplicate_adds.close()
        try:
            if self._failed is None:
                await self._journals.drain()
                await self.checkpoint()
        except DiskFull as error:
            _log.warning("flush_left_to_replay", error=str(error))
        finally:
            await self._journals.close()
        try:
            await self._flush_call(self._index.close)
        finally:
            await self._flush_call(self.logs.close)
            self._threads.end()

    @property
    def executors(self) -> list[Executor]:
        return self._threads.all

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, GeneratorExit):
            return  # the loop is gone, so no caller waits for an answer
        if self._failed is None:
            self._failed = error
            _log.critical("storage_failed", error=str(error), kind=type(error).__name__)
            self._journals.stop(error)
            self._on_fatal(error)

    # Adding

    def add(
        self,
        batches: Sequence[AddBatch],
        done: Done,
        lane: Hashable = 0,
        *,
        deferred: bool = False,
    ) -> None:
        """Admit `batches` in order; `done` gets each with its code when its group is durable.

        A batch is taken or refused whole. `done` is called for each journal's batches together, and
        separately for each batch that may be here already (write/duplicate_adds.py). With
        `deferred`, batches are only written: until `force` a power failure may lose them.
        """
        if (only := self._journals.only) is not None:
            self._add_to(only, batches, done, lane, deferred=deferred)
            return
        for journal, part in self._journals.split(batches):
            self._add_to(journal, part, done, lane, deferred=deferred)

    def _add_to(
        self,
        journal: Journal,
        batches: Sequence[AddBatch],
        done: Done,
        lane: Hashable,
        *,
        deferred: bool,
    ) -> None:
        results: Results = []
        admit, read_only = self.control.admit, self.disk_full
        for batch in batches:
            code = admit(batch, read_only=read_only)
            if code is None:
                self.duplicate_adds.take(batch, done, lane)
            else:
                results.append((batch, code))
        if results:
            self._commit(journal, results, done, lane, deferred=deferred)

    def _commit(
        self,
        journal: Journal,
        results: Results,
        done: Done,
        lane: Hashable,
        *,
        deferred: bool = False,
    ) -> None:
        """Call `done` with all `results`: after the commit, or now if no batch was admitted."""
        buffers = [batch.frames for batch, code in results if code is _OK]
        if buffers:
            added = partial(self._added, journal, results, done)
            size = sum(map(len, buffers))
            self._burst.came(size)
            journal.append(buffers, size, added, lane, deferred=deferred)
            self._update_pressure()
        else:
            done(results)

    def _added(
        self, journal: Journal, results: Results, done: Done, error: BaseException | None
    ) -> None:
        """Report results: the group is durable (or written, if deferred), or has failed."""
        flushing = self._flushing
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
        return self._journals.pending_bytes

    def _update_pressure(self) -> None:
        journals, waiting = self._journals, self.duplicate_adds
        used = journals.pending_bytes + waiting.bytes
        self.pressure.update(used, journals.pending_buffers + waiting.count)

    # Ledgers

    def ledgers(self) -> list[int]:
        return self._states.ids()

    async def delete_ledger(self, ledger_id: int) -> None:
        """Reads then raise `NoSuchLedger`, and adds are refused."""
        await self.control.delete(ledger_id, self._clock())

    def _deleted(self, ledger_id: int) -> None:
        self._cache.forget(ledger_id)
        self._read_cache.drop(ledger_id)
        self._checkpointer.forget_ledger(ledger_id)

    async def force(self, ledger_id: int) -> None:
        """Make all earlier acked adds of the ledger durable.

        It may be unknown or fenced. Raises `SyncFailed`.
        """
        journal = self._journals.of(ledger_id)
        await journal.synced()
        if not self._config.journal_sync:
            await journal.sync()

    # Flushing

    @property
    def disk_full(self) -> bool:
        """Whether ordinary adds get READ_ONLY, until space returns by itself."""
        return self._flushing.disk_full

    async def checkpoint(self) -> None:
        """Flush what is durable in the journals, move the mark, remove old journal files."""
        await self._flushing.checkpoint()

    def _flushed(self, memtable: Memtable) -> None:
        """Drop older copies from the read cache: the memtable is in log and index."""
        self._cold.index_changed()
        for ledger_id, held in memtable.ledgers.items():
            self._read_cache.drop(ledger_id, held.pieces[0].first, held.pieces[-1].last)
        if self.pressure.level:
            self._update_pressure()


async def _restore(
    config: BookieConfig,
    disk: Disk,
    blocking: Blocking,
    logs: EntryLogs,
    states: LedgerStates,
    damages: DamageRegistry,
    opened: Opened,
) -> _Restored:
    """Replay the journals on top of the opened files, and begin new journal files."""
    cache = WriteCache(config.write_cache_bytes_max)
    checkpointer = Checkpointer(
        disk=disk,
        directories=config.ledger_directories,
        journals=config.journal_directories,
        executor=blocking.executor,
        cache=cache,
        logs=logs,
        index=opened.index,
        states=states,
        state_file=opened.state_file,
        mark=opened.mark,
    )

    def deleted(ledger_id: int) -> None:
        cache.forget(ledger_id)
        checkpointer.forget_ledger(ledger_id)

    ledgers = LedgerReplay(states, deleted)
    await replay(opened.journals, ledgers, cache, checkpointer, blocking)
    await checkpointer.forget_deleted()
    if config.consistency_check_on_start:
        await blocking(
            check_at_start,
            disk,
            logs,
            opened.index,
            states,
            damages,
            checkpointer.vouched(),
            config.ledger_directories[0],
        )
    limbo = Limbo(await blocking(read_limbo, disk, config.ledger_directories))
    writers = await begin_journals(config, disk, opened.journals, blocking)
    unsure = ledgers.unsure_deletions
    return _Restored(states, cache, opened.index, checkpointer, damages, limbo, unsure, writers)
