"""The connections of one broker's HTTP server: how many there may be, and who gets the last ones.

    0 … connections_max                       anybody, for any call
    … + connections_reserved                  for health checks and for calls of other brokers
    beyond                                    the reserved one that has waited longest is closed

What a connection is for is known only when its first request is there. So each one above
`connections_max` is accepted on trial: a call that may not use a reserved place is answered 503 and
ends it, and one that says nothing makes room for the next. A flood of connections thus never shuts
out those who ask whether this broker lives, nor the brokers that pass calls on to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from aiohttp import web

from octavo.broker.http.problems import Problem

REFUSALS_TOLD_S = 60.0
"""Refused connections are counted one by one, and told in the log once in so long."""

log = structlog.get_logger()


class Connection(web.RequestHandler):
    """aiohttp's connection; bytes that are not HTTP get a problem and one quiet line in the log."""

    __slots__ = ("reserved",)

    def __init__(self, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self.reserved = False
        """It came when all ordinary places were taken."""

    @property
    def idle(self) -> bool:
        """Whether no request of it is being answered."""
        return self._current_request is None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that could not even be parsed."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        log.info("request_malformed", remote=request.remote, reason=str(message)[:200])
        text = " ".join(str(message or "not HTTP/1.1").split())[:500]
        response = Problem(status, "malformed-request", text).response()
        response.force_close()
        return response


class ConnectionServer(web.Server):
    """aiohttp's low-level server: no application, no middleware, our own connection class."""

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        connections_max: int,
        connections_reserved: int,
        on_refused: Callable[[], object],
        **options: Any,
    ) -> None:
        super().__init__(answer, **options)
        self._connections_max = connections_max
        self._reserved_max = connections_reserved
        self._on_refused = on_refused
        self._reserved: dict[Connection, None] = {}
        """In the order in which they came."""
        self._refused = 0
        """Since that was last told."""
        self._told_s: float | None = None

    def __call__(self) -> web.RequestHandler:
        """One connection."""
        return Connection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Keep count; above the bound it gets a reserved place, for as long as that lasts."""
        super().connection_made(handler, transport)
        if len(self._connections) - len(self._reserved) <= self._connections_max:
            return
        assert isinstance(handler, Connection)
        if len(self._reserved) >= self._reserved_max:
            self._make_room()
        handler.reserved = True
        self._reserved[handler] = None

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """A place is free."""
        assert isinstance(handler, Connection)
        self._reserved.pop(handler, None)
        super().connection_lost(handler, exc)

    def refused(self) -> Problem:
        """The answer to a call on a reserved place that is not for those; counts and tells it."""
        self._count_refused()
        return Problem(
            503,
            "too-many-connections",
            f"this broker has {self._connections_max} connections open, which is its bound; come "
            "back in a moment, or ask another broker",
            retryable=True,
            headers={"Connection": "close", "Retry-After": "1"},
        )

    def _make_room(self) -> None:
        oldest = next((one for one in self._reserved if one.idle), None) or next(
            iter(self._reserved)
        )
        del self._reserved[oldest]
        oldest.force_close()
        self._count_refused()

    def _count_refused(self) -> None:
        self._on_refused()
        self._refused += 1
        now_s = self._loop.time()
        if self._told_s is None or now_s - self._told_s >= REFUSALS_TOLD_S:
            log.warning(
                "connections_refused", count=self._refused, connections_max=self._connections_max
            )
            self._refused, self._told_s = 0, now_s
