"""A record that the compiled codec refuses leaves the other records readable."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import codec as codecs
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.operations.batch_proofs import BatchProofs
from octavo.broker.types import StoredBatch
from octavo.ledger.read.open_batch import open_batch
from octavo.protocol.batch import HEADER_BYTES, InvalidBatch, check_batch, read_header, sealed
from octavo.protocol.compression import Compression
from octavo.protocol.odd_records import ERROR_HEADER, parse
from octavo.protocol.records import Record, build_batch
from octavo.protocol.windows import BatchWindows, all_records

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
