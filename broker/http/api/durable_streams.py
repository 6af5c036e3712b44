"""Durable streams: a topic with one partition, made, appended to, read and deleted as a stream.

The owner of the partition answers (partition/stream.py); the words are those of `durable.py`, the
protocol is docs/durable_streams.md. An append of JSON is a message for each element of its array,
any other one is one message. Reading: durable_reads.py; forks: durable_forks.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiohttp import web

from octavo.broker.audit.topic import check_not_audit
from octavo.broker.errors import (
    StreamClosed,
    StreamConflict,
    StreamGone,
    StreamNotFound,
    TopicNotFound,
)
from octavo.broker.http import durable
from octavo.broker.http.call import Call
from octavo.broker.http.forwarding import at_owner, topic_of
from octavo.broker.http.problems import Problem
from octavo.broker.partition.partition import Partition
from octavo.broker.partition.stream import Appended
from octavo.broker.state.stream import Append, StreamConfig, StreamState, media_type
from octavo.broker.types import PartitionName, TopicInfo, TopicSettings
from octavo.protocol.limits import MESSAGE_BYTES_MAX
from octavo.protocol.records import RECORD_OVERHEAD_BYTES, Record

PRODUCER_HEADERS = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
WORD_BYTES_MAX = 1024
"""A producer's name, or a `Stream-Seq`: they are remembered."""
_TRIES_MAX = 4
"""To make a stream where others have just expired, or are being made."""


class Over(Exception):
    """What stands in the way of a call has to go first."""


class Asked(NamedTuple):
    """What a `PUT` asks for. What it does not say of a fork is its source's."""

    content_type: str
    ttl_s: int | None
    expires_at: str | None
    closed: bool

    def config(self) -> StreamConfig:
        """Of a stream that is no fork."""
        expires = self.expires_at
        return StreamConfig(
            self.content_type or StreamConfig().content_type,
            self.ttl_s,
            expires,
            None if expires is None else durable.time_ms_of(expires),
        )


async def put_stream(call: Call) -> web.StreamResponse:
    """`PUT /v1/durable-streams/{namespace}/{topic}`."""
    topic = call.topic
    check_not_audit(topic)
    asked = asked_for(call.headers)
    body = await call.read_body()
    topics = call.services.broker.topics
    for _ in range(_TRIES_MAX):
        try:
            info = await topics.get(topic)
        except TopicNotFound:
            await call.services.quotas.check_topics(topic)
            info, _ = await topics.create(topic, TopicSettings())
        if info.settings.partitions != 1:
            raise StreamConflict(
                f"topic {topic} has {info.settings.partitions} partitions, and a stream has one"
            )
        call.incarnation = info.incarnation
        try:
            return await _make(call, topic.partition(0), asked.config(), asked.closed, body)
        except Over:
            await call.services.broker.streams.delete(topic, info.incarnation)
    raise StreamConflict(f"{topic} expires or is deleted as fast as it is made")


async def _make(
    call: Call, name: PartitionName, config: StreamConfig, closed: bool, body: bytes
) -> web.StreamResponse:
    async def here(partition: Partition) -> web.StreamResponse:
        await clear(call, partition)
        records = records_of(call, config, body)
        made = await partition.stream.make(config, records, closed=closed)
        state = partition.stream.standing()
        if made:
            count_stored(call, partition, records)
        return _made(call, state, partition, made=made)

    return await at_owner(call, name, here)


async def clear(call: Call, partition: Partition) -> None:
    """Raises `Over` when what was there before has to go, `StreamConflict` when it may not yet."""
    state = partition.stream.state
    if state is None:
        return
    if partition.stream.is_over:
        raise Over
    if state.is_gone:
        if not await call.services.broker.streams.has_forks(partition):
            raise Over
        raise StreamConflict(f"{call.topic} was deleted, and its name is kept for its forks")


def _made(
    call: Call, state: StreamState, partition: Partition, *, made: bool
) -> web.StreamResponse:
    headers = {
        "Content-Type": state.config.content_type,
        durable.OFFSET_HEADER: shown(partition.stream.end),
    }
    if partition.stream.is_closed:
        headers[durable.CLOSED_HEADER] = "true"
    if made:
        host, path = call.request.headers.get("Host"), call.request.raw_path.partition("?")[0]
        scheme = "https" if call.request.secure else "http"
        called = call.services.url if call.forwarded or host is None else f"{scheme}://{host}"
        headers["Location"] = called + path
    return web.Response(status=201 if made else 200, headers=headers)


async def append(call: Call) -> web.StreamResponse:
    """`POST /v1/durable-streams/{namespace}/{topic}`."""
    check_not_audit(call.topic)
    said = append_of(call.headers)
    body = await call.read_body()
    name = await stream_of(call)

    async def here(partition: Partition) -> web.StreamResponse:
        state = await standing(call, partition)
        if not body:
            if not said.closes:
                raise Problem(
                    400, "body-missing", f"an append has a body, or {durable.CLOSED_HEADER}: true"
                )
            return _appended(said, await partition.stream.close(said), b"")
        if partition.stream.is_closed and said.producer is None:
            raise StreamClosed(f"{call.topic} is closed", partition.stream.end)
        _check_type(call, state)
        records = records_of(call, state.config, body)
        if not records:
            raise Problem(400, "nothing-to-append", "an empty array appends nothing")
        call.services.quotas.may_publish(call.topic)
        appended = await partition.stream.append(records, said)
        if not appended.repeated:
            count_stored(call, partition, records)
        return _appended(said, appended, body)

    return await at_owner(call, name, here)


def _check_type(call: Call, state: StreamState) -> None:
    """Raises a 400 without a content type, `StreamConflict` for another one."""
    given = call.headers.get("Content-Type", "")
    if not given:
        raise Problem(
            400,
            "content-type-missing",
            f"say of what kind the data is: Content-Type: {state.config.content_type}",
        )
    if media_type(given) != state.config.media_type:
        raise StreamConflict(
            f"{call.topic} has the content type {state.config.content_type}, not {given[:80]}"
        )


def _appended(said: Append, found: Appended, body: bytes) -> web.StreamResponse:
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
    """`DELETE /v1/durable-streams/{namespace}/{topic}`."""
    name = await stream_of(call)
    streams = call.services.broker.streams

    async def here(partition: Partition) -> web.StreamResponse:
        await standing(call, partition)
        if await streams.has_forks(partition):
            await partition.stream.delete()
        else:
            await streams.delete(call.topic, partition.incarnation)
        return web.Response(status=204)

    return await at_owner(call, name, here)


# ---- what all of them need


async def stream_of(call: Call) -> PartitionName:
    """The partition of the stream in the path. Raises `TopicNotFound`, `StreamNotFound`."""
    info: TopicInfo = await topic_of(call)
    if info.settings.partitions != 1:
        raise StreamNotFound(
            f"topic {info.name} has {info.settings.partitions} partitions: it is no durable stream"
        )
    return info.name.partition(0)


async def standing(call: Call, partition: Partition, *, used: bool = True) -> StreamState:
    """The stream, which the call uses. Raises `StreamNotFound`, `StreamGone`.

    One that has to go does so.
    """
    try:
        return partition.stream.standing(used=used)
    except (StreamNotFound, StreamGone):
        if call.services.broker.streams.is_due(partition):
            if partition.stream.is_over:
                call.services.broker.streams.begin(partition)
            elif await call.services.broker.streams.look(partition):
                raise StreamNotFound(f"{call.topic} was deleted, and so were its forks") from None
        raise


def shown(offset: int) -> str:
    """An offset as it is told. Raises a 422 for one that no text has."""
    if offset >= durable.FIRST_UNSHOWN:
        raise Problem(422, "offset-too-high", f"offset {offset} has more than sixteen digits")
    return durable.offset_text(offset)


def records_of(call: Call, config: StreamConfig, body: bytes) -> list[Record]:
    """The messages of a body; none of an empty one. Raises a 400 for what is no JSON, a 413."""
    if not body:
        return []
    values: list[bytes] | None = [body]
    if config.is_json:
        values = durable.json_values(body)
        if values is None:
            raise Problem(400, "invalid-json", "the body is not JSON, and the stream's type is")
    assert values is not None
    now_ms = call.services.clock()
    most = call.services.message_bytes_max(call.topic) or MESSAGE_BYTES_MAX
    for value in values:
        if len(value) > most:
            raise Problem(
                413,
                "message-too-long",
                f"a message may have {most} bytes, this one has {len(value)}: append it in parts",
                extra={"bytes_max": most},
            )
    return [Record(None, value, (), now_ms) for value in values]


def count_stored(call: Call, partition: Partition, records: Sequence[Record]) -> None:
    """These were stored here."""
    if not records:
        return
    size = sum(len(one.value or b"") + RECORD_OVERHEAD_BYTES for one in records)
    call.messages = len(records)
    call.services.quotas.stored(partition.name.topic_name, size, len(records))
    call.services.metrics.messages_published.inc(len(records))
    call.services.metrics.bytes_published.inc(size)


# ---- the head


def asked_for(headers: Mapping[str, str]) -> Asked:
    """What a `PUT` asks for. Raises a 400."""
    ttl, expires = headers.get(durable.TTL_HEADER), headers.get(durable.EXPIRES_HEADER)
    if ttl is not None and expires is not None:
        raise Problem(
            400,
            "ttl-and-expiry",
            f"give {durable.TTL_HEADER} or {durable.EXPIRES_HEADER}, not both",
        )
    ttl_s = None if ttl is None else _number(durable.TTL_HEADER, ttl)
    if expires is not None and durable.time_ms_of(expires) is None:
        raise _bad(durable.EXPIRES_HEADER, expires, "an RFC 3339 time")
    kind = _word(headers, "Content-Type") or ""
    return Asked(kind.strip(), ttl_s, expires, durable.says_true(headers.get("Stream-Closed")))


def append_of(headers: Mapping[str, str]) -> Append:
    """What a `POST` says beside its body. Raises a 400."""
    seq = _word(headers, durable.SEQ_HEADER)
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
    producer = _word(headers, "Producer-Id")
    if not producer:
        raise _bad("Producer-Id", "", "a name")
    epoch = _number("Producer-Epoch", headers["Producer-Epoch"])
    return Append(producer, epoch, _number("Producer-Seq", headers["Producer-Seq"]), seq, closes)


def _word(headers: Mapping[str, str], name: str) -> str | None:
    text = headers.get(name)
    if text is None:
        return None
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _bad(name, ascii(text), "UTF-8") from None
    if size > WORD_BYTES_MAX:
        raise _bad(name, text, f"of at most {WORD_BYTES_MAX} bytes")
    return text


def _number(name: str, text: str) -> int:
    found = durable.number_of(text)
    if found is None:
        raise _bad(
            name, text, f"a whole number from 0 to {durable.HIGHEST_NUMBER}, without leading 0s"
        )
    return found


def _bad(name: str, text: str, expected: str) -> Problem:
    return Problem(400, "invalid-header", f"{name} is {text[:40]!r}; it must be {expected}")
