"""A broker that was started first, beside another one, never heard that the other one died.

Of a folder that is not there ZooKeeper watches no names, so its making is waited for. It may be
made between the two calls: then what was placed was a watch of the folder's own value, which no
change of its names fires. Two brokers that begin on an empty ZooKeeper meet it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

from octavo.metadata.watching import WatchKey, WatchTable
from octavo.metadata.zookeeper_watches import PlacedWatches

FOLDER = "/octavo/brokers"


class Result:
    """What a call of kazoo's gives; known at once."""

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
    """Whenever the folder is made: `made_after` so many steps of placing the watch."""
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
