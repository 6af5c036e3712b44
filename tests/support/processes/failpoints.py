"""Failpoints: a process kills or stops itself before, during or after a persist step. seams.py
wraps the product's seams. A step is its object and its change, such as `mark.rename`; its
phases are `before`, `half` (writes only: the first half of the bytes is in the file) and
`after`. A small mapped file arms a process. A process notes its hit in `failpoints.hits` just
before it dies, and each step in `failpoints.seen`, so that the product's new steps are
noticed."""

from __future__ import annotations

import mmap
import os
import signal
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ARM_BYTES = 128
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Failpoint(NamedTuple):
    """`action` happens at the `count`-th time that `step` comes to `phase`."""

    step: str
    phase: str
    count: int = 1  # type: ignore[assignment]
    action: str = "kill"

    def __str__(self) -> str:
        return f"{self.step}:{self.phase}:{self.action}@{self.count}"

    @property
    def name(self) -> str:
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
    *_phases("log", "create write datasync truncate sync_directory unlink"),
    *_phases("state", "create write datasync sync_directory unlink"),
    *_phases("mark", "create write datasync rename sync_directory"),
    *_phases("index", "put flush delete"),
    *_phases("high-water", "create write datasync rename sync_directory"),
    *_phases("high-water-record", "put"),
    *_phases("registration", "create"),
    *_phases("folder", "sync_directory"),
)
"""Steps of a bookie that has served before. `index` is RocksDB, which bypasses the disk seam."""
START_STEPS = frozenset(
    {"registration.create", "broker.create", "folder.sync_directory"}
    | {"spare.create", "journal.unlink", "high-water-record.put"}
    | {f"high-water.{step}" for step in ("create", "write", "datasync", "rename", "sync_directory")}
)
"""Steps of a starting process. The new journal file needs a spare, and the last life's files
are too short to become spares."""
PROVOKED_BY = {"owner.create": "broker", "ledger.recover": "broker", "ledger.ensemble": "bookie"}
"""Steps that a broker takes when a process of that kind dies."""
FIRST_START_FAILPOINTS = (
    *_phases("folder", "make"),
    *_phases("cookie", "create write datasync rename sync_directory"),
    *_phases("cookie-record", "create"),
    *_phases("high-water-record", "create"),
)
AFTER_A_CRASH = frozenset({"mark.unlink", "cookie.unlink", "high-water.unlink"})
"""Steps that clear away the traces of a crash; they need a crash at the right moment before."""
BROKER_FAILPOINTS = (
    *_phases("ledger-id", "create delete"),
    *_phases("ledger", "create ensemble recover close delete"),
    *_phases("partition", "put"),
    *_phases("owner", "create"),
    *_phases("broker", "create"),
)
"""Every metadata change that a broker makes by itself."""
RARE_BROKER_STEPS = frozenset(
    {"topic.create", "namespace.create", "subscription.create", "partition.create"}
    | {"owner.delete", "broker.delete", "owner.put", "broker.put", "ledger-id.put"}
    | {"registration.delete", "registration.put", "subscription.put", "layout.create"}
    | {"ledger-folder.delete", "transaction", "clock.create", "clock.put"}
    | {"secret.create"}
    | {"changes.create", "changes.put", "changes.delete"}
    | {"standing.create", "standing.put", "standing.delete"}
)
"""Steps of administrative calls, of an orderly end, or inside the embedded store. They have
separate tests."""


class Armed:
    """The failpoint of a process, stored in the file `path`, which is created when missing."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._map = _mapped(path)
        self._notes = [_append_only(folder / f"failpoints.{what}") for what in ("hits", "seen")]
        self._seen: set[str] = set()
        self._text = b""
        self._left = 0
        self._failpoint: Failpoint | None = None

    def reaches(self, step: str, phase: str) -> bool:
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
        failpoint = self._failpoint
        assert failpoint is not None
        self._map[0] = 0
        os.write(self._notes[0], f"{failpoint}\n".encode())
        os.kill(os.getpid(), SIGNALS[failpoint.action])

    def pass_by(self, step: str, phase: str) -> None:
        if self.reaches(step, phase):
            self.fire()


class Trigger:
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
    noted = (line.rpartition(":") for line in lines(folder / "failpoints.hits"))
    return Counter(name for name, _, action in noted if action.startswith("kill"))


def seen(folder: Path) -> set[str]:
    return set(lines(folder / "failpoints.seen"))


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
