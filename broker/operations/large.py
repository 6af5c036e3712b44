"""Store and read large messages at the partition's owner, piece by piece.

`store_upload` takes the pieces of a client of this broker or of another broker (bodies.py). Its
memory is counted: at first `HELD_BYTES_MIN`, then also the bytes that have arrived, and never more
than `HELD_BYTES`.
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
"""An upload counts as this for its ledger and its socket, plus the bytes that have arrived …"""
HELD_BYTES = 8 * PIECE_BYTES
"""… but as at most this: a piece that is being filled, and pieces under way."""
SENT_HELD_BYTES = PIECE_BYTES
"""The most that an upload counts as at a broker that forwards it."""
CUT_BYTES = PIECE_BYTES
"""The length of the stored pieces of a body; the last may be shorter."""

Pieces = AsyncGenerator[bytes, None]
Hold = Callable[[int], Awaitable[None]]
"""Sets how many bytes are held now for the upload. Raises `Overloaded`."""


class Memory(Protocol):
    """Counts the bytes of bodies in this broker's memory: `octavo.broker.http.held_bytes`."""

    async def take(self, peer: str, size: int, *subjects: str) -> None:
        """Count more bytes of a sender, in the shares of these subjects. Raises `Overloaded`."""

    def give_back(self, peer: str, size: int, *subjects: str) -> None: ...


class Room:
    """The memory for a body that another broker sends."""

    def __init__(self, memory: Memory, broker_id: str, subjects: tuple[str, ...]) -> None:
        """`subjects`: in whose shares the body counts, besides the share of the broker."""
        self._memory = memory
        self._peer = f"broker {broker_id}"
        self._subjects = subjects
        self._held = 0

    async def hold(self, size: int) -> None:
        """Count `size` bytes as held now. Raises `Overloaded`."""
        more = size - self._held
        if more > 0:
            await self._memory.take(self._peer, more, *self._subjects)
            self._held = size

    def release(self) -> None:
        """Count no bytes any more."""
        held, self._held = self._held, 0
        if held:
            self._memory.give_back(self._peer, held, *self._subjects)


class Charges(Protocol):
    """The methods of `octavo.broker.operations.local.Rules` that are needed here."""

    def may_publish(self, topic: TopicName) -> None: ...

    def stored(self, topic: TopicName, size: int, messages: int) -> None: ...

    def published(self, size: int, messages: int) -> None:
        """Count what was stored here for the first time."""

    def gave(self, topic: TopicName, size: int, messages: int) -> None:
        """Charge a piece of a message that is read."""

    def large_bytes_max(self, topic: TopicName) -> int:
        """Return how many bytes a large message of the topic may have."""
        ...


def head_of(operation: BeginBody) -> Record:
    """Return the message whose body follows. Raises `BrokenBody`."""
    records = [*read_records(operation.head)]
    if len(records) != 1:
        raise BrokenBody(f"{len(records)} messages came with one body")
    return records[0]


async def counted(pieces: Pieces, hold: Hold, most: int) -> Pieces:
    """Yield the pieces, and count the bytes of them that are held, at most `most`."""
    came = 0
    async with aclosing(pieces):
        async for piece in pieces:
            came += len(piece)
            await hold(min(HELD_BYTES_MIN + came, most))
            yield piece


async def store_upload(
    partition: Partition, operation: BeginUpload, pieces: Pieces, hold: Hold, rules: Charges
) -> LargeStored:
    """Store a client's large message, unless it is stored already.

    If `Partition.begin_large`, `LargeUpload` or `pieces` raise, or `BodyTooLong` or `Overloaded` is
    raised, nothing of the message is stored (see there for unknown outcomes).
    """
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
    """Store a body of a single piece as the value of a message."""
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
    """Return a piece of a body. Raises `MessageNotFound`, and errors of reading."""
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
    """Yield all pieces of a body that `OpenBody` has opened; each is checked first.

    The owner is asked for the next piece when the reader has taken the last one. If a quota is used
    up, the reader waits, as long as `wait_of` says. Raises `BrokenBody`, and what `ask` raises.
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
