"""Encode and decode the records of a RecordBatch v2, and choose the partition of a key.

The compiled codec of `aiokafka.record` does the work for each record; this module adds the
project's types, bounds and errors. A batch is built once, by its producer or by the broker that
took its messages singly, and never rebuilt. Nothing here reads a clock: timestamps come from the
caller. Spec: docs/formats/record_batch.md.

Reading a packed batch is bounded (`compression.unpack`): the records are unpacked here and not by
aiokafka, whose snappy reader never ends on a block of negative length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import islice
from typing import Any, NamedTuple

from octavo.protocol.batch import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_DELAYED,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER,
    BatchHeader,
    InvalidBatch,
    read_header,
    sealed,
    with_base_offset,
)
from octavo.protocol.calendar import NO_TIME_MS
from octavo.protocol.compression import Compression, compression_of, unpack
from octavo.protocol.due import is_delayed
from octavo.protocol.entry import Buffer

_UNLIMITED = 2**31 - 1
"""The builder's own size limit is not used: callers bound the contents of a batch."""
RECORD_OVERHEAD_BYTES = 16
"""Approximate bytes of a message in a batch in addition to its `record_bytes`."""
_LATER_MS = 2
"""With times shifted by this much, the builder treats -1 like any other time."""
_NO_HEADERS: list[tuple[str, bytes | None]] = []
_KEY_BYTES_REMEMBERED_MAX = 64
_KEYS_REMEMBERED_MAX = 65_536


@cache
def _codec() -> Any:
    """Import aiokafka's codec when it is first used.

    The import takes longer than all the rest of a client that neither reads nor writes.
    """
    from aiokafka.record import default_records

    return default_records


@cache
def not_records() -> tuple[type[Exception], ...]:
    """Return the errors that `open_batch` raises when the records contradict header or lengths."""
    from aiokafka.errors import CorruptRecordException

    return (CorruptRecordException, ValueError)


class Record(NamedTuple):
    """A message. `timestamp_ms` counts from 1970, UTC; `offset_delta` from the batch's base.

    `headers` are (name, value) pairs in the producer's order; names may repeat. When a batch is
    built, `offset_delta` is ignored: a record's delta is its position.
    """

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = 0
    offset_delta: int = 0


def record_bytes(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """Return the size that `MESSAGE_BYTES_MAX` bounds: key, value and headers, with their
    lengths."""
    size = (len(key) if key else 0) + (len(value) if value else 0)
    if headers:
        size += sum(len(name) * 2 + len(text or b"") + 4 for name, text in headers)
    return size


def build_batch(
    records: Iterable[Record],
    *,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    compression: int = Compression.NONE,
) -> bytes:
    """Build a whole batch with base offset 0.

    Raises `InvalidBatch` when there are no records, `UnsupportedCompression`.
    """
    kind = compression_of(compression)
    builder = _codec().DefaultRecordBatchBuilder(
        MAGIC, kind, 0, producer_id, producer_epoch, base_sequence, _UNLIMITED
    )
    append = builder.append
    position, delayed, later_ms = -1, False, 0
    for position, (key, value, headers, timestamp_ms, _) in enumerate(records):
        if position == 0 and timestamp_ms == NO_TIME_MS:
            later_ms = _LATER_MS  # else the builder gives the first record the second's time
        if headers:
            append(position, timestamp_ms + later_ms, key, value, list(headers))
            delayed = delayed or is_delayed(headers)
        else:
            append(position, timestamp_ms + later_ms, key, value, _NO_HEADERS)
    if position < 0:
        raise InvalidBatch("a record batch has at least one record, got none")
    batch = bytes(builder.build())
    if later_ms:
        batch = _earlier(batch, later_ms)
    return _marked(batch, ATTRIBUTE_DELAYED) if delayed else batch


def build_gapped_batch(
    records: Iterable[Record], base_offset: int, *, compression: int = Compression.NONE
) -> bytes:
    """Build a whole batch whose records have the offsets `base_offset + offset_delta`, with gaps.

    For compacted ledgers, and for the last batch of a fork; clients may not publish gaps. The
    deltas must ascend. Raises `InvalidBatch` when there are no records, `UnsupportedCompression`.
    """
    kind = compression_of(compression)
    builder = _codec().DefaultRecordBatchBuilder(MAGIC, kind, 0, NO_PRODUCER, -1, -1, _UNLIMITED)
    last, later_ms = -1, 0
    for key, value, headers, timestamp_ms, delta in records:
        assert delta > last
        if last < 0 and timestamp_ms == NO_TIME_MS:
            later_ms = _LATER_MS  # else the builder gives the first record the second's time
        last = delta
        given = list(headers) if headers else _NO_HEADERS
        builder.append(delta, timestamp_ms + later_ms, key, value, given)
    if last < 0:
        raise InvalidBatch("a record batch has at least one record, got none")
    batch = bytes(builder.build())
    return with_base_offset(_earlier(batch, later_ms) if later_ms else batch, base_offset)


def _marked(batch: bytes, attribute: int) -> bytes:
    header = read_header(batch)
    marked = header._replace(attributes=header.attributes | attribute)
    return sealed(marked, memoryview(batch)[HEADER_BYTES:])


def front_of_batch(batch: Buffer, count: int) -> bytes:
    """Return a batch of the first `count` records of a whole batch, with base offset 0, no
    producer.

    A fork that ends within a batch stores this front of the batch. Raises like `read_records`.
    """
    attributes = read_header(batch).attributes
    kind = attributes & ATTRIBUTE_COMPRESSION
    front = build_gapped_batch(islice(read_records(batch), count), 0, compression=kind)
    delayed = attributes & ATTRIBUTE_DELAYED
    return _marked(front, delayed) if delayed else front


def _earlier(batch: bytes, by_ms: int) -> bytes:
    """Move the batch's times back; the records' times are relative to them."""
    header = read_header(batch)
    moved = header._replace(
        first_timestamp=header.first_timestamp - by_ms, max_timestamp=header.max_timestamp - by_ms
    )
    return sealed(moved, memoryview(batch)[HEADER_BYTES:])


def read_records(batch: Buffer) -> Iterator[Record]:
    """Yield the records of a whole batch that `batch.check_batch` has checked, in order.

    A record's `offset_delta` is its position; `check_batch` vouches that the header agrees, unless
    gaps were allowed (then use `read_gapped_records`). Raises only `InvalidBatch`, when the records
    contradict header or lengths, and `UnsupportedCompression`.
    """
    found = _header_of_whole(batch)
    position = 0
    try:
        for record in open_batch(batch):
            yield Record(record.key, record.value, record.headers, record.timestamp, position)
            position += 1
    except not_records() as error:
        raise InvalidBatch(f"record {position} of {found.record_count}: {error}") from error


def read_gapped_records(batch: Buffer) -> Iterator[Record]:
    """Yield the records of a whole batch, each with the `offset_delta` stored in it.

    For batches of a compacted view that `check_batch(gaps=True)` or an entry's digest has checked.
    Raises like `read_records`, also when the deltas do not ascend to the header's last delta.
    """
    found = _header_of_whole(batch)
    position, last = 0, -1
    try:
        for record in open_batch(batch):
            delta = record.offset - found.base_offset
            if not last < delta <= found.last_offset_delta:
                raise InvalidBatch(
                    f"record {position} of {found.record_count}: its offset delta is {delta}, "
                    f"after {last} and up to {found.last_offset_delta}"
                )
            yield Record(record.key, record.value, record.headers, record.timestamp, delta)
            position, last = position + 1, delta
    except not_records() as error:
        raise InvalidBatch(f"record {position} of {found.record_count}: {error}") from error
    if position != found.record_count or last != found.last_offset_delta:
        raise InvalidBatch(
            f"record batch announces {found.record_count} records up to offset delta "
            f"{found.last_offset_delta}; {position} up to {last} are there"
        )


def _header_of_whole(batch: Buffer) -> BatchHeader:
    found = read_header(batch)
    if found.total_bytes != len(batch):
        raise InvalidBatch(
            f"record batch claims {found.total_bytes} bytes, {len(batch)} were given"
        )
    return found


def open_batch(batch: Buffer) -> Iterable[Any]:
    """Yield the records as aiokafka's objects, which are fast to make and slow to access twice.

    For a batch that `check_batch` or an entry's digest has checked. Iterating over it raises
    `not_records()` where `read_records` raises `InvalidBatch`.
    """
    found = read_header(batch)
    kind = compression_of(found.attributes & ATTRIBUTE_COMPRESSION)
    opened: Iterable[Any] = _codec().DefaultRecordBatch(
        _unpacked(found, bytes(batch), kind) if kind else bytes(batch)
    )
    return opened


def _unpacked(found: BatchHeader, batch: bytes, kind: Compression) -> bytes:
    """Return the batch without compression. Its checksum is not computed again: it is not used."""
    records = unpack(kind, batch[HEADER_BYTES:])
    plain = found._replace(
        batch_length=found.batch_length + len(records) - (len(batch) - HEADER_BYTES),
        attributes=found.attributes & ~ATTRIBUTE_COMPRESSION,
    )
    return HEADER.pack(*plain) + records


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition of `key` among `partitions`, the same as in Kafka's Java client."""
    if len(key) <= _KEY_BYTES_REMEMBERED_MAX:
        return _remembered_hash(key) % partitions
    return (murmur2(key) & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=_KEYS_REMEMBERED_MAX)
def _remembered_hash(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits, with Kafka's seed, unsigned (Kafka's `Utils.murmur2`)."""
    length = len(data)
    mixed = 0x9747B28C ^ length
    for word in struct.unpack_from(f"<{length >> 2}I", data):
        k = word * 0x5BD1E995 & 0xFFFFFFFF
        k = (k ^ k >> 24) * 0x5BD1E995 & 0xFFFFFFFF
        mixed = (mixed * 0x5BD1E995 & 0xFFFFFFFF) ^ k
    if rest := length & 3:
        mixed ^= int.from_bytes(data[length - rest :], "little")
        mixed = mixed * 0x5BD1E995 & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return mixed ^ mixed >> 15
