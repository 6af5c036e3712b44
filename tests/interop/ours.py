"""Our bookie as a separate process, as users start it, and the store that both bookies share."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from octavo.metadata.opening import open_store
from octavo.metadata.store import MetadataStore
from octavo.standalone.ports import free_port
from tests.interop.processes import Process

OCTAVO = Path(sys.executable).with_name("octavo")


def quiet(log: Path) -> None:
    """Let our parts in this process log to a file: the screen belongs to the checks."""
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(log.open("w")))


@contextlib.asynccontextmanager
async def store_at(zookeeper_port: int) -> AsyncIterator[MetadataStore]:
    store = open_store(f"zk://127.0.0.1:{zookeeper_port}/")
    await store.start()
    try:
        yield store
    finally:
        await store.close()


class OurBookie:
    rack = "/dc1/rack1"

    def __init__(self, folder: Path, zookeeper_port: int, *words: str) -> None:
        self.folder = folder
        self._words = words
        self.port = free_port()
        self.journal = folder / "our-journal"
        self.ledgers = folder / "our-ledgers"
        self._zookeeper_port = zookeeper_port
        self._process: Process | None = None

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [str(OCTAVO), "bookie", "--port", str(self.port), "--rack", self.rack]
        command += ["--metadata", f"zk://127.0.0.1:{self._zookeeper_port}/"]
        command += ["--journal", str(self.journal), "--ledgers", str(self.ledgers)]
        command += self._words
        self._process = Process("octavo-bookie", command, self.folder)
        self._process.wait_until_serving(self.port)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
