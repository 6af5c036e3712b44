"""The simulated disk for storages with real threads: it adds a lock, a hook and an end.

A call first goes through the hook, which may wait or raise. Then it runs alone on the simulated
disk. `after_crash` returns the disk that a power failure leaves; this disk then fails every call,
for threads that are still inside one.
"""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from octavo.bookie.disk.files import DiskError, SyncFailed
from octavo.bookie.index.index import IndexedExtent
from tests.sim.disk import SimDisk
from tests.sim.disk_handle import SimFile, SimHandle
from tests.sim.index import KeptIndex, SimIndex


def _of_file(call: str) -> Any:
    real = getattr(SimFile, call)

    def on_disk(self: MemoryFile, *args: Any) -> Any:
        disk: Any = self._disk
        disk.before(call, self._path)
        with disk.mutex:
            return real(self, *args)

    return on_disk


class MemoryFile(SimFile):
    __slots__ = ()
    pread = _of_file("pread")
    pwritev = _of_file("pwritev")
    preallocate = _of_file("preallocate")
    truncate = _of_file("truncate")
    datasync = _of_file("datasync")


def _of_disk(call: str) -> Any:
    real = getattr(SimHandle, call)

    def on_disk(self: MemoryDisk, path: str, *args: Any, **how: Any) -> Any:
        self.before(call, path)
        with self.mutex:
            return real(self, path, *args, **how)

    return on_disk


class LockedIndex(SimIndex):
    """An open index whose changes are atomic under a power failure."""

    def __init__(self, kept: KeptIndex, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        with disk.mutex:
            super().__init__(kept, disk, path)

    def put(self, runs: Iterable[IndexedExtent], covered: tuple[int, int]) -> None:
        with self._disk.mutex:
            super().put(runs, covered)

    def delete_ledger(self, ledger_id: int) -> None:
        with self._disk.mutex:
            super().delete_ledger(ledger_id)

    def flush(self) -> None:
        with self._disk.mutex:
            super().flush()


class MemoryDisk(SimDisk):
    file_type = MemoryFile

    def __init__(self, capacity: int = 2**40) -> None:
        super().__init__(capacity)
        self.mutex = threading.RLock()
        self.sync_delay_s = 0.0
        self.hook: Callable[[str, str], object] = lambda call, path: None
        """Called before each call with its name and path; may raise."""

    open = _of_disk("open")
    rename = _of_disk("rename")
    unlink = _of_disk("unlink")
    sync_directory = _of_disk("sync_directory")

    def open_index(self, path: str) -> SimIndex:
        """Open an index of which `after_crash` sees only whole changes."""
        self.enter("open_index", path)
        return LockedIndex(self.indexes.kept.setdefault(path, KeptIndex()), self, path)

    def list_directory(self, path: str) -> list[str]:
        with self.mutex:
            return super().list_directory(path)

    def before(self, call: str, path: str) -> None:
        """Run the hook outside of the lock, so that other threads continue."""
        if self.dead:
            raise DiskError(f"{call} {path}: the machine is off")
        self.hook(call, path)
        if call == "datasync" and self.sync_delay_s:
            time.sleep(self.sync_delay_s)

    def enter(self, call: str, path: str) -> None:
        """Do nothing: `before` has run the hook."""

    def fail_syncs(self) -> None:
        def hook(call: str, path: str) -> None:
            if call == "datasync":
                raise SyncFailed(f"fdatasync {path}: input/output error")

        self.hook = hook

    def after_crash(self, rng: random.Random | None = None) -> MemoryDisk:
        """Return the disk after a power failure. Without `rng`, it has only synced data."""
        with self.mutex:
            self.dead = True
            after = MemoryDisk(self.capacity)
            after.folders = dict(self.folders)
            kept = (self.durable_names, self.unsynced_names, self.indexes)
            after.durable_names, after.unsynced_names, after.indexes = copy.deepcopy(kept)
        after.crash(rng)
        return after
