"""Records in and out of batches, all compressions, hostile content, and Kafka's partitions."""

from __future__ import annotations

import gzip
import struct

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.protocol import compression
from octavo.protocol.batch import HEADER, HEADER_BYTES, BatchHeader, InvalidBatch, check_batch
from octavo.protocol.compression import Compression, UnsupportedCompression, unpack
from octavo.protocol.records import Record, build_batch, murmur2, partition_for, read_records
from tests.support.kit.examples import examples

some_bytes = st.none() | st.binary(max_size=50)
headers = st.lists(st.tuples(st.text(max_size=8), some_bytes), max_size=3)
one_record = st.builds(Record, some_bytes, some_bytes, headers, st.integers(0, 2**45))


def batch_of(records: bytes, count: int, attributes: int = 0) -> bytes:
    """Build a batch with a sound header and checksum over any `records`."""
    header = BatchHeader(
        0, 49 + len(records), -1, 2, 0, attributes, count - 1, 0, 0, -1, -1, -1, count
    )
    whole = HEADER.pack(*header) + records
    return whole[:17] + struct.pack(">I", crc32c(whole[21:])) + whole[21:]


@given(st.lists(one_record, min_size=1, max_size=20), st.sampled_from(Compression))
def test_records_come_back(records: list[Record], kind: Compression) -> None:
    batch = build_batch(records, compression=kind)
    header = check_batch(batch)
    assert header.record_count == len(records)
    assert header.max_timestamp == max(record.timestamp_ms for record in records)
    wanted = [record._replace(offset_delta=at) for at, record in enumerate(records)]
    assert list(read_records(batch)) == wanted
    assert list(read_records(memoryview(bytearray(batch)))) == wanted


@pytest.mark.parametrize("kind", list(Compression)[1:])
def test_what_shrinks_is_packed(kind: Compression) -> None:
    records = [Record(b"key", b"the same again and again", (), 5)] * 20_000
    batch = build_batch(records, compression=kind)
    assert check_batch(batch).attributes == kind
    assert len(batch) < 20_000 * len(RECORD) + 1000
    assert sum(1 for record in read_records(batch) if record.value) == 20_000


def test_a_batch_has_a_record() -> None:
    with pytest.raises(InvalidBatch, match="at least one record"):
        build_batch([])


def test_empty_and_missing_are_two_things() -> None:
    records = [Record(None, None), Record(b"", b""), Record(b"k", None, [("h", None), ("h", b"")])]
    found = list(read_records(build_batch(records)))
    assert [record[:3] for record in found] == [
        (None, None, []),
        (b"", b"", []),
        (b"k", None, [("h", None), ("h", b"")]),
    ]


def test_batches_are_read_alone() -> None:
    batch = build_batch([Record(b"k", b"v")])
    with pytest.raises(InvalidBatch, match="were given"):
        list(read_records(batch + batch))


@pytest.mark.parametrize("number", [5, 6, 7])
def test_unknown_compressions(number: int) -> None:
    with pytest.raises(UnsupportedCompression, match=f"compression {number} is not one of 0"):
        build_batch([Record(b"k", b"v")], compression=number)
    with pytest.raises(UnsupportedCompression, match=r"4 \(zstd\)"):
        list(read_records(batch_of(b"\0" * 20, 1, number)))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = build_batch([Record(None, b"a" * 1000)], compression=Compression.LZ4)
    monkeypatch.setattr(compression, "cramjam", None)
    with pytest.raises(UnsupportedCompression, match="lz4 compression needs the package cramjam"):
        list(read_records(batch))
    with pytest.raises(UnsupportedCompression, match="zstd compression needs"):
        build_batch([Record(None, b"a")], compression=Compression.ZSTD)
    assert build_batch([Record(None, b"a")], compression=Compression.GZIP)


RECORD = bytes.fromhex("0c 00 00 00 01 01 00")  # no key, no value, no headers


@pytest.mark.parametrize(
    "records",
    [
        b"",
        RECORD[:-1],
        RECORD + b"\0",
        bytes.fromhex("0e 00 00 00 01 01 00"),  # one byte longer than it is
        bytes.fromhex("0c 00 00 00 7e 01 00"),  # a key of 63 bytes
        bytes.fromhex("0c 00 00 00 01 7e 00"),  # a value of 63 bytes
        bytes.fromhex("0c 00 00 00 01 01 7e"),  # 63 headers
        bytes.fromhex("0c 00 00 00 01 01 01"),  # −1 headers
        bytes.fromhex("12 00 00 00 01 01 02 02ff 00"),  # a header name that is not UTF-8
        b"\xff" * 20,
    ],
)
def test_records_that_break_their_promises(records: bytes) -> None:
    with pytest.raises(InvalidBatch, match=r"record [01] of 1"):
        list(read_records(batch_of(records, 1)))


@pytest.mark.parametrize("kind", list(Compression)[1:])
def test_damaged_packing(kind: Compression) -> None:
    for data in (b"", b"garbage that nobody packed"):
        with pytest.raises(InvalidBatch):
            unpack(kind, data)
    packed = check_and_cut(kind)
    for end in range(0, len(packed), max(1, len(packed) // 50)):
        with pytest.raises(InvalidBatch):
            list(read_records(batch_of(packed[:end], 2000, kind)))


def check_and_cut(kind: Compression) -> bytes:
    """Return the packed records of a sound batch."""
    batch = build_batch([Record(b"key", b"value")] * 2000, compression=kind)
    assert check_batch(batch).attributes == kind
    return batch[HEADER_BYTES:]


@pytest.mark.parametrize(
    ("kind", "packed"),
    [
        # Without a time in it, which would give the test another name in each process.
        (Compression.GZIP, gzip.compress(bytes(3_000_000), mtime=0)),
        (Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(bytes(3_000_000)))),
        (Compression.LZ4, bytes(cramjam.lz4.compress(bytes(3_000_000)))),
        (Compression.ZSTD, bytes(cramjam.zstd.compress(bytes(3_000_000)))),
    ],
    ids=["gzip", "snappy", "lz4", "zstd"],
)
def test_a_bomb_does_not_go_off(kind: Compression, packed: bytes) -> None:
    assert len(packed) < 150_000
    assert unpack(kind, packed, 3_000_000) == bytes(3_000_000)
    with pytest.raises(InvalidBatch, match="more than"):
        unpack(kind, packed, 2_999_999)


def test_a_snappy_block_of_negative_length_ends() -> None:
    """aiokafka 0.14 loops for ever on it."""
    xerial = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    with pytest.raises(InvalidBatch, match="end within a block"):
        unpack(Compression.SNAPPY, xerial + struct.pack(">i", -4))
    block = bytes(cramjam.snappy.compress_raw(b"ab"))
    sound = xerial + (struct.pack(">I", len(block)) + block) * 2
    assert unpack(Compression.SNAPPY, sound) == b"abab"
    with pytest.raises(InvalidBatch, match="more than"):
        unpack(Compression.SNAPPY, sound, 3)


@settings(max_examples=examples(400))
@given(st.binary(max_size=120), st.integers(1, 50), st.sampled_from(Compression))
def test_arbitrary_records_raise_nothing_else(data: bytes, count: int, kind: Compression) -> None:
    try:
        found = list(read_records(batch_of(data, count, kind)))
    except InvalidBatch:
        return
    assert len(found) == count


@settings(max_examples=examples(400))
@given(st.data())
def test_damaged_records_raise_nothing_else(data: st.DataObject) -> None:
    sound = [Record(b"key", b"value", [("name", b"x")], 7), Record(None, b"v" * 20)]
    records = bytearray(build_batch(sound)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = list(read_records(batch_of(bytes(records), 2)))
    except InvalidBatch:
        return
    assert [record.offset_delta for record in found] == [0, 1]


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        # From Kafka's clients' UtilsTest.testMurmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, wanted: int) -> None:
    assert murmur2(key) == wanted % 2**32
    assert partition_for(key, 7) == (wanted & 0x7FFFFFFF) % 7


@given(st.binary(max_size=200), st.integers(1, 1000))
def test_partitions_are_in_range_and_stay(key: bytes, partitions: int) -> None:
    found = partition_for(key, partitions)
    assert 0 <= found < partitions
    assert found == (murmur2(key) & 0x7FFFFFFF) % partitions
