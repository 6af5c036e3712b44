"""The client's consumers: a loop over deliveries, a followed partition, leases given back."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

import pytest

from octavo.client import deliveries, following
from octavo.client.deliveries import DeliveryLoop, hands
from octavo.client.errors import ApiError, ClientError, NotFound, Trimmed, Unreachable
from octavo.client.handing import Handing
from octavo.client.incarnation import Incarnation
from octavo.client.merging import Merged
from octavo.client.transport import NEXT_OFFSET, Answer, Transport
from octavo.client.types import Delivery, TopicName
from octavo.protocol.ack_ids import each
from octavo.protocol.batch import InvalidBatch, whole_batches, with_base_offset
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.records import Record, build_batch

LEASE_S = 0.2
MESSAGES = 40
ROUNDS = 12


class Subscription:
    """Messages that are leased, acked or given back; each of a fixed number leased at most once."""

    def __init__(self, rng: random.Random, partition: int) -> None:
        self.rng = rng
        self.partition = partition
        self.waiting = deque(range(MESSAGES))
        self.leases: dict[str, int] = {}
        self.acked: set[int] = set()
        self.calls = 0
        self.lost_p = 0.0
        """The share of calls whose answers get lost …"""
        self.acknowledged = 0
        self.unanswered: set[str] = set()
        """… and the messages that these had leased: those leases end by themselves."""
        self.gone = False

    async def receive(self, messages_max: int, *, wait_s: float) -> Sequence[Delivery]:
        for _ in range(self.rng.randint(0, 3)):
            await asyncio.sleep(0)
        if self.gone:
            raise Unreachable("it is gone")
        given: list[Delivery] = []
        while self.waiting and len(given) < min(messages_max, self.rng.randint(1, 4)):
            offset = self.waiting.popleft()
            self.calls += 1
            ack_id = f"{self.partition}-{offset}-{self.calls}"
            self.leases[ack_id] = offset
            given.append(Delivery(self.partition, offset, "", None, b"", (), 0, ack_id))
        if not given:
            await asyncio.sleep(min(wait_s, 0.01))
            return []
        held = {one.ack_id for one in given}
        self.unanswered |= held
        for _ in range(self.rng.randint(0, 2)):
            await asyncio.sleep(0)
        self.unanswered -= held
        return given

    receive_in_turn = receive

    async def acknowledge(
        self, body: Mapping[str, Sequence[str]], retry_s: float | None = None
    ) -> None:
        self.acknowledged += 1
        await asyncio.sleep(0)
        is_lost = self.rng.random() < self.lost_p
        if is_lost and retry_s is not None:  # the last call: it is not repeated
            self.unanswered |= {one for ids in body.values() for one in each(ids)}
        if is_lost and self.rng.random() < 0.5:
            raise Unreachable("no call came through")
        for name in ("ack_ids", "nack", "release"):
            for ack_id in each(body.get(name, ())):
                if (offset := self.leases.pop(ack_id, None)) is None:
                    continue
                if name == "ack_ids":
                    assert offset not in self.acked, "acked once"
                    self.acked.add(offset)
                else:
                    self.waiting.append(offset)
        await asyncio.sleep(0)
        if is_lost:
            raise Unreachable("the answer was lost")

    def end_unanswered(self) -> None:
        for ack_id in self.unanswered:
            if (offset := self.leases.pop(ack_id, None)) is not None:
                self.waiting.append(offset)
        self.unanswered.clear()


@pytest.fixture
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "LOOK_S_MIN", 0.001)
    monkeypatch.setattr(deliveries, "AHEAD_CLOSE_S", 0.05)


def left_over(before: set[asyncio.Task[object]]) -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() - before if not task.done()]


async def body(merged: Merged, rng: random.Random, sources: list[Subscription]) -> None:
    most = rng.choice((0, 1, 3, 30))
    taken = 0
    async for hand in merged.hands(0.02):
        for _ in hand:
            taken += 1
            if taken > most:
                match rng.randrange(3):
                    case 0:
                        return
                    case 1:
                        raise ValueError("of the body")
                    case 2:
                        await asyncio.sleep(60)
            if rng.random() < 0.1:
                await asyncio.sleep(LEASE_S / 10)
            await merged.between()
            if rng.random() < 0.1 and (keys := merged.keys):
                await merged.remove(rng.choice(keys), 0.005)
            if rng.random() < 0.05:
                rng.choice(sources).gone = True


@pytest.mark.usefixtures("_in_no_time")
@pytest.mark.parametrize("seed", range(8))
async def test_of_several_sources(seed: int) -> None:
    rng = random.Random(seed)
    sources = [Subscription(rng, number) for number in range(3)]
    for round_ in range(ROUNDS):
        before = asyncio.all_tasks()
        loops: dict[DeliveryLoop, None] = {}

        def lost(_: Hashable, error: Exception) -> bool:
            return isinstance(error, ClientError) and rng.random() < 0.7

        merged = Merged(loops, lost, auto_ack=True, batch=rng.choice((1, 3, 50)))
        for source in sources:
            source.gone, source.lost_p = False, rng.choice((0.0, 0.0, 0.3))
            merged.add(source.partition, source, LEASE_S)
        working = asyncio.create_task(body(merged, rng, sources))
        _, slow = await asyncio.wait({working}, timeout=0.1)
        for task in slow:
            task.cancel()
        await asyncio.gather(working, return_exceptions=True)
        for source in sources:
            source.lost_p = 0.0
        async with asyncio.timeout(30):
            try:
                await merged.close()
            except ClientError:
                pass
        await asyncio.sleep(0)
        assert (merged.keys, loops, left_over(before)) == ([], {}, []), round_
        for source in sources:
            source.end_unanswered()
            assert not source.leases, (round_, source.partition)
            assert len(source.waiting) + len(source.acked) == MESSAGES


async def work(loop: DeliveryLoop) -> None:
    async for hand in hands(loop, 0.01):
        for _ in hand:
            await loop.between()


@pytest.mark.usefixtures("_in_no_time")
@pytest.mark.parametrize("seed", range(6))
async def test_of_one_loop(seed: int) -> None:
    """Cancelled at any step of receiving, acking and closing; closed twice at once."""
    rng = random.Random(seed)
    source = Subscription(rng, 0)
    for round_ in range(4 * ROUNDS):
        before = asyncio.all_tasks()
        loop = DeliveryLoop(source, LEASE_S, auto_ack=True, batch=rng.choice((1, 3, 50)))

        working = asyncio.create_task(work(loop))
        for _ in range(rng.randint(0, 25)):
            await asyncio.sleep(0)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        async with asyncio.timeout(30):
            await asyncio.gather(loop.close(), loop.close())
        assert left_over(before) == [], round_
        source.end_unanswered()
        assert not source.leases, round_
        assert len(source.waiting) + len(source.acked) == MESSAGES


@pytest.mark.usefixtures("_in_no_time")
@pytest.mark.parametrize("steps", range(12))
async def test_a_close_that_is_cancelled_is_taken_up_by_the_next(steps: int) -> None:
    """With several sources: one failed and closed itself, and the close of all cancelled that."""
    rng = random.Random(1)
    source = Subscription(rng, 0)
    loop = DeliveryLoop(source, LEASE_S, auto_ack=True, batch=3)
    hand = await loop.hand(1.0)
    assert hand is not None
    done = next(iter(hand))
    hand.taken += 1
    closing = asyncio.create_task(loop.close())
    for _ in range(steps):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await loop.close()
    source.end_unanswered()
    assert source.acked == {done.offset}
    assert not source.leases
    calls = source.acknowledged
    await loop.close()
    assert source.acknowledged == calls, "it is closed"


# A partition followed by the client: streams that end, break off or are refused.
BROKE_OFF = Unreachable("broke off")
FULL = ApiError(503, {"code": "too-many-streams"}, "GET")
OLDER = ApiError(400, {"code": "invalid-parameter"}, "GET")


def batch(offset: int, count: int = 1) -> bytes:
    records = [Record(None, b"%d" % (offset + n), timestamp_ms=n) for n in range(count)]
    return with_base_offset(build_batch(records), offset)


class Script:
    """Brokers' answers, in turn: `("read", wait, offset, body)`, `("stream", offset, pieces)`.
    An error as a piece or body is raised."""

    def __init__(self, *lines: tuple[Any, ...]) -> None:
        self.lines = list(lines)
        self.asked: list[tuple[Any, ...]] = []
        self.open = 0

    async def call(self, method: str, path: str, *, query: Any, **_: Any) -> Answer:
        line = self._next("read", float(query["wait"] or 0.0), query["from"])
        body = line[3]
        if isinstance(body, Exception):
            raise body
        following_offset = line[2] if not body else None
        headers = {} if following_offset is None else {NEXT_OFFSET: str(following_offset)}
        return Answer(200 if body else 204, headers, body)

    async def stream(self, path: str, *, query: Any, **_: Any) -> AsyncGenerator[bytes, None]:
        line = self._next("stream", query["from"])
        self.open += 1
        try:
            for piece in line[2]:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self.open -= 1

    def _next(self, *asked: Any) -> tuple[Any, ...]:
        self.asked.append(asked)
        assert self.lines, f"the script is at its end, and the client asks {asked}"
        line = self.lines.pop(0)
        assert line[: len(asked)] == asked
        return line


async def followed(script: Script, start: str | int = 0) -> AsyncIterator[int]:
    found = following.pages(
        cast(Transport, script), TopicName("public", "t"), 0, start,
        of=Incarnation(), follow=True, compacted=False,
    )  # fmt: skip
    async with aclosing(found) as pages:
        async for page in pages:
            for message in page:
                assert message.value == b"%d" % message.offset
                yield message.offset


async def first(script: Script, count: int, start: str | int = 0) -> list[int]:
    offsets = []
    async with aclosing(cast(Any, followed(script, start))) as found:
        async for offset in found:
            offsets.append(offset)
            if len(offsets) == count:
                break
    assert script.open == 0, "a stream stayed open"
    return offsets


async def test_reads_to_the_end_then_one_stream() -> None:
    script = Script(
        ("read", 0.0, 0, batch(0, 3)),
        ("read", 0.0, 3, b""),
        ("stream", 3, [batch(3), batch(4, 2), batch(6)]),
    )
    assert await first(script, 7) == [*range(7)]
    assert script.lines == []


async def test_pieces_are_cut_anywhere() -> None:
    data = batch(3) + batch(4, 2) + batch(6)
    for size in (1, 7, 61, len(data) - 1, len(data)):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        script = Script(("read", 0.0, 3, b""), ("stream", 3, pieces))
        assert await first(script, 4, start=3) == [3, 4, 5, 6]


async def test_a_batch_that_begins_earlier() -> None:
    script = Script(("read", 0.0, 5, b""), ("stream", 5, [batch(3, 4)]))
    assert await first(script, 2, start=5) == [5, 6]


@pytest.mark.parametrize("ends", [[], [BROKE_OFF], [batch(9)[:40], BROKE_OFF]])
async def test_goes_on_where_the_stream_ended(ends: list[Any]) -> None:
    """After an orderly end, an interruption, or a break within a batch: no gap, no repeat."""
    script = Script(
        ("read", 0.0, 8, b""),
        ("stream", 8, [batch(8), *ends]),
        ("read", 0.0, 9, batch(9)),
        ("read", 0.0, 10, b""),
        ("stream", 10, [batch(10)]),
    )
    assert await first(script, 3, start=8) == [8, 9, 10]


async def test_who_waits_polls() -> None:
    """After an empty stream, long polls follow until a message comes."""
    wait_s = following.WAIT_S
    script = Script(
        ("read", 0.0, 8, b""),
        ("stream", 8, []),
        ("read", wait_s, 8, b""),
        ("read", wait_s, 8, b""),
        ("read", wait_s, 8, batch(8)),
        ("read", 0.0, 9, b""),
        ("stream", 9, [batch(9)]),
    )
    assert await first(script, 2, start=8) == [8, 9]


async def test_one_that_broke_off_is_no_reason_to_have_no_other() -> None:
    script = Script(
        ("read", 0.0, 0, b""),
        ("stream", 0, [BROKE_OFF]),
        ("read", following.WAIT_S, 0, batch(0)),
        ("read", 0.0, 1, b""),
        ("stream", 1, [batch(1)]),
    )
    assert await first(script, 2) == [0, 1]


@pytest.mark.parametrize("refused", [FULL, OLDER])
async def test_without_streams_it_is_polls(
    refused: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message costs one call, and for a while no stream is tried again."""
    wait_s = following.WAIT_S
    script = Script(
        ("read", 0.0, 0, b""),
        ("stream", 0, [refused]),
        *[("read", wait_s, offset, batch(offset)) for offset in range(5)],
    )
    assert await first(script, 5) == [*range(5)]
    monkeypatch.setattr(following, "STREAM_AGAIN_S", 0.0)
    script = Script(
        ("read", 0.0, 0, b""),
        ("stream", 0, [refused]),
        ("read", wait_s, 0, batch(0)),
        ("read", 0.0, 1, b""),
        ("stream", 1, [batch(1)]),
    )
    assert await first(script, 2) == [0, 1]


@pytest.mark.parametrize(
    "error",
    [
        NotFound(404, {"detail": "there is no topic"}, "GET"),
        Trimmed(410, {"earliest_offset": 50}, "GET"),
        ApiError(416, {"code": "offset-beyond-end"}, "GET"),
    ],
)
async def test_what_is_for_good_is_said_by_a_call(error: ApiError) -> None:
    with pytest.raises(type(error)):
        await first(Script(("read", 0.0, 7, error)), 1, start=7)
    script = Script(
        ("read", 0.0, 7, b""), ("stream", 7, [batch(7), error]), ("read", 0.0, 8, error)
    )
    with pytest.raises(type(error)):
        await first(script, 2, start=7)
    script = Script(
        ("read", 0.0, 7, b""), ("stream", 7, [error]), ("read", following.WAIT_S, 7, error)
    )
    with pytest.raises(type(error)):
        await first(script, 1, start=7)


async def test_damage_on_the_way_is_said() -> None:
    damaged = bytearray(batch(1))
    damaged[-1] ^= 1
    script = Script(("read", 0.0, 1, b""), ("stream", 1, [bytes(damaged)]))
    with pytest.raises(InvalidBatch):
        await first(script, 1, start=1)
    assert script.open == 0


def test_no_batch_is_waited_for_that_is_too_long() -> None:
    whole = batch(0, 3)
    assert whole_batches(whole[:-1]) == 0
    assert whole_batches(whole + whole[:20]) == len(whole)

    def claiming(size: int) -> bytes:
        return whole[:8] + (size - 12).to_bytes(4, "big") + whole[12:]

    assert whole_batches(claiming(ENTRY_PAYLOAD_BYTES_MAX)) == 0
    for size in (ENTRY_PAYLOAD_BYTES_MAX + 1, 60):
        with pytest.raises(InvalidBatch, match="claims"):
            whole_batches(claiming(size))


async def test_leaving_closes_the_stream() -> None:
    """Also while it waits for the next message, as by Ctrl-C."""
    opened = asyncio.Event()

    class Waiting(Script):
        async def stream(self, path: str, *, query: Any, **_: Any) -> AsyncGenerator[bytes, None]:
            self.open += 1
            try:
                yield batch(0)
                opened.set()
                await asyncio.Event().wait()
            finally:
                self.open -= 1

    script = Waiting(("read", 0.0, 0, b""))
    task = asyncio.create_task(first(script, 2))
    await opened.wait()
    assert script.open == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.open == 0


# A loop over deliveries acks each finished message once, whatever fails.
def delivery(number: int) -> Delivery:
    return Delivery(0, number, "", None, b"", (), 0, f"0-{number}")


@pytest.mark.parametrize("seed", range(60))
def test_each_message_that_is_done_is_acked_once_and_in_order(seed: int) -> None:
    """Calls get lost, leases end, and the body stops anywhere."""
    rng = random.Random(seed)
    handing, now_s = Handing(1.0, rng.choice((1, 3, 50)), auto_ack=True), 0.0
    received = 0
    done: list[str] = []
    acked: list[str] = []
    gone: set[str] = set()
    for _ in range(80):
        now_s += rng.choice((0.0, 0.01, 0.4))
        step = rng.choice(("take", "work", "work", "send", "send", "stale"))
        if step == "take":
            count = rng.randint(0, 4)
            handing.took([delivery(received + one) for one in range(count)], now_s)
            received += count
        elif step == "work":
            hand = handing.hand(now_s)
            done += [one.ack_id for one in hand or ()]
        elif step == "stale":
            left = [one.ack_id for one in handing._ahead]
            ended = rng.sample(left, min(1, len(left)))
            handing.stale(ended)
            gone |= set(ended)
        else:
            due = handing.due(now_s)
            if rng.random() < 0.4:
                handing.not_sent(due)
            else:
                acked += due.acks
    acked += handing.due(now_s).acks
    assert acked == done
    assert not gone & set(done)
    begun, unseen = handing.rest(RuntimeError())
    assert sorted([*begun, *unseen, *done, *gone]) == sorted(f"0-{n}" for n in range(received))
