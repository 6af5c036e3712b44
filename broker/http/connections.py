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
import re
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from aiohttp import web

from octavo.broker.http.masks import REFUSED_HEAD, Masks
from octavo.broker.http.problems import Problem
from octavo.broker.http.request_edges import RequestEdges
from octavo.protocol.tally import Tally

_TLS_BEGINS = "\\x16\\x03"
"""The first bytes of a handshake, as aiohttp shows bytes that are no request."""
_QUOTED = re.compile(r"[\s:]*b?['\"\n].*", re.DOTALL)
"""What aiohttp quotes of the bytes that it could not read: a token may stand in them."""
_TLS_HERE = (
    "this is TLS, and this port speaks none: use http://, or give the broker certificates "
    "(tls.certificate)"
)

log = structlog.get_logger()


class _MaskedFrames:
    """Let masked frames through to aiohttp's reader, some in each turn of the loop, and end it at
    an unmasked frame. While frames are held nothing is read from the socket."""

    def __init__(self, parser: Any, connection: Connection) -> None:
        self._parser = parser
        self._connection = connection
        self._masks = Masks()
        self._soon: asyncio.Handle | None = None

    @property
    def holds(self) -> bool:
        """Whether frames are here that the reader has not got yet."""
        return bool(self._masks.held)

    def go_on(self) -> None:
        """Have the next frames read in the next turn of the loop."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._soon = None
        if self.holds and not self._connection.waits_for_reader:
            self.feed_data(b"")

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """See aiohttp's `WebSocketReader`."""
        found = self._masks.feed(bytes(data))
        self._connection.hold_frames(self if self.holds else None)
        if self._masks.failed:  # the reader ends the connection: 1002, a protocol error
            found += REFUSED_HEAD
        result: tuple[bool, bytes] = self._parser.feed_data(found)
        return result

    def feed_eof(self) -> None:
        """See aiohttp's `WebSocketReader`."""
        self._parser.feed_eof()


TakeShortWay = Callable[[bytes, bytes, "Connection"], bool]
"""Whether a request, of a head and a body, will be answered without aiohttp (short_way.py)."""


class Connection(web.RequestHandler):
    """aiohttp's connection; bytes that are not HTTP get a problem and one quiet line in the log.

    A whole request that comes while none is being answered is shown to the short way first. What
    that does not take, aiohttp gets, and then nothing else has happened.
    """

    __slots__ = (
        "_certificate", "_edges", "_end", "_frames", "_later", "_lost", "_short_way", "_taken",
        "counted_as", "head", "peer", "reserved", "verdict",
    )  # fmt: skip

    def __init__(self, manager: web.Server, short_way: TakeShortWay, **options: Any) -> None:
        super().__init__(manager, **options)
        self.reserved = False
        """It came when all ordinary places were taken."""
        self.counted_as = ""
        """The principal whose connections it is counted among; empty before its first call."""
        self.peer = "unknown"
        """The address that it came from."""
        self.head = b""
        """Of the request that aiohttp has now, if that is plain."""
        self.verdict: BaseException | None = None
        """What has become of that request already."""
        self._frames: _MaskedFrames | None = None
        """Those of a WebSocket that wait for their turn, and keep more from being read."""
        self._lost: Callable[[], None] | None = None
        self._end: asyncio.Future[None] | None = None
        self._certificate: bytes | None = None
        self._short_way = short_way
        self._edges = RequestEdges()
        self._taken = b""
        """The request that is on the short way."""
        self._later: list[bytes] = []
        """What has come since."""

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        """From now on it is a WebSocket, whose frames `parser` takes."""
        in_front: Any = _MaskedFrames(parser, self)
        super().set_parser(in_front, data_received_cb)

    @property
    def waits_for_reader(self) -> bool:
        """Whether aiohttp's reader has more messages than it may hold."""
        return self._reading_paused

    def hold_frames(self, frames: _MaskedFrames | None) -> None:
        """Read nothing more from the socket until these frames are read; None: there are none."""
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
        """The reader has room again."""
        super().resume_reading(resume_parser)
        if self._frames is not None:
            self._frames.go_on()

    @property
    def idle(self) -> bool:
        """Whether no request of it is being answered."""
        return self._current_request is None and not self._taken

    @property
    def certificate(self) -> bytes | None:
        """Of the client, as the handshake has checked it (DER); None when it has shown none."""
        if self._certificate is None and self.transport is not None:
            tls = self.transport.get_extra_info("ssl_object")
            self._certificate = (tls and tls.getpeercert(True)) or b""
        return self._certificate or None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        super().connection_made(transport)
        if peer := transport.get_extra_info("peername"):
            self.peer = str(peer[0])

    def when_lost(self, call: Callable[[], None]) -> None:
        """Have this called when it ends."""
        self._lost = call

    @property
    def end(self) -> asyncio.Future[None]:
        """Done when it has ended."""
        if self._end is None:
            self._end = asyncio.get_running_loop().create_future()
            if self.transport is None:
                self._end.set_result(None)
        return self._end

    def connection_lost(self, exc: BaseException | None) -> None:
        """Nobody is there any more."""
        super().connection_lost(exc)
        if self._end is not None and not self._end.done():
            self._end.set_result(None)
        if self._lost is not None:
            self._lost()
            self._lost = None

    def data_received(self, data: bytes) -> None:
        """Bytes of requests, in order; one request after another."""
        if not data:  # aiohttp has its parser go on
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
        """Send the whole answer to the request on the short way; the next one may come."""
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
        """The short way ends here for this request: aiohttp gets it, from its first byte."""
        taken, self._taken = self._taken, b""
        if self.transport is not None:
            self.verdict = verdict
            super().data_received(taken)
            self._go_on()

    def take_verdict(self) -> BaseException:
        """The verdict, which is of one request only."""
        verdict, self.verdict = self.verdict, None
        assert verdict is not None
        return verdict

    def cut(self) -> None:
        """What came of the request on the short way cannot be said."""
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
            self._keepalive_handle = None  # made again with the answer
        else:
            super()._process_keepalive()

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
        found = str(message or "")
        text = _TLS_HERE if _TLS_BEGINS in found else _QUOTED.sub("", found) or "not HTTP/1.1"
        log.info("request_malformed", remote=request.remote, reason=text[:200])
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
        short_way: TakeShortWay,
        **options: Any,
    ) -> None:
        super().__init__(answer, **options)
        self._connections_max = connections_max
        self._reserved_max = connections_reserved
        self._on_refused = on_refused
        self._short_way = short_way
        self._reserved: dict[Connection, None] = {}
        """In the order in which they came."""
        self._refusals = Tally()

    def __call__(self) -> web.RequestHandler:
        """One connection."""
        return Connection(self, self._short_way, loop=self._loop, **self._kwargs)

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
        if count := self._refusals.count(self._loop.time()):
            log.warning("connections_refused", count=count, connections_max=self._connections_max)
