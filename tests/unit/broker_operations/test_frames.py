"""Frames between brokers: read back as written, and accepted only from a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.operations.frames import (
    DATA_BYTES_MAX,
    BrokenChannel,
    Frame,
    Keys,
    Kind,
    Receiver,
    Seals,
    encode,
    keys_of,
)

KEYS = keys_of(b"the cluster's secret", "a", "b", ("1" * 32, "2" * 32))
HELLO = Frame(Kind.HELLO, 0, b"hello")
FRAMES = [
    HELLO,
    Frame(Kind.ASK, 1, b"x" * DATA_BYTES_MAX, size=70_000, reserve=9, left_ms=1500, priority=1),
    Frame(Kind.MORE, 1, b"y" * 4464),
    Frame(Kind.ANSWER, 7, b"z", size=1),
    Frame(Kind.REFUSED, 2**32 - 1, b"", size=0),
    Frame(Kind.CANCEL, 7),
    Frame(Kind.ENDED, 7),
]


def written(frames: list[Frame], *, first_only: bool = False, key: bytes = b"") -> bytes:
    seals = Seals(key or KEYS.asking, first_only=first_only)
    return b"".join(encode(frame, seals) for frame in frames)


def receiver(*, first_only: bool = False) -> Receiver:
    return Receiver(Seals(KEYS.asking, first_only=first_only))


@given(st.booleans(), st.lists(st.integers(1, 80_000), max_size=20))
def test_frames_come_back_in_whatever_pieces(first_only: bool, cuts: list[int]) -> None:
    data, reads = written(FRAMES, first_only=first_only), receiver(first_only=first_only)
    found = []
    for cut in cuts:
        found += reads.feed(data[:cut])
        data = data[cut:]
    found += reads.feed(data)
    assert [frame._replace(data=bytes(frame.data)) for frame in found] == FRAMES
    assert reads.describe() == {"unread_bytes": 0}


@pytest.mark.parametrize("at", [0, 4, 5, 9, 12, 20, -1])
def test_a_byte_that_was_changed_ends_the_connection(at: int) -> None:
    data = bytearray(written([HELLO, Frame(Kind.ASK, 1, b"publish", size=7)]))
    hello = len(written([HELLO]))
    data[hello + at if at >= 0 else at] ^= 1
    reads = receiver()
    reads.feed(bytes(data[:hello]))
    with pytest.raises(BrokenChannel):
        reads.feed(bytes(data[hello:]) + b"\0" * 200_000)


def test_a_frame_that_comes_twice_or_was_left_out_ends_the_connection() -> None:
    asks = [Frame(Kind.ASK, n, b"abc", size=3) for n in (1, 2)]
    seals = Seals(KEYS.asking, first_only=False)
    hello, first, second = (encode(frame, seals) for frame in (HELLO, *asks))
    for wrong in (hello + first + first, hello + second):
        with pytest.raises(BrokenChannel, match="seal"):
            receiver().feed(wrong)


@pytest.mark.parametrize(
    "keys",
    [
        keys_of(b"another secret", "a", "b", ("1" * 32, "2" * 32)),
        keys_of(b"the cluster's secret", "a", "c", ("1" * 32, "2" * 32)),
        keys_of(b"the cluster's secret", "b", "a", ("1" * 32, "2" * 32)),
        keys_of(b"the cluster's secret", "a", "b", ("3" * 32, "2" * 32)),
        keys_of(b"the cluster's secret", "a", "b", ("1" * 32, "3" * 32)),
        Keys(KEYS.answering, KEYS.asking),
    ],
)
@pytest.mark.parametrize("first_only", [True, False])
def test_a_side_without_the_key_of_this_connection_proves_nothing(
    keys: Keys, first_only: bool
) -> None:
    """Another secret, another broker, another connection, the other direction; inside TLS too."""
    with pytest.raises(BrokenChannel, match="seal"):
        receiver(first_only=first_only).feed(
            written([HELLO], first_only=first_only, key=keys.asking)
        )


@pytest.mark.parametrize(
    "wrong",
    [
        [Frame(Kind.CANCEL, 1)],
        [HELLO, HELLO],
        [HELLO, Frame(Kind.MORE, 1, b"x" * (DATA_BYTES_MAX + 100))],
    ],
)
def test_frames_that_no_broker_sends(wrong: list[Frame]) -> None:
    with pytest.raises(BrokenChannel):
        receiver().feed(written(wrong))


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_waited_for(data: bytes) -> None:
    try:
        assert receiver().feed(data) == []
    except BrokenChannel:
        pass
