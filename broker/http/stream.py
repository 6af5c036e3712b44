"""An answer without end: begun once, written piece by piece, ended with a last word (of batches
as stored: without).

A reader who takes nothing for `stall_timeout_ms` is cut off; a longer piece counts among the bytes
that this broker holds until it is in the socket. A broker that stops says so as the last word, and
the reader goes on at another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeVar

import msgspec
import structlog
from aiohttp import web

from octavo.broker.errors import Overloaded, TopicChanged, TopicReplaced
from octavo.broker.http.broker_calls import INCARNATION_HEADER
from octavo.broker.http.browsers import protect
from octavo.broker.http.call import NDJSON, OWNER_HEADER, RECORD_BATCH, Call
from octavo.broker.http.problems import Problem, problem_of
from octavo.protocol.backoff import Backoff

LIVES_S = 15.0
"""Where nothing comes for so long an event stream gets a comment, so that all on the way to the
reader know that it lives."""
COUNTED_FROM_BYTES = 16 * 1024
"""A longer piece counts among the bytes that this broker holds."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
LAST_WORD_S = 1.0
"""So long a stopping broker tries to say so."""

Result = TypeVar("Result")

log = structlog.get_logger()


class StreamPlaces:
    """How many streams there are."""

    def __init__(self, most: int, tell: Callable[[float], object]) -> None:
        self.taken = 0
        self._most = most
        self._tell = tell

    @contextmanager
    def one(self) -> Iterator[None]:
        """A place, for as long as the block lasts. Raises a 503 when all are taken."""
        if self.taken >= self._most:
            raise Problem(
                503,
                "too-many-streams",
                f"this broker has {self._most} streams under way, which is the most: ask another "
                "broker, or come back later",
                retryable=True,
            )
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        self.taken += more
        self._tell(self.taken)


class Stream:
    """One reader's, of server-sent events, of lines, or of batches as stored."""

    def __init__(self, call: Call, kind: str) -> None:
        self.kind = kind
        self._call = call
        self.response = web.StreamResponse()

    @property
    def is_head_only(self) -> bool:
        """Whether nothing may follow the head: it would be taken for the next answer."""
        return self._call.request.method == "HEAD"

    async def begin(self) -> None:
        """Send the head: from now on no other answer can be given."""
        self.response.content_type = self.kind
        write_head(self._call, self.response)
        await self.response.prepare(self._call.request)

    async def send(self, data: bytes, messages: int = 0, *, is_counted: bool = False) -> None:
        """Raises `TimeoutError` when the reader takes nothing of it, `ConnectionError`.

        Whose quota is used up by so many `messages` waits before more is sent. `is_counted`: as
        held, by whoever has it.
        """
        if not is_counted:
            await count(self._call, len(data))
        async with asyncio.timeout(self._call.services.config.stall_timeout_ms / 1000):
            await self.response.write(data)
        await self._call.hold(0)
        if messages:
            await self._call.services.quotas.sent(self._call, len(data), messages)

    @asynccontextmanager
    async def lasting(self) -> AsyncIterator[None]:
        """While the block sends. However that ends, the reader hears of it, as far as it can."""
        try:
            yield
        except TimeoutError:
            log.info("client_too_slow", remote=self._call.request.remote)
            if (transport := self._call.request.transport) is not None:
                transport.abort()
        except asyncio.CancelledError:
            if (problem := self._call.ends_with) is None:
                raise
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(LAST_WORD_S):
                    await self._last_word(problem)
                return
            raise
        except ConnectionError:
            raise
        except Exception as error:
            await self._last_word(problem_of(error))

    async def _last_word(self, problem: Problem) -> None:
        body = msgspec.json.encode(problem.body())
        if self.kind == NDJSON:
            await self.send(b'{"problem":' + body + b"}\n")
        elif self.kind != RECORD_BATCH:
            await self.send(b"event: problem\ndata: " + body + b"\n\n")
        await self.response.write_eof()


def write_head(call: Call, response: web.StreamResponse) -> None:
    """What each answer without end says of itself."""
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"  # nginx would keep it until it has 4 KiB
    response.headers[OWNER_HEADER] = call.owner_url
    response.headers["Server"] = "octavo"
    protect(response.headers, call.request, call.services.config.allowed_origins)
    if call.served_incarnation:
        response.headers[INCARNATION_HEADER] = call.served_incarnation
    call.is_streaming = True


async def count(call: Call, size: int) -> None:
    """What a reader has not taken yet counts as bodies do, and waits for room as they do."""
    if size <= COUNTED_FROM_BYTES:
        return None
    pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, None)
    while True:
        try:
            return await call.hold(size)
        except Overloaded:
            await asyncio.sleep(pauses.next_s())


class Holding:
    """What a stream holds to be sent; `count` is then of nothing more than a piece of that."""

    def __init__(self, call: Call) -> None:
        self._held = call.services.held
        self._peer = call.peer
        self._bytes = 0

    async def more(self, size: int) -> int:
        """Count so much more, as soon as there is room, however long that takes; how much it is."""
        size = self._held.part(size)
        await self._held.room_to_send(size)
        self.add(size)
        return size

    def add(self, size: int) -> None:
        """Count what is there already; what is there no more, if `size` is below 0."""
        self._bytes += size
        self._held.count_going_out(self._peer, size)

    def end(self) -> None:
        """Nothing is there any more."""
        self.add(-self._bytes)


def stopping() -> Problem:
    """What a broker says that is about to end."""
    return Problem(503, "stopping", "this broker stops; ask another one", retryable=True)


async def through_moves(ask: Callable[[], Awaitable[Result]], final: str = "") -> Result:
    """What `ask` gives, asked again while partitions move, however long that takes.

    Raises what is for good, and the problem with the code `final` though that may pass.
    """
    pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, None)
    while True:
        try:
            return await ask()
        except TopicChanged as error:
            if error.looked:
                raise TopicReplaced(str(error)) from error
        except Exception as error:
            problem = problem_of(error)
            if problem.code == final or not problem.can_retry:
                raise
        await asyncio.sleep(pauses.next_s())
