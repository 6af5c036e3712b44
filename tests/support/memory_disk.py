"""A disk in memory that forgets what was not synced, fills up, fails and dawdles on demand.

`crash()` gives the disk as a power failure leaves it: synced bytes for certain, of the rest any
subset of 512-byte sectors that the given `random.Random` picks (none without one); names only as
far as their folder was synced.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from octavo.bookie.disk.files import Disk, DiskError, DiskFull, File, SyncFailed
from octavo.protocol.entry import Buffer

SECTOR = 512


class Inode:
    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.data = bytearray(durable)
        self.unsynced: list[tuple[int, bytes]] = []
        self.cut_to: int | None = None

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.unsynced.clear()

    def after_crash(self, rng: random.Random | None) -> Inode:
        data = bytearray(self.durable)
        for offset, written in self.unsynced if rng is not None else ():
            for start in range(0, len(written), SECTOR):
                if rng is not None and rng.random() < 0.5:
                    part = written[start : start + SECTOR]
                    if len(data) < offset + start + len(part):
                        data.extend(bytes(offset + start + len(part) - len(data)))
                    data[offset + start : offset + start + len(part)] = part
        return Inode(bytes(data))


class MemoryFile:
    def __init__(self, disk: MemoryDisk, path: str, inode: Inode, write: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._write = write
        self.closed = False

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return len(self._inode.data)

    def pread(self, length: int, offset: int) -> bytes:
        self._disk.before("pread", self._path)
        with self._disk.mutex:
            return bytes(self._inode.data[offset : offset + length])

    def uncache(self, offset: int, length: int) -> None:
        pass

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        self._disk.before("pwritev", self._path)
        if not self._write:
            raise DiskError(f"pwritev {self._path}: not open for writing")
        with self._disk.mutex:
            self._grow(offset + len(data))
            self._inode.data[offset : offset + len(data)] = data
            self._inode.unsynced.append((offset, data))
            self._disk.bytes_written += len(data)
        return len(data)

    def preallocate(self, length: int) -> None:
        self._disk.before("preallocate", self._path)
        with self._disk.mutex:
            self._grow(length)

    def _grow(self, length: int) -> None:
        more = length - len(self._inode.data)
        if more > 0:
            if self._disk.used() + more > self._disk.capacity:
                raise DiskFull(f"write {self._path}: no space left; free some space")
            self._inode.data.extend(bytes(more))

    def truncate(self, length: int) -> None:
        with self._disk.mutex:
            self._grow(length)
            del self._inode.data[length:]

    def datasync(self) -> None:
        self._disk.before("datasync", self._path)
        with self._disk.mutex:
            self._inode.sync()
            self._disk.syncs += 1

    def close(self) -> None:
        if self._path in self._disk.locked and self._disk.locked[self._path] is self:
            del self._disk.locked[self._path]
        self.closed = True


class MemoryDisk:
    def __init__(self, capacity: int = 2**40) -> None:
        self.mutex = threading.RLock()
        self.capacity = capacity
        self.names: dict[str, Inode] = {}
        self.durable_names: dict[str, Inode] = {}
        self.folders = {"/"}
        self.locked: dict[str, MemoryFile] = {}
        self.bytes_written = 0
        self.syncs = 0
        self.sync_delay_s = 0.0
        self.hook: Callable[[str, str], None] = lambda call, path: None
        """Called before each call with its name and path; may raise."""
        self.dead = False

    def before(self, call: str, path: str) -> None:
        if self.dead:
            raise DiskError(f"{call} {path}: the machine is off")
        self.hook(call, path)
        if call == "datasync" and self.sync_delay_s:
            time.sleep(self.sync_delay_s)

    def fail_syncs(self) -> None:
        def hook(call: str, path: str) -> None:
            if call == "datasync":
                raise SyncFailed(f"fdatasync {path}: input/output error")

        self.hook = hook

    def crash(self, rng: random.Random | None = None) -> MemoryDisk:
        """The disk after a power failure. This one is off from now on."""
        with self.mutex:
            self.dead = True
            after = MemoryDisk(self.capacity)
            after.folders = set(self.folders)
            new = {inode: inode.after_crash(rng) for inode in self.durable_names.values()}
            after.names = {path: new[inode] for path, inode in self.durable_names.items()}
            after.durable_names = dict(after.names)
            return after

    def used(self) -> int:
        return sum(len(inode.data) for inode in set(self.names.values()))

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        self.before("open", path)
        with self.mutex:
            if create:
                if path in self.names:
                    raise FileExistsError(path)
                if path.rpartition("/")[0] not in self.folders:
                    raise FileNotFoundError(path)
                self.names[path] = Inode()
            if path not in self.names:
                raise FileNotFoundError(path)
            return MemoryFile(self, path, self.names[path], write or create)

    def list_directory(self, path: str) -> list[str]:
        with self.mutex:
            found = {*self.names, *self.folders}
            start = path.rstrip("/") + "/"
            return sorted({p[len(start) :].split("/")[0] for p in found if p.startswith(start)})

    def make_directory(self, path: str) -> None:
        parts = path.strip("/").split("/")
        self.folders |= {"/" + "/".join(parts[: n + 1]) for n in range(len(parts))}

    def exists(self, path: str) -> bool:
        return path in self.names or path in self.folders

    def rename(self, old: str, new: str) -> None:
        self.before("rename", old)
        with self.mutex:
            if old not in self.names:
                raise FileNotFoundError(old)
            self.names[new] = self.names.pop(old)

    def unlink(self, path: str) -> None:
        self.before("unlink", path)
        with self.mutex:
            if path not in self.names:
                raise FileNotFoundError(path)
            del self.names[path]

    def remove_folder(self, path: str) -> None:
        for name in self.list_directory(path):
            self.unlink(f"{path}/{name}")
        self.folders.discard(path)

    def sync_directory(self, path: str) -> None:
        self.before("sync_directory", path)
        with self.mutex:
            for known in [p for p in self.durable_names if p.rpartition("/")[0] == path]:
                del self.durable_names[known]
            for name, inode in self.names.items():
                if name.rpartition("/")[0] == path:
                    self.durable_names[name] = inode

    def free_bytes(self, path: str) -> tuple[int, int]:
        return max(0, self.capacity - self.used()), self.capacity

    def lock(self, path: str) -> File:
        with self.mutex:
            if path in self.locked:
                raise DiskError(f"lock {path}: held by process 1; stop it")
            self.names.setdefault(path, Inode())
            file = self.locked[path] = MemoryFile(self, path, self.names[path], True)
            return file


def _is_a_disk(disk: MemoryDisk) -> Disk:
    return disk
