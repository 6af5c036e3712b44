"""The README's loop died of messages that take 65 ms each, and a restart did the same work again.

`deliveries()` took 500 messages and acked them together at the end. At 65 ms each the lease of
30 s was over by then, `Conflict` left the loop, nothing was acked; a second consumer, or the next
run, was given the same 500. A loop that was left early kept what it had until its lease ended.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.dispatch import Dispatcher
from octavo.client.client import AsyncClient
from octavo.client.deliveries import DeliveryLoop
from octavo.client.errors import AcksUnsent, ApiError, Unreachable
from octavo.client.handing import Due, Handing
from octavo.client.subscription import Subscription
from octavo.client.sync import Client
from octavo.client.types import Delivery
from tests.support.cluster import Cluster, running_cluster

LEASE_S = 30.0


class SlowConsumer:
    """The pure half of a loop whose body blocks everything, at the pure half of a broker."""

    def __init__(self, name: str, broker: Dispatcher, cursor: Cursor, end: int) -> None:
        self.name, self.broker, self.cursor, self.end = name, broker, cursor, end
        self.handing = Handing(LEASE_S, 500, auto_ack=True)
        self.hand: Iterator[Delivery] = iter(())

    def next(self, now_s: float) -> int | None:
        handing, now_ms = self.handing, int(now_s * 1000)
        found = next(self.hand, None)
        if found is None or handing.is_due(now_s):
            handing.notice(now_s)
            self._send(handing.due(now_s), now_ms)
        if found is not None:
            return found.offset
        self._receive(now_s, now_ms)
        hand = handing.hand(now_s)
        if hand is None:
            return None
        self.hand = iter(hand)
        return next(self.hand).offset

    def _receive(self, now_s: float, now_ms: int) -> None:
        handing = self.handing
        self.broker.enter(self.name, now_ms)
        found = self.broker.dispatch(self.name, now_ms, self.end, handing.want())
        if found is None:
            return
        received = [
            Delivery(0, one, "", None, b"", ack_id=f"0-{one}-1-{found.number}")
            for one in found.offsets
        ]
        handing.took(received, now_s)

    def _send(self, due: Due, now_ms: int) -> None:
        self.broker.expire(now_ms)
        stale = [one for one in (*due.acks, *due.extend) if not self._holds(one)]
        acks = [_offset(one) for one in due.acks if one not in stale]
        self.broker.acked(acks)
        for offset in acks:
            self.cursor.ack(offset, offset + 1)
        self.broker.extend([_offset(one) for one in due.extend if one not in stale], now_ms)
        self.handing.stale(stale)

    def _holds(self, ack_id: str) -> bool:
        return self.broker.holds(_offset(ack_id), int(ack_id.split("-")[3]))


def _offset(ack_id: str) -> int:
    return int(ack_id.split("-")[1])


@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize("work_s", [0.0, 0.065, 0.5, 9.0, 25.0])
def test_each_message_once_however_slow(consumers: int, work_s: float) -> None:
    """In virtual time: 2,000 messages, 300 where each takes long."""
    count = 2_000 if work_s < 0.1 else 300
    cursor = Cursor(0)
    broker = Dispatcher(
        cursor,
        exclusive=False,
        ack_timeout_ms=int(LEASE_S * 1000),
        leased_max=50_000,
        delayed_max=1,
    )
    ready = [(0.0, n, SlowConsumer(f"c{n}", broker, cursor, count)) for n in range(consumers)]
    seen: Counter[int] = Counter()
    while ready:
        now_s, n, consumer = heapq.heappop(ready)
        offset = consumer.next(now_s)
        if offset is not None:
            seen[offset] += 1
            heapq.heappush(ready, (now_s + work_s + 0.001, n, consumer))
    assert seen == Counter(range(count))
    assert cursor.committed_offset == count


def test_a_consumer_that_dies_keeps_little_from_the_others() -> None:
    handing = Handing(LEASE_S, 500, auto_ack=True)
    assert handing.want() == 50
    received = [Delivery(0, n, "", None, b"", ack_id=f"0-{n}-1-1") for n in range(50)]
    now_s = 0.0
    handing.took(received, now_s)
    hand = handing.hand(now_s)
    assert hand is not None
    for _ in hand:
        handing.notice(now_s)
        now_s += 0.065
    assert handing.hand(now_s) is None
    assert handing.want() == int(LEASE_S / 4 / 0.065)
    assert not handing.is_quick
    handing.took(received, now_s)
    hand = handing.hand(now_s)
    assert hand is not None
    assert len(list(hand)) == 50
    handing.notice(now_s)
    assert handing.want() == 500
    assert handing.is_quick


async def test_what_was_fetched_ahead_is_kept_while_the_body_is_slow() -> None:
    """A body that was quick, so that more was fetched, and then is not (seed 2300977)."""
    extended: set[str] = set()
    numbers = iter(range(1_000))

    class Quick:
        async def receive(self, messages_max: int, *, wait_s: float) -> list[Delivery]:
            taken = [n for _, n in zip(range(min(50, messages_max)), numbers, strict=False)]
            return [Delivery(0, n, "", None, b"", ack_id=f"0-{n}-1-1") for n in taken]

        receive_in_turn = receive

        async def acknowledge(
            self, body: Mapping[str, Sequence[str]], retry_s: float | None = None
        ) -> None:
            extended.update(body.get("extend", ()))

    loop = DeliveryLoop(Quick(), 0.3, auto_ack=True, batch=50)
    for _ in range(2):
        hand = await loop.hand(0)
        assert hand is not None
        body = iter(hand)
        assert next(body).offset in (0, 50)
        if hand.deliveries[0].offset == 0:
            assert len(list(body)) == 49
    await asyncio.sleep(0.25)  # in the midst of the second hand, with a third one there
    assert "0-100-1-1" in extended
    await loop.close()


# ---- over real HTTP


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


async def filled(cluster: Cluster, count: int, lease_s: float) -> str:
    async with AsyncClient(cluster.api.url) as client:
        await client.create_topic("orders", partitions=4)
        await client.publish_many("orders", [(f"k{n % 50}", {"n": n}) for n in range(count)])
        await client.subscribe("orders", "billing", type="shared", ack_timeout_s=lease_s)
    return cluster.api.url


class Stalls:
    """How long this machine, or an ack, stood still: leases may end then, messages come twice."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.worst_s = 0.0
        acknowledge = Subscription.acknowledge

        async def timed(*call: Any) -> None:
            began = time.monotonic()
            try:
                await acknowledge(*call)
            finally:
                self.worst_s = max(self.worst_s, time.monotonic() - began)

        patch.setattr(Subscription, "acknowledge", timed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.02):
            self.worst_s = max(self.worst_s, time.monotonic() - before)
            before = time.monotonic()


async def _async_loop(url: str, seen: list[int]) -> None:
    async with AsyncClient(url) as client:
        billing = await client.subscribe("orders", "billing", type="shared", ack_timeout_s=2)
        async for delivery in billing.deliveries(idle_s=1):
            time.sleep(0.02)  # noqa: ASYNC251 (code that blocks the event loop is the point)
            seen.append(delivery.json()["n"])


def _sync_loop(url: str, seen: list[int]) -> None:
    with Client(url) as client:
        billing = client.subscribe("orders", "billing", type="shared", ack_timeout_s=2)
        for delivery in billing.deliveries(idle_s=1):
            time.sleep(0.02)
            seen.append(delivery.json()["n"])


@pytest.mark.long
@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_the_loop_outlives_its_leases(
    cluster: Cluster, kind: str, consumers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 messages of 20 ms and more, under leases of 2 s."""
    url = await filled(cluster, 300, 2)
    seen: list[int] = []

    def run() -> None:
        if kind == "sync":
            _sync_loop(url, seen)
        else:
            asyncio.run(_async_loop(url, seen))

    with Stalls(monkeypatch) as stalls:
        await asyncio.gather(*(asyncio.to_thread(run) for _ in range(consumers)))
    assert set(seen) == set(range(300))
    assert len(seen) == 300 or stalls.worst_s > 0.3, f"{len(seen)} of 300"
    async with AsyncClient(url) as client:
        assert (await client.subscription("orders", "billing").stats())["backlog"] == 0


async def test_one_message_may_take_longer_than_a_lease(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The synchronous client has a thread of its own, which keeps the lease."""
    url = await filled(cluster, 10, 1)
    seen: list[int] = []

    def run() -> None:
        with Client(url) as client:
            for delivery in client.subscription("orders", "billing").deliveries(idle_s=0.5):
                seen.append(delivery.json()["n"])
                if len(seen) == 1:
                    time.sleep(2.5)

    with Stalls(monkeypatch) as stalls:
        await asyncio.to_thread(run)
    assert set(seen) == set(range(10))
    assert len(seen) == 10 or stalls.worst_s > 0.2


@pytest.mark.parametrize("how", ["break", "error", "close", "collected"])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_leaving_early_gives_the_rest_back_at_once(
    cluster: Cluster, kind: str, how: str
) -> None:
    url = await filled(cluster, 100, 600)  # nobody waits for these leases
    done: list[int] = []

    def leave_sync() -> None:
        with Client(url) as client:
            found = client.subscription("orders", "billing").deliveries()
            for delivery in found:
                if len(done) == 7:
                    if how == "error":
                        raise ValueError
                    break
                done.append(delivery.json()["n"])
            if how == "collected":
                del found

    async def leave_async() -> None:
        async with AsyncClient(url) as client:
            found = client.subscription("orders", "billing").deliveries()
            async for delivery in found:
                if len(done) == 7:
                    if how == "error":
                        raise ValueError
                    break
                done.append(delivery.json()["n"])
            if how == "collected":
                del found
                await asyncio.sleep(0)
            elif how == "break":
                await found.aclose()

    try:
        await (asyncio.to_thread(leave_sync) if kind == "sync" else leave_async())
    except ValueError:
        assert how == "error"
    async with AsyncClient(url) as client:
        other = client.subscription("orders", "billing")
        stats = await other.stats()
        assert (stats["backlog"], stats["leased"]) == (93, 0)
        rest = [one.json()["n"] async for one in other.deliveries(idle_s=0.2)]
    assert sorted(done + rest) == list(range(100))


async def test_a_stale_lease_ends_no_loop(cluster: Cluster) -> None:
    """Somebody seeks: all leases are void. The loop goes on with what is there."""
    url = await filled(cluster, 60, 600)
    seen: list[int] = []
    async with AsyncClient(url) as client:
        billing = client.subscription("orders", "billing")
        async for delivery in billing.deliveries(idle_s=0.5):
            seen.append(delivery.json()["n"])
            if len(seen) == 5:
                await billing.seek("earliest")
        assert (await billing.stats())["backlog"] == 0
    assert set(seen) == set(range(60))


async def test_acks_that_cannot_be_sent_are_named(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await filled(cluster, 20, 600)
    async with AsyncClient(url) as client:
        billing = client.subscription("orders", "billing")

        async def broken(body: Any, retry_s: float | None = None) -> None:
            raise Unreachable("nobody answers")

        monkeypatch.setattr(billing, "acknowledge", broken)
        found = billing.deliveries(idle_s=0.2)
        handed = [await anext(found) for _ in range(3)]
        with pytest.raises(AcksUnsent) as told:
            await found.aclose()
        assert told.value.ack_ids == (handed[0].ack_id, handed[1].ack_id)


async def test_without_auto_ack_who_has_a_message_answers_for_it(cluster: Cluster) -> None:
    url = await filled(cluster, 20, 600)
    async with AsyncClient(url) as client:
        billing = client.subscription("orders", "billing")
        found = billing.deliveries(auto_ack=False, idle_s=0.2)
        handed = [await anext(found) for _ in range(3)]
        await found.aclose()
        assert (await billing.stats())["leased"] == 3
        await billing.ack(handed)
        assert (await billing.stats())["backlog"] == 17


async def test_a_refusal_leaves_the_loop(cluster: Cluster) -> None:
    url = await filled(cluster, 1, 600)
    async with AsyncClient(url) as client:
        with pytest.raises(ApiError, match="nobody"):
            [one async for one in client.subscription("orders", "nobody").deliveries(idle_s=0)]
