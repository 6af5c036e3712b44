"""Failpoints: a process that kills or stops itself before, amid or after a persist step.

The product has no failpoints. Its seams are what is wrapped here: `FailDisk` around the `Disk`,
`FailIndex` around the `LedgerIndex`, `FailStore` around the `MetadataStore`; launcher.py starts a
production process with them. A step is named by what is changed and how, `mark.rename`; the phases
are `before`, `half` (writes only: the first half of the bytes is in the file) and `after`.

A process is armed while it runs, or before it starts, through a small file that it maps: an unarmed
step costs one look at a byte. Just before it dies it notes the hit in `failpoints.hits`; every
process notes each step that it takes, armed or not, in `failpoints.seen`, so that a step which is
new in the product is noticed.
"""

from __future__ import annotations

import mmap
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bookie.disk import Disk, File
from bookie.index import IndexRun, LedgerIndex
from metadata.ledger_codec import decode_ledger_metadata
from metadata.ledger_record import LedgerState
from protocol.entry import Buffer

ARM_BYTES = 128
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Failpoint(NamedTuple):
    """`action` happens at the `count`-th time that `step` comes to `phase`."""

    step: str
    phase: str
    count: int = 1
    action: str = "kill"

    def __str__(self) -> str:
        return f"{self.step}:{self.phase}:{self.action}@{self.count}"

    @property
    def name(self) -> str:
        """Without count and action."""
        return f"{self.step}:{self.phase}"


def _phases(kind: str, operations: str) -> list[str]:
    return [
        f"{kind}.{operation}:{phase}"
        for operation in operations.split()
        for phase in ("before", *(["half"] if operation == "write" else []), "after")
    ]


BOOKIE_FAILPOINTS = (
    *_phases("journal", "write datasync rename sync_directory unlink"),
    *_phases("spare", "create write datasync rename sync_directory"),
    *_phases("log", "create write datasync truncate sync_directory"),
    *_phases("state", "create write datasync sync_directory unlink"),
    *_phases("mark", "create write datasync rename sync_directory"),
    *_phases("index", "put flush"),
    *_phases("registration", "create"),
    *_phases("folder", "sync_directory"),
)
"""Of a bookie that has served before. `index` is RocksDB, which does not go through the disk."""
START_STEPS = frozenset(
    {"registration.create", "broker.create", "folder.sync_directory"}
    | {"spare.create", "journal.unlink"}
)
"""A process takes these while it starts, or soon after: the journal file it begins anew needs a
spare, and the ones that its last life left are too short to become one."""
PROVOKED_BY = {
    "owner.create": "broker",
    "ledger.recover": "broker",
    "ledger.ensemble": "bookie",
}
"""A broker takes these when a process of that kind dies."""
FIRST_START_FAILPOINTS = (
    *_phases("folder", "make"),
    *_phases("cookie", "create write datasync rename sync_directory"),
    *_phases("cookie-record", "create"),
)
"""Of a bookie's first start only."""
AFTER_A_CRASH = frozenset({"log.unlink", "mark.unlink", "cookie.unlink"})
"""Steps that clear away what a crash left; they come when a crash hit the right moment before."""
BROKER_FAILPOINTS = (
    *_phases("ledger-id", "create delete"),
    *_phases("ledger", "create ensemble recover close delete"),
    *_phases("partition", "put"),
    *_phases("owner", "create"),
    *_phases("broker", "create"),
)
"""Every change of metadata that a broker makes by itself."""
RARE_BROKER_STEPS = frozenset(
    {"topic.create", "namespace.create", "subscription.create", "partition.create"}
    | {"owner.delete", "broker.delete", "owner.put", "broker.put", "ledger-id.put"}
    | {"registration.delete", "subscription.put", "layout.create", "ledger-folder.delete"}
)
"""Of calls that a person makes and of a graceful end: tests of their own."""


class Armed:
    """The failpoint of one process, as the file `path` says; made when it does not exist."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._map = _mapped(path)
        self._notes = [_append_only(folder / f"failpoints.{what}") for what in ("hits", "seen")]
        self._seen: set[str] = set()
        self._text = b""
        self._left = 0
        self._failpoint: Failpoint | None = None

    def reaches(self, step: str, phase: str) -> bool:
        """Whether this is the armed moment."""
        if step not in self._seen:
            self._seen.add(step)
            os.write(self._notes[1], f"{step}\n".encode())
        if not self._map[0]:
            return False
        text = self._map[:]
        if text != self._text:
            self._text = text
            self._failpoint = _decoded(text)
            self._left = self._failpoint.count if self._failpoint else 0
        failpoint = self._failpoint
        if failpoint is None or (failpoint.step, failpoint.phase) != (step, phase):
            return False
        self._left -= 1
        return self._left == 0

    def fire(self) -> None:
        """Note the hit, then end or stop this process."""
        failpoint = self._failpoint
        assert failpoint is not None
        self._map[0] = 0
        os.write(self._notes[0], f"{failpoint}\n".encode())
        os.kill(os.getpid(), SIGNALS[failpoint.action])

    def pass_by(self, step: str, phase: str) -> None:
        """Die here if this is the moment."""
        if self.reaches(step, phase):
            self.fire()


class Trigger:
    """The other side of `Armed`: arms a process, or the next one of that name."""

    def __init__(self, path: Path) -> None:
        self._map = _mapped(path)

    def arm(self, failpoint: Failpoint) -> None:
        text = str(failpoint).encode()
        self._map[0] = 0
        self._map[1:] = text.ljust(ARM_BYTES - 1, b"\0")
        self._map[0] = 1

    def disarm(self) -> None:
        self._map[0] = 0

    @property
    def is_armed(self) -> bool:
        """Whether it has not fired yet."""
        return bool(self._map[0])


def _mapped(path: Path) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_size < ARM_BYTES:
            os.ftruncate(fd, ARM_BYTES)
        return mmap.mmap(fd, ARM_BYTES)
    finally:
        os.close(fd)


def _append_only(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _decoded(text: bytes) -> Failpoint | None:
    step, phase, rest = text[1:].rstrip(b"\0").decode().split(":")
    action, _, count = rest.partition("@")
    return Failpoint(step, phase, int(count), action)


def hits(folder: Path) -> Counter[str]:
    """How often a process died at each failpoint, by `step:phase`."""
    noted = (line.rpartition(":") for line in lines(folder / "failpoints.hits"))
    return Counter(name for name, _, action in noted if action.startswith("kill"))


def seen(folder: Path) -> set[str]:
    """Every step that any process took."""
    return set(lines(folder / "failpoints.seen"))


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class FailFile:
    """A file whose writes and syncs are steps."""

    def __init__(self, file: File, kind: str, armed: Armed) -> None:
        self._file = file
        self._armed = armed
        self.kind = kind
        self.size, self.pread, self.preallocate = file.size, file.pread, file.preallocate
        self.close = file.close

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
    """A disk whose changes are steps."""

    def __init__(self, disk: Disk, armed: Armed) -> None:
        self._disk = disk
        self._armed = armed
        self._open: dict[str, FailFile] = {}
        self._changed: dict[str, str] = {}
        """The kind of file last made, renamed or removed in a folder: what its sync is for."""
        self.list_directory, self.exists = disk.list_directory, disk.exists
        self.free_bytes, self.lock = disk.free_bytes, disk.lock

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
    """What kind of a bookie's files lies at `path`."""
    name = os.path.basename(path)
    if name.startswith("VERSION"):
        return "cookie"
    if name.startswith("journal."):
        return "spare" if name == "journal.spare" else "mark"
    suffix = name.rpartition(".")[2]
    assert suffix in ("journal", "log", "state"), f"{path}: what file is this?"
    return suffix


class FailIndex:
    """An index whose changes are steps."""

    def __init__(self, index: LedgerIndex, armed: Armed) -> None:
        self._index = index
        self._armed = armed
        self.find, self.runs, self.close = index.find, index.runs, index.close

    @property
    def covered(self) -> tuple[int, int] | None:
        return self._index.covered

    def put(self, runs: Iterable[IndexRun], covered: tuple[int, int]) -> None:
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
    """A metadata store whose changes are steps. Everything else is the store's own."""

    def __init__(self, store: Any, armed: Armed) -> None:
        self._store = store
        self._armed = armed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        step = f"{record_kind(path)}.create"
        self._armed.pass_by(step, "before")
        made: str = await self._store.create(path, value, ephemeral=ephemeral, sequence=sequence)
        self._armed.pass_by(step, "after")
        return made

    async def put(self, path: str, value: bytes, version: int) -> int:
        kind = record_kind(path)
        step = f"ledger.{ledger_change(value)}" if kind == "ledger" else f"{kind}.put"
        self._armed.pass_by(step, "before")
        new: int = await self._store.put(path, value, version)
        self._armed.pass_by(step, "after")
        return new

    async def delete(self, path: str, version: int = -1) -> None:
        step = f"{record_kind(path)}.delete"
        self._armed.pass_by(step, "before")
        await self._store.delete(path, version)
        self._armed.pass_by(step, "after")


_OCTAVO_KINDS = {"owners": "owner", "brokers": "broker", "namespaces": "namespace"}
_LEDGER_KINDS = {
    "available": "registration",
    "cookies": "cookie-record",
    "idgen": "ledger-id",
    "idgen-long": "ledger-id",
    "INSTANCEID": "layout",
    "LAYOUT": "layout",
}


def record_kind(path: str) -> str:
    """What kind of record lies at `path`."""
    root, *rest = path[1:].split("/")
    if root == "ledgers":
        other = "ledger" if rest[-1].startswith("L") else "ledger-folder"
        return _LEDGER_KINDS.get(rest[0], other)
    if rest[0] == "topics":
        for part, kind in (("partitions", "partition"), ("subscriptions", "subscription")):
            if part in rest[3:]:
                return kind
        return "topic"
    return _OCTAVO_KINDS[rest[0]]


def ledger_change(value: bytes) -> str:
    """How a put changes a ledger's record: by what it says now."""
    match decode_ledger_metadata(0, value).state:
        case LedgerState.OPEN:
            return "ensemble"
        case LedgerState.IN_RECOVERY:
            return "recover"
        case LedgerState.CLOSED:
            return "close"
