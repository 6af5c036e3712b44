"""The tasks of a compaction: report each key's offsets, then copy the messages that stay.

Tasks change no record: if one dies, no record names its ledger, and `gc` deletes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from octavo.broker.bulkload.rules import PARTITION_KEY
from octavo.ledger.encryption import plain_length
from octavo.ledger.errors import LedgerError
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.compactions import KIND, KIND_KEY, RUN_KEY
from octavo.metadata.topics import TopicSettings
from octavo.pipeline.compact_rules import CompactPolicy, may_go
from octavo.pipeline.offload_rules import pause_s
from octavo.protocol.codes import OctavoError
from octavo.protocol.compression import Compression
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.records import Record, build_gapped_batch
from octavo.spark.batches import StoredBatch
from octavo.spark.cluster import Cluster, connected
from octavo.spark.options import SourceOptions
from octavo.spark.reading import Split, SplitReader

KEYS = pa.schema(
    [("place", pa.int32()), ("key", pa.binary()), ("offset", pa.int64()), ("gone", pa.bool_())]
)
KEYS_SQL = "place INT, key BINARY, offset LONG, gone BOOLEAN"
BATCH_BYTES = 512 * 1024
_DELTA_MAX = 2**31 - 1
_RECORD_BYTES = 16


@dataclass(frozen=True)
class Place:
    topic: str
    partition: int
    horizon: int
    settings: TopicSettings


@dataclass(frozen=True)
class Work:
    run: str
    options: SourceOptions
    places: tuple[Place, ...]
    splits: tuple[tuple[int, Split], ...]
    policy: CompactPolicy
    now_ms: int
    bytes_per_s: float | None


class Made(NamedTuple):
    chunk: int
    ledger_id: int
    first_offset: int
    last_offset: int
    messages: int
    bytes: int
    tombstones: int
    tombstone_ms: int


MADE = pa.schema([(name, pa.int64()) for name in Made._fields])
MADE_SQL = ", ".join(f"{name} LONG" for name in Made._fields)


def keys_of(work: Work, chunk: int) -> Iterator[pa.RecordBatch]:
    place, split = work.splits[chunk]
    horizon = work.places[place].horizon
    reader = SplitReader(work.options, ("key", "value", "offset", "timestampMillis"))
    started_s, done = time.monotonic(), 0
    for rows in reader.read(split):
        keys, offsets = rows.column("key").to_pylist(), rows.column("offset").to_pylist()
        times = rows.column("timestampMillis").to_pylist()
        without = rows.column("value").is_null().to_pylist()
        gone = [
            empty and key is not None and offset < horizon
            and may_go(time_ms, work.policy, work.now_ms)
            for key, offset, time_ms, empty in zip(keys, offsets, times, without, strict=True)
        ]  # fmt: skip
        yield pa.RecordBatch.from_arrays(
            [pa.array([place] * len(keys), pa.int32()), pa.array(keys, pa.binary()),
             pa.array(offsets, pa.int64()), pa.array(gone, pa.bool_())],
            schema=KEYS,
        )  # fmt: skip
        done += rows.nbytes
        time.sleep(pause_s(done, time.monotonic() - started_s, work.bytes_per_s))


def copied(work: Work, chunk: int, offsets: list[int]) -> Made:
    return asyncio.run(_copied(work, chunk, sorted(offsets)))


async def _copied(work: Work, chunk: int, offsets: list[int]) -> Made:
    place, split = work.splits[chunk]
    reader = SplitReader(work.options, ())
    started_s, read = time.monotonic(), 0
    async with connected(work.options.service) as cluster:
        copy = _Copy(await _ledger(cluster, work.places[place], work.run), offsets)
        try:
            async with contextlib.aclosing(reader.stored(split)) as found:
                async for _, batches in found:
                    for batch in batches:
                        await copy.take(batch)
                        read += len(batch.data)
                    await asyncio.sleep(
                        pause_s(read, time.monotonic() - started_s, work.bytes_per_s)
                    )
            return await copy.close(chunk)
        except BaseException:
            await cluster.ledgers.discard(copy.writer)
            raise


async def _ledger(cluster: Cluster, place: Place, run: str) -> LedgerWriter:
    settings = place.settings
    return await cluster.ledgers.create(
        ensemble_size=settings.ensemble_size,
        write_quorum=settings.write_quorum,
        ack_quorum=settings.ack_quorum,
        custom={
            KIND_KEY: KIND,
            RUN_KEY: run.encode(),
            PARTITION_KEY: f"{place.topic}/{place.partition}".encode(),
        },
        encrypted_for=place.topic.partition("/")[0] if settings.encrypted else None,
    )


class _Copy:
    def __init__(self, writer: LedgerWriter, offsets: list[int]) -> None:
        self.writer = writer
        self._wanted = offsets
        self._at = 0
        self._rows: list[Record] = []
        self._rows_from = 0
        self._rows_bytes = 0
        self._entries = self._bytes = 0
        self._tombstones, self._tombstone_ms = 0, -1
        self._error: OctavoError | None = None

    async def take(self, batch: StoredBatch) -> None:
        """Copy the wanted messages of a batch. Batches must come in order of offsets."""
        stop = bisect_left(self._wanted, batch.next_offset, self._at)
        if stop == self._at:
            return
        offsets, records = batch.numbered()
        for offset, record in zip(offsets, records, strict=True):
            if self._at == stop:
                break
            if offset == self._wanted[self._at]:
                self._at += 1
                await self._add(offset, record)

    async def _add(self, offset: int, record: Any) -> None:
        value: bytes | None = record.value
        size = _RECORD_BYTES + len(record.key or b"") + len(value or b"")
        far = offset - self._rows_from > _DELTA_MAX
        if self._rows and (self._rows_bytes + size > BATCH_BYTES or far):
            await self._flush()
        if not self._rows:
            self._rows_from = offset
        at = offset - self._rows_from
        self._rows.append(Record(record.key, value, record.headers, record.timestamp, at))
        self._rows_bytes += size
        if value is None and record.key is not None:
            self._tombstones += 1
            oldest = self._tombstone_ms
            self._tombstone_ms = record.timestamp if oldest < 0 else min(oldest, record.timestamp)

    async def _flush(self) -> None:
        # As in every ledger, offsets in a batch count from the ledger's first message.
        base = self._rows_from - self._wanted[0]
        batch = build_gapped_batch(self._rows, base, compression=Compression.ZSTD)
        if len(batch) > ENTRY_PAYLOAD_BYTES_MAX:
            raise LedgerError(
                f"the message at offset {self._rows_from} makes a batch of {len(batch)} bytes; "
                f"an entry holds at most {ENTRY_PAYLOAD_BYTES_MAX}"
            )
        await self.writer.drain()
        self.writer.add(batch, self._added)
        self._entries += 1
        self._bytes += len(batch)
        self._rows, self._rows_bytes = [], 0

    def _added(self, _: int, error: OctavoError | None) -> None:
        self._error = self._error or error

    async def close(self, chunk: int) -> Made:
        if self._at != len(self._wanted):
            raise LedgerError(
                f"offset {self._wanted[self._at]} was read in the first pass, but not in the second"
            )
        await self._flush()
        metadata = await self.writer.close()
        if self._error is not None:
            raise self._error
        size = plain_length(metadata)
        if (metadata.last_entry, size) != (self._entries - 1, self._bytes):
            raise LedgerError(
                f"ledger {self.writer.ledger_id} was closed at entry {metadata.last_entry} with "
                f"{size} bytes; {self._entries} entries were written"
            )
        return Made(
            chunk, self.writer.ledger_id, self._wanted[0], self._wanted[-1], len(self._wanted),
            self._bytes, self._tombstones, self._tombstone_ms,
        )  # fmt: skip
