"""Entries: digests, sealed payloads."""

from __future__ import annotations

import hashlib
import hmac
import zlib

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from octavo.protocol.codes import DigestMismatch
from octavo.protocol.encrypted import (
    FRONT_BYTES,
    OVERHEAD_BYTES,
    TAG_BYTES,
    VERSION,
    NotSealed,
    looks_sealed,
    seal,
    unseal,
)
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
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX, FRAME_BYTES_MAX

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


# Sealed payloads: the format, a published vector, and everything that must not open.
CIPHER = AESGCM(bytes(range(32)))
WRITER = b"abcd"
IDS = st.integers(0, 2**63 - 1)


@given(payload=st.binary(max_size=300), ledger=IDS, entry=IDS)
def test_what_is_sealed_opens_in_its_place(payload: bytes, ledger: int, entry: int) -> None:
    sealed = seal(CIPHER, WRITER, ledger, entry, payload)
    assert len(sealed) == len(payload) + OVERHEAD_BYTES
    assert sealed[0] == VERSION
    assert sealed[1:FRONT_BYTES] == WRITER + entry.to_bytes(8, "big")
    assert unseal(CIPHER, ledger, entry, memoryview(sealed)) == payload
    assert looks_sealed(sealed)


@given(
    payload=st.binary(max_size=100),
    data=st.data(),
    ledger=st.integers(0, 2**62),
    entry=st.integers(0, 2**62),
)
def test_no_bit_may_change_and_no_byte_be_missing(
    payload: bytes, data: st.DataObject, ledger: int, entry: int
) -> None:
    sealed = bytearray(seal(CIPHER, WRITER, ledger, entry, payload))
    place = data.draw(st.integers(0, len(sealed) - 1))
    cut = bytes(sealed[:place])
    sealed[place] ^= 1 << data.draw(st.integers(0, 7))
    for wrong in (bytes(sealed), cut, bytes(sealed) + b"\0"):
        with pytest.raises(NotSealed):
            unseal(CIPHER, ledger, entry, wrong)


@pytest.mark.parametrize("place", [(8, 5), (7, 6), (6, 5), (7, 5 + (1 << 40))])
def test_an_entry_is_worth_nothing_in_another_place(place: tuple[int, int]) -> None:
    sealed = seal(CIPHER, WRITER, 7, 5, b"the message")
    with pytest.raises(NotSealed, match="not sealed for this entry"):
        unseal(CIPHER, *place, sealed)


def test_another_key_opens_nothing() -> None:
    sealed = seal(CIPHER, WRITER, 7, 5, b"the message")
    with pytest.raises(NotSealed):
        unseal(AESGCM(bytes(32)), 7, 5, sealed)


def test_of_a_wrong_beginning_the_error_says_so() -> None:
    with pytest.raises(NotSealed, match="begins with 0x00"):
        unseal(CIPHER, 7, 5, bytes(100))
    with pytest.raises(NotSealed, match="28 bytes, fewer than the 29"):
        unseal(CIPHER, 7, 5, bytes(28))


def test_the_library_computes_what_the_standard_says() -> None:
    """McGrew and Viega, "The Galois/Counter Mode of Operation", test case 16: AES-256, with
    associated data."""
    key = bytes.fromhex("feffe9928665731c6d6a8f9467308308" * 2)
    nonce = bytes.fromhex("cafebabefacedbaddecaf888")
    plain = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    more = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    wanted = bytes.fromhex(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
        "76fc6ece0f4e1768cddf8853bb2d551b"
    )
    assert AESGCM(key).encrypt(nonce, plain, more) == wanted


def test_the_longest_payload_fits_a_frame_when_it_is_sealed() -> None:
    longest_around = 4 + 4 + 20 + 32 + 20  # frame header, key, entry header, HMAC
    assert longest_around + ENTRY_PAYLOAD_BYTES_MAX + OVERHEAD_BYTES <= FRAME_BYTES_MAX
    assert OVERHEAD_BYTES == FRONT_BYTES + TAG_BYTES
