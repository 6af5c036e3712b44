"""Answers without end, written piece by piece, with a last word at their end.

A stream of batches as stored has no last word. Longer pieces count as held bytes until they are in
the socket. A broker that stops says so in the last word, and the reader can continue at another
broker.

Readers that follow a partition share its pages: each is fetched once, and written once per format.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeVar

import msgspec
import structlog
from aiohttp import web
from msgspec import Raw

from octavo.broker.errors import Overloaded, TopicChanged, TopicReplaced
from octavo.broker.http.call import INCARNATION_HEADER, NDJSON, OWNER_HEADER, RECORD_BATCH, Call
from octavo.broker.http.csrf import protect
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.types import PartitionName
from octavo.protocol.backoff import Backoff
from octavo.protocol.batch import read_header
from octavo.protocol.leased import ENTRY
from octavo.security.principal import Identity

EVENTS = "text/event-stream"
Place = tuple[PartitionName, str, int, bool, Identity]
"""Partition, its topic's incarnation, offset, whether as stored, and the reader: the owner may
refuse a page to one reader.
"""


class Page:
    """Consecutive messages, or their batches.

    `append_time`: of the batches, "" without. `entries`: ledger and entry of each; empty from an
    older broker.
    """

    __slots__ = (
        *("_placed", "_written", "append_time", "batches", "entries", "messages", "next_offset"),
        "owner_url",
    )

    def __init__(
        self,
        messages: list[Raw],
        next_offset: int,
        batches: bytes = b"",
        append_time: str = "",
        entries: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.messages = messages
        self.next_offset = next_offset
        self.batches = batches
        self.append_time = append_time
        self.entries = entries
        self.owner_url = ""
        self._placed = b""
        self._written: dict[str, bytes] = {}

    @property
    def is_empty(self) -> bool:
        return not self.messages and not self.batches

    @property
    def placed(self) -> bytes:
        """Return the batches, each after its ledger and entry; made once for all readers."""
        if not self._placed:
            parts: list[bytes] = []
            start = 0
            for ledger, entry in self.entries:
                end = start + read_header(self.batches, start).total_bytes
                parts += (ENTRY.pack(ledger, entry), self.batches[start:end])
                start = end
            self._placed = b"".join(parts)
        return self._placed

    def written(self, kind: str) -> bytes:
        """Return the page in this format; made once for all readers."""
        if self.batches:
            return self.batches
        found = self._written.get(kind)
        if found is None:
            found = self._written[kind] = self._write(kind)
        return found

    def _write(self, kind: str) -> bytes:
        if kind != EVENTS:
            return b"".join([bytes(message) + b"\n" for message in self.messages])
        first = self.next_offset - len(self.messages)
        return (
            b"".join(
                [
                    b"id: %d\ndata: %b\n\n" % (offset, bytes(message))
                    for offset, message in enumerate(self.messages, first)
                ]
            )
            or b": nothing new\n\n"
        )


class Pages:
    def __init__(self) -> None:
        self._fetching: dict[Place, asyncio.Task[Page]] = {}

    def describe(self) -> dict[str, int]:
        return {"fetching": len(self._fetching)}

    def close(self) -> None:
        for task in tuple(self._fetching.values()):
            task.cancel()

    async def at(self, place: Place, fetch: Callable[[], Awaitable[Page]]) -> Page:
        task = self._fetching.get(place)
        if task is None:
            task = asyncio.ensure_future(fetch())
            self._fetching[place] = task
            task.add_done_callback(lambda ended: self._over(place, ended))
        return await asyncio.shield(task)

    def _over(self, place: Place, task: asyncio.Task[Page]) -> None:
        del self._fetching[place]
        if not task.cancelled():
            task.exception()  # marks the error as seen: all readers may have left


LIVES_S = 15.0
"""How long an event stream is silent before it gets a comment, as a sign of life."""
COUNTED_FROM_BYTES = 16 * 1024
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
LAST_WORD_S = 1.0

Result = TypeVar("Result")

log = structlog.get_logger()


class StreamPlaces:
    def __init__(self, most: int, tell: Callable[[float], object]) -> None:
        self.taken = 0
        self._most = most
        self._tell = tell

    def describe(self) -> dict[str, int]:
        return {"streams": self.taken}

    @contextmanager
    def one(self) -> Iterator[None]:
        """Take a place for the block; raise a 503 when all are taken."""
        if self.taken >= self._most:
            raise Problem(
                503,
                "too-many-streams",
                f"this broker has {self._most} streams under way, which is its limit: ask another "
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
    def __init__(self, call: Call, kind: str) -> None:
        self.kind = kind
        self._call = call
        self.response = web.StreamResponse()

    @property
    def is_head_only(self) -> bool:
        return self._call.request.method == "HEAD"

    async def begin(self) -> None:
        self.response.content_type = self.kind
        write_head(self._call, self.response)
        await self.response.prepare(self._call.request)

    async def send(self, data: bytes, messages: int = 0, *, is_counted: bool = False) -> None:
        """Waits if `messages` exceed the caller's quota. `is_counted`: the bytes are counted as
        held.
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
        """Run a block that sends; tell the reader how it ended, if possible."""
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
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"  # nginx would buffer 4 KiB
    response.headers[OWNER_HEADER] = call.owner_url
    response.headers["Server"] = "octavo"
    protect(response.headers, call.request, call.services.config.allowed_origins)
    if call.served_incarnation:
        response.headers[INCARNATION_HEADER] = call.served_incarnation
    call.is_streaming = True


async def count(call: Call, size: int) -> None:
    if size <= COUNTED_FROM_BYTES:
        return None
    pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, None)
    while True:
        try:
            return await call.hold(size)
        except Overloaded:
            await asyncio.sleep(pauses.next_s())


class Holding:
    """Counts all bytes that a stream holds."""

    def __init__(self, call: Call) -> None:
        self._held = call.services.held
        self._peer = call.peer
        self._bytes = 0

    async def more(self, size: int) -> int:
        """Count up to `size` more bytes; return how many there was room for."""
        size = self._held.part(size)
        await self._held.room_to_send(size)
        self.add(size)
        return size

    def add(self, size: int) -> None:
        self._bytes += size
        self._held.count_going_out(self._peer, size)

    def end(self) -> None:
        self.add(-self._bytes)


def stopping() -> Problem:
    return Problem(503, "stopping", "this broker stops; ask another one", retryable=True)


async def through_moves(ask: Callable[[], Awaitable[Result]], final: str = "") -> Result:
    """Return what `ask` returns; ask again while partitions move.

    A problem with the code `final` is raised, even if temporary.
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
