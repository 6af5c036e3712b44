"""The cluster as this broker last saw it: bookies and topics, kept in memory by watches.

An operator asks for this first in an emergency, so a dead metadata store must not delay the answer.
It comes within `ANSWER_WITHIN_S`: the state in memory, and since when it may be out of date.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from octavo.broker.broker import Broker
from octavo.broker.cluster.watched_record import WatchedRecord
from octavo.broker.errors import NamespaceNotFound
from octavo.metadata.bookies import BookieInfo, BookieRegistry
from octavo.metadata.paths import join
from octavo.metadata.store import (
    MetadataError,
    MetadataStore,
    MetadataUnavailable,
    SessionState,
    Watch,
)
from octavo.metadata.topics import NAMESPACES_ROOT, TOPICS_ROOT

Value = TypeVar("Value")
ANSWER_WITHIN_S = 0.08
"""A healthy store answers within milliseconds; a caller of the overview waits at most 100 ms."""
OUT_OF_REACH_WAIT_S = 0.5
"""A call that needs the store waits this long, once the store is known to be unreachable."""


class Down(NamedTuple):
    """A bookie that is not registered, but has a cookie or was seen before."""

    bookie_id: str
    info: BookieInfo | None
    """Its last registration that this broker saw; None: it saw none."""
    since_ms: int
    """When this broker first found it missing, by the wall clock."""


class _Bookies(NamedTuple):
    registered: dict[str, BookieInfo]
    down: list[Down]


class Seen(NamedTuple):
    """The known state of the cluster."""

    bookies: dict[str, BookieInfo] | None
    """The registered bookies; None: not read since this broker started."""
    down: list[Down] | None
    """The other bookies, by id; None: not read since this broker started."""
    topics: list[str] | None
    """`namespace/topic`, sorted."""
    stale: list[str]
    """Which of `bookies`, `brokers` and `topics` may be out of date."""
    stale_since_ms: int
    """Since when it may be, by the wall clock; 0 when nothing is stale."""


class Overview:
    """Keep the overview at this broker."""

    def __init__(
        self,
        store: MetadataStore,
        registry: BookieRegistry,
        broker: Broker,
        clock: Callable[[], int],
    ) -> None:
        self._store = store
        self._registry = registry
        self._broker = broker
        self._clock = clock
        self._lost_ms = 0
        self._alarm_ms = {"bookies": 0, "topics": 0}
        self._infos: dict[str, BookieInfo] = {}
        """The last registration of each bookie of the cluster, as far as this broker saw it."""
        self._missing_ms: dict[str, int] = {}
        self._watches: list[Watch] = []
        self._watched: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to watch and to read at once, since the store may be gone when a caller asks."""
        self._bookies = WatchedRecord(self._read_bookies, self._spawn)
        self._topics = WatchedRecord(self._read_topics, self._spawn)
        self._store.on_session(lambda _: self._note_contact())
        self._watches = [
            self._registry.watch(self._bookies_changed),
            self._registry.watch_cookies(self._bookies_changed),
            self._store.watch_children(NAMESPACES_ROOT, self._topics_changed),
        ]
        for one in (self._bookies, self._topics):
            self._spawn(self._soon(one))

    async def close(self) -> None:
        """Stop watching."""
        for watch in self._watches:
            watch.cancel()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def out_of_reach_since_ms(self) -> int:
        """Since when the metadata store is unreachable, by the wall clock; 0 if reachable."""
        self._note_contact()
        return self._lost_ms

    async def look(self) -> Seen:
        """Return the known state, as new as can be had in time."""
        await asyncio.gather(self._soon(self._bookies), self._soon(self._topics))
        since_ms = self.out_of_reach_since_ms
        if since_ms:
            stale = ["bookies", "brokers", "topics"]
        else:
            by_name = {"bookies": self._bookies.stale, "topics": self._topics.stale}
            stale = [name for name, is_stale in by_name.items() if is_stale]
            since_ms = min((self._alarm_ms[name] for name in stale), default=0)
        found = self._bookies.last
        registered, down = (None, None) if found is None else found
        return Seen(registered, down, self._topics.last, stale, since_ms)

    async def bookies_of_the_cluster(self) -> set[str]:
        """Read the ids of all bookies from the store, with bookies that are down."""
        return await self._registry.known()

    async def prompt(self, asked: Awaitable[Value]) -> Value:
        """Await the store's answer. Raises `MetadataUnavailable` soon when it is unreachable."""
        since_ms = self.out_of_reach_since_ms
        if not since_ms:
            return await asked
        try:
            async with asyncio.timeout(OUT_OF_REACH_WAIT_S):
                return await asked
        except TimeoutError:
            for_s = max(self._clock() - since_ms, 0) / 1000
            raise MetadataUnavailable(
                f"the metadata store at {self._store.url} is out of reach for {for_s:.1f} s; "
                "GET /v1/cluster has what was last known"
            ) from None

    async def _soon(self, one: WatchedRecord[Any]) -> None:
        with contextlib.suppress(TimeoutError, MetadataError):
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await one.newest()

    async def _read_bookies(self) -> _Bookies:
        registered = await self._registry.available()
        known = await self._registry.known() | registered.keys()
        infos = self._infos | registered
        self._infos = {one: info for one, info in infos.items() if one in known}
        now_ms, before = self._clock(), self._missing_ms
        missing = sorted(known - registered.keys())
        self._missing_ms = {one: before.get(one, now_ms) for one in missing}
        down = [Down(one, self._infos.get(one), since) for one, since in self._missing_ms.items()]
        return _Bookies(registered, down)

    def _bookies_changed(self) -> None:
        self._alarm("bookies", self._bookies)

    async def _read_topics(self) -> list[str]:
        found = []
        for namespace in await self._broker.topics.list_namespaces():
            if namespace not in self._watched:
                self._watched.add(namespace)
                path = join(TOPICS_ROOT, namespace)
                self._watches.append(self._store.watch_children(path, self._topics_changed))
            with contextlib.suppress(NamespaceNotFound):
                found += [
                    f"{namespace}/{one}" for one in await self._broker.topics.names_in(namespace)
                ]
        return found

    def _topics_changed(self) -> None:
        self._alarm("topics", self._topics)

    def _alarm(self, name: str, one: WatchedRecord[Any]) -> None:
        if not one.stale:
            self._alarm_ms[name] = self._clock()
        one.alarm()

    def _note_contact(self) -> None:
        if self._store.session_state is SessionState.CONNECTED:
            self._lost_ms = 0
        elif not self._lost_ms:
            self._lost_ms = self._clock()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
