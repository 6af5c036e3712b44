"""Bound how long kazoo waits for a server's first answer on a new connection.

A starting server may accept a connection and never answer; kazoo would wait until its session is
over. So the first attempt waits a quarter of a session timeout, and each further attempt twice as
long, up to kazoo's own bound: a slow server has the time to answer.
"""

from __future__ import annotations

import socket
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

_FIRST_ATTEMPT_SHARE = 1 / 4
"""Two attempts fit in a session timeout."""


class ConnectionHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Used on kazoo's own thread."""

    def __init__(self, session_timeout_ms: int) -> None:
        super().__init__()
        self._attempt_s = session_timeout_ms / 1000 * _FIRST_ATTEMPT_SHARE
        self._opening: socket.socket | None = None
        self._unanswered = 0

    def create_connection(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        """Raises `OSError`, and kazoo's time-out error."""
        self._opening = None
        try:
            made = self.connect(*args, timeout=self._bounded(timeout), **options)
        except (TimeoutError, self.timeout_exception):
            self._unanswered += 1
            raise
        self._opening = made
        return made

    def connect(self, *args: Any, **options: Any) -> Any:
        return super().create_connection(*args, **options)

    def select(
        self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Bound the wait for a connection's first answers."""
        if len(rlist) > 1:  # kazoo also waits for calls to send: the connection is open
            self._opening, self._unanswered = None, 0
        if self._opening is None or self._opening not in rlist:
            return self.wait(rlist, wlist, xlist, timeout)
        found = self.wait(rlist, wlist, xlist, self._bounded(timeout))
        if not any(found):
            self._opening = None
            self._unanswered += 1
        return found

    def wait(
        self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        found: tuple[list[Any], list[Any], list[Any]] = super().select(rlist, wlist, xlist, timeout)
        return found

    def _bounded(self, timeout: float | None) -> float:
        bound = self._attempt_s * 2.0 ** min(self._unanswered, 32)
        return bound if timeout is None else min(timeout, bound)
