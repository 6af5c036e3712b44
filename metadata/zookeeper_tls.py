"""TLS to ZooKeeper: kazoo's connections, made with our contexts.

kazoo makes contexts of its own, which allow TLS 1.0, do not check names unless told to, and are
read from their files at each attempt. Ours check the name, and are made anew only when the files
change (tls/contexts.py). Its loop also waits for the socket while answers lie in the TLS layer
already, a whole ping long: here they are seen.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any

import structlog
from kazoo.handlers.threading import SequentialThreadingHandler

from octavo.tls.words import BROKE_OFF, why

_log = structlog.get_logger()

Context = Callable[[], ssl.SSLContext]
"""The present one."""


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """What kazoo asks for a connection."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context
        self._told: tuple[str, str] | None = None

    def create_connection(
        self,
        address: tuple[str, int],
        hostname: str | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> ssl.SSLSocket:
        """Connected, and certain who is there. Raises `OSError`, TLS's errors among them."""
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

    def select(
        self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """As the system's, but that what was decrypted already counts as there to be read."""
        ready = [one for one in rlist if isinstance(one, ssl.SSLSocket) and one.pending()]
        if not ready:
            found: tuple[list[Any], list[Any], list[Any]] = super().select(
                rlist, wlist, xlist, timeout
            )
            return found
        readable, writable, broken = super().select(rlist, wlist, xlist, 0)
        return [*ready, *(one for one in readable if one not in ready)], writable, broken

    def _tell(self, host: str, reason: str) -> None:
        if self._told != (host, reason):  # the next attempt comes in a moment
            self._told = (host, reason)
            _log.warning("metadata_tls_failed", host=host, reason=reason)


def why_not(error: OSError) -> str:
    """What TLS did not like of a ZooKeeper, and what would be right."""
    if said := why(error):
        return said
    if isinstance(error, ssl.SSLError | ConnectionResetError | BrokenPipeError):
        return f"{BROKE_OFF} (a plain port of ZooKeeper is zk://, one with TLS is zks://)"
    return str(error) or type(error).__name__
