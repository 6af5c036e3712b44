"""The batch header: each kind of wrong batch, by name."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from octavo.protocol.batch import (
    HEADER,
    HEADER_BYTES,
    InvalidBatch,
    check_batch,
    read_header,
    split_batches,
    with_base_offset,
)
from octavo.protocol.compression import Compression
from octavo.protocol.limits import BATCH_RECORDS_MAX
from octavo.protocol.records import Record, build_batch

RECORDS = [Record(b"k", b"value %d" % at, (), 1_000 + at) for at in range(5)]
BATCH = build_batch(RECORDS, producer_id=77, producer_epoch=3, base_sequence=100)


def remade(batch: bytes, **fields: int) -> bytes:
    """Return `batch` with some header fields changed and a fitting checksum."""
    changed = HEADER.pack(*read_header(batch)._replace(**fields)) + batch[HEADER_BYTES:]
    crc = crc32c(changed[21:])
    return changed[:17] + struct.pack(">I", crc) + changed[21:]


def test_a_batch_as_it_should_be() -> None:
    found = check_batch(BATCH)
    assert found.record_count == 5
    assert found.last_offset_delta == 4
    assert found.total_bytes == len(BATCH)
    assert (found.first_timestamp, found.max_timestamp) == (1_000, 1_004)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (77, 3, 100)
    assert remade(BATCH) == BATCH
    assert check_batch(b"front" + BATCH + b"back", 5) == found


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (b"", "at least 61 bytes, got 0"),
        (BATCH[:60], "at least 61 bytes, got 60"),
        (BATCH[:61], f"claims {len(BATCH)} bytes, only 61 are there"),
        (BATCH[:-1], f"only {len(BATCH) - 1} are there"),
        (remade(BATCH, magic=1), "magic is 1"),
        (remade(BATCH, batch_length=48), "claims 60 bytes, less than its header"),
        (remade(BATCH, batch_length=-1), "claims 11 bytes, less than its header"),
        (remade(BATCH, record_count=4), "counts 4 records but its last offset delta is 4"),
        (remade(BATCH, last_offset_delta=5), "last offset delta is 5"),
        (remade(BATCH, record_count=0, last_offset_delta=-1), "counts 0 records"),
        (
            remade(BATCH, record_count=2**31 - 1, last_offset_delta=2**31 - 2),
            "cannot hold more than",
        ),
        (
            remade(
                BATCH,
                attributes=Compression.ZSTD,
                record_count=BATCH_RECORDS_MAX + 1,
                last_offset_delta=BATCH_RECORDS_MAX,
            ),
            "cannot hold more than 1000000",
        ),
        (BATCH[:17] + b"\0\0\0\0" + BATCH[21:], "checksum is 0x00000000, its bytes give"),
    ],
)
def test_a_broken_batch_says_how(broken: bytes, message: str) -> None:
    with pytest.raises(InvalidBatch, match=message):
        check_batch(broken)


def test_every_flipped_bit_but_of_offset_and_epoch_is_seen() -> None:
    for position in range(len(BATCH)):
        for bit in range(8):
            damaged = bytearray(BATCH)
            damaged[position] ^= 1 << bit
            if position < 8 or 12 <= position < 16:
                check_batch(damaged)
            else:
                with pytest.raises(InvalidBatch):
                    check_batch(damaged)


@given(st.integers(0, 2**63 - 1), st.integers(-1, 2**31 - 1))
def test_the_base_offset_is_outside_the_checksum(offset: int, epoch: int) -> None:
    moved = with_base_offset(memoryview(BATCH), offset, epoch)
    found = check_batch(moved)
    assert (found.base_offset, found.partition_leader_epoch) == (offset, epoch)
    assert moved[16:] == BATCH[16:]
    assert moved[8:12] == BATCH[8:12]


def test_batches_back_to_back() -> None:
    other = build_batch([Record(None, None)])
    found = list(split_batches(BATCH + other + BATCH))
    assert [bytes(view) for _, view in found] == [BATCH, other, BATCH]
    assert [header.record_count for header, _ in found] == [5, 1, 5]
    assert list(split_batches(b"")) == []
    with pytest.raises(InvalidBatch):
        list(split_batches(BATCH + other[:-1]))


@given(st.binary(max_size=150))
def test_arbitrary_bytes_raise_nothing_else(data: bytes) -> None:
    for candidate in (data, BATCH[:21] + data, remade(BATCH[:61] + data)):
        try:
            found = check_batch(candidate)
        except InvalidBatch:
            continue
        assert found.total_bytes <= len(candidate)
