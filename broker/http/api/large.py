"""Publish and read messages of up to a hundred megabytes and more, as streams.

The owner of the partition answers an upload; its key chooses the partition, or else it is the next
in turn. A body that fits into a single piece is published as any other message
(partition/large.py). A read of a body streams it from the owner. The bytes in memory count like
bodies, so there are only as many at once as there is room for.
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import quote

import structlog
from aiohttp import web

from octavo.broker.http.api.answers import LargePublished
from octavo.broker.http.api.batching import size_of
from octavo.broker.http.api.payloads import raw_record
from octavo.broker.http.api.publish import access_of, partition_of_single
from octavo.broker.http.api.read import one_partition, position_of
from octavo.broker.http.api.topics import topic_to_publish
from octavo.broker.http.broker_calls import partition_path
from octavo.broker.http.call import Call, too_long
from octavo.broker.http.forwarding import prefers_redirect, with_owner
from octavo.broker.http.problems import Problem
from octavo.broker.http.quotas import MESSAGES_HEADER
from octavo.broker.http.stream import write_head
from octavo.broker.operations.control import resolve
from octavo.broker.partition.large import id_of
from octavo.broker.partition.partition import Partition
from octavo.broker.types import MessageId, Owner, Published, checked_name
from octavo.protocol.large import PIECE_BYTES, BodyTooLong, Cutter, LargeBody
from octavo.protocol.records import Record, build_batch

UPLOAD_HEADER = "Octavo-Upload"
CRC_HEADER = "Octavo-Crc32c"
UPLOAD_HELD_BYTES = 8 * PIECE_BYTES
"""An upload counts as at most this: a piece that is being filled, and pieces under way …"""
UPLOAD_HELD_BYTES_MIN = 64 * 1024
"""… but first as the bytes that have arrived, plus this for its ledger and its socket."""
BODY_HELD_BYTES = 2 * PIECE_BYTES
"""Bytes that an answer with a body counts as."""
_BOUND_BY = "the topic's message_bytes_max or the brokers' http.large_message_bytes_max says so"
_REFUSED = ("Producer-Id", "Producer-Epoch", "Producer-Seq", "If-Match")

log = structlog.get_logger()


async def publish_large(call: Call) -> web.StreamResponse:
    """`POST`, `PUT …/large`."""
    topic = call.topic
    upload, most = _head(call), call.services.config.large_message_bytes_max
    info = await topic_to_publish(call)
    most = min(most, info.settings.policies.message_bytes_max or most)
    announced = call.request.content_length
    if announced is not None and announced > most:
        raise too_long(announced, most, _BOUND_BY)
    record = raw_record(b"", call.headers, call.services.clock())
    size_of(record, call.services.config.header_bytes_max)
    name = call.partition
    if name is None:
        turn = next(call.services.turn)
        name = topic.partition(partition_of_single(record, info.settings.partitions, turn))
    path = f"{partition_path(name)}/large"

    async def here(partition: Partition) -> web.StreamResponse:
        call.services.quotas.may_publish(topic)
        await call.hold(UPLOAD_HELD_BYTES_MIN)
        stored = await _Upload(call, partition, record, upload, most).store()
        return call.reply(stored)

    async def there(owner: Owner) -> web.StreamResponse:
        if prefers_redirect(call):
            return web.Response(
                status=307,
                headers={"Location": owner.url + path, "Preference-Applied": "redirect"},
            )
        return await call.services.peers.forward(call, owner, path)

    return await with_owner(call, name, here, there, may_repeat=lambda: not call.body_is_spent)


def _head(call: Call) -> str:
    """Return the name of the upload, or an empty text. Raises a `Problem`."""
    for name in _REFUSED:
        if name in call.headers:
            raise Problem(
                422,
                "large-not-taken",
                f"{name} is of messages that are numbered, and a large one is not: {UPLOAD_HEADER} "
                "with a name of your own makes repeating it safe",
            )
    upload = call.headers.get(UPLOAD_HEADER)
    return "" if upload is None else checked_name("upload", upload)


class _Upload:
    """An upload, at the partition's owner."""

    def __init__(
        self, call: Call, partition: Partition, record: Record, upload: str, most: int
    ) -> None:
        self._call = call
        self._partition = partition
        self._record = record
        self._upload = upload
        self._most = most

    async def store(self) -> LargePublished:
        """Store the body. Raises an error if nothing of it is stored, or if that is unknown."""
        access = access_of(self._call)
        self._partition.check_due(self._record)
        begun = await self._partition.begin_large(self._upload, access)
        if isinstance(begun, Published):
            return await self._answer(begun)
        cutter = Cutter(begun.upload, self._most)
        try:
            try:
                async for part in self._call.stream_body():
                    await _hold_upload(self._call, cutter.size + len(part))
                    for piece in cutter.feed(part):
                        await begun.add(piece)
            except BodyTooLong:
                raise too_long(None, self._most, _BOUND_BY) from None
            self._check_all_came(cutter.size)
            rest, body = cutter.rest(), cutter.body()
            if body.pieces < 2 and not self._upload:
                return await self._small(rest, access)
            if rest:
                await begun.add(rest)
            published = await begun.finish(self._record, body)
        finally:
            begun.discard()
        return await self._answer(published, body)

    def _check_all_came(self, size: int) -> None:
        """Check that the whole body has arrived, because the connection may have ended early."""
        announced = self._call.request.content_length
        if announced is not None and not self._call.is_packed and size != announced:
            raise Problem(
                400, "bad-body", f"the body has {size} bytes, and {announced} were announced"
            )

    async def _small(self, value: bytes, access: int | None) -> LargePublished:
        batch = build_batch([self._record._replace(value=value)])
        published = await self._partition.publish(batch, checked=True, access=access)
        self._count(published, len(batch))
        return self._shown(published, len(value))

    async def _answer(self, published: Published, body: LargeBody | None = None) -> LargePublished:
        self._count(published, 0 if body is None else body.size)
        if body is not None and not published.duplicate:
            return self._shown(published, body.size, body)
        found = await self._partition.body(published.first_offset)
        return self._shown(published, found.size, found.large)

    def _count(self, published: Published, size: int) -> None:
        call = self._call
        call.messages = 1
        if not published.duplicate:
            call.services.quotas.stored(self._partition.name.topic_name, size, 1)
            call.services.metrics.messages_published.inc(1)
            call.services.metrics.bytes_published.inc(size)

    def _shown(
        self, published: Published, size: int, body: LargeBody | None = None
    ) -> LargePublished:
        found = LargePublished(
            self._partition.name.partition,
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


async def _hold_upload(call: Call, came_bytes: int) -> None:
    """Count an upload by the bytes that have arrived. Raises `Overloaded`."""
    await call.hold(min(UPLOAD_HELD_BYTES_MIN + came_bytes, UPLOAD_HELD_BYTES))


async def body(call: Call) -> web.StreamResponse:
    """`GET …/messages/{message}/body`."""
    name = await one_partition(call, f"messages/{quote(call.variables['message'])}/body")
    position = position_of(call.variables["message"])
    if not isinstance(position, int | MessageId):
        raise Problem(
            400,
            "invalid-message-id",
            f"{call.variables['message'][:60]!r} in the path is neither an offset nor a message id "
            "(ledger:entry:index)",
        )

    async def here(partition: Partition) -> web.StreamResponse:
        call.services.quotas.may_read(name.topic_name)
        found = await partition.body(await resolve(partition, position))
        answer = web.StreamResponse()
        write_head(call, answer)
        call.is_streaming = False  # the answer has an end, and its size is counted
        answer.content_type = "application/octet-stream"
        answer.content_length = found.size
        if found.large is not None:
            answer.headers[CRC_HEADER] = found.large.crc32c
        call.messages = 1
        if call.forwarded:
            answer.headers[MESSAGES_HEADER] = "1"
        if call.request.method == "HEAD":
            return answer
        await call.hold(BODY_HELD_BYTES)
        pieces = found.pieces()
        async with contextlib.aclosing(pieces):
            first = await anext(pieces)  # a lasting error gets a status
            call.services.quotas.gave(name.topic_name, len(first), 1)
            await answer.prepare(call.request)
            await _send(call, answer, first)
            try:
                async for piece in pieces:
                    call.services.quotas.gave(name.topic_name, len(piece), 0)
                    await _send(call, answer, piece)
            except ConnectionError:
                raise
            except Exception as error:
                # The status was sent already, so only a broken connection can show the error.
                log.warning("body_broken_off", partition=str(name), reason=str(error))
                raise ConnectionResetError(f"the body of {name} broke off: {error}") from error
        return answer

    async def there(owner: Owner) -> web.StreamResponse:
        return await call.services.peers.forward(call, owner)

    return await with_owner(call, name, here, there)


async def _send(call: Call, answer: web.StreamResponse, piece: bytes) -> None:
    view = memoryview(piece)
    for start in range(0, len(view), _WRITE_BYTES):
        await call.ask_again()
        part = view[start : start + _WRITE_BYTES]
        call.services.quotas.gave_piece(call, len(part))
        async with asyncio.timeout(call.services.config.stall_timeout_ms / 1000):
            await answer.write(part)


_WRITE_BYTES = 256 * 1024
"""Bytes per write: between two writes, a slow reader's rights are checked again."""
