"""Sealed payloads: the format, a published vector, and everything that must not open."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

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
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX, FRAME_BYTES_MAX

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
