"""A bookie registered under what is no host name was never tried again, also when put right.

The background task that keeps its connection ended with a UnicodeError that nobody saw; whoever
waited for the connection got an error that is not the ledger's. Found by reading.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from octavo.ledger.errors import BookieUnavailable
from octavo.metadata.bookies import BookieInfo, BookieRegistry
from tests.support.cluster import running_cluster


class Listener:
    def __init__(self) -> None:
        self.up: asyncio.Event = asyncio.Event()

    def bookie_up(self, bookie_id: str) -> None:
        self.up.set()

    def bookie_down(self, bookie_id: str, error: BookieUnavailable) -> None:
        pass

    def bookie_writable(self, bookie_id: str) -> None:
        pass


@pytest.mark.parametrize(("host", "port"), [("a" * 70 + ".example", 3181), ("127.0.0.1", 70_000)])
async def test_it_is_tried_until_its_record_is_right(tmp_path: Path, host: str, port: int) -> None:
    async with running_cluster(tmp_path, bookies=1) as cluster:
        registry = BookieRegistry(cluster.store)
        node = cluster.nodes["b1"]
        await registry.unregister("b1")
        await registry.register(BookieInfo("b1", host, port, False, {}))
        client = await cluster.client()
        bookie = client.bookies.get("b1")
        with pytest.raises(BookieUnavailable):
            await bookie.connected()
        listener = Listener()
        bookie.listen(listener)
        await asyncio.sleep(0.1)
        await registry.unregister("b1")
        await registry.register(BookieInfo("b1", node.host, node.port, False, {}))
        async with asyncio.timeout(10):
            await listener.up.wait()
