"""TLS to ZooKeeper: kazoo's connections, made with our TLS contexts.

kazoo's contexts allow TLS 1.0, check names only if configured, and are read at each attempt.
kazoo's loop would also wait a ping interval for answers that are already in the TLS layer.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any

import structlog

from octavo.metadata.zookeeper_connections import ConnectionHandler
from octavo.tls.words import BROKE_OFF, why

_log = structlog.get_logger()

Context = Callable[[], ssl.SSLContext]


class TlsHandler(ConnectionHandler):
    """Makes kazoo's connections with TLS."""

    def __init__(self, session_timeout_ms: int, context: Context) -> None:
        super().__init__(session_timeout_ms)
        self._context = context
        self._told: tuple[str, str] | None = None

    def connect(
        self,
        address: tuple[str, int],
        hostname: str | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> ssl.SSLSocket:
        """Raises `OSError`, including TLS errors."""
        name = hostname or address[0]
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured = self._context().wrap_socket(plain, server_hostname=name)
        except OSError as error:
            plain.close()
            self._tell(f"{name}:{address[1]}", why_not(error))
            raise
        self._told = None
        return secured

    def wait(
        self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait for sockets; those with decrypted bytes count as readable."""
        ready = [one for one in rlist if isinstance(one, ssl.SSLSocket) and one.pending()]
        if not ready:
            return super().wait(rlist, wlist, xlist, timeout)
        readable, writable, broken = super().wait(rlist, wlist, xlist, 0)
        return [*ready, *(one for one in readable if one not in ready)], writable, broken

    def _tell(self, host: str, reason: str) -> None:
        if self._told != (host, reason):  # log once, because attempts repeat quickly
            self._told = (host, reason)
            _log.warning("metadata_tls_failed", host=host, reason=reason)


def why_not(error: OSError) -> str:
    if said := why(error):
        return said
    if isinstance(error, ssl.SSLError | ConnectionResetError | BrokenPipeError):
        return f"{BROKE_OFF} (a plain port of ZooKeeper is zk://, one with TLS is zks://)"
    return str(error) or type(error).__name__
