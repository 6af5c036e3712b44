"""Store and read large messages piece by piece.

A ledger of this partition is filled with the pieces, then with the message (protocol/large.py), and
is inserted behind the open ledger by one compare-and-set (rollover.py).

Promises: before the insertion nothing of the message is visible; after it, all is visible and
durable, at the offset of its last record. A broken-off upload's ledger is deleted; after a crash a
sweep finds it (log/orphan_ledgers.py). By the upload's name a publisher finds a message that was
inserted but not answered.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import AbstractAsyncContextManager

from octavo.broker.errors import (
    ExclusiveProducer,
    MessageNotFound,
    PartitionUnavailable,
    PublishOutcomeUnknown,
    StaleProducerAccess,
    TopicIsStream,
)
from octavo.broker.log.ledger_list import Contents
from octavo.broker.log.open_batches import ReadableBatch
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition.context import PartitionContext
from octavo.broker.partition.log import PartitionLog
from octavo.broker.partition.rollover import Insertion, Rollover
from octavo.broker.state.log import create_ledger
from octavo.broker.types import MessageId, PartitionName, Published, StoredBatch, TopicSettings
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.bulk_loads import PrivateLedger
from octavo.metadata.topics import PartitionLedger
from octavo.protocol.batch import read_header, with_base_offset
from octavo.protocol.codes import OctavoError
from octavo.protocol.large import (
    LARGE_HEADER,
    Assembler,
    BrokenBody,
    Cutter,
    LargeBody,
    Piece,
    large_body_of,
    piece_of,
    piece_record,
)
from octavo.protocol.records import Record, build_batch, read_records

PIECES_UNDER_WAY_MAX = 4
"""Unacked pieces of an upload; at the limit, its socket is not read."""
_NAME_BYTES = 8
_REFUSALS = (ExclusiveProducer, StaleProducerAccess, TopicIsStream)


def placed(segment: PartitionLedger, *, duplicate: bool) -> Published:
    assert segment.count is not None
    offset = segment.base_offset + segment.count - 1
    return Published(offset, offset, segment.ledger_id, segment.count - 1, 1, duplicate)


class LargeUpload:
    """A large message that is being received; end it by `finish` or `discard`."""

    def __init__(
        self,
        name: PartitionName,
        upload: str,
        context: PartitionContext,
        record: PartitionRecordKeeper,
        settings: TopicSettings,
        rollover: Rollover,
        check: Callable[[], None],
    ) -> None:
        self.name = name
        self.upload = upload or secrets.token_hex(_NAME_BYTES)
        self._known_as = upload or None
        self._ledgers = context.ledgers
        self._spawn = context.spawn
        self._record = record
        self._settings = settings
        self._rollover = rollover
        self._check = check
        self._now_ms = context.clock()
        self._writer: LedgerWriter | None = None
        self._contents = Contents()
        self._error: OctavoError | None = None
        self._adds = self._answers = 0
        self._answered = asyncio.Event()

    async def add(self, data: bytes) -> None:
        """Add a piece; wait while too many are on their way."""
        record = piece_record(self.upload, self._contents.messages, data, self._now_ms)
        await self._add(record)

    async def finish(self, message: Record, body: LargeBody) -> Published:
        """Store the message after its pieces; return its place once it is visible."""
        assert body.pieces == self._contents.messages
        headers = [*message.headers, body.header()]
        await self._add(message._replace(value=b"", headers=headers))
        writer, contents = self._writer, self._contents
        assert writer is not None
        try:
            metadata = await writer.close()
        except OctavoError as error:
            raise self._not_stored(error) from error
        if self._error is not None:
            raise self._not_stored(self._error)
        if metadata.last_entry != contents.messages - 1:
            raise PartitionUnavailable(
                f"{self.name}: another process has closed the ledger of a large message: the "
                "message is not stored; publish it again"
            )
        ledger = PrivateLedger(
            writer.ledger_id, contents.messages, contents.payload_bytes,
            contents.first_ms, contents.last_ms, contents.disorder_ms, body.pieces or None,
        )  # fmt: skip

        async def plan() -> Insertion | None:
            if self._known_as and self._record.ledgers.uploaded(self._known_as):
                return None  # a repeat of this call has inserted the ledger
            return Insertion((ledger,), upload=self._known_as, check=self._check)

        # From now on the record may name the ledger, even if this call is cancelled: `discard` must
        # not delete it.
        self._writer = None
        try:
            await self._rollover.insert(plan)
        except _REFUSALS:
            self._writer = writer
            raise
        except OctavoError as error:
            raise PublishOutcomeUnknown(
                f"{self.name}: the large message may or may not be stored: {error.name}: {error}; "
                "with an Octavo-Upload it may be repeated"
            ) from error
        inserted = self._record.ledgers.segment_of(ledger.ledger_id)
        if inserted is not None:
            return placed(inserted, duplicate=False)
        found = self._known_as and self._record.ledgers.uploaded(self._known_as)
        if not found:
            raise PublishOutcomeUnknown(
                f"{self.name}: the large message was stored, and retention has removed it already"
            )
        self._writer = writer
        return placed(found, duplicate=True)

    def discard(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._spawn(self._ledgers.discard(writer))

    async def _add(self, record: Record) -> None:
        try:
            if self._writer is None:
                self._writer = await create_ledger(
                    self._ledgers, self._settings, self.name, "data", self._record.value
                )
            writer = self._writer
            await writer.drain()
            while self._adds - self._answers >= PIECES_UNDER_WAY_MAX and self._error is None:
                self._answered.clear()
                await self._answered.wait()
            batch = with_base_offset(build_batch([record]), self._contents.messages)
            self._contents = self._contents.plus(read_header(batch), len(batch))
            writer.add(batch, self._added)
            self._adds += 1
        except OctavoError as error:
            raise self._not_stored(error) from error
        if self._error is not None:
            raise self._not_stored(self._error)

    def _added(self, _: int, error: OctavoError | None) -> None:
        self._error = self._error or error
        self._answers += 1
        self._answered.set()

    def _not_stored(self, error: OctavoError) -> PartitionUnavailable:
        return PartitionUnavailable(
            f"{self.name}: the large message is not stored: {error.name}: {error}; publish it again"
        )


async def take_copy(begun: LargeUpload, copy: Record, parts: AsyncIterable[bytes]) -> Published:
    """Store a copy whose body comes in parts, with the original's header."""
    large = large_body_of(copy.headers)
    if large is None:
        raise BrokenBody("the message does not name the size of its body")
    cutter = Cutter(begun.upload, large.size)
    async for part in parts:
        for piece in cutter.feed(part):
            await begun.add(piece)
    if rest := cutter.rest():
        await begun.add(rest)
    body = cutter.body()
    if (body.size, body.crc32c) != (large.size, large.crc32c):
        raise BrokenBody(
            f"a copy's body has {body.size} bytes with checksum {body.crc32c}, but its message "
            f"names {large.size} bytes with checksum {large.crc32c}"
        )
    headers = [header for header in copy.headers if header[0] != LARGE_HEADER]
    return await begun.finish(copy._replace(headers=headers), body)


class BodyReader:
    def __init__(
        self, log: PartitionLog, segment: PartitionLedger, offset: int, record: Record
    ) -> None:
        self.offset = offset
        self.record = record
        self.large = large_body_of(record.headers) if segment.pieces else None
        self._log = log
        self._segment = segment

    @property
    def size(self) -> int:
        return len(self.record.value or b"") if self.large is None else self.large.size

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        if self.large is None:
            yield self.record.value or b""
            return
        assembler = Assembler(self.large)
        for number in range(self.large.pieces):
            yield assembler.take(await self.piece(number))

    async def piece(self, number: int) -> Piece:
        if self.large is None:
            return Piece("", 0, self.record.value or b"")
        return await read_piece(self._log, self._segment, number)


async def read_piece(log: PartitionLog, segment: PartitionLedger, number: int) -> Piece:
    batch = await log.reader.piece(segment, number)
    return piece_of(next(read_records(batch.data)))


async def piece_at(
    log: PartitionLog, record: PartitionRecordKeeper, offset: int, number: int
) -> Piece:
    ledgers = record.ledgers
    segment = ledgers.find(offset) if offset >= ledgers.earliest_offset else None
    if segment is None or number >= (segment.pieces or 0):
        raise MessageNotFound(f"there is no large message with a piece {number} at offset {offset}")
    if placed(segment, duplicate=False).first_offset != offset:
        raise MessageNotFound(f"{offset} is not the offset of a large message")
    return await read_piece(log, segment, number)


async def open_body(
    log: PartitionLog,
    record: PartitionRecordKeeper,
    readable: Callable[[StoredBatch], AbstractAsyncContextManager[ReadableBatch]],
    offset: int,
) -> BodyReader:
    batches = await log.read(offset, 1, 1, 0.0)
    if not batches or not batches[0].base_offset <= offset < batches[0].next_offset:
        behind = record.ledgers.shown_from(offset)
        raise MessageNotFound(
            f"{offset} is the offset of a piece of the large message at {behind}"
            if behind > offset
            else f"there is no message at offset {offset} yet"
        )
    batch = batches[0]
    segment = record.ledgers.find(offset)
    async with readable(batch) as records:
        index = offset - batch.base_offset
        if not records.holds(index):
            await records.turn_to(index)
        message = records[index]
    large = None if segment.pieces or message.value else large_body_of(message.headers)
    if large is not None and large.size:
        raise MessageNotFound(
            f"the message at offset {offset} is a copy of a large message, without its body: read "
            "the original"
        )
    return BodyReader(log, segment, offset, message)


def id_of(published: Published) -> MessageId:
    return MessageId(published.ledger_id, published.entry_id, 0)
