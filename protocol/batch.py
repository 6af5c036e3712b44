"""The 61-byte header of a Kafka RecordBatch v2: check it, read it, set the base offset.

Octavo writes only `base_offset` and `partition_leader_epoch`, which the checksum does not cover.
Spec: docs/formats/record_batch.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from octavo.protocol.checksum import crc32c
from octavo.protocol.codes import KafkaCode, OctavoError
from octavo.protocol.entry import Buffer
from octavo.protocol.limits import BATCH_RECORDS_MAX, ENTRY_PAYLOAD_BYTES_MAX

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
assert HEADER_BYTES == 61
_OFFSET_AND_EPOCH = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_LENGTH_FROM = 12
"""`batch_length` counts the bytes after itself."""
_CRC_FROM = 21
"""The checksum covers all from `attributes` on."""
_RECORD_MIN = 7
MAGIC = 2
NO_PRODUCER = -1

ATTRIBUTE_COMPRESSION = 0x07
ATTRIBUTE_TRANSACTIONAL = 0x10
ATTRIBUTE_CONTROL = 0x20
ATTRIBUTE_DELAYED = 0x0400
"""Octavo's, a bit that Kafka does not use: some message has a due time."""


class InvalidBatch(OctavoError):
    """The message says what is wrong."""

    name = "invalid-batch"
    http_status = 422
    kafka = KafkaCode.INVALID_RECORD


class BatchHeader(NamedTuple):
    """Times are milliseconds since 1970, UTC."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def total_bytes(self) -> int:
        return _LENGTH_FROM + self.batch_length

    @property
    def next_offset(self) -> int:
        """Return the offset after the batch, counted like `base_offset`."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_dense(self) -> bool:
        """Whether the offsets have no gaps, unlike a compacted batch's."""
        return self.last_offset_delta + 1 == self.record_count


def read_header(data: Buffer, start: int = 0) -> BatchHeader:
    """Read the header, without the checksum's check. Raises `InvalidBatch`."""
    if len(data) - start < HEADER_BYTES:
        raise InvalidBatch(
            f"a record batch has at least {HEADER_BYTES} bytes, got {len(data) - start}"
        )
    found = BatchHeader._make(HEADER.unpack_from(data, start))
    if found.magic != MAGIC:
        raise InvalidBatch(f"record batch magic is {found.magic}; only 2 is understood")
    if found.total_bytes < HEADER_BYTES:
        raise InvalidBatch(f"record batch claims {found.total_bytes} bytes, less than its header")
    return found


def check_batch(data: Buffer, start: int = 0, *, gaps: bool = False) -> BatchHeader:
    """Check length, counts and checksum. Raises `InvalidBatch`.

    `gaps`: allowed, as in a compacted batch. Bytes after the batch are not checked.
    """
    found = read_header(data, start)
    end = start + found.total_bytes
    if end > len(data):
        raise InvalidBatch(
            f"record batch claims {found.total_bytes} bytes, only {len(data) - start} are there"
        )
    least = found.last_offset_delta - (found.record_count - 1)
    if found.record_count < 1 or least < 0 or (least and not gaps):
        raise InvalidBatch(
            f"record batch counts {found.record_count} records but its last offset delta is "
            f"{found.last_offset_delta}; it must be count - 1"
        )
    packed_tight = found.attributes & ATTRIBUTE_COMPRESSION
    records_max = BATCH_RECORDS_MAX if packed_tight else (end - start - HEADER_BYTES) // _RECORD_MIN
    if found.record_count > records_max:
        raise InvalidBatch(
            f"record batch counts {found.record_count} records; "
            f"its {found.total_bytes} bytes cannot hold more than {records_max}"
        )
    actual = crc32c(memoryview(data)[start + _CRC_FROM : end])
    if actual != found.crc:
        raise InvalidBatch(
            f"record batch checksum is {found.crc:#010x}, its bytes give {actual:#010x}"
        )
    return found


def split_batches(
    data: Buffer, *, gaps: bool = False, before: int = 0
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the adjacent batches, each checked. Raises `InvalidBatch`.

    `before`: the number of bytes before each batch.
    """
    view = memoryview(data)
    start = before
    while start < len(view):
        found = check_batch(view, start, gaps=gaps)
        yield found, view[start : start + found.total_bytes]
        start += found.total_bytes + before


def whole_batches(data: Buffer, *, before: int = 0) -> int:
    """Return how many bytes of `data`, which is still arriving, are whole batches.

    `before`: the number of bytes before each batch. Raises `InvalidBatch`.
    """
    start = 0
    while len(data) - start >= before + HEADER_BYTES:
        size = read_header(data, start + before).total_bytes
        if size > ENTRY_PAYLOAD_BYTES_MAX:
            raise InvalidBatch(f"record batch claims {size} bytes, more than a batch may have")
        size += before
        if start + size > len(data):
            break
        start += size
    return start


def resealed(header: BatchHeader, batch: bytearray) -> bytes:
    """Return the batch with this header, but with its own length, and a matching checksum."""
    base, _, epoch, magic, _, *others = header
    HEADER.pack_into(batch, 0, base, len(batch) - _LENGTH_FROM, epoch, magic, 0, *others)
    _CRC.pack_into(batch, _CRC_FROM - _CRC.size, crc32c(memoryview(batch)[_CRC_FROM:]))
    return bytes(batch)


def sealed(header: BatchHeader, records: Buffer) -> bytes:
    data = bytearray(HEADER.pack(*header))
    data += records
    crc = crc32c(memoryview(data)[_CRC_FROM:])
    data[: HEADER.size] = HEADER.pack(*header._replace(crc=crc))
    return bytes(data)


def with_base_offset(batch: Buffer, base_offset: int, leader_epoch: int = 0) -> bytes:
    """Return a copy whose checksum stays valid."""
    length = _OFFSET_AND_EPOCH.unpack_from(batch)[1]
    front = _OFFSET_AND_EPOCH.pack(base_offset, length, leader_epoch)
    return b"".join((front, memoryview(batch)[_OFFSET_AND_EPOCH.size :]))
