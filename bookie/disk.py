"""The seam between the bookie and a disk: the only module of this package that touches files.

`Disk` and `File` are small synchronous interfaces. Callers reach their blocking calls through
`loop.run_in_executor`, so that a simulated loop and a simulated disk run the production code
above them. `RealDisk` is the operating system's. An `fsync` that fails is reported as
`SyncFailed` and is never retried: the kernel may have dropped the dirty pages, so the only
honest answer left is to stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from protocol.codes import OctavoError, Scope
from protocol.entry import Buffer


class DiskError(OctavoError):
    """A disk call failed. The message names call, path and the system's reason."""

    name = "disk-error"


class DiskFull(DiskError):
    """No space left. Nothing that was acked is touched by it."""

    name = "disk-full"
    retryable = True


class SyncFailed(DiskError):
    """`fsync` failed: what was written since the last one may be lost. The process must stop."""

    name = "sync-failed"
    scope = Scope.PROCESS


class File(Protocol):
    """An open file. Writes are not durable before `datasync` has returned."""

    @property
    def path(self) -> str:
        """Where it lies."""

    def size(self) -> int:
        """Bytes, preallocated ones included."""

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all of `buffers` one after another from `offset`; return the bytes written."""

    def preallocate(self, length: int) -> None:
        """Reserve `length` bytes, so that later syncs need not change the file's size."""

    def truncate(self, length: int) -> None:
        """Cut or zero-extend to `length` bytes."""

    def datasync(self) -> None:
        """Make all that was written durable. Raises `SyncFailed`."""

    def close(self) -> None:
        """Give the file back. Does not sync."""


class Disk(Protocol):
    """A folder tree. Paths are absolute strings."""

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        """Raises `FileNotFoundError`; with `create`, `FileExistsError` when it exists already."""

    def list_directory(self, path: str) -> list[str]:
        """Names, sorted; empty when the folder does not exist."""

    def make_directory(self, path: str) -> None:
        """With its parents; fine when it exists. Durable on return."""

    def exists(self, path: str) -> bool:
        """Whether a file or folder lies there."""

    def rename(self, old: str, new: str) -> None:
        """Atomic; durable only after `sync_directory`."""

    def unlink(self, path: str) -> None:
        """Remove a file; durable only after `sync_directory`."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in the folder durable. Raises `SyncFailed`."""

    def free_bytes(self, path: str) -> tuple[int, int]:
        """(free, total) bytes of the file system that holds `path`."""

    def lock(self, path: str) -> File:
        """Take an exclusive lock file, held until closed. Raises `DiskError` naming the holder."""
