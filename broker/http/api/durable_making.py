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
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiohttp import web

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
from octavo.broker.http.api.durable_streams import (
    bad,
    count_stored,
    end_of,
    number,
    records_of,
    shown,
    standing,
    word,
)
from octavo.broker.http.api.forks import points_of
from octavo.broker.http.broker_calls import partition_path
from octavo.broker.http.call import RECORD_BATCH, Call
from octavo.broker.http.forwarding import Reply, at_owner, with_owner
from octavo.broker.http.problems import Problem
from octavo.broker.partition.partition import Partition
from octavo.broker.state.stream import StreamConfig, StreamState, media_type
from octavo.broker.types import Owner, TopicInfo, TopicName, TopicSettings
from octavo.protocol.batch import read_header
from octavo.protocol.records import Record, read_records
from octavo.security.rules import Kind, Operation, Resource

_TRIES_MAX = 4
"""Limit of tries, while other streams of that name expire or are being made."""


class Over(Exception):
    """An expired or deleted stream must be removed first."""


class Unplanned(Exception):
    """The topic exists, but the source has not been asked yet where it was forked."""


class ForkAsked(NamedTuple):
    """The fork that a `PUT` asks for."""

    source: TopicName
    offset: int | None
    """The offset before which it is forked; None: the end."""
    sub_offset: int


class Asked(NamedTuple):
    """The stream that a `PUT` asks for."""

    content_type: str
    """Empty: not given."""
    ttl_s: int | None
    expires_at: str | None
    closed: bool
    fork: ForkAsked | None

    def config(self, like: StreamConfig | None = None) -> StreamConfig:
        """Return the stream's config; a fork takes missing parts from `like`."""
        found = StreamConfig() if like is None or self.fork is None else like
        if self.content_type:
            found = found._replace(content_type=self.content_type)
        if self.ttl_s is not None or self.expires_at is not None:
            expires = self.expires_at
            at_ms = None if expires is None else durable.time_ms_of(expires)
            found = found._replace(ttl_s=self.ttl_s, expires_at=expires, expires_at_ms=at_ms)
        if self.fork is None:
            return found
        found = found._replace(
            forked_from=str(self.fork.source), fork_sub_offset=self.fork.sub_offset
        )
        return found if self.fork.offset is None else found._replace(fork_offset=self.fork.offset)


class Plan(NamedTuple):
    """How to make a fork."""

    source: TopicInfo
    config: StreamConfig
    base: int
    """The offset before which the source is cut."""
    part: bytes
    """The part of that message that the fork inherits."""


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
        try:
            answer = await _make(call, info, asked, plan, body)
            if answer.status == 201 and not call.forwarded:
                answer.headers["Location"] = _location(call)
            return answer
        except Over:
            await call.services.broker.streams.delete(topic, info.incarnation)
            plan = None
        except Unplanned:
            fork, cut = info.fork, asked.fork
            assert cut is not None
            if fork is None or fork.topic != cut.source.topic or not fork.offsets:
                raise StreamConflict(f"{topic} is there, and no fork of {cut.source}") from None
            plan = await planned(call, asked, cut, fork.offsets[0])
    raise StreamConflict(f"{topic} expires or is deleted as fast as it is made")


def _location(call: Call) -> str:
    """Return the stream's URL, with the host that the client used."""
    host, path = call.request.headers.get("Host"), call.request.raw_path.partition("?")[0]
    scheme = "https" if call.request.secure else "http"
    return (call.services.url if host is None else f"{scheme}://{host}") + path


async def _topic(call: Call, asked: Asked, plan: Plan | None) -> tuple[TopicInfo, Plan | None]:
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
    call: Call, info: TopicInfo, asked: Asked, plan: Plan | None, body: bytes
) -> web.StreamResponse:
    async def here(partition: Partition) -> web.StreamResponse:
        await clear(call, partition)
        stream = partition.stream
        if stream.is_made:
            state = stream.standing()
            await stream.make(asked.config(state.config), [], closed=asked.closed)
            return _made(state, partition, made=False)
        if asked.fork is not None and plan is None:
            raise Unplanned
        config = asked.config() if plan is None else plan.config
        records = records_of(call, config, body)
        if plan is not None and plan.part:
            records.insert(0, Record(None, plan.part, (), call.services.clock()))
        base = 0 if plan is None else plan.base
        if stream.state is None and (partition.next_offset > base or not info.for_stream):
            _check_may_convert(call, config)
        if records:
            call.services.quotas.may_publish(call.topic)
        made = await stream.make(config, records, closed=asked.closed, base=base)
        count_stored(call, partition, records)
        return _made(stream.standing(), partition, made=made)

    return await at_owner(call, info.name.partition(0), here)


def _check_may_convert(call: Call, config: StreamConfig) -> None:
    """Check that the caller may turn an existing topic into a stream. Raises `Forbidden`.

    That shuts its publishers out, and an expired stream is deleted with its messages.
    """
    topic = Resource(Kind.TOPIC, str(call.topic))
    call.check(Operation.ALTER, topic)
    if config.ttl_s is not None or config.expires_at is not None:
        call.check(Operation.DELETE, topic)


async def clear(call: Call, partition: Partition) -> None:
    """Raise `Over` if an earlier stream must be removed, `StreamConflict` if it may not yet."""
    state = partition.stream.state
    if state is None:
        return
    if partition.stream.is_over:
        raise Over
    if state.is_gone:
        if not await call.services.broker.streams.has_forks(partition):
            raise Over
        raise StreamConflict(f"{call.topic} was deleted, and its name is kept for its forks")


def _made(state: StreamState, partition: Partition, *, made: bool) -> web.StreamResponse:
    headers = {
        "Content-Type": state.config.content_type,
        durable.OFFSET_HEADER: shown(partition.stream.end),
    }
    if partition.stream.is_closed:
        headers[durable.CLOSED_HEADER] = "true"
    return web.Response(status=201 if made else 200, headers=headers)


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
    """Make the call mean another topic while the block lasts, as if it had not been forwarded."""
    before = call.incarnation, call.forwarded
    call.incarnation, call.forwarded = info.incarnation, False
    try:
        yield
    finally:
        call.incarnation, call.forwarded = before


async def planned(call: Call, asked: Asked, fork: ForkAsked, cut: int | None = None) -> Plan:
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
    return Plan(info, config, base, part)


async def _source(call: Call, info: TopicInfo, least: int) -> tuple[StreamConfig, int]:
    """Return the source's config and end; an end before `least` is proved by its owner."""
    name = info.name.partition(0)

    async def here(partition: Partition) -> tuple[StreamConfig, int]:
        state = await standing(call, partition, used=False)
        kept = StreamConfig(*state.config[:4])
        return kept, await end_of(partition, least)

    async def there(owner: Owner) -> tuple[StreamConfig, int]:
        def ask(method: str, offset: str) -> Awaitable[Reply]:
            path = f"{durable.PATH}{info.name}?offset={offset}"
            broker_id, peers = call.services.broker.broker_id, call.services.peers
            return peers.ask(broker_id, owner, method, path, identity=call.identity)

        try:
            reply = await ask("HEAD", durable.offset_text(least))
        except Problem:
            await ask("GET", "now")  # tells why: a HEAD has only a status
            raise
        ttl, expires = reply.headers.get(durable.TTL_HEADER), reply.headers.get("Stream-Expires-At")
        end = durable.offset_of(reply.headers.get(durable.OFFSET_HEADER, ""))
        assert end is not None, "a broker has said it"
        at_ms = None if expires is None else durable.time_ms_of(expires)
        kind = reply.headers.get("Content-Type", "")
        return StreamConfig(kind, None if ttl is None else int(ttl), expires, at_ms), end

    gone = StreamConflict(f"{info.name} was deleted, and is kept for the forks that it has")
    try:
        return await with_owner(call, name, here, there)
    except StreamGone:
        raise gone from None
    except Problem as problem:  # of another broker
        if problem.status == 410:
            raise gone from None
        raise


async def _cut(
    call: Call, info: TopicInfo, like: StreamConfig, end: int, offset: int, sub_offset: int
) -> tuple[int, bytes]:
    """Return the offset before which the source is cut, and the inherited part of that message.

    Raises a 400 for a place beyond the message, or beyond the messages of its append.
    """
    if offset == end:
        raise _beyond(f"{info.name} has nothing behind {durable.offset_text(offset)}")
    data = await _batch_at(call, info, offset)
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


async def _batch_at(call: Call, info: TopicInfo, offset: int) -> bytes:
    """Return the batch that contains this message."""

    async def here(partition: Partition) -> bytes:
        return (await partition.read(offset, bytes_max=1, count_max=1))[0].data

    async def there(owner: Owner) -> bytes:
        messages = f"{partition_path(info.name.partition(0))}/messages"
        path = f"{messages}?from={offset}&limit=1&max_bytes=1"
        reply = await call.services.peers.ask(
            call.services.broker.broker_id, owner, "GET", path, None, {"Accept": RECORD_BATCH},
            identity=call.identity,
        )  # fmt: skip
        return reply.body

    return await with_owner(call, info.name.partition(0), here, there)


async def forked(call: Call, plan: Plan) -> TopicInfo:
    """Fork the source's topic. Raises `TopicExists`, `ForkDisturbed`."""
    for last in (False, False, True):
        try:
            async with _about(call, plan.source):
                points = await points_of(call, plan.source, {0: str(plan.base)})
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


def asked_for(headers: Mapping[str, str]) -> Asked:
    """Read what a `PUT` asks for. Raises a 400."""
    ttl, expires = headers.get(durable.TTL_HEADER), headers.get(durable.EXPIRES_HEADER)
    if ttl is not None and expires is not None:
        raise Problem(
            400,
            "ttl-and-expiry",
            f"give {durable.TTL_HEADER} or {durable.EXPIRES_HEADER}, not both",
        )
    ttl_s = None if ttl is None else number(durable.TTL_HEADER, ttl)
    if expires is not None and durable.time_ms_of(expires) is None:
        raise bad(durable.EXPIRES_HEADER, expires, "an RFC 3339 time")
    kind = word(headers, "Content-Type") or ""
    closed = durable.says_true(headers.get(durable.CLOSED_HEADER))
    return Asked(kind.strip(), ttl_s, expires, closed, _fork_asked(headers))


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
