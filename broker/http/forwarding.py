"""Any broker answers any call: find a partition's owner, do the work there, pass the answer on.

`with_owner` waits out a take-over (broker/operations/routing.py). Publishes and reads go to another
owner as operations (broker/operations); every other call is passed on once at most, to a
registered broker, with a proof (broker_calls.py): a broker that gets one and is not the owner, by
what stands in the store and not only by what it has heard, says so, and the first broker looks
again. What was sent and not answered is never sent a second time: that is a 504, outcome unknown,
and the caller decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from typing import Any, NamedTuple, Protocol, TypeVar

import aiohttp
import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from octavo.broker.errors import NotOwner, OwnerUnreachable, TopicChanged, TopicReplaced
from octavo.broker.http.broker_calls import (
    INCARNATION_HEADER,
    INNER_HEADERS,
    BrokerProof,
    escaped,
    partition_path,
)
from octavo.broker.http.call import OWNER_HEADER, Call
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.pages import EVENTS
from octavo.broker.http.problems import Problem, problem_from, refusal_of
from octavo.broker.http.quotas import MESSAGES_HEADER
from octavo.broker.metrics import Metrics
from octavo.broker.operations import routing
from octavo.broker.operations.kinds import AnyAnswer, AnyOperation, Receive, Refused, numbered
from octavo.broker.operations.local import run
from octavo.broker.operations.remote import MOVING_CODES
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Owner, PartitionName, TopicInfo
from octavo.security.principal import Identity
from octavo.tls.contexts import Certificates
from octavo.tls.words import why

HELD_ANSWER_BYTES_MAX = 1024 * 1024
"""A longer answer is passed on piece by piece."""
HELD_BODY_BYTES_MAX = 1024 * 1024
"""A longer body, or one of unknown length, is passed on as it comes, and then only once."""
ASKED_AT_ONCE = 64
"""Partitions asked side by side for one call on a topic."""
KEEPALIVE_S = 20
"""Below the servers' own, so that a connection is rarely closed under a request."""

_CREDENTIALS = frozenset(("authorization", "cookie"))
"""They prove the caller to the broker that was asked, which then says who it is."""
_HOP_BY_HOP = frozenset(
    (
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
"""Not passed on: they are of one connection, or of bytes that aiohttp has already unpacked."""
_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Refused, or not a word for `peer_connect_timeout_ms`: nothing was sent."""
_NOT_PASSED_ON = _HOP_BY_HOP | INNER_HEADERS | _CREDENTIALS
"""What counts between brokers is what the broker says that passes the call on."""
_NOT_COPIED_BACK = _HOP_BY_HOP | {"date", "server", MESSAGES_HEADER} - {"content-encoding"}

Result = TypeVar("Result")


class Reply(NamedTuple):
    """Another broker's whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def with_owner(
    call: Call,
    name: PartitionName,
    here: Callable[[Partition], Awaitable[Result]],
    there: Callable[[Owner], Awaitable[Result]],
    *,
    may_repeat: Callable[[], bool] = lambda: True,
) -> Result:
    """What `here` gives when this broker serves the partition, else what `there` gives.

    See `octavo.broker.operations.routing.with_owner`. Raises the `Problem` that the owner has.
    """
    services = call.services
    try:
        return await routing.with_owner(
            services.broker,
            call,
            name,
            here,
            there,
            moving_wait_s=services.config.moving_wait_ms / 1000,
            owned=lambda: services.quotas.owned(call, name.namespace),
            may_repeat=may_repeat,
        )
    except Refused as error:
        raise problem_from(error.refusal) from error


async def topic_of(call: Call) -> TopicInfo:
    """The topic in the path; the rest of the call is about this incarnation of it and no other.

    Raises `TopicNotFound`, and `TopicReplaced` when the caller means an earlier one.
    """
    try:
        info = await call.services.broker.topics.get(call.topic, call.incarnation)
    except TopicChanged as error:
        raise TopicReplaced(str(error)) if call.names_incarnation else error from error
    call.served_incarnation = info.incarnation
    if call.partition is None:  # what was made of the number of partitions must stay true
        call.incarnation = info.incarnation
    return info


Handle = Callable[[Partition], Awaitable[web.StreamResponse]]
Ship = Callable[[Owner], Awaitable[web.StreamResponse]]


async def at_owner(
    call: Call, name: PartitionName, here: Handle, ship: Ship | None = None
) -> web.StreamResponse:
    """Answer the call at the partition's owner: by `here`, by another broker, or by a 307.

    `ship` has it done by another broker, with operations; without it the request is passed on.
    """

    async def there(owner: Owner) -> web.StreamResponse:
        if prefers_redirect(call):
            return _redirect(call, owner)
        if ship is not None:
            return await ship(owner)
        return await call.services.peers.forward(call, owner)

    return await with_owner(call, name, here, there, may_repeat=lambda: not call.body_is_spent)


async def redirected(call: Call, name: PartitionName) -> web.StreamResponse | None:
    """The 307 to the partition's owner, if that is another broker and the caller wants it."""
    if not prefers_redirect(call):
        return None

    async def here(_: Partition) -> None:
        return None

    async def there(owner: Owner) -> web.StreamResponse:
        return _redirect(call, owner)

    return await with_owner(call, name, here, there)


def _redirect(call: Call, owner: Owner) -> web.Response:
    location = owner.url + call.request.raw_path
    headers = {"Location": location, "Preference-Applied": "redirect"}
    return web.Response(status=307, headers=headers)


async def ask_partition(
    call: Call,
    name: PartitionName,
    here: Callable[[Partition], Awaitable[Any]],
    method: str,
    suffix: str,
    *,
    body: Any = None,
    wait_s: float = 0.0,
    kind: Any = dict[str, Any],
    identity: Identity | None = None,
) -> Any:
    """One partition's part of a call on a whole topic, as JSON.

    `here` makes it from the open partition, as a `kind`; at another owner it is the answer of the
    call `…/partitions/{n}{suffix}`, decoded as `kind`, made for the caller or else for `identity`.
    Raises what `here` raises, or the other's
    problem.
    """

    async def there(owner: Owner) -> Any:
        path = partition_path(name) + suffix
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        reply = await call.services.peers.ask(
            call.services.broker.broker_id,
            owner,
            method,
            path,
            content,
            headers,
            wait_s,
            identity=identity or call.identity,
        )
        return msgspec.json.decode(reply.body or b"{}", type=kind)

    before = call.owner_url
    try:
        return await with_owner(call, name, here, there)
    finally:
        call.owner_url = before  # the call as a whole has no single owner


async def operate(
    call: Call,
    operation: AnyOperation,
    kind: type[Result],
    *,
    wait_s: float = 0.0,
    identity: Identity | None = None,
    at_hand: Callable[[Partition], Awaitable[AnyAnswer]] | None = None,
) -> Result:
    """The answer of the partition's owner, this broker or another one, which is a `kind`.

    `wait_s`: how long the operation may wait. `identity`: for whom, if not for the caller.
    `at_hand` does the same at this broker with what the call knows already. Raises what the
    operation raises here, or the other's problem.
    """
    services, caller = call.services, identity or call.identity
    shipped = operation
    if isinstance(operation, Receive):
        shipped = numbered(operation, lambda: f"{services.proof.run}.r{next(services.receives)}")

    async def here(partition: Partition) -> AnyAnswer:
        if at_hand is not None:
            return await at_hand(partition)
        turns = services.broker.open_batches.turns
        return await run(partition, operation, caller, services.rules, refusal_of, turns)

    async def there(owner: Owner) -> AnyAnswer:
        return await services.remote.ask(owner, caller, shipped, wait_s)

    found = await with_owner(call, operation.name, here, there)
    assert isinstance(found, kind)
    return found


async def operate_part(
    call: Call,
    operation: AnyOperation,
    kind: type[Result],
    *,
    wait_s: float = 0.0,
    identity: Identity | None = None,
    at_hand: Callable[[Partition], Awaitable[AnyAnswer]] | None = None,
) -> Result:
    """The same for one of several partitions: the call as a whole has no single owner."""
    before = call.owner_url
    try:
        return await operate(
            call, operation, kind, wait_s=wait_s, identity=identity, at_hand=at_hand
        )
    finally:
        call.owner_url = before


class Operate(Protocol[Result]):
    """`operate` or `operate_part`."""

    def __call__(
        self,
        call: Call,
        operation: AnyOperation,
        kind: type[Result],
        *,
        at_hand: Callable[[Partition], Awaitable[AnyAnswer]] | None = None,
    ) -> Awaitable[Result]:
        """The answer of the partition's owner."""
        ...


async def ask_all(asked: Sequence[Coroutine[Any, Any, Result]]) -> list[Result | BaseException]:
    """What many asks gave, in order; not all at once, for a topic may have many partitions.

    One begins in a turn of the loop: what is asked here takes a millisecond, and does not wait.
    """
    beginning = asyncio.Lock()
    left = iter(enumerate(asked))
    found: dict[int, Result | BaseException] = {}

    async def work() -> None:
        for place, ask in left:
            try:
                async with beginning:
                    await asyncio.sleep(0)
                found[place] = await ask
            except (Exception, asyncio.CancelledError) as error:
                ask.close()
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                found[place] = error

    try:
        await asyncio.gather(*(work() for _ in range(min(len(asked), ASKED_AT_ONCE))))
    finally:
        for _, ask in left:
            ask.close()
    return [found[place] for place in range(len(asked))]


def all_or_raise(found: Sequence[Result | BaseException]) -> list[Result]:
    """The results, or the first failure among them."""
    results: list[Result] = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        results.append(one)
    return results


class Peers:
    """Connections to the other brokers.

    Calls that wait have a pool of their own, without a bound: each of them holds a connection of
    its caller, and those are bounded. So however many wait, those that work find a connection.
    """

    def __init__(
        self,
        config: HttpConfig,
        metrics: Metrics,
        proof: BrokerProof,
        tls: Certificates | None = None,
    ) -> None:
        self._config = config
        self._tls = tls
        self._metrics = metrics
        self._proof = proof
        self._working: aiohttp.ClientSession | None = None
        self._waiting: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Make the pools; nothing is connected yet."""
        self._working = self._pool(self._config.peer_connections_max)
        self._waiting = self._pool(0)

    def _pool(self, connections_max: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections_max,
                keepalive_timeout=KEEPALIVE_S,
                use_dns_cache=True,
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=256 * 1024,
            skip_auto_headers=(hdrs.USER_AGENT, hdrs.CONTENT_TYPE),
            raise_for_status=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        for session in (self._working, self._waiting):
            if session is not None:
                await session.close()
        self._working = self._waiting = None

    async def ask(
        self,
        from_broker: str,
        owner: Owner,
        method: str,
        path: str,
        body: bytes | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        *,
        identity: Identity,
    ) -> Reply:
        """Call another broker for `identity` and read its whole answer.

        Raises `NotOwner` and `OwnerUnreachable` (nothing was done), and the `Problem` it answers.
        """
        url = _url(owner, path)
        sent = dict(headers or {})
        if owner.incarnation:
            sent[INCARNATION_HEADER] = owner.incarnation
        self._proof.enter(sent, from_broker, owner.broker_id, method, url.raw_path_qs, identity)
        try:
            async with self._open(method, url, body, sent, wait_s) as response:
                content = await response.read()
        except _NOT_CONNECTED as error:
            raise _unreachable(owner, error) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unknown(owner, error) from error
        if response.status >= 400:
            raise _problem_from(owner, response.status, content)
        return Reply(response.status, response.headers, content)

    async def forward(
        self, call: Call, owner: Owner, path: str | None = None
    ) -> web.StreamResponse:
        """Pass the request on and its answer back, both as streams when they are long.

        `path`: where that of the request does not say which partition it is for.
        """
        self._metrics.forwarded.inc()
        request = call.request
        url = _url(owner, path or request.raw_path)
        broken: list[Problem] = []
        body: Any = None
        length = request.content_length
        if call.body_was_read or (length is not None and length <= HELD_BODY_BYTES_MAX):
            body = await call.read_body()
        elif request.body_exists:
            body = self._passing_on(call, broken)
        headers = escaped(
            CIMultiDict(
                (key.lower(), value)  # aiohttp drops the first of a name in two spellings
                for key, value in request.headers.items()
                if key.lower() not in _NOT_PASSED_ON
            )
        )
        if owner.incarnation:
            headers[INCARNATION_HEADER] = owner.incarnation
        self._proof.enter(
            headers,
            call.services.broker.broker_id,
            owner.broker_id,
            request.method,
            url.raw_path_qs,
            call.identity,
        )
        waits = call.route.waits and ("wait" in call.query or "live" in call.query)
        wait_s = self._config.wait_ms_max / 1000 if waits else 0.0
        try:
            opened = self._open(request.method, url, body, headers, wait_s)
            async with opened as response:
                return await self._pass_back(call, owner, response)
        except _NOT_CONNECTED as error:
            raise _unreachable(owner, error) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            if broken:
                raise broken[0] from error
            if request.method in ("GET", "HEAD") or call.route.waits:
                raise _unreachable(owner, error) from error
            raise _unknown(owner, error) from error

    async def _passing_on(self, call: Call, broken: list[Problem]) -> AsyncIterator[bytes]:
        """The body as it comes; what is wrong with it is kept, for aiohttp would hide it."""
        try:
            async for piece in call.stream_body():
                yield piece
        except Problem as problem:
            problem.detail += "; what came before may have been published"
            broken.append(problem)
            raise

    async def _pass_back(
        self, call: Call, owner: Owner, response: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        headers = CIMultiDict(
            (key, value)
            for key, value in response.headers.items()
            if key.lower() not in _NOT_COPIED_BACK
        )
        call.messages += int(response.headers.get(MESSAGES_HEADER, 0))
        headers.setdefault(OWNER_HEADER, owner.url)
        headers["Server"] = "octavo"
        length = response.content_length
        if length is not None and length <= HELD_ANSWER_BYTES_MAX:
            content = await response.read()
            if response.status == 503 and not call.body_is_spent:
                problem = _problem_from(owner, 503, content)
                if isinstance(problem, NotOwner | TopicChanged):
                    raise problem
            return web.Response(status=response.status, headers=headers, body=content)
        answer = web.StreamResponse(status=response.status, headers=headers)
        if length is not None:
            answer.content_length = length
        call.is_streaming = call.is_streaming or response.content_type == EVENTS
        await answer.prepare(call.request)
        try:
            while chunk := await response.content.readany():
                async with asyncio.timeout(self._config.stall_timeout_ms / 1000):
                    await answer.write(chunk)
        except (aiohttp.ClientError, TimeoutError) as error:
            # The status is out already: a broken connection is the only honest end.
            raise ConnectionResetError(f"answer of {owner.url} broke off") from error
        return answer

    def _open(
        self, method: str, url: URL, body: Any, headers: Mapping[str, str], wait_s: float
    ) -> Any:
        session = self._waiting if wait_s else self._working
        assert session is not None, "peers are started"
        config = self._config
        return session.request(
            method,
            url,
            data=body,
            headers=headers,
            allow_redirects=False,
            ssl=self._tls.client if self._tls and self._tls.client else True,
            timeout=aiohttp.ClientTimeout(
                total=None,
                connect=config.peer_connect_timeout_ms / 1000 * 2,
                sock_connect=config.peer_connect_timeout_ms / 1000,
                sock_read=config.peer_answer_timeout_ms / 1000 + wait_s,
            ),
        )


def _url(owner: Owner, path: str) -> URL:
    return URL(owner.url + path, encoded=True)


def prefers_redirect(call: Call) -> bool:
    """Whether the caller would rather go to the owner itself."""
    return any(
        wish.strip().lower() == "redirect"
        for value in call.request.headers.getall("Prefer", ())
        for wish in value.split(",")
    )


def _unreachable(owner: Owner, error: BaseException) -> OwnerUnreachable:
    return OwnerUnreachable(
        f"broker {owner.broker_id}, which owns the partition, cannot be reached at {owner.url} "
        f"({_reason(error)}); another one takes over when its session has ended"
    )


def _reason(error: BaseException) -> str:
    return why(error) or str(error) or type(error).__name__


def _unknown(owner: Owner, error: BaseException) -> Problem:
    return Problem(
        504,
        "outcome-unknown",
        f"broker {owner.broker_id}, which owns the partition, broke off before it answered "
        f"({_reason(error)}); what was asked for may or may not have happened. "
        "Repeating is safe for an ack, and for a publish with the same Producer-Id, Epoch and Seq",
        retryable=True,
    )


def _problem_from(owner: Owner, status: int, content: bytes) -> Problem | NotOwner | TopicChanged:
    """Another broker's problem as our own; `NotOwner`, `TopicChanged` when it did nothing."""
    try:
        members: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError:
        members = {}
    code = str(members.pop("code", "peer-error"))
    detail = str(members.pop("detail", f"broker at {owner.url} answered {status}"))
    if status == 503 and code in MOVING_CODES:
        return NotOwner(detail)
    if status == 503 and code == TopicChanged.name:
        return TopicChanged(detail)
    retryable = bool(members.pop("retryable", False))
    for known in ("type", "title", "status", "instance"):
        members.pop(known, None)
    return Problem(status, code, detail, retryable=retryable, extra=members)
