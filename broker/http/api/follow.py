"""Follow a partition: every message as a server-sent event or a line of NDJSON, without end.

The broker that was asked keeps the stream, whoever owns the partition. It fetches page after page
from the owner, here or elsewhere, and while the partition moves the reader sees a pause: no gap and
no repeat, for a page begins where the last one ended. All who have come to the end of a partition
wait for one page and are given the same bytes. A reader who takes nothing for
`stall_timeout_ms` is cut off; so are all when this broker stops. An event's id is its offset, so a
browser goes on by itself, at whichever broker, with `Last-Event-ID`.

What cannot be given is refused with a status before the stream begins. Later it is the stream's
last word: an event named `problem`, or the line `{"problem": …}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from aiohttp import web
from msgspec import Raw

from octavo.broker.errors import Overloaded, TopicChanged, TopicReplaced
from octavo.broker.http.broker_calls import INCARNATION_HEADER
from octavo.broker.http.call import JSON, NDJSON, NEXT_OFFSET_HEADER, OFFSET_MAX, OWNER_HEADER, Call
from octavo.broker.http.forwarding import with_owner
from octavo.broker.http.pages import EVENTS, Page
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Owner, PartitionName
from octavo.protocol.backoff import Backoff

LAST_EVENT_HEADER = "Last-Event-ID"
PAGE_BYTES = 64 * 1024
"""As stored. A reader who is slow holds one page."""
PAGE_MESSAGES = 1_000
WAIT_S = 15.0
"""Where nothing comes for so long, an event stream gets a comment, so that all on the way to the
reader know that it lives."""
COUNTED_FROM_BYTES = 16 * 1024
"""A longer page counts among the bytes that this broker holds."""
_FIRST_PAUSE_S = 0.05
_PAUSE_S_MAX = 1.0

log = structlog.get_logger()


class _PageIn(msgspec.Struct):
    """Another broker's answer to a read."""

    messages: list[Raw] = []
    next_offset: int = -1


async def follow(
    call: Call,
    name: PartitionName,
    kind: str,
    start: str,
    read: Callable[[Partition, str, float], Awaitable[Page]],
) -> web.StreamResponse:
    """The stream from `start` on. `read` gives a page of a partition that is served here."""
    services = call.services
    pages, most = services.pages, services.config.streams_max
    if pages.streams >= most:
        raise Problem(
            503,
            "too-many-streams",
            f"this broker follows partitions for {most} readers, which is the most: ask another "
            "broker, or come back later",
            retryable=True,
        )
    pages.streams += 1
    services.metrics.streams.inc()
    try:
        return await _Stream(call, name, kind, read).run(_from(call, start))
    finally:
        pages.streams -= 1
        services.metrics.streams.dec()


class _Stream:
    """One reader's."""

    def __init__(
        self,
        call: Call,
        name: PartitionName,
        kind: str,
        read: Callable[[Partition, str, float], Awaitable[Page]],
    ) -> None:
        self._call = call
        self._name = name
        self._kind = kind
        self._read = read
        self._response = web.StreamResponse()

    async def run(self, start: str) -> web.StreamResponse:
        """From `start` on. Raises what a read raises, as long as nothing was sent."""
        page = await self._fetch(start, 0.0)
        self._call.incarnation = self._call.served_incarnation or None  # of no other one from now
        await self._begin()
        try:
            while True:
                if page.messages or self._kind == EVENTS:
                    await self._send(page.written(self._kind))
                page = await self._next(page.next_offset)
        except TimeoutError:
            log.info("client_too_slow", remote=self._call.request.remote)
            if (transport := self._call.request.transport) is not None:
                transport.abort()
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            await self._last_word(problem_of(error))
        return self._response

    async def _next(self, offset: int) -> Page:
        """The page at `offset`, however long the partition moves; raises what is for good."""
        services = self._call.services
        place = (self._name, self._call.incarnation or "", offset)
        wait_s = min(WAIT_S, services.config.wait_ms_max / 1000)
        pauses = Backoff(_FIRST_PAUSE_S, _PAUSE_S_MAX, None)
        while True:
            try:
                return await services.pages.at(place, lambda: self._fetch(str(offset), wait_s))
            except TopicChanged as error:
                if error.looked:
                    raise TopicReplaced(str(error)) from error
            except Exception as error:
                if not problem_of(error).can_retry:
                    raise
            await asyncio.sleep(pauses.next_s())

    async def _fetch(self, start: str, wait_s: float) -> Page:
        call, name = self._call, self._name

        async def here(partition: Partition) -> Page:
            return await self._read(partition, start, wait_s)

        async def there(owner: Owner) -> Page:
            reply = await call.services.peers.ask(
                call.services.broker.broker_id,
                owner,
                "GET",
                f"/v1/topics/{name.namespace}/{name.topic}/partitions/{name.partition}/messages"
                f"?from={start}&limit={PAGE_MESSAGES}&max_bytes={PAGE_BYTES}&wait={wait_s:g}",
                headers={"Accept": JSON},
                wait_s=wait_s,
            )
            found = msgspec.json.decode(reply.body or b"{}", type=_PageIn)
            told = int(reply.headers.get(NEXT_OFFSET_HEADER, found.next_offset))
            return Page(found.messages, told)

        return await with_owner(call, name, here, there)

    async def _begin(self) -> None:
        call, response = self._call, self._response
        response.content_type = self._kind
        response.headers["Cache-Control"] = "no-store"
        response.headers[OWNER_HEADER] = call.owner_url
        response.headers["Server"] = "octavo"
        response.headers["X-Content-Type-Options"] = "nosniff"
        if call.served_incarnation:
            response.headers[INCARNATION_HEADER] = call.served_incarnation
        call.is_streaming = True
        await response.prepare(call.request)

    async def _send(self, data: bytes) -> None:
        if len(data) > COUNTED_FROM_BYTES:
            await self._count(len(data))
        async with asyncio.timeout(self._call.services.config.stall_timeout_ms / 1000):
            await self._response.write(data)
        await self._call.hold(0)

    async def _count(self, size: int) -> None:
        """What a reader has not taken yet counts as bodies do, and waits for room as they do."""
        pauses = Backoff(_FIRST_PAUSE_S, _PAUSE_S_MAX, None)
        while True:
            try:
                return await self._call.hold(size)
            except Overloaded:
                await asyncio.sleep(pauses.next_s())

    async def _last_word(self, problem: Problem) -> None:
        body = msgspec.json.encode(problem.body())
        if self._kind == NDJSON:
            await self._send(b'{"problem":' + body + b"}\n")
        else:
            await self._send(b"event: problem\ndata: " + body + b"\n\n")
        await self._response.write_eof()


def _from(call: Call, start: str) -> str:
    """Behind the event that the reader had last, if it says which. Raises a 400."""
    last = call.headers.get(LAST_EVENT_HEADER)
    if last is None:
        return start
    if not (last.isascii() and last.isdigit() and len(last) < 20 and int(last) < OFFSET_MAX):
        raise Problem(
            400,
            "invalid-header",
            f"{LAST_EVENT_HEADER} is {last[:40]!r}; it must be the offset that an event had as id",
        )
    return str(int(last) + 1)
