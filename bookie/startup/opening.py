"""Start a storage: open the files on its disks, replay its journals, begin new journal files.

Everything after the mark is in the journal. So the logs are cut there before the index is opened;
if they hold anything after it, the journal must be good first. An index that is missing or behind
is completed from the logs. If acknowledged data is damaged, the start fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

import structlog

from octavo.bookie.adds import AddBatch
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.damage import DamagedRead, DamageKind, Loss, OnLoss
from octavo.bookie.disk.files import Blocking, Disk
from octavo.bookie.entrylog.log import EntryLogMissing, EntryLogs
from octavo.bookie.index.index import INDEX_FOLDER, LedgerIndex, RocksIndex
from octavo.bookie.journal.journal import JournalWriter
from octavo.bookie.journal.mark import Mark, Position, check_journals
from octavo.bookie.journal.reader import GoodBlock, JournalReader, records_of
from octavo.bookie.ledgers.control import LedgerReplay
from octavo.bookie.ledgers.state import LedgerStates, StateFile
from octavo.bookie.startup.index_rebuild import fill, make_anew, settle
from octavo.bookie.startup.repair import load_states, restore_states
from octavo.bookie.write.cache import Memtable, WriteCache
from octavo.bookie.write.checkpoint import Checkpointer
from octavo.protocol.codes import BookieIOError, OctavoError

_log = structlog.get_logger()


@dataclass(frozen=True)
class Opened:
    """The contents of the disks, before the journals are replayed."""

    mark: Mark | None
    state_file: StateFile
    index: LedgerIndex
    journals: list[JournalReader]
    losses: list[Loss]
    """Losses that were accepted: this bookie can no longer vouch for these ledgers."""


async def open_files(
    config: BookieConfig,
    disk: Disk,
    states: LedgerStates,
    logs: EntryLogs,
    index_opener: Callable[[str], LedgerIndex] | None,
    blocking: Blocking,
    on_loss: OnLoss | None = None,
) -> Opened:
    """Fill `states`; cut the entry logs only after the mark.

    With `on_loss` the caller enters limbo before it replays the journals: until the mark moves, the
    next start finds the losses again.
    """
    await blocking(make_folders, disk, config.directories)
    losses: list[Loss] = []
    accept_loss = on_loss is not None
    accepted = losses if accept_loss else None
    mark, state_file = await blocking(
        load_states, disk, config.ledger_directories, states, accepted
    )
    check_journals(mark, config.journal_directories)
    await blocking(logs.open)
    journals = [
        await blocking(
            partial(
                JournalReader,
                disk,
                directory,
                mark.journals[index] if mark else None,
                accept_loss=accept_loss,
            )
        )
        for index, directory in enumerate(config.journal_directories)
    ]
    whole = True
    for journal in journals:  # before anything is cut
        losses += await blocking(journal.survey)
        whole = await blocking(journal.is_whole) and whole
    directory = config.ledger_directories[0]
    if mark is not None:
        vouched = mark.log_id, mark.log_offset
    elif logs.log_ids and not whole:
        vouched = await blocking(indexed_up_to, disk, directory, index_opener)
    else:
        vouched = 0, 0
    if not accept_loss and await blocking(logs.goes_behind, vouched):
        for journal in journals:
            await blocking(journal.prove)
    await blocking(partial(cut_logs, logs, vouched, accepted, journaled=whole))
    index = await blocking(
        open_index,
        disk,
        directory,
        logs,
        mark,
        states,
        index_opener,
        accepted,
    )
    return Opened(mark, state_file, index, journals, losses)


async def replay(
    readers: Sequence[JournalReader],
    ledgers: LedgerReplay,
    cache: WriteCache,
    checkpointer: Checkpointer,
    blocking: Blocking,
) -> None:
    """Apply every good block; flush whenever the cache is full, and at the end.

    The records may be only in the page cache, so none counts as durable, least of all a fence,
    before it is written again. If the disk has no room for that, the start ends with `DiskFull`.
    """
    ends = [reader.begins() for reader in readers]
    count = 0
    flushes = _Flushes(checkpointer)
    try:
        for index, reader in enumerate(readers):
            blocks = reader.blocks()
            while (block := await blocking(_next_block, blocks)) is not None:
                for record in records_of(block.body):
                    if ledgers.replay(record):
                        cache.active.put(cast(AddBatch, record))
                count, ends[index] = count + 1, Position(block.file_id, block.end)
                if cache.is_full:
                    await flushes.begin(tuple(ends))
        if count:
            await flushes.begin(tuple(ends))
            await flushes.end()
            _log.info("journal_replayed", blocks=count, ends=ends)
    finally:
        flushes.cancel()


class _Flushes:
    """Flushes one memtable while the other is filled from the journal."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self._checkpointer = checkpointer
        self._running: asyncio.Task[Mark] | None = None

    async def begin(self, ends: tuple[Position, ...]) -> None:
        """Begin to flush everything put so far, up to `ends`. Raises the errors of `end`."""
        await self.end()
        run = self._checkpointer.run(lambda: ends, _flushed)
        self._running = asyncio.create_task(run, name="replay flush")
        self._running.add_done_callback(_look)  # if the replay fails, no other code reads the error
        await asyncio.sleep(0)  # let the flush take its memtable before anything more is put

    async def end(self) -> None:
        """Return when everything is flushed. Raises the disk's errors."""
        running, self._running = self._running, None
        if running is not None:
            await running

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()


async def begin_journals(
    config: BookieConfig, disk: Disk, readers: Sequence[JournalReader], blocking: Blocking
) -> list[JournalWriter]:
    """Seal the replayed files and begin the next; on an error close all."""
    writers: list[JournalWriter] = []
    try:
        for reader in readers:
            writer = JournalWriter(
                disk,
                reader.directory,
                file_bytes_max=config.journal_file_bytes_max,
                preallocate_bytes=config.journal_preallocate_bytes,
                sync=config.journal_sync,
            )
            writers.append(writer)
            await blocking(writer.open, await blocking(reader.seal) + 1)
    except BaseException:
        for writer in writers:
            with suppress(OctavoError):
                await blocking(writer.close)
        raise
    return writers


def _flushed(_: Memtable) -> None:
    """Do nothing: there are no readers yet."""


def _look(flush: asyncio.Task[Mark]) -> None:
    if not flush.cancelled():
        flush.exception()


def _next_block(blocks: Iterator[GoodBlock]) -> GoodBlock | None:
    return next(blocks, None)


def make_folders(disk: Disk, directories: Sequence[str]) -> None:
    """Make the folders; the caller holds their locks, if another process could use them.

    Sync them: if an earlier process died here, their names may be only in the page cache.
    """
    for directory in directories:
        disk.make_directory(directory)
        disk.sync_directory(directory)


def indexed_up_to(
    disk: Disk, directory: str, opener: Callable[[str], LedgerIndex] | None
) -> tuple[int, int]:
    """Return the (log id, offset) up to which the index proves that the logs were synced.

    When the mark and the first journal files are lost, only this tells a damaged record from a torn
    one. (0, 0): it proves nothing. Raises `DamagedRead` when the index is damaged as well.
    """
    settle(disk, directory)
    index = (opener or RocksIndex)(f"{directory}/{INDEX_FOLDER}")
    covered = index.covered
    index.close()
    return covered or (0, 0)


def cut_logs(
    logs: EntryLogs, end: tuple[int, int], losses: list[Loss] | None, *, journaled: bool
) -> None:
    """Cut logs after `end`. Raises `EntryLogMissing`, unless losses are accepted."""
    try:
        logs.cut_abandoned(end, journaled)
    except EntryLogMissing as error:
        if losses is None:
            raise
        losses.append(Loss(DamageKind.MISSING_FILE, logs.path_of(end[0]), 0, 0, str(error)))
        logs.cut_abandoned(end, journaled, missing=True)


def open_index(
    disk: Disk,
    directory: str,
    logs: EntryLogs,
    mark: Mark | None,
    states: LedgerStates,
    opener: Callable[[str], LedgerIndex] | None,
    losses: list[Loss] | None = None,
) -> LedgerIndex:
    """Open the index and complete it up to the mark. Raises `BookieIOError`.

    A damaged index is rebuilt if the logs can vouch for all of it. With `losses`, records after the
    mark are indexed too; a damaged log is added to `losses`.
    """
    settle(disk, directory)
    path = f"{directory}/{INDEX_FOLDER}"
    make = opener or RocksIndex
    try:
        index = make(path)
    except DamagedRead as error:
        if error.damage.kind is not DamageKind.INDEX:
            raise
        _log.error("index_damaged", path=path, reason=str(error))
        make_anew(disk, directory, logs, states, mark, make)
        index = make(path)
    # Without a mark, the index must cover all good records that were kept.
    wanted = (mark.log_id, mark.log_offset) if mark is not None else logs.position
    covered = index.covered
    lost = partial(_lose_log, logs, losses) if losses is not None else None
    if losses:
        start = min(covered or (0, 0), wanted)
        kept_states = all(loss.kind is not DamageKind.STATE for loss in losses)
        made = restore_states(logs, states, start if kept_states else (0, 0))
        _log.info("ledger_states_restored", ledgers=made)
        fill(index, logs, states, start, max(logs.position, wanted), lost=lost)
    elif covered is None and logs.log_ids:
        fill(index, logs, states, (0, 0), wanted, lost=lost)
    elif covered is not None and covered < wanted:
        fill(index, logs, states, covered, wanted, lost=lost)
    return index


def _lose_log(logs: EntryLogs, losses: list[Loss], log_id: int, error: BookieIOError) -> None:
    losses.append(Loss(DamageKind.RECORD_HEADER, logs.path_of(log_id), 0, 0, str(error)))
