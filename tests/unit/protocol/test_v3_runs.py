"""Adds parsed in bulk equal the single parser's reading of each v3 frame."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.protocol import v3
from octavo.protocol.codes import Code
from octavo.protocol.entry import HEADER, HEADER_BYTES
from octavo.protocol.frames import LENGTH, Flag
from octavo.protocol.v3_runs import Heads, take_run, varints
from octavo.protocol.v3_schema import ResponseMessage
from tests.support.kit.examples import examples
from tests.support.raw_bookie import KEY, entry_of
from tests.support.v3_frames import add_frame, framed, reordered


def taken(data: bytes) -> list[tuple[Any, ...]] | None:
    """Return (head, flags, ledger, entry, key, bytes) of the first run, or None."""
    view = memoryview(data)
    run = take_run(view, 0, LENGTH.size + LENGTH.unpack_from(data)[0])
    if run is None:
        return None
    found = []
    for index, entry in enumerate(run.entries):
        header = ResponseMessage().header
        header.MergeFromString(head_of(run.heads, index, len(run.entries)))
        head = v3.head_of(header.version, header.operation, header.txnId)
        ids = (run.ledger_id, run.first_entry + index)
        found.append((head, run.flags, *ids, run.key, bytes(entry)))
    assert sum(map(len, frames_of(data[: run.end]))) == run.end
    assert len(frames_of(data[: run.end])) == len(found)
    return found


def head_of(heads: Heads | bytes, index: int, adds: int) -> bytes:
    if isinstance(heads, bytes):
        assert adds == 1
        return heads
    assert heads.adds == adds
    at = index * heads.txn_bytes
    return b"\x08\x03\x10\x02\x18" + heads.txns[at : at + heads.txn_bytes]


def frames_of(data: bytes) -> list[bytes]:
    frames, position = [], 0
    while position < len(data):
        end = position + LENGTH.size + LENGTH.unpack_from(data, position)[0]
        frames.append(data[position:end])
        position = end
    return frames


def judged(frames: Iterable[bytes]) -> list[tuple[Any, ...]]:
    found = []
    for frame in frames:
        add = v3.parse_request(memoryview(frame))
        assert isinstance(add, v3.Add)
        found.append((add.head, add.flags, *add[2:5], bytes(add.entry)))
    return found


def test_a_long_run_is_taken_whole() -> None:
    frames = [add_frame(7, entry, txn=entry + 300) for entry in range(200, 1200)]
    found = taken(b"".join(frames))
    assert found == judged(frames)


@pytest.mark.parametrize("first", [0, 100, 127, 128, 16_300, 2_097_100, 2**40])
def test_where_numbers_become_longer_a_run_ends(first: int) -> None:
    frames = [add_frame(7, entry, txn=entry) for entry in range(first, first + 100)]
    data = b"".join(frames)
    everything: list[tuple[Any, ...]] = []
    while data:
        found = taken(data)
        assert found
        everything += found
        data = data[sum(map(len, frames[: len(found)])) :]
        frames = frames[len(found) :]
    assert len(everything) == 100
    assert [one[3] for one in everything] == list(range(first, first + 100))


@pytest.mark.parametrize("seed", range(30))
def test_a_run_ends_where_one_differs(seed: int) -> None:
    """Each frame is read as the single parser does, or not at all."""
    rng = random.Random(seed)
    frames = [
        reordered(add_frame(7, entry, txn=entry, priority=seed % 2, recovery=seed % 3 == 0))
        for entry in range(1000, 1080)
    ]
    for _ in range(300):
        changed = list(frames)
        which = rng.randrange(len(changed))
        frame = bytearray(changed[which])
        place = rng.randrange(4, 120)
        frame[place % len(frame)] ^= 1 << rng.randrange(8)
        changed[which] = bytes(frame)
        found = taken(b"".join(changed))
        if found is None:
            assert which == 0
            continue
        assert found == judged(changed[: len(found)])


@settings(max_examples=examples(300))
@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**33),
    st.sampled_from([None, 0, 1, 2, 2**31]),
    st.sampled_from([None, 0, 1, 77]),
    st.booleans(),
)
def test_one_add_is_read_as_the_judge_reads_it(
    ledger: int,
    entry: int,
    txn: int,
    priority: int,
    flag: int | None,
    write_flags: int | None,
    first: bool,
) -> None:
    frame = add_frame(
        ledger,
        entry,
        txn=txn,
        body=HEADER.pack(ledger, entry, -1, 0) + b"digest and payload",
        priority=priority % 2**32,
        flag=flag,
        write_flags=write_flags,
    )
    if first:
        frame = reordered(frame)
    found = taken(frame)
    if found is not None:
        assert found == judged([frame])


def test_what_is_unusual_is_left_to_the_judge() -> None:
    usual = add_frame(7, 5)
    assert taken(usual) is not None
    unusual = {
        "another ledger in the entry": add_frame(7, 5, body=entry_of(8, 5)),
        "another entry in it": add_frame(7, 5, body=entry_of(7, 6)),
        "a claim to be confirmed": add_frame(7, 5, body=entry_of(7, 5, lac=5)),
        "a short key": add_frame(7, 5, key=b"k"),
        "a short body": add_frame(7, 5, body=bytes(HEADER_BYTES - 1)),
        "bytes behind": framed(usual[4:] + b"\x00"),
        "a field of another number behind": framed(usual[4:] + b"\xc2\x0c\x00"),
    }
    for what, frame in unusual.items():
        assert taken(frame) is None, what


@pytest.mark.parametrize("code", list(Code))
def test_answers_to_a_run_are_those_to_each(code: Code) -> None:
    frames = [add_frame(7, entry, txn=entry * 3, priority=100) for entry in range(200, 300)]
    run = take_run(memoryview(b"".join(frames)), 0, len(frames[0]))
    assert run is not None
    assert isinstance(run.heads, Heads)
    answers = frames_of(run.heads.answers(code, run.ledger_id, run.first_entry))
    assert len(answers) == run.heads.adds == 100
    for entry, answer in enumerate(answers, 200):
        message = ResponseMessage.FromString(answer[4:])
        assert message.header.txnId == entry * 3
        assert message.status == message.addResponse.status == v3.STATUS[code]
        assert (message.addResponse.ledgerId, message.addResponse.entryId) == (7, entry)


@pytest.mark.parametrize(
    ("first", "count"), [(0, 128), (128, 16256), (16384, 9), (2**21, 40_000), (2**35 + 16380, 70)]
)
def test_varints_of_consecutive_numbers(first: int, count: int) -> None:
    assert varints(first, count) == b"".join(map(v3.varint, range(first, first + count)))


def test_recovery_may_claim_more() -> None:
    frame = reordered(add_frame(7, 5, body=entry_of(7, 5, lac=9), recovery=True))
    found = taken(frame)
    assert found is not None
    assert found[0][1] == Flag.RECOVERY_ADD
    assert found[0][4] == KEY
