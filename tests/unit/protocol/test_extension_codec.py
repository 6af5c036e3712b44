"""Extension frames: round trips, refusals, and garbage raises one error type only."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.protocol import extension
from octavo.protocol.codes import Code, ProtocolError
from octavo.protocol.extension import (
    Answer,
    Op,
    Request,
    bytes_of,
    decode_answer,
    decode_request,
    encode_added,
    encode_answer,
    encode_request,
    int_of,
)
from octavo.protocol.frames import LENGTH, PREFIX, header

i64 = st.integers(-(2**63), 2**63 - 1)
values = st.recursive(
    st.none() | st.booleans() | i64 | st.binary(max_size=20) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4),
)
bodies = st.dictionaries(st.text(max_size=10), values, max_size=5)
ops = st.sampled_from(Op)


def frame_with(body: bytes, head: int) -> memoryview:
    return memoryview(PREFIX.pack(4 + len(body), head) + body)


@given(ops, st.integers(0, 2**63 - 1), bodies)
def test_requests_come_back(op: Op, request_id: int, body: dict[str, object]) -> None:
    frame = encode_request(op, request_id, body)
    assert LENGTH.unpack_from(frame)[0] == len(frame) - 4
    assert decode_request(memoryview(frame)) == Request(op, request_id, body)
    with pytest.raises(ProtocolError, match="does not begin an extension answer"):
        decode_answer(memoryview(frame))


@given(ops, st.integers(0, 2**63 - 1), st.sampled_from(Code), bodies)
def test_answers_come_back(op: Op, request_id: int, code: Code, body: dict[str, object]) -> None:
    frame = encode_answer(op, request_id, code, body)
    assert LENGTH.unpack_from(frame)[0] == len(frame) - 4
    assert decode_answer(memoryview(frame)) == Answer(op, request_id, code, body)
    with pytest.raises(ProtocolError, match="does not begin an extension request"):
        decode_request(memoryview(frame))


def test_the_version_byte_is_ours_alone() -> None:
    frame = encode_request(Op.NODE_INFO, 1, {})
    assert frame[4] == 0x4F
    assert frame[4] not in (0x02, 0x0A), "BookKeeper v2, and the first byte of a v3 request"


def test_every_cut_and_every_surplus_is_refused() -> None:
    frame = memoryview(encode_request(Op.WAIT_LAC, 300, {"ledger": 70_000, "after": -1}))
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_request(frame[:end])
    with pytest.raises(ProtocolError):
        decode_request(memoryview(bytes(frame) + b"\0"))


def test_keys_of_tomorrow_are_kept_and_missing_ones_have_defaults() -> None:
    found = decode_request(memoryview(encode_request(Op.READ_LAC, 1, {"hue": "red"})))
    assert found.body == {"hue": "red"}
    assert int_of(found.body, "ledger", -1) == -1
    assert bytes_of(found.body, "key", b"") == b""


@pytest.mark.parametrize("wrong", [None, "7", 7.0, True, 2**63, -(2**63) - 1, [7]])
def test_int_of_refuses(wrong: object) -> None:
    with pytest.raises(ProtocolError, match="'ledger' wants a 64-bit integer"):
        int_of({"ledger": wrong}, "ledger")


@pytest.mark.parametrize("wrong", [None, "text", 7])
def test_bytes_of_refuses(wrong: object) -> None:
    with pytest.raises(ProtocolError, match="'key' wants bytes"):
        bytes_of({"key": wrong}, "key")


@pytest.mark.parametrize(
    "body", [7, [], [1], [1, 2], ["1", {}], [True, {}], [1, {}, {}], {"a": 1}, None]
)
def test_bodies_of_another_shape_are_refused(body: object) -> None:
    head = header(Op.FORCE, 0, extension.VERSION)
    with pytest.raises(ProtocolError):
        decode_request(frame_with(msgpack.packb(body), head))


def test_unknown_operations_and_codes_are_refused() -> None:
    body = msgpack.packb([1, {}])
    with pytest.raises(ProtocolError, match="unknown operation 99"):
        decode_request(frame_with(body, header(99, 0, extension.VERSION)))
    body = msgpack.packb([1, 999, {}])
    head = header(Op.FORCE, extension.ANSWER, extension.VERSION)
    with pytest.raises(ProtocolError, match="999"):
        decode_answer(frame_with(body, head))


def test_announced_sizes_reserve_nothing() -> None:
    """32 arrays of two thousand million elements each, in 160 bytes."""
    head = header(Op.FORCE, 0, extension.VERSION)
    with pytest.raises(ProtocolError, match="not msgpack"):
        decode_request(frame_with(bytes.fromhex("dd7fffffff") * 32, head))
    with pytest.raises(ProtocolError, match="not msgpack"):
        decode_request(frame_with(b"\x91" * 5_000, head))


@given(st.binary(max_size=100), ops, st.sampled_from([0, extension.ANSWER]))
def test_arbitrary_bodies_raise_nothing_but_protocol_errors(
    body: bytes, op: Op, direction: int
) -> None:
    frame = frame_with(body, header(op, direction, extension.VERSION))
    for decode in (decode_request, decode_answer):
        try:
            decode(frame)
        except ProtocolError:
            pass


def test_added() -> None:
    found = decode_answer(memoryview(encode_added(7, 10, 19)))
    assert found == Answer(Op.ADDED, 0, Code.OK, {"ledger": 7, "first": 10, "last": 19})
