"""A side port for people and scrapers: `GET /metrics` and `GET /healthz`, HTTP/1.1, nothing else.

A page of code instead of a web framework: a bookie's memory belongs to its caches. One request per
connection, bounded in bytes and in time. Says nothing that a stranger may not know, and changes
nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from bookie.metrics import BookieMetrics
from bookie.server import ListenFailed, why_not_listening

_REQUEST_BYTES_MAX = 8 * 1024
_REQUEST_S_MAX = 10.0


class AdminServer:
    """Serves one node's metrics and health."""

    def __init__(
        self, metrics: BookieMetrics, health: Callable[[], tuple[bool, dict[str, Any]]]
    ) -> None:
        self._metrics = metrics
        self._health = health
        self._listener: asyncio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises `ListenFailed`."""
        try:
            self._listener = await asyncio.start_server(
                self._serve, host, port, limit=_REQUEST_BYTES_MAX
            )
        except OSError as error:
            raise ListenFailed(why_not_listening(error, host, port)) from error
        self.port = int(self._listener.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Listen no more."""
        if self._listener is not None:
            self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is gone, or was no HTTP client
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "text/plain", b"GET only\n", method)
        if path == b"/metrics":
            kind = "text/plain; version=0.0.4; charset=utf-8"
            return _response("200 OK", kind, self._metrics.exposition(), method)
        if path == b"/healthz":
            healthy, facts = self._health()
            status = "200 OK" if healthy else "503 Service Unavailable"
            return _response(status, "application/json", json.dumps(facts).encode(), method)
        return _response("404 Not Found", "text/plain", b"/metrics or /healthz\n", method)


def _response(status: str, kind: str, body: bytes, method: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else body)
