"""A port for operators and scrapers: HTTP/1.1, one short request per connection, JSON answers.

    admin.route("GET", "/damage", lambda query: found[: number_of(query, "limit", 1000)], "limit")
    admin.route("POST", "/gc", start_collection)          # may be a coroutine function

A handler's `OctavoError` becomes the answer. `GET` changes nothing. Above the bound of connections,
a new one cuts off the oldest silent one, so that health probes get in. A `POST` from a web page and
a foreign `Host` are refused. In a secured cluster `GET` needs the right to describe, `POST` to
administer bookies; `/healthz` tells strangers only whether the bookie is healthy.
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

_REQUEST_BYTES_MAX = 8 * 1024
_REQUEST_S_MAX = 10.0
_CONNECTIONS_MAX = 64
_CONNECTIONS_OF_ADDRESS_MAX = 16
"""The next one cuts off the address's oldest silent connection."""
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_UNHEALTHY = "503 Service Unavailable"
_UNAUTHENTICATED = "401 Unauthorized"
_CHALLENGE = 'WWW-Authenticate: Bearer realm="octavo"\r\n'

log = structlog.get_logger()


class BadParameter(Exception):
    pass


class AdminServer:
    def __init__(
        self,
        metrics: BookieMetrics,
        health: Callable[[], tuple[bool, dict[str, Any]]],
        guard: Guard | None = None,
        names: Collection[str] = (),
    ) -> None:
        """Answer on the admin port; without `guard` everything is allowed.

        `names`: host names, besides addresses and names without a dot.
        """
        self._names = frozenset(name.lower() for name in names)
        self._metrics = metrics
        self._health = health
        self._guard = guard
        self._routes: dict[tuple[str, str], tuple[Handler, tuple[str, ...]]] = {}
        self._listener: asyncio.Server | TlsListener | None = None
        self._connections: dict[asyncio.StreamWriter, str] = {}
        self._silent: dict[asyncio.StreamWriter, None] = {}
        """Connections that have sent no request yet."""
        self.port = 0

    def describe(self) -> dict[str, int]:
        return {"connections": len(self._connections), "silent": len(self._silent)}

    def route(self, method: str, path: str, handler: Handler, *parameters: str) -> None:
        """Add a route; a request with other `parameters` gets 400."""
        assert method in ("GET", "POST")
        assert path.startswith("/")
        assert (method, path) not in self._routes, f"{method} {path} is registered already"
        self._routes[method, path] = handler, parameters

    @property
    def paths(self) -> list[str]:
        found = [("GET", "/healthz"), ("GET", "/metrics"), *self._routes]
        return [f"{method} {path}" for method, path in sorted(found, key=lambda one: one[::-1])]

    async def start(self, host: str, port: int, tls: Certificates | None = None) -> None:
        """Listen, by https if `tls` is given. Raises `ListenFailed`."""
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
            pass
        finally:
            self._connections.pop(writer, None)
            self._silent.pop(writer, None)
            writer.close()

    def _has_room(self, address: str) -> bool:
        same = [one for one, its in self._connections.items() if its == address]
        if len(same) >= _CONNECTIONS_OF_ADDRESS_MAX:
            return self._cut_off(one for one in same if one in self._silent)
        if len(self._connections) >= _CONNECTIONS_MAX:
            return self._cut_off(self._silent)
        return True

    def _cut_off(self, silent: Iterable[asyncio.StreamWriter]) -> bool:
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
        """Return an error answer, or None when the host name is ours."""
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
        healthy, _ = self._health()
        return "200 OK" if healthy else _UNHEALTHY, _JSON, _plain({"healthy": healthy})

    async def _route(
        self, method: str, path: str, query: str, head: bytes
    ) -> tuple[str, str, bytes]:
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
    text = query.get(name)
    found = default if text is None else whole(text)
    if found is None:
        raise BadParameter(
            f"{name}={text[:60] if text else ''!r}: it must be a whole number from 0 to "
            f"{WHOLE_MAX} in plain digits, without a sign or a zero in front"
        )
    return found


def flag_of(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "0")
    if text not in ("0", "1"):
        raise BadParameter(f"{name}={text[:60]!r}: it must be 1 (yes) or 0 (no)")
    return text == "1"


def _parameters(query: str, known: Sequence[str]) -> dict[str, str]:
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
    given = ", ".join(_values(head, b"authorization")) or None
    tls = writer.get_extra_info("ssl_object")
    peer = writer.get_extra_info("peername") or ("?",)
    return Shown(given, tls and tls.getpeercert(True), ":".join(map(str, peer[:2])))


def _values(head: bytes, wanted: bytes) -> list[str]:
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return [
        value.strip().decode("latin-1")
        for name, _, value in lines
        if name.strip().lower() == wanted
    ]


def _plain(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
