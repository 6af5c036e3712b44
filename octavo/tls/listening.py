"""A port that speaks TLS, and explains itself to clients that do not.

TLS begins with byte 22; HTTP and BookKeeper's frames do not. So the port can tell a plain client
what to do, accept it during a migration (`plain_allowed`), or wait for START_TLS. A client that
does not finish its handshake in time is disconnected; at the bound of handshakes, a new handshake
replaces the oldest.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, cast

import structlog

from octavo.tls.contexts import Certificates
from octavo.tls.words import why

log = structlog.get_logger()

Factory = Callable[[], asyncio.BaseProtocol]
TakePlain = Callable[[socket.socket], Awaitable[None]]
"""Takes over a connection without TLS. Returns when it no longer needs a time limit."""

TLS_FIRST_BYTE = b"\x16"
BACKLOG = 1024
SETTLED_S = 1.0
"""At the bound, an older handshake may be replaced by a new one."""
NO_FILES_S = 1.0
"""The pause after a failed accept, such as without file descriptors."""
FAREWELL_S = 1.0
"""How long a plain client has to read why it is refused."""


class TlsListener:
    def __init__(self, sockets: list[socket.socket], certificates: Certificates) -> None:
        self._sockets = sockets
        self._certificates = certificates
        self._accepting: list[asyncio.Task[None]] = []
        self._shaking: dict[asyncio.Task[None], float] = {}
        """Connections in their handshake, oldest first, with the time when they came."""
        self._tls: Factory = asyncio.Protocol
        self._plain: TakePlain = _close
        self.port = int(sockets[0].getsockname()[1])

    def describe(self) -> dict[str, int]:
        return {"shaking": len(self._shaking)}

    @classmethod
    async def bind(cls, host: str, port: int, certificates: Certificates) -> TlsListener:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sockets: list[socket.socket] = []
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                sock = socket.socket(family, kind, protocol)
                sockets.append(sock)
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(address)
        except OSError:
            for sock in sockets:
                sock.close()
            raise
        return cls(sockets, certificates)

    async def serve(self, tls: Factory, plain: TakePlain) -> None:
        """Serve `tls`'s protocol after each handshake; give plain connections to `plain`.

        Raises `OSError` if another process listens on the port.
        """
        self._tls, self._plain = tls, plain
        for sock in self._sockets:
            sock.listen(BACKLOG)
        for sock in self._sockets:
            self._accepting.append(asyncio.create_task(self._accept(sock), name="accept"))

    def close(self) -> None:
        for task in (*self._accepting, *self._shaking):
            task.cancel()
        if not self._accepting:
            for sock in self._sockets:
                sock.close()

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._make_room()
                try:
                    accepted, address = await loop.sock_accept(sock)
                except ConnectionError:
                    continue  # the client is gone already
                except OSError as error:
                    log.error("connections_not_accepted", port=self.port, reason=str(error))
                    await asyncio.sleep(NO_FILES_S)
                    continue
                task = asyncio.create_task(self._let_in(accepted, address), name="handshake")
                self._shaking[task] = loop.time()
                task.add_done_callback(self._forget)
        finally:
            sock.close()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._shaking.pop(task, None)

    async def _make_room(self) -> None:
        """Wait until another handshake may begin; abort the oldest if it is slow."""
        loop = asyncio.get_running_loop()
        while len(self._shaking) >= self._certificates.config.handshakes_max:
            oldest, since = next(iter(self._shaking.items()))
            left_s = since + SETTLED_S - loop.time()
            if left_s > 0:
                await asyncio.wait(
                    self._shaking, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
            else:
                oldest.cancel()
                await asyncio.wait((oldest,))
                log.warning(
                    "handshakes_pushed_out",
                    port=self.port,
                    handshakes_max=self._certificates.config.handshakes_max,
                )

    async def _let_in(self, sock: socket.socket, address: Any) -> None:
        loop = asyncio.get_running_loop()
        timeout_s = self._certificates.config.handshake_timeout_ms / 1000
        taken = False
        try:
            async with asyncio.timeout(timeout_s):
                first = await first_byte(sock)
            if not first:
                return
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            taken = True
            if first == TLS_FIRST_BYTE:
                await loop.connect_accepted_socket(
                    self._tls,
                    sock,
                    ssl=self._certificates.server,
                    ssl_handshake_timeout=timeout_s,
                )
            else:
                async with asyncio.timeout(timeout_s):
                    await self._plain(sock)
        except (OSError, TimeoutError) as error:
            tell_refused(address, error)
        except Exception as error:  # it concerns this connection, not the port
            log.error("tls_failed", peer=_shown(address), reason=repr(error), exc_info=error)
        finally:
            if not taken:
                sock.close()


async def _close(sock: socket.socket) -> None:
    sock.close()


def plain_http(certificates: Certificates, http: Factory) -> TakePlain:
    factory = http if certificates.config.plain_allowed else RefusePlainHttp

    async def take(sock: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(factory, sock)

    return take


async def first_byte(sock: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not came.done():
            came.set_result(None)

    loop.add_reader(sock.fileno(), ready)
    try:
        await came
    finally:
        loop.remove_reader(sock.fileno())
    return sock.recv(1, socket.MSG_PEEK)


def tell_refused(address: Any, error: BaseException | str) -> None:
    if isinstance(error, str):
        log.warning("tls_refused", peer=_shown(address), reason=error)
        return
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError | BrokenPipeError):
        log.debug("tls_refused", peer=_shown(address), reason="the client disconnected")
        return
    reason = why(error) or "it did not finish its handshake in time, or aborted it"
    log.warning("tls_refused", peer=_shown(address), reason=reason)


def _shown(address: Any) -> str:
    return ":".join(map(str, address[:2])) if isinstance(address, tuple) else str(address)


class RefusePlainHttp(asyncio.Protocol):
    def __init__(self) -> None:
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer at once: the request has begun to arrive. Later bytes are ignored."""
        plain = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        tell_refused(transport.get_extra_info("peername"), "it used http:// without TLS")
        plain.write(_PLAIN_HTTP)
        plain.write_eof()
        self._end = asyncio.get_running_loop().call_later(FAREWELL_S, plain.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._end is not None:
            self._end.cancel()


def _plain_http() -> bytes:
    body = json.dumps(
        {
            "type": "urn:octavo:problem:tls-required",
            "title": "Tls required",
            "status": 400,
            "detail": "this port speaks TLS: use https:// in place of http://",
            "code": "tls-required",
            "retryable": False,
        }
    )
    head = (
        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\n"
        f"Content-Length: {len(body) + 1}\r\nServer: octavo\r\nConnection: close\r\n\r\n"
    )
    return f"{head}{body}\n".encode()


_PLAIN_HTTP = _plain_http()
