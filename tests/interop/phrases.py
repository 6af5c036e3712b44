"""Parts of the conversation: frames, and the notation of their answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry
from octavo.protocol.frames import Flag, add_prefix
from tests.interop.talk import Talk, told

CRC32C = digest_for(DigestType.CRC32C, b"")
KEY = master_key(b"")
OTHER_KEY = master_key(b"another")
FENCE, RECOVERY = int(Flag.FENCE), int(Flag.RECOVERY_ADD)

Step = Callable[[int, int], AsyncIterator[str]]
STEPS: list[Step] = []
STEPS_AFTER_RESTART: list[Step] = []
"""Second halves of steps, which run again after kill −9."""


def step(function: Step) -> Step:
    """Register a step: it gets the port and a ledger id, and yields lines."""
    STEPS.append(function)
    return function


def step_after_restart(function: Step) -> Step:
    STEPS_AFTER_RESTART.append(function)
    return function


async def transcript(port: int, steps: list[Step], first_ledger: int) -> list[str]:
    lines: list[str] = []
    for ledger, one in enumerate(steps, first_ledger):
        lines.append(f"— {(one.__doc__ or '').strip()}")
        lines += [line async for line in one(port, ledger)]
    return lines


def add(
    ledger: int,
    entry: int,
    payload: bytes,
    *,
    flags: int = 0,
    key: bytes = KEY,
    lac: int | None = None,
    length: int | None = None,
) -> bytes:
    if length is None:
        length = (entry + 1) * len(payload)
    packed = pack_entry(CRC32C, ledger, entry, entry - 1 if lac is None else lac, length, payload)
    return add_prefix(key, len(packed), flags) + packed


def payload_of(entry: int, size: int = 100) -> bytes:
    return (b"%08d" % entry * (size // 8 + 1))[:size]


def adds(ledger: int, first: int, count: int, flags: int = 0) -> list[bytes]:
    return [
        add(ledger, entry, payload_of(entry), flags=flags) for entry in range(first, first + count)
    ]


async def say(talk: Talk, *frames: bytes, raw: bool = True) -> AsyncIterator[str]:
    """Send in one write; yield a line for each answer, and a line for the bytes of all."""
    for answer in await talk.ask(*frames):
        yield told(answer, CRC32C)
    if raw:
        yield f"  {talk.heard()}"
    if talk.closed:
        yield "  the bookie hung up"
