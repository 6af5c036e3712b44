"""The bound of a ZooKeeper store's calls in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

from octavo.metadata.store import MetadataUnavailable
from octavo.metadata.watching import WatchKey, WatchTable
from octavo.metadata.zookeeper import CALLS_IN_FLIGHT_MAX, ZooKeeperStore
from octavo.metadata.zookeeper_watches import PlacedWatches


class Slow:
    """A store that is connected to a server that answers by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = ZooKeeperStore(["127.0.0.1:1"], call_timeout_ms=200)
        self.sent: list[asyncio.Future[Any]] = []
        monkeypatch.setattr(self.store, "_bridge", self._bridge)
        self.store._connected.set()

    async def _bridge(self, made: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.sent.append(future)
        return await future

    def ask(self, count: int) -> list[asyncio.Task[Any]]:
        store = self.store
        deadline = asyncio.get_running_loop().time() + 60
        return [
            asyncio.create_task(store._call("read", f"/{n}", lambda path: path, deadline=deadline))
            for n in range(count)
        ]


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_as_many_as_may_be_are_on_the_way(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    slow = Slow(monkeypatch)
    calls = slow.ask(CALLS_IN_FLIGHT_MAX + more)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(slow.sent) == min(len(calls), CALLS_IN_FLIGHT_MAX)
    slow.sent[0].set_result("first")
    assert await calls[0] == "first"
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(slow.sent) == len(calls), "its place was given to the next"
    for future in slow.sent[1:]:
        future.set_result("later")
    await asyncio.gather(*calls)


async def test_calls_that_ended_otherwise_give_their_places_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow(monkeypatch)
    for _ in range(3):
        calls = slow.ask(CALLS_IN_FLIGHT_MAX + 2)
        for _ in range(3):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    late = asyncio.get_running_loop().time()
    with pytest.raises(MetadataUnavailable, match="in time"):
        await slow.store._call("read", "/late", lambda path: path, deadline=late)
    slow.sent.clear()
    calls = slow.ask(CALLS_IN_FLIGHT_MAX)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(slow.sent) == CALLS_IN_FLIGHT_MAX
    for future in slow.sent:
        future.set_result(None)
    await asyncio.gather(*calls)


# ZooKeeper does not watch the names of a missing folder, so the store waits for its creation. If
# the folder was made between the two calls, the watch was on its value, which no change of its
# names fires: a broker never heard that another died.

FOLDER = "/octavo/brokers"


class Result:
    """The result of a kazoo call; known at once."""

    def __init__(self, value: object = None, exception: Exception | None = None) -> None:
        self.value, self.exception = value, exception

    def rawlink(self, done: Callable[[object], None]) -> None:
        done(self)


class Server:
    """One folder of ZooKeeper's, and its watches: each fires once, for its own kind of change."""

    def __init__(self) -> None:
        self.names: set[str] | None = None
        self.of_names: list[Callable[[WatchedEvent], None]] = []
        self.of_value: list[Callable[[WatchedEvent], None]] = []

    def get_children_async(self, _: str, watch: Callable[[WatchedEvent], None]) -> Result:
        if self.names is None:
            return Result(exception=zk.NoNodeError())
        self.of_names.append(watch)
        return Result(sorted(self.names))

    def exists_async(self, _: str, watch: Callable[[WatchedEvent], None]) -> Result:
        self.of_value.append(watch)
        return Result(None if self.names is None else "its statistics")

    def make(self) -> None:
        self.names = set()
        self._fire(self.of_value, EventType.CREATED)

    def add(self, name: str) -> None:
        assert self.names is not None
        self.names.add(name)
        self._fire(self.of_names, EventType.CHILD)

    @staticmethod
    def _fire(watches: list[Callable[[WatchedEvent], None]], kind: str) -> None:
        for watch in [watches.pop() for _ in range(len(watches))]:
            watch(WatchedEvent(kind, KeeperState.CONNECTED, FOLDER))


@pytest.mark.parametrize("made_after", range(5))
def test_each_change_of_the_names_is_heard(made_after: int) -> None:
    """Whenever the folder is made: `made_after` this many steps of placing the watch."""
    server, table = Server(), WatchTable()
    todo: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
    heard: list[frozenset[str]] = []
    placed = PlacedWatches(
        cast(KazooClient, server), "", table, lambda work, *args: todo.append((work, args))
    )
    key = WatchKey(FOLDER, of_children=True)
    table.add(key, lambda: heard.append(frozenset(server.names or ())))
    placed.ensure(key)
    for step in range(10):
        if step == made_after:
            server.make()
        if todo:
            work, args = todo.pop(0)
            work(*args)
    for name in ("a", "b"):
        server.add(name)
        while todo:
            work, args = todo.pop(0)
            work(*args)
        assert heard[-1] == server.names
