"""Faults of a simulated disk. A nemesis arms them, the disk fires them.

A rule fires at the calls that it names (none: all), on paths that contain `path`, after `skip` of
them, `times` times.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from octavo.bookie.disk.files import DiskError, DiskFull, SyncFailed
from octavo.protocol.codes import BookieIOError
from tests.sim.inode import SECTOR, Inode

if TYPE_CHECKING:
    from tests.sim.disk import SimDisk

CHANGES = frozenset(
    {"pwritev", "preallocate", "truncate", "create", "rename", "unlink", "index_put"}
)
SYNCS = frozenset({"datasync", "sync_directory", "index_flush"})


class Damage(NamedTuple):
    """Bytes that count as safe, or will, and differ from what was written."""

    kind: str
    disk: str
    path: str
    start: int = 0
    end: int = 0


@dataclass(slots=True)
class Rule:
    kind: str
    rng: random.Random
    calls: frozenset[str] = frozenset()
    path: str = ""
    skip: int = 0
    times: int = 1

    def fires(self, call: str, path: str) -> bool:
        if (self.calls and call not in self.calls) or self.path not in path:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class DiskFaults:
    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def clear(self) -> None:
        self.rules.clear()

    # Arming

    def fail_sync(self, rng: random.Random, path: str = "", skip: int = 0, times: int = 1) -> None:
        """`fsync` returns EIO once. The pages count as clean then, and a part of them is lost."""
        self.rules.append(Rule("sync EIO", rng, SYNCS, path, skip, times))

    def fail_read(self, rng: random.Random, path: str = "", skip: int = 0, times: int = 1) -> None:
        calls = frozenset({"pread", "index_find", "index_runs"})
        self.rules.append(Rule("read EIO", rng, calls, path, skip, times))

    def fail_write(self, rng: random.Random, path: str = "", skip: int = 0, times: int = 1) -> None:
        """A write returns EIO, before or after a part of it went through."""
        self.rules.append(Rule("write EIO", rng, frozenset({"pwritev"}), path, skip, times))

    def fill(self, rng: random.Random, path: str = "", skip: int = 0, times: int = 1) -> None:
        """No space left: at a preallocation, a creation, or in the middle of a write."""
        calls = frozenset({"pwritev", "preallocate", "create", "index_flush"})
        self.rules.append(Rule("ENOSPC", rng, calls, path, skip, times))

    def lose_write(self, rng: random.Random, path: str = "", skip: int = 0) -> None:
        """The firmware lies: a sector of a write keeps its old content, and its sync succeeds."""
        self.rules.append(Rule("stale sector", rng, frozenset({"pwritev"}), path, skip))

    def misdirect_write(self, rng: random.Random, path: str = "", skip: int = 0) -> None:
        self.rules.append(Rule("misdirected write", rng, frozenset({"pwritev"}), path, skip))

    def crash_before(self, rng: random.Random, path: str = "", skip: int = 0) -> None:
        self.rules.append(Rule("crash before", rng, CHANGES | SYNCS, path, skip))

    def crash_after(self, rng: random.Random, path: str = "", skip: int = 0) -> None:
        """The process dies after a write or sync happened, before its caller knows."""
        self.rules.append(Rule("crash after", rng, CHANGES | SYNCS, path, skip))

    def crash_in_sync(self, rng: random.Random, path: str = "", skip: int = 0) -> None:
        """The process dies in a sync, while the earlier writes are on their way."""
        self.rules.append(Rule("crash before", rng, SYNCS, path, skip))

    # Firing

    def before(self, disk: SimDisk, call: str, path: str) -> None:
        """Apply faults that hit a call before it starts."""
        index = call.startswith("index")
        for rule in self.rules[:]:
            kind = rule.kind
            if kind == "crash before":
                if self._fires(disk, rule, call, path):
                    disk.die()
            elif kind == "read EIO":
                if self._fires(disk, rule, call, path):
                    raise _eio(call, path, index)
            elif kind == "sync EIO":
                if index and self._fires(disk, rule, call, path):
                    raise _eio(call, path, index)
            elif kind == "ENOSPC" and call != "pwritev" and self._fires(disk, rule, call, path):
                raise DiskFull(f"{call} {path}: no space left; free some space")

    def after(self, disk: SimDisk, call: str, path: str) -> None:
        """Apply faults that hit a call after its work."""
        for rule in self.rules[:]:
            if rule.kind == "crash after" and self._fires(disk, rule, call, path):
                disk.die()

    def writing(
        self, disk: SimDisk, path: str, inode: Inode, offset: int, data: bytes
    ) -> list[tuple[int, bytes]]:
        parts = [(offset, data)]
        for rule in self.rules[:]:
            kind = rule.kind
            if kind not in _IN_WRITE or not data or not self._fires(disk, rule, "pwritev", path):
                continue
            if kind == "ENOSPC":
                room = min(len(data), max(0, inode.size - offset))
                disk.store(inode, offset, data[: rule.rng.randint(0, room)])
                raise DiskFull(f"pwritev {path}: no space left; free some space")
            if kind == "write EIO":
                disk.store(inode, offset, data[: rule.rng.randint(0, len(data))])
                raise DiskError(f"pwritev {path}: input/output error")
            parts = _misled(disk, rule, path, inode, offset, data)
        return parts

    def syncing(self, disk: SimDisk, path: str, inode: Inode | None) -> None:
        """Apply faults to a sync. `inode` is None for a folder's."""
        call = "datasync" if inode is not None else "sync_directory"
        for rule in self.rules[:]:
            if rule.kind == "sync EIO" and self._fires(disk, rule, call, path):
                disk.failed_sync = path
                if inode is not None:
                    inode.drop(rule.rng, disk.note)
                raise SyncFailed(f"{call} {path}: input/output error")

    def _fires(self, disk: SimDisk, rule: Rule, call: str, path: str) -> bool:
        if not rule.fires(call, path):
            return False
        disk.note(f"disk: {rule.kind}")
        if rule.times <= 0:
            self.rules.remove(rule)
        return True


_IN_WRITE = frozenset({"ENOSPC", "write EIO", "stale sector", "misdirected write"})


def _eio(call: str, path: str, index: bool) -> Exception:
    what = f"{call} {path}: input/output error"
    return BookieIOError(what) if index else DiskError(what)


def _misled(
    disk: SimDisk, rule: Rule, path: str, inode: Inode, offset: int, data: bytes
) -> list[tuple[int, bytes]]:
    """Lose or misdirect one sector of this write, silently."""
    end = offset + len(data)
    sector = rule.rng.randrange(offset // SECTOR, (end - 1) // SECTOR + 1)
    start, stop = max(offset, sector * SECTOR), min(end, (sector + 1) * SECTOR)
    part = data[start - offset : stop - offset]
    parts = [(offset, data[: start - offset]), (stop, data[stop - offset :])]
    disk.damaged(Damage(rule.kind, disk.name, path, start, stop))
    if rule.kind == "misdirected write":
        elsewhere = rule.rng.randrange(max(1, inode.size // SECTOR)) * SECTOR + start % SECTOR
        parts.append((elsewhere, part))
        disk.damaged(Damage(rule.kind, disk.name, path, elsewhere, elsewhere + len(part)))
    return parts
