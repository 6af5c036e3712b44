"""The requests to a bookie, Apache's or ours, and the transcript of its answers. Each step has
its own ledger, and its own connection where the bookie may end it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

from octavo.protocol.answers import Added, AddRefused, ReadAnswer
from octavo.protocol.codes import Code
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry, unpack_entry
from octavo.protocol.frames import Flag, add_prefix, auth_frame, batch_read_request, read_request
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX, FRAME_BYTES_MAX
from tests.interop.phrases import (
    CRC32C,
    FENCE,
    KEY,
    OTHER_KEY,
    RECOVERY,
    add,
    adds,
    payload_of,
    say,
    step,
)
from tests.interop.talk import Talk, joined, told


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
