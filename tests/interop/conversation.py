"""Parts of the conversation: frames, and the notation of their answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import tests.interop.conversation  # noqa: F401
from octavo.protocol.answers import Added, AddRefused, ReadAnswer
from octavo.protocol.codes import Code
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry, unpack_entry
from octavo.protocol.frames import (
    LENGTH,
    PREFIX,
    Flag,
    add_prefix,
    auth_frame,
    batch_read_request,
    header,
    read_request,
)
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX, FRAME_BYTES_MAX
from tests.interop.processes import VERSION, OurBookie, Peer
from tests.interop.talk import Checks, Talk, joined, told

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


@step
async def pipelined(port: int, ledger: int) -> AsyncIterator[str]:
    """2,000 adds in one write, then reads of some of them"""
    async with await Talk.with_bookie(port) as talk:
        async for line in say(talk, *adds(ledger, 0, 2000)):
            yield line
        for entry in (0, 1, 1000, 1999, -1):
            async for line in say(talk, read_request(ledger, entry)):
                yield line


@step
async def two_ledgers(port: int, ledger: int) -> AsyncIterator[str]:
    """adds to two ledgers interleaved"""
    async with await Talk.with_bookie(port) as talk:
        both = zip(adds(ledger, 0, 50), adds(ledger + 500, 0, 50), strict=True)
        answers = await talk.ask(*itertools.chain.from_iterable(both))
        for at in (ledger, ledger + 500):
            for answer in joined(one for one in answers if getattr(one, "ledger_id", None) == at):
                yield told(answer)
        async for line in say(talk, read_request(ledger, -1), raw=False):
            yield line
        async for line in say(talk, read_request(ledger + 500, -1), raw=False):
            yield line


@step
async def digests(port: int, ledger: int) -> AsyncIterator[str]:
    """an entry under each digest, with a password"""
    async with await Talk.with_bookie(port) as talk:
        for kind in DigestType:
            digest = digest_for(kind, b"secret")
            at = ledger + 500 + kind
            packed = pack_entry(digest, at, 0, -1, 7, b"payload")
            asked = add_prefix(master_key(b"secret"), len(packed)) + packed
            answers = await talk.ask(asked)
            answers += await talk.ask(read_request(at, 0))
            for answer in answers:
                yield f"{kind.name}: {told(answer, digest)}"


@step
async def sizes(port: int, ledger: int) -> AsyncIterator[str]:
    """payloads of nothing, of 64 KiB, and of the most that our limit allows"""
    async with await Talk.with_bookie(port) as talk:
        for entry, size in enumerate((0, 1, 65_536, 1_000_000, ENTRY_PAYLOAD_BYTES_MAX)):
            async for line in say(talk, add(ledger, entry, payload_of(entry, size))):
                yield line
            async for line in say(talk, read_request(ledger, entry)):
                yield line


@step
async def frame_at_the_bound(port: int, ledger: int) -> AsyncIterator[str]:
    """frames of 5 MiB, length included, and of one byte more"""
    for surplus in (0, 1):
        async with await Talk.with_bookie(port) as talk:
            overhead = len(add(ledger, 0, b""))
            payload = bytes(FRAME_BYTES_MAX - overhead + surplus)
            async for line in say(talk, add(ledger, surplus, payload), raw=False):
                yield f"{surplus} more: {line}"


@step
async def unknown(port: int, ledger: int) -> AsyncIterator[str]:
    """what is not there: ledger, entry, last entry of an unknown ledger"""
    async with await Talk.with_bookie(port) as talk:
        async for line in say(talk, read_request(ledger, 0)):
            yield line
        async for line in say(talk, read_request(ledger, -1)):
            yield line
        async for line in say(talk, *adds(ledger, 0, 3)):
            yield line
        for entry in (3, 4_000_000_000, 2**62):
            async for line in say(talk, read_request(ledger, entry)):
                yield line


@step
async def gaps(port: int, ledger: int) -> AsyncIterator[str]:
    """a bookie that holds every third entry, as in a striped ledger"""
    async with await Talk.with_bookie(port) as talk:
        frames = [add(ledger, entry, payload_of(entry)) for entry in range(0, 30, 3)]
        async for line in say(talk, *frames):
            yield line
        for entry in (3, 4, 27, 28, -1):
            async for line in say(talk, read_request(ledger, entry)):
                yield line


@step
async def backwards(port: int, ledger: int) -> AsyncIterator[str]:
    """entries in descending order, one of them twice"""
    async with await Talk.with_bookie(port) as talk:
        for entry in (5, 4, 3, 4, 0):
            async for line in say(talk, add(ledger, entry, payload_of(entry))):
                yield line
        for entry in (-1, 0, 4, 2):
            async for line in say(talk, read_request(ledger, entry)):
                yield line


@step
async def repeated(port: int, ledger: int) -> AsyncIterator[str]:
    """the same entry again, alone and among new ones; other bytes: see `DELIBERATE`"""
    async with await Talk.with_bookie(port) as talk:
        for _ in range(2):
            async for line in say(talk, *adds(ledger, 0, 1)):
                yield line
        async for line in say(talk, read_request(ledger, 0)):
            yield line
        async for line in say(talk, *adds(ledger, 0, 3)):
            yield line
        async for line in say(talk, read_request(ledger, 0)):
            yield line


@step
async def wrong_key(port: int, ledger: int) -> AsyncIterator[str]:
    """a wrong master key neither adds nor fences"""
    async with await Talk.with_bookie(port) as talk:
        async for line in say(talk, add(ledger, 0, b"x" * 10)):
            yield line
        async for line in say(talk, add(ledger, 1, b"x" * 10, key=OTHER_KEY)):
            yield line
        async for line in say(talk, add(ledger, 1, b"x" * 10, key=OTHER_KEY, flags=RECOVERY)):
            yield line
        async for line in say(talk, read_request(ledger, -1, FENCE, OTHER_KEY)):
            yield line
        async for line in say(talk, read_request(ledger, 0, FENCE, OTHER_KEY)):
            yield line
        async for line in say(talk, add(ledger, 1, b"x" * 10)):
            yield line


@step
async def fence(port: int, ledger: int) -> AsyncIterator[str]:
    """fence by the last-entry read; adds after it; recovery adds after it"""
    async with await Talk.with_bookie(port) as talk, await Talk.with_bookie(port) as other:
        async for line in say(talk, *adds(ledger, 0, 5)):
            yield line
        async for line in say(other, read_request(ledger, -1, FENCE, KEY)):
            yield line
        async for line in say(talk, *adds(ledger, 5, 2)):
            yield line
        async for line in say(other, *adds(ledger, 4, 3, RECOVERY)):
            yield line
        async for line in say(talk, add(ledger, 7, payload_of(7))):
            yield line
        async for line in say(other, read_request(ledger, -1, FENCE, KEY)):
            yield line
        for entry in (4, 5, 6, 7):
            async for line in say(other, read_request(ledger, entry)):
                yield line


@step
async def recovery_read(port: int, ledger: int) -> AsyncIterator[str]:
    """fence by the read of one entry, there or not"""
    async with await Talk.with_bookie(port) as talk:
        for at in (ledger, ledger + 500):
            async for line in say(talk, *adds(at, 0, 2)):
                yield line
        async for line in say(talk, read_request(ledger, 0, FENCE, KEY)):
            yield line
        async for line in say(talk, add(ledger, 2, payload_of(2))):
            yield line
        async for line in say(talk, read_request(ledger + 500, 2, FENCE, KEY)):
            yield line
        async for line in say(talk, add(ledger + 500, 2, payload_of(2))):
            yield line


@step
async def fence_unknown(port: int, ledger: int) -> AsyncIterator[str]:
    """fence a ledger that the bookie never heard of"""
    async with await Talk.with_bookie(port) as talk:
        async for line in say(talk, read_request(ledger, -1, FENCE, KEY)):
            yield line
        async for line in say(talk, add(ledger, 0, payload_of(0))):
            yield line
        async for line in say(talk, read_request(ledger, 0, FENCE, KEY)):
            yield line
        async for line in say(talk, read_request(ledger, 0)):
            yield line
        async for line in say(talk, add(ledger, 0, payload_of(0), flags=RECOVERY)):
            yield line
        async for line in say(talk, read_request(ledger, -1)):
            yield line


@step
async def fence_in_a_pipeline(port: int, ledger: int) -> AsyncIterator[str]:
    """adds, a fence and more adds in one write: where the cut falls is the bookie's affair"""
    async with await Talk.with_bookie(port) as talk:
        frames = [
            *adds(ledger, 0, 100),
            read_request(ledger, -1, FENCE, KEY),
            *adds(ledger, 100, 3),
        ]
        answers = await talk.ask(*frames)
        added = {
            entry
            for answer in answers
            if isinstance(answer, Added)
            for entry in range(answer.first, answer.last + 1)
        }
        refused = {answer.entry_id for answer in answers if isinstance(answer, AddRefused)}
        fenced = [answer for answer in answers if isinstance(answer, ReadAnswer)]
        once = added | refused == set(range(103)) and not added & refused
        yield f"each add answered once: {once}"
        yield f"acked is a prefix: {added == set(range(len(added)))}"
        codes = {answer.code for answer in answers if isinstance(answer, AddRefused)}
        yield f"every refusal says that it is fenced: {codes <= {Code.FENCED}}"
        talk.heard()
        # Apache's fence runs on other threads than adds and may overtake every one of them.
        [fence] = fenced
        none = fence.code == Code.NO_ENTRY
        last = -1 if none else unpack_entry(CRC32C, ledger, -1, fence.entry).entry_id
        yield f"the fencing read saw every acked entry: {last >= max(added, default=-1)}"
        async for line in say(talk, add(ledger, 103, payload_of(103))):
            yield line


@step
async def wrong_digest(port: int, ledger: int) -> AsyncIterator[str]:
    """an entry whose digest is wrong is stored: a v2 bookie does not look"""
    async with await Talk.with_bookie(port) as talk:
        frame = bytearray(add(ledger, 0, b"payload"))
        frame[-1] ^= 1
        answers = await talk.ask(bytes(frame))
        answers += await talk.ask(read_request(ledger, 0))
        for answer in answers:
            yield told(answer)


@step
async def our_flags(port: int, ledger: int) -> AsyncIterator[str]:
    """adds with CRC32C and RANGE_ACK: acked one by one or by runs, it comes to the same"""
    async with await Talk.with_bookie(port) as talk:
        flags = int(Flag.CRC32C | Flag.RANGE_ACK)
        async for line in say(talk, *adds(ledger, 0, 500, flags), raw=False):
            yield line
        talk.heard()
        async for line in say(talk, read_request(ledger, -1)):
            yield line


@step
async def high_priority(port: int, ledger: int) -> AsyncIterator[str]:
    """adds and reads of high priority, and bits that nobody knows"""
    async with await Talk.with_bookie(port) as talk:
        for entry, flags in enumerate((int(Flag.HIGH_PRIORITY), 0x0008, 0x8000)):
            async for line in say(talk, add(ledger, entry, payload_of(entry), flags=flags)):
                yield line
            async for line in say(talk, read_request(ledger, entry, flags)):
                yield line


@step
async def auth(port: int, ledger: int) -> AsyncIterator[str]:
    """authentication is declined"""
    async with await Talk.with_bookie(port) as talk:
        async for line in say(talk, auth_frame("SomePlugin", b"token")):
            yield line
        async for line in say(talk, add(ledger, 0, payload_of(0))):
            yield line


@step
async def batch_reads(port: int, ledger: int) -> AsyncIterator[str]:
    """batch reads: by count, by size, past the end, across a gap, with a fence"""
    async with await Talk.with_bookie(port) as talk:
        frames = [add(ledger, entry, payload_of(entry)) for entry in (0, 1, 2, 3, 4, 6, 7)]
        async for line in say(talk, *frames):
            yield line
        # Start, count, bytes; an entry has 136.
        asks = [(0, 3, 10_000), (0, 100, 10_000), (3, 100, 10_000), (5, 2, 10_000)]
        asks += [(6, 100, 10_000), (8, 1, 10_000), (0, 1, 10_000), (7, 1, 10_000)]
        asks += [(0, 5, size) for size in (1, 300, 311, 312, 313, 315, 316, 317, 408, 456)]
        asks += [(0, 0, 10_000), (0, -1, 10_000), (0, 3, 0), (0, 3, -1), (0, 0, 0)]
        for number, (start, count, size) in enumerate(asks):
            yield f"from {start}, {count} entries, {size} bytes:"
            async for line in say(talk, batch_read_request(ledger, start, number, count, size)):
                yield line
        async for line in say(talk, batch_read_request(ledger + 500, 0, 99, 3, 10_000)):
            yield line
        fencing = batch_read_request(ledger, 0, 100, 1, 10_000, FENCE, KEY)
        async for line in say(talk, fencing):
            yield line
        async for line in say(talk, add(ledger, 8, payload_of(8))):
            yield line


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


WRITTEN, FENCED, FENCED_UNHEARD, RECOVERED, UNHEARD = range(3000, 3005)


@step
async def before_restart(port: int, ledger: int) -> AsyncIterator[str]:
    """what will be asked again after kill −9: entries, a fence, a fence without a ledger"""
    async with await Talk.with_bookie(port) as talk:
        for at in (WRITTEN, FENCED, RECOVERED):
            async for line in say(talk, *adds(at, 0, 500)):
                yield line
        for at in (FENCED, FENCED_UNHEARD, RECOVERED):
            async for line in say(talk, read_request(at, -1, FENCE, KEY)):
                yield line
        async for line in say(talk, *adds(RECOVERED, 499, 3, RECOVERY)):
            yield line


@step_after_restart
async def entries_after(port: int, ledger: int) -> AsyncIterator[str]:
    """after kill −9: every acked entry is there"""
    async with await Talk.with_bookie(port) as talk:
        for at in (WRITTEN, FENCED, RECOVERED):
            for entry in (0, 250, 499, 501, -1):
                async for line in say(talk, read_request(at, entry)):
                    yield line
            async for line in say(talk, batch_read_request(at, 0, 1, 600, 200_000)):
                yield line
        async for line in say(talk, read_request(UNHEARD, 0)):
            yield line


@step_after_restart
async def keys_after(port: int, ledger: int) -> AsyncIterator[str]:
    """after kill −9: master keys are remembered"""
    async with await Talk.with_bookie(port) as talk:
        async for line in say(talk, add(WRITTEN, 500, b"x", key=OTHER_KEY)):
            yield line
        async for line in say(talk, read_request(WRITTEN, 0, FENCE, OTHER_KEY)):
            yield line
        async for line in say(talk, add(WRITTEN, 500, payload_of(500))):
            yield line


@step_after_restart
async def fences_after(port: int, ledger: int) -> AsyncIterator[str]:
    """after kill −9: fences hold, recovery passes them"""
    async with await Talk.with_bookie(port) as talk:
        for at in (FENCED, RECOVERED):
            async for line in say(talk, add(at, 502, payload_of(502))):
                yield line
            async for line in say(talk, add(at, 502, payload_of(502), flags=RECOVERY)):
                yield line
            async for line in say(talk, read_request(at, -1)):
                yield line


async def forgotten_fence(checks: Checks, ports: tuple[int, int]) -> None:
    said: list[str] = []
    for port in ports:
        async with await Talk.with_bookie(port) as talk:
            answers = await talk.ask(add(FENCED_UNHEARD, 0, payload_of(0)))
            said += [told(answer) for answer in answers]
    checks.equal(
        "Apache's forgets the fence of a ledger without entries, ours does not",
        said,
        [
            f"added 0…0 of ledger {FENCED_UNHEARD}",
            f"add of entry 0 of ledger {FENCED_UNHEARD}: 104 FENCED",
        ],
    )


async def compare(
    checks: Checks, ports: tuple[int, int], steps: list[Step], first_ledger: int, aloud: bool
) -> None:
    theirs, again = [await transcript(port, steps, first_ledger) for port in ports]
    differing = 0
    for number, (one, other) in enumerate(itertools.zip_longest(theirs, again), 1):
        if one != other:
            differing += 1
            print(f"  line {number}\n    Apache: {one}\n    Octavo: {other}")
        elif aloud or (one or "").startswith("—"):
            print(f"  = {one}")
    checks.holds(
        f"the two transcripts are equal: {len(theirs)} lines",
        not differing,
        f"{differing} lines differ, see above",
    )


async def transcripts(checks: Checks, peer: Peer, node: OurBookie, aloud: bool) -> None:
    ports = (peer.bookie.port, node.port)
    checks.title(f"one conversation, with Apache BookKeeper {VERSION} and with Octavo")
    await compare(checks, ports, STEPS, 1001, aloud)

    checks.title("where Octavo answers otherwise on purpose")
    for what, wanted in DELIBERATE.items():
        found = tuple([await deliberate(port, what) for port in ports])
        checks.equal(f"{what}: {wanted.why}", found, (wanted.apache, wanted.octavo))

    checks.title("the conversation goes on after kill −9 and a restart of both")
    for bookie_kill in (peer.bookie.kill, node.kill):
        bookie_kill()
    for bookie_start in (peer.bookie.start, node.start):
        await asyncio.to_thread(bookie_start)
    await compare(checks, ports, STEPS_AFTER_RESTART, 2001, aloud)
    await forgotten_fence(checks, ports)
