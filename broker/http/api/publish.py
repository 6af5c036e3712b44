"""Publish: what the body is, which partition it is for, and what the answer says of it.

Bodies by Content-Type: `application/json`, `application/x-ndjson` (streamed), record batches as
Kafka makes them, and anything else as one message. A request for one partition is answered by its
owner; one for a topic with several is taken apart here, and each partition's share goes to its
owner. 2xx only when all of it is durable; what was stored before something failed is always said.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from octavo.broker.http.api.payloads import decode_message, decode_messages, raw_record, record_of
from octavo.broker.http.api.publish_answer import answer, with_stored
from octavo.broker.http.api.publish_headers import (
    check_content_type,
    expected_offset,
    partition_required,
    producer_of,
    refuse_producer_headers,
    refuse_unsupported,
    wants_places,
)
from octavo.broker.http.api.publishing import Piece, Publishing
from octavo.broker.http.call import JSON, NDJSON, RECORD_BATCH, Call
from octavo.broker.http.forwarding import at_owner, topic_of
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.partition.partition import Partition
from octavo.broker.types import TopicName
from octavo.protocol.batch import (
    BatchHeader,
    InvalidBatch,
    check_batch,
    split_batches,
)
from octavo.protocol.limits import json_line_bytes_max
from octavo.protocol.records import partition_for

BLANK_LINES_MAX = 10_000
"""Of one body: they cost time and say nothing."""
TURN_MESSAGES = 1000
"""Messages of a long body made into records before other requests get their turn."""


async def publish(call: Call) -> web.StreamResponse:
    """`POST …/messages`."""
    check_content_type(call)
    topic = call.topic
    info = await topic_of(call)
    partitions = info.settings.partitions
    name = call.partition
    if name is None and partitions == 1:
        name = topic.partition(0)
    if name is None:
        return await _publish_spread(call, topic, partitions)
    number = name.partition

    async def here(partition: Partition) -> web.StreamResponse:
        if call.content_type == RECORD_BATCH and "results" not in call.query:
            body = await call.read_body()
            header = check_batch(body)
            if header.total_bytes == len(body):
                return await _publish_one_batch(call, partition, number, body, header)
        return await _publish_into(call, topic, partitions, number)

    return await at_owner(call, name, here)


async def _publish_one_batch(
    call: Call, partition: Partition, number: int, body: bytes, header: BatchHeader
) -> web.StreamResponse:
    """The short way of the usual case: one record batch, stored as it came."""
    refuse_producer_headers(call)
    refuse_unsupported(header)
    await _prove(call, body, header, body)
    count = header.record_count
    published = await partition.publish(body, expected_offset=expected_offset(call), checked=True)
    piece = Piece(number, 0)
    piece.last = count - 1
    piece.count = count
    piece.published = published
    if not published.duplicate:
        metrics = call.services.metrics
        metrics.messages_published.inc(count)
        metrics.bytes_published.inc(len(body))
    return answer(call, [piece], None)


async def _publish_into(
    call: Call, topic: TopicName, partitions: int, only: int
) -> web.StreamResponse:
    producer = None
    if call.content_type == RECORD_BATCH:
        refuse_producer_headers(call)
    else:
        producer = producer_of(call)
    publishing = Publishing(
        call,
        topic,
        partitions,
        only=only,
        producer=producer,
        expected_offset=expected_offset(call),
        keep_places=wants_places(call),
    )
    return await _feed_and_answer(call, publishing)


async def _publish_spread(call: Call, topic: TopicName, partitions: int) -> web.StreamResponse:
    """A request for a topic with several partitions: the keys say which."""
    kind = call.content_type
    if kind == RECORD_BATCH:
        raise partition_required(topic, partitions, "a record batch is stored as it is, whole")
    bound_to_one = producer_of(call) is not None or expected_offset(call) is not None
    if bound_to_one:
        if kind == NDJSON:
            raise partition_required(
                topic, partitions, "Producer-Seq and If-Match count in one partition, and NDJSON "
                "may hold many keys"
            )  # fmt: skip
        number = await _one_partition(call, topic, partitions)
        return await at_owner(
            call,
            topic.partition(number),
            lambda _: _publish_into(call, topic, partitions, number),
        )
    publishing = Publishing(call, topic, partitions, keep_places=wants_places(call))
    return await _feed_and_answer(call, publishing)


async def _one_partition(call: Call, topic: TopicName, partitions: int) -> int:
    """The partition that all keys of the body name."""
    body = await call.read_body()
    if call.content_type == JSON:
        records = [record_of(message, 0) for message in decode_messages(body)]
    else:
        records = [raw_record(body, call.headers, 0)]
    numbers = {None if r.key is None else partition_for(r.key, partitions) for r in records}
    if len(numbers) != 1 or None in numbers:
        raise partition_required(
            topic, partitions, "Producer-Seq and If-Match count in one partition, and the keys of "
            "this body do not name one"
        )  # fmt: skip
    number = numbers.pop()
    assert number is not None
    return number


# ---- feeding


async def _feed_and_answer(call: Call, publishing: Publishing) -> web.StreamResponse:
    feed = {JSON: _feed_json, NDJSON: _feed_ndjson, RECORD_BATCH: _feed_batches}
    try:
        await feed.get(call.content_type, _feed_raw)(call, publishing)
        await publishing.finish()
    except Problem as problem:
        await publishing.finish()
        raise with_stored(problem, publishing.pieces) from None
    except InvalidBatch as error:
        await publishing.finish()
        raise with_stored(problem_of(error), publishing.pieces) from None
    finally:
        await publishing.abandon()
    return answer(call, publishing.pieces, publishing.places)


async def _feed_raw(call: Call, publishing: Publishing) -> None:
    body = await call.read_body(call.services.config.line_bytes_max)
    publishing.add(raw_record(body, call.headers, call.services.clock()))


async def _feed_json(call: Call, publishing: Publishing) -> None:
    messages = decode_messages(await call.read_body())
    now_ms = call.services.clock()
    records = []
    for index, message in enumerate(messages):  # all are checked before the first is stored
        try:
            records.append(record_of(message, now_ms))
            publishing.size_of(records[-1])
        except Problem as problem:
            if len(messages) > 1:
                problem.extra["index"] = index
                problem.detail = f"messages[{index}]: {problem.detail}; nothing was stored"
            raise
        if not index % TURN_MESSAGES:
            await asyncio.sleep(0)
    for index, record in enumerate(records):
        publishing.add(record)
        if not index % TURN_MESSAGES:
            await publishing.room()
            await asyncio.sleep(0)


async def _feed_batches(call: Call, publishing: Publishing) -> None:
    body = await call.read_body()
    batches = list(split_batches(body))  # all are checked before the first is stored
    if not batches:
        raise Problem(422, "no-messages", "the body is empty: there is nothing to publish")
    for header, _ in batches:
        refuse_unsupported(header)
    whole = [(header, bytes(view)) for header, view in batches]
    for header, batch in whole:
        await _prove(call, body, header, batch)
    for header, batch in whole:
        publishing.add_batch(batch, header.record_count)


async def _prove(call: Call, body: bytes, header: BatchHeader, batch: bytes) -> None:
    """What the batch says of itself holds. Raises `InvalidBatch`, `Overloaded`."""

    async def hold(size: int) -> None:
        await call.hold(len(body) + size)

    await call.services.proofs.prove(header, batch, call.peer, hold)


async def _feed_ndjson(call: Call, publishing: Publishing) -> None:
    """Lines as they come. Stops at the first bad one, and says which it is."""
    line_bytes_max = json_line_bytes_max(call.services.config.line_bytes_max)
    rest = b""
    line_number = 0
    async for chunk in call.stream_body(idle_ms=call.services.config.stream_idle_ms):
        if not chunk:
            publishing.flush()
            continue
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest += tail
        else:
            lines = (rest + head).split(b"\n")
            rest = tail
            for start in range(0, len(lines), TURN_MESSAGES):
                some = lines[start : start + TURN_MESSAGES]
                line_number = _take_lines(call, publishing, some, line_number)
                if line_number - publishing.count > BLANK_LINES_MAX:
                    raise Problem(
                        422,
                        "too-many-blank-lines",
                        f"more than {BLANK_LINES_MAX} of the first {line_number} lines are empty; "
                        "the messages between them were published",
                        headers={"Connection": "close"},
                    )
                await asyncio.sleep(0)
        if len(rest) > line_bytes_max:
            raise Problem(
                413,
                "message-too-long",
                f"line {line_number + 1} is longer than {line_bytes_max} bytes",
                extra={"line": line_number + 1, "bytes_max": line_bytes_max},
                headers={"Connection": "close"},
            )
        if publishing.failed:
            return
        await publishing.room()
        await call.hold(len(rest) + publishing.held_bytes)
    if rest:
        line_number = _take_lines(call, publishing, [rest], line_number)
    if not line_number:
        raise Problem(422, "no-messages", "the body is empty: there is nothing to publish")


def _take_lines(call: Call, publishing: Publishing, lines: list[bytes], number: int) -> int:
    """Add the messages of whole lines; return how many lines there have been."""
    now_ms = call.services.clock()
    add = publishing.add
    for line in lines:
        number += 1
        try:
            if line and not line.isspace():
                add(record_of(decode_message(line), now_ms))
        except Problem as problem:
            problem.extra["line"] = number
            problem.detail = (
                f"line {number}: {problem.detail}. The lines before it were published, this one "
                "and those after it were not"
            )
            raise
    return number
