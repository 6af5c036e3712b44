"""Our bookie, as a whole, on the loop of whoever asks; and the store that both bookies share."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from bookie.config import BookieConfig
from bookie.disk import RealDisk
from bookie.node import BookieNode
from metadata.opening import open_store
from metadata.store import MetadataStore


def quiet(log: Path) -> None:
    """Let our parts log to a file: the screen belongs to the checks."""
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(log.open("w")))


def clock() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@contextlib.asynccontextmanager
async def store_at(zookeeper_port: int) -> AsyncIterator[MetadataStore]:
    """The metadata store on Apache's ZooKeeper."""
    store = open_store(f"zk://127.0.0.1:{zookeeper_port}/")
    await store.start()
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def bookie(store: MetadataStore, folder: Path, rack: str = "") -> AsyncIterator[BookieNode]:
    """A bookie of ours, serving and registered while the block runs."""
    config = BookieConfig(
        port=0,
        rack=rack,
        journal_directories=(f"{folder}/journal",),
        ledger_directories=(f"{folder}/ledgers",),
        disk_free_bytes_min=1,
        disk_free_bytes_resume=1,
        disk_free_bytes_reserve=1,
    )
    node = BookieNode(config, store, disk=RealDisk(), rng=random.Random(1), clock=clock)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
