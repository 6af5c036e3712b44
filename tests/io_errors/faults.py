"""The n-th call to the disk fails: with EIO or ENOSPC, once, for a while, or from then on."""

from __future__ import annotations

import random
from dataclasses import dataclass

from octavo.bookie.disk.files import DiskError, DiskFull, SyncFailed
from octavo.protocol.codes import BookieIOError
from tests.sim.disk import SimDisk
from tests.sim.disk_faults import DiskFaults, Rule
from tests.sim.inode import Inode

TAKES_SPACE = frozenset(
    {"create", "make_directory", "lock", "pwritev", "preallocate", "rename", "open_index"}
    | {"index_put", "index_delete", "index_flush", "datasync", "sync_directory"}
)
"""Calls that a full disk may refuse; a sync too, where the file system reserves late."""
_SYNCS = frozenset({"datasync", "sync_directory"})
_WHILE_CALLS = 40


@dataclass(frozen=True)
class Fault:
    at: int
    """The number of the call, from 1 on; for ENOSPC, among calls that take space."""
    error: str
    calls: int = 1

    def __str__(self) -> str:
        return f"{self.error} from call {self.at} on, {self.calls} calls"


FOR_EVER = 10**9
KINDS = (("EIO", 1), ("EIO", FOR_EVER), ("ENOSPC", 1), ("ENOSPC", _WHILE_CALLS))
"""A hiccup, a dead disk, a full disk for a moment and for a while."""


class FailingCalls(DiskFaults):
    def __init__(self, fault: Fault | None) -> None:
        super().__init__()
        self.rules = [Rule("counting", None)]  # type: ignore[arg-type]
        self._fault = fault
        self._rng = random.Random(str(fault))
        self.calls = 0
        self.space_calls = 0
        self.failed: list[str] = []
        self.sync_failed = False
        self._failing = False

    @property
    def is_full_for_a_while(self) -> bool:
        """Whether space comes back; the failing calls may spread over many tries."""
        return self._fault is not None and self._fault.calls == _WHILE_CALLS

    def heal(self) -> None:
        self._fault, self._failing = None, False

    def before(self, disk: SimDisk, call: str, path: str) -> None:
        self.calls += 1
        self.space_calls += call in TAKES_SPACE
        fault = self._fault
        if fault is None:
            return
        full = fault.error == "ENOSPC"
        number = self.space_calls if full else self.calls
        self._failing = fault.at <= number < fault.at + fault.calls and (
            not full or call in TAKES_SPACE - (_SYNCS if fault.calls > 1 else frozenset())
        )
        if not self._failing:
            return
        self.failed.append(f"{call} {path}")
        if call == "exists":  # asks the system for the file's status: an error is raised
            raise DiskError(f"stat {path}: input/output error")
        if call != "pwritev" and call not in _SYNCS:
            raise self._error(call, path)

    def _error(self, call: str, path: str) -> Exception:
        if self._fault is not None and self._fault.error == "ENOSPC":
            return DiskFull(f"{call} {path}: no space left; free some space")
        kind = BookieIOError if call.startswith(("index", "open_index")) else DiskError
        return kind(f"{call} {path}: input/output error")

    def after(self, disk: SimDisk, call: str, path: str) -> None:
        pass

    def writing(
        self, disk: SimDisk, path: str, inode: Inode, offset: int, data: bytes
    ) -> list[tuple[int, bytes]]:
        if self._failing:
            arrived = len(data)
            if self._fault is not None and self._fault.error == "ENOSPC":
                arrived = min(arrived, max(0, inode.size - offset))
            disk.store(inode, offset, data[: self._rng.randint(0, arrived)])
            raise self._error("pwritev", path)
        return [(offset, data)]

    def syncing(self, disk: SimDisk, path: str, inode: Inode | None) -> None:
        if self._failing:
            self.sync_failed = True
            if inode is not None:
                inode.drop(self._rng, disk.note)
            call = "fsync of folder" if inode is None else "fdatasync"
            raise SyncFailed(f"{call} {path}: input/output error")
