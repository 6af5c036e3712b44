"""Make an index from the entry logs: complete an existing index, or build a new one and swap it in.

Later records win, so the newest copy of an entry is found. Records of deleted or unknown ledgers
are left out, and so are records after the mark. If a record before it cannot be found, the rebuild
is refused: its entries would count as absent.

    1. remove `index.new`, make it, fill it; `covered` is put last; flush; sync its folder
    2. rename `index` to `index.old`; sync
    3. rename `index.new` to `index`; sync
    4. remove `index.old`

`settle` completes the swap after a crash: an `index.old` without an `index` proves that step 1 was
durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from octavo.bookie.disk.files import Disk
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.index.index import INDEX_FOLDER, IndexedExtent, LedgerIndex, RocksIndex
from octavo.bookie.journal.mark import Mark
from octavo.bookie.ledgers.state import LedgerStates
from octavo.bookie.startup.repair import load_states
from octavo.protocol.codes import BookieIOError, OctavoError

_NEW = f"{INDEX_FOLDER}.new"
_OLD = f"{INDEX_FOLDER}.old"
_BATCH = 1000

Position = tuple[int, int]
Progress = Callable[[int], None]
"""Called with the bytes passed since its last call."""

_log = structlog.get_logger()


class RebuildRefused(OctavoError):
    name = "rebuild-refused"


class Rebuilt(NamedTuple):
    runs: int
    logs: int
    covered: Position


def _quiet(size: int) -> None: ...


def fill(
    index: LedgerIndex,
    logs: EntryLogs,
    states: LedgerStates,
    start: Position,
    end: Position,
    progress: Progress = _quiet,
    lost: Callable[[int, BookieIOError], None] | None = None,
) -> Rebuilt:
    """Index every record from `start` to `end`, oldest first; durable on return.

    Until then the index says "complete up to `start`", so after a crash the next start repeats
    this. When a record cannot be found, raises `BookieIOError`, or calls `lost` if that loss is
    accepted; the index then says so until a checkpoint, which comes after limbo is durable.
    """
    _log.info("index_rebuild_started", from_log=start[0], from_offset=start[1])
    runs: list[IndexedExtent] = []
    count = logs_read = 0
    covered = end
    for log_id in logs.log_ids:
        if not start[0] <= log_id <= end[0]:
            continue
        logs_read += 1
        first = start[1] if log_id == start[0] else 0
        last = end[1] if log_id == end[0] else 0
        try:
            for record, at in logs.scan_all(log_id, first, last):
                progress(at.length)
                state = states.get(record.ledger_id)
                if state is None or state.deleted:
                    continue
                runs.append(
                    IndexedExtent(record.ledger_id, record.first_entry, record.last_entry, at)
                )
                count += 1
                if len(runs) >= _BATCH:
                    index.put(runs, start)
                    runs = []
        except BookieIOError as error:
            if lost is None:
                raise
            lost(log_id, error)
            covered = start
    index.put(runs, covered)
    index.flush()
    _log.info("index_rebuilt", runs=count)
    return Rebuilt(count, logs_read, covered)


def settle(disk: Disk, directory: str) -> None:
    """Complete a swap that a crash interrupted, before the index is opened."""
    index, new, old = (f"{directory}/{name}" for name in (INDEX_FOLDER, _NEW, _OLD))
    if disk.exists(old) and disk.exists(new) and not disk.exists(index):
        disk.rename(new, index)
        disk.sync_directory(directory)
    leftovers = [folder for folder in (new, old) if disk.exists(folder)]
    for folder in leftovers:
        disk.remove_folder(folder)
    if leftovers:
        disk.sync_directory(directory)


def make_anew(
    disk: Disk,
    directory: str,
    logs: EntryLogs,
    states: LedgerStates,
    mark: Mark | None,
    opener: Callable[[str], LedgerIndex] = RocksIndex,
    progress: Progress = _quiet,
) -> Rebuilt:
    """Build a new index next to the old one, and swap it in.

    The caller holds the folders' locks and has closed the index. Raises `RebuildRefused` and
    `BookieIOError`: then the old index is unchanged.
    """
    index, new, old = (f"{directory}/{name}" for name in (INDEX_FOLDER, _NEW, _OLD))
    settle(disk, directory)
    if mark is None:
        raise RebuildRefused(
            f"no readable journal mark in {directory}: it is unknown up to where the entry logs "
            "count. Start the bookie: it reads the journal and builds the index by itself"
        )
    if mark.log_id and mark.log_id not in logs.log_ids:
        raise RebuildRefused(
            f"entry log {logs.path_of(mark.log_id)}, which the journal mark names, is missing: "
            "bring it back, or take this bookie out and have its ledgers re-replicated"
        )
    made = opener(new)
    try:
        found = fill(made, logs, states, (0, 0), (mark.log_id, mark.log_offset), progress)
    finally:
        made.close()
    disk.sync_directory(new)
    disk.sync_directory(directory)
    if disk.exists(index):
        disk.rename(index, old)
        disk.sync_directory(directory)
    disk.rename(new, index)
    disk.sync_directory(directory)
    if disk.exists(old):
        disk.remove_folder(old)
        disk.sync_directory(directory)
    return found


def rebuild_index(
    disk: Disk,
    ledger_directories: Sequence[str],
    progress: Progress = _quiet,
    opener: Callable[[str], LedgerIndex] = RocksIndex,
) -> Rebuilt:
    """Rebuild a stopped bookie's index. The caller holds the folders' locks.

    Raises `RebuildRefused`, `LedgerStateDamaged` and `BookieIOError`: then nothing was changed.
    """
    states = LedgerStates()
    mark, _ = load_states(disk, ledger_directories, states)
    logs = EntryLogs(disk, ledger_directories, 1)
    logs.open()
    try:
        return make_anew(disk, ledger_directories[0], logs, states, mark, opener, progress)
    finally:
        logs.close()
