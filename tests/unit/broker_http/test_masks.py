"""Frames that a client of a WebSocket does not mask end the connection (RFC 6455, 5.1)."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.http.masks import Masks


def frame(payload: bytes, *, masked: bool = True, long: bool = False, op: int = 0x81) -> bytes:
    mask = b"\x01\x02\x03\x04"
    size, bit = len(payload), 0x80 if masked else 0
    if size > 0xFFFF or long:
        head = bytes((op, bit | 127)) + struct.pack(">Q", size)
    elif size > 125:
        head = bytes((op, bit | 126)) + struct.pack(">H", size)
    else:
        head = bytes((op, bit | size))
    return head + (mask if masked else b"") + payload


def in_parts(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({min(cut, len(data)) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


FRAMES = st.lists(
    st.tuples(st.sampled_from([0, 1, 5, 125, 126, 300, 70_000]), st.booleans()), max_size=5
)


@given(FRAMES, st.lists(st.integers(0, 2000), max_size=8))
def test_masked_frames_go_through_however_they_are_cut(
    drawn: list[tuple[int, bool]], cuts: list[int]
) -> None:
    whole = b"".join(frame(os.urandom(size), long=long) for size, long in drawn)
    masks = Masks()
    assert b"".join(masks.feed(part) for part in in_parts(whole, cuts)) == whole
    assert not masks.failed


@given(FRAMES, st.lists(st.integers(0, 2000), max_size=8), st.sampled_from([0, 3, 200]))
def test_nothing_of_an_unmasked_frame_goes_through(
    drawn: list[tuple[int, bool]], cuts: list[int], size: int
) -> None:
    good = b"".join(frame(os.urandom(size), long=long) for size, long in drawn)
    whole = good + frame(b"x" * size, masked=False) + frame(b"more")
    masks = Masks()
    assert b"".join(masks.feed(part) for part in in_parts(whole, cuts)) == good
    assert masks.failed
    assert masks.feed(frame(b"later")) == b""


@pytest.mark.parametrize("op", [0x81, 0x82, 0x88, 0x89, 0x8A, 0x01])
def test_of_every_kind(op: int) -> None:
    masks = Masks()
    assert masks.feed(frame(b"", masked=False, op=op)) == b""
    assert masks.failed
