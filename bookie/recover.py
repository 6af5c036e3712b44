"""Opens what a bookie left on its disks: mark, ledger state, entry logs, index. Blocking.

The journal is replayed by storage.py on top of what is opened here. An index that is missing or
older than the mark is rebuilt from the entry logs, from where it is known to be complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from bookie.disk import Disk
from bookie.entry_log import EntryLogs
from bookie.index import IndexRun, LedgerIndex, RocksIndex
from bookie.ledger_state import LedgerStates, StateFile
from bookie.mark import Mark, read_mark

INDEX_FOLDER = "index"
_REBUILD_BATCH = 1000

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
    directory: str,
    logs: EntryLogs,
    mark: Mark | None,
    states: LedgerStates,
    opener: Callable[[str], LedgerIndex] | None,
) -> LedgerIndex:
    """Open the index and bring it up to what the mark says. Raises `BookieIOError`."""
    index = (opener or RocksIndex)(f"{directory}/{INDEX_FOLDER}")
    wanted = (mark.log_id, mark.log_offset) if mark is not None else (0, 0)
    covered = index.covered
    if covered is None and logs.log_ids:
        _rebuild(index, logs, (0, 0), wanted, states)
    elif covered is not None and covered < wanted:
        _rebuild(index, logs, covered, wanted, states)
    return index


def _rebuild(
    index: LedgerIndex,
    logs: EntryLogs,
    covered: tuple[int, int],
    wanted: tuple[int, int],
    states: LedgerStates,
) -> None:
    """Index every record of the logs from `covered` on, oldest first.

    Raises `BookieIOError` when a record cannot be found: its entries would count as absent.
    """
    _log.info("index_rebuild_started", from_log=covered[0], from_offset=covered[1])
    runs: list[IndexRun] = []
    count = 0
    for log_id in logs.log_ids:
        if log_id < covered[0]:
            continue
        start = covered[1] if log_id == covered[0] else 0
        end_min = wanted[1] if log_id == wanted[0] else 0
        for record, location in logs.scan_all(log_id, start, end_min):
            state = states.get(record.ledger_id)
            if state is None or state.deleted:
                continue
            runs.append(IndexRun(record.ledger_id, record.first_entry, record.last_entry, location))
            count += 1
            if len(runs) >= _REBUILD_BATCH:
                index.put(runs, covered)
                runs = []
    index.put(runs, logs.position)
    index.flush()
    _log.info("index_rebuilt", runs=count)
