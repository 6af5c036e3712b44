"""The private ledgers of a Spark task: one for each partition that it has rows for.

A large message gets its own ledger, between the ledgers of the rows before and after it. Its body
is copied piece by piece from where the row was read, and its checksum is verified, before the
ledger can be committed (protocol/large.py).

Nothing written here is visible until a commit names the ledger. Each ledger's metadata names its
bulk load and batch: no other bulk load can commit it, and ledgers of dead tasks can be recognised.
Entries are pipelined; `close` returns when all are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from octavo.broker.bulkload.rules import BATCH_KEY, BULK_LOAD_KEY, KIND, KIND_KEY, PARTITION_KEY
from octavo.broker.errors import DueAfterExpiry
from octavo.broker.log.ledger_list import Contents
from octavo.broker.policies import why_never_due
from octavo.client.types import TopicName
from octavo.clock import wall_clock_ms
from octavo.ledger.encryption import plain_length
from octavo.ledger.errors import LedgerError
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.gather_all import gather_all
from octavo.metadata.topics import TopicSettings
from octavo.protocol.batch import ATTRIBUTE_DELAYED, read_header, with_base_offset
from octavo.protocol.codes import OctavoError
from octavo.protocol.due import due_of
from octavo.protocol.large import Assembler, BrokenBody, piece_of, piece_record
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.records import Record, build_batch, read_records
from octavo.spark.cluster import Cluster
from octavo.spark.options import InvalidOption
from octavo.spark.sink_message import Written
from octavo.spark.sink_rows import LargeRow, Target
from octavo.spark.splits import Piece, copy_to_read

ATTEMPT_KEY = "octavo.attempt"


class BodyNotCopied(OctavoError):
    """The body of a large message could not be copied. The message says which it is."""

    name = "body-not-copied"


class _Ledger:
    """A private ledger while it is written."""

    __slots__ = ("contents", "entries", "error", "pieces", "target", "writer", "written")

    def __init__(self, target: Target, writer: LedgerWriter) -> None:
        self.target = target
        self.writer = writer
        self.contents = Contents()
        self.entries = self.pieces = 0
        self.error: OctavoError | None = None
        self.written: Written | None = None
        """Set when the ledger is closed."""

    async def add(self, batch: bytes) -> None:
        """Add a batch. Waits only while too much is in flight."""
        await self.writer.drain()
        header = read_header(batch)
        self.writer.add(with_base_offset(batch, self.contents.messages), self._added)
        self.contents = self.contents.plus(header, len(batch))
        self.entries += 1

    def _added(self, _: int, error: OctavoError | None) -> None:
        self.error = self.error or error


class TaskLedgers:
    """Writes record batches; made and used on one event loop."""

    def __init__(self, cluster: Cluster, bulk_load: str, batch: int, attempt: str) -> None:
        self._cluster = cluster
        self._marks = {
            KIND_KEY: KIND,
            BULK_LOAD_KEY: bulk_load.encode(),
            BATCH_KEY: str(batch).encode(),
            ATTEMPT_KEY: attempt.encode(),
        }
        self._ledgers: list[_Ledger] = []
        """All ledgers; for each partition in the order of its rows."""
        self._open: dict[Target, _Ledger] = {}
        """The ledger for each partition's next rows."""
        self._settings: dict[str, TopicSettings] = {}

    async def write(self, batches: Sequence[tuple[Target, bytes | LargeRow]]) -> None:
        """Add batches. Waits only while too much is in flight. Raises the error that ended a
        ledger, and `BodyNotCopied`."""
        first: dict[Target, bytes | LargeRow] = {}
        for target, batch in batches:
            first.setdefault(target, batch)
        await gather_all(
            self._opened(target) for target, batch in first.items() if isinstance(batch, bytes)
        )
        for target, batch in batches:
            if isinstance(batch, LargeRow):
                await self._write_large(target, batch)
            else:
                await self._write(target, batch)

    async def _write(self, target: Target, batch: bytes) -> None:
        if len(batch) > ENTRY_PAYLOAD_BYTES_MAX:
            raise LedgerError(
                f"a message for {target.topic}/{target.partition} makes a batch of "
                f"{len(batch)} bytes; an entry holds at most {ENTRY_PAYLOAD_BYTES_MAX}"
            )
        ledger = await self._opened(target)
        if read_header(batch).attributes & ATTRIBUTE_DELAYED:
            for record in read_records(batch):
                self._check_due(target, record.headers)
        await ledger.add(batch)

    def _check_due(self, target: Target, headers: Sequence[tuple[str, bytes | None]]) -> None:
        """Refuse a message that would expire before it is due. Brokers check this for published
        messages, but do not look into a bulk load. Raises `DueAfterExpiry`."""
        policies = self._settings[target.topic].policies
        why = why_never_due(due_of(headers), wall_clock_ms(), policies)
        if why is not None:
            raise DueAfterExpiry(f"{target.topic}/{target.partition}: a row was not written: {why}")

    async def _write_large(self, target: Target, large: LargeRow) -> None:
        pieces = await self._pieces_of(large)
        if pieces is None:
            await self._write(target, build_batch([Record(*large.row[:4])]))
            return
        before = self._open.pop(target, None)
        if before is not None:
            await _closed(before)
        ledger = await self._made(target)
        self._check_due(target, large.row[2])
        try:
            await self._copy(pieces, large, ledger)
        except OctavoError as error:
            raise BodyNotCopied(
                f"{large.origin} is a large message, and its body cannot be copied: {error}"
            ) from error
        await _closed(ledger)

    async def _pieces_of(self, large: LargeRow) -> Piece | None:
        """Return where the body is; None if the header only looks like a large message's."""
        origin = large.origin
        topic = str(TopicName.of(origin.topic))
        record = await self._cluster.record(topic, origin.partition)
        for one in record.ledgers:
            if one.count is not None and 0 <= origin.offset - one.base_offset < one.count:
                if one.pieces != origin.offset - one.base_offset:
                    return None
                return Piece(
                    topic, origin.partition, one.ledger_id, one.base_offset, one.base_offset,
                    origin.offset, copy_to_read(one.offload, "auto"),
                )  # fmt: skip
            if one.count is None and origin.offset >= one.base_offset:
                return None
        raise BodyNotCopied(
            f"{origin} is a large message, whose body was deleted after the row was read, by "
            "retention or by a user"
        )

    async def _copy(self, pieces: Piece, large: LargeRow, ledger: _Ledger) -> None:
        """Copy the body, then the message; some pieces at a time are in memory. Raises
        `BrokenBody`, and errors of reading and writing."""
        key, _, headers, time_ms, _ = large.row
        assembler = Assembler(large.body)
        async with aclosing(self._cluster.entries(pieces)) as found:
            async for entries in found:
                for entry in entries[: large.body.pieces - ledger.pieces]:
                    (record,) = read_records(entry.payload)
                    data = assembler.take(piece_of(record))
                    piece = piece_record(large.body.upload, ledger.pieces, data, time_ms)
                    await ledger.add(build_batch([piece]))
                    ledger.pieces += 1
        await self._cluster.release(pieces.ledger_id)
        if not assembler.is_whole:
            raise BrokenBody(f"the body ends after {ledger.pieces} of {large.body.pieces} pieces")
        await ledger.add(build_batch([Record(key, b"", headers, time_ms)]))

    async def close(self) -> tuple[Written, ...]:
        """Make all ledgers durable and close them. Raises the error of any of them."""
        return tuple(await asyncio.gather(*map(_closed, self._ledgers)))

    async def discard(self) -> None:
        """Delete the ledgers of a failed task: the driver was not told of them."""
        for ledger in tuple(self._ledgers):
            await self._cluster.ledgers.discard(ledger.writer)

    async def _opened(self, target: Target) -> _Ledger:
        """Return the ledger for the partition's next rows."""
        if target not in self._open:
            self._open[target] = await self._made(target)
        return self._open[target]

    async def _made(self, target: Target) -> _Ledger:
        settings = self._settings.get(target.topic) or await self._cluster.settings(target.topic)
        if settings is None:
            raise InvalidOption(f"there is no topic {target.topic}")
        self._settings[target.topic] = settings
        writer = await self._cluster.ledgers.create(
            ensemble_size=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            custom={**self._marks, PARTITION_KEY: f"{target.topic}/{target.partition}".encode()},
            encrypted_for=target.topic.partition("/")[0] if settings.encrypted else None,
        )
        ledger = _Ledger(target, writer)
        self._ledgers.append(ledger)
        return ledger


async def _closed(ledger: _Ledger) -> Written:
    if ledger.written is not None:
        return ledger.written
    writer, contents = ledger.writer, ledger.contents
    metadata = await writer.close()
    if ledger.error is not None:
        raise ledger.error
    size = plain_length(metadata)
    if (metadata.last_entry, size) != (ledger.entries - 1, contents.payload_bytes):
        raise LedgerError(
            f"ledger {writer.ledger_id} was closed at entry {metadata.last_entry} with "
            f"{size} bytes; {ledger.entries} entries were written"
        )
    ledger.written = Written(
        *ledger.target, writer.ledger_id, contents.messages, contents.payload_bytes,
        contents.first_ms, contents.last_ms, contents.disorder_ms, ledger.pieces,
    )  # fmt: skip
    return ledger.written
