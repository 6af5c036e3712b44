"""`split_adds` against a reference that looks at one frame at a time."""

from __future__ import annotations

import struct
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bookie.adds import Adds, split_adds
from octavo.protocol.codes import FrameTooLong, ProtocolError
from octavo.protocol.entry import DigestType, digest_for, pack_entry
from octavo.protocol.frames import Flag, add_prefix, read_request

FRAME_BYTES_MAX = 100_000
CRC32C = digest_for(DigestType.CRC32C, b"")
KEYS = (b"a" * 20, b"b" * 20)


class Add(NamedTuple):
    ledger_id: int
    entry_id: int
    key: bytes
    flags: int
    payload: bytes
    damaged: bool

    def frame(self) -> bytes:
        entry = bytearray(
            pack_entry(CRC32C, self.ledger_id, self.entry_id, self.entry_id - 1, 7, self.payload)
        )
        if self.damaged:
            entry[-1] ^= 0x10
        return add_prefix(self.key, len(entry), self.flags) + bytes(entry)

    @property
    def is_stored(self) -> bool:
        damage_shows = self.damaged and self.flags & Flag.CRC32C
        return not damage_shows and self.ledger_id >= 0 and self.entry_id >= 0


def entries_of(adds: Adds) -> list[tuple[int, int, int, bytes, bool, bytes]]:
    found = []
    for flags, run in adds.batches:
        ends = [*run.offsets[1:], len(run.frames)]
        for index, (start, end) in enumerate(zip(run.offsets, ends, strict=True)):
            entry_id = run.first_entry + index
            frame = run.frames[start:end]
            found.append((flags, run.ledger_id, entry_id, run.key, run.recovery, frame))
    return found


def expected_of(adds: list[Add]) -> list[tuple[int, int, int, bytes, bool, bytes]]:
    return [
        (
            add.flags,
            add.ledger_id,
            add.entry_id,
            add.key,
            bool(add.flags & Flag.RECOVERY_ADD),
            add.frame(),
        )
        for add in adds
        if add.is_stored
    ]


FLAGS = st.sampled_from(
    [0, int(Flag.CRC32C), int(Flag.CRC32C | Flag.RANGE_ACK), int(Flag.RECOVERY_ADD)]
)


@st.composite
def add_lists(draw: st.DrawFn) -> list[Add]:
    adds: list[Add] = []
    for _ in range(draw(st.integers(0, 4))):
        ledger_id = draw(st.sampled_from([1, 2, -5]))
        entry_id = draw(st.sampled_from([0, 5, 255, 65535, -1]))
        key = draw(st.sampled_from(KEYS))
        flags = draw(FLAGS)
        sizes = draw(st.lists(st.sampled_from([0, 10, 10, 300]), min_size=1, max_size=8))
        for index, size in enumerate(sizes):
            damaged = draw(st.integers(0, 9)) == 0
            adds.append(
                Add(ledger_id, entry_id + index, key, flags, bytes(range(size % 256)), damaged)
            )
    return adds


@given(add_lists(), st.integers(0, 80))
def test_finds_what_one_at_a_time_finds(adds: list[Add], cut: int) -> None:
    stream = b"".join(add.frame() for add in adds)
    found = split_adds(memoryview(stream), 0, FRAME_BYTES_MAX)
    assert entries_of(found) == expected_of(adds)
    assert found.end == len(stream)
    assert [(r.ledger_id, r.entry_id) for r in found.refused] == [
        (add.ledger_id, add.entry_id) for add in adds if not add.is_stored
    ]
    if adds:
        last = len(adds[-1].frame())
        short = stream[: len(stream) - 1 - cut % last]
        found = split_adds(memoryview(short), 0, FRAME_BYTES_MAX)
        assert found.end == len(stream) - last
        assert entries_of(found) == expected_of(adds[:-1])


def test_a_uniform_chunk_is_one_run_with_a_range_of_offsets() -> None:
    adds = [Add(9, i, KEYS[0], int(Flag.CRC32C), b"x" * 100, False) for i in range(65_500, 65_600)]
    found = split_adds(memoryview(b"".join(add.frame() for add in adds)), 0, FRAME_BYTES_MAX)
    [(_, run)] = found.batches
    assert (run.first_entry, run.count) == (65_500, 100)
    assert isinstance(run.offsets, range)


def test_neighbours_of_a_damaged_entry_are_kept() -> None:
    adds = [Add(9, i, KEYS[0], int(Flag.CRC32C), b"x" * 100, i in (3, 4, 9)) for i in range(10)]
    found = split_adds(memoryview(b"".join(add.frame() for add in adds)), 0, FRAME_BYTES_MAX)
    assert [(run.first_entry, run.count) for _, run in found.batches] == [(0, 3), (5, 4)]
    assert [r.entry_id for r in found.refused] == [3, 4, 9]


def test_an_entry_too_short_for_its_digest_is_damaged() -> None:
    entry = struct.pack(">qqqq", 1, 0, -1, 0)
    frame = add_prefix(KEYS[0], len(entry), Flag.CRC32C) + entry
    found = split_adds(memoryview(frame), 0, FRAME_BYTES_MAX)
    assert [r.entry_id for r in found.refused] == [0]
    # Under another digest type the same bytes are an entry: DUMMY has no digest.
    bare = add_prefix(KEYS[0], len(entry), 0) + entry
    assert split_adds(memoryview(bare), 0, FRAME_BYTES_MAX).batches[0][1].count == 1


def test_stops_at_what_is_not_an_add() -> None:
    add = Add(1, 0, KEYS[0], 0, b"abc" * 30, False).frame()
    stream = add + read_request(1, 0) + add
    found = split_adds(memoryview(stream), 0, FRAME_BYTES_MAX)
    assert found.end == len(add)
    assert split_adds(memoryview(stream), len(add) + 24, FRAME_BYTES_MAX).end == len(stream)


def test_bounds() -> None:
    add = Add(1, 0, KEYS[0], 0, b"x" * 500, False).frame()
    with pytest.raises(FrameTooLong, match="the limit is 200"):
        split_adds(memoryview(add), 0, 200)
    short = struct.pack(">I", 30) + add[4:]
    with pytest.raises(ProtocolError, match="30 bytes"):
        split_adds(memoryview(short), 0, FRAME_BYTES_MAX)


@given(st.binary(max_size=300), st.integers(0, 3), st.data())
def test_only_protocol_errors_leave_it(noise: bytes, adds: int, data: st.DataObject) -> None:
    frames = bytearray(
        b"".join(
            Add(1, i, KEYS[0], int(Flag.CRC32C), b"x" * 40, False).frame() for i in range(adds)
        )
    )
    for _ in range(data.draw(st.integers(0, 3)) if frames else 0):
        frames[data.draw(st.integers(0, len(frames) - 1))] ^= data.draw(st.integers(1, 255))
    stream = memoryview(bytes(frames) + noise)
    try:
        found = split_adds(stream, 0, FRAME_BYTES_MAX)
    except ProtocolError:
        return
    assert 0 <= found.end <= len(stream)
    assert sum(len(run.frames) for _, run in found.batches) <= found.end
