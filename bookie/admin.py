"""A port for operators and scrapers: HTTP/1.1, one short request per connection, JSON answers.

It is a page of code instead of a web framework, because a bookie's memory belongs to its caches.
Other parts of the bookie register routes:

    admin.route("GET", "/damage", lambda query: found[: number_of(query, "limit", 1000)], "limit")
    admin.route("POST", "/gc", start_collection)          # may be a coroutine function

A handler gets the query's parameters, of which the route names all, and returns what `json.dumps`
takes. The handler bounds its own answer (`limit`). An `OctavoError` that it raises becomes an
answer with the error's text, and so does a wrong parameter (`400`). The bytes of a request, the
time until its answer and the number of connections are bounded. Above the number, a new connection
cuts off the oldest connection that has sent no request yet, so silent connections cannot lock out a
health probe. `GET` changes nothing.

A `POST` from a web page in a browser (with `Origin` or `Sec-Fetch-Site`) is refused, and so is a
request whose `Host` header names another host. In a secured cluster `/healthz` tells
every caller only whether the bookie is healthy. Other `GET` requests need the right to describe
bookies or the cluster, and every `POST` needs the right to administer bookies.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import structlog

from octavo.bookie.metrics import BookieMetrics
from octavo.bookie.wire.guard import Guard
from octavo.bookie.wire.listener import ListenFailed, why_not_listening
from octavo.protocol.codes import OctavoError
from octavo.protocol.host_names import is_own
from octavo.protocol.numbers import WHOLE_MAX, whole
from octavo.security.principal import ANONYMOUS, Shown, Unauthenticated
from octavo.security.rules import BOOKIES, CLUSTER, Operation
from octavo.tls.contexts import Certificates
from octavo.tls.listening import TlsListener, plain_http

Handler = Callable[[Mapping[str, str]], Any]
"""Takes the query; returns a JSON-able value, or an awaitable of such a value."""

_REQUEST_BYTES_MAX = 8 * 1024
_REQUEST_S_MAX = 10.0
_CONNECTIONS_MAX = 64
_CONNECTIONS_OF_ADDRESS_MAX = 16
"""Connections from one address; the next one cuts off the address's oldest silent connection."""
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_UNHEALTHY = "503 Service Unavailable"
_UNAUTHENTICATED = "401 Unauthorized"
_CHALLENGE = 'WWW-Authenticate: Bearer realm="octavo"\r\n'

log = structlog.get_logger()


class BadParameter(Exception):
    """A parameter of a query is wrong. The caller gets 400 with this text."""


class AdminServer:
    """Serves a node's metrics and health, and the routes that its parts register."""

    def __init__(
        self,
        metrics: BookieMetrics,
        health: Callable[[], tuple[bool, dict[str, Any]]],
        guard: Guard | None = None,
        names: Collection[str] = (),
    ) -> None:
        """`guard` decides what each caller may do; without it every caller may do everything.

        `names` are the host names of this node, besides IP addresses and names without a dot.
        """
        self._names = frozenset(name.lower() for name in names)
        self._metrics = metrics
        self._health = health
        self._guard = guard
        self._routes: dict[tuple[str, str], tuple[Handler, tuple[str, ...]]] = {}
        """The handler and the parameters of each route."""
        self._listener: asyncio.Server | TlsListener | None = None
        self._connections: dict[asyncio.StreamWriter, str] = {}
        """The address of each connection, in order of arrival."""
        self._silent: dict[asyncio.StreamWriter, None] = {}
        """Connections that have sent no request yet, in order of arrival."""
        self.port = 0

    def describe(self) -> dict[str, int]:
        """Count what is in use now; all counts are 0 at rest."""
        return {"connections": len(self._connections), "silent": len(self._silent)}

    def route(self, method: str, path: str, handler: Handler, *parameters: str) -> None:
        """Answer `method` (GET or POST) on `path` with what `handler` returns, as JSON.

        A query with other `parameters` is answered with 400.
        """
        assert method in ("GET", "POST")
        assert path.startswith("/")
        assert (method, path) not in self._routes, f"{method} {path} is registered already"
        self._routes[method, path] = handler, parameters

    @property
    def paths(self) -> list[str]:
        """The requests that are served, for example `GET /healthz`."""
        found = [("GET", "/healthz"), ("GET", "/metrics"), *self._routes]
        return [f"{method} {path}" for method, path in sorted(found, key=lambda one: one[::-1])]

    async def start(self, host: str, port: int, tls: Certificates | None = None) -> None:
        """Listen, by https:// if `tls` is given. Raises `ListenFailed`."""
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
        if self._listener is not None:
            self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._has_room(_address_of(writer)):
            writer.close()
            return
        self._connections[writer] = _address_of(writer)
        self._silent[writer] = None
        try:
            async with asyncio.timeout(_REQUEST_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                self._silent.pop(writer, None)
                writer.write(await self._answer(head, _shown(head, writer)))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, or does not speak HTTP
        finally:
            self._connections.pop(writer, None)
            self._silent.pop(writer, None)
            writer.close()

    def _has_room(self, address: str) -> bool:
        """Whether a connection may be served; cuts off a silent connection if necessary."""
        same = [one for one, its in self._connections.items() if its == address]
        if len(same) >= _CONNECTIONS_OF_ADDRESS_MAX:
            return self._cut_off(one for one in same if one in self._silent)
        if len(self._connections) >= _CONNECTIONS_MAX:
            return self._cut_off(self._silent)
        return True

    def _cut_off(self, silent: Iterable[asyncio.StreamWriter]) -> bool:
        """End the first of these connections; False when there is none."""
        oldest = next(iter(silent), None)
        if oldest is None:
            return False
        del self._connections[oldest], self._silent[oldest]
        oldest.transport.abort()
        return True

    async def _answer(self, head: bytes, shown: Shown) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path, _, query = rest.partition(" ")[0].partition("?")
        refused = self._misdirected(head) or await self._refusal(method, path, shown)
        status, kind, body = refused or await self._route(method, path, query, head)
        challenge = _CHALLENGE if status == _UNAUTHENTICATED else ""
        front = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{challenge}"
            "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return front.encode() + (b"" if method == "HEAD" else body)

    def _misdirected(self, head: bytes) -> tuple[str, str, bytes] | None:
        """Return the refusal of a foreign host name; None when the name is ours."""
        for host in _values(head, b"host"):
            if not is_own(host, self._names):
                reason = (
                    f"this bookie does not go by the name {host[:100]!r}: use its IP address, or "
                    "the name that it advertises (advertised_host)"
                )
                return (
                    "421 Misdirected Request", _JSON,
                    _plain({"error": "unknown-host", "reason": reason}),
                )  # fmt: skip
        return None

    async def _refusal(self, method: str, path: str, shown: Shown) -> tuple[str, str, bytes] | None:
        """Return status, content type and body of a refusal; None when the caller may ask."""
        guard = self._guard
        if guard is None or not guard.secured:
            return None
        is_health = path == "/healthz" and method in ("GET", "HEAD")
        try:
            caller = await guard.identify(shown)
        except Unauthenticated as error:
            if is_health:
                return self._alive()
            return _UNAUTHENTICATED, _JSON, _plain({"error": error.name, "reason": str(error)})
        decide = guard.authority.decide
        if method in ("GET", "HEAD"):
            decisions = [decide(caller, Operation.DESCRIBE, one) for one in (BOOKIES, CLUSTER)]
        else:
            decisions = [decide(caller, Operation.ADMIN, BOOKIES)]
        if any(decision.allowed for decision in decisions):
            return None
        if is_health:
            return self._alive()
        log.warning("admin_request_refused", peer=shown.peer, who=caller.name, path=path)
        reason = f"{method} {path}: {decisions[0].reason}"
        if caller == ANONYMOUS:
            reason += ". Show a token (Authorization: Bearer …, OCTAVO_TOKEN) or a certificate"
            return _UNAUTHENTICATED, _JSON, _plain({"error": "unauthenticated", "reason": reason})
        return "403 Forbidden", _JSON, _plain({"error": "forbidden", "reason": reason})

    def _alive(self) -> tuple[str, str, bytes]:
        """Answer only whether the bookie is healthy: more is for callers with rights."""
        healthy, _ = self._health()
        return "200 OK" if healthy else _UNHEALTHY, _JSON, _plain({"healthy": healthy})

    async def _route(
        self, method: str, path: str, query: str, head: bytes
    ) -> tuple[str, str, bytes]:
        """Return status, content type and body of the answer."""
        wanted = "GET" if method == "HEAD" else method
        if (wanted, path) == ("GET", "/metrics"):
            return "200 OK", _TEXT, self._metrics.exposition()
        if (wanted, path) == ("GET", "/healthz"):
            healthy, facts = self._health()
            return "200 OK" if healthy else _UNHEALTHY, _JSON, _plain(facts)
        found = self._routes.get((wanted, path))
        if found is None:
            known = any(line.endswith(f" {path}") for line in self.paths)
            status = "405 Method Not Allowed" if known else "404 Not Found"
            return status, _JSON, _plain({"error": status[4:].lower(), "paths": self.paths})
        if wanted == "POST" and (_values(head, b"origin") or _values(head, b"sec-fetch-site")):
            return "403 Forbidden", _JSON, _plain({"error": "a web page may change nothing here"})
        handler, parameters = found
        try:
            said = handler(_parameters(query, parameters))
            return "200 OK", _JSON, _plain(await said if inspect.isawaitable(said) else said)
        except OctavoError as error:
            facts = {"error": error.name, "reason": str(error)}
            return "503 Service Unavailable", _JSON, _plain(facts)
        except BadParameter as error:
            return "400 Bad Request", _JSON, _plain({"error": "bad request", "reason": str(error)})
        except Exception as error:
            log.error("admin_request_failed", path=path, error=repr(error), exc_info=error)
            return "500 Internal Server Error", _JSON, _plain({"error": repr(error)})


def number_of(query: Mapping[str, str], name: str, default: int) -> int:
    """Return a whole number from the query. Raises `BadParameter`."""
    text = query.get(name)
    found = default if text is None else whole(text)
    if found is None:
        raise BadParameter(
            f"{name}={text[:60] if text else ''!r}: it must be a whole number from 0 to "
            f"{WHOLE_MAX} in plain digits, without a sign or a zero in front"
        )
    return found


def flag_of(query: Mapping[str, str], name: str) -> bool:
    """Return whether the query sets `name`. Raises `BadParameter`."""
    text = query.get(name, "0")
    if text not in ("0", "1"):
        raise BadParameter(f"{name}={text[:60]!r}: it must be 1 (yes) or 0 (no)")
    return text == "1"


def _parameters(query: str, known: Sequence[str]) -> dict[str, str]:
    """Return the query's parameters. Raises `BadParameter` for unknown and repeated ones."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            said = f"it may be {', '.join(known)}" if known else "this request takes none"
            raise BadParameter(f"there is no parameter {name[:60]!r}: {said}")
        if name in found:
            raise BadParameter(f"the parameter {name} is there twice; it may be there once")
        found[name] = value
    return found


def _address_of(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if peer else "?"


def _shown(head: bytes, writer: asyncio.StreamWriter) -> Shown:
    """Return the credentials that the caller shows."""
    given = ", ".join(_values(head, b"authorization")) or None  # several headers prove nothing
    tls = writer.get_extra_info("ssl_object")
    peer = writer.get_extra_info("peername") or ("?",)
    return Shown(given, tls and tls.getpeercert(True), ":".join(map(str, peer[:2])))


def _values(head: bytes, wanted: bytes) -> list[str]:
    """Return the value of each header of that name."""
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return [
        value.strip().decode("latin-1")
        for name, _, value in lines
        if name.strip().lower() == wanted
    ]


def _plain(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
