"""BookKeeper's START_TLS, on the bookie's side: a plain first frame asks for TLS.

    client  START_TLS, a v3 frame, also from clients that speak v2 afterwards
    bookie  OK, unencrypted
    both    TLS handshake; then frames as on a new connection

Bytes that follow START_TLS before the answer are refused: they came unencrypted, so an attacker may
have added them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from octavo.protocol import v3
from octavo.protocol.codes import Code
from octavo.protocol.frames import LENGTH
from octavo.tls.contexts import Certificates
from octavo.tls.listening import tell_refused

REQUEST_BYTES_MAX = 1024
RIGHT = "this port speaks TLS: begin with it, or ask for it by START_TLS"


class StartTls:
    def __init__(
        self, certificates: Certificates, made: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._certificates = certificates
        self._made = made

    async def take(self, sock: socket.socket) -> None:
        """Upgrade a plain connection to TLS, or close it. The caller must bound the time.

        Raises `OSError`, TLS errors included.
        """
        loop = asyncio.get_running_loop()
        transport, listening = await loop.connect_accepted_socket(_FirstFrame, sock)
        try:
            first, rest = await listening.came
            request = v3.parse_request(memoryview(first)) if first else None
            asks = isinstance(request, v3.Call) and _asks(request)
            if not asks and self._certificates.config.plain_allowed:
                self._go_on(transport, first + rest)
                return
            if asks and not rest:
                assert isinstance(request, v3.Call)
                transport.write(v3.answer(request.head, Code.OK, "startTLSResponse"))
                await self._secure(transport)
                return
            if request is not None:
                transport.write(v3.answer(request.head, Code.UNAUTHORIZED))
            reason = "something follows START_TLS before its answer" if asks else RIGHT
            tell_refused(transport.get_extra_info("peername"), reason)
            transport.close()
        except BaseException:
            transport.abort()
            raise

    async def _secure(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        early = _Early()
        context = self._certificates.server
        assert context is not None, "called only for a TLS port"
        secured = await loop.start_tls(
            transport,
            early,
            context,
            server_side=True,
            ssl_handshake_timeout=self._certificates.config.handshake_timeout_ms / 1000,
        )
        if secured is None or early.is_lost:
            raise ConnectionResetError("the connection was closed in its handshake")
        self._go_on(secured, bytes(early.data))

    def _go_on(self, transport: asyncio.Transport, data: bytes) -> None:
        protocol = self._made()
        transport.set_protocol(protocol)
        transport.resume_reading()  # before connection_made: the protocol may pause it again
        protocol.connection_made(transport)
        if not transport.is_closing():
            _feed(protocol, data)


class _FirstFrame(asyncio.Protocol):
    """Waits for the first frame, then stops reading."""

    def __init__(self) -> None:
        self.came: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()
        """The first frame, and the bytes after it; no frame if it is too long for START_TLS."""
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self.came.done() or len(self._data) < LENGTH.size:
            return
        end = LENGTH.size + LENGTH.unpack_from(self._data)[0]
        if not LENGTH.size <= end <= REQUEST_BYTES_MAX:
            end = 0
        if len(self._data) >= end:
            assert self._transport is not None
            self._transport.pause_reading()
            self.came.set_result((self._data[:end], self._data[end:]))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.came.done():
            self.came.set_exception(exc or ConnectionResetError("the client disconnected"))


class _Early(asyncio.Protocol):
    """Keeps bytes that come right after the handshake, before the protocol takes over."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.is_lost = True


def _asks(call: v3.Call) -> bool:
    return (
        call.op == v3.Op.START_TLS
        and call.version == v3.VERSION
        and bool(call.body.HasField("startTLSRequest"))
    )


def _feed(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Give a protocol bytes as if its transport had received them."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        assert isinstance(protocol, asyncio.Protocol)
        if data:
            protocol.data_received(data)
        return
    while data:
        room = cast(memoryview, protocol.get_buffer(len(data)))
        taken = min(len(room), len(data))
        room[:taken] = data[:taken]
        protocol.buffer_updated(taken)
        data = data[taken:]
