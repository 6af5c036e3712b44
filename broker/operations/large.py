"""Store and read large messages at the partition's owner, piece by piece.

Memory is counted: `HELD_BYTES_MIN`, then the bytes that have arrived, at most `HELD_BYTES`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from octavo.broker.operations.control import resolve
from octavo.broker.operations.large_kinds import (
    BeginBody,
    BeginUpload,
    BodyPiece,
    LargeRead,
    LargeStored,
    OpenBody,
    ReadBody,
)
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Published, TopicName
from octavo.protocol.large import PIECE_BYTES, Assembler, BrokenBody, Cutter, Piece
from octavo.protocol.records import Record, build_batch, read_records

HELD_BYTES_MIN = 64 * 1024
"""For the ledger and socket, plus the bytes that have arrived …"""
HELD_BYTES = 8 * PIECE_BYTES
"""… but at most this."""
SENT_HELD_BYTES = PIECE_BYTES
CUT_BYTES = PIECE_BYTES

Pieces = AsyncGenerator[bytes, None]
Hold = Callable[[int], Awaitable[None]]


class Memory(Protocol):
    async def take(self, peer: str, size: int, *subjects: str) -> None: ...

    def give_back(self, peer: str, size: int, *subjects: str) -> None: ...


class Room:
    def __init__(self, memory: Memory, broker_id: str, subjects: tuple[str, ...]) -> None:
        self._memory = memory
        self._peer = f"broker {broker_id}"
        self._subjects = subjects
        self._held = 0

    async def hold(self, size: int) -> None:
        more = size - self._held
        if more > 0:
            await self._memory.take(self._peer, more, *self._subjects)
            self._held = size

    def release(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._memory.give_back(self._peer, held, *self._subjects)


class Charges(Protocol):
    def may_publish(self, topic: TopicName) -> None: ...

    def stored(self, topic: TopicName, size: int, messages: int) -> None: ...

    def published(self, size: int, messages: int) -> None: ...

    def gave(self, topic: TopicName, size: int, messages: int) -> None: ...

    def large_bytes_max(self, topic: TopicName) -> int: ...


def head_of(operation: BeginBody) -> Record:
    records = [*read_records(operation.head)]
    if len(records) != 1:
        raise BrokenBody(f"{len(records)} messages came with one body")
    return records[0]


async def counted(pieces: Pieces, hold: Hold, most: int) -> Pieces:
    came = 0
    async with aclosing(pieces):
        async for piece in pieces:
            came += len(piece)
            await hold(min(HELD_BYTES_MIN + came, most))
            yield piece


async def store_upload(
    partition: Partition, operation: BeginUpload, pieces: Pieces, hold: Hold, rules: Charges
) -> LargeStored:
    """Store an upload; after an error nothing is stored, or the outcome is unknown."""
    message, topic = head_of(operation), operation.name.topic_name
    async with aclosing(counted(pieces, hold, HELD_BYTES)) as coming:
        rules.may_publish(topic)
        await hold(HELD_BYTES_MIN)
        partition.check_due(message)
        begun = await partition.begin_large(operation.upload, operation.access)
        if isinstance(begun, Published):
            return await _stored_before(partition, begun)
        cutter = Cutter(begun.upload, rules.large_bytes_max(topic), CUT_BYTES)
        try:
            async for part in coming:
                for piece in cutter.feed(part):
                    await begun.add(piece)
            rest, body = cutter.rest(), cutter.body()
            if body.pieces <= bool(rest) and not operation.upload:  # no piece was added
                return await _store_small(partition, operation, message._replace(value=rest), rules)
            if rest:
                await begun.add(rest)
            published = await begun.finish(message, body)
        finally:
            begun.discard()
    if published.duplicate:
        return await _stored_before(partition, published)
    return _charged(LargeStored(published, body.size, body), body.size, topic, rules)


async def _store_small(
    partition: Partition, operation: BeginUpload, message: Record, rules: Charges
) -> LargeStored:
    batch = build_batch([message])
    published = await partition.publish(batch, checked=True, access=operation.access)
    stored = LargeStored(published, len(message.value or b""), None)
    return _charged(stored, len(batch), operation.name.topic_name, rules)


async def _stored_before(partition: Partition, published: Published) -> LargeStored:
    found = await partition.body(published.first_offset)
    return LargeStored(published, found.size, found.large)


def _charged(stored: LargeStored, size: int, topic: TopicName, rules: Charges) -> LargeStored:
    if not stored.published.duplicate:
        rules.stored(topic, size, 1)
        rules.published(size, 1)
    return stored


async def read(partition: Partition, operation: LargeRead, rules: Charges) -> BodyPiece:
    topic = operation.name.topic_name
    if isinstance(operation, ReadBody):
        piece = await partition.body_piece(operation.offset, operation.piece)
        rules.gave(topic, len(piece.data), 0)
        return BodyPiece(operation.offset, 0, None, piece.data, piece.upload, piece.number)
    found = await partition.body(await resolve(partition, operation.at))
    if operation.size_only:
        return BodyPiece(found.offset, found.size, found.large)
    piece = await found.piece(0)
    rules.gave(topic, len(piece.data), 1)
    return BodyPiece(found.offset, found.size, found.large, piece.data, piece.upload, piece.number)


async def whole_body(
    opened: BodyPiece,
    operation: OpenBody,
    ask: Callable[[ReadBody], Awaitable[BodyPiece]],
    wait_of: Callable[[BaseException], float],
) -> Pieces:
    """Yield all pieces of an opened body, checked.

    Asks for a piece when the reader has taken the last; waits for an exceeded quota, as long as
    `wait_of` says.
    """
    if opened.large is None:
        yield opened.data
        return
    assembler, large = Assembler(opened.large), opened.large
    yield assembler.take(_piece_of(opened))
    for number in range(1, large.pieces):
        following = ReadBody(operation.name, opened.offset, number)
        while True:
            try:
                found = await ask(following)
                break
            except Exception as error:
                wait_s = wait_of(error)
                if not wait_s:
                    raise
            await asyncio.sleep(wait_s)
        yield assembler.take(_piece_of(found))


def _piece_of(found: BodyPiece) -> Piece:
    return Piece(found.upload, found.number, found.data)
