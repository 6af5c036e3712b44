"""Follow a partition: as server-sent events, lines of NDJSON, or batches as stored.

The broker that was asked keeps the stream, whichever broker owns the partition. It fetches page
after page from the owner. While the partition moves, the reader sees a pause, without a gap or a
repeat, because each page begins where the previous page ended. All readers at the end of a
partition wait for the same page and get the same bytes. A reader that takes nothing for
`stall_timeout_ms` is cut off; all readers are when this broker stops. An event's id is its offset,
so a browser continues by itself, at any broker, with `Last-Event-ID`.

An impossible request is refused with a status before the stream begins. Later the problem is the
stream's last word: an event named `problem`, or the line `{"problem": …}`. A stream of batches
cannot contain a problem: it ends, and the reader gets the problem when it asks again. Such a stream
also ends when nothing has come for `LIVES_S`, because it cannot contain a sign of life; when the
partition has moved to another broker, because its readers should go there, too; and when its head
does not give the append times of the next batches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from aiohttp import web

from octavo.broker.http.call import OFFSET_MAX, RECORD_BATCH, Call
from octavo.broker.http.forwarding import with_owner
from octavo.broker.http.pages import EVENTS, Page
from octavo.broker.http.problems import Problem
from octavo.broker.http.stream import LIVES_S, Stream, through_moves
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Owner, PartitionName
from octavo.protocol.append_time import APPEND_TIME_HEADER, SPAN_MS, Times
from octavo.protocol.batch import BatchHeader, read_header
from octavo.protocol.leased import BEFORE_EACH, ENTRIES_HEADER
from octavo.protocol.numbers import whole

LAST_EVENT_HEADER = "Last-Event-ID"
PAGE_BYTES = 64 * 1024
"""Size of a page, as stored. A slow reader holds a single page."""
PAGE_MESSAGES = 1_000


ReadHere = Callable[[Partition, str, float], Awaitable[Page]]
ReadThere = Callable[[Owner, str, float], Awaitable[Page]]


async def follow(
    call: Call,
    name: PartitionName,
    kind: str,
    start: str,
    read: ReadHere,
    read_other: ReadThere,
) -> web.StreamResponse:
    """Stream from `start` on.

    `read` reads a page of a partition that is served here, `read_other` a page from another broker.
    """
    with call.services.streams.one(), call.services.quotas.stream(call):
        return await _Following(call, name, kind, read, read_other).run(_from(call, start))


class _Following:
    """A reader's stream."""

    def __init__(
        self,
        call: Call,
        name: PartitionName,
        kind: str,
        read: ReadHere,
        read_other: ReadThere,
    ) -> None:
        self._call = call
        self._name = name
        self._read = read
        self._read_other = read_other
        self._stream = Stream(call, kind)
        self._as_stored = kind == RECORD_BATCH
        self._placed = self._as_stored and call.headers.get(ENTRIES_HEADER) == BEFORE_EACH
        self._times = Times()

    async def run(self, start: str) -> web.StreamResponse:
        """Send from `start` on. Raises what a read raises, as long as nothing was sent."""
        page = await self._fetch(start, 0.0)
        owner_url = page.owner_url
        if self._as_stored:
            since_ms = self._call.services.clock() - SPAN_MS // 2  # the owner's clock may be behind
            told = page.append_time or f"{page.next_offset}={since_ms}"
            self._stream.response.headers[APPEND_TIME_HEADER] = told
            self._times = Times(told)
            self._placed = self._placed and (page.is_empty or bool(page.entries))
            if self._placed:
                self._stream.response.headers[ENTRIES_HEADER] = BEFORE_EACH
        self._call.incarnation = self._call.served_incarnation or None  # later pages must match
        stream = self._stream
        count = len(page.messages)
        await stream.begin()
        if stream.is_head_only:
            return stream.response
        async with stream.lasting():
            while self._is_told(page):
                if not page.is_empty or stream.kind == EVENTS:
                    data = page.placed if self._placed else page.written(stream.kind)
                    await stream.send(data, count)
                offset = page.next_offset
                page = await self._next(offset)
                count = page.next_offset - offset
                if self._as_stored and (page.is_empty or page.owner_url != owner_url):
                    break
        return stream.response

    def _is_told(self, page: Page) -> bool:
        """Whether the stream's head covers these batches.

        It must give their append times, and if it announces entries, their entries must be known.
        """
        if self._placed and not page.is_empty and not page.entries:
            return False
        if not page.append_time:
            return True
        here = Times(page.append_time)
        return all(self._times.shown(one) == here.shown(one) for one in _headers(page.batches))

    async def _next(self, offset: int) -> Page:
        """Return the page at `offset`, while the partition moves, too. Raises lasting errors."""
        services = self._call.services
        of = self._call.identity
        place = (self._name, self._call.incarnation or "", offset, self._as_stored, of)
        wait_s = min(LIVES_S, services.config.wait_ms_max / 1000)
        return await through_moves(
            lambda: services.pages.at(place, lambda: self._fetch(str(offset), wait_s))
        )

    async def _fetch(self, start: str, wait_s: float) -> Page:
        call, name = self._call, self._name

        async def here(partition: Partition) -> Page:
            return await self._read(partition, start, wait_s)

        async def there(owner: Owner) -> Page:
            return await self._read_other(owner, start, wait_s)

        page = await with_owner(call, name, here, there)
        page.owner_url = call.owner_url
        return page


def _headers(batches: bytes) -> Iterator[BatchHeader]:
    start = 0
    while start < len(batches):
        header = read_header(batches, start)
        yield header
        start += header.total_bytes


def _from(call: Call, start: str) -> str:
    """Return where to begin: after the event that the reader had last, if it says. Raises a 400."""
    last = call.headers.get(LAST_EVENT_HEADER)
    if last is None:
        return start
    offset = whole(last, OFFSET_MAX - 1)
    if offset is None:
        raise Problem(
            400,
            "invalid-header",
            f"{LAST_EVENT_HEADER} is {last[:40]!r}; it must be the offset that an event had as id",
        )
    return str(offset + 1)
