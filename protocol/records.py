"""Encode and decode the records of a RecordBatch v2, and choose the partition of a key.

A batch is built once and never rebuilt. `aiokafka.record` does the work for each record, but packed
batches are unpacked here: its snappy reader never ends on a block of negative length. Spec:
docs/formats/record_batch.md.
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
    resealed,
    sealed,
    with_base_offset,
)
from octavo.protocol.calendar import NO_TIME_MS
from octavo.protocol.compression import Compression, compression_of, unpack
from octavo.protocol.due import is_delayed
from octavo.protocol.entry import Buffer

_UNLIMITED = 2**31 - 1
RECORD_OVERHEAD_BYTES = 16
"""Approximate bytes of a record in addition to `record_bytes`."""
_LATER_MS = 2
"""Times shifted by this make the builder treat -1 like any other time."""
_NO_HEADERS: list[tuple[str, bytes | None]] = []
_KEY_BYTES_REMEMBERED_MAX = 64
_KEYS_REMEMBERED_MAX = 65_536


@cache
def _codec() -> Any:
    """Import the codec on first use: the import takes long, and some clients never need it."""
    from aiokafka.record import default_records

    return default_records


@cache
def not_records() -> tuple[type[Exception], ...]:
    """Return what `open_batch` raises if the records contradict header or lengths."""
    from aiokafka.errors import CorruptRecordException

    return (CorruptRecordException, ValueError)


class Record(NamedTuple):
    """`timestamp_ms`: since 1970, UTC. `offset_delta`: from the batch's base.

    `headers` are in the producer's order; names may repeat.
    """

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = 0
    offset_delta: int = 0


def record_bytes(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """Return the size that `MESSAGE_BYTES_MAX` bounds."""
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
    """Encode a batch; `offset_delta` is ignored.

    Raises `InvalidBatch` if there are no records, `UnsupportedCompression`.
    """
    kind = compression_of(compression)
    builder = _codec().DefaultRecordBatchBuilder(
        MAGIC, kind, 0, producer_id, producer_epoch, base_sequence, _UNLIMITED
    )
    append = builder.append
    position, delayed, later_ms = -1, False, 0
    for position, (key, value, headers, timestamp_ms, _) in enumerate(records):
        if position == 0 and timestamp_ms == NO_TIME_MS:
            later_ms = _LATER_MS  # else the first record would get the second's time
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
    """Build a batch with the offsets `base_offset + offset_delta`, ascending.

    For compacted ledgers and forks; clients may not publish gaps.
    """
    batch, later_ms = _built_with_gaps(records, compression_of(compression))
    return with_base_offset(_earlier(batch, later_ms) if later_ms else batch, base_offset)


def rebuilt_batch(header: BatchHeader, records: Iterable[Record]) -> bytes:
    """Build the uncompressed batch that has this header, except for length and checksum, and these
    records. Raises `InvalidBatch` when there are no records, or their offset deltas do not ascend.
    """
    batch, _ = _built_with_gaps(records, Compression.NONE)
    return resealed(header, batch)


def _built_with_gaps(records: Iterable[Record], kind: Compression) -> tuple[bytearray, int]:
    """Return a batch with base offset 0, and by how much its times are too late."""
    builder = _codec().DefaultRecordBatchBuilder(MAGIC, kind, 0, NO_PRODUCER, -1, -1, _UNLIMITED)
    append = builder.append
    last, later_ms = -1, 0
    for key, value, headers, timestamp_ms, delta in records:
        if delta <= last:
            raise InvalidBatch(f"offset delta {delta} follows {last}; they must ascend")
        if last < 0 and timestamp_ms == NO_TIME_MS:
            later_ms = _LATER_MS  # else the first record would get the second's time
        last = delta
        given = list(headers) if headers else _NO_HEADERS
        append(delta, timestamp_ms + later_ms, key, value, given)
    if last < 0:
        raise InvalidBatch("a record batch has at least one record, got none")
    return bytearray(builder.build()), later_ms


def _marked(batch: bytes, attribute: int) -> bytes:
    header = read_header(batch)
    marked = header._replace(attributes=header.attributes | attribute)
    return sealed(marked, memoryview(batch)[HEADER_BYTES:])


def front_of_batch(batch: Buffer, count: int) -> bytes:
    """Return the first `count` records without the producer, for a fork that ends in a batch."""
    attributes = read_header(batch).attributes
    kind = attributes & ATTRIBUTE_COMPRESSION
    front = build_gapped_batch(islice(read_records(batch), count), 0, compression=kind)
    delayed = attributes & ATTRIBUTE_DELAYED
    return _marked(front, delayed) if delayed else front


def _earlier(batch: Buffer, by_ms: int) -> bytes:
    """Move the batch's times; the records' times are relative to them."""
    header = read_header(batch)
    moved = header._replace(
        first_timestamp=header.first_timestamp - by_ms, max_timestamp=header.max_timestamp - by_ms
    )
    return sealed(moved, memoryview(batch)[HEADER_BYTES:])


def read_records(batch: Buffer) -> Iterator[Record]:
    """Yield the records of a batch that `batch.check_batch` has checked.

    `offset_delta` is the position: with gaps, use `read_gapped_records`. Raises `InvalidBatch` and
    `UnsupportedCompression`.
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
    """Yield the records, each with its stored `offset_delta`.

    Raises like `read_records`, also if the deltas do not ascend to the header's last delta.
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
    """Yield aiokafka's records, which are fast to make and slow to access twice.

    Iteration raises `not_records()` where `read_records` raises `InvalidBatch`.
    """
    found = read_header(batch)
    kind = compression_of(found.attributes & ATTRIBUTE_COMPRESSION)
    opened: Iterable[Any] = _codec().DefaultRecordBatch(
        _unpacked(found, bytes(batch), kind) if kind else bytes(batch)
    )
    return opened


def _unpacked(found: BatchHeader, batch: bytes, kind: Compression) -> bytes:
    records = unpack(kind, batch[HEADER_BYTES:])
    plain = found._replace(
        batch_length=found.batch_length + len(records) - (len(batch) - HEADER_BYTES),
        attributes=found.attributes & ~ATTRIBUTE_COMPRESSION,
    )
    return HEADER.pack(*plain) + records


def partition_for(key: bytes, partitions: int) -> int:
    if len(key) <= _KEY_BYTES_REMEMBERED_MAX:
        return _remembered_hash(key) % partitions
    return (murmur2(key) & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=_KEYS_REMEMBERED_MAX)
def _remembered_hash(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Hash as Kafka's `Utils.murmur2`: 32 bits, unsigned."""
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
