"""Read a partition without a subscription, follow it, and find offsets.

A read is for one partition, which the path may omit if the topic has only one. Only durable
messages are returned; an offset beyond the end gets a 416, a removed offset a 410, each with an
offset that would work.

A follower gets server-sent events, lines of NDJSON, or batches as stored. The broker that it called
keeps the stream and fetches page after page from the owner, so a move is a pause without gap or
repeat. A reader that takes nothing for `stall_timeout_ms` is cut off.

A problem after the beginning is the stream's last word: an event named `problem`, or the line
`{"problem": …}`. A stream of batches cannot contain this: it ends, and the next call gets the
problem. It also ends after `LIVES_S` without messages, when the partition has moved, and when its
head lacks the next append times.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from aiohttp import web
from msgspec import Raw

from octavo.broker.http.api.answers import Beginning, OffsetsOf, Truncated
from octavo.broker.http.api.payloads import encode, message_out
from octavo.broker.http.call import (
    JSON,
    NDJSON,
    NEXT_OFFSET_HEADER,
    OFFSET_MAX,
    OWNER_HEADER,
    RECORD_BATCH,
    Call,
    bad_parameter,
    parse_time_ms,
    time_hint,
)
from octavo.broker.http.forwarding import (
    all_or_raise,
    ask_all,
    at_owner,
    operate,
    redirected,
    topic_of,
    with_owner,
)
from octavo.broker.http.problems import Problem
from octavo.broker.http.stream import EVENTS, LIVES_S, Page, Stream, through_moves
from octavo.broker.log.compaction_rules import CompactedBatch
from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.operations import kinds as operations
from octavo.broker.operations.control import resolve
from octavo.broker.operations.kinds import FindOffset, Found, Position, Read, Truncate, at_of
from octavo.broker.operations.local import batches_of
from octavo.broker.partition.partition import Partition
from octavo.broker.types import MessageId, Owner, PartitionName, StoredBatch, TopicName
from octavo.protocol.append_time import APPEND_TIME_HEADER, SPAN_MS, Times
from octavo.protocol.batch import BatchHeader, InvalidBatch, read_header
from octavo.protocol.compression import UnsupportedCompression
from octavo.protocol.leased import BEFORE_EACH, ENTRIES_HEADER, entries_text, entries_told
from octavo.protocol.limits import MESSAGE_BYTES_MAX
from octavo.protocol.numbers import whole
from octavo.protocol.records import record_bytes
from octavo.protocol.windows import BatchWindows

POSITIONS = "earliest, latest, an offset, a message id (ledger:entry:index) or an RFC 3339 time"
ANSWER_TYPES = (JSON, NDJSON, RECORD_BATCH)
Count = Callable[[Call, list[StoredBatch] | list[Raw], int], None]


async def read(call: Call) -> web.StreamResponse:
    name = await one_partition(call, "messages")
    kind = answer_type(call, (*ANSWER_TYPES, EVENTS))
    config = call.services.config
    bytes_max = call.integer("max_bytes", config.read_bytes, 1, config.read_bytes_max)
    most = config.read_messages_max  # for batches also the default: they cost nothing per message
    given = most if kind == RECORD_BATCH else config.read_messages
    limit = call.integer("limit", given, 1, most)
    wait_s = call.duration_ms("wait", 0, config.wait_ms_max) / 1000
    position = parse_position(call, "from", "earliest")
    compacted = wants_compacted(call)
    if kind == EVENTS or call.choice("follow", "false", "true", "false") == "true":
        return await _follow(call, name, kind, compacted=compacted)

    async def here(partition: Partition) -> web.StreamResponse:
        call.services.quotas.may_read(name.topic_name)
        if compacted:
            view = partition.compacted
            offset = await resolve(view, position)
            batches, offset, following = await view.read(
                offset, bytes_max=bytes_max, count_max=limit, wait_s=wait_s
            )
        else:
            offset = await resolve(partition, position)
            batches = await partition.read(
                offset, bytes_max=bytes_max, count_max=limit, wait_s=wait_s
            )
            following = batches[-1].next_offset if batches else offset
        return await shown(batches, offset, following, _count_read)

    async def there(owner: Owner) -> web.StreamResponse:
        asked = Read.of(name, position, bytes_max, limit, compacted=compacted)
        given = await call.services.remote.read(owner, call.identity, asked, wait_s)
        return await shown(batches_of(given), given.offset, given.following, _count_passed_on)

    async def shown(
        batches: list[StoredBatch], offset: int, following: int, count: Count
    ) -> web.StreamResponse:
        if not batches:
            return web.Response(status=204, headers={NEXT_OFFSET_HEADER: str(following)})
        if kind == RECORD_BATCH:
            told = entries_told(_entries(batches))
            if told < len(batches):
                batches, following = batches[:told], batches[told - 1].next_offset
            count(call, batches, _messages_of(batches))
            return _as_batches(call, batches, following)
        room = max(bytes_max, MESSAGE_BYTES_MAX)
        page = _Page(call.services.broker.open_batches, name.partition, limit, room)
        await page.fill(batches, offset)
        if page.next_offset < batches[-1].next_offset:
            following = page.next_offset
        count(call, page.messages, len(page.messages))
        return _as_text(call, kind, page.messages, following)

    return await at_owner(call, name, here, there)


async def _follow(
    call: Call, name: PartitionName, kind: str, *, compacted: bool
) -> web.StreamResponse:
    if kind == JSON:
        raise bad_parameter("follow", "true", f"for Accept: {EVENTS}, {NDJSON} or {RECORD_BATCH}")
    if compacted:
        raise bad_parameter("compacted", "true", "omitted with follow")

    async def page_of(partition: Partition, start: str, wait_s: float) -> Page:
        call.services.quotas.may_read(name.topic_name)
        position = position_of(start)
        assert position is not None
        offset = await resolve(partition, position)
        batches = await partition.read(
            offset, bytes_max=PAGE_BYTES, count_max=PAGE_MESSAGES, wait_s=wait_s
        )
        page = await made_of(batches, offset)
        if kind == RECORD_BATCH:
            _count_read(call, batches, _messages_of(batches))
        else:
            _count_read(call, page.messages, len(page.messages))
        return page

    async def page_of_other(owner: Owner, start: str, wait_s: float) -> Page:
        position = position_of(start)
        assert position is not None
        asked = Read.of(name, position, PAGE_BYTES, PAGE_MESSAGES, compacted=False)
        given = await call.services.remote.read(owner, call.identity, asked, wait_s)
        page = await made_of(batches_of(given), given.offset)
        call.messages += page.next_offset - given.offset
        return page

    async def made_of(batches: list[StoredBatch], offset: int) -> Page:
        if not batches:
            return Page([], offset)
        if kind == RECORD_BATCH:
            times = append_times(batches)
            return Page([], batches[-1].next_offset, _joined(batches), times, _entries(batches))
        room = max(PAGE_BYTES, MESSAGE_BYTES_MAX)
        page = _Page(call.services.broker.open_batches, name.partition, PAGE_MESSAGES, room)
        await page.fill(batches, offset)
        return Page(page.messages, page.next_offset)

    start = call.text("from", "earliest")
    return await follow(call, name, kind, start, page_of, page_of_other)


async def offsets(call: Call) -> web.StreamResponse:
    position = parse_position(call, "at", "latest")
    compacted = wants_compacted(call)
    name = call.partition
    if name is not None:
        if (elsewhere := await redirected(call, name)) is not None:
            return elsewhere
        asked = FindOffset(name, at_of(position), compacted)
        found = [(name.partition, await operate(call, asked, Found))]
    else:
        topic = call.topic
        count = (await topic_of(call)).settings.partitions
        parts = [
            operate(
                call,
                FindOffset(topic.partition(number), at_of(position), compacted),
                Found,
                is_part=True,
            )
            for number in range(count)
        ]
        found = [*enumerate(all_or_raise(await ask_all(parts)))]
    shown = [OffsetsOf(number, one.offset, one.earliest, one.following) for number, one in found]
    return call.reply({"offsets": shown})


async def truncate(call: Call) -> web.StreamResponse:
    if "before" not in call.query:
        raise Problem(
            400, "invalid-parameter", f"name the first message to keep: before= {POSITIONS}"
        )
    position = parse_position(call, "before", "")
    topic = call.topic
    partitions = (await topic_of(call)).settings.partitions
    name = call.partition
    if name is None and partitions == 1:
        name = topic.partition(0)

    if name is not None:
        if (elsewhere := await redirected(call, name)) is not None:
            return elsewhere
        done = await operate(call, Truncate(name, at_of(position)), operations.Truncated)
        return call.reply(Truncated([Beginning(name.partition, done.first)]))
    if isinstance(position, int | MessageId):
        raise Problem(
            422,
            "partition-required",
            f"{topic} has {partitions} partitions, and an offset counts within one: name it, as in "
            f"/v1/topics/{topic}/partitions/0/messages?before=…, or say latest or a time for all",
            extra={"partitions": partitions},
        )
    asked = [
        operate(
            call,
            Truncate(topic.partition(number), at_of(position)),
            operations.Truncated,
            is_part=True,
        )
        for number in range(partitions)
    ]
    found = all_or_raise(await ask_all(asked))
    return call.reply(Truncated([Beginning(number, one.first) for number, one in enumerate(found)]))


def wants_compacted(call: Call) -> bool:
    return call.choice("compacted", "false", "true", "false") == "true"


def position_of(text: str) -> Position | None:
    if text in ("earliest", "latest"):
        return text
    offset = whole(text)
    if offset is not None:
        return offset
    if text.count(":") == 2 and "T" not in text and "-" not in text:
        return MessageId.parse(text)
    time_ms = parse_time_ms(text)
    return None if time_ms is None else (time_ms,)


def parse_position(call: Call, parameter: str, default: str) -> Position:
    text = call.text(parameter, default)
    found = position_of(text)
    if found is None:
        raise bad_parameter(parameter, text, POSITIONS + time_hint(text))
    return found


async def one_partition(call: Call, what: str) -> PartitionName:
    name = call.partition
    if name is not None:
        return name
    topic = call.topic
    info = await topic_of(call)
    if info.settings.partitions == 1:
        return topic.partition(0)
    raise _several(topic, info.settings.partitions, what)


def _several(topic: TopicName, partitions: int, what: str) -> Problem:
    return Problem(
        422,
        "partition-required",
        f"{topic} has {partitions} partitions, and an offset counts within one: read "
        f"/v1/topics/{topic}/partitions/0/{what} to …/{partitions - 1}/{what}, or receive from all "
        "of them through a subscription",
        extra={"partitions": partitions},
    )


def answer_type(call: Call, types: tuple[str, ...] = ANSWER_TYPES) -> str:
    accepted = call.headers.get("Accept")
    if not accepted:
        return JSON
    wishes = [wish.partition(";")[0].strip().lower() for wish in accepted.split(",")]
    for wish in wishes:
        if wish in types:
            return wish
    if any(wish in ("*/*", "application/*", "text/html", "text/*") for wish in wishes):
        return JSON
    raise Problem(
        406,
        "not-acceptable",
        f"none of {accepted[:100]!r} is available here; {', '.join(types)} are",
    )


class _Page:
    def __init__(self, opener: OpenBatches, number: int, limit: int, room: int) -> None:
        self.messages: list[Raw] = []
        self.next_offset = -1
        self._opener = opener
        self._number = number
        self._limit = limit
        self._room = room
        self._is_full = False

    async def fill(self, batches: list[StoredBatch], offset: int) -> None:
        for batch in batches:
            try:
                async with self._opener.opened(batch) as windows:
                    await self._take(batch, windows, offset)
            except (InvalidBatch, UnsupportedCompression) as error:
                if self.messages:
                    break
                raise _cannot_open(batch, error) from None
            if self._is_full:
                break
            offset = batch.next_offset

    async def _take(self, batch: StoredBatch, windows: BatchWindows, offset: int) -> None:
        skip = offset - batch.base_offset
        # A compacted batch has gaps: a record's position is not its offset.
        gaps = isinstance(batch, CompactedBatch)
        start = 0 if gaps else max(0, skip)
        following = windows.following(start, gaps=gaps, marked=True)
        while start < batch.header.record_count:
            await self._opener.turns.take(len(windows.span(start)))
            first, records = next(following)
            start = first + len(records)
            for index, record in enumerate(records, first):
                delta = record.offset_delta
                if delta < skip:
                    continue
                self._room -= record_bytes(record.key, record.value, record.headers)
                if self.messages and self._room < 0:
                    self._is_full = True
                    return
                at = MessageId(batch.ledger_id, batch.entry_id, index)
                found = message_out(self._number, batch.base_offset + delta, at, record)
                self.messages.append(Raw(encode(found)))
                self.next_offset = found.offset + 1
                if len(self.messages) == self._limit:
                    self._is_full = True
                    return


def _cannot_open(batch: StoredBatch, error: Exception) -> Problem:
    return Problem(
        406,
        "batch-not-readable",
        f"the batch stored at offset {batch.base_offset} cannot be opened: {error}. "
        f"Accept: {RECORD_BATCH} gives it as stored; from={batch.next_offset} continues after it",
        headers={NEXT_OFFSET_HEADER: str(batch.next_offset)},
        extra={"offset": batch.base_offset, "next_offset": batch.next_offset},
    )


def _headers(call: Call, following: int) -> dict[str, str]:
    return {NEXT_OFFSET_HEADER: str(following), OWNER_HEADER: call.owner_url}


def _as_batches(call: Call, batches: list[StoredBatch], following: int) -> web.StreamResponse:
    headers = _headers(call, following) | {ENTRIES_HEADER: entries_text(_entries(batches))}
    if told := append_times(batches):
        headers[APPEND_TIME_HEADER] = told
    return web.Response(body=_joined(batches), content_type=RECORD_BATCH, headers=headers)


def _entries(batches: list[StoredBatch]) -> list[tuple[int, int]]:
    return [(batch.ledger_id, batch.entry_id) for batch in batches]


def append_times(batches: list[StoredBatch]) -> str:
    """Return the header value; empty without append times."""
    return Times().tell(batch.header for batch in batches)


def _messages_of(batches: list[StoredBatch]) -> int:
    return sum(batch.header.record_count for batch in batches)


def _count_passed_on(call: Call, what: list[StoredBatch] | list[Raw], count: int) -> None:
    """Count batches that another broker has charged to the topic."""
    del what
    call.messages += count


def _count_read(call: Call, what: list[StoredBatch] | list[Raw], count: int) -> None:
    call.messages += count
    call.services.metrics.messages_read.inc(count)
    call.services.quotas.given(call.topic, what, count)


def _joined(batches: list[StoredBatch]) -> bytes:
    return batches[0].data if len(batches) == 1 else b"".join(batch.data for batch in batches)


def _as_text(call: Call, kind: str, messages: list[Raw], following: int) -> web.StreamResponse:
    headers = _headers(call, following)
    if kind == NDJSON:
        body = b"\n".join([bytes(message) for message in messages]) + b"\n"
        return web.Response(body=body, content_type=NDJSON, headers=headers)
    return call.reply({"messages": messages, "next_offset": following}, headers=headers)


LAST_EVENT_HEADER = "Last-Event-ID"
PAGE_BYTES = 64 * 1024
"""Size as stored; a slow reader holds a single page."""
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
    with call.services.streams.one(), call.services.quotas.stream(call):
        return await _Following(call, name, kind, read, read_other).run(_from(call, start))


class _Following:
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
        """Send from `start` on; raise only before anything was sent."""
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
        """Whether the head has the batches' append times, and entries if announced."""
        if self._placed and not page.is_empty and not page.entries:
            return False
        if not page.append_time:
            return True
        here = Times(page.append_time)
        return all(
            self._times.shown(one) == here.shown(one) for one in _stream_headers(page.batches)
        )

    async def _next(self, offset: int) -> Page:
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


def _stream_headers(batches: bytes) -> Iterator[BatchHeader]:
    start = 0
    while start < len(batches):
        header = read_header(batches, start)
        yield header
        start += header.total_bytes


def _from(call: Call, start: str) -> str:
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
