"""Unruly clients that speak v3 to the bookies: broken frames, half frames, long polls."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

from octavo.bookie.config import BookieConfig
from octavo.protocol.codes import Code
from octavo.protocol.frames import LENGTH, read_request
from octavo.protocol.limits import FRAME_BYTES_MAX
from octavo.protocol.v3 import STATUS, Op
from octavo.protocol.v3_schema import ResponseMessage
from tests.attack.attempts_costly import HELD_S
from tests.attack.world import World, attempt, open_to
from tests.fuzz.test_fuzzed_readers import mutated
from tests.fuzz.test_v3_by_hand import READ_BODY, add_fields, changed, frame, header
from tests.support.raw_bookie import KEY, RawClient, add_of, entry_of
from tests.support.v3_frames import V3Client, add_frame, framed, read_frame, request_frame

OWN = 10**15 + 10**6
"""Ledgers of these attempts have ids from here on, and no others do."""
CLOSED = -1
"""The answer to a broken frame: the connection ends."""
ENDED_S = 10.0
LONG_POLLS_MAX = BookieConfig(
    journal_directories=("/j",), ledger_directories=("/l",)
).long_polls_max
OK, TOO_MANY = STATUS[Code.OK], STATUS[Code.TOO_MANY_REQUESTS]


@contextlib.asynccontextmanager
async def client_of(address: tuple[str, int]) -> AsyncIterator[V3Client]:
    client = V3Client(*await open_to(address))
    try:
        yield client
    finally:
        client.writer.transport.abort()


async def ended(client: V3Client) -> bytes:
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(ENDED_S):
            return await client.reader.read()
    return b""


def head_alone(op: int, txn: int = 1, version: int = 3) -> bytes:
    return request_frame(op, txn, version=version)[LENGTH.size :]


class Wrong(NamedTuple):
    name: str
    frame: bytes
    status: int


HEAD = b"\x0a\x06\x08\x03\x10\x02\x18\x01"
WRONG = [
    Wrong("nothing in it", framed(b""), CLOSED),
    Wrong("a length without measure", b"\x7f\xff\xff\xff" + HEAD, CLOSED),
    Wrong("a length below zero", b"\xff\xff\xff\xff" + HEAD, CLOSED),
    Wrong("a byte longer than the bound", struct.pack(">I", FRAME_BYTES_MAX - 3) + HEAD, CLOSED),
    Wrong("an add longer than its frame", framed(HEAD + b"\xaa\x06\x7f"), CLOSED),
    Wrong("an add of 4 GiB", framed(HEAD + b"\xaa\x06\xff\xff\xff\xff\x0f"), CLOSED),
    Wrong("a varint that does not end", framed(b"\x0a" + b"\xff" * 40), CLOSED),
    Wrong("a group that does not end", framed(HEAD + b"\x0b"), CLOSED),
    Wrong("groups, one in the other", framed(HEAD + b"\x0b" * 100_000), CLOSED),
    Wrong("a wire type that is none", framed(HEAD + b"\x0e" * 20), CLOSED),
    Wrong("no txn", framed(b"\x0a\x04\x08\x03\x10\x02"), CLOSED),
    Wrong("an add of nothing", framed(HEAD + b"\xaa\x06\x00"), CLOSED),
    Wrong("an add without a key", request_frame(Op.ADD, 1, "addRequest", ledgerId=OWN, entryId=0,
          body=entry_of(OWN, 0)), CLOSED),
    Wrong("an add without a body", request_frame(Op.ADD, 1, "addRequest", ledgerId=OWN, entryId=0,
          masterKey=KEY), CLOSED),
    Wrong("a read without an entry", request_frame(Op.READ, 1, "readRequest", ledgerId=1), CLOSED),
    Wrong("a LAC without its bytes", request_frame(Op.WRITE_LAC, 1, "writeLacRequest",
          ledgerId=OWN, lac=1, masterKey=KEY), CLOSED),
    Wrong("a LAC of a ledger below zero", request_frame(Op.READ_LAC, 1, "readLacRequest",
          ledgerId=-1), STATUS[Code.BAD_REQUEST]),
    Wrong("an add to a ledger below zero", add_frame(-1, 0), STATUS[Code.BAD_REQUEST]),
    Wrong("an add of no entry", add_frame(OWN, 0, body=b"short"), STATUS[Code.BAD_REQUEST]),
    Wrong("an add of another entry", add_frame(OWN, 0, body=entry_of(OWN, 1)),
          STATUS[Code.BAD_REQUEST]),
    Wrong("a false LAC", add_frame(OWN, 0, body=entry_of(OWN, 0, lac=2**62)),
          STATUS[Code.BAD_REQUEST]),
    Wrong("a short key", add_frame(OWN, 0, key=b"k"), STATUS[Code.UNAUTHORIZED]),
    Wrong("a fence without a key", read_frame(OWN, 0, flag=1), STATUS[Code.UNAUTHORIZED]),
    Wrong("a read below zero", read_frame(-5, -7), STATUS[Code.NO_LEDGER]),
    Wrong("an add without an add", framed(head_alone(Op.ADD)), STATUS[Code.BAD_REQUEST]),
    Wrong("an add in a read", request_frame(Op.ADD, 1, "readRequest", ledgerId=1, entryId=1),
          STATUS[Code.BAD_REQUEST]),
    *(Wrong(f"operation {op}", framed(head_alone(op)), STATUS[Code.BAD_REQUEST])
      for op in (0, 3, 4, 12, 2**31 - 1, -1)),
    *(Wrong(f"version {version}", framed(head_alone(Op.READ, version=version)),
            STATUS[Code.BAD_VERSION]) for version in (0, 1, 2, 4, -1)),
]  # fmt: skip


def enter_wrong(wrong: Wrong) -> None:
    async def run(world: World) -> None:
        for address in world.bookies:
            async with client_of(address) as client:
                client.send(wrong.frame)
                if wrong.status == CLOSED:
                    assert not await ended(client), "it was answered"
                else:
                    assert (await client.answer()).status == wrong.status
                    await still_serves(client)

    attempt(f"v3 frame: {wrong.name}")(run)


for one in WRONG:
    enter_wrong(one)


async def still_serves(client: V3Client) -> None:
    until = time.monotonic() + ENDED_S
    while True:
        client.send(read_frame(2**62, 0, txn=4711))
        answer = await client.answer()
        assert answer.header.txnId == 4711
        if answer.status != TOO_MANY:
            break
        assert time.monotonic() < until, "it is always told to come later"
    assert answer.status == STATUS[Code.NO_LEDGER]


@attempt("v3, then v2 on the same connection, then v3 again")
async def protocols_mixed(world: World) -> None:
    for address in world.bookies:
        for _ in range(20):
            async with client_of(address) as client:
                assert await client.add(OWN + 1, 0) == OK
                client.send(add_frame(OWN + 1, 1) + add_of(OWN + 1, 2))
                assert (await client.answer()).status == OK
                raw = RawClient(client.reader, client.writer)
                assert await raw.acked(1) == [(OWN + 1, 2)]
                client.send(add_frame(OWN + 1, 3))
                assert not await ended(client), "v2 for good"
            async with client_of(address) as client:
                client.send(read_request(2**62, 0) + add_frame(OWN + 1, 3))
                raw = RawClient(client.reader, client.writer)
                assert len(await raw.answers_until_closed()) <= 1


@attempt("v3 frames byte by byte, over a hundred connections")
async def in_pieces(world: World) -> None:
    data = b"".join(add_frame(OWN + 2, entry, txn=entry) for entry in range(3))

    async def dribble(address: tuple[str, int]) -> None:
        async with client_of(address) as client:
            for place in range(len(data)):
                client.send(data[place : place + 1])
                await client.writer.drain()
                await asyncio.sleep(0)
            assert {(await client.answer()).status for _ in range(3)} == {OK}

    await asyncio.gather(*(dribble(world.bookies[n % len(world.bookies)]) for n in range(100)))


@attempt("v3 adds of 5 MiB from many at once, and of a byte more")
async def longest(world: World) -> None:
    entry = entry_of(OWN + 3, 0, bytes(FRAME_BYTES_MAX - 150))
    spare = FRAME_BYTES_MAX - len(add_frame(OWN + 3, 0, body=entry))

    def of(ledger: int, surplus: int) -> bytes:
        body = entry_of(ledger, 0, bytes(FRAME_BYTES_MAX - 150 + spare + surplus))
        data = add_frame(ledger, 0, body=body)
        assert len(data) == FRAME_BYTES_MAX + surplus
        return data

    async def add(number: int) -> None:
        async with client_of(world.bookies[0]) as client:
            client.send(of(OWN + 3 + number, 0))
            assert (await client.answer()).status in (OK, TOO_MANY)
            client.send(of(OWN + 3 + number, 1))
            assert not await ended(client)

    await asyncio.gather(*(add(number) for number in range(16)))


@attempt("v3 adds that announce 5 MiB and stand still")
async def announced(world: World) -> None:
    begun = LENGTH.pack(FRAME_BYTES_MAX - LENGTH.size) + add_frame(OWN, 0)[LENGTH.size :]
    async with connections(world, 500, begun + bytes(20_000)):
        await asyncio.sleep(HELD_S)
        async with client_of(world.bookies[0]) as client:
            assert await client.add(OWN + 30, 0) in (OK, TOO_MANY)


class Chance:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def chunk(self) -> bytes:
        data = b"".join(self._frame() for _ in range(self._rng.choice((1, 2, 20, 60))))
        return mutated(data, self._rng.randbytes(8)) if self._rng.random() < 0.5 else data

    def _frame(self) -> bytes:
        rng = self._rng
        ledger, entry, txn = OWN + 50 + rng.randrange(3), rng.randrange(40), rng.randrange(2**40)
        program = rng.randbytes(rng.choice((0, 0, 3, 6)))
        how = rng.randrange(6)
        if how <= 1:
            fields = add_fields(ledger, entry)
            return frame(changed(header(Op.ADD, txn), program), changed(fields, program[::-1]))
        if how == 2:
            fields = add_fields(ledger, entry)[:3]
            return frame(header(Op.READ, txn), changed(fields, program), READ_BODY)
        if how == 3:
            poll = {"previousLAC": rng.choice((-1, 3, 2**62)), "timeOut": rng.choice((0, 50_000))}
            return read_frame(ledger, entry, txn=txn, flag=rng.choice((None, 2)), **poll)
        op = rng.choice([*Op, 0, 3, 99])
        names = {
            8: "getBookieInfo",
            7: "readLac",
            10: "forceLedger",
            11: "getListOfEntriesOfLedger",
        }
        if op in names and op != 8:
            return request_frame(op, txn, f"{names[op]}Request", ledgerId=ledger)
        return request_frame(op, txn, version=rng.choice((3, 3, 2)))


@attempt("v3 frames by a fuzzer, each answered or the end of its connection")
async def by_chance(world: World) -> None:
    until = time.monotonic() + HELD_S

    async def work(number: int) -> None:
        chance = Chance(random.Random(f"v3 {number}"))
        while time.monotonic() < until:
            data = chance.chunk()
            async with client_of(world.bookies[number % len(world.bookies)]) as client:
                with contextlib.suppress(OSError):
                    for start in range(0, len(data), 1000):
                        client.send(data[start : start + 1000])
                        await client.writer.drain()
                    client.writer.write_eof()
                try:
                    await ended(client)
                except TimeoutError:
                    raise AssertionError(f"it hangs at {data[:500].hex()}") from None

    await asyncio.gather(*(work(number) for number in range(12)))


@contextlib.asynccontextmanager
async def connections(world: World, count: int, data: bytes) -> AsyncIterator[list[V3Client]]:
    made: list[V3Client] = []
    try:
        for start in range(0, count, 200):
            some = await asyncio.gather(
                *(open_to(world.bookies[0]) for _ in range(min(200, count - start)))
            )
            made += [V3Client(*one) for one in some]
            for client in made[start:]:
                client.send(data)
        yield made
    finally:
        for client in made:
            client.writer.transport.abort()


def polls(ledger: int, count: int = 1, lac: int = 0) -> bytes:
    return b"".join(
        read_frame(ledger, 1, txn=txn, previousLAC=lac, timeOut=60_000) for txn in range(count)
    )


async def statuses(client: V3Client, count: int) -> list[int]:
    found = []
    for _ in range(count):
        length = LENGTH.unpack(await client.reader.readexactly(LENGTH.size))[0]
        found.append(ResponseMessage.FromString(await client.reader.readexactly(length)).status)
    return found


async def begun(world: World, ledger: int) -> None:
    async with client_of(world.bookies[0]) as client:
        for entry in range(2):
            assert await client.add(ledger, entry) == OK


async def wake(world: World, ledger: int, entry: int = 2) -> None:
    async with client_of(world.bookies[0]) as client:
        assert await client.add(ledger, entry) == OK


async def is_free(world: World, ledger: int) -> None:
    async with asyncio.timeout(ENDED_S):
        while True:
            async with client_of(world.bookies[0]) as client:
                client.send(read_frame(ledger, 1, previousLAC=0, timeOut=1))
                if await statuses(client, 1) == [OK]:
                    return
            await asyncio.sleep(0.05)


async def poll_and_vanish(world: World, ledger: int, clients: int) -> None:
    await begun(world, ledger)
    async with connections(world, clients, polls(ledger)) as made:
        refused = max(0, clients - LONG_POLLS_MAX)
        answers = [asyncio.ensure_future(statuses(client, 1)) for client in made]
        async with asyncio.timeout(240):
            while sum(one.done() for one in answers) < refused:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        async with client_of(world.bookies[0]) as other:
            await still_serves(other)
        if refused:
            async with client_of(world.bookies[0]) as other:
                other.send(polls(ledger))
                assert await statuses(other, 1) == [TOO_MANY]
        woken = time.monotonic()
        await wake(world, ledger)
        async with asyncio.timeout(240):
            found = [status for one in await asyncio.gather(*answers) for status in one]
        took = time.monotonic() - woken
        assert sorted(found) == sorted([OK] * (clients - refused) + [TOO_MANY] * refused)
        print(f"      {clients - refused} long polls answered in {took:.2f} s", flush=True)
        for client in made:
            client.send(polls(ledger, lac=1))
        await asyncio.sleep(1)
    await is_free(world, ledger)


@attempt("v3 long polls of 500 connections that vanish")
async def polls_of_some(world: World) -> None:
    await poll_and_vanish(world, OWN + 100, 500)


@attempt("v3 long polls of 9,900 connections that vanish", long=True)
async def polls_of_many(world: World) -> None:
    for number in range(2):
        await poll_and_vanish(world, OWN + 110 + number, 9_900)


@attempt("v3 long polls by the hundred thousand, over few connections")
async def polls_in_heaps(world: World) -> None:
    ledger, each = OWN + 120, 5_000
    await begun(world, ledger)
    async with connections(world, 20, b"") as made:

        async def heap(client: V3Client) -> list[int]:
            client.send(polls(ledger, each))
            return await statuses(client, each)

        answers = [asyncio.ensure_future(heap(client)) for client in made]
        await asyncio.sleep(HELD_S)
        await wake(world, ledger)
        async with asyncio.timeout(240):
            found = [status for one in await asyncio.gather(*answers) for status in one]
    assert set(found) <= {OK, TOO_MANY}
    assert found.count(OK) >= LONG_POLLS_MAX
    await is_free(world, ledger)


@attempt("v3 long polls that need not wait, whose answers nobody reads")
async def polls_unread(world: World) -> None:
    ledger = OWN + 130
    await unread(world, ledger, polls(ledger, 1_000, lac=-1))


@attempt("v3 LACs with long last entries, that nobody reads")
async def lacs_unread(world: World) -> None:
    ledger = OWN + 140
    lac = request_frame(Op.READ_LAC, 1, "readLacRequest", ledgerId=ledger)
    await unread(world, ledger, lac * 1_000)


@attempt("v3 lists of a ledger full of holes, that nobody reads")
async def lists_unread(world: World) -> None:
    ledger, holes = OWN + 150, 20_000
    async with client_of(world.bookies[0]) as client:
        adds = (add_frame(ledger, n * n) for n in range(holes))
        for some in chunks(adds, 1_000):
            client.send(b"".join(some))
            assert set(await statuses(client, len(some))) <= {OK, TOO_MANY}
    lists = request_frame(Op.LIST_ENTRIES, 1, "getListOfEntriesOfLedgerRequest", ledgerId=ledger)
    await held_unread(world, lists * 1_000)


def chunks(frames: Iterable[bytes], count: int) -> Iterable[list[bytes]]:
    some: list[bytes] = []
    for one in frames:
        some.append(one)
        if len(some) == count:
            yield some
            some = []


async def unread(world: World, ledger: int, requests: bytes) -> None:
    """Send these requests many times, for a ledger with two entries of a megabyte, without
    reading."""
    async with client_of(world.bookies[0]) as client:
        for entry in range(2):
            body = entry_of(ledger, entry, bytes(1 << 20))
            assert await client.add(ledger, entry, body=body) == OK
    await held_unread(world, requests)


async def held_unread(world: World, requests: bytes) -> None:
    async with connections(world, 40, b"") as made:
        for client in made:
            reading: Any = client.writer.transport
            reading.pause_reading()
            client.send(requests)
        await asyncio.sleep(HELD_S)
        async with client_of(world.bookies[0]) as other:
            other.send(request_frame(Op.BOOKIE_INFO, 7, "getBookieInfoRequest", requested=1))
            assert (await other.answer()).status in (OK, TOO_MANY)
    async with client_of(world.bookies[0]) as other:
        await still_serves(other)
