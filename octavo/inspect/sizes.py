"""How many bytes each ledger has on a bookie's disks. Blocks; only reads."""

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
    ledger_id: int
    stored_bytes: int = 0
    """Bytes of frames in all entry logs, including copies that newer copies replaced."""
    logs: int = 0
    entries: int = 0
    """Entries in the index; entries only in the journal are not counted yet."""
    live_bytes: int = 0
    """Bytes of the extents that the index names. A partly replaced extent counts as a whole."""


def ledger_sizes(
    disk: Disk, folders: BookieFolders, on_log: Callable[[str, int], None]
) -> list[LedgerSize]:
    """Return every ledger, the largest first. `on_log` is called after each log with its size.

    Raises `BookieIOError` if the index cannot be read.
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
    for extent in _indexed(folders):
        one = size_of(extent.ledger_id)
        one.entries += max(0, extent.last - extent.first + 1)
        if seen.get(extent.ledger_id) != (extent.log_id, extent.offset):
            one.live_bytes += extent.length
        seen[extent.ledger_id] = (extent.log_id, extent.offset)
    return sorted(found.values(), key=lambda one: (-one.stored_bytes, one.ledger_id))


def log_paths(disk: Disk, folders: BookieFolders) -> list[str]:
    found = [
        (log_id, f"{folder}/{name}")
        for folder in folders.ledgers
        for name in disk.list_directory(folder)
        if (log_id := log_id_of(name)) is not None
    ]
    return [path for _, path in sorted(found)]


def sums_of(file: File, log_id: int) -> dict[int, int]:
    """Return the bytes of frames by ledger: from a sealed log's map, else extent by extent."""
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
