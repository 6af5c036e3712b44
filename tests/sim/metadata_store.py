"""A process's view of the simulated metadata store: the production Protocol."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from octavo.metadata.paths import check_folder, check_path
from octavo.metadata.store import (
    ANY_VERSION,
    Record,
    SessionState,
    Watch,
    check_value,
)
from octavo.metadata.watching import WatchKey, WatchTable
from tests.sim.metadata_line import MetadataLine
from tests.sim.metadata_tree import Author

if TYPE_CHECKING:
    from tests.sim.metadata import SimMetadata

T = TypeVar("T")
Answer = Coroutine[Any, Any, T]


_RESENT_S = 0.02
_PLACED_LATE = 0.5
LATE_S_MAX = 8.0
"""The longest delay of a watch: well below the time after which all must be well again
(fleet.py)."""


class SimMetadataStore:
    def __init__(
        self,
        server: SimMetadata,
        name: str,
        number: int,
        *,
        session_timeout_ms: int,
        call_timeout_ms: int,
    ) -> None:
        self.name = name
        self.author: Author = (name, number)
        self.session_timeout_ms = session_timeout_ms
        self._server = server
        self._watches = WatchTable()
        self.line = MetadataLine(
            server,
            self.author,
            self._watches,
            session_timeout_ms=session_timeout_ms,
            call_timeout_ms=call_timeout_ms,
        )
        self._alarms: dict[WatchKey, int] = {}

    @property
    def url(self) -> str:
        return self.line.url

    @property
    def session_state(self) -> SessionState:
        state = self.line.state
        if state is SessionState.CONNECTED and not self.line.vouched:
            return SessionState.SUSPENDED
        return state

    # -- life

    async def start(self) -> None:
        try:
            await self.line.start()
        except BaseException:
            self._server.forget(self)
            raise

    async def close(self) -> None:
        try:
            await self.line.close()
        finally:
            self._server.forget(self)

    # -- records

    # A call runs at the server, later. These return the coroutine of their line, which saves a
    # frame.

    def get(self, path: str) -> Answer[Record]:
        check_path(path)
        line, tree = self.line, self._server.tree
        return line.call(lambda: tree.get(path, line.view), True)

    def children(self, path: str) -> Answer[list[str]]:
        check_folder(path)
        line, tree = self.line, self._server.tree
        return line.call(lambda: tree.children(path, line.view), True)

    def create(
        self,
        path: str,
        value: bytes,
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        beside: str | None = None,
    ) -> Answer[str]:
        check_path(path + "0" if sequence else path)
        check_value(path, value)
        return self.line.call(
            lambda: self._server.tree.create(
                path,
                value,
                session=self.line.session if ephemeral else None,
                sequence=sequence,
                by=self.author,
                beside=beside,
            ),
            generation=self.line.generation if ephemeral else None,
        )

    def put(
        self, path: str, value: bytes, version: int, *, beside: str | None = None
    ) -> Answer[int]:
        check_path(path)
        check_value(path, value)
        return self.line.call(
            lambda: self._server.tree.put(path, value, version, by=self.author, beside=beside),
        )

    def changed_at(self, path: str) -> Answer[int | None]:
        check_path(path)
        line, server = self.line, self._server

        def changed() -> int | None:
            server.tree.get(path, line.view)
            return server.changed_ms(path, line.view)

        return line.call(changed, True)

    def delete(
        self, path: str, version: int = ANY_VERSION, *, beside: str | None = None
    ) -> Answer[None]:
        check_path(path)
        return self.line.call(
            lambda: self._server.tree.delete(path, version, by=self.author, beside=beside)
        )

    def sync(self) -> Answer[None]:
        return self.line.call(self.line.catch_up, True)

    # -- watches

    def watch(self, path: str, on_change: Callable[[], None]) -> Watch:
        return self._watch(WatchKey(check_path(path), of_children=False), on_change)

    def watch_children(self, path: str, on_change: Callable[[], None]) -> Watch:
        return self._watch(WatchKey(check_folder(path), of_children=True), on_change)

    def _watch(self, key: WatchKey, on_change: Callable[[], None]) -> Watch:
        watch = self._watches.add(key, on_change)
        # The server that keeps the watch may not have seen the last changes yet, or may have: then
        # a reader of the older state never hears of them.
        behind = self._server.tree.last_change(key) > self.line.view
        if (
            behind and self._server.rng.random() < _PLACED_LATE
        ) or self._server.rng.random() < self._server.faults.false_alarms:
            self.maybe_alarm((key,), self._server.tree.seq)
        return watch

    def on_session(self, listener: Callable[[SessionState], None]) -> None:
        self._watches.listen(listener)

    def maybe_alarm(self, keys: tuple[WatchKey, ...], seq: int) -> None:
        """Server side: `seq` changed `keys`. Alarms for a key are merged while one is due."""
        watched = self._watches._watches
        for key in keys:
            if key not in watched:
                continue
            if key not in self._alarms:
                rng, faults = self._server.rng, self._server.faults
                scale = 20.0 if rng.random() > 0.95 else 2.0
                delay_s = (faults.watch_delay_ms * scale * rng.random() + self.line.lag_ms()) / 1000
                delay_s = min(max(delay_s, self._server.deaf_s(self.name)), LATE_S_MAX)
                self._server.loop.call_later(delay_s, self._alarm, key, context=self.line.context)
            self._alarms[key] = seq

    def _alarm(self, key: WatchKey) -> None:
        seq = self._alarms.pop(key, 0)
        if not self.line.is_linked:
            return  # lost with the connection: the next connection alarms every watch
        if self._server.is_heard(self.name):
            self.line.view = max(self.line.view, seq)
            self._watches.notify((key,))
        else:  # it is sent again while the connection lives
            self._alarms[key] = seq
            self._server.loop.call_later(_RESENT_S, self._alarm, key, context=self.line.context)
