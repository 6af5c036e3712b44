"""What a client sends to a bookie: pending adds, pauses, forces, ticks."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo.ledger import client as client_module
from octavo.ledger.bookies.connection import BookieConnection
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.options import LedgerOptions
from octavo.ledger.quorum import Quorum
from octavo.ledger.write.bookie_channel import BookieChannel
from octavo.ledger.write.forces import Forces
from octavo.ledger.write.pending import CHUNK_BYTES_MAX, Chunk, Pending
from octavo.ledger.write.writer_state import Force, WriterState
from octavo.metadata.ledgers import Fragment, LedgerMetadata
from octavo.protocol.codes import Code, OctavoError, TooManyRequests
from octavo.protocol.entry import (
    HEADER,
    Buffer,
    DigestType,
    digest_for,
    master_key,
    pack_entry,
    unpack_entry,
)
from octavo.protocol.extension import Op, encode_answer
from octavo.protocol.frames import ADD_PREFIX_BYTES, Flag, add_prefix, read_answer
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
from tests.support.kit.quiescence import in_use
from tests.support.ledger_world import new_ledger

PAYLOAD = b"x" * 40_000
"""Frames of this size are sent in two parts, header and payload."""


class Connection:
    writable = True

    def __init__(self) -> None:
        self.sent: list[int] = []

    def attach(self, *_: object) -> None:
        pass

    def send_adds(self, frames: Sequence[Buffer], _: int) -> None:
        for front in frames[::2]:
            header = bytes(front)[ADD_PREFIX_BYTES : ADD_PREFIX_BYTES + HEADER.size]
            self.sent.append(HEADER.unpack(header)[1])


class Bookie:
    bookie_id = "a"

    def __init__(self) -> None:
        self.connection = Connection()


def test_what_is_refused_during_a_pause_is_sent_again_as_well() -> None:
    """Otherwise the bookie would count as silent, and be replaced."""

    async def story() -> None:
        core = WriterState(new_ledger(), 0)
        pending = Pending(core.metadata, core.quorum)
        bookie, sink = Bookie(), Any
        channel = BookieChannel(sink, core, pending, 0, bookie, LedgerOptions())  # type: ignore[arg-type]
        channel.attach(0.0)
        start = 0
        payloads = [PAYLOAD] * 6
        while start < len(payloads):
            chunk, stop = pending.encode(payloads, start, core.lac)
            core.push(stop - start)
            start = stop
            channel.push(chunk, pending.frames(chunk), 0.0)
        sent = bookie.connection.sent
        assert sent == [0, 1, 2, 3, 4, 5]
        channel.busy(0.0, 1, 2)
        channel.busy(0.0, 4, 4)
        assert sent == [0, 1, 2, 3, 4, 5], "not before a pause"
        await asyncio.sleep(60.0)
        assert sent == [0, 1, 2, 3, 4, 5, 1, 2, 4]

    loop = SimLoop(1, trace=Trace())
    try:
        loop.run_until_complete(story())
        assert loop.errors == []
    finally:
        loop.close()


def test_each_ack_of_a_bookie_that_was_busy_lets_more_go() -> None:
    """Only its acks send what the window held."""

    async def story() -> None:
        core = WriterState(new_ledger(), 0)
        pending = Pending(core.metadata, core.quorum)
        bookie, sink = Bookie(), Any
        channel = BookieChannel(sink, core, pending, 0, bookie, LedgerOptions())  # type: ignore[arg-type]
        channel.attach(0.0)
        count, start, sent = 240, 0, bookie.connection.sent
        bookie.connection.writable = False
        payloads = [PAYLOAD] * count
        while start < count:
            chunk, stop = pending.encode(payloads, start, core.lac)
            core.push(stop - start)
            start = stop
            channel.push(chunk, pending.frames(chunk), 0.0)
        assert sent == []
        bookie.connection.writable = True
        refused = last = 0
        for _ in range(3):
            channel.busy(0.0, refused, refused)  # a pause, and a narrow window
            await asyncio.sleep(60.0)
            assert refused in sent, "the pause is over"
            last = max(last, *sent)
            assert last < count - 1, "the window holds the rest back"
            assert channel.waits_in_vain() == ""
            refused = last + 1
            core.acked("a", 0, last)
            sent.clear()
            channel.heard(0.0, 1)
            assert refused in sent, "the window has room, and nothing else sends"
            assert channel.waits_in_vain() == ""
            last = max(sent)
            sent.clear()

    loop = SimLoop(1, trace=Trace())
    try:
        loop.run_until_complete(story())
        assert loop.errors == []
    finally:
        loop.close()


# A connection tells its owner each time when adds may be sent again, and keeps no answered
class Transport:
    def __init__(self) -> None:
        self.written = 0

    def set_write_buffer_limits(self, high: int) -> None: ...

    def writelines(self, frames: Iterable[Buffer]) -> None:
        self.written += sum(map(len, frames))

    def abort(self) -> None: ...


class Owner:
    def __init__(self) -> None:
        self.told = 0

    def connection_writable(self) -> None:
        self.told += 1

    def connection_lost(self, error: BookieUnavailable) -> None: ...


def connected() -> tuple[BookieConnection, Owner, Transport]:
    owner, transport = Owner(), Transport()
    one = BookieConnection("b1", owner, bytearray(65_536), timeout_s=600, buffer_bytes_max=100)
    one.connection_made(cast(Any, transport))
    return one, owner, transport


async def test_each_flush_of_a_full_buffer_tells_the_owner() -> None:
    """The writer stops at a full buffer and has no tick."""
    one, owner, transport = connected()
    for times in range(1, 4):
        one.send_adds((b"x" * 60, b"y" * 40), 100)
        assert not one.writable
        await asyncio.sleep(0)
        assert one.writable
        assert (owner.told, transport.written) == (times, 100 * times)
    one.send_adds((b"x" * 99,), 99)
    assert one.writable, "one byte below the bound"
    await asyncio.sleep(0)
    assert owner.told == 3, "the owner was not kept waiting"
    assert in_use(one) == {}


async def test_a_socket_that_takes_bytes_again_tells_the_owner_each_time() -> None:
    one, owner, _ = connected()
    for times in range(1, 4):
        one.pause_writing()
        one.send_adds((b"x" * 100,), 100)
        await asyncio.sleep(0)
        assert (one.writable, owner.told) == (False, times - 1)
        one.resume_writing()
        assert (one.writable, owner.told) == (True, times)


async def test_answered_requests_are_not_kept() -> None:
    one, _, _ = connected()
    answers: list[OctavoError | None] = []

    def done(error: OctavoError | None, _: object) -> None:
        answers.append(error)

    for _ in range(3):
        one.request(Op.NODE_INFO, {}, done)
    one.read(7, 0, done)
    one.read(7, 0, done)
    assert in_use(one)["requests"] == 3
    assert in_use(one)["reads"] == 2
    codes = {3: Code.OK, 1: Code.TOO_MANY_REQUESTS, 2: Code.OK}
    frames = [encode_answer(Op.NODE_INFO, number, code, {}) for number, code in codes.items()]
    frames += [read_answer(Code.NO_ENTRY, 7, 0, b"")] * 2
    for frame in frames:
        one.get_buffer(-1)[: len(frame)] = frame
        one.buffer_updated(len(frame))
    await asyncio.sleep(0)
    assert [error is None for error in answers] == [True, False, True, False, False]
    assert in_use(one) == {}


# A bookie is asked for one force at a time, and again after each answer, whatever it says.
Answer = Callable[[OctavoError | None, dict[str, Any]], None]


class ForcedBookie:
    is_foreign = False

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.questions: list[Answer] = []
        self.connection = self

    def request(self, _op: object, _body: object, done: Answer, *, timeout_s: float) -> None:
        assert timeout_s == 5.0
        self.questions.append(done)

    def answer(self, error: OctavoError | None = None) -> None:
        self.questions.pop(0)(error, {})


class Channel:
    def __init__(self, bookie: ForcedBookie) -> None:
        self.bookie = bookie


def test_each_answer_makes_room_for_the_next_question() -> None:
    core = WriterState(LedgerMetadata(7, 3, 3, 2, (Fragment(0, tuple("abc")),)), 0, deferred=True)
    failed: list[str] = []

    def forced(asked: Force) -> None:
        core.forced(asked)

    forces = Forces(core, 5.0, forced, lambda bookie_id, _: failed.append(bookie_id))
    bookies = [ForcedBookie(name) for name in "abc"]
    channels = cast(Any, [Channel(one) for one in bookies])
    first = bookies[0]

    def write(last: int) -> None:
        core.push(1)
        for one in bookies:
            core.acked(one.bookie_id, last, last)
        forces.wanted = last
        forces.pump(channels)

    for last in range(3):
        write(last)
        assert [len(one.questions) for one in bookies] == [1, 1, 1]
        forces.pump(channels)
        assert [len(one.questions) for one in bookies] == [1, 1, 1], "one at a time"
        assert in_use(forces) == {"asked": 3}
        for one in bookies:
            one.answer()
        assert in_use(forces) == {}
        assert core.lac == last
    write(3)
    first.answer(TooManyRequests("busy"))
    forces.pump(channels)
    assert not first.questions, "it rests until the next tick"
    for _ in range(2):
        forces.rested()
        forces.pump(channels)
        first.answer(TooManyRequests("busy"))
    forces.rested()
    forces.pump(channels)
    first.answer(BookieUnavailable("a", "no answer"))
    assert failed == ["a"]
    for one in bookies[1:]:
        one.answer()
    assert in_use(forces) == {}


# A writer's pending adds: frames byte for byte, cut anywhere, released when told.
PAYLOADS = [b"", b"a", b"b" * 100, b"c" * 5000, b"d" * 20_000, b"e" * 300_000, b"f"]


def pending_of(
    payloads: list[bytes],
    shape: tuple[int, int, int] = (3, 3, 2),
    digest_type: DigestType = DigestType.CRC32C,
) -> tuple[Pending, list[Chunk]]:
    metadata = replace(new_ledger(*shape), digest_type=digest_type, password=b"pw")
    pending = Pending(metadata, Quorum(*shape))
    chunks, start = [], 0
    while start < len(payloads):
        chunk, start = pending.encode(payloads, start, 3)
        chunks.append(chunk)
    return pending, chunks


def expected(entry_id: int, payloads: list[bytes], digest_type: DigestType) -> bytes:
    digest = digest_for(digest_type, b"pw")
    length = sum(map(len, payloads[: entry_id + 1]))
    entry = pack_entry(digest, 7, entry_id, 3, length, payloads[entry_id])
    flags = Flag.CRC32C | Flag.RANGE_ACK if digest_type is DigestType.CRC32C else 0
    return add_prefix(master_key(b"pw"), len(entry), flags) + entry


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_frames_are_those_of_the_protocol(digest_type: DigestType) -> None:
    pending, chunks = pending_of(PAYLOADS, digest_type=digest_type)
    sent = b"".join(b"".join(pending.frames(chunk)[0]) for chunk in chunks)
    wanted = [expected(i, PAYLOADS, digest_type) for i in range(len(PAYLOADS))]
    assert sent == b"".join(wanted)
    assert sum(pending.frames(chunk)[1] for chunk in chunks) == len(sent) == pending.held_bytes
    entry = unpack_entry(digest_for(digest_type, b"pw"), 7, 5, wanted[5][ADD_PREFIX_BYTES:])
    assert entry.last_add_confirmed == 3


def test_large_payloads_are_not_copied() -> None:
    payload = b"x" * 64_000
    pending, (chunk,) = pending_of([payload])
    frames, _ = pending.frames(chunk)
    assert any(part is payload for part in frames)


def test_long_runs_become_several_chunks() -> None:
    _, chunks = pending_of([b"x" * 1000] * 500)
    assert len(chunks) > 2
    assert all(chunk.size < CHUNK_BYTES_MAX + 1100 for chunk in chunks)
    assert [c.first_entry for c in chunks[1:]] == [c.last_entry + 1 for c in chunks[:-1]]


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 2, 2), (5, 3, 2)])
def test_any_position_can_be_sent_any_part_again(shape: tuple[int, int, int]) -> None:
    payloads = [b"%d" % i * 10 for i in range(30)]
    quorum = Quorum(*shape)
    pending, _ = pending_of(payloads, shape)
    for position in range(shape[0]):
        for first in (0, 7, 29):
            sent, at, size = b"", first, 0
            while at <= 25 or at == first:
                frames, bytes_sent, at = pending.frames_for(position, at, max(25, first))
                sent += b"".join(frames)
                size += bytes_sent
            wanted = [
                expected(i, payloads, DigestType.CRC32C)
                for i in range(first, max(25, first) + 1)
                if quorum.holds(position, i)
            ]
            assert sent == b"".join(wanted)
            assert size == len(sent)


def test_letting_go_and_the_length_at_an_entry() -> None:
    payloads = [b"x" * (i % 7) for i in range(5000)]
    metadata = new_ledger()
    pending = Pending(metadata, Quorum(3, 3, 2))
    for payload in payloads:
        pending.encode([payload], 0, -1)
    for released in (-1, 0, 99, 3000, 4998, 4999):
        pending.release(released)
        assert pending.held_from == released + 1
        assert pending.length_at(released) == sum(map(len, payloads[: released + 1]))
        if released + 1 < len(payloads):
            assert pending.chunk_of(released + 1).first_entry == released + 1
            with pytest.raises(AssertionError):
                pending.chunk_of(max(released, 0) if released >= 0 else -1)
    assert pending.held_bytes == 0


# The ticks of thousands of ledgers do not stop the loop.
AT_ONCE, LEDGERS = 10, 35


class Ticking:
    """A ledger that counts the turn of the loop in which it was ticked."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number

    def tick(self, now: float) -> bool:
        self.world.ticked.append((self.world.turn, self.number))
        if self.number == 0:  # the ledger behind it ends meanwhile
            self.world.client.stop_ticking(self.world.all[-1])
        return False

    def fail(self, error: Exception) -> None:
        raise error


class World:
    def __init__(self) -> None:
        store: Any = SimpleNamespace(on_session=lambda _: None)
        self.client = LedgerClient(store, rng=random.Random(1))
        self.turn = 0
        self.ticked: list[tuple[int, int]] = []
        self.all: list[Any] = [Ticking(self, number) for number in range(LEDGERS)]

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


async def test_some_ledgers_are_ticked_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker of 1,000 partitions announced the ends of 2,000 ledgers in one turn of 74 ms."""
    monkeypatch.setattr(client_module, "_TICK_S", 0.001)
    monkeypatch.setattr(client_module, "_TICKED_AT_ONCE", AT_ONCE)
    world = World()
    counting = asyncio.ensure_future(world.count_turns())
    for one in world.all:
        world.client.keep_ticking(one)
    while world.client._ticking:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    counting.cancel()
    assert [number for _, number in world.ticked] == [*range(LEDGERS - 1)], "not what has ended"
    assert max(Counter(turn for turn, _ in world.ticked).values()) <= AT_ONCE
