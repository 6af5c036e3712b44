"""HTTP to a cluster of brokers: choose the broker, repeat calls, interpret answers.

A call about a partition goes to its owner (`Octavo-Owner`). A call that may succeed later is
repeated, with growing, jittered pauses, until its deadline, at another broker if the first does not
answer or has lost the partition. All calls are safe to repeat: publishes carry sequences.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import reprlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from octavo.client.doubt import Doubts, PartitionKey
from octavo.client.errors import (
    ApiError,
    ClientError,
    InvalidCall,
    TopicReplaced,
    Unreachable,
    api_error,
)
from octavo.client.incarnation import Incarnation
from octavo.client.json_values import api_json
from octavo.client.wire import (
    LOST,
    Body,
    DefaultUrl,
    HttpWire,
    Reply,
    Wire,
    is_hopeless,
    is_refused,
    reason_of,
)
from octavo.protocol.backoff import Backoff

PAUSE_S = 0.05
PAUSE_S_MAX = 2.0
SILENT_S = 10.0
"""A broker that did not answer is avoided for this long, if there is another broker."""
HOPELESS_RETRY_S = 2.0
"""How long to retry after an unknown host name or a TLS error, which are rarely temporary."""
OWNER_ANSWER_S = 10.0
"""While a partition has no owner, a broker waits this long before it answers who owns it."""
PROBLEM_TYPE = "application/problem+json"
JSON_TYPE = "application/json"
NDJSON_TYPE = "application/x-ndjson"
BATCH_TYPE = "application/vnd.kafka.recordbatch.v2"
NEXT_OFFSET = "Next-Offset"
_OWNER = "Octavo-Owner"
_NOBODY_THERE = (
    "; this is the default address, and nothing listens there: name a broker by OCTAVO_URL, or "
    "where the client is made"
)
log = logging.getLogger("octavo.client")
_ANOTHER = {"code": TopicReplaced.name, "detail": "another topic of this name has answered"}


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body) if self.body else None


class Transport:
    """`attempt_s` bounds an attempt, `retry_s` a call with all attempts.

    `on_retry` is called with the reason before a call is repeated.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        attempt_s: float,
        retry_s: float,
        rng: random.Random,
        on_retry: Callable[[ClientError], None] | None = None,
        wire: Wire | None = None,
    ) -> None:
        given = _urls_of(urls)
        self._is_guess = all(isinstance(url, DefaultUrl) for url in given)
        self._urls = [_checked_url(url) for url in given if url.strip()]
        if not self._urls:
            raise InvalidCall("no broker URL given; for example http://127.0.0.1:8080")
        self._attempt_s = attempt_s
        self.retry_s = retry_s
        self._rng = rng
        self._on_retry = on_retry
        self._current = 0
        self._owners: dict[PartitionKey, str] = {}
        self._silent_until: dict[str, float] = {}
        self._wire = wire or HttpWire()
        self._doubts = Doubts(self._ask_owner)

    @property
    def urls(self) -> list[str]:
        return list(self._urls)

    def owner(self, partition: PartitionKey) -> str | None:
        return self._owners.get(partition)

    async def close(self) -> None:
        await self._doubts.close()
        await self._wire.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Body = None,
        json_body: Any = None,
        headers: Mapping[str, str] | None = None,
        partition: PartitionKey | None = None,
        wait_s: float = 0.0,
        retry_s: float | None = None,
        of: Incarnation | None = None,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> Answer:
        """Make a call; return its 2xx answer. Raises `ApiError` (refused for good), `Unreachable`.

        `wait_s`: how long the broker may hold the call; `partition`: ask its owner directly; `of`:
        the expected topic, another raises `TopicReplaced`; `rest`: waits for the given pause before
        a repeat.
        """
        sent = dict(headers or {})
        if json_body is not None:
            body = api_json(json_body, "body")
            sent["Content-Type"] = JSON_TYPE
        shown = f"{method} {path}"
        params = _params(query or {})
        loop = asyncio.get_running_loop()
        begun = loop.time()
        deadline = begun + (self.retry_s if retry_s is None else retry_s)
        pauses = Backoff(PAUSE_S, PAUSE_S_MAX, self._rng)
        tried: dict[str, str] = {}
        hopeless: set[str] = set()
        while True:
            url = self._url_for(partition)
            if of is not None:
                sent |= of.headers()  # another call may have learned the incarnation meanwhile
            try:
                attempt = self._once(
                    url, method, path, params, body, sent, partition, self._attempt_s + wait_s
                )
                if partition is None or self._owners.get(partition) != url:
                    answer = await attempt
                else:
                    answer = await self._doubts.unless_moved(url, partition, attempt, wait_s)
                if of is not None and not of.agrees(answer.headers):
                    raise TopicReplaced(409, _ANOTHER, shown)
                return answer
            except LOST as error:
                tried[url] = reason_of(error, url)
                hopeless = hopeless | {url} if is_hopeless(error) else hopeless - {url}
                guessed = self._is_guess and is_refused(error)
                if guessed or hopeless >= set(self._urls):
                    deadline = min(deadline, begun + HOPELESS_RETRY_S)
                self._no_answer(url)
                self._leave(url)
                hint = _NOBODY_THERE if guessed else ""
                last: ClientError = Unreachable(f"{shown}: no answer from {_tried(tried)}{hint}")
            except ApiError as error:
                if method == "DELETE" and error.status == 404 and tried:
                    return Answer(204, {}, b"")  # deleted by an earlier attempt without an answer
                if not error.can_retry:
                    raise type(error)(error.status, error.problem, shown) from None
                if partition:
                    self._owners.pop(partition, None)
                self._leave(url)
                last = type(error)(error.status, error.problem, shown)
                asked = error.problem.get("retry_after_s")
                if asked:
                    pauses.at_least(float(asked))
            if loop.time() + pauses.pause_s > deadline:
                raise last from None
            self._tell(last)
            await rest(pauses.next_s())

    def _tell(self, why: ClientError) -> None:
        log.info("repeating a call: %s", why)
        if self._on_retry is not None:
            self._on_retry(why)

    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, object],
        headers: Mapping[str, str],
        partition: PartitionKey,
        wait_s: float,
        of: Incarnation,
        on_head: Callable[[Mapping[str, str]], None] = lambda _: None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of an endless answer; a single attempt, after which to use `call`.

        `wait_s`: how long a broker may be silent between pieces. `on_head` gets the answer's
        headers. Raises `ApiError`, and `Unreachable` if the answer breaks off.
        """
        url, shown = self._url_for(partition), f"GET {path}"
        params = _params(query)
        quiet_s = self._attempt_s + wait_s
        opening = self._wire.stream(
            url + path, params, {**headers, **of.headers()}, quiet_s=quiet_s
        )
        try:
            async with AsyncExitStack() as stack:
                entering = stack.enter_async_context(opening)
                reply, pieces = await self._doubts.unless_moved(url, partition, entering, 0.0)
                self._has_answered(url)
                if owner := _owner_in(reply):
                    self._owners[partition] = owner
                if reply.status >= 300 or not _is_brokers(reply):
                    raise _refusal(reply, url, shown)
                if not of.agrees(reply.headers):
                    raise TopicReplaced(409, _ANOTHER, shown)
                on_head(reply.headers)
                while piece := await self._doubts.unless_moved(
                    url, partition, _next_of(pieces), wait_s
                ):
                    yield piece
        except LOST as error:
            raise Unreachable(f"{shown}: {url} broke off ({reason_of(error, url)})") from None

    async def _once(
        self,
        url: str,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: Body,
        headers: Mapping[str, str],
        partition: PartitionKey | None,
        timeout_s: float,
    ) -> Answer:
        reply = await self._wire.send(
            method, url + path, params, body, headers, timeout_s=timeout_s
        )
        self._has_answered(url)
        log.debug("%s %s%s: %d", method, url, path, reply.status)
        if partition and (owner := _owner_in(reply)):
            self._owners[partition] = owner
        if reply.status < 300 and _is_brokers(reply):
            return Answer(reply.status, reply.headers, reply.body)
        raise _refusal(reply, url, method)

    async def _ask_owner(self, partition: PartitionKey, silent: str) -> str | None:
        now = asyncio.get_running_loop().time()
        others = [url for url in self._urls if url != silent]
        if not others:
            return None
        url = min(others, key=lambda one: max(self._silent_until.get(one, now), now))
        topic, number = partition
        try:
            # The other broker must not forward the call: the owner is silent.
            reply = await self._wire.send(
                "GET",
                f"{url}/v1/topics/{topic}/partitions/{number}",
                {},
                None,
                {"Prefer": "redirect"},
                timeout_s=OWNER_ANSWER_S,
                follow=False,
            )
        except LOST:
            self._no_answer(url)
            return None
        self._has_answered(url)
        owner = _owner_in(reply) if reply.status < 400 else None
        if owner:
            self._owners[partition] = owner
        return owner

    def _no_answer(self, url: str) -> None:
        now = asyncio.get_running_loop().time()
        for past in [one for one, until in self._silent_until.items() if until <= now]:
            del self._silent_until[past]
        self._silent_until[url] = now + SILENT_S

    def _has_answered(self, url: str) -> None:
        self._silent_until.pop(url, None)
        self._is_guess = False

    def _url_for(self, partition: PartitionKey | None) -> str:
        now = asyncio.get_running_loop().time()
        owner = self._owners.get(partition) if partition else None
        if owner is not None and self._silent_until.get(owner, now) <= now:
            return owner
        count = len(self._urls)
        order = [self._urls[(self._current + step) % count] for step in range(count)]
        return min(order, key=lambda url: max(self._silent_until.get(url, now), now))

    def _leave(self, url: str) -> None:
        """Ask another broker next time. If many calls fail together, only the first moves on."""
        if self._urls[self._current % len(self._urls)] == url:
            self._current += 1


async def _next_of(pieces: AsyncIterator[bytes]) -> bytes:
    return await anext(pieces, b"")


def _params(query: Mapping[str, object]) -> dict[str, str]:
    """Write query values as text. A float is a time in seconds, sent with milliseconds."""
    return {
        name: f"{value:.3f}" if isinstance(value, float) else str(value)
        for name, value in query.items()
        if value is not None
    }


def _owner_in(reply: Reply) -> str | None:
    owner: str = reply.headers.get(_OWNER, "")
    return owner.rstrip("/") if owner.startswith("http") else None


def _is_brokers(reply: Reply) -> bool:
    """Return whether a broker answered, not another web server: brokers name an owner."""
    return _OWNER in reply.headers


def _refusal(reply: Reply, url: str, what: str) -> ApiError:
    problem = _problem(reply, url)
    is_known = _is_brokers(reply) or "code" in problem
    return (api_error if is_known else ApiError)(reply.status, problem, what)


def _problem(reply: Reply, url: str) -> dict[str, Any]:
    found: Any = None
    kind = reply.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in (PROBLEM_TYPE, JSON_TYPE):
        try:
            found = json.loads(reply.body)
        except ValueError:
            found = None
    if isinstance(found, dict) and "code" in found:
        problem: dict[str, Any] = found
    else:
        said = f"{reply.status} {reply.reason or ''}".strip()
        problem = {"detail": f"{url} answered {said}, and not as a broker of Octavo does"}
    if (asked := reply.headers.get("Retry-After", "")).isdigit():
        problem.setdefault("retry_after_s", int(asked))
    return problem


def _urls_of(urls: str | Sequence[str]) -> list[str]:
    if isinstance(urls, DefaultUrl):
        return [urls]
    if isinstance(urls, str):
        return urls.split(",")
    given = list(urls) if isinstance(urls, Iterable) else []
    if not all(isinstance(url, str) for url in given) or (
        not given and not hasattr(urls, "__len__")
    ):
        raise InvalidCall(
            f"{reprlib.repr(urls)} names no broker: write http://host:port as text, or a list of "
            "these, for example http://127.0.0.1:8080"
        )
    return given


def _checked_url(url: str) -> str:
    trimmed = url.strip().rstrip("/")
    try:
        found = urlsplit(trimmed)
        is_one = found.scheme in ("http", "https") and found.hostname and found.port != 0
    except ValueError:
        is_one = False
    if not is_one or found.query or found.fragment or any(map(str.isspace, trimmed)):
        raise InvalidCall(
            f"{url!r} is not the URL of a broker: write http://host:port, "
            "for example http://127.0.0.1:8080"
        )
    return trimmed


def _tried(tried: Mapping[str, str]) -> str:
    return ", ".join(f"{url} ({reason})" for url, reason in tried.items())
