"""Read a durable stream: up to its end, waiting for more, or as events; and describe it.

Each read begins at an offset and gives whole messages, joined as they were appended, or as a JSON
array. A read that reaches the end says so (`Stream-Up-To-Date`), and whether the stream has ended
(`Stream-Closed`). Caches must not hide that, so the answer's tag changes with it. An event stream
is a loop of reads, by the broker that was asked, at whichever broker owns the partition. It ends
after a while: the reader then reconnects with the last offset that it got.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from functools import partial

from aiohttp import hdrs, web
from msgspec.structs import replace

from octavo.broker.errors import OffsetBeyondEnd, QuotaExceeded
from octavo.broker.http import durable
from octavo.broker.http.api.durable_streams import shown, stream_of
from octavo.broker.http.call import Call, bad_parameter
from octavo.broker.http.forwarding import operate, redirected
from octavo.broker.http.pages import EVENTS
from octavo.broker.http.problems import Problem
from octavo.broker.http.quotas import wait_of
from octavo.broker.http.stream import LIVES_S, Stream, through_moves, write_head
from octavo.broker.operations.given import stored_of
from octavo.broker.operations.stream_kinds import (
    DescribeStream,
    ReadStream,
    StreamNow,
    StreamPage,
)
from octavo.broker.operations.streams import BEGINNING, values_of
from octavo.protocol.codes import OctavoError

CACHED = "max-age=60, stale-while-revalidate=300"
LONG_POLL, SSE = "long-poll", "sse"
_RANDOM = random.SystemRandom()


async def read(call: Call) -> web.StreamResponse:
    """`GET /v1/durable-streams/{namespace}/{topic}`, and `HEAD`."""
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
    """Answer a single read."""
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
    """Return the messages of a page."""
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
    """Send events until the stream ends, or the reader should reconnect."""
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
    """Read once the quota of the namespace and the rates of the topic allow it."""
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
    """Send page after page, from wherever the partition is served."""
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
