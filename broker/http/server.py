"""The HTTP server of a broker: listen, dispatch, answer errors as problems, stop in order.

`start` binds first, so that the broker registers an address that it really has. `stop` hands
partitions to other brokers, closes the listener, waits for requests under way, releases the
remaining partitions, and only then closes connections.
"""

from __future__ import annotations

import asyncio
import errno
import random
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from octavo.broker.audit import AuditLog
from octavo.broker.broker import Broker
from octavo.broker.errors import BrokerError
from octavo.broker.groups.coordinator import Groups
from octavo.broker.http.api.fast_publish import FastPublish
from octavo.broker.http.broker_connections import Door, new_remote
from octavo.broker.http.call import INCARNATION_HEADER, OWNER_HEADER, Call
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.connections import Connection, ConnectionServer
from octavo.broker.http.csrf import check_browser, preflight, protect
from octavo.broker.http.former_names import FormerNames
from octavo.broker.http.gate import Gate
from octavo.broker.http.held_bytes import HeldBytes
from octavo.broker.http.overview import Overview
from octavo.broker.http.problems import Problem, problem_of, refusal_of
from octavo.broker.http.quotas import HttpQuotas
from octavo.broker.http.router import Router
from octavo.broker.http.routes import OPENAPI, ROUTES
from octavo.broker.http.services import Services, node_identity
from octavo.broker.http.stream import StreamPlaces, stopping
from octavo.broker.metrics import Metrics
from octavo.broker.operations.asking import Operations
from octavo.broker.operations.brokers import OwnOperations
from octavo.broker.operations.producer_ids import ProducerIds
from octavo.broker.operations.remote import Remote
from octavo.broker.operations.rules import BrokerRules
from octavo.metadata.bookies import BookieRegistry
from octavo.metadata.store import MetadataStore
from octavo.protocol.codes import Scope
from octavo.security.authority import Authority
from octavo.security.principal import Authenticates
from octavo.security.settings import SecurityConfig
from octavo.tls.contexts import Certificates
from octavo.tls.listening import TlsListener, plain_http

if TYPE_CHECKING:
    from octavo.ledger.client import LedgerClient

BACKLOG = 1024
WATCHED_BYTES = 64 * 1024
READ_BUFFER_BYTES = 128 * 1024
"""Reading pauses when a handler is behind by twice this."""
GONE_CHECK_S = 1.0
CLIENT_GONE = 499
"""The status of a call whose client is gone: for the metrics only, never sent."""
UNKNOWN_CALL = "unknown"
STREAM_CALLS = {"read": "follow", "read_of_partition": "follow"}

log = structlog.get_logger()


class CannotListen(BrokerError):
    name = "cannot-listen"
    scope = Scope.PROCESS


class BrokerServer:
    def __init__(
        self,
        broker: Broker,
        *,
        store: MetadataStore,
        ledgers: LedgerClient,
        clock: Callable[[], int],
        call_key: bytes,
        http: HttpConfig | None = None,
        tls: Certificates | None = None,
        authority: Authority | None = None,
        authenticator: Authenticates | None = None,
        security: SecurityConfig | None = None,
    ) -> None:
        """Make a server; `authority`, already started, decides who may do what.

        Without `authority` everything is allowed; without `authenticator` callers are anonymous.
        """
        self._broker = broker
        self._config = http or HttpConfig()
        self._tls = tls if tls and tls.config.serves else None
        metrics = _metrics_of(broker)
        required = bool(security and security.required)
        door = Door(broker.config.broker_id, call_key, _draw_nonce)
        gate = Gate(authority, authenticator, clock, metrics.denied, door.check, required=required)
        self._gate = gate
        quotas = HttpQuotas(store, broker, self._config, metrics)
        remote, run_id = self._new_remote(call_key, tls, metrics), secrets.token_hex(8)
        ids = ProducerIds(call_key, lambda: gate.secured)
        groups = Groups(self._config)
        config, held = self._config, HeldBytes(self._config.bodies_bytes_max)
        rules = BrokerRules(
            broker, gate, quotas, ids, metrics, config.line_bytes_max,
            config.large_message_bytes_max, held,
        )  # fmt: skip
        self._services = Services(
            broker=broker,
            ledgers=ledgers,
            store=store,
            overview=Overview(store, BookieRegistry(store), broker, clock),
            config=self._config,
            metrics=metrics,
            streams=StreamPlaces(self._config.streams_max, metrics.streams.set),
            held=held,
            quotas=quotas,
            groups=groups,
            remote=remote,
            rules=rules,
            operations=self._new_operations(remote, rules, run_id, groups),
            door=door,
            run_id=run_id,
            gate=gate,
            clock=clock,
            openapi=OPENAPI,
        )
        own_operations = OwnOperations(remote, run_id)
        self._audit = AuditLog(
            broker,
            own_operations.write_audit,
            clock=clock,
            rng=random.SystemRandom(),
            count_lost=metrics.audit_lost.inc,
            count_written=metrics.audit_events.inc,
        )
        self._services.held.quota_of = self._services.quotas.memory_of
        gate.on_decision = self._audit.on_decision
        gate.on_unauthenticated = self._audit.on_unauthenticated
        metrics.held_bytes.set_function(lambda: self._services.held.total)
        self._short_way = FastPublish(self._services)
        own_operations.connect(broker)
        self._router = Router(FormerNames().routes(ROUTES))
        self._listener: asyncio.Server | TlsListener | None = None
        self._http: ConnectionServer | None = None
        self._hosts: frozenset[str] = frozenset()

    def _new_remote(self, call_key: bytes, tls: Certificates | None, metrics: Metrics) -> Remote:
        broker_id = self._broker.config.broker_id
        own, count = node_identity(broker_id), metrics.forwarded.inc
        return new_remote(own, broker_id, self._config, call_key, _draw_nonce, tls, count)

    def _new_operations(
        self, remote: Remote, rules: BrokerRules, run_id: str, groups: Groups
    ) -> Operations:
        wait_s = self._config.moving_wait_ms / 1000
        return Operations(self._broker, remote, rules, refusal_of, wait_s, run_id, groups)

    @property
    def operations(self) -> Operations:
        return self._services.operations

    @property
    def url(self) -> str:
        return self._services.url

    async def start(self) -> None:
        config = self._config
        host, port = self._broker.config.host, self._broker.config.port
        self._http = ConnectionServer(
            self._answer,
            connections_max=config.connections_max,
            connections_reserved=config.connections_reserved,
            on_refused=self._services.metrics.connections_refused.inc,
            short_way=self._short_way.take,
            access_log=None,
            keepalive_timeout=config.keepalive_timeout_ms / 1000,
            max_line_size=config.header_bytes_max,
            max_field_size=config.header_bytes_max,
            max_headers=config.headers_max,
            lingering_time=2.0,
            read_bufsize=READ_BUFFER_BYTES,
            auto_decompress=False,
        )
        try:
            bound = await self._listen(self._http, host, port)
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        advertised = self._broker.config.advertised_host or host
        name = f"[{advertised}]" if ":" in advertised else advertised
        self._services.url = f"{'https' if self._tls else 'http'}://{name}:{bound}"
        self._hosts = frozenset(name.lower() for name in (*config.allowed_hosts, advertised))
        try:
            await self._services.quotas.start()
            await self._broker.start(self._services.url)
            self._services.overview.start()
            self._audit.start()
        except BaseException:
            await self._cut_off()
            raise
        self._services.ready = True
        log.info("broker_ready", broker_id=self._broker.broker_id, url=self.url)

    async def _listen(self, http: ConnectionServer, host: str, port: int) -> int:
        if self._tls is not None:
            self._listener = listener = await TlsListener.bind(host, port, self._tls)
            await listener.serve(http, plain_http(self._tls, http))
            return listener.port
        loop = asyncio.get_running_loop()
        self._listener = server = await loop.create_server(http, host, port, backlog=BACKLOG)
        return int(server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop in order; may be called twice."""
        if self._http is None or self._services.leaving:
            return
        self._services.leaving = True
        await self._broker.give_away()
        self._services.stopping.set()
        self._gate.wakes.wake()
        self._services.groups.stop()
        self._services.ready = False
        if self._listener is not None:
            self._listener.close()
        self._http.pre_shutdown()
        try:
            async with asyncio.timeout(self._config.stop_timeout_ms / 1000):
                await self._services.in_hand.idle.wait()
        except TimeoutError:
            log.warning("requests_cut_off", count=self._services.in_hand.count)
        try:
            await self._audit.close()
            await self._broker.close()
        finally:
            await self._cut_off()

    async def _cut_off(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._services.door.close()
        self._services.pages.close()
        await self._services.overview.close()
        await self._services.remote.close()
        await self._services.quotas.close()
        if self._http is not None:
            await self._http.shutdown(timeout=1.0)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        started = loop.time()
        call: Call | None = None
        path, _, query = request.raw_path.partition("?")
        connection = request.protocol
        assert isinstance(connection, Connection)
        self._services.in_hand.enter()
        try:
            check_browser(
                request.method, request.headers, self._hosts, self._config.allowed_origins
            )
            if asked := preflight(request.method, request.headers, self._config.allowed_origins):
                return web.Response(status=204, headers=asked)
            route, variables = self._router.find(request.method, path)
            call = Call(request, route, variables, query, self._services)
            response = await self._run(call, connection)
            if request.method == "GET" and (size := _watched_bytes(response)):
                self._services.held.check_answer(call.peer, size)
            self._services.quotas.answered(call, response)
            if connection.head and response.status == 200:
                self._short_way.learn(connection.head, call)
        except asyncio.CancelledError:
            raise
        except ConnectionError:  # the client is gone
            response = _cut(request)
        except Exception as error:
            told = problem_of(error) if call is None else call.told(error)
            response = told.response(instance=path)
        finally:
            if call is not None:
                call.release()
            self._services.in_hand.leave()
        if not response.prepared:
            headers = response.headers
            headers.setdefault(OWNER_HEADER, call.owner_url if call else self.url)
            if call and call.served_incarnation:
                headers.setdefault(INCARNATION_HEADER, call.served_incarnation)
            headers["Server"] = "octavo"
            protect(headers, request, self._config.allowed_origins)
            if self._services.stopping.is_set() or headers.get("Connection") == "close":
                response.force_close()
        name = call.route.name if call else UNKNOWN_CALL
        if call and call.is_streaming:
            name = STREAM_CALLS.get(name, name)
        self._services.metrics.answered(name, response.status, loop.time() - started)
        if size := _watched_bytes(response):
            peer = call.peer if call else "unknown"
            self._services.held.count_going_out(peer, size)
            try:
                await self._send_watched(request, response)
            finally:
                self._services.held.count_going_out(peer, -size)
        return response

    async def _send_watched(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Send an answer; cut off a client that takes nothing for `stall_timeout_ms`."""

        async def send() -> None:
            await response.prepare(request)
            await response.write_eof()

        sending = asyncio.ensure_future(send())
        waiting = -1
        try:
            while not sending.done():
                await asyncio.wait({sending}, timeout=self._config.stall_timeout_ms / 1000)
                transport = request.transport
                if sending.done() or transport is None:
                    break
                if waiting == (waiting := transport.get_write_buffer_size()):
                    log.info("client_too_slow", remote=request.remote, waiting_bytes=waiting)
                    transport.abort()
                    break
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _run(self, call: Call, connection: Connection) -> web.StreamResponse:
        # The gate closes the connection of an inner call that no broker makes.
        if connection.reserved and not (call.route.inner or call.route.tag == "health"):
            assert self._http is not None
            raise self._http.refused()
        call.grant = await self._gate.admit(call.request, call.route, call.variables)
        if not self._services.ready and call.route.tag != "health":
            raise Problem(
                503,
                "not-ready",
                "this broker is starting or stopping; ask another one, or come back in a moment",
                retryable=True,
            )
        if connection.verdict is not None:
            raise connection.take_verdict()
        self._services.quotas.admit(call, connection)
        if not call.route.waits:
            return await self._services.quotas.measured(call)
        return await self._run_while_wanted(call, connection)

    async def _run_while_wanted(self, call: Call, connection: Connection) -> web.StreamResponse:
        """Run a call; end it when its client goes, this broker stops, or its caller loses the
        right.
        """
        services = self._services
        task = asyncio.ensure_future(services.quotas.measured(call))
        try:
            while not task.done():
                with self._gate.wakes.next() as woken:
                    either: set[asyncio.Future[Any]] = {task, woken}
                    if not call.is_streaming:  # a stream notices by itself, and sends a last word
                        either.add(connection.end)
                    await asyncio.wait(
                        either, timeout=GONE_CHECK_S, return_when=asyncio.FIRST_COMPLETED
                    )
                if task.done():
                    break
                if call.is_streaming and connection.end in either and connection.end.done():
                    continue  # the answer became a stream meanwhile
                ends = stopping() if services.stopping.is_set() else await _denied(call)
                if ends is None and not call.client_is_gone:
                    continue
                call.ends_with = ends
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if call.is_streaming and not task.cancelled() and task.exception() is None:
                    break  # the stream has sent its end; another call may come
                if ends is not None and not call.is_streaming:
                    raise ends
                return _cut(call.request)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def _metrics_of(broker: Broker) -> Metrics:
    return Metrics(
        lambda: [*broker.ownership.open_partitions()],
        broker.duties,
        broker.deletion_time,
    )


def _draw_nonce() -> str:
    return secrets.token_hex(16)


def _watched_bytes(response: web.StreamResponse) -> int:
    body = response.body if isinstance(response, web.Response) else None
    return len(body) if isinstance(body, bytes) and len(body) > WATCHED_BYTES else 0


async def _denied(call: Call) -> Problem | None:
    try:
        await call.ask_again()
    except Problem as problem:
        return problem
    return None


def _cut(request: web.BaseRequest) -> web.Response:
    if request.transport is not None:
        request.transport.close()
    return web.Response(status=CLIENT_GONE)


def _cannot_listen(host: str, port: int, error: OSError) -> CannotListen:
    if error.errno == errno.EADDRINUSE:
        return CannotListen(
            f"port {port} on {host} is in use by another process: stop that process, or choose "
            "another port (0 takes any free port)"
        )
    if error.errno == errno.EACCES:
        return CannotListen(f"port {port} on {host} may not be opened by this user: take one >1023")
    return CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}")
