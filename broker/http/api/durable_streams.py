"""Durable streams: append to a topic with one partition as a stream, and delete it.

The owner of the partition runs the operations (broker/operations/streams.py). `durable.py` has the
texts, and docs/durable_streams.md the protocol. Making streams: durable_making.py; reading:
durable_reads.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from octavo.broker.errors import StreamNotFound, TopicIsNoStream, TopicNotFound
from octavo.broker.http import durable
from octavo.broker.http.call import Call
from octavo.broker.http.forwarding import operate, redirected, topic_of
from octavo.broker.http.problems import Problem, readable
from octavo.broker.operations.kinds import Done
from octavo.broker.operations.stream_kinds import AppendToStream, DeleteStream, StreamAppended
from octavo.broker.state.stream import Append
from octavo.broker.types import PartitionName, TopicInfo

PRODUCER_HEADERS = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
WORD_BYTES_MAX = 1024
"""Limit of a producer's name or a `Stream-Seq`, because they are stored."""


async def append(call: Call) -> web.StreamResponse:
    """`POST /v1/durable-streams/{namespace}/{topic}`."""
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
    """`DELETE /v1/durable-streams/{namespace}/{topic}`."""
    name = await stream_of(call)
    if (elsewhere := await redirected(call, name)) is not None:
        return elsewhere
    await operate(call, DeleteStream(name), Done)
    return web.Response(status=204)


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


def shown(offset: int) -> str:
    """Return the text of an offset. Raises a 422 if it is too high for a text."""
    if offset >= durable.FIRST_UNSHOWN:
        raise Problem(422, "offset-too-high", f"offset {offset} has more than sixteen digits")
    return durable.offset_text(offset)


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
