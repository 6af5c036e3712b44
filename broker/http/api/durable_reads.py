"""Read a durable stream: up to its end, waiting for more, or as events; and describe it.

Each read begins at an offset and gives whole messages, joined as they were appended, or as a JSON
array. A read that reaches the end says so (`Stream-Up-To-Date`), and whether the stream has ended
(`Stream-Closed`). Caches must not hide that, so the answer's tag changes with it. The owner ends an
event stream after a while, and when the partition moves: the reader then reconnects with the last
offset that it got.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import NamedTuple

from aiohttp import hdrs, web

from octavo.broker.errors import OffsetBeyondEnd, QuotaExceeded
from octavo.broker.http import durable
from octavo.broker.http.api.durable_streams import end_of, shown, standing, stream_of
from octavo.broker.http.call import Call, bad_parameter
from octavo.broker.http.forwarding import at_owner
from octavo.broker.http.pages import EVENTS
from octavo.broker.http.problems import Problem
from octavo.broker.http.stream import LIVES_S, Stream, write_head
from octavo.broker.partition.partition import Partition
from octavo.broker.state.stream import StreamState
from octavo.broker.types import StoredBatch
from octavo.protocol.codes import OctavoError

CACHED = "max-age=60, stale-while-revalidate=300"
LONG_POLL, SSE = "long-poll", "sse"
_RANDOM = random.SystemRandom()


class _Piece(NamedTuple):
    """The messages read from `start` on."""

    values: list[bytes]
    next_offset: int
    is_all: bool
    """Whether there are no more messages now …"""
    closed: bool
    """… nor at any later time."""


async def read(call: Call) -> web.StreamResponse:
    """`GET /v1/durable-streams/{namespace}/{topic}`, and `HEAD`."""
    name = await stream_of(call)
    if call.request.method == "HEAD":

        async def shows(partition: Partition) -> web.StreamResponse:
            state = await standing(call, partition, used=False)
            await end_of(partition, durable.offset_of(call.query.get("offset", "")) or 0)
            return _head(state, partition)

        return await at_owner(call, name, shows)
    live = call.query.get("live")
    if live not in (None, LONG_POLL, SSE):
        raise bad_parameter("live", live or "", f"{LONG_POLL} or {SSE}")
    offset = call.query.get("offset")
    if live is not None and offset is None:
        raise Problem(400, "offset-missing", f"with live={live} say where to begin: offset=")
    if offset not in (None, "-1", "now") and durable.offset_of(offset or "") is None:
        raise bad_parameter("offset", offset or "", "-1, now, or an offset of an answer before")

    async def here(partition: Partition) -> web.StreamResponse:
        state = await standing(call, partition)
        call.services.quotas.may_read(call.topic)
        start = _start(partition, offset)
        if start > partition.next_offset:
            raise OffsetBeyondEnd(f"{call.topic} ends before {offset}", partition.next_offset)
        if live == SSE:
            return await _events(call, partition, state, start)
        return await _once(call, partition, state, start, live=live, now=offset == "now")

    try:
        return await at_owner(call, name, here)
    except OffsetBeyondEnd as error:
        raise Problem(
            400,
            "offset-beyond-end",
            f"{error}: no answer has given this offset",
            headers={durable.OFFSET_HEADER: shown(error.next_offset)},
        ) from error


def _start(partition: Partition, offset: str | None) -> int:
    if offset == "now":
        return partition.next_offset
    if offset in (None, "-1"):
        return partition.earliest_offset
    found = durable.offset_of(offset or "")
    assert found is not None
    return found


def _head(state: StreamState, partition: Partition) -> web.StreamResponse:
    headers = {
        "Content-Type": state.config.content_type,
        durable.OFFSET_HEADER: shown(partition.stream.end),
        "Cache-Control": "no-store",
    }
    if state.config.ttl_s is not None:
        headers[durable.TTL_HEADER] = str(state.config.ttl_s)
    if state.config.expires_at is not None:
        headers[durable.EXPIRES_HEADER] = state.config.expires_at
    if partition.stream.is_closed:
        headers[durable.CLOSED_HEADER] = "true"
    return web.Response(headers=headers)


async def _once(
    call: Call, partition: Partition, state: StreamState, start: int, *, live: str | None, now: bool
) -> web.StreamResponse:
    """Answer a single read."""
    stream, config = partition.stream, state.config
    if live is not None:
        await stream.wait(start, call.services.config.stream_poll_ms / 1000)
    if now and live is None:
        piece = _Piece([], start, True, stream.is_closed and start == stream.end)
    else:
        piece = await _piece(call, partition, state, start)
    headers = {
        "Content-Type": config.content_type,
        durable.OFFSET_HEADER: shown(piece.next_offset),
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
    if piece.is_all:
        headers[durable.UP_TO_DATE_HEADER] = "true"
    if piece.closed:
        headers[durable.CLOSED_HEADER] = "true"
    elif live is not None:
        headers[durable.CURSOR_HEADER] = _cursor(call)
    if live is not None and not piece.values:
        del headers["Content-Type"]
        headers["Cache-Control"] = "no-store"
        return web.Response(status=204, headers=headers)
    if now:
        headers["Cache-Control"] = "no-store"
    else:
        whose = "private" if call.services.gate.secured else "public"
        headers["Cache-Control"] = f"{whose}, {CACHED}"
        tag = durable.etag(partition.incarnation, start, piece.next_offset, closed=piece.closed)
        headers[hdrs.ETAG] = tag  # as another broker spells it when it returns it
        if durable.matches(call.headers.get("If-None-Match"), tag):
            return web.Response(status=304, headers=headers)
    body = durable.joined(piece.values, is_json=config.is_json)
    return web.Response(body=body, headers=headers)


async def _piece(call: Call, partition: Partition, state: StreamState, start: int) -> _Piece:
    """Read from `start` on, as much as fits an answer."""
    room, most = call.services.config.read_bytes, call.services.config.read_messages_max
    batches = await partition.read(start, bytes_max=room, count_max=most)
    while batches and (following := batches[-1].next_offset) < partition.next_offset:
        # A read ends with its ledger; an answer ends only when it is long enough.
        left = room - sum(len(batch.data) for batch in batches)
        if left <= 0 or following - start >= most:
            break
        more = await partition.read(following, bytes_max=left, count_max=most)
        if sum(len(batch.data) for batch in more) > left:
            break
        batches += more
    values: list[bytes] = []
    for batch in batches:
        values += await _values(call, batch, start, is_json=state.config.is_json)
    following = batches[-1].next_offset if batches else start
    count = following - start
    call.messages += count
    call.services.metrics.messages_read.inc(count)
    call.services.quotas.given(call.topic, batches, count)
    stream = partition.stream
    is_all = following >= stream.end
    return _Piece(values, following, is_all, is_all and stream.is_closed)


async def _values(call: Call, batch: StoredBatch, start: int, *, is_json: bool) -> list[bytes]:
    """Return the messages of a batch from the offset `start` on."""
    opener = call.services.broker.open_batches
    found: list[bytes] = []
    at = skip = max(0, start - batch.base_offset)
    async with opener.opened(batch) as windows:
        following = windows.following(at)
        while at < batch.header.record_count:
            await opener.turns.take(len(windows.span(at)))
            first, records = next(following)
            at = first + len(records)
            wanted = (one.value or b"" for one in records if one.offset_delta >= skip)
            found += [value for value in wanted if value or not is_json]
    return found


async def _before(call: Call, partition: Partition, start: int) -> bytes:
    """Return the last bytes before `start`, as many as an unfinished character may have."""
    at = max(partition.earliest_offset, start - durable.LOOK_BACK_BYTES)
    found = b""
    while at < start:
        batches = await partition.read(at, bytes_max=1, count_max=start - at)
        if not batches:
            break
        for batch in batches:
            values = await _values(call, batch, at, is_json=False)
            found = (found + b"".join(values[: start - at]))[-durable.LOOK_BACK_BYTES :]
            at = batch.next_offset
    return found


def _cursor(call: Call) -> str:
    jitter_s = _RANDOM.randint(1, durable.CURSOR_JITTER_S)
    return durable.cursor(call.services.clock(), call.query.get("cursor"), jitter_s)


async def _events(
    call: Call, partition: Partition, state: StreamState, start: int
) -> web.StreamResponse:
    """Send events until the stream ends, or the reader should reconnect."""
    kind = state.config.content_type
    await partition.read(start, bytes_max=1, count_max=1)  # errors get a normal answer
    with call.services.streams.one(), call.services.quotas.stream(call):
        stream = Stream(call, EVENTS)
        response = stream.response
        response.content_type = EVENTS
        write_head(call, response)
        response.headers["Cache-Control"] = "no-cache, no-store"
        response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        if not durable.is_text(kind):
            response.headers[durable.ENCODING_HEADER] = "base64"
        await response.prepare(call.request)
        with suppress(OctavoError, TimeoutError, ConnectionError):
            # However it ends, the reader reconnects, and then gets the error.
            async with asyncio.timeout(call.services.config.stream_events_ms / 1000):
                await _send(call, partition, state, stream, start)
        with suppress(ConnectionError):
            await response.write_eof()
    return response


async def _until_may_read(call: Call, stream: Stream) -> None:
    """Wait until the quota of the namespace and the rates of the topic allow another read."""
    while True:
        try:
            return call.services.quotas.may_read(call.topic)
        except QuotaExceeded as error:
            await asyncio.sleep(min(error.wait_s, LIVES_S))
            if error.wait_s > LIVES_S:
                await stream.send(b": \n\n")


async def _send(
    call: Call, partition: Partition, state: StreamState, stream: Stream, start: int
) -> None:
    kind, is_first = state.config.content_type, True
    text = None
    if durable.is_text(kind) and not state.config.is_json:
        text = durable.EventText(await _before(call, partition, start))
    while True:
        await _until_may_read(call, stream)
        piece = await _piece(call, partition, state, start)
        data = durable.joined(piece.values, is_json=state.config.is_json) if piece.values else b""
        if text is not None:
            data = text.feed(data, is_last=piece.closed)
        if data:
            await stream.send(durable.data_event(data, kind), len(piece.values))
        if piece.values or is_first or piece.closed:
            control = durable.control_event(
                piece.next_offset,
                cursor=_cursor(call),
                up_to_date=piece.is_all,
                closed=piece.closed,
            )
            await stream.send(control)
        if piece.closed:
            return
        start, is_first = piece.next_offset, False
        if piece.is_all:
            await partition.stream.wait(start, LIVES_S)
            if partition.stream.end <= start and not partition.stream.is_closed:
                await stream.send(b": \n\n")
