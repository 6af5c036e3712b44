"""Record batches of Kafka that are not what they say."""

from __future__ import annotations

import struct

import crc32c

from protocol.batch import HEADER, HEADER_BYTES, read_header
from protocol.records import Record, build_batch

GOOD = build_batch([Record(b"k", b"v", (), 1), Record(None, None, (), 2)])


def signed(batch: bytes) -> bytes:
    """With a checksum that fits: only the contents are wrong."""
    crc = crc32c.crc32c(batch[21:])
    return batch[:17] + struct.pack(">I", crc) + batch[21:]


def header(body: bytes = GOOD[HEADER_BYTES:], **changes: int) -> bytes:
    """The good batch with another header, and a length and a checksum that fit."""
    changed = read_header(GOOD)._replace(**changes)
    if "batch_length" not in changes:
        changed = changed._replace(batch_length=HEADER_BYTES - 12 + len(body))
    return signed(HEADER.pack(*changed) + body)


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
    ("a sequence below zero", header(producer_id=5, producer_epoch=0, base_sequence=-7)),
]
