"""A metadata tree and ways to disturb it, the same for every kind of store."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest
from kazoo.client import KazooClient

from octavo.metadata.embedded import CALL_TIMEOUT_MS, EmbeddedStore
from octavo.metadata.store import MetadataStore
from octavo.metadata.zookeeper import ZooKeeperStore
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadata
from tests.sim.metadata_store import SimMetadataStore
from tests.sim.trace import Trace
from tests.support.memory_metadata import MemoryMetadata, MemoryStore

SESSION_TIMEOUT_MS = 20_000
Eventually = Callable[[Callable[[], object]], Awaitable[None]]


class Tree(Protocol):
    async def open(
        self, *, session_timeout_ms: int = SESSION_TIMEOUT_MS, impatient: bool = False
    ) -> MetadataStore:
        """Start a store. An `impatient` store gives up early on a call."""

    async def expire(self, store: MetadataStore) -> None: ...

    def cut(self, store: MetadataStore) -> contextlib.AbstractAsyncContextManager[None]: ...

    def unwritable(self) -> contextlib.AbstractAsyncContextManager[None]: ...


class EmbeddedTree:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.stores: list[EmbeddedStore] = []

    async def open(
        self, *, session_timeout_ms: int = SESSION_TIMEOUT_MS, impatient: bool = False
    ) -> EmbeddedStore:
        store = EmbeddedStore(
            str(self.path),
            session_timeout_ms=session_timeout_ms,
            call_timeout_ms=300 if impatient else CALL_TIMEOUT_MS,
        )
        self.stores.append(store)
        await store.start()
        return store

    async def expire(self, store: Any) -> None:
        # Change the file and the process's memory: the time has passed for the process too.
        lease = store._file._lease
        store._file._beats.write(lease.session_id, 0)
        lease.ends_ms = 0

    @contextlib.asynccontextmanager
    async def cut(self, store: Any) -> AsyncIterator[None]:
        mended = threading.Event()
        store._executor.submit(mended.wait)
        yield
        mended.set()

    @contextlib.asynccontextmanager
    async def unwritable(self) -> AsyncIterator[None]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")


class Proxy:
    """A proxy between one store and the server, so that only its connection can be cut."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.is_cut = False
        self.answers_pass = asyncio.Event()
        self.answers_pass.set()
        self.tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            if not self.is_cut:
                await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self.tasks.discard(task)
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        passes = asyncio.Event()
        passes.set()
        pumps = {
            asyncio.create_task(pump(reader, up_writer, passes)),
            asyncio.create_task(pump(up_reader, writer, self.answers_pass)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            up_writer.close()

    def drop(self) -> None:
        for task in self.tasks:
            task.cancel()

    async def close(self) -> None:
        self.server.close()
        self.drop()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event
) -> None:
    while data := await reader.read(65536):
        await passes.wait()
        writer.write(data)
        await writer.drain()


class ZooKeeperTree:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.port is not None
        self.server_port = parts.port
        self.chroot = parts.path
        self.stores: list[ZooKeeperStore] = []
        self.proxies: dict[int, Proxy] = {}

    async def open(
        self, *, session_timeout_ms: int = SESSION_TIMEOUT_MS, impatient: bool = False
    ) -> ZooKeeperStore:
        proxy = Proxy(self.server_port)
        store = ZooKeeperStore(
            [f"127.0.0.1:{await proxy.start()}"],
            self.chroot,
            session_timeout_ms=session_timeout_ms,
            call_timeout_ms=300 if impatient else CALL_TIMEOUT_MS,
        )
        self.proxies[id(store)] = proxy
        self.stores.append(store)
        await store.start()
        return store

    async def expire(self, store: Any) -> None:
        twin = KazooClient(f"127.0.0.1:{self.server_port}", client_id=store._client.client_id)

        def end_session() -> None:
            twin.start()
            twin.stop()
            twin.close()

        await asyncio.to_thread(end_session)

    @contextlib.asynccontextmanager
    async def cut(self, store: MetadataStore) -> AsyncIterator[None]:
        proxy = self.proxies[id(store)]
        proxy.is_cut = True
        proxy.drop()
        yield
        proxy.is_cut = False

    @contextlib.asynccontextmanager
    async def unwritable(self) -> AsyncIterator[None]:
        pytest.skip("a single server that is stopped is no ensemble without a quorum")
        yield


class LoopWithHandler(SimLoop):
    """A simulated loop that shows a test what a real loop would log."""

    handler: Callable[[SimLoop, dict[str, Any]], object] | None = None

    def set_exception_handler(self, handler: Any) -> None:
        self.handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.handler is None:
            super().call_exception_handler(context)
        else:
            self.handler(self, context)


class SimulatedTree:
    def __init__(self) -> None:
        self.loop = LoopWithHandler(1, trace=Trace())
        self.server = SimMetadata(self.loop, self.loop.trace)

    async def open(
        self, *, session_timeout_ms: int = SESSION_TIMEOUT_MS, impatient: bool = False
    ) -> SimMetadataStore:
        store = self.server.store(
            session_timeout_ms=session_timeout_ms,
            call_timeout_ms=300 if impatient else CALL_TIMEOUT_MS,
        )
        await store.start()
        return store

    async def expire(self, store: Any) -> None:
        self.server.expire(store.name)

    @contextlib.asynccontextmanager
    async def cut(self, store: Any) -> AsyncIterator[None]:
        self.server.partition(store.name)
        yield
        self.server.heal(store.name)

    @contextlib.asynccontextmanager
    async def unwritable(self) -> AsyncIterator[None]:
        self.server.go_away()
        yield
        self.server.come_back()


@pytest.fixture
async def embedded_tree(tmp_path: Path) -> AsyncIterator[EmbeddedTree]:
    tree = EmbeddedTree(tmp_path / "octavo.db")
    yield tree
    for store in tree.stores:
        await store.close()


@pytest.fixture
async def zookeeper_tree(zookeeper: Any) -> AsyncIterator[ZooKeeperTree]:
    tree = ZooKeeperTree(zookeeper.new_url())
    yield tree
    await asyncio.gather(*(store.close() for store in tree.stores))
    await asyncio.gather(*(proxy.close() for proxy in tree.proxies.values()))


class MemoryTree:
    def __init__(self) -> None:
        self.server = MemoryMetadata()

    async def open(
        self, *, session_timeout_ms: int = SESSION_TIMEOUT_MS, impatient: bool = False
    ) -> MemoryStore:
        return self.server.open()

    async def expire(self, store: Any) -> None:
        store.expire()

    @contextlib.asynccontextmanager
    async def cut(self, store: Any) -> AsyncIterator[None]:
        store.cut()
        yield
        store.heal()

    @contextlib.asynccontextmanager
    async def unwritable(self) -> AsyncIterator[None]:
        pytest.skip("this store has no writes that fail alone")
        yield
