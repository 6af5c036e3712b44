"""v2 frames byte by byte, and AUTH."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.protocol.auth import AUTH_DISABLED, AuthMessage, decode_auth, encode_auth
from octavo.protocol.codes import ProtocolError
from octavo.protocol.entry import master_key
from octavo.protocol.frames import (
    ADD_IDS,
    ADD_PREFIX_BYTES,
    BatchReadRequest,
    Flag,
    ReadRequest,
    add_answer,
    add_prefix,
    auth_frame,
    batch_read_answer,
    batch_read_request,
    parse_auth,
    parse_batch_read,
    parse_read,
    read_answer,
    read_request,
)

KEY = master_key(b"")
i64 = st.integers(-(2**63), 2**63 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)


def test_the_bytes_of_each_frame() -> None:
    assert add_prefix(KEY, 36, Flag.RECOVERY_ADD).hex() == "0000003c02010002" + KEY.hex()
    assert read_request(1, -1).hex() == "00000014020200000000000000000001" + "ff" * 8
    assert read_request(1, 2, Flag.FENCE, KEY).hex() == (
        "000000280202000100000000000000010000000000000002" + KEY.hex()
    )
    assert add_answer(104, 1, 2).hex() == (
        "00000018020100000000006800000000000000010000000000000002"
    )
    assert read_answer(0, 1, 2, b"\xaa\xbb").hex() == (
        "0000001a020200000000000000000000000000010000000000000002aabb"
    )
    assert read_answer(1, 1, 2).hex() == (
        "00000018020200000000000100000000000000010000000000000002"
    )
    assert batch_read_request(1, 2, 3, 4, 5).hex() == (
        "0000002802070000000000000000000100000000000000020000000000000003000000040000000000000005"
    )
    assert batch_read_answer(0, 1, 2, 3, [b"\xaa", b""]).hex() == (
        "00000029020700000000000000000000000000010000000000000002000000000000000300000001aa00000000"
    )
    assert auth_frame("p", b"\xff").hex() == "0000000a020300000a01701201ff"


@given(i64, i64, st.booleans())
def test_reads_come_back(ledger: int, entry: int, fence: bool) -> None:
    flags, key = (int(Flag.FENCE), KEY) if fence else (0, b"")
    frame = memoryview(read_request(ledger, entry, flags, key))
    assert parse_read(frame) == ReadRequest(flags, ledger, entry, key)
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            parse_read(frame[:end])


@given(i64, i64, i64, i32, i64, st.booleans())
def test_batch_reads_come_back(
    ledger: int, start: int, request: int, count: int, size: int, fence: bool
) -> None:
    flags, key = (int(Flag.FENCE), KEY) if fence else (0, b"")
    frame = memoryview(batch_read_request(ledger, start, request, count, size, flags, key))
    found = parse_batch_read(frame)
    assert found == BatchReadRequest(flags, ledger, start, request, count, size, key)
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            parse_batch_read(frame[:end])


def test_add_ids_are_read_in_place() -> None:
    entry = (7).to_bytes(8, "big") + (8).to_bytes(8, "big") + bytes(20)
    frame = add_prefix(KEY, len(entry), Flag.CRC32C) + entry
    length, header, key, ledger, entry_id = ADD_IDS.unpack_from(frame)
    assert (length, header, key, ledger, entry_id) == (len(frame) - 4, 0x02010100, KEY, 7, 8)
    assert frame[ADD_PREFIX_BYTES:] == entry


@given(st.text(max_size=300), st.binary(max_size=300))
def test_auth_comes_back_and_no_cut_passes(plugin: str, payload: bytes) -> None:
    message = AuthMessage(plugin, payload)
    assert parse_auth(memoryview(auth_frame(plugin, payload))) == message
    packed = encode_auth(message)
    for end in range(len(packed)):
        with pytest.raises(ProtocolError):
            decode_auth(packed[:end])


def test_auth_skips_fields_it_does_not_know() -> None:
    # 3: varint, 4: fixed64, 5: bytes, 6: fixed32
    unknown = bytes.fromhex("18ff0121" + "00" * 8 + "2a02abcd35" + "00" * 4)
    packed = unknown + encode_auth(AuthMessage(AUTH_DISABLED, b"")) + unknown
    assert decode_auth(packed) == AuthMessage(AUTH_DISABLED, b"")


@pytest.mark.parametrize(
    "packed",
    ["", "0a00", "1200", "0a01ff1200", "0b00", "0aff", "0affffffffffffffffffffff01", "0a051200"],
)
def test_auth_refuses(packed: str) -> None:
    with pytest.raises(ProtocolError, match="auth message"):
        decode_auth(bytes.fromhex(packed))


@given(st.binary(max_size=80))
def test_arbitrary_bytes_raise_nothing_but_protocol_errors(data: bytes) -> None:
    for parse in (parse_read, parse_batch_read, parse_auth):
        try:
            parse(memoryview(data))
        except ProtocolError:
            pass
