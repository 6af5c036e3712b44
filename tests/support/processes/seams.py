"""The seams of a process, wrapped so that each change through them is a step (failpoints.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from octavo.bookie.disk.files import Disk, File
from octavo.bookie.index.index import IndexedExtent, LedgerIndex
from octavo.metadata.ledger_codec import decode_ledger_metadata
from octavo.metadata.ledger_record import LedgerState
from octavo.protocol.entry import Buffer
from tests.support.processes.failpoints import Armed


class FailFile:
    def __init__(self, file: File, kind: str, armed: Armed) -> None:
        self._file = file
        self._armed = armed
        self.kind = kind
        self.size, self.pread, self.preallocate = file.size, file.pread, file.preallocate
        self.close, self.uncache = file.close, file.uncache

    @property
    def path(self) -> str:
        return self._file.path

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        step = f"{self.kind}.write"
        self._armed.pass_by(step, "before")
        if self._armed.reaches(step, "half"):
            data = b"".join(buffers)
            self._file.pwritev([data[: len(data) // 2]], offset)
            self._armed.fire()
        written = self._file.pwritev(buffers, offset)
        self._armed.pass_by(step, "after")
        return written

    def truncate(self, length: int) -> None:
        self._step("truncate", lambda: self._file.truncate(length))

    def datasync(self) -> None:
        self._step("datasync", self._file.datasync)

    def _step(self, operation: str, call: Callable[[], None]) -> None:
        self._armed.pass_by(f"{self.kind}.{operation}", "before")
        call()
        self._armed.pass_by(f"{self.kind}.{operation}", "after")


class FailDisk:
    def __init__(self, disk: Disk, armed: Armed) -> None:
        self._disk = disk
        self._armed = armed
        self._open: dict[str, FailFile] = {}
        self._changed: dict[str, str] = {}
        """The kind of file last made, renamed or removed in each folder: the reason of its
        next sync."""
        self.list_directory, self.exists = disk.list_directory, disk.exists
        self.free_bytes, self.lock = disk.free_bytes, disk.lock
        self.remove_folder, self.descriptors_max = disk.remove_folder, disk.descriptors_max

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        kind = kind_of(path)
        if create:
            self._armed.pass_by(f"{kind}.create", "before")
            self._note(path, kind)
        file = FailFile(self._disk.open(path, create=create, write=write), kind, self._armed)
        if create:
            self._armed.pass_by(f"{kind}.create", "after")
        if create or write:
            self._open[path] = file
        return file

    def make_directory(self, path: str) -> None:
        if not self._disk.exists(path):
            self._armed.pass_by("folder.make", "before")
        self._disk.make_directory(path)
        self._armed.pass_by("folder.make", "after")

    def rename(self, old: str, new: str) -> None:
        kind = kind_of(new)
        self._armed.pass_by(f"{kind}.rename", "before")
        self._disk.rename(old, new)
        self._note(new, kind)
        if (file := self._open.pop(old, None)) is not None:
            file.kind = kind
            self._open[new] = file
        self._armed.pass_by(f"{kind}.rename", "after")

    def unlink(self, path: str) -> None:
        kind = kind_of(path)
        self._armed.pass_by(f"{kind}.unlink", "before")
        self._disk.unlink(path)
        self._note(path, kind)
        self._open.pop(path, None)
        self._armed.pass_by(f"{kind}.unlink", "after")

    def sync_directory(self, path: str) -> None:
        kind = self._changed.get(path.rstrip("/"), "folder")
        self._armed.pass_by(f"{kind}.sync_directory", "before")
        self._disk.sync_directory(path)
        self._armed.pass_by(f"{kind}.sync_directory", "after")

    def _note(self, path: str, kind: str) -> None:
        self._changed[os.path.dirname(path)] = kind


def kind_of(path: str) -> str:
    name = os.path.basename(path)
    if name.startswith("VERSION"):
        return "cookie"
    if name.startswith("journal."):
        return "spare" if name == "journal.spare" else "mark"
    for whole in ("limbo", "high-water"):
        if name.startswith(whole):
            return whole
    if name.startswith("index"):
        return "index-folder"
    suffix = name.rpartition(".")[2]
    assert suffix in ("journal", "log", "state"), f"{path}: what file is this?"
    return suffix


class FailIndex:
    def __init__(self, index: LedgerIndex, armed: Armed) -> None:
        self._index = index
        self._armed = armed
        self.find, self.runs, self.all_runs = index.find, index.runs, index.all_runs
        self.close = index.close

    @property
    def covered(self) -> tuple[int, int] | None:
        return self._index.covered

    def put(self, runs: Iterable[IndexedExtent], covered: tuple[int, int]) -> None:
        self._step("put", lambda: self._index.put(runs, covered))

    def delete_ledger(self, ledger_id: int) -> None:
        self._step("delete", lambda: self._index.delete_ledger(ledger_id))

    def flush(self) -> None:
        self._step("flush", self._index.flush)

    def _step(self, operation: str, call: Callable[[], None]) -> None:
        self._armed.pass_by(f"index.{operation}", "before")
        call()
        self._armed.pass_by(f"index.{operation}", "after")


class FailStore:
    def __init__(self, store: Any, armed: Armed) -> None:
        self._store = store
        self._armed = armed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(
        self,
        path: str,
        value: bytes,
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        beside: str | None = None,
    ) -> str:
        step = f"{record_kind(path)}.create"
        self._armed.pass_by(step, "before")
        made: str = await self._store.create(
            path, value, ephemeral=ephemeral, sequence=sequence, beside=beside
        )
        self._armed.pass_by(step, "after")
        return made

    async def put(self, path: str, value: bytes, version: int, *, beside: str | None = None) -> int:
        kind = record_kind(path)
        step = f"ledger.{ledger_change(value)}" if kind == "ledger" else f"{kind}.put"
        self._armed.pass_by(step, "before")
        new: int = await self._store.put(path, value, version, beside=beside)
        self._armed.pass_by(step, "after")
        return new

    async def delete(self, path: str, version: int = -1, *, beside: str | None = None) -> None:
        step = f"{record_kind(path)}.delete"
        self._armed.pass_by(step, "before")
        await self._store.delete(path, version, beside=beside)
        self._armed.pass_by(step, "after")


OCTAVO_KINDS = {
    "owners": "owner",
    "brokers": "broker",
    "namespaces": "namespace",
    "changes": "changes",
    "clock": "clock",
    "standings": "standing",
    "secret": "secret",
    "high-water": "high-water-record",
    "incarnations": "incarnation",
    "offloads": "offload",
    "schemas": "schema",
    "shares": "share",
    "transactions": "bulk-load",
    "security": "security",
}
_LEDGER_KINDS = {
    "available": "registration",
    "cookies": "cookie-record",
    "idgen": "ledger-id",
    "idgen-long": "ledger-id",
    "INSTANCEID": "layout",
    "LAYOUT": "layout",
    "underreplication": "layout",
}


def record_kind(path: str) -> str:
    root, *rest = path[1:].split("/")
    if root == "ledgers":
        other = "ledger" if rest[-1].startswith("L") else "ledger-folder"
        return _LEDGER_KINDS.get(rest[0], other)
    if rest[0] == "topics":
        for part, kind in (("partitions", "partition"), ("subscriptions", "subscription")):
            if part in rest[3:]:
                return kind
        return "topic"
    return OCTAVO_KINDS[rest[0]]


def ledger_change(value: bytes) -> str:
    match decode_ledger_metadata(0, value).state:
        case LedgerState.OPEN:
            return "ensemble"
        case LedgerState.IN_RECOVERY:
            return "recover"
        case LedgerState.CLOSED:
            return "close"
