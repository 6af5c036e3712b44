"""Kafka record batches with false fields."""

from __future__ import annotations

import gzip
import struct

import cramjam
import crc32c

from octavo.protocol.batch import HEADER, HEADER_BYTES, read_header
from octavo.protocol.records import Record, build_batch

GOOD = build_batch([Record(b"k", b"v", (), 1), Record(None, None, (), 2)])


def signed(batch: bytes) -> bytes:
    """Add a fitting checksum, so that only the content is wrong."""
    crc = crc32c.crc32c(batch[21:])
    return batch[:17] + struct.pack(">I", crc) + batch[21:]


def header(body: bytes = GOOD[HEADER_BYTES:], **changes: int) -> bytes:
    changed = read_header(GOOD)._replace(**changes)
    if "batch_length" not in changes:
        changed = changed._replace(batch_length=HEADER_BYTES - 12 + len(body))
    return signed(HEADER.pack(*changed) + body)


def _packed(data: bytes, kind: int) -> bytes:
    return bytes({3: cramjam.lz4, 4: cramjam.zstd}[kind].compress(data))


TWO = GOOD[HEADER_BYTES:]
MILLION = {"record_count": 1_000_000, "last_offset_delta": 999_999}
WRONG_BATCHES: list[tuple[str, bytes]] = [
    ("a head alone", GOOD[:HEADER_BYTES]),
    ("cut off", GOOD[:-1]),
    ("one byte more", GOOD + b"\0"),
    ("a bit flipped", GOOD[:-1] + bytes([GOOD[-1] ^ 1])),
    ("an older format", GOOD[:16] + b"\1" + GOOD[17:]),
    ("a length below zero", GOOD[:8] + struct.pack(">i", -5) + GOOD[12:]),
    ("a length without measure", GOOD[:8] + struct.pack(">i", 2**31 - 1) + GOOD[12:]),
    ("no records", header(record_count=0, last_offset_delta=-1)),
    ("records below zero", header(record_count=-2, last_offset_delta=-3)),
    ("a million records in two", header(record_count=1_000_000, last_offset_delta=999_999)),
    ("a last one that is not the last", header(last_offset_delta=5)),
    ("a compression that is none", header(attributes=6)),
    ("a transaction's", header(attributes=16)),
    ("a control batch", header(attributes=32)),
    ("a producer without its epoch", header(producer_id=5, producer_epoch=-1)),
    ("a million in five bytes", header(b"\xff\xff\xff\xff\x0f", **MILLION, attributes=2)),
    ("a million in two, by gzip", header(gzip.compress(TWO), **MILLION, attributes=1)),
    ("a million in two, by zstd", header(_packed(TWO, 4), **MILLION, attributes=4)),
    ("one in two", header(gzip.compress(TWO), record_count=1, last_offset_delta=0, attributes=1)),
    ("numbers that do not count up", header(gzip.compress(TWO[: len(TWO) // 2] * 2),
     attributes=1)),
    ("packed by another", header(gzip.compress(TWO), attributes=3)),
    ("packed and cut off", header(gzip.compress(TWO)[:-5], attributes=1)),
    ("gigabytes of gzip", header(gzip.compress(bytes(200_000_000), 1), **MILLION, attributes=1)),
    ("gigabytes of lz4", header(_packed(bytes(200_000_000), 3), **MILLION, attributes=3)),
    ("gigabytes of zstd", header(_packed(bytes(200_000_000), 4), **MILLION, attributes=4)),
    ("snappy's length of four gigabytes", header(b"\xff\xff\xff\xff\x0f" + bytes(9),
     attributes=2)),
    ("a snappy block without end", header(b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, -4),
     attributes=2)),
    ("a sequence below zero", header(producer_id=5, producer_epoch=0, base_sequence=-7)),
]  # fmt: skip
