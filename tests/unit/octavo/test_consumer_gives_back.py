"""A consumer that is interrupted in any way gives back its leases, tasks and places. Nothing
is left after each round, so a lost lease is found in its round."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Hashable, Mapping, Sequence

import pytest

from octavo.client import deliveries
from octavo.client.deliveries import DeliveryLoop, hands
from octavo.client.errors import ClientError, Unreachable
from octavo.client.merging import Merged
from octavo.client.types import Delivery
from octavo.protocol.ack_ids import each

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
        """End the leases of which the consumer never heard."""
        for ack_id in self.unanswered:
            if (offset := self.leases.pop(ack_id, None)) is not None:
                self.waiting.append(offset)
        self.unanswered.clear()


@pytest.fixture(autouse=True)
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
