"""Open the port of a bookie, plain or with TLS.

It is bound before the folders are opened, and served once they are. With certificates, a client
begins with TLS or sends BookKeeper's START_TLS; another is refused, unless `plain_allowed` is set.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

from octavo.protocol.codes import OctavoError, Scope
from octavo.tls.contexts import Certificates
from octavo.tls.listening import TlsListener
from octavo.tls.start_tls import StartTls

_BACKLOG = 1024


class ListenFailed(OctavoError):
    name = "listen-failed"
    scope = Scope.PROCESS


class Listener:
    """Connections are served after `serve` only."""

    def __init__(self, host: str, port: int, sockets: asyncio.Server, line: _Line) -> None:
        self._host = host
        self._sockets = sockets
        self._line = line
        self.port = port

    @classmethod
    async def bind(cls, host: str, port: int) -> Listener:
        """Bind a port; 0 means any free port. Raises `ListenFailed`."""
        line = _Line()
        try:
            sockets = await asyncio.get_running_loop().create_server(
                line.accept, host, port, backlog=_BACKLOG, start_serving=False
            )
        except OSError as error:
            raise ListenFailed(why_not_listening(error, host, port)) from error
        return cls(host, int(sockets.sockets[0].getsockname()[1]), sockets, line)

    async def serve(self, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections. Raises `ListenFailed`: a bound port may still be taken."""
        self._line.protocol = protocol
        try:
            await self._sockets.start_serving()
        except OSError as error:
            raise ListenFailed(why_not_listening(error, self._host, self.port)) from error

    def close(self) -> None:
        self._sockets.close()


class _Line:
    """Gives connections that come before `serve` a protocol that does nothing."""

    def __init__(self) -> None:
        self.protocol: Callable[[], asyncio.BaseProtocol] = asyncio.Protocol

    def accept(self) -> asyncio.BaseProtocol:
        return self.protocol()


class SecureListener:
    def __init__(self, host: str, port: TlsListener, certificates: Certificates) -> None:
        self._host = host
        self._port = port
        self._certificates = certificates
        self.port = port.port

    @classmethod
    async def bind(cls, host: str, port: int, certificates: Certificates) -> SecureListener:
        """Bind a port; 0 means any free port. Raises `ListenFailed`."""
        try:
            bound = await TlsListener.bind(host, port, certificates)
        except OSError as error:
            raise ListenFailed(why_not_listening(error, host, port)) from error
        return cls(host, bound, certificates)

    async def serve(self, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections. Raises `ListenFailed`, as `Listener.serve`."""
        try:
            await self._port.serve(protocol, StartTls(self._certificates, protocol).take)
        except OSError as error:
            raise ListenFailed(why_not_listening(error, self._host, self.port)) from error

    def close(self) -> None:
        self._port.close()


def why_not_listening(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use by another process: stop it "
            f"(`ss -ltnp 'sport = :{port}'` shows which) or give this bookie another port"
        )
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not allowed for this user: use a port above 1023"
    if error.errno in (errno.EADDRNOTAVAIL, None):  # asyncio of Python 3.13 gives None for it
        return f"{host} is not an address of this machine: set `host` to one that is, or 0.0.0.0"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
