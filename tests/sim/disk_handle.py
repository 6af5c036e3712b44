"""A process's view of a simulated disk: open files and calls on folders.

Every call goes through `SimHandle.enter`, where a crashed process ends, time is spent and faults
fire. A changing call ends in `leave`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from octavo.bookie.disk.files import Disk, DiskError, DiskFull, File
from octavo.protocol.entry import Buffer
from tests.sim.index import SimIndex
from tests.sim.inode import Inode
from tests.sim.process import ProcessCrashed

if TYPE_CHECKING:
    from tests.sim.disk import SimDisk


class NameOp(NamedTuple):
    name: str
    inode: Inode | None
    old: str = ""


class SimFile:
    __slots__ = ("_disk", "_handle", "_inode", "_path", "_write", "closed")

    def __init__(self, handle: SimHandle, path: str, inode: Inode, write: bool) -> None:
        self._handle = handle
        self._disk = handle.disk
        self._path = path
        self._inode = inode
        self._write = write
        self.closed = False

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._inode.size

    def pread(self, length: int, offset: int) -> bytes:
        assert not self.closed, f"{self._path} is read behind its close"
        self._handle.enter("pread", self._path)
        return self._inode.pread(length, offset)

    def uncache(self, offset: int, length: int) -> None: ...

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        self._changing("pwritev")
        disk, inode = self._disk, self._inode
        parts = [(offset, data)]
        if disk.faults.rules:
            parts = disk.faults.writing(disk, self._path, inode, offset, data)
        for start, part in parts:
            end = start + len(part)
            end_max = inode.size + max(0, disk.capacity - disk.used)
            if end > inode.size and end > end_max:
                disk.store(inode, start, part[: max(0, end_max - start)])
                disk.note("disk: full")
                raise DiskFull(f"pwritev {self._path}: no space left; free some space")
            disk.store(inode, start, part)
        self._handle.leave("pwritev", self._path)
        return len(data)

    def preallocate(self, length: int) -> None:
        self._changing("preallocate")
        more = length - self._inode.size
        if more > 0:
            if self._disk.used + more > self._disk.capacity:
                self._disk.note("disk: full")
                raise DiskFull(f"preallocate {self._path}: no space left; free some space")
            self._resize(length)
        self._handle.leave("preallocate", self._path)

    def truncate(self, length: int) -> None:
        self._changing("truncate")
        if length != self._inode.size:
            self._resize(length)
        self._handle.leave("truncate", self._path)

    def _resize(self, length: int) -> None:
        self._disk.used += length - self._inode.size
        self._inode.resize(length)

    def _changing(self, call: str) -> None:
        self._handle.enter(call, self._path)
        if not self._write:
            raise DiskError(f"{call} {self._path}: not open for writing")

    def datasync(self) -> None:
        self._handle.enter("datasync", self._path)
        self._disk.syncs += 1
        if self._disk.faults.rules:
            self._disk.faults.syncing(self._disk, self._path, self._inode)
        self._inode.sync()
        self._handle.leave("datasync", self._path)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self._disk.locked.get(self._path) is self:
                del self._disk.locked[self._path]


class SimHandle:
    file_type: type[SimFile] = SimFile

    def __init__(self, disk: SimDisk, owner: str) -> None:
        self.disk = disk
        self.owner = owner
        self.dead = False
        self.spend: Callable[[float], None] = disk.owe

    def enter(self, call: str, path: str) -> None:
        if self.dead:
            raise ProcessCrashed(f"{call} {path}: {self.owner} crashed")
        disk = self.disk
        disk.calls += 1
        if disk.cost_s:
            self.spend(disk.cost_s.get(call, 0.0))
        if disk.faults.rules:
            disk.faults.before(disk, call, path)

    def leave(self, call: str, path: str) -> None:
        if self.disk.faults.rules:
            self.disk.faults.after(self.disk, call, path)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        self.enter("create" if create else "open", path)
        disk = self.disk
        if create:
            if path in disk.names:
                raise FileExistsError(path)
            if folder_of(path) not in disk.folders:
                raise FileNotFoundError(path)
            disk.change_name(NameOp(path, Inode()))
            self.leave("create", path)
        inode = disk.names.get(path)
        if inode is None:
            raise FileNotFoundError(path)
        return self.file_type(self, path, inode, write or create)

    def list_directory(self, path: str) -> list[str]:
        self.enter("list_directory", path)
        return self.disk.list_names(path)

    def make_directory(self, path: str) -> None:
        self.enter("make_directory", path)
        parts = path.strip("/").split("/")
        for n in range(len(parts)):
            self.disk.folders["/" + "/".join(parts[: n + 1])] = None

    def exists(self, path: str) -> bool:
        self.enter("exists", path)
        return path in self.disk.names or path in self.disk.folders

    def rename(self, old: str, new: str) -> None:
        self.enter("rename", old)
        inode = self.disk.names.get(old)
        if inode is None:
            raise FileNotFoundError(old)
        self.disk.change_name(NameOp(new, inode, old))
        self.leave("rename", old)

    def unlink(self, path: str) -> None:
        self.enter("unlink", path)
        if path not in self.disk.names:
            raise FileNotFoundError(path)
        self.disk.change_name(NameOp(path, None))
        self.leave("unlink", path)

    def remove_folder(self, path: str) -> None:
        for name in self.list_directory(path):
            self.unlink(f"{path}/{name}")

    def sync_directory(self, path: str) -> None:
        self.enter("sync_directory", path)
        disk = self.disk
        if disk.faults.rules:
            disk.faults.syncing(disk, path, None)
        for op in disk.unsynced_names.pop(path, ()):
            apply_name(disk.durable_names, op)
        self.leave("sync_directory", path)

    def free_bytes(self, path: str) -> tuple[int, int]:
        self.enter("free_bytes", path)
        return max(0, self.disk.capacity - self.disk.used), self.disk.capacity

    def descriptors_max(self) -> int:
        return 1024

    def lock(self, path: str) -> File:
        self.enter("lock", path)
        disk = self.disk
        if path in disk.locked:
            raise DiskError(f"lock {path}: held by process 1; stop it")
        if path not in disk.names:
            disk.change_name(NameOp(path, Inode()))
        file = disk.locked[path] = self.file_type(self, path, disk.names[path], True)
        return file

    def open_index(self, path: str) -> SimIndex:
        self.enter("open_index", path)
        return self.disk.indexes.open(self, path)


def apply_name(names: dict[str, Inode], op: NameOp) -> None:
    if op.old and names.get(op.old) is op.inode:
        del names[op.old]
    if op.inode is None:
        names.pop(op.name, None)
    else:
        names[op.name] = op.inode


def folder_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _is_a_disk(disk: SimHandle) -> Disk:
    return disk
