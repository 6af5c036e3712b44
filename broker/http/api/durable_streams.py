"""Durable streams over HTTP: make, append, read, describe, fork and delete.

A stream is a topic with one partition, whose owner runs the operations; docs/durable_streams.md has
the protocol. A stream exists once its owner has made it; a broken-off call leaves a topic, and a
repeat continues.

If it is cut within a message, the inherited part is the fork's first own message.

An event stream is a loop of reads by the broker that was called; it ends after a while, and the
reader reconnects with its last offset.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

from aiohttp import hdrs, web
from msgspec.structs import replace

from octavo.broker.errors import (
    STREAM_CONFLICT,
    TOPIC_IS_NO_STREAM,
    ForkDisturbed,
    InvalidSettings,
    OffsetBeyondEnd,
    QuotaExceeded,
    SettingsConflict,
    StreamGone,
    StreamNotFound,
    TopicExists,
    TopicNotFound,
)
from octavo.broker.http import durable
from octavo.broker.http.api.topics import points_of
from octavo.broker.http.call import Call, bad_parameter
from octavo.broker.http.forwarding import operate, redirected, topic_of
from octavo.broker.http.problems import Problem, readable
from octavo.broker.http.quotas import wait_of
from octavo.broker.http.stream import EVENTS, LIVES_S, Stream, through_moves, write_head
from octavo.broker.operations.given import stored_of
from octavo.broker.operations.kinds import Done, Given, Read
from octavo.broker.operations.stream_kinds import (
    AppendToStream,
    DeleteStream,
    DescribeStream,
    ForkAsked,
    ForkPlan,
    MakeStream,
    Making,
    ReadStream,
    StreamAppended,
    StreamAsked,
    StreamMade,
    StreamNow,
    StreamPage,
)
from octavo.broker.operations.streams import BEGINNING, values_of
from octavo.broker.state.stream import Append, StreamConfig, media_type
from octavo.broker.types import PartitionName, TopicInfo, TopicName, TopicSettings
from octavo.protocol.batch import read_header
from octavo.protocol.codes import OctavoError
from octavo.protocol.records import read_records
from octavo.security.rules import Kind, Operation, Resource

PRODUCER_HEADERS = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
WORD_BYTES_MAX = 1024
"""Bounds a producer's name and a `Stream-Seq`, which are stored."""


async def append(call: Call) -> web.StreamResponse:
    said = append_of(call.headers)
    body = await call.read_body()
    name = await stream_of(call)
    if (elsewhere := await redirected(call, name)) is not None:
        return elsewhere
    kind = readable(call.headers.get("Content-Type", ""))
    found = await operate(call, AppendToStream(name, said, kind, body), StreamAppended)
    call.messages = found.messages
    return _appended(said, found, body)


def _appended(said: Append, found: StreamAppended, body: bytes) -> web.StreamResponse:
    headers = {durable.OFFSET_HEADER: shown(found.end)}
    if found.closed:
        headers[durable.CLOSED_HEADER] = "true"
    status = 204
    if said.producer is not None:
        headers["Producer-Epoch"] = str(found.epoch)
        headers["Producer-Seq"] = str(found.sequence)
        if body and not found.repeated:
            status = 200
    return web.Response(status=status, headers=headers)


async def delete_stream(call: Call) -> web.StreamResponse:
    name = await stream_of(call)
    if (elsewhere := await redirected(call, name)) is not None:
        return elsewhere
    await operate(call, DeleteStream(name), Done)
    return web.Response(status=204)


async def stream_of(call: Call) -> PartitionName:
    try:
        info: TopicInfo = await topic_of(call)
    except TopicNotFound:
        raise StreamNotFound(
            f"there is no stream {call.topic}; PUT /v1/durable-streams/{call.topic} makes it"
        ) from None
    if info.settings.partitions != 1:
        raise TOPIC_IS_NO_STREAM(
            f"topic {info.name} has {info.settings.partitions} partitions: it is no durable stream"
        )
    return info.name.partition(0)


def shown(offset: int) -> str:
    if offset >= durable.FIRST_UNSHOWN:
        raise Problem(422, "offset-too-high", f"offset {offset} has more than sixteen digits")
    return durable.offset_text(offset)


def append_of(headers: Mapping[str, str]) -> Append:
    seq = word(headers, durable.SEQ_HEADER)
    closes = durable.says_true(headers.get(durable.CLOSED_HEADER))
    given = [name for name in PRODUCER_HEADERS if name in headers]
    if not given:
        return Append(stream_seq=seq, closes=closes)
    if len(given) < len(PRODUCER_HEADERS):
        missing = [name for name in PRODUCER_HEADERS if name not in headers]
        raise Problem(
            400,
            "incomplete-producer",
            f"{', '.join(PRODUCER_HEADERS)} are given together or not at all; missing: "
            + ", ".join(missing),
        )
    producer = word(headers, "Producer-Id")
    if not producer:
        raise bad("Producer-Id", "", "a name")
    epoch = number("Producer-Epoch", headers["Producer-Epoch"])
    return Append(producer, epoch, number("Producer-Seq", headers["Producer-Seq"]), seq, closes)


def word(headers: Mapping[str, str], name: str) -> str | None:
    text = headers.get(name)
    if text is None:
        return None
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise bad(name, ascii(text), "UTF-8") from None
    if size > WORD_BYTES_MAX:
        raise bad(name, text, f"of at most {WORD_BYTES_MAX} bytes")
    return text


def number(name: str, text: str) -> int:
    found = durable.number_of(text)
    if found is None:
        raise bad(
            name, text, f"a whole number from 0 to {durable.HIGHEST_NUMBER}, without leading 0s"
        )
    return found


def bad(name: str, text: str, expected: str) -> Problem:
    return Problem(400, "invalid-header", f"{name} is {text[:40]!r}; it must be {expected}")


_TRIES_MAX = 4


class Plan(NamedTuple):
    source: TopicInfo
    fork: ForkPlan


async def put_stream(call: Call) -> web.StreamResponse:
    topic = call.topic
    asked = asked_for(call.headers)
    if asked.fork is not None:
        check_source(call, asked.fork)
    body = await call.read_body()
    if body:
        call.check(Operation.PRODUCE, Resource(Kind.TOPIC, str(topic)))
    plan: Plan | None = None
    for _ in range(_TRIES_MAX):
        info, plan = await _topic(call, asked, plan)
        if info.settings.partitions != 1:
            raise STREAM_CONFLICT(
                f"topic {topic} has {info.settings.partitions} partitions, and a stream has one"
            )
        call.incarnation = info.incarnation
        name = info.name.partition(0)
        if (elsewhere := await redirected(call, name)) is not None:
            return elsewhere
        made = await _make(call, asked, body, info, plan)
        if made.making is Making.OVER:
            await call.services.broker.streams.delete(topic, info.incarnation)
            plan = None
        elif made.making is Making.UNPLANNED:
            fork, cut = info.fork, asked.fork
            assert cut is not None
            if fork is None or fork.topic != cut.source.topic or not fork.offsets:
                raise STREAM_CONFLICT(f"{topic} is there, and no fork of {cut.source}")
            plan = await planned(call, asked, cut, fork.offsets[0])
        else:
            call.messages = made.messages
            return _made(call, made)
    raise STREAM_CONFLICT(f"{topic} expires or is deleted as fast as it is made")


def _location(call: Call) -> str:
    host, path = call.request.headers.get("Host"), call.request.raw_path.partition("?")[0]
    scheme = "https" if call.request.secure else "http"
    return (call.services.url if host is None else f"{scheme}://{host}") + path


async def _topic(
    call: Call, asked: StreamAsked, plan: Plan | None
) -> tuple[TopicInfo, Plan | None]:
    topic, topics = call.topic, call.services.broker.topics
    try:
        return await topics.get(topic), plan
    except TopicNotFound:
        await call.services.quotas.check_topics(topic)
    try:
        if asked.fork is None:
            info, _ = await topics.create(topic, TopicSettings(), for_stream=True)
            return info, None
        plan = await planned(call, asked, asked.fork)
        return await forked(call, plan), plan
    except (SettingsConflict, TopicExists):  # made a moment ago by another call
        try:
            return await topics.newest(topic), None
        except TopicNotFound as error:  # or is being forked
            raise ForkDisturbed(str(error)) from error


async def _make(
    call: Call, asked: StreamAsked, body: bytes, info: TopicInfo, plan: Plan | None
) -> StreamMade:
    fork = None if plan is None else plan.fork
    operation = MakeStream(info.name.partition(0), asked, body, info.for_stream, fork)
    made = await operate(call, operation, StreamMade)
    if made.making is not Making.CONVERTS:
        return made
    _check_may_convert(call, operation)
    made = await operate(call, replace(operation, may_convert=True), StreamMade)
    assert made.making is not Making.CONVERTS
    return made


def _check_may_convert(call: Call, operation: MakeStream) -> None:
    """Check the right to convert a topic.

    A stream excludes the topic's publishers, and an expired stream is deleted with its messages.
    """
    topic = Resource(Kind.TOPIC, str(call.topic))
    call.check(Operation.ALTER, topic)
    if operation.expires:
        call.check(Operation.DELETE, topic)


def _made(call: Call, made: StreamMade) -> web.StreamResponse:
    headers = {"Content-Type": made.content_type, durable.OFFSET_HEADER: shown(made.end)}
    if made.closed:
        headers[durable.CLOSED_HEADER] = "true"
    if made.making is Making.THERE:
        return web.Response(status=200, headers=headers)
    headers["Location"] = _location(call)
    return web.Response(status=201, headers=headers)


# Forks


def check_source(call: Call, fork: ForkAsked) -> None:
    if fork.source.namespace != call.namespace:
        raise Problem(
            400,
            "foreign-source",
            f"{fork.source} is in another namespace than {call.topic}: a fork shares ledgers with "
            "its source, and the namespace decides on rights, quotas and keys",
        )
    call.check(Operation.CONSUME, Resource(Kind.TOPIC, str(fork.source)))


@asynccontextmanager
async def _about(call: Call, info: TopicInfo) -> AsyncIterator[None]:
    before, call.incarnation = call.incarnation, info.incarnation
    try:
        yield
    finally:
        call.incarnation = before


async def planned(call: Call, asked: StreamAsked, fork: ForkAsked, cut: int | None = None) -> Plan:
    info = await call.services.broker.topics.get(fork.source)
    if info.settings.partitions != 1:
        raise TOPIC_IS_NO_STREAM(
            f"topic {fork.source} is no durable stream: it has several partitions"
        )
    async with _about(call, info):
        like, end = await _source(call, info, fork.offset or 0)
        wanted = asked.content_type
        if wanted and media_type(wanted) != like.media_type:
            raise STREAM_CONFLICT(
                f"{fork.source} has the content type {like.content_type}, not {wanted[:80]}"
            )
        offset = fork.offset
        if offset is None:
            offset = end if cut is None else cut
        if offset > end:
            raise _beyond(f"{fork.source} ends before {durable.offset_text(offset)}")
        base, part = offset, b""
        if fork.sub_offset:
            base, part = await _cut(call, info, like, end, offset, fork.sub_offset)
    if cut is not None and cut != base:
        raise STREAM_CONFLICT(f"{call.topic} is there, and was forked at another place")
    config = asked.config(like)._replace(fork_offset=offset)
    return Plan(info, ForkPlan(config, base, part))


async def _source(call: Call, info: TopicInfo, least: int) -> tuple[StreamConfig, int]:
    gone = STREAM_CONFLICT(f"{info.name} was deleted, and is kept for the forks that it has")
    asked = DescribeStream(info.name.partition(0), least)
    try:
        found = await operate(call, asked, StreamNow, is_part=True)
    except StreamGone:
        raise gone from None
    except Problem as problem:  # of another broker
        if problem.code == StreamGone.name:
            raise gone from None
        raise
    return StreamConfig(*found.config[:4]), found.end


async def _cut(
    call: Call, info: TopicInfo, like: StreamConfig, end: int, offset: int, sub_offset: int
) -> tuple[int, bytes]:
    """Return the offset of the cut, and the inherited part of a message that is cut."""
    if offset == end:
        raise _beyond(f"{info.name} has nothing behind {durable.offset_text(offset)}")
    asked = Read.of(info.name.partition(0), offset, 1, 1, compacted=False)
    data = (await operate(call, asked, Given, is_part=True)).batches[0].data
    header = read_header(data)
    index = offset - header.base_offset
    if like.is_json:
        left = header.record_count - index
        if sub_offset > left:
            raise _beyond(f"the append at {durable.offset_text(offset)} has {left} messages")
        return offset + sub_offset, b""
    records = list(read_records(data[: header.total_bytes]))
    value = records[index].value or b""
    if sub_offset > len(value):
        raise _beyond(f"the append at {durable.offset_text(offset)} has {len(value)} bytes")
    if sub_offset == len(value):
        return offset + 1, b""
    return offset, value[:sub_offset]


async def forked(call: Call, plan: Plan) -> TopicInfo:
    for last in (False, False, True):
        try:
            async with _about(call, plan.source):
                points = await points_of(call, plan.source, {0: str(plan.fork.base)})
            return await call.services.broker.forks.make(
                plan.source, call.topic, points, for_stream=True
            )
        except ForkDisturbed:
            if last:
                raise
            await asyncio.sleep(0)
        except InvalidSettings as error:
            raise Problem(400, "not-forkable", str(error)) from error
    raise AssertionError("the last one returns or raises")


def _beyond(why: str) -> Problem:
    return Problem(400, "fork-beyond-end", why)


def asked_for(headers: Mapping[str, str]) -> StreamAsked:
    ttl, expires = headers.get(durable.TTL_HEADER), headers.get(durable.EXPIRES_HEADER)
    if ttl is not None and expires is not None:
        raise Problem(
            400,
            "ttl-and-expiry",
            f"give {durable.TTL_HEADER} or {durable.EXPIRES_HEADER}, not both",
        )
    ttl_s = None if ttl is None else number(durable.TTL_HEADER, ttl)
    expires_ms = None if expires is None else durable.time_ms_of(expires)
    if expires is not None and expires_ms is None:
        raise bad(durable.EXPIRES_HEADER, expires, "an RFC 3339 time")
    kind = word(headers, "Content-Type") or ""
    closed = durable.says_true(headers.get(durable.CLOSED_HEADER))
    return StreamAsked(kind.strip(), ttl_s, expires, expires_ms, closed, _fork_asked(headers))


def _fork_asked(headers: Mapping[str, str]) -> ForkAsked | None:
    path = headers.get(durable.FORKED_FROM_HEADER)
    offset = headers.get(durable.FORK_OFFSET_HEADER)
    sub = headers.get(durable.FORK_SUB_OFFSET_HEADER)
    if path is None:
        if offset is not None or sub is not None:
            raise Problem(
                400, "fork-of-nothing", f"a fork needs {durable.FORKED_FROM_HEADER}: its source"
            )
        return None
    source = durable.source_of(path)
    if source is None:
        raise bad(durable.FORKED_FROM_HEADER, path, f"{durable.PATH}NAMESPACE/TOPIC")
    at = None if offset is None else durable.offset_of(offset)
    if offset is not None and at is None:
        raise bad(durable.FORK_OFFSET_HEADER, offset, "an offset of an answer")
    sub_offset = 0 if sub is None else number(durable.FORK_SUB_OFFSET_HEADER, sub)
    return ForkAsked(TopicName.of(*source), at, sub_offset)


CACHED = "max-age=60, stale-while-revalidate=300"
LONG_POLL, SSE = "long-poll", "sse"
_RANDOM = random.SystemRandom()


async def read(call: Call) -> web.StreamResponse:
    name = await stream_of(call)
    if (elsewhere := await redirected(call, name)) is not None:
        return elsewhere
    offset = call.query.get("offset")
    if call.request.method == "HEAD":
        least = durable.offset_of(offset or "") or 0
        return _head(await operate(call, DescribeStream(name, least), StreamNow))
    live = call.query.get("live")
    if live not in (None, LONG_POLL, SSE):
        raise bad_parameter("live", live or "", f"{LONG_POLL} or {SSE}")
    if live is not None and offset is None:
        raise Problem(400, "offset-missing", f"with live={live} say where to begin: offset=")
    if offset not in (None, "-1", "now") and durable.offset_of(offset or "") is None:
        raise bad_parameter("offset", offset or "", "-1, now, or an offset of an answer before")
    config = call.services.config
    asked = ReadStream(name, _place(offset), config.read_bytes, config.read_messages_max)
    try:
        if live == SSE:
            return await _events(call, asked)
        return await _once(call, asked, live=live, now=offset == "now")
    except Problem as problem:  # of another broker
        if problem.code != OffsetBeyondEnd.name:
            raise
        raise _beyond_end(call, offset, problem.extra["next_offset"]) from problem
    except OffsetBeyondEnd as error:
        raise _beyond_end(call, offset, error.next_offset) from error


def _place(offset: str | None) -> int | None:
    if offset == "now":
        return None
    return BEGINNING if offset in (None, "-1") else durable.offset_of(offset or "")


def _beyond_end(call: Call, offset: str | None, end: int) -> Problem:
    return Problem(
        400,
        "offset-beyond-end",
        f"{call.topic} ends before {offset}: no answer has given this offset",
        headers={durable.OFFSET_HEADER: shown(end)},
    )


def _head(found: StreamNow) -> web.StreamResponse:
    config = found.config
    headers = {
        "Content-Type": config.content_type,
        durable.OFFSET_HEADER: shown(found.end),
        "Cache-Control": "no-store",
    }
    if config.ttl_s is not None:
        headers[durable.TTL_HEADER] = str(config.ttl_s)
    if config.expires_at is not None:
        headers[durable.EXPIRES_HEADER] = config.expires_at
    if found.closed:
        headers[durable.CLOSED_HEADER] = "true"
    return web.Response(headers=headers)


async def _once(
    call: Call, asked: ReadStream, *, live: str | None, now: bool
) -> web.StreamResponse:
    if live is not None:
        asked = replace(asked, wait_ms=call.services.config.stream_poll_ms)
    elif now:
        asked = replace(asked, count_max=0)
    page = await operate(call, asked, StreamPage)
    config, values = page.config, await _values(call, page)
    headers = {
        "Content-Type": config.content_type,
        durable.OFFSET_HEADER: shown(page.following),
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
    if page.is_all:
        headers[durable.UP_TO_DATE_HEADER] = "true"
    if page.closed:
        headers[durable.CLOSED_HEADER] = "true"
    elif live is not None:
        headers[durable.CURSOR_HEADER] = _cursor(call)
    if live is not None and not values:
        del headers["Content-Type"]
        headers["Cache-Control"] = "no-store"
        return web.Response(status=204, headers=headers)
    if now:
        headers["Cache-Control"] = "no-store"
    else:
        whose = "private" if call.services.gate.secured else "public"
        headers["Cache-Control"] = f"{whose}, {CACHED}"
        tag = durable.etag(page.incarnation, page.start, page.following, closed=page.closed)
        headers[hdrs.ETAG] = tag
        if durable.matches(call.headers.get("If-None-Match"), tag):
            return web.Response(status=304, headers=headers)
    body = durable.joined(values, is_json=config.is_json)
    return web.Response(body=body, headers=headers)


async def _values(call: Call, page: StreamPage) -> list[bytes]:
    opener = call.services.broker.open_batches
    values: list[bytes] = []
    for batch in stored_of(page.batches):
        values += await values_of(opener, batch, page.start)
    call.messages += page.following - page.start
    return [value for value in values if value] if page.config.is_json else values


def _cursor(call: Call) -> str:
    jitter_s = _RANDOM.randint(1, durable.CURSOR_JITTER_S)
    return durable.cursor(call.services.clock(), call.query.get("cursor"), jitter_s)


async def _events(call: Call, asked: ReadStream) -> web.StreamResponse:
    with call.services.streams.one(), call.services.quotas.stream(call):
        first = replace(asked, look_back=durable.LOOK_BACK_BYTES)
        page = await operate(call, first, StreamPage)  # errors get a normal answer
        call.incarnation = page.incarnation  # later pages must match
        stream = Stream(call, EVENTS)
        response = stream.response
        response.content_type = EVENTS
        write_head(call, response)
        response.headers["Cache-Control"] = "no-cache, no-store"
        response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        if not durable.is_text(page.config.content_type):
            response.headers[durable.ENCODING_HEADER] = "base64"
        await response.prepare(call.request)
        with suppress(OctavoError, TimeoutError, ConnectionError):
            # However it ends, the reader reconnects, and then gets the error.
            async with asyncio.timeout(call.services.config.stream_events_ms / 1000):
                await _send(call, asked, page, stream)
        with suppress(ConnectionError):
            await response.write_eof()
    return response


async def _next_page(call: Call, asked: ReadStream, stream: Stream) -> StreamPage:
    while True:
        try:
            read = partial(operate, call, asked, StreamPage)
            return await through_moves(read, final=QuotaExceeded.name)
        except (QuotaExceeded, Problem) as error:
            wait_s = wait_of(error)
            if not wait_s:
                raise
            await asyncio.sleep(min(wait_s, LIVES_S))
            if wait_s > LIVES_S:
                await stream.send(b": \n\n")


async def _send(call: Call, asked: ReadStream, page: StreamPage, stream: Stream) -> None:
    kind, is_json, is_first = page.config.content_type, page.config.is_json, True
    text = durable.EventText(page.before) if durable.is_text(kind) and not is_json else None
    while True:
        values = await _values(call, page)
        data = durable.joined(values, is_json=is_json) if values else b""
        if text is not None:
            data = text.feed(data, is_last=page.closed)
        if data:
            await stream.send(durable.data_event(data, kind), len(values))
        if values or is_first or page.closed:
            control = durable.control_event(
                page.following,
                cursor=_cursor(call),
                up_to_date=page.is_all,
                closed=page.closed,
            )
            await stream.send(control)
        if page.closed:
            return
        is_first = False
        following = replace(asked, at=page.following, wait_ms=round(LIVES_S * 1000))
        page = await _next_page(call, following, stream)
        if not page.batches and not page.closed:
            await stream.send(b": \n\n")
