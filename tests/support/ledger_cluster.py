"""Bookies, metadata and ledger clients in one process, for tests of the ledger client."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from octavo.bookie.disk.files import Disk
from octavo.bookie.node import BookieNode
from octavo.ledger.client import LedgerClient
from octavo.ledger.options import LedgerOptions
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.store import MetadataStore
from tests.support.raw_bookie import config_in, new_node, open_metadata

QUICK: dict[str, Any] = {
    "add_timeout_s": 2.0,
    "read_timeout_s": 2.0,
    "connect_timeout_s": 2.0,
    "stall_timeout_s": 1.0,
    "retry_failed_bookie_ms": 100.0,
    "speculative_read_ms": 100.0,
    "suspect_ms": 1_000.0,
}
"""Deadlines for tests: short, but long enough for a busy machine."""


class Cluster:
    """Bookies named b1, b2, … over one embedded store."""

    def __init__(self, folder: Path, store: MetadataStore) -> None:
        self.folder = folder
        self.store = store
        self.nodes: dict[str, BookieNode] = {}
        self._clients: list[LedgerClient] = []

    async def start_bookie(self, name: str, *, disk: Disk | None = None, **how: Any) -> BookieNode:
        """Start a bookie; again with the same name, it finds its folder as it left it."""
        config = config_in(self.folder / name, bookie_id=name, **how)
        node = new_node(config, self.store, disk)
        await node.start()
        self.nodes[name] = node
        return node

    async def stop_bookie(self, name: str) -> None:
        await self.nodes.pop(name).stop()

    async def client(self, seed: int = 1, **options: Any) -> LedgerClient:
        client = LedgerClient(
            self.store,
            rng=random.Random(seed),
            options=LedgerOptions(**{**QUICK, **options}),
            clock=lambda: 1_700_000_000_000,
        )
        await client.start()
        self._clients.append(client)
        return client

    async def drop_client(self, client: LedgerClient) -> None:
        self._clients.remove(client)
        await client.close()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for name in tuple(self.nodes):
            await self.stop_bookie(name)


@contextlib.asynccontextmanager
async def running_cluster(folder: Path, bookies: int = 3, **how: Any) -> AsyncIterator[Cluster]:
    """`bookies` bookies, stopped at the end together with every client."""
    async with open_metadata(folder) as store:
        cluster = Cluster(folder, store)
        try:
            for number in range(1, bookies + 1):
                await cluster.start_bookie(f"b{number}", **how)
            yield cluster
        finally:
            await cluster.close()


def payload_of(entry_id: int, size: int = 100) -> bytes:
    """Bytes that tell their entry."""
    return b"%d:" % entry_id + b"x" * (size - len(b"%d:" % entry_id))


async def add_many(writer: LedgerWriter, count: int, size: int = 100) -> None:
    """Add `count` entries, pipelined, and wait for the last; fails on any error."""
    last: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    first = writer.last_add_pushed + 1
    errors: list[Any] = []
    order: list[int] = []

    def done(entry_id: int, error: Exception | None) -> None:
        order.append(entry_id)
        if error is not None:
            errors.append(error)
        if entry_id == first + count - 1:
            last.set_result(None)

    for entry_id in range(first, first + count):
        assert writer.add(payload_of(entry_id, size), done) == entry_id
    async with asyncio.timeout(30):
        await last
    assert not errors, errors[:3]
    assert order == list(range(first, first + count))
