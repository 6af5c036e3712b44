"""A metadata store in memory, for brokers in one process. The tree is the simulator's.

It keeps the promises of `octavo.metadata.store` (tests/conformance holds it to them) and has no
faults of its own: tests end a session, or set `session_state`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from octavo.metadata.paths import check_folder, check_path
from octavo.metadata.store import (
    ANY_VERSION,
    MetadataUnavailable,
    Record,
    SessionExpired,
    SessionState,
    Watch,
    check_value,
)
from octavo.metadata.watching import WatchKey, WatchTable
from tests.sim.metadata_tree import Author, Change, Tree

T = TypeVar("T")


class MemoryMetadata:
    """One tree, and the stores that look at it."""

    def __init__(self) -> None:
        self.tree = Tree(time.monotonic, self._changed)
        self.stores: list[MemoryStore] = []
        self.is_away = False
        """Whether all calls fail with `MetadataUnavailable`."""
        self._sessions = 0

    def open(self) -> MemoryStore:
        """Return a store with its own session."""
        self.stores.append(store := MemoryStore(self))
        return store

    def new_session(self) -> int:
        self._sessions += 1
        return self._sessions

    def _changed(self, change: Change, keys: tuple[WatchKey, ...]) -> None:
        for store in self.stores:
            store.tell(keys)


class MemoryStore:
    """A `MetadataStore`. A call yields once after its work: watches are called before it ends."""

    url = "memory:"
    session_timeout_ms = 60_000

    def __init__(self, server: MemoryMetadata) -> None:
        self.session_state = SessionState.CONNECTED
        self._server = server
        self._session = server.new_session()
        self._author: Author = ("memory", self._session)
        self._watches = WatchTable()
        self._changed: dict[WatchKey, None] = {}
        self._generation = 0
        self._is_open = True
        self._is_cut = False

    async def start(self) -> None:
        """Do nothing: the session is open."""

    async def close(self) -> None:
        """End the session and its ephemeral records."""
        if self._is_open:
            self._is_open = False
            self.session_state = SessionState.EXPIRED
            self._server.tree.end_session(self._session, by=self._author)
            self._server.stores.remove(self)

    def expire(self) -> None:
        """End the session. The store hears of it in the next turn of the loop, or in its next
        call."""
        self._server.tree.end_session(self._session, by=self._author)
        self._session = 0
        asyncio.get_running_loop().call_soon(self._renew)

    def cut(self) -> None:
        """Let all calls fail, and changes pass unseen, until `heal`."""
        self._is_cut = True
        self._turn(SessionState.SUSPENDED)

    def heal(self) -> None:
        self._is_cut = False
        self._turn(SessionState.CONNECTED)
        self._watches.notify_all()

    def _turn(self, state: SessionState) -> None:
        self.session_state = state
        self._watches.notify_session(state)

    def _renew(self) -> None:
        if self._session == 0:
            self._generation += 1
            for state in (SessionState.EXPIRED, SessionState.CONNECTED):
                self._turn(state)
            self._session = self._server.new_session()
            self._watches.notify_all()

    # -- records

    async def get(self, path: str) -> Record:
        check_path(path)
        tree = self._server.tree
        return await self._call(lambda: tree.get(path, tree.seq))

    async def children(self, path: str) -> list[str]:
        check_folder(path)
        tree = self._server.tree
        return await self._call(lambda: tree.children(path, tree.seq))

    async def create(
        self,
        path: str,
        value: bytes,
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        beside: str | None = None,
    ) -> str:
        check_path(path + "0" if sequence else path)
        check_value(path, value)
        return await self._call(
            lambda: self._server.tree.create(
                path,
                value,
                session=self._session if ephemeral else None,
                sequence=sequence,
                by=self._author,
                beside=beside,
            )
        )

    async def put(self, path: str, value: bytes, version: int, *, beside: str | None = None) -> int:
        check_path(path)
        check_value(path, value)
        tree, author = self._server.tree, self._author
        return await self._call(lambda: tree.put(path, value, version, by=author, beside=beside))

    async def changed_at(self, path: str) -> int | None:
        await self.get(path)
        return None

    async def delete(
        self, path: str, version: int = ANY_VERSION, *, beside: str | None = None
    ) -> None:
        check_path(path)
        tree, author = self._server.tree, self._author
        await self._call(lambda: tree.delete(path, version, by=author, beside=beside))

    async def sync(self) -> None:
        """Do nothing: every read sees the last change."""

    async def _call(self, work: Callable[[], T]) -> T:
        if not self._is_open:
            raise MetadataUnavailable(f"{self.url} is closed")
        if self._server.is_away or self._is_cut:
            raise MetadataUnavailable(f"{self.url} does not answer")
        if self._session == 0:
            self._renew()
            raise SessionExpired(f"the session in which this call to {self.url} began is over")
        generation = self._generation
        try:
            found = work()
        finally:
            await asyncio.sleep(0)
        if generation != self._generation:
            raise SessionExpired(f"the session in which this call to {self.url} began is over")
        return found

    # -- watches

    def watch(self, path: str, on_change: Callable[[], None]) -> Watch:
        return self._watches.add(WatchKey(check_path(path), of_children=False), on_change)

    def watch_children(self, path: str, on_change: Callable[[], None]) -> Watch:
        return self._watches.add(WatchKey(check_folder(path), of_children=True), on_change)

    def on_session(self, listener: Callable[[SessionState], None]) -> None:
        self._watches.listen(listener)

    def tell(self, keys: tuple[WatchKey, ...]) -> None:
        """Call the watches of `keys` in the next turn of the loop."""
        watched = [key for key in keys if key in self._watches]
        if watched and not self._changed:
            asyncio.get_running_loop().call_soon(self._notify)
        self._changed.update(dict.fromkeys(watched))

    def _notify(self) -> None:
        keys, self._changed = tuple(self._changed), {}
        if self._is_open and not self._is_cut:
            self._watches.notify(keys)
