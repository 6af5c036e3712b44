"""Answer any call at any broker: find the partition's owner, do the work there, return the answer.

`with_owner` waits during a take-over (broker/operations/routing.py). Publishes and reads go to
another owner as operations (broker/operations). Every other call is forwarded at most once, to a
registered broker, with a proof (broker_calls.py). If the receiving broker is not the owner, by the
store and not only by its memory, it says so, and the first broker looks up the owner again. A call
that was sent and not answered is not repeated: the client gets a 504, outcome unknown, and decides.
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
from typing import Any, NamedTuple, TypeVar

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
)
from octavo.broker.http.call import OWNER_HEADER, Call
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.pages import EVENTS
from octavo.broker.http.problems import Problem, problem_from
from octavo.broker.http.quotas import MESSAGES_HEADER
from octavo.broker.metrics import Metrics
from octavo.broker.operations import routing
from octavo.broker.operations.asking import Upload
from octavo.broker.operations.kinds import (
    RULES,
    AnyAnswer,
    GroupOperation,
    LocalOperation,
    Refused,
)
from octavo.broker.operations.large import Pieces
from octavo.broker.operations.large_kinds import LargeStored
from octavo.broker.operations.remote import MOVING_CODES
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Owner, PartitionName, TopicInfo
from octavo.security.principal import Identity
from octavo.tls.contexts import Certificates
from octavo.tls.words import why

HELD_ANSWER_BYTES_MAX = 1024 * 1024
"""A longer answer is returned piece by piece."""
HELD_BODY_BYTES_MAX = 1024 * 1024
"""A longer body, or a body of unknown length, is forwarded as it arrives, and then only once."""
ASKED_AT_ONCE = 64
"""Limit of partitions that are asked at the same time for a call on a topic."""
KEEPALIVE_S = 20
"""Shorter than the servers' keep-alive, so that a connection is rarely closed during a request."""

_CREDENTIALS = frozenset(("authorization", "cookie"))
"""Headers that prove the caller to the first broker, which then states the identity."""
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
"""Not forwarded: they belong to one hop, or to a compression that aiohttp has undone."""
_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""The connection was refused or timed out: nothing was sent."""
_NOT_PASSED_ON = _HOP_BY_HOP | INNER_HEADERS | _CREDENTIALS
"""Never forwarded: the forwarding broker sets its own."""
_NOT_COPIED_BACK = _HOP_BY_HOP | {"date", "server", MESSAGES_HEADER} - {"content-encoding"}

Result = TypeVar("Result")


class Reply(NamedTuple):
    """The complete answer of another broker."""

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
    """Return what `here` returns if this broker owns the partition, else what `there` returns.

    See `octavo.broker.operations.routing.with_owner`. Raises the owner's `Problem`.
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
    """Return the topic in the path; the rest of the call is about this incarnation only.

    Raises `TopicNotFound`, and `TopicReplaced` when the caller means an earlier incarnation.
    """
    try:
        info = await call.services.broker.topics.get(call.topic, call.incarnation)
    except TopicChanged as error:
        raise TopicReplaced(str(error)) if call.names_incarnation else error from error
    call.served_incarnation = info.incarnation
    if call.partition is None:  # decisions by the number of partitions must stay valid
        call.incarnation = info.incarnation
    return info


Handle = Callable[[Partition], Awaitable[web.StreamResponse]]
Ship = Callable[[Owner], Awaitable[web.StreamResponse]]


async def at_owner(
    call: Call, name: PartitionName, here: Handle, ship: Ship | None = None
) -> web.StreamResponse:
    """Answer the call at the partition's owner: by `here`, by another broker, or by a 307.

    `ship` sends it to another owner as operations; without `ship` the request is forwarded.
    """

    async def there(owner: Owner) -> web.StreamResponse:
        if prefers_redirect(call):
            return _redirect(call, owner)
        if ship is not None:
            return await ship(owner)
        return await call.services.peers.forward(call, owner)

    return await with_owner(call, name, here, there, may_repeat=lambda: not call.body_is_spent)


async def redirected(
    call: Call, name: PartitionName, path: str | None = None
) -> web.StreamResponse | None:
    """Return a 307 to the partition's owner, if that is another broker and the caller wants it.

    `path`: where the owner takes the call, if not at the call's own path.
    """
    if not prefers_redirect(call):
        return None

    async def here(_: Partition) -> None:
        return None

    async def there(owner: Owner) -> web.StreamResponse:
        return _redirect(call, owner, path)

    return await with_owner(call, name, here, there)


async def note_owner(call: Call, name: PartitionName) -> None:
    """Find the partition's owner for the answer's head, where the call did nothing there."""

    async def nothing(_: object) -> None:
        return None

    await with_owner(call, name, nothing, nothing)


def _redirect(call: Call, owner: Owner, path: str | None = None) -> web.Response:
    location = owner.url + (path or call.request.raw_path)
    headers = {"Location": location, "Preference-Applied": "redirect"}
    return web.Response(status=307, headers=headers)


async def operate(
    call: Call,
    operation: LocalOperation,
    kind: type[Result],
    *,
    is_part: bool = False,
    identity: Identity | None = None,
    at_hand: Callable[[Partition], Awaitable[AnyAnswer]] | None = None,
) -> Result:
    """Run an operation at the partition's owner, here or at another broker; return its answer.

    `is_part`: the call is about several partitions, so it has no single owner. `identity`: for
    whom, if not for the caller. `at_hand` does the same at this broker with data that the call has
    already. Raises what the operation raises here, or the other broker's problem.
    """
    services, name = call.services, operation.name
    before = call.owner_url

    def owned() -> None:
        if not RULES[type(operation)].continues:
            services.quotas.owned(call, name.namespace)

    try:
        found = await services.operations.at_owner(
            call,
            identity or call.identity,
            operation,
            owned=owned,
            at_hand=at_hand,
        )
    except Refused as error:
        raise problem_from(error.refusal) from error
    finally:
        if is_part:
            call.owner_url = before
    assert isinstance(found, kind)
    return found


async def upload(call: Call, asked: Upload, pieces: Callable[[], Pieces]) -> LargeStored:
    """Store a large message at its partition's owner; `pieces` gives its body as it arrives.

    Raises what storing raises here, or the other broker's problem.
    """
    services = call.services
    try:
        return await services.operations.upload(
            call,
            call.identity,
            asked,
            pieces,
            call.hold,
            owned=lambda: services.quotas.owned(call, asked.name.namespace),
            may_repeat=lambda: not call.body_is_spent,
        )
    except Refused as error:
        raise problem_from(error.refusal) from error


async def operate_group(call: Call, operation: GroupOperation, kind: type[Result]) -> Result:
    """Run a call of a group's member at the group's coordinator; return its answer.

    Raises what the operation raises here, or the other broker's problem.
    """
    try:
        found = await call.services.operations.at_coordinator(call, call.identity, operation)
    except Refused as error:
        raise problem_from(error.refusal) from error
    assert isinstance(found, kind)
    return found


async def ask_all(asked: Sequence[Coroutine[Any, Any, Result]]) -> list[Result | BaseException]:
    """Await many calls, at most `ASKED_AT_ONCE` at a time; return their results in order.

    At most one begins in each turn of the loop, because work at this broker takes about a
    millisecond.
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
    """Return the results, or raise the first failure among them."""
    results: list[Result] = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        results.append(one)
    return results


class Peers:
    """Call the other brokers over pooled connections.

    Calls that may wait have a separate pool without a limit: each holds a connection of its own
    client, and those are limited. So waiting calls never keep working calls from getting a
    connection.
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
        """Make the pools; connections are opened later."""
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
        """Call another broker for `identity`, and read its whole answer.

        Raises `NotOwner` and `OwnerUnreachable` (nothing was done), and the `Problem` that it
        answers.
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
        """Forward the request, and return the answer; both are streamed when they are long.

        `path`: needed if the request's path does not name the partition.
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
                (key.lower(), value)  # aiohttp drops one of two spellings of a name
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
        """Yield the body as it arrives; keep its error, because aiohttp would hide it."""
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
                call.services.quotas.gave_piece(call, len(chunk))
                async with asyncio.timeout(self._config.stall_timeout_ms / 1000):
                    await answer.write(chunk)
        except (aiohttp.ClientError, TimeoutError) as error:
            # The status was sent already, so only a broken connection can show the error.
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
    """Whether the caller prefers a redirect to the owner."""
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
    """Return another broker's problem as ours; `NotOwner` or `TopicChanged` when it did nothing."""
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
