"""Limit the connections of a broker's HTTP server, and reserve some for brokers and health checks.

A connection above `connections_max` is accepted on trial, because its purpose is known with its
first request. If its call may not use a reserved place, it gets a 503. Beyond the reserve, the
oldest idle reserved connection is closed, or the oldest. So a flood of connections cannot shut out
health checks and brokers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from aiohttp import web

from octavo.broker.http.connection_bytes import REFUSED_HEAD, Masks, RequestEdges
from octavo.broker.http.problems import Problem
from octavo.protocol.log_limiter import LogLimiter

_TLS_BEGINS = "\\x16\\x03"
"""How a TLS handshake begins, as aiohttp shows it."""
_QUOTED = re.compile(r"[\s:]*b?['\"\n].*", re.DOTALL)
"""The quoted bytes in aiohttp's message may contain a token."""
_TLS_HERE = (
    "this is TLS, and this port speaks none: use http://, or give the broker certificates "
    "(tls.certificate)"
)

log = structlog.get_logger()


class _MaskedFrames:
    """An unmasked frame ends the connection. While frames are held, the socket is not read."""

    def __init__(self, parser: Any, connection: Connection) -> None:
        self._parser = parser
        self._connection = connection
        self._masks = Masks()
        self._soon: asyncio.Handle | None = None

    @property
    def holds(self) -> bool:
        return bool(self._masks.held)

    def go_on(self) -> None:
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._soon = None
        if self.holds and not self._connection.waits_for_reader:
            self.feed_data(b"")

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        found = self._masks.feed(bytes(data))
        self._connection.hold_frames(self if self.holds else None)
        if self._masks.failed:  # the reader then ends the connection: 1002, a protocol error
            found += REFUSED_HEAD
        result: tuple[bool, bytes] = self._parser.feed_data(found)
        return result

    def feed_eof(self) -> None:
        self._parser.feed_eof()


TakeFastPublish = Callable[[bytes, bytes, "Connection"], bool]


class Connection(web.RequestHandler):
    __slots__ = (
        "_certificate", "_edges", "_end", "_frames", "_later", "_lost", "_short_way", "_taken",
        "counted_as", "head", "peer", "reserved", "verdict",
    )  # fmt: skip

    def __init__(self, manager: web.Server, short_way: TakeFastPublish, **options: Any) -> None:
        super().__init__(manager, **options)
        self.reserved = False
        """The connection came when all ordinary places were taken."""
        self.counted_as = ""
        self.peer = "unknown"
        self.head = b""
        """The head of the plain request that aiohttp handles now."""
        self.verdict: BaseException | None = None
        self._frames: _MaskedFrames | None = None
        self._lost: Callable[[], None] | None = None
        self._end: asyncio.Future[None] | None = None
        self._certificate: bytes | None = None
        self._short_way = short_way
        self._edges = RequestEdges()
        self._taken = b""
        self._later: list[bytes] = []

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        in_front: Any = _MaskedFrames(parser, self)
        super().set_parser(in_front, data_received_cb)

    @property
    def waits_for_reader(self) -> bool:
        return self._reading_paused

    def hold_frames(self, frames: _MaskedFrames | None) -> None:
        before, self._frames = self._frames, frames
        if frames is not None:
            self._pause_transport_reading()
            frames.go_on()
        elif before is not None and not (self._reading_paused or self._buffer_paused):
            self._resume_transport_reading()

    def _resume_transport_reading(self) -> None:
        if self._frames is None:
            super()._resume_transport_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        super().resume_reading(resume_parser)
        if self._frames is not None:
            self._frames.go_on()

    @property
    def idle(self) -> bool:
        return self._current_request is None and not self._taken

    @property
    def certificate(self) -> bytes | None:
        if self._certificate is None and self.transport is not None:
            tls = self.transport.get_extra_info("ssl_object")
            self._certificate = (tls and tls.getpeercert(True)) or b""
        return self._certificate or None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if peer := transport.get_extra_info("peername"):
            self.peer = str(peer[0])

    def when_lost(self, call: Callable[[], None]) -> None:
        self._lost = call

    @property
    def end(self) -> asyncio.Future[None]:
        if self._end is None:
            self._end = asyncio.get_running_loop().create_future()
            if self.transport is None:
                self._end.set_result(None)
        return self._end

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._end is not None and not self._end.done():
            self._end.set_result(None)
        if self._lost is not None:
            self._lost()
            self._lost = None

    def data_received(self, data: bytes) -> None:
        if not data:  # by empty data aiohttp continues its parser
            super().data_received(data)
            return
        if self._taken:
            self._later.append(data)
            self._pause_transport_reading()
            return
        head = self._edges.follow(data)
        waits = self._waiter is not None and not (self._messages or self._close)
        self.head = head if waits and not self._force_close else b""
        may = self.head and not (self.reserved or self.writing_paused)
        if may and self._short_way(head, data[len(head) :], self):
            self._taken = data
        else:
            super().data_received(data)

    def answer(self, answer: bytes) -> None:
        self._taken = b""
        if self.transport is None or self.transport.is_closing():
            return
        self.transport.write(answer)
        if self._close:
            self.transport.close()
            return
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(
                self._next_keepalive_close_time, self._process_keepalive
            )
        self._go_on()

    def take_long_way(self, verdict: BaseException | None) -> None:
        taken, self._taken = self._taken, b""
        if self.transport is not None:
            self.verdict = verdict
            super().data_received(taken)
            self._go_on()

    def take_verdict(self) -> BaseException:
        verdict, self.verdict = self.verdict, None
        assert verdict is not None
        return verdict

    def cut(self) -> None:
        self._taken = b""
        self._later.clear()
        self.force_close()

    def _go_on(self) -> None:
        if self._later:
            later = b"".join(self._later)
            self._later.clear()
            self._resume_transport_reading()
            self.data_received(later)

    def _process_keepalive(self) -> None:
        if self._taken:
            self._keepalive_handle = None  # set again with the answer
        else:
            super()._process_keepalive()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        found = str(message or "")
        text = _TLS_HERE if _TLS_BEGINS in found else _QUOTED.sub("", found) or "not HTTP/1.1"
        log.info("request_malformed", remote=request.remote, reason=text[:200])
        response = Problem(status, "malformed-request", text).response()
        response.force_close()
        return response


class ConnectionServer(web.Server):
    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        connections_max: int,
        connections_reserved: int,
        on_refused: Callable[[], object],
        short_way: TakeFastPublish,
        **options: Any,
    ) -> None:
        super().__init__(answer, **options)
        self._connections_max = connections_max
        self._reserved_max = connections_reserved
        self._on_refused = on_refused
        self._short_way = short_way
        self._reserved: dict[Connection, None] = {}
        self._refusals = LogLimiter()

    def __call__(self) -> web.RequestHandler:
        return Connection(self, self._short_way, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
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
        assert isinstance(handler, Connection)
        self._reserved.pop(handler, None)
        super().connection_lost(handler, exc)

    def refused(self) -> Problem:
        self._count_refused()
        return Problem(
            503,
            "too-many-connections",
            f"this broker has {self._connections_max} connections open, which is its limit; come "
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
        if count := self._refusals.count(self._loop.time()):
            log.warning("connections_refused", count=count, connections_max=self._connections_max)
