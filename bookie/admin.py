"""A side port for people and scrapers: HTTP/1.1, one short request per connection, JSON answers.

A page of code instead of a web framework: a bookie's memory belongs to its caches. Whoever has
something to say registers a route:

    admin.route("GET", "/damage", lambda query: registry.plain())
    admin.route("POST", "/gc", start_collection)          # may be a coroutine function

A handler takes the query's parameters and returns what `json.dumps` takes; it bounds its own
answer (`limit`), and an `OctavoError` that it raises is answered with its text. Bounded are the
bytes of a request, the time until its answer, and the connections. `GET` changes nothing. A
`POST` sent by a page in somebody's browser (it carries `Origin`) is refused.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import structlog

from octavo.bookie.metrics import BookieMetrics
from octavo.bookie.wire.listener import ListenFailed, why_not_listening
from octavo.protocol.codes import OctavoError
from octavo.tls.contexts import Certificates
from octavo.tls.listening import TlsListener, plain_http

Handler = Callable[[Mapping[str, str]], Any]
"""Takes the query, returns a JSON-able value, or an awaitable of one."""

_REQUEST_BYTES_MAX = 8 * 1024
_REQUEST_S_MAX = 10.0
_CONNECTIONS_MAX = 64
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"

log = structlog.get_logger()


class AdminServer:
    """Serves one node's metrics and health, and the routes that its parts register."""

    def __init__(
        self, metrics: BookieMetrics, health: Callable[[], tuple[bool, dict[str, Any]]]
    ) -> None:
        self._metrics = metrics
        self._health = health
        self._routes: dict[tuple[str, str], Handler] = {}
        self._listener: asyncio.Server | TlsListener | None = None
        self._connections = 0
        self.port = 0

    def route(self, method: str, path: str, handler: Handler) -> None:
        """Answer `method` (GET or POST) on `path` with what `handler` returns, as JSON."""
        assert method in ("GET", "POST")
        assert path.startswith("/")
        assert (method, path) not in self._routes, f"{method} {path} is registered already"
        self._routes[method, path] = handler

    @property
    def paths(self) -> list[str]:
        """What can be asked for, for example `GET /healthz`."""
        found = [("GET", "/healthz"), ("GET", "/metrics"), *self._routes]
        return [f"{method} {path}" for method, path in sorted(found, key=lambda one: one[::-1])]

    async def start(self, host: str, port: int, tls: Certificates | None = None) -> None:
        """Listen, with https:// where there is `tls`. Raises `ListenFailed`."""
        try:
            if tls is None:
                self._listener = server = await asyncio.start_server(
                    self._serve, host, port, limit=_REQUEST_BYTES_MAX
                )
                self.port = int(server.sockets[0].getsockname()[1])
            else:
                self._listener = listener = await TlsListener.bind(host, port, tls)
                await listener.serve(self._connected, plain_http(tls, self._connected))
                self.port = listener.port
        except OSError as error:
            raise ListenFailed(why_not_listening(error, host, port)) from error

    def _connected(self) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(_REQUEST_BYTES_MAX)
        return asyncio.StreamReaderProtocol(reader, self._serve)

    def close(self) -> None:
        """Listen no more."""
        if self._listener is not None:
            self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > _CONNECTIONS_MAX:
                return
            async with asyncio.timeout(_REQUEST_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is gone, or was no HTTP client
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path, _, query = rest.partition(" ")[0].partition("?")
        status, kind, body = await self._route(method, path, query, head)
        front = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return front.encode() + (b"" if method == "HEAD" else body)

    async def _route(
        self, method: str, path: str, query: str, head: bytes
    ) -> tuple[str, str, bytes]:
        """Status, content type and body of the answer."""
        wanted = "GET" if method == "HEAD" else method
        if (wanted, path) == ("GET", "/metrics"):
            return "200 OK", _TEXT, self._metrics.exposition()
        if (wanted, path) == ("GET", "/healthz"):
            healthy, facts = self._health()
            return "200 OK" if healthy else "503 Service Unavailable", _JSON, _plain(facts)
        handler = self._routes.get((wanted, path))
        if handler is None:
            known = any(line.endswith(f" {path}") for line in self.paths)
            status = "405 Method Not Allowed" if known else "404 Not Found"
            return status, _JSON, _plain({"error": status[4:].lower(), "paths": self.paths})
        if wanted == "POST" and b"\r\norigin:" in head.lower():
            return "403 Forbidden", _JSON, _plain({"error": "a web page may change nothing here"})
        try:
            found = handler(dict(parse_qsl(query)))
            return "200 OK", _JSON, _plain(await found if inspect.isawaitable(found) else found)
        except OctavoError as error:
            facts = {"error": error.name, "reason": str(error)}
            return "503 Service Unavailable", _JSON, _plain(facts)
        except ValueError as error:  # a parameter that is no number
            return "400 Bad Request", _JSON, _plain({"error": "bad request", "reason": str(error)})
        except Exception as error:
            log.error("admin_request_failed", path=path, error=repr(error), exc_info=error)
            return "500 Internal Server Error", _JSON, _plain({"error": repr(error)})


def _plain(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
