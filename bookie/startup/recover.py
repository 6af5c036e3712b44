"""Opens what a bookie left on its disks: mark, ledger state, entry logs, index. Blocking.

The journals are replayed on top of it by opening.py. An index that is missing or older than the
mark is rebuilt from the entry logs, from where it is known to be complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import structlog

from octavo.bookie.disk.damage import DamagedRead, DamageKind
from octavo.bookie.disk.files import Disk
from octavo.bookie.disk.loss import Loss
from octavo.bookie.entrylog.log import EntryLogMissing, EntryLogs
from octavo.bookie.index.index import INDEX_FOLDER as INDEX_FOLDER
from octavo.bookie.index.index import LedgerIndex, RocksIndex
from octavo.bookie.journal.mark import Mark
from octavo.bookie.ledgers.state import LedgerStates
from octavo.bookie.startup.index_rebuild import fill, make_anew, settle
from octavo.bookie.startup.salvage import restore_states
from octavo.protocol.codes import BookieIOError

_log = structlog.get_logger()


def make_folders(disk: Disk, directories: Sequence[str]) -> None:
    """Make every folder. The caller holds their locks when processes could meet there.

    They are synced: a process that died here may have left names that are in the page cache alone,
    and what is built on them must not outlive them in a power failure.
    """
    for directory in directories:
        disk.make_directory(directory)
        disk.sync_directory(directory)


def cut_logs(
    logs: EntryLogs, mark: Mark | None, losses: list[Loss] | None, *, journaled: bool
) -> None:
    """Cut what the mark does not vouch for; see `EntryLogs.cut_abandoned`.

    Raises `EntryLogMissing`, unless losses are accepted.
    """
    end = (mark.log_id, mark.log_offset) if mark is not None else (0, 0)
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
    """Open the index and bring it up to what the mark says. Raises `BookieIOError`.

    One that RocksDB finds damaged is made anew, if the logs can vouch for all of it. With `losses`,
    what logs hold behind the mark is indexed too, for the journal may have lost it, and ledgers of
    which only the logs tell are known again; a damaged log is added to them.
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
    # Without a mark the logs that were kept count as far as they are good.
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
