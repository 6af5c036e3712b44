"""Record batches: records, headers, times, damage."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import cramjam
import pytest
from aiokafka import codec as codecs
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.operations.batch_proofs import BatchProofs
from octavo.broker.types import StoredBatch
from octavo.cli.consume import plain_message
from octavo.cli.ledger import _time
from octavo.client.types import Message
from octavo.ledger.read.entry_source import DISORDER_UNKNOWN
from octavo.ledger.read.open_batch import open_batch
from octavo.ledger.read.time_search import offset_as_new_as
from octavo.protocol import compression
from octavo.protocol.append_time import (
    SPAN_MS,
    Appended,
    Times,
    readable,
    shown,
    stamp_of,
    stamped,
    time_of,
)
from octavo.protocol.batch import (
    ATTRIBUTE_DELAYED,
    HEADER,
    HEADER_BYTES,
    BatchHeader,
    InvalidBatch,
    check_batch,
    read_header,
    sealed,
    split_batches,
    with_base_offset,
)
from octavo.protocol.calendar import in_calendar, iso_of
from octavo.protocol.compression import Compression, UnsupportedCompression, unpack
from octavo.protocol.due import DELIVER_AT, DUE_MS_MAX, due_header, due_of
from octavo.protocol.limits import BATCH_RECORDS_MAX, TIMESTAMP_MS_MAX
from octavo.protocol.odd_records import ERROR_HEADER, parse
from octavo.protocol.records import (
    Record,
    build_batch,
    build_gapped_batch,
    murmur2,
    partition_for,
    read_records,
)
from octavo.protocol.windows import BatchWindows, all_records
from octavo.spark.arrow import ArrowBuilder
from octavo.spark.batches import StoredBatch as SparkBatch
from tests.support.kit.examples import examples

some_bytes = st.none() | st.binary(max_size=50)
headers = st.lists(st.tuples(st.text(max_size=8), some_bytes), max_size=3)
one_record = st.builds(Record, some_bytes, some_bytes, headers, st.integers(0, 2**45))


def batch_of(records: bytes, count: int, attributes: int = 0) -> bytes:
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


# The batch header: each kind of wrong batch, by name.
RECORDS = [Record(b"k", b"value %d" % at, (), 1_000 + at) for at in range(5)]
BATCH = build_batch(RECORDS, producer_id=77, producer_epoch=3, base_sequence=100)


def remade(batch: bytes, **fields: int) -> bytes:
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


# A record that the compiled codec refuses leaves the other records readable.
PLACE = b"@@name@@"
PACK: dict[int, Callable[[bytes], bytes]] = {
    Compression.GZIP: codecs.gzip_encode,
    Compression.SNAPPY: codecs.snappy_encode,
    Compression.LZ4: codecs.lz4_encode,
    Compression.ZSTD: codecs.zstd_encode,
}


def odd_batch(kind: int = 0, *, put: bytes = b"caf\xe9 au ", count: int = 5, at: int = 2) -> bytes:
    """Message `at` has a header whose name is no UTF-8."""
    records = [
        Record(b"k", b"v%d" % n, [(PLACE.decode(), b"x")] if n == at else [], 1000 + n)
        for n in range(count)
    ]
    plain = build_batch(records)
    body = plain[HEADER_BYTES:].replace(PLACE, put)
    header = read_header(plain)
    if kind:
        body = PACK[kind](body)
        header = header._replace(
            attributes=header.attributes | kind, batch_length=HEADER_BYTES - 12 + len(body)
        )
    return sealed(header, body)


KINDS = [0, *PACK]


async def take_all(batch: bytes) -> list[Record]:
    windows = await open_batch(batch)
    return [one for _, some in windows.following(0, marked=True) for one in some]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_odd_header_name_is_shown_by_its_bytes(kind: int) -> None:
    batch = odd_batch(kind)
    found = await take_all(batch)
    assert [one.value for one in found] == [b"v0", b"v1", b"v2", b"v3", b"v4"]
    assert [one.timestamp_ms for one in found] == [1000, 1001, 1002, 1003, 1004]
    assert list(found[2].headers) == [("caf\\xe9 au ", b"x")]
    assert [(one.value, one.offset) for one in all_records(batch)] == [
        (b"v%d" % n, n) for n in range(5)
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_packed_or_not_the_door_says_the_same(kind: int) -> None:
    async def hold(size: int) -> None:
        pass

    for count in (5, 5000):
        batch = odd_batch(kind, count=count)
        check_batch(batch)
        await BatchProofs().prove(read_header(batch), batch, "p", hold)


async def test_a_damaged_record_alone_is_marked() -> None:
    """Its first field claims more than the record has."""
    plain = build_batch([Record(b"key%d" % n, b"v%d" % n, [], n) for n in range(5)])
    body = bytearray(plain[HEADER_BYTES:])
    at = body.index(b"key2")
    body[at - 1] = 126
    batch = sealed(read_header(plain), bytes(body))
    with pytest.raises(InvalidBatch, match="record 2 of 5"):
        (await open_batch(batch)).window(0)
    stored = StoredBatch(0, 1, 0, read_header(batch), batch)
    async with OpenBatches(1 << 20).readable(stored) as readable:
        await readable.turn_to(0)
        found: list[Any] = [readable[n] for n in range(5)]
    assert [one.value for one in found] == [b"v0", b"v1", None, b"v3", b"v4"]
    assert [name for name, _ in found[2].headers] == [ERROR_HEADER]
    assert (await open_batch(batch)).keys(0) == [b"key0", b"key1", None, b"key3", b"key4"]
    assert [one.value for one in all_records(batch)] == [b"v0", b"v1", None, b"v3", b"v4"]


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=200),
            st.none() | st.binary(max_size=200),
            st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9))),
            st.integers(0, 2**50),
        ),
        min_size=1,
        max_size=9,
    )
)
def test_it_reads_what_the_compiled_codec_reads(drawn: list[Any]) -> None:
    batch = build_batch([Record(*one) for one in drawn])
    windows = BatchWindows(read_header(batch), batch, HEADER_BYTES)
    while windows.step():
        pass
    found = list(windows.marked())
    assert [(one.key, one.value, one.headers, one.timestamp) for one in found] == [
        (one.key, one.value, one.headers, one.timestamp) for one in all_records(batch)
    ]


@pytest.mark.parametrize("seed", range(200))
def test_noise_is_one_declared_error(seed: int) -> None:
    rng = random.Random(seed)
    batch = bytearray(odd_batch(at=0, count=1))
    data = bytes(batch[HEADER_BYTES:])
    noisy = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        noisy[rng.randrange(len(noisy))] = rng.randrange(256)
    try:
        parse(bytes(noisy), 0, len(noisy), read_header(batch))
    except ValueError:
        return


# Append times in 31 bits: stamped, restored, sent along with batches on the wire.
NOW = 1_790_000_000_000
TIMES = st.integers(0, 2**45)
STAMPED = build_batch([Record(b"k", b"v", (), 5), Record(None, b"w", (), 7)])


@given(TIMES, st.integers(0, SPAN_MS - 1))
def test_a_stamp_is_made_whole_by_any_time_less_than_its_span_before(time_ms: int, by: int) -> None:
    assert 1 <= stamp_of(time_ms) <= 2**31 - 1, "never 0 or −1, and it fits"
    assert time_of(stamp_of(time_ms), time_ms - by) == time_ms


def test_the_checksum_holds_with_a_stamp_and_readers_see_the_append_time() -> None:
    stored = with_base_offset(STAMPED, 40, stamp_of(NOW))
    header = shown(check_batch(stored), Appended(NOW - 10))
    assert (header.first_timestamp, header.max_timestamp) == (NOW, NOW)
    assert [one.timestamp_ms for one in read_records(readable(header, stored))] == [NOW, NOW]
    assert [one.timestamp_ms for one in read_records(stored)] == [5, 7], "the producer's, as stored"


def test_what_has_no_append_time_stays_as_it_is() -> None:
    header = read_header(with_base_offset(STAMPED, 0, 9))
    assert shown(header, None) == header._replace(partition_leader_epoch=0)
    for none in (0, -1):
        header = read_header(with_base_offset(STAMPED, 0, none))
        assert shown(header, Appended(NOW)) == header
        assert Times().shown(header) == header
        assert readable(header, STAMPED) is STAMPED


def test_what_joined_whole_has_the_time_at_which_it_joined() -> None:
    header = shown(read_header(STAMPED), Appended(NOW, together=True))
    assert header.max_timestamp == NOW
    assert header.partition_leader_epoch == stamp_of(NOW)


@given(st.lists(st.one_of(st.none(), TIMES), max_size=12))
def test_the_wire_tells_every_time(times: list[int | None]) -> None:
    """Also when they go back, or are years apart, and where batches without one lie between."""
    plain = [read_header(with_base_offset(STAMPED, 10 * n)) for n in range(len(times))]
    sent = [
        one if time_ms is None else stamped(one, time_ms)
        for one, time_ms in zip(plain, times, strict=True)
    ]
    told = Times(Times().tell(sent))
    served = [
        one._replace(partition_leader_epoch=there.partition_leader_epoch)
        for one, there in zip(plain, sent, strict=True)
    ]
    assert [told.shown(one) for one in served] == sent


def test_one_pair_tells_of_all_that_come_within_weeks() -> None:
    heads = [read_header(with_base_offset(STAMPED, n)) for n in range(3)]
    sent = [stamped(one, NOW + n * (SPAN_MS - 1)) for n, one in enumerate(heads)]
    assert Times().tell(sent) == f"0={NOW}"
    assert Times().tell([*sent, stamped(heads[2], NOW)]) == f"0={NOW},2={NOW}"
    assert Times().tell(heads) == ""


@pytest.mark.parametrize("told", ["x", "1", "1=", "=1", "1=2,", "1=x"])
def test_a_header_that_makes_no_sense_is_refused(told: str) -> None:
    with pytest.raises(InvalidBatch, match=r"Octavo-Append-Time: .* is not offset=milliseconds"):
        Times(told)


def test_a_stamp_of_which_nothing_is_told_is_refused() -> None:
    with pytest.raises(InvalidBatch, match="offset 4 has an append time, but no header"):
        Times("5=1").shown(read_header(with_base_offset(STAMPED, 4, 1)))


# A stored time becomes a date only if a calendar has it (decision 63).
NOW_MS = 1_764_000_000_000
ODD = [-1, -5, NOW_MS * 1_000, NOW_MS * 1_000_000, 2**63 - 1, -(2**63), TIMESTAMP_MS_MAX + 1]


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_number_is_a_date_or_none(time_ms: int) -> None:
    assert (iso_of(time_ms) is not None) == in_calendar(time_ms)
    assert _time(time_ms) is not None


def test_the_ends_of_the_calendar() -> None:
    assert iso_of(0) == "1970-01-01T00:00:00+00:00"
    assert str(iso_of(TIMESTAMP_MS_MAX)).startswith("9999-12-31T23:59:59.999")


@pytest.mark.parametrize("time_ms", ODD)
def test_consume_shows_the_number(time_ms: int) -> None:
    found = plain_message(Message(0, 7, "1:2:3", None, b"x", (), time_ms))
    assert (found["time"], found["timestamp"]) == (None, time_ms)


def test_consume_shows_a_date() -> None:
    found = plain_message(Message(0, 7, "1:2:3", None, b"x", (), NOW_MS))
    assert found["time"] == "2025-11-24T16:00:00+00:00"
    assert "timestamp" not in found


def test_spark_reads_null_and_keeps_the_number() -> None:
    times = [NOW_MS, -1, NOW_MS * 1_000, NOW_MS * 1_000_000, -5, TIMESTAMP_MS_MAX]
    batch = build_batch([Record(None, b"x", (), time_ms) for time_ms in times])
    builder = ArrowBuilder(("timestamp", "timestampMillis"))
    builder.add(SparkBatch("public/t", 0, 1, 0, 0, read_header(batch), batch), 0, len(times))
    found = builder.take()
    assert found.column("timestampMillis").to_pylist() == times
    dates = found.column("timestamp").cast("int64").to_pylist()
    assert dates == [NOW_MS * 1_000, None, None, None, None, TIMESTAMP_MS_MAX * 1_000]


@given(st.lists(st.sampled_from([-1, 0, -5, NOW_MS, NOW_MS * 1_000, NOW_MS * 10**6]), min_size=1))
def test_a_batch_is_built_with_the_times_that_were_given(times: list[int]) -> None:
    """A first record without a time got the time of the next one."""
    records = [Record(None, b"x", (), time_ms, n) for n, time_ms in enumerate(times)]
    for batch in (build_batch(records), build_gapped_batch(records, 0)):
        assert [one.timestamp_ms for one in read_records(batch)] == times
        check_batch(batch)


async def test_a_time_is_looked_up_beside_those_that_are_none() -> None:
    batch = build_batch(
        [Record(None, b"x", (), t) for t in (NOW_MS * 1_000, NOW_MS - 5, 2**62, NOW_MS, NOW_MS)]
    )

    class Source:
        async def as_new_as(self, time_ms: int, start: int, *_: Any) -> Any:
            return SimpleNamespace(entry_id=0, payload=batch) if start == 0 else None

    @asynccontextmanager
    async def opening(given: Any) -> Any:
        yield await open_batch(given)

    source: Any = Source()
    opener: Any = opening
    found = await offset_as_new_as(source, NOW_MS, 0, DISORDER_UNKNOWN, opener)
    assert found == 3
    assert await offset_as_new_as(source, NOW_MS + 1, 0, DISORDER_UNKNOWN, opener) is None


# The due time of a message: the header, and the bit of its batch.
@pytest.mark.parametrize(
    ("value", "due_ms"),
    [
        (b"0", 0),
        (b"1700000000000", 1_700_000_000_000),
        (b"9" * 15, DUE_MS_MAX),
        (b"9" * 16, None),
        (b"", None),
        (None, None),
        (b"-1", None),
        (b"soon", None),
        ("\u0663".encode(), None),
    ],
)
def test_what_is_a_due_time(value: bytes | None, due_ms: int | None) -> None:
    assert due_of([("a", b"1"), (DELIVER_AT, value)]) == due_ms


def test_the_last_header_counts() -> None:
    assert due_of([due_header(5), due_header(7)]) == 7
    assert due_of([]) is None


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_a_batch_says_that_somebody_waits(compression: Compression) -> None:
    late = Record(b"k", b"v", [("x", b"y"), due_header(7)], 3, 1)
    first = Record(b"k", b"v", [("x", b"y")], 2, 0)
    assert not check_batch(build_batch([first])).attributes & ATTRIBUTE_DELAYED
    batch = build_batch([first, late], compression=compression, producer_id=3, producer_epoch=0,
                        base_sequence=1)  # fmt: skip
    assert check_batch(batch).attributes == ATTRIBUTE_DELAYED | compression
    assert list(read_records(batch)) == [first, late]
