"""Entries and explicit LACs: digests against known vectors, and the effect of damage."""

from __future__ import annotations

import hashlib
import hmac
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.protocol.codes import DigestMismatch
from octavo.protocol.entry import (
    HEADER,
    HEADER_BYTES,
    INVALID_ENTRY_ID,
    DigestType,
    digest_for,
    master_key,
    pack_entry,
    unpack_entry,
)

KINDS = list(DigestType)
SIZES = {DigestType.CRC32: 8, DigestType.HMAC: 20, DigestType.CRC32C: 4, DigestType.DUMMY: 0}
i64 = st.integers(-(2**63), 2**63 - 1)
ids = st.integers(0, 2**63 - 1)


def slow_crc32c(data: bytes) -> int:
    """Compute it bit by bit, from the polynomial: the reference for the C library."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_slow_reference_meets_the_known_vectors() -> None:
    # RFC 3720, B.4
    assert slow_crc32c(b"123456789") == 0xE3069283
    assert slow_crc32c(bytes(32)) == 0x8A9136AA
    assert slow_crc32c(b"\xff" * 32) == 0x62A8AB43
    assert slow_crc32c(bytes(range(32))) == 0x46DD794E


def test_master_keys() -> None:
    assert master_key(b"").hex() == hashlib.sha1(b"ledger").hexdigest()
    assert master_key(b"secret").hex() == hashlib.sha1(b"ledgersecret").hexdigest()


@given(i64, i64, i64, i64, st.binary(max_size=300), st.binary(max_size=20))
def test_digests_are_those_of_their_definitions(
    ledger: int, entry: int, lac: int, length: int, payload: bytes, password: bytes
) -> None:
    header = HEADER.pack(ledger, entry, lac, length)
    whole = header + payload
    mac_key = hashlib.sha1(b"mac" + password).digest()
    wanted = {
        DigestType.CRC32C: slow_crc32c(whole).to_bytes(4, "big"),
        DigestType.CRC32: zlib.crc32(whole).to_bytes(8, "big"),
        DigestType.HMAC: hmac.new(mac_key, whole, hashlib.sha1).digest(),
        DigestType.DUMMY: b"",
    }
    for kind in KINDS:
        digest = digest_for(kind, password)
        assert digest.size == SIZES[kind]
        packed = pack_entry(digest, ledger, entry, lac, length, payload)
        assert packed == header + wanted[kind] + payload


@given(st.sampled_from(KINDS), ids, ids, i64, i64, st.binary(max_size=200))
def test_an_entry_comes_back_whole(
    kind: DigestType, ledger: int, entry: int, lac: int, length: int, payload: bytes
) -> None:
    digest = digest_for(kind, b"pw")
    packed = pack_entry(digest, ledger, entry, lac, length, payload)
    for data in (packed, bytearray(packed), memoryview(b"x" + packed)[1:]):
        assert unpack_entry(digest, ledger, entry, data) == (ledger, entry, lac, length, payload)
        assert unpack_entry(digest, ledger, INVALID_ENTRY_ID, data).entry_id == entry


@pytest.mark.parametrize("kind", [DigestType.CRC32, DigestType.HMAC, DigestType.CRC32C])
def test_every_flipped_bit_and_every_cut_is_seen(kind: DigestType) -> None:
    digest = digest_for(kind, b"pw")
    packed = pack_entry(digest, 5, 6, 4, 70, b"payload")
    for position in range(len(packed)):
        for bit in range(8):
            damaged = bytearray(packed)
            damaged[position] ^= 1 << bit
            with pytest.raises(DigestMismatch):
                unpack_entry(digest, 5, 6, damaged)
            with pytest.raises(DigestMismatch):
                unpack_entry(digest, 5, INVALID_ENTRY_ID, damaged)
    for length in range(len(packed)):
        with pytest.raises(DigestMismatch):
            unpack_entry(digest, 5, 6, packed[:length])
    with pytest.raises(DigestMismatch):
        unpack_entry(digest, 5, 6, packed + b"\0")


def test_another_entry_is_no_answer() -> None:
    digest = digest_for(DigestType.CRC32C, b"")
    packed = pack_entry(digest, 5, 6, 4, 70, b"payload")
    with pytest.raises(DigestMismatch, match="asked for ledger 7 entry 6, got ledger 5 entry 6"):
        unpack_entry(digest, 7, 6, packed)
    with pytest.raises(DigestMismatch, match="asked for ledger 5 entry 8"):
        unpack_entry(digest, 5, 8, packed)


def test_a_wrong_password_breaks_only_hmac() -> None:
    packed = pack_entry(digest_for(DigestType.HMAC, b"one"), 1, 0, -1, 1, b"x")
    with pytest.raises(DigestMismatch, match="digest does not match"):
        unpack_entry(digest_for(DigestType.HMAC, b"two"), 1, 0, packed)
    packed = pack_entry(digest_for(DigestType.CRC32C, b"one"), 1, 0, -1, 1, b"x")
    assert unpack_entry(digest_for(DigestType.CRC32C, b"two"), 1, 0, packed).payload == b"x"


def crc32c_matches(entry: bytes) -> bool:
    header, rest = entry[:HEADER_BYTES], entry[HEADER_BYTES:]
    return rest[:4] == slow_crc32c(header + rest[4:]).to_bytes(4, "big")


@given(st.binary(max_size=120), st.sampled_from(KINDS))
def test_arbitrary_bytes_raise_nothing_else(data: bytes, kind: DigestType) -> None:
    digest = digest_for(kind, b"")
    try:
        found = unpack_entry(digest, 0, INVALID_ENTRY_ID, data)
    except DigestMismatch:
        assert not (kind is DigestType.CRC32C and data[:8] == bytes(8) and crc32c_matches(data))
    else:
        assert pack_entry(digest, *found) == data
