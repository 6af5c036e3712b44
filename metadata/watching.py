"""The watches of a store, by path; used on an event loop, never blocks.

A callback's error goes to the loop's exception handler; the others still run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from octavo.metadata.store import SessionState

OnChange = Callable[[], None]
OnSession = Callable[[SessionState], None]


class WatchKey(NamedTuple):
    """The record at `path`, or the set of names below it."""

    path: str
    of_children: bool


class StandingWatch:
    __slots__ = ("_on_cancel", "key", "on_change")

    def __init__(
        self, key: WatchKey, on_change: OnChange, on_cancel: Callable[[StandingWatch], None]
    ) -> None:
        self.key = key
        self.on_change: OnChange | None = on_change
        self._on_cancel = on_cancel

    def cancel(self) -> None:
        if self.on_change is not None:
            self.on_change = None
            self._on_cancel(self)


class WatchTable:
    def __init__(self) -> None:
        self._watches: dict[WatchKey, list[StandingWatch]] = {}
        self._listeners: list[OnSession] = []

    def __contains__(self, key: WatchKey) -> bool:
        return key in self._watches

    def __iter__(self) -> Iterator[WatchKey]:
        return iter(list(self._watches))

    def add(self, key: WatchKey, on_change: OnChange) -> StandingWatch:
        watch = StandingWatch(key, on_change, self._remove)
        self._watches.setdefault(key, []).append(watch)
        return watch

    def _remove(self, watch: StandingWatch) -> None:
        watches = self._watches[watch.key]
        watches.remove(watch)
        if not watches:
            del self._watches[watch.key]

    def listen(self, listener: OnSession) -> None:
        self._listeners.append(listener)

    def notify(self, keys: Iterable[WatchKey]) -> None:
        """Call every watcher of `keys`, once per key."""
        for key in keys:
            for watch in list(self._watches.get(key, ())):
                if watch.on_change is not None:
                    call_safely(watch.on_change)

    def notify_all(self) -> None:
        """Changes may have been missed."""
        self.notify(list(self._watches))

    def notify_session(self, state: SessionState) -> None:
        for listener in list(self._listeners):
            call_safely(lambda listener=listener: listener(state))  # type: ignore[misc]


def call_safely(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception as error:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a metadata callback raised", "exception": error, "callback": callback}
        )
