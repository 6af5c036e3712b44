"""Durable streams: append to a topic with one partition as a stream, and delete it.

The owner of the partition answers (partition/stream.py). `durable.py` has the texts, and
docs/durable_streams.md the protocol. An append of JSON is a message for each element of its array;
any other append is a single message. Making streams: durable_making.py; reading: durable_reads.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiohttp import web

from octavo.broker.errors import (
    StreamClosed,
    StreamConflict,
    StreamGone,
    StreamNotFound,
    TopicIsNoStream,
    TopicNotFound,
)
from octavo.broker.http import durable
from octavo.broker.http.call import Call
from octavo.broker.http.forwarding import at_owner, topic_of
from octavo.broker.http.problems import Problem
from octavo.broker.partition.partition import Partition
from octavo.broker.partition.stream import Appended
from octavo.broker.state.stream import Append, StreamConfig, StreamState, media_type
from octavo.broker.types import PartitionName, TopicInfo
from octavo.protocol.limits import MESSAGE_BYTES_MAX
from octavo.protocol.records import RECORD_OVERHEAD_BYTES, Record

PRODUCER_HEADERS = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
WORD_BYTES_MAX = 1024
"""Limit of a producer's name or a `Stream-Seq`, because they are stored."""


async def append(call: Call) -> web.StreamResponse:
    """`POST /v1/durable-streams/{namespace}/{topic}`."""
    said = append_of(call.headers)
    if said.producer is not None:
        ids = call.services.rules.producer_ids
        said = said._replace(producer=ids.bound_name(call.identity, said.producer))
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
    """Raise a 400 without a content type, `StreamConflict` for a different content type."""
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
    """Return the partition of the stream in the path. Raises `StreamNotFound`."""
    try:
        info: TopicInfo = await topic_of(call)
    except TopicNotFound:
        raise StreamNotFound(
            f"there is no stream {call.topic}; PUT /v1/durable-streams/{call.topic} makes it"
        ) from None
    if info.settings.partitions != 1:
        raise TopicIsNoStream(
            f"topic {info.name} has {info.settings.partitions} partitions: it is no durable stream"
        )
    return info.name.partition(0)


async def standing(call: Call, partition: Partition, *, used: bool = True) -> StreamState:
    """Return the state of the stream, which the call uses. Raises `StreamNotFound`, `StreamGone`.

    If the stream has expired, its deletion begins.
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


async def end_of(partition: Partition, least: int) -> int:
    """Return where the stream ends.

    If the end is before `least`, the owner proves that it has no successor. Raises what
    `Partition.prove` raises.
    """
    if partition.stream.end < least:
        await partition.prove()
    return partition.stream.end


def shown(offset: int) -> str:
    """Return the text of an offset. Raises a 422 if it is too high for a text."""
    if offset >= durable.FIRST_UNSHOWN:
        raise Problem(422, "offset-too-high", f"offset {offset} has more than sixteen digits")
    return durable.offset_text(offset)


def records_of(call: Call, config: StreamConfig, body: bytes) -> list[Record]:
    """Return the messages of a body; none if it is empty.

    Raises a 400 if it is invalid JSON in a stream of JSON, a 413 if it is too long.
    """
    if not body:
        return []
    values: list[bytes] | None = [body]
    if config.is_json:
        try:
            values = durable.json_values(body)
        except durable.TooManyParts as error:
            raise Problem(
                413, "too-many-messages", f"{error}: append it in several calls"
            ) from None
        if values is None:
            raise Problem(400, "invalid-json", "the body is not JSON, and the stream's type is")
    assert values is not None
    now_ms = call.services.clock()
    most = call.services.rules.message_bytes_max(call.topic) or MESSAGE_BYTES_MAX
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
    """Count messages that were stored here."""
    if not records:
        return
    size = sum(len(one.value or b"") + RECORD_OVERHEAD_BYTES for one in records)
    call.messages = len(records)
    call.services.quotas.stored(partition.name.topic_name, size, len(records))
    call.services.metrics.messages_published.inc(len(records))
    call.services.metrics.bytes_published.inc(size)


# ---- the head


def append_of(headers: Mapping[str, str]) -> Append:
    """Read the headers of a `POST`. Raises a 400."""
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
    """Read a header that will be stored. Raises a 400 if it is not UTF-8, or too long."""
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
    """Read a number from a header. Raises a 400."""
    found = durable.number_of(text)
    if found is None:
        raise bad(
            name, text, f"a whole number from 0 to {durable.HIGHEST_NUMBER}, without leading 0s"
        )
    return found


def bad(name: str, text: str, expected: str) -> Problem:
    """Return the 400 for a header."""
    return Problem(400, "invalid-header", f"{name} is {text[:40]!r}; it must be {expected}")
