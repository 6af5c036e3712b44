"""A cluster for trials: a ZooKeeper, and numbered bookies of both kinds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from tests.interop.apache import ApacheBookie, Java, Shell, Zookeeper
from tests.interop.ours import OurBookie
from tests.interop.processes import Process

Bookie: TypeAlias = ApacheBookie | OurBookie


@dataclass(slots=True)
class Grounds:
    folder: Path
    java: Java
    zookeeper: Zookeeper
    short: bool
    bookies: list[Bookie] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    _made: int = 0

    @property
    def shell(self) -> Shell:
        conf = self.folder / "shell.conf"
        conf.write_text(
            f"metadataServiceUri=zk+hierarchical://127.0.0.1:{self.zookeeper.port}/ledgers\n"
            f"journalDirectories={self.folder}/shell/journal\n"
            f"ledgerDirectories={self.folder}/shell/ledgers\n"
            "allowLoopback=true\nadvertisedAddress=127.0.0.1\nbookiePort=3181\n"
        )
        return Shell(self.java, conf)

    def add_octavo(self, *words: str) -> OurBookie:
        bookie = OurBookie(self._next_folder("octavo"), self.zookeeper.port, *words)
        self.bookies.append(bookie)
        bookie.start()
        return bookie

    def add_apache(self, more: str = "") -> ApacheBookie:
        folder = self._next_folder("apache")
        bookie = ApacheBookie(self.java, folder, self.zookeeper.port, more)
        self.bookies.append(bookie)
        bookie.start()
        return bookie

    def start(self, name: str, command: list[str]) -> Process:
        """Start another process, with output in `<name>.log`; it is killed at the end."""
        process = Process(name, command, self.folder)
        self.processes.append(process)
        return process

    def _next_folder(self, kind: str) -> Path:
        self._made += 1
        folder = self.folder / f"{kind}-{self._made}"
        folder.mkdir()
        return folder


@dataclass(frozen=True, slots=True)
class Ask:
    lib: Path
    """The folder with BookKeeper's jars."""
    folder: Path
    short: bool

    @contextlib.contextmanager
    def grounds(self, *, laid_out: bool = True) -> Iterator[Grounds]:
        """Start a ZooKeeper with BookKeeper's tree, laid out by Apache's shell."""
        java = Java(self.lib, self.folder)
        found = Grounds(self.folder, java, Zookeeper(java), self.short)
        try:
            found.zookeeper.start()
            if laid_out:
                found.shell("initnewcluster")
            yield found
        finally:
            for one in (*reversed(found.processes), *reversed(found.bookies)):
                one.kill()
            found.zookeeper.kill()
