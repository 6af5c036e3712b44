"""Permanent watches on top of ZooKeeper's watches.

ZooKeeper's fires once and is lost with the connection. Here it is placed again before its callback
is called, so a reader that reads in the callback sees every change of the gap. Events of an
outdated placement are ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, WatchedEvent

from octavo.metadata.watching import WatchKey, WatchTable

# The next session places all watches again.
_PLACED_AGAIN_LATER = (
    zk.SessionExpiredError,
    zk.ConnectionLoss,
    zk.OperationTimeoutError,
    zk.SessionMovedError,
    zk.RequestTimeoutError,
    zk.CancelledError,
)


class PlacedWatches:
    """`post` runs a call from kazoo's threads on the event loop."""

    def __init__(
        self,
        client: KazooClient,
        chroot: str,
        table: WatchTable,
        post: Callable[..., None],
    ) -> None:
        self._client = client
        self._chroot = chroot
        self._table = table
        self._post = post
        self._placed: dict[WatchKey, int] = {}
        self._placements = 0

    def place_all(self) -> None:
        self._placed.clear()
        for key in self._table:
            self._place(key)

    def ensure(self, key: WatchKey) -> None:
        if key not in self._placed:
            self._place(key)

    def _place(self, key: WatchKey, *, until_created: bool = False) -> None:
        self._placements += 1
        number = self._placed[key] = self._placements
        full = (self._chroot + key.path).rstrip("/") or "/"

        def on_event(event: WatchedEvent) -> None:
            # The end of a connection is not a change: `place_all` follows it.
            if event.type != EventType.NONE:
                self._post(self._on_event, key, number)

        by_names = key.of_children and not until_created
        send = self._client.get_children_async if by_names else self._client.exists_async
        result = send(full, watch=on_event)
        result.rawlink(lambda _: self._post(self._on_placed, key, number, until_created, result))

    def _on_placed(self, key: WatchKey, number: int, until_created: bool, result: Any) -> None:
        if self._placed.get(key) != number:
            return
        error = result.exception
        if error is None and until_created and result.value is not None:
            # The path was created meanwhile, and the present watch sees only its value: watch its
            # names.
            self._place(key)
        elif error is None:
            # Report changes from before the watch was in place.
            self._table.notify([key])
        elif isinstance(error, zk.NoNodeError):
            self._place(key, until_created=True)
        elif not isinstance(error, _PLACED_AGAIN_LATER):
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"ZooKeeper cannot watch {key.path}", "exception": error}
            )

    def _on_event(self, key: WatchKey, number: int) -> None:
        if self._placed.get(key) != number:
            return
        if key in self._table:
            self._place(key)
        else:
            del self._placed[key]
