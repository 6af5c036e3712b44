"""How many bytes each ledger has on a bookie's disks, from its folders. Blocking, reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from octavo.bookie.disk.files import Disk, File
from octavo.bookie.entrylog.format import log_id_of
from octavo.bookie.entrylog.walk import ledgers_map
from octavo.inspect.entry_log import EntryLogWalk
from octavo.inspect.folders import BookieFolders
from octavo.inspect.index import IndexReader, Stored
from octavo.inspect.line import BODY_BYTES_MAX, Wish


@dataclass(slots=True)
class LedgerSize:
    """One ledger's."""

    ledger_id: int
    stored_bytes: int = 0
    """Of frames in all entry logs, also of copies that newer ones replaced."""
    logs: int = 0
    """How many entry logs hold some of it."""
    entries: int = 0
    """By the index; those that are in the journal alone are not in it yet."""
    live_bytes: int = 0
    """Of the extents that the index still names. One that was cut counts as a whole."""


def ledger_sizes(
    disk: Disk, folders: BookieFolders, on_log: Callable[[str, int], None]
) -> list[LedgerSize]:
    """Every ledger, the longest first. `on_log` is told of each log and its bytes when it is done.

    Raises `BookieIOError` when the index cannot be read.
    """
    found: dict[int, LedgerSize] = {}

    def size_of(ledger_id: int) -> LedgerSize:
        return found.setdefault(ledger_id, LedgerSize(ledger_id))

    for path in log_paths(disk, folders):
        file = disk.open(path)
        try:
            for ledger_id, size in sums_of(file, log_id_of(path.rpartition("/")[2]) or 0).items():
                one = size_of(ledger_id)
                one.stored_bytes += size
                one.logs += 1
            on_log(path, file.size())
        finally:
            file.close()
    seen: dict[int, tuple[int, int]] = {}
    for run in _indexed(folders):
        one = size_of(run.ledger_id)
        one.entries += max(0, run.last - run.first + 1)
        if seen.get(run.ledger_id) != (run.log_id, run.offset):
            one.live_bytes += run.length
        seen[run.ledger_id] = (run.log_id, run.offset)
    return sorted(found.values(), key=lambda one: (-one.stored_bytes, one.ledger_id))


def log_paths(disk: Disk, folders: BookieFolders) -> list[str]:
    """The entry logs of all folders, oldest first."""
    found = [
        (log_id, f"{folder}/{name}")
        for folder in folders.ledgers
        for name in disk.list_directory(folder)
        if (log_id := log_id_of(name)) is not None
    ]
    return [path for _, path in sorted(found)]


def sums_of(file: File, log_id: int) -> dict[int, int]:
    """Bytes of frames by ledger: from the map when the log is sealed, else run by run."""
    sealed = ledgers_map(file.pread, file.size(), BODY_BYTES_MAX)
    if sealed is not None and sealed[1] is not None:
        return sealed[1]
    walk = EntryLogWalk(file, Wish(ledger=-1), log_id=log_id, vouched=None)
    for _ in walk.lines():
        pass
    return walk.sums


def _indexed(folders: BookieFolders) -> Iterator[Stored]:
    if folders.index is None:
        return
    for one in IndexReader(folders.index).records():
        if isinstance(one, Stored):
            yield one
