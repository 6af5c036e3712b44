"""Publish and read large messages, as streams.

The owner stores an upload (operations/large.py); a body of a single piece becomes an ordinary
message. A read asks the owner for a piece at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from urllib.parse import quote

import structlog
from aiohttp import web

from octavo.broker.http import forwarding
from octavo.broker.http.api.answers import LargePublished
from octavo.broker.http.api.batching import size_of
from octavo.broker.http.api.payloads import raw_record
from octavo.broker.http.api.publish import access_of, partition_of_single
from octavo.broker.http.api.read import one_partition, position_of
from octavo.broker.http.api.topics import topic_to_publish
from octavo.broker.http.call import Call, too_long
from octavo.broker.http.forwarding import operate, redirected
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.http.quotas import wait_of
from octavo.broker.http.stream import write_head
from octavo.broker.operations.asking import Upload
from octavo.broker.operations.kinds import at_of
from octavo.broker.operations.large import Pieces, whole_body
from octavo.broker.operations.large_kinds import BodyPiece, LargeStored, OpenBody, ReadBody
from octavo.broker.partition.large import id_of
from octavo.broker.types import MessageId, PartitionName, checked_name
from octavo.protocol.large import PIECE_BYTES, BodyTooLong

UPLOAD_HEADER = "Octavo-Upload"
CRC_HEADER = "Octavo-Crc32c"
BODY_HELD_BYTES = 2 * PIECE_BYTES
_BOUND_BY = "the topic's message_bytes_max or the brokers' http.large_message_bytes_max says so"
_REFUSED = ("Producer-Id", "Producer-Epoch", "Producer-Seq", "If-Match")

log = structlog.get_logger()


async def publish_large(call: Call) -> web.StreamResponse:
    topic = call.topic
    upload = _head(call)
    info = await topic_to_publish(call)
    most = call.services.rules.large_bytes_max(topic)
    announced = call.request.content_length
    if announced is not None and announced > most:
        raise too_long(announced, most, _BOUND_BY)
    record = raw_record(b"", call.headers, call.services.clock())
    size_of(record, call.services.config.header_bytes_max)
    name = call.partition
    if name is None:
        turn = next(call.services.turn)
        name = topic.partition(partition_of_single(record, info.settings.partitions, turn))
    path = f"/v1/topics/{topic}/partitions/{name.partition}/large"
    if (elsewhere := await redirected(call, name, path)) is not None:
        return elsewhere
    asked = Upload(name, upload, record, access_of(call))
    try:
        stored = await forwarding.upload(call, asked, partial(_body_of, call))
    except (BodyTooLong, Problem) as error:
        if problem_of(error).code == BodyTooLong.name:
            raise too_long(None, most, _BOUND_BY) from error
        raise
    call.messages = 1
    return call.reply(_shown(name, stored))


def _head(call: Call) -> str:
    for name in _REFUSED:
        if name in call.headers:
            raise Problem(
                422,
                "large-not-taken",
                f"{name} is for numbered messages, and large messages are not numbered: use "
                f"{UPLOAD_HEADER} with a name of your own to make a repeat safe",
            )
    upload = call.headers.get(UPLOAD_HEADER)
    return "" if upload is None else checked_name("upload", upload)


async def _body_of(call: Call) -> Pieces:
    """Raise a 400 at the body's end if it is not whole."""
    size = 0
    async for piece in call.stream_body():
        size += len(piece)
        yield piece
    announced = call.request.content_length  # the connection may have ended early
    if announced is not None and not call.is_packed and size != announced:
        raise Problem(400, "bad-body", f"the body has {size} bytes, and {announced} were announced")


def _shown(name: PartitionName, stored: LargeStored) -> LargePublished:
    published, size, body = stored.published, stored.size, stored.large
    found = LargePublished(
        name.partition,
        published.first_offset,
        str(id_of(published)),
        size,
        0 if body is None else body.pieces,
    )
    if body is not None:
        found.crc32c = body.crc32c
    if published.duplicate:
        found.duplicate = True
    return found


async def body(call: Call) -> web.StreamResponse:
    name = await one_partition(call, f"messages/{quote(call.variables['message'])}/body")
    position = position_of(call.variables["message"])
    if not isinstance(position, int | MessageId):
        raise Problem(
            400,
            "invalid-message-id",
            f"{call.variables['message'][:60]!r} in the path is neither an offset nor a message id "
            "(ledger:entry:index)",
        )

    if (elsewhere := await redirected(call, name)) is not None:
        return elsewhere
    is_head = call.request.method == "HEAD"
    asked = OpenBody(name, at_of(position), is_head)
    if not is_head:
        await call.hold(BODY_HELD_BYTES)
    opened = await operate(call, asked, BodyPiece)
    answer = web.StreamResponse()
    write_head(call, answer)
    call.is_streaming = False  # the answer has an end, and its size is counted
    answer.content_type = "application/octet-stream"
    answer.content_length = opened.size
    if opened.large is not None:
        answer.headers[CRC_HEADER] = opened.large.crc32c
    call.messages = 1
    if is_head:
        return answer

    async def ask(following: ReadBody) -> BodyPiece:
        return await operate(call, following, BodyPiece)

    async with contextlib.aclosing(whole_body(opened, asked, ask, wait_of)) as pieces:
        first = await anext(pieces)  # a lasting error gets a status
        await answer.prepare(call.request)
        await _send(call, answer, first)
        try:
            async for piece in pieces:
                await _send(call, answer, piece)
        except ConnectionError:
            raise
        except Exception as error:
            # The status was sent: only a broken connection can show the error.
            log.warning("body_broken_off", partition=str(name), reason=str(error))
            raise ConnectionResetError(f"the body of {name} broke off: {error}") from error
    return answer


async def _send(call: Call, answer: web.StreamResponse, piece: bytes) -> None:
    view = memoryview(piece)
    for start in range(0, len(view), _WRITE_BYTES):
        await call.ask_again()
        part = view[start : start + _WRITE_BYTES]
        call.services.quotas.gave_piece(call, len(part))
        async with asyncio.timeout(call.services.config.stall_timeout_ms / 1000):
            await answer.write(part)


_WRITE_BYTES = 256 * 1024
"""Between two writes, a slow reader's rights are checked again."""
