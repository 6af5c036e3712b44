"""Impossible frames: Apache's answer to them, and ours after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from octavo.protocol.frames import LENGTH, PREFIX, batch_read_request, header, read_request
from octavo.protocol.limits import FRAME_BYTES_MAX
from tests.interop.phrases import FENCE, KEY, add, adds, say, step
from tests.interop.talk import Talk, told


def malformed_reads(ledger: int) -> dict[str, bytes]:
    ids = ledger.to_bytes(8, "big") + bytes(8)
    batch = batch_read_request(ledger, 0, 1, 1, 1000)
    return {
        "length 0": LENGTH.pack(0),
        "length 3": LENGTH.pack(3) + b"\x02\x01\x00",
        "length −1": LENGTH.pack(0xFFFFFFFF),
        "length above the bound": LENGTH.pack(FRAME_BYTES_MAX - 3),
        "opcode 4, not in v2": PREFIX.pack(20, header(4)) + ids,
        "opcode 99": PREFIX.pack(20, header(99)) + ids,
        "header alone": PREFIX.pack(4, header(2)),
        "read cut short": PREFIX.pack(12, header(2)) + ids[:8],
        "fencing read without its key": PREFIX.pack(20, header(2, FENCE)) + ids,
        "fencing read with half a key": PREFIX.pack(30, header(2, FENCE)) + ids + KEY[:10],
        "batch read cut short": LENGTH.pack(36) + batch[4:-4],
        "auth that is not protobuf": PREFIX.pack(8, header(3)) + b"\xff\xff\xff\xff",
        "auth without its fields": PREFIX.pack(4, header(3)),
        "version 3 read": PREFIX.pack(20, header(2, 0, 3)) + ids,
        "version 255 read": PREFIX.pack(20, header(2, 0, 255)) + ids,
        "version 3 add": add(ledger, 2, b"x").replace(b"\x02\x01", b"\x03\x01", 1),
        "version 3 opcode 99": PREFIX.pack(20, header(99, 0, 3)) + ids,
        "extension operation 99": PREFIX.pack(20, header(99, 0, 0x4F)) + ids,
        "read with bytes to spare": PREFIX.pack(23, header(2)) + ids + b"abc",
        "read of a negative ledger": read_request(-5, 0),
        "read of a negative entry": read_request(ledger, -5),
    }


def malformed_adds(ledger: int) -> dict[str, bytes]:
    ids = ledger.to_bytes(8, "big") + bytes(8)
    no_lac_and_length = b"\xff" * 8 + bytes(8)
    return {
        "add without entry": PREFIX.pack(24, header(1)) + KEY,
        "add cut short in the key": PREFIX.pack(14, header(1)) + KEY[:10],
        "add cut short in the ids": PREFIX.pack(32, header(1)) + KEY + ids[:8],
        "add of a header without digest": PREFIX.pack(56, header(1))
        + KEY
        + ids
        + no_lac_and_length,
        "add of a negative ledger": add(-5, 0, b"x"),
        "add of the last entry id of all": add(ledger, 2**63 - 1, b"x", lac=0, length=1),
    }


@step
async def broken_frames(port: int, ledger: int) -> AsyncIterator[str]:
    """frames that are wrong, each followed by a good read on the same connection"""
    async with await Talk.with_bookie(port) as talk:
        async for line in say(talk, *adds(ledger, 0, 2)):
            yield line
    good = read_request(ledger, 1)
    for what, frame in malformed_reads(ledger).items():
        said = await answers_until(port, frame, good, f"read entry 1 of ledger {ledger}")
        yield f"{what}: {said}"


@step
async def broken_adds(port: int, ledger: int) -> AsyncIterator[str]:
    """adds that are wrong, each followed by a good add on the same connection"""
    for number, (what, frame) in enumerate(malformed_adds(ledger).items()):
        at = ledger + 500 + number
        said = await answers_until(port, frame, add(at, 7, b"good"), f"added 7…7 of ledger {at}")
        yield f"{what}: {said}"


class Deliberate(NamedTuple):
    frame: Callable[[int], bytes]
    why: str
    apache: str
    octavo: str


ODD_LEDGER = 2000
DELIBERATE = {
    "add of a negative entry": Deliberate(
        lambda ledger: add(ledger, -5, b"x"),
        "no reader could ever ask for it",
        "added -5…-5 of ledger 2000",
        "add of entry -5 of ledger 2000: 100 BAD_REQUEST",
    ),
    "add that ends within the entry's header": Deliberate(
        lambda ledger: PREFIX.pack(40, header(1)) + KEY + ledger.to_bytes(8, "big") + bytes(8),
        "a frame shorter than its form ends the connection, always",
        "add of entry 0 of ledger 2000: 100 BAD_REQUEST",
        "the bookie hung up",
    ),
    "add of another entry under an id that is taken": Deliberate(
        lambda ledger: add(ledger, 3, b"first") + add(ledger, 3, b"other"),
        "an entry has one content for ever; the same again is a success",
        "added 3…3 of ledger 2000; added 3…3 of ledger 2000",
        "added 3…3 of ledger 2000; add of entry 3 of ledger 2000: 100 BAD_REQUEST",
    ),
    "add that claims to be confirmed itself": Deliberate(
        lambda ledger: add(ledger, 4, b"x", lac=4),
        "no writer knows that before it has the answer; recovery adds may say so",
        "added 4…4 of ledger 2000",
        "add of entry 4 of ledger 2000: 100 BAD_REQUEST",
    ),
    "read of protocol version 1": Deliberate(
        lambda ledger: PREFIX.pack(20, header(2, 0, 1)) + bytes(7) + b"\x05" + bytes(8),
        "version 2 came in 2012; what version 1 meant is not promised",
        "bytes 00000018 01020000 00000001 00000000 00000005 00000000 00000000",
        "bytes 00000018 01020000 00000067 00000000 00000005 00000000 00000000",
    ),
}


async def deliberate(port: int, what: str) -> str:
    end = f"added 7…7 of ledger {ODD_LEDGER + 1}"
    frame = DELIBERATE[what].frame(ODD_LEDGER)
    return await answers_until(port, frame, add(ODD_LEDGER + 1, 7, b"good"), end)


async def answers_until(port: int, frame: bytes, good: bytes, end: str) -> str:
    """Return the answers to `frame`, next to the answer to `good`, which begins with `end`."""
    async with await Talk.with_bookie(port) as talk:
        # Settles that this connection speaks v2: Apache's bookie decides by the first frame.
        await talk.ask(read_request(1, 0))
        texts = [told(answer) for answer in await talk.ask(frame, good)]
    # Reads are answered in any order, and a good read before the bad frame may get through.
    said = [text for text in texts if not text.startswith(end)]
    return "; ".join(said) or "the bookie hung up"
