"""Chunks of answers: runs are joined exactly, in order; garbage raises one error type only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.protocol import extension, frames
from octavo.protocol.answers import (
    Added,
    AddRefused,
    AnyAnswer,
    BatchReadAnswer,
    ReadAnswer,
    parse_answers,
)
from octavo.protocol.auth import AuthMessage
from octavo.protocol.codes import Code, FrameTooLong, ProtocolError

LIMIT = 5 * 1024 * 1024
i64 = st.integers(-(2**63), 2**63 - 1)
few = st.integers(0, 3)
adds = st.tuples(st.sampled_from([0, 0, 0, 0, 104]), st.integers(1, 2), st.integers(-2, 6))


def parse(data: bytes) -> list[AnyAnswer]:
    found, end = parse_answers(memoryview(data), LIMIT)
    assert end == len(data)
    return found


def spelt_out(answers: list[AnyAnswer]) -> list[tuple[int, int, int]]:
    """Expand every run into single adds."""
    out = []
    for answer in answers:
        if isinstance(answer, Added):
            assert answer.first <= answer.last
            out += [(0, answer.ledger_id, at) for at in range(answer.first, answer.last + 1)]
        else:
            assert isinstance(answer, AddRefused)
            out.append((answer[0], answer[1], answer[2]))
    return out


def test_consecutive_adds_become_one_run() -> None:
    data = b"".join(frames.add_answer(0, 7, entry) for entry in range(1000))
    assert parse(data) == [Added(7, 0, 999)]


def test_a_run_ends_at_a_gap_another_ledger_and_a_refusal() -> None:
    told = [(0, 7, 1), (0, 7, 2), (0, 7, 4), (0, 8, 5), (104, 8, 6), (0, 8, 7), (0, 8, 8)]
    data = b"".join(frames.add_answer(*one) for one in told)
    assert parse(data) == [
        Added(7, 1, 2),
        Added(7, 4, 4),
        Added(8, 5, 5),
        AddRefused(104, 8, 6),
        Added(8, 7, 8),
    ]


@given(st.lists(adds, max_size=40))
def test_runs_say_neither_more_nor_less(told: list[tuple[int, int, int]]) -> None:
    data = b"".join(frames.add_answer(*one) for one in told)
    assert spelt_out(parse(data)) == told


@given(st.lists(adds, max_size=20), st.integers(1, 90))
def test_any_chunking_says_the_same(told: list[tuple[int, int, int]], step: int) -> None:
    stream = b"".join(frames.add_answer(*one) for one in told)
    stream += frames.read_answer(0, 1, 2, b"entry") + extension.encode_added(9, 3, 5)
    found: list[AnyAnswer] = []
    rest = b""
    for position in range(0, len(stream), step):
        rest += stream[position : position + step]
        some, end = parse_answers(memoryview(rest), LIMIT)
        found += some
        rest = rest[end:]
    assert rest == b""
    assert found[-2:] == [ReadAnswer(0, 1, 2, b"entry"), Added(9, 3, 5)]
    assert spelt_out(found[:-2]) == told


def test_one_of_each_kind_in_order() -> None:
    data = b"".join(
        (
            frames.add_answer(0, 1, 0),
            frames.read_answer(2, 1, -1),
            frames.add_answer(0, 1, 1),
            frames.batch_read_answer(0, 1, 5, 77, [b"one", b"", b"two"]),
            frames.auth_frame("AuthDisabledPlugin"),
            extension.encode_answer(extension.Op.FORCE, 8, Code.IO, {}),
            extension.encode_added(1, 2, 4),
        )
    )
    assert parse(data) == [
        Added(1, 0, 0),
        ReadAnswer(2, 1, -1, b""),
        Added(1, 1, 1),
        BatchReadAnswer(0, 1, 5, 77, [b"one", b"", b"two"]),
        AuthMessage("AuthDisabledPlugin", b""),
        extension.Answer(extension.Op.FORCE, 8, Code.IO, {}),
        Added(1, 2, 4),
    ]


def test_copies_outlive_the_buffer() -> None:
    buffer = bytearray(frames.read_answer(0, 1, 2, b"entry"))
    found, _ = parse_answers(memoryview(buffer), LIMIT)
    buffer[:] = bytes(len(buffer))
    assert found == [ReadAnswer(0, 1, 2, b"entry")]


@pytest.mark.parametrize(
    "broken",
    [
        frames.PREFIX.pack(25, frames.ADD_HEADER) + bytes(21),
        frames.PREFIX.pack(23, frames.ADD_HEADER) + bytes(19),
        frames.PREFIX.pack(23, frames.READ_HEADER) + bytes(19),
        frames.PREFIX.pack(31, frames.BATCH_READ_HEADER) + bytes(27),
        frames.PREFIX.pack(34, frames.BATCH_READ_HEADER) + bytes(30),
        frames.PREFIX.pack(36, frames.BATCH_READ_HEADER) + bytes(31) + b"\1",
        frames.PREFIX.pack(4, 0x02050000),
        frames.PREFIX.pack(4, 0x03010000),
        frames.LENGTH.pack(3) + bytes(3),
        extension.encode_added(1, 5, 4),
        extension.encode_added(1, -1, 4),
        extension.encode_answer(extension.Op.ADDED, 0, Code.OK, {"ledger": 1, "first": 0}),
        extension.encode_request(extension.Op.FORCE, 1, {}),
    ],
)
def test_broken_answers_are_refused(broken: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(broken)
    with pytest.raises(ProtocolError):
        parse(frames.add_answer(0, 1, 2) + broken)


def test_a_frame_above_the_bound_is_refused_before_it_is_there() -> None:
    with pytest.raises(FrameTooLong):
        parse_answers(memoryview(frames.LENGTH.pack(997)), 1000)
    with pytest.raises(FrameTooLong):
        parse_answers(memoryview(frames.read_answer(0, 1, 2, bytes(1000))), 1000)


@given(st.binary(max_size=200), st.sampled_from([0x01, 0x02, 0x03, 0x07, 0x4F]))
def test_arbitrary_bytes_raise_nothing_but_protocol_errors(data: bytes, op: int) -> None:
    headed = frames.PREFIX.pack(4 + len(data), 0x02000000 | op << 16) + data
    ours = frames.PREFIX.pack(4 + len(data), 0x4F078000) + data
    for stream in (data, headed, ours):
        try:
            found, end = parse_answers(memoryview(stream), LIMIT)
        except ProtocolError:
            continue
        assert 0 <= end <= len(stream)
        assert found or end == 0
