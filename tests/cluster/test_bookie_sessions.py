"""A bookie and its metadata store: lost sessions, cut connections, both kinds of store."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.disk.files import RealDisk
from octavo.bookie.ledgers.cookies import CookieRefused
from octavo.bookie.node import BookieNode, BookieStartTimeout
from octavo.metadata.bookies import BookieInfo, BookieRegistry
from octavo.metadata.store import MetadataStore
from octavo.protocol.codes import Code
from tests.support.metadata_trees import Tree, embedded_tree, zookeeper_tree
from tests.support.raw_bookie import RawClient, add_of, config_in, entry_of, tell_read_only

__all__ = ["embedded_tree", "tree", "zookeeper_tree"]


@pytest.fixture(params=["embedded", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def tree(request: pytest.FixtureRequest) -> Tree:
    """Stores that can share a loop with real sockets; the simulated store has its own."""
    found: Tree = request.getfixturevalue(f"{request.param}_tree")
    return found


def node_on(folder: Path, store: MetadataStore, **how: Any) -> BookieNode:
    return BookieNode(
        config_in(folder, **how), store, disk=RealDisk(), rng=random.Random(5), clock=lambda: 0
    )


async def registration(registry: BookieRegistry, *, read_only: bool = False) -> BookieInfo:
    async with asyncio.timeout(30):
        while True:
            info = (await registry.available()).get("bookie-1")
            if info is not None and info.read_only == read_only:
                return info
            await asyncio.sleep(0.02)


async def test_registers_anew_when_its_session_expired(tree: Any, tmp_path: Path) -> None:
    store, other = await tree.open(), await tree.open()
    registry = BookieRegistry(other)
    node = node_on(tmp_path, store)
    await node.start()
    try:
        before = await registration(registry)
        gone = asyncio.Event()
        registry.watch(gone.set)
        await registry.available()
        await tree.expire(store)
        await asyncio.wait_for(gone.wait(), 30)
        assert await registration(registry) == before
        client = await RawClient.connect(node)
        assert await client.add(add_of(1, 0)) is Code.OK
        client.close()
    finally:
        await node.stop()
    assert await registry.available() == {}


async def test_serves_while_metadata_is_out_of_reach(tree: Any, tmp_path: Path) -> None:
    store, other = await tree.open(impatient=True), await tree.open()
    node = node_on(tmp_path, store)
    await node.start()
    try:
        client = await RawClient.connect(node)
        async with tree.cut(store):
            assert await client.add(add_of(1, 0)) is Code.OK
            assert await client.read(1, 0) == entry_of(1, 0)
            tell_read_only(node, True)
            assert await client.add(add_of(1, 1)) is Code.READ_ONLY
        await registration(BookieRegistry(other), read_only=True)
        client.close()
    finally:
        await node.stop()


async def test_metadata_that_does_not_answer_at_start(
    tree: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await tree.open()

    async def hang(*args: object, **how: object) -> None:
        await asyncio.sleep(3600)

    node = node_on(tmp_path, store, start_timeout_ms=200)
    with monkeypatch.context() as silence:
        silence.setattr(store, "create", hang)
        with pytest.raises(BookieStartTimeout, match="does the metadata store"):
            await node.start()
    again = node_on(tmp_path, store)
    await again.start()
    await again.stop()


async def test_a_live_bookie_keeps_its_id(tree: Any, tmp_path: Path) -> None:
    node = node_on(tmp_path / "one", await tree.open())
    await node.start()
    other = await tree.open()
    second = node_on(tmp_path / "two", other)
    with pytest.raises(CookieRefused, match="give it another bookie_id"):
        await second.start()
    assert (await registration(BookieRegistry(other))).port == node.port
    await node.stop()
