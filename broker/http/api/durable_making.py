"""Make a durable stream, or a fork: a stream that begins with another stream's messages.

A fork's topic is a fork of the source's topic (forks.py): no message is copied, and it is in the
same namespace. If it is cut within a message, the inherited part becomes the fork's first own
message, stored together with the body's messages. Properties that the request does not give, such
as the content type and the lifetime, are the source's. The source is asked on behalf of the caller.

A stream exists once its owner has made it (partition/stream.py). A call that breaks off leaves a
topic, and a repeated call continues from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiohttp import web
from msgspec.structs import replace

from octavo.broker.errors import (
    ForkDisturbed,
    InvalidSettings,
    SettingsConflict,
    StreamConflict,
    StreamGone,
    TopicExists,
    TopicIsNoStream,
    TopicNotFound,
)
from octavo.broker.http import durable
from octavo.broker.http.api.durable_streams import bad, number, shown, word
from octavo.broker.http.api.forks import points_of
from octavo.broker.http.call import Call
from octavo.broker.http.forwarding import operate, redirected
from octavo.broker.http.problems import Problem
from octavo.broker.operations.kinds import Given, Read
from octavo.broker.operations.stream_kinds import (
    DescribeStream,
    ForkAsked,
    ForkPlan,
    MakeStream,
    Making,
    StreamAsked,
    StreamMade,
    StreamNow,
)
from octavo.broker.state.stream import StreamConfig, media_type
from octavo.broker.types import TopicInfo, TopicName, TopicSettings
from octavo.protocol.batch import read_header
from octavo.protocol.records import read_records
from octavo.security.rules import Kind, Operation, Resource

_TRIES_MAX = 4
"""Limit of tries, while other streams of that name expire or are being made."""


class Plan(NamedTuple):
    """How to make a fork of a topic."""

    source: TopicInfo
    fork: ForkPlan


async def put_stream(call: Call) -> web.StreamResponse:
    """`PUT /v1/durable-streams/{namespace}/{topic}`."""
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
            raise StreamConflict(
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
                raise StreamConflict(f"{topic} is there, and no fork of {cut.source}")
            plan = await planned(call, asked, cut, fork.offsets[0])
        else:
            call.messages = made.messages
            return _made(call, made)
    raise StreamConflict(f"{topic} expires or is deleted as fast as it is made")


def _location(call: Call) -> str:
    """Return the stream's URL, with the host that the client used."""
    host, path = call.request.headers.get("Host"), call.request.raw_path.partition("?")[0]
    scheme = "https" if call.request.secure else "http"
    return (call.services.url if host is None else f"{scheme}://{host}") + path


async def _topic(
    call: Call, asked: StreamAsked, plan: Plan | None
) -> tuple[TopicInfo, Plan | None]:
    """Return the topic in the path, made if it is new, and the plan if it is a fork."""
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
    """Ask the owner to make the stream."""
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
    """Check that the caller may turn an existing topic into a stream. Raises `Forbidden`.

    That shuts its publishers out, and an expired stream is deleted with its messages.
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


# ---- forks


def check_source(call: Call, fork: ForkAsked) -> None:
    """Raise a 400 for a source in another namespace, `Forbidden` if the caller may not read it."""
    if fork.source.namespace != call.namespace:
        raise Problem(
            400,
            "foreign-source",
            f"{fork.source} is of another namespace than {call.topic}: a fork shares ledgers with "
            "its source, and rights, quotas and keys are its namespace's",
        )
    call.check(Operation.CONSUME, Resource(Kind.TOPIC, str(fork.source)))


@asynccontextmanager
async def _about(call: Call, info: TopicInfo) -> AsyncIterator[None]:
    """Make the call mean another topic while the block lasts."""
    before, call.incarnation = call.incarnation, info.incarnation
    try:
        yield
    finally:
        call.incarnation = before


async def planned(call: Call, asked: StreamAsked, fork: ForkAsked, cut: int | None = None) -> Plan:
    """Ask the source, and return the plan. `cut`: where an existing fork was cut.

    Raises `TopicNotFound`, `StreamNotFound`, `StreamConflict`, and a 400 if it cannot be cut there.
    """
    info = await call.services.broker.topics.get(fork.source)
    if info.settings.partitions != 1:
        raise TopicIsNoStream(
            f"topic {fork.source} is no durable stream: it has several partitions"
        )
    async with _about(call, info):
        like, end = await _source(call, info, fork.offset or 0)
        wanted = asked.content_type
        if wanted and media_type(wanted) != like.media_type:
            raise StreamConflict(
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
        raise StreamConflict(f"{call.topic} is there, and was forked at another place")
    config = asked.config(like)._replace(fork_offset=offset)
    return Plan(info, ForkPlan(config, base, part))


async def _source(call: Call, info: TopicInfo, least: int) -> tuple[StreamConfig, int]:
    """Return the source's config and end; an end before `least` is proved by its owner."""
    gone = StreamConflict(f"{info.name} was deleted, and is kept for the forks that it has")
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
    """Return the offset before which the source is cut, and the inherited part of that message.

    Raises a 400 for a place beyond the message, or beyond the messages of its append.
    """
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
    """Fork the source's topic. Raises `TopicExists`, `ForkDisturbed`."""
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


# ---- the head


def asked_for(headers: Mapping[str, str]) -> StreamAsked:
    """Read what a `PUT` asks for. Raises a 400."""
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
                400, "fork-of-nothing", f"of what it is a fork says {durable.FORKED_FROM_HEADER}"
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
