"""Unmasked frames of a WebSocket client end the connection (RFC 6455, 5.1)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.http.connection_bytes import FRAGMENTS_MAX, FRAMES_A_STEP, Masks
from tests.support.loop_time import LoopTime
from tests.support.memory_cluster import Running


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
    found = [one for part in in_parts(whole, cuts) for one in in_steps(masks, part)]
    assert b"".join(found) == whole
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


def in_steps(masks: Masks, data: bytes) -> list[bytes]:
    found = [masks.feed(data)]
    while masks.held:
        found.append(masks.feed(b""))
    return found


@given(st.integers(0, 3 * FRAMES_A_STEP), st.integers(1, 700))
def test_small_frames_go_on_in_steps(count: int, size: int) -> None:
    whole = frame(b"", op=0x89) * count
    masks = Masks()
    steps = [
        one for at in range(0, len(whole), size) for one in in_steps(masks, whole[at : at + size])
    ]
    assert b"".join(steps) == whole
    assert all(one.count(b"\x89") <= FRAMES_A_STEP for one in steps)


@pytest.mark.parametrize("more", [0, 1])
def test_a_message_comes_in_a_bounded_number_of_fragments(more: int) -> None:
    first, next_one, ping = frame(b"", op=0x01), frame(b"", op=0x00), frame(b"", op=0x89)
    whole = first + (ping + next_one) * (FRAGMENTS_MAX - 1 + more)
    masks = Masks()
    found = b"".join(in_steps(masks, whole))
    assert masks.failed is bool(more)
    assert found == (whole[: -len(next_one)] if more else whole)
    if not more:
        masks = Masks()
        assert b"".join(in_steps(masks, whole * 3)) == whole * 3, "the next message counts anew"


def _flood(host: str, port: int, path: str, data: bytes, seconds: float) -> tuple[bytes, bool]:
    """Send `data` again and again; return the answer, and whether the server has hung up."""
    with socket.create_connection((host, port)) as wire:
        wire.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        found = wire.recv(65536)
        wire.setblocking(False)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            try:
                with contextlib.suppress(BlockingIOError):
                    wire.send(data)
                with contextlib.suppress(BlockingIOError):
                    more = wire.recv(1 << 20)
                    if not more:
                        return found, True
                    found += more
            except ConnectionError:
                return found, True
        return found, False


@pytest.mark.parametrize(
    ("name", "data", "ends"),
    [
        ("pings", frame(b"", op=0x89) * 40_000, False),
        ("pongs", frame(b"", op=0x8A) * 40_000, False),
        ("fragments", frame(b"", op=0x01) + frame(b"", op=0x00) * 40_000, True),
    ],
)
async def test_small_frames_without_end_do_not_hold_the_loop_up(
    one: Running, name: str, data: bytes, ends: bool
) -> None:
    path = "/v1/topics/public/t/subscriptions/s/stream"
    assert (await one.api.put("/v1/topics/public/t")).status == 201
    assert (await one.api.put("/v1/topics/public/t/subscriptions/s")).status == 201
    host, port = one.servers[0].url.removeprefix("http://").split(":")
    gc.collect()
    gc.disable()  # a collection would visit other tests' objects
    try:
        async with LoopTime() as loop:
            found, ended = await asyncio.to_thread(_flood, host, int(port), path, data, 2.0)
    finally:
        gc.enable()
    assert found.startswith(b"HTTP/1.1 101")
    assert ended is ends
    assert (b"\x8a\x00" * 10 in found) is (name == "pings")
    assert loop.longest_s < 0.05
    assert (await one.api.get("/v1/topics/public/t")).status == 200
