"""Opens what a bookie left on its disks: mark, ledger state, entry logs, index. Blocking.

The journal is replayed by storage.py on top of what is opened here. An index that is missing or
older than the mark is rebuilt from the entry logs, from where it is known to be complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from bookie.damage import DamagedRead, DamageKind
from bookie.disk import Disk
from bookie.entry_log import EntryLogs
from bookie.index import INDEX_FOLDER as INDEX_FOLDER
from bookie.index import LedgerIndex, RocksIndex
from bookie.index_rebuild import fill, make_anew, settle
from bookie.ledger_state import LedgerStates, StateFile
from bookie.mark import Mark, read_mark

_log = structlog.get_logger()


def make_folders(disk: Disk, directories: Sequence[str]) -> None:
    """Make every folder. The caller holds their locks when processes could meet there.

    They are synced: a process that died here may have left names that are in the page cache alone,
    and what is built on them must not outlive them in a power failure.
    """
    for directory in directories:
        disk.make_directory(directory)
        disk.sync_directory(directory)


def load_states(
    disk: Disk, directories: Sequence[str], states: LedgerStates
) -> tuple[Mark | None, StateFile]:
    """Read the mark and fill `states`. Raises `LedgerStateDamaged`."""
    mark = read_mark(disk, directories)
    state_file = StateFile(disk, directories[0])
    position = None if mark is None else (mark.state_id, mark.state_offset)
    for ledger_id, state in state_file.load(position):
        states.restore(ledger_id, state)
    return mark, state_file


def open_index(
    disk: Disk,
    directory: str,
    logs: EntryLogs,
    mark: Mark | None,
    states: LedgerStates,
    opener: Callable[[str], LedgerIndex] | None,
) -> LedgerIndex:
    """Open the index and bring it up to what the mark says. Raises `BookieIOError`.

    One that RocksDB finds damaged is made anew, if the logs can vouch for all of it.
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
    if covered is None and logs.log_ids:
        fill(index, logs, states, (0, 0), wanted)
    elif covered is not None and covered < wanted:
        fill(index, logs, states, covered, wanted)
    return index
