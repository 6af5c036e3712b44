"""The seam between the bookie and a disk: the only module of this package that touches files.

Callers use `loop.run_in_executor`, so that a simulated disk can replace it. A failed `fsync` is
never retried: the kernel may have dropped the dirty pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from octavo.protocol.codes import OctavoError, Scope
from octavo.protocol.entry import Buffer

P = ParamSpec("P")
R = TypeVar("R")


class DiskError(OctavoError):
    name = "disk-error"


class DiskFull(DiskError):
    name = "disk-full"
    retryable = True


class NoDescriptorLeft(DiskError):
    name = "no-descriptor-left"
    retryable = True


class SyncFailed(DiskError):
    """Writes since the last sync may be lost. The process must stop."""

    name = "sync-failed"
    scope = Scope.PROCESS


class File(Protocol):
    """Writes are not durable before `datasync` has returned."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def pread(self, length: int, offset: int) -> bytes:
        """Return fewer bytes only at the end of the file."""

    def uncache(self, offset: int, length: int) -> None:
        """Let the next `pread` read from the device."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int: ...

    def preallocate(self, length: int) -> None:
        """Reserve room, so that later syncs need not change the file's size."""

    def truncate(self, length: int) -> None: ...

    def datasync(self) -> None:
        """Make the file's data durable. Raises `SyncFailed`."""

    def close(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False, write: bool = False) -> File: ...

    def list_directory(self, path: str) -> list[str]:
        """Return the names, sorted; empty without the folder."""

    def make_directory(self, path: str) -> None:
        """Make the folder with its parents. Durable on return."""

    def exists(self, path: str) -> bool: ...

    def rename(self, old: str, new: str) -> None:
        """Rename atomically; durable only after `sync_directory`."""

    def unlink(self, path: str) -> None:
        """Remove a file; durable only after `sync_directory`."""

    def remove_folder(self, path: str) -> None:
        """Remove the folder with the files in it. Durable like `unlink`."""

    def sync_directory(self, path: str) -> None:
        """Make the folder's names durable. Raises `SyncFailed`."""

    def free_bytes(self, path: str) -> tuple[int, int]: ...

    def descriptors_max(self) -> int: ...

    def lock(self, path: str) -> File:
        """Lock a file until it is closed. Raises `DiskError`, which names the holder."""


_IOV_MAX = 1024
"""Buffers of a `pwritev` (POSIX promises 16, Linux and macOS 1024)."""


def _failure(call: str, path: str, error: OSError) -> DiskError:
    what = f"{call} {path}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{what}; free some space on this file system")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return NoDescriptorLeft(f"{what}; raise the limit of open files (ulimit -n)")
    return DiskError(what)


class RealFile:
    __slots__ = ("_fd", "_on_sync", "_path")

    def __init__(self, fd: int, path: str, on_sync: OnSync | None = None) -> None:
        self._fd = fd
        self._path = path
        self._on_sync = on_sync

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise _failure("fstat", self._path, error) from error

    def pread(self, length: int, offset: int) -> bytes:
        try:
            data = os.pread(self._fd, length, offset)
            while 0 < len(data) < length:
                more = os.pread(self._fd, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _failure("pread", self._path, error) from error
        return data

    def uncache(self, offset: int, length: int) -> None:
        if _fadvise is not None:
            with contextlib.suppress(OSError):  # it is only advice to the system
                _fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        start = offset
        try:
            for first in range(0, len(buffers), _IOV_MAX):
                offset += self._write_slice(buffers[first : first + _IOV_MAX], offset)
        except OSError as error:
            raise _failure("pwritev", self._path, error) from error
        return offset - start

    def _write_slice(self, buffers: Sequence[Buffer], offset: int) -> int:
        total = sum(map(len, buffers))
        done = os.pwritev(self._fd, buffers, offset)
        while done < total:  # a short write: rare, so the copy does not matter
            rest = memoryview(b"".join(buffers))[done:]
            written = os.pwritev(self._fd, [rest], offset + done)
            if written == 0:
                raise OSError(errno.EIO, "wrote 0 bytes")
            done += written
        return done

    def preallocate(self, length: int) -> None:
        try:
            os.posix_fallocate(self._fd, 0, length)
        except OSError as error:
            raise _failure("posix_fallocate", self._path, error) from error

    def truncate(self, length: int) -> None:
        try:
            os.ftruncate(self._fd, length)
        except OSError as error:
            raise _failure("ftruncate", self._path, error) from error

    def datasync(self) -> None:
        began = time.monotonic()
        try:
            _datasync(self._fd)
        except OSError as error:
            raise SyncFailed(f"fdatasync {self._path}: {error.strerror or error}") from error
        if self._on_sync is not None:
            self._on_sync(self._path, time.monotonic() - began)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


OnSync = Callable[[str, float], None]

_datasync = getattr(os, "fdatasync", os.fsync)
"""macOS has no `fdatasync`."""
_fadvise = getattr(os, "posix_fadvise", None)
"""macOS has no `posix_fadvise`."""


class RealDisk:
    on_sync: OnSync | None = None

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        flags = os.O_CLOEXEC | (os.O_RDWR if write or create else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        try:
            return RealFile(os.open(path, flags, 0o640), path, self.on_sync)
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            raise _failure("open", path, error) from error

    def list_directory(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failure("listdir", path, error) from error

    def make_directory(self, path: str) -> None:
        missing: list[str] = []
        folder = os.path.abspath(path)
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        try:
            for folder in reversed(missing):
                os.makedirs(folder, exist_ok=True)
                self.sync_directory(os.path.dirname(folder))
        except OSError as error:
            raise _failure("mkdir", path, error) from error

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def rename(self, old: str, new: str) -> None:
        try:
            os.replace(old, new)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _failure("rename", f"{old} to {new}", error) from error

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _failure("unlink", path, error) from error

    def remove_folder(self, path: str) -> None:
        try:
            for name in self.list_directory(path):
                os.unlink(f"{path}/{name}")
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(path)
        except OSError as error:
            raise _failure("rmdir", path, error) from error

    def sync_directory(self, path: str) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _failure("open", path, error) from error
        try:
            os.fsync(fd)
        except OSError as error:
            raise SyncFailed(f"fsync of folder {path}: {error.strerror or error}") from error
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> tuple[int, int]:
        try:
            found = os.statvfs(path)
        except OSError as error:
            raise _failure("statvfs", path, error) from error
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def descriptors_max(self) -> int:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return sys.maxsize if soft == resource.RLIM_INFINITY else soft

    def lock(self, path: str) -> File:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise _failure("open", path, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BlockingIOError as error:
            holder = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise DiskError(
                f"lock {path}: held by process {holder}; stop it, or use another folder"
            ) from error
        except OSError as error:
            os.close(fd)
            raise _failure("lock", path, error) from error
        return RealFile(fd, path)


def draft_of(path: str) -> str:
    return f"{path}.new"


def replace_file(disk: Disk, path: str, data: Buffer) -> None:
    """Replace a small file's content; durable on return; blocking.

    A crash leaves the old content or the new, and perhaps a draft, which the next call removes.
    """
    draft = draft_of(path)
    if disk.exists(draft):
        disk.unlink(draft)
    file = disk.open(draft, create=True)
    try:
        file.pwritev([data], 0)
        file.datasync()
    finally:
        file.close()
    disk.rename(draft, path)
    disk.sync_directory(path.rpartition("/")[0])


def lock_holder(path: str) -> str | None:
    """Name the process that holds the lock, if any, for tools that only look."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
    except OSError:
        return None
    finally:
        os.close(fd)
    return None


class Blocking:
    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    async def __call__(self, function: Callable[P, R], *args: P.args, **_: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(
            self.executor, partial(function, *args)
        )


def numbered_name(number: int, suffix: str) -> str:
    return f"{number:016x}{suffix}"


def number_in(name: str, suffix: str) -> int | None:
    stem, dot, rest = name.partition(".")
    if dot + rest != suffix or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None
