"""The bounded receiver: any chunking, any frame size, and memory in step with the input."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.protocol.codes import FrameTooLong, ProtocolError
from octavo.protocol.frames import LENGTH, SCRATCH_BYTES_MIN, FrameReceiver

SCRATCH = SCRATCH_BYTES_MIN
FRAME_MAX = 300_000


class Reader:
    """Uses a receiver as a connection does: feed, take the whole frames, keep the rest."""

    def __init__(self, scratch: bytearray, frame_bytes_max: int = FRAME_MAX) -> None:
        self.receiver = FrameReceiver(frame_bytes_max, scratch)
        self.frames: list[bytes] = []

    def feed(self, data: bytes) -> int:
        """Feed at most as much of `data` as there is room for; return the amount."""
        room = self.receiver.get_buffer()
        assert len(room) > 0, "an empty buffer means end of stream to asyncio"
        count = min(len(room), len(data))
        room[:count] = data[:count]
        view = self.receiver.received(count)
        start = 0
        while len(view) - start >= 4:
            after = start + 4 + self.receiver.checked_length(LENGTH.unpack_from(view, start)[0])
            if after > len(view):
                break
            self.frames.append(bytes(view[start:after]))
            start = after
        self.receiver.keep(view, start)
        return count


def frame_of(length: int, seed: int = 0) -> bytes:
    return LENGTH.pack(length) + random.Random(seed).randbytes(length)


# Around every edge: the empty body, the scratch buffer and its half, the first large buffer.
edges = [4, 5, 24, 1000]
for middle in (SCRATCH // 2, SCRATCH, 65_536, 131_072):
    edges += [middle + delta for delta in (-9, -5, -4, -3, -1, 0, 1, 4)]
lengths = st.one_of(st.sampled_from(edges), st.integers(4, 200))


@settings(deadline=None)
@given(st.lists(lengths, max_size=12), st.data())
def test_any_chunking_gives_the_same_frames(sizes: list[int], data: st.DataObject) -> None:
    frames = [frame_of(size, number) for number, size in enumerate(sizes)]
    stream = b"".join(frames)
    reader = Reader(bytearray(SCRATCH))
    chunks = st.one_of(st.sampled_from([1, 2, 3, 5, SCRATCH - 1, SCRATCH]), st.integers(1, 70_000))
    position = 0
    while position < len(stream):
        size = data.draw(chunks) if position < 5_000 else 60_000
        chunk = stream[position : position + size]
        while chunk:
            count = reader.feed(chunk)
            position += count
            chunk = chunk[count:]
    assert reader.frames == frames


@pytest.mark.parametrize("length", [4, 100, SCRATCH // 2 - 4, SCRATCH // 2, SCRATCH, SCRATCH + 1])
def test_byte_by_byte(length: int) -> None:
    frames = [frame_of(length, 1), frame_of(7, 2), frame_of(length, 3)]
    reader = Reader(bytearray(SCRATCH))
    for byte in b"".join(frames):
        assert reader.feed(bytes((byte,))) == 1
    assert reader.frames == frames


def test_connections_share_one_scratch_buffer() -> None:
    scratch = bytearray(SCRATCH)
    readers = [Reader(scratch) for _ in range(3)]
    streams = [
        b"".join(frame_of(size, number) for size in (50, SCRATCH, 9, SCRATCH // 2 - 5))
        for number in range(3)
    ]
    chance = random.Random(7)
    positions = [0, 0, 0]
    while any(at < len(stream) for at, stream in zip(positions, streams, strict=True)):
        turn = chance.randrange(3)
        chunk = streams[turn][positions[turn] : positions[turn] + chance.randint(1, 900)]
        if chunk:
            positions[turn] += readers[turn].feed(chunk)
    for reader, stream in zip(readers, streams, strict=True):
        assert b"".join(reader.frames) == stream


def test_bytes_after_a_large_frame_are_not_lost() -> None:
    frames = [frame_of(100_000), frame_of(30)]
    reader = Reader(bytearray(SCRATCH))
    stream = b"".join(frames)
    while stream:
        stream = stream[reader.feed(stream) :]
    assert reader.frames == frames


@pytest.mark.parametrize("length", [FRAME_MAX - 3, 2**31, 2**32 - 1])
def test_a_frame_above_the_bound_is_refused_by_its_first_four_bytes(length: int) -> None:
    reader = Reader(bytearray(SCRATCH))
    reader.feed(frame_of(10) + LENGTH.pack(length)[:3])
    with pytest.raises(
        FrameTooLong, match=f"announces {length} bytes .*limit is {FRAME_MAX} with it"
    ):
        reader.feed(LENGTH.pack(length)[3:])
    assert reader.frames == [frame_of(10)]


def test_a_frame_at_the_bound_passes() -> None:
    reader = Reader(bytearray(SCRATCH))
    stream = frame_of(FRAME_MAX - 4)
    while stream:
        stream = stream[reader.feed(stream) :]
    assert reader.frames == [frame_of(FRAME_MAX - 4)]


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_a_frame_without_header_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match="the header alone has 4"):
        Reader(bytearray(SCRATCH)).feed(LENGTH.pack(length) + bytes(length))


def test_what_is_announced_is_not_yet_allocated() -> None:
    five_megabytes = 5 * 1024 * 1024
    reader = Reader(bytearray(SCRATCH), five_megabytes)
    reader.feed(LENGTH.pack(five_megabytes - 4) + b"begun")
    sent = 9
    while sent < five_megabytes:
        room = len(reader.receiver.get_buffer())
        assert sent + room <= max(65_536, 2 * sent), "room in step with what came"
        sent += reader.feed(bytes(min(room, five_megabytes - sent)))
    assert len(reader.frames) == 1


def test_a_caller_who_leaves_a_whole_frame_is_stopped() -> None:
    receiver = FrameReceiver(FRAME_MAX, bytearray(SCRATCH))
    receiver.get_buffer()[:14] = frame_of(10)
    view = receiver.received(14)
    with pytest.raises(AssertionError, match="left unparsed"):
        receiver.keep(view, 0)
