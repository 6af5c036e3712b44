"""Receive: lost and late answers, slow readers, ends."""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncClient
from octavo.broker.http.call import parse_duration_ms
from octavo.broker.operations.kinds import Leases, Receive, decode_answer, decode_request
from octavo.broker.operations.links import AskingLink
from octavo.broker.partition.partition import Partition
from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.dispatch import Dispatcher
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import SubscriptionSettings
from octavo.cli.consume import _by_subscription, _Printer
from octavo.client.deliveries import DeliveryLoop
from octavo.client.errors import AcksUnsent, ApiError, Unreachable
from octavo.client.handing import Due, Handing
from octavo.client.subscription import Subscription as SlowSubscription
from octavo.client.sync import Client
from octavo.client.transport import _params
from octavo.client.types import Delivery
from octavo.client.wire import NoAnswer
from tests.support.cluster import Cluster, batch, make_topic, owned, running_cluster
from tests.support.http_api import Api, until

# A receive whose answer was lost left a gap, which a later cumulative ack acked unseen. Now a
# receive has a number, and a repeat under it gives the same messages.


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_asked_again_it_gives_the_same(plain_cluster: Cluster, kind: Any) -> None:
    broker = (await plain_cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker))
    await partition.publish(batch(9))
    settings = SubscriptionSettings(type=kind)
    await broker.topics.create_subscription(partition.name.topic_name, "s", settings)
    subscription = await partition.subscription("s")

    async def receive(request: str, consumer: str = "c") -> list[Any]:
        return await subscription.receive(consumer, messages_max=3, request=request)

    first = await receive("r1")
    assert [one.offset for one in first] == [0, 1, 2]
    assert await receive("r1") == first, "the same, under the same lease, not counted again"
    if kind == "shared":
        assert [one.offset for one in await receive("r1", "other")] == [3, 4, 5]
    await subscription.acknowledge([first[0].ack_id])
    assert await receive("r1") == first[1:], "what is acked does not come again"
    await subscription.acknowledge([one.ack_id for one in first])
    following = await receive("r1")
    assert following[0].offset == (6 if kind == "shared" else 3), "then it is a new receive"
    await subscription.seek(0)
    assert [one.offset for one in await receive("r1")] == [0, 1, 2], "a seek voids what was out"
    assert [one.offset for one in await receive("")] == [3, 4, 5]
    assert [one.offset for one in await receive("")] == [6, 7, 8], "without a number each is new"


class LosesAnswers:
    """Loses the answer of every second `receive`, which takes effect."""

    def __init__(self, client: AsyncClient) -> None:
        self.lost = 0
        self._calls = 0
        self._once = client.transport._once
        client.transport._once = self  # type: ignore[method-assign, assignment]

    async def __call__(self, url: str, method: str, path: str, *rest: Any) -> Any:
        answer = await self._once(url, method, path, *rest)
        if path.endswith("/receive"):
            self._calls += 1
            if self._calls % 2:
                self.lost += 1
                raise NoAnswer("the answer was lost")
        return answer


async def test_a_cumulative_consumer_sees_every_message(two: Cluster) -> None:
    urls = [api.url for api in two.apis.values()]
    async with AsyncClient(urls) as client:
        await client.create_topic("lossy", partitions=2)
        producer = await client.producer("lossy")
        for number in range(100):
            await producer.send(str(number), partition=1)
        await producer.flush()
        await producer.close()
        subscription = await client.subscribe("lossy", "s")
        faults = LosesAnswers(client)
        seen: list[int] = []
        while len(seen) < 100:
            received = await subscription.receive(30, wait_s=2, partition=1)
            assert received, f"{len(seen)} of 100 came"
            seen += [one.offset for one in received]
            await subscription.ack_up_to(received[-1])
        assert seen == [*range(100)]
        assert faults.lost >= 4


# A broker that woke from SIGSTOP forwarded an old receive: the owner leased the next messages,
# and a cumulative ack acked them unseen. Now a call with a lower number is late, and gets
# nothing.


async def subscribed(cluster: Cluster, kind: str) -> tuple[Partition, Subscription]:
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker))
    settings = SubscriptionSettings(type=kind)  # type: ignore[arg-type]
    await broker.topics.create_subscription(partition.name.topic_name, "s", settings)
    return partition, await partition.subscription("s")


async def offsets(subscription: Subscription, request: str, wait_s: float = 0) -> list[int]:
    found = await subscription.receive("c", messages_max=3, request=request, wait_s=wait_s)
    return [one.offset for one in found]


async def test_it_gets_nothing(plain_cluster: Cluster) -> None:
    partition, subscription = await subscribed(plain_cluster, "exclusive")
    await partition.publish(batch(9))
    assert await offsets(subscription, "n-1") == [0, 1, 2]
    await subscription.acknowledge(up_to=2)
    assert await offsets(subscription, "n-9") == [3, 4, 5]
    await subscription.acknowledge(up_to=5)
    assert await offsets(subscription, "n-1") == []
    assert await offsets(subscription, "n-8", wait_s=5) == [], "and does not wait either"
    assert await offsets(subscription, "n-10") == [6, 7, 8], "numbers, not texts, are compared"


async def test_it_gets_nothing_after_a_call_that_got_nothing(plain_cluster: Cluster) -> None:
    partition, subscription = await subscribed(plain_cluster, "exclusive")
    assert await offsets(subscription, "n-2") == []
    await partition.publish(batch(3))
    assert await offsets(subscription, "n-1") == []
    assert await offsets(subscription, "n-3") == [0, 1, 2]


async def test_a_copy_of_the_newest_call_gets_nothing_new(plain_cluster: Cluster) -> None:
    """Acked messages show that their answer has come; unacked messages come again."""
    partition, subscription = await subscribed(plain_cluster, "exclusive")
    assert await offsets(subscription, "n-1") == []
    await partition.publish(batch(9))
    assert await offsets(subscription, "n-1", wait_s=5) == [], "answered already, with nothing"
    assert await offsets(subscription, "n-2") == [0, 1, 2]
    await subscription.acknowledge(up_to=1)
    assert await offsets(subscription, "n-2") == [2]
    await subscription.acknowledge(up_to=2)
    assert await offsets(subscription, "n-2") == []
    assert await offsets(subscription, "n-3") == [3, 4, 5]


async def test_a_repeated_call_that_waits_goes_on_waiting(plain_cluster: Cluster) -> None:
    partition, subscription = await subscribed(plain_cluster, "exclusive")
    first = asyncio.create_task(offsets(subscription, "n-1", wait_s=60))
    await asyncio.sleep(0)
    again = asyncio.create_task(offsets(subscription, "n-1", wait_s=60))
    await asyncio.sleep(0)
    await partition.publish(batch(3))
    assert await first == await again == [0, 1, 2]


async def test_one_that_waits_already_gives_up(plain_cluster: Cluster) -> None:
    partition, subscription = await subscribed(plain_cluster, "exclusive")
    waiting = asyncio.create_task(offsets(subscription, "n-1", wait_s=60))
    await asyncio.sleep(0)
    following = asyncio.create_task(offsets(subscription, "n-2", wait_s=60))
    await asyncio.sleep(0)
    await partition.publish(batch(3))
    assert await following == [0, 1, 2]
    assert await waiting == []


async def test_who_begins_anew_or_shares_is_not_late(plain_cluster: Cluster) -> None:
    partition, subscription = await subscribed(plain_cluster, "exclusive")
    await partition.publish(batch(9))
    assert await offsets(subscription, "n-5") == [0, 1, 2]
    assert await offsets(subscription, "m-1") == [3, 4, 5], "another life of the consumer"
    assert await offsets(subscription, "text") == [6, 7, 8]


async def test_consumers_that_share_ack_each_message(plain_cluster: Cluster) -> None:
    partition, subscription = await subscribed(plain_cluster, "shared")
    await partition.publish(batch(6))
    assert await offsets(subscription, "n-2") == [0, 1, 2]
    assert await offsets(subscription, "n-1") == [3, 4, 5], "calls side by side may overtake"


# A receive waits at all partitions. The first answer cut off the others, whose messages stayed
# leased to a caller that had gone, and came back out of order.

TOPIC = "/v1/topics/public/orders"
SUB = f"{TOPIC}/subscriptions/s"


async def made(cluster: Cluster, kind: str) -> tuple[Api, int, int]:
    await cluster.api.put(TOPIC, json={"partitions": 2})
    await cluster.api.put(SUB, json={"type": kind})
    topic = (await cluster.api.get(TOPIC)).json()
    owners = [one["owner"] for one in topic["partitions"]]
    assert sorted(owners) == sorted(cluster.apis), "the partitions are spread over both brokers"
    return cluster.apis[owners[0]], 0, 1


async def publish(api: Api, partition: int, value: int) -> None:
    answer = await api.post(f"{TOPIC}/partitions/{partition}/messages", json={"value": value})
    assert answer.status == 200, answer


async def leased(api: Api, partition: int) -> int:
    stats = (await api.get(f"{TOPIC}/partitions/{partition}/subscriptions/s")).json()
    return int(stats["leased"])


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_an_answer_that_is_broken_off_is_asked_for_again(
    two: Cluster, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, here, there = await made(two, kind)
    ask, late = AskingLink.ask, asyncio.Event()

    async def slow(self: AskingLink, payload: bytes, **more: Any) -> bytes:
        answer = await ask(self, payload, **more)
        operation = decode_request(payload).operation
        if isinstance(operation, Receive) and not late.is_set():
            found = decode_answer(operation, answer)
            assert isinstance(found, Leases)
            if found.deliveries:
                late.set()
                await asyncio.sleep(30)
        return answer

    monkeypatch.setattr(AskingLink, "ask", slow)
    receiving = asyncio.create_task(api.post(f"{SUB}/receive?wait=20&consumer=c"))
    await asyncio.sleep(0.1)
    await publish(api, there, 1)
    await asyncio.wait_for(late.wait(), 5)
    await publish(api, here, 2)
    got = (await receiving).json()["messages"]
    await publish(api, there, 3)
    got += (await api.post(f"{SUB}/receive?consumer=c&wait=2")).json()["messages"]
    assert [one["value"] for one in got if one["partition"] == there] == [1, 3]
    assert [one["value"] for one in got if one["partition"] == here] == [2]
    assert {one["delivery_count"] for one in got} == {1}


async def test_a_wait_ends_when_its_caller_goes(two: Cluster) -> None:
    api, here, _ = await made(two, "shared")
    path = f"{TOPIC}/partitions/{here}/subscriptions/s"
    waiting = asyncio.create_task(api.post(f"{path}/receive?wait=20"))
    (broker,) = [one for name, one in two.brokers.items() if two.apis[name] is api]
    (partition,) = broker.broker.ownership.open_partitions()
    subscription = await partition.subscription("s")
    await until(lambda: subscription.is_in_use)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: not subscription.is_in_use, 0.5)


async def test_what_was_given_again_is_not_taken_back(two: Cluster) -> None:
    api, here, _ = await made(two, "shared")
    await publish(api, here, 1)
    (broker,) = [one for name, one in two.brokers.items() if two.apis[name] is api]
    (partition,) = broker.broker.ownership.open_partitions()
    subscription = await partition.subscription("s")
    for again in (False, True):
        (first,) = await subscription.receive("c", messages_max=1, request=f"r{again}")
        if again:
            await subscription.receive("c", messages_max=1, request=f"r{again}")
        await subscription.take_back([first.ack_id])
        assert await leased(api, here) == again


# `wait` of a third of a timeout, 1.3333333333333333, had too many digits for the broker: a 400,
# which ended the consumer.


async def test_a_member_of_any_session_timeout_consumes(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, brokers=1) as cluster,
        AsyncClient([api.url for api in cluster.apis.values()]) as client,
    ):
        await client.create_topic("t")
        await client.publish("t", "one")
        consumer = client.consume("t", "s", group=True, session_timeout_s=4)
        async with asyncio.timeout(10), aclosing(consumer.deliveries()) as deliveries:
            assert (await anext(deliveries)).text() == "one"


@pytest.mark.parametrize(
    ("text", "wanted"), [(str(4 / 3), 1333), ("0.30000000000000004s", 300), ("1.5h", 5_400_000)]
)
def test_a_fraction_may_have_as_many_digits_as_programs_write(text: str, wanted: int) -> None:
    assert parse_duration_ms(text) == wanted


def test_the_client_writes_what_any_broker_reads() -> None:
    asked = {"wait": 10 / 3, "max": 5, "credits": None, "timeout": 1e-7}
    assert _params(asked) == {"wait": "3.333", "max": "5", "timeout": "0.000"}


DELETED_TOPIC = "/v1/topics/public/orders"
DELETED_SUB = f"{DELETED_TOPIC}/subscriptions/s"


@pytest.mark.parametrize("path", ["receive?wait=20", "stream"])
async def test_whoever_waits_hears_of_it_at_once(two: Cluster, path: str) -> None:
    """Consumers that waited for messages of a deleted subscription heard of it up to 15 s later."""
    await two.api.put(DELETED_TOPIC, json={"partitions": 3})
    await two.api.put(DELETED_SUB, json={"type": "shared"})
    method = "GET" if path == "stream" else "POST"
    waiting = [
        asyncio.create_task(api.call(method, f"{DELETED_SUB}/{path}")) for api in two.apis.values()
    ]
    await asyncio.sleep(0.3)
    answer = await two.api.call("DELETE", DELETED_SUB)
    assert answer.status == 204
    for answer in await asyncio.wait_for(asyncio.gather(*waiting), 3):
        assert b"subscription-not-found" in answer.body, answer


# With 50,000 messages unacked every consumer got a bare 204 without a reason.

FULL_SUB = "/v1/topics/public/orders/subscriptions/s"


@pytest.fixture
async def full_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr("tests.support.cluster.LEASED_MAX", 5)
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


@pytest.mark.parametrize("partitions", [1, 2])
async def test_the_answer_and_the_figures_say_why(full_cluster: Cluster, partitions: int) -> None:
    api = full_cluster.api
    async with AsyncClient(api.url) as client:
        await client.create_topic("orders", partitions=partitions)
        for n in range(40):
            await client.publish("orders", n, partition=n % partitions)
        first = await client.subscribe("orders", "s", type="shared")
        assert len(await first.receive(100)) == 5 * partitions
        assert first.held_back is None

        for broker in full_cluster.apis.values():
            answer = await broker.post(f"{FULL_SUB}/receive?consumer=other&wait=0.1")
            assert answer.status == 200, answer
            assert answer.json()["messages"] == []
            assert "5 messages are out at 1 consumers" in answer.json()["held_back"]
            assert answer.headers["Octavo-Held-Back"] == answer.json()["held_back"]
            accept = {"Accept": "application/x-ndjson"}
            answer = await broker.post(f"{FULL_SUB}/receive?consumer=other", headers=accept)
            assert (answer.status, answer.body) == (204, b"")
            assert "at most 5 out" in answer.headers["Octavo-Held-Back"]
        other = client.subscription("orders", "s")
        assert await other.receive(10) == []
        assert "at most 5 out" in (other.held_back or "")
        assert [one async for one in other.deliveries(idle_s=0.1)] == []
        assert other.held_back is not None
        stats = await other.stats()
        assert stats["held_back"] == other.held_back
        assert stats["leased"] == 5 * partitions


async def test_what_is_delayed_counts_apart(full_cluster: Cluster) -> None:
    async with AsyncClient(full_cluster.api.url) as client:
        await client.create_topic("orders")
        await client.publish_many("orders", [(None, n) for n in range(40)])
        one = await client.subscribe("orders", "s", type="shared")
        first = await one.receive(100)
        await one.nack(first, delay_s=3600)
        second = await one.receive(100)
        assert [d.offset for d in second] == [5, 6, 7, 8, 9]
        stats = await one.stats()
        assert (stats["leased"], stats["delayed"], stats["redelivering"]) == (5, 5, 0)
        with pytest.raises(ApiError, match="not given back and stay leased") as refused:
            await one.nack(second, delay_s=3600)
        assert (refused.value.status, refused.value.code) == (429, "too-many-delayed")
        await one.nack(second[:2])
        await one.ack(second[2:])
        assert [d.offset for d in await one.receive(2)] == [5, 6]


async def test_the_command_says_why(
    full_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    async with AsyncClient(full_cluster.api.url) as client:
        await client.create_topic("orders")
        await client.publish_many("orders", [(None, n) for n in range(10)])
        one = await client.subscribe("orders", "s", type="shared")
        assert len(await one.receive(100)) == 5
        printer = _Printer(None, raw=False, as_json=False)
        await _by_subscription(client, "orders", "s", "earliest", False, printer)
    assert "held back: 5 messages are out" in capsys.readouterr().err


# `deliveries()` took 500 messages and acked them together: with 65 ms each the lease was over,
# nothing was acked, and the next consumer got the same 500.

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
    """A body that was quick, so that more was fetched, and then is slow (seed 2300977)."""
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
    await asyncio.sleep(0.25)
    assert "0-100-1-1" in extended
    await loop.close()


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
        acknowledge = SlowSubscription.acknowledge

        async def timed(*call: Any) -> None:
            began = time.monotonic()
            try:
                await acknowledge(*call)
            finally:
                self.worst_s = max(self.worst_s, time.monotonic() - began)

        patch.setattr(SlowSubscription, "acknowledge", timed)
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
    two: Cluster, kind: str, consumers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await filled(two, 300, 2)
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
    two: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The synchronous client has its own thread, which keeps the lease."""
    url = await filled(two, 10, 1)
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
async def test_leaving_early_gives_the_rest_back_at_once(two: Cluster, kind: str, how: str) -> None:
    url = await filled(two, 100, 600)
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


async def test_a_stale_lease_ends_no_loop(two: Cluster) -> None:
    """Another client's seek makes all leases void. The loop continues with the present messages."""
    url = await filled(two, 60, 600)
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
    two: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await filled(two, 20, 600)
    async with AsyncClient(url) as client:
        billing = client.subscription("orders", "billing")

        async def broken(body: Any, retry_s: float | None = None) -> None:
            raise Unreachable("no broker answers")

        monkeypatch.setattr(billing, "acknowledge", broken)
        found = billing.deliveries(idle_s=0.2)
        handed = [await anext(found) for _ in range(3)]
        with pytest.raises(AcksUnsent) as told:
            await found.aclose()
        assert told.value.ack_ids == (handed[0].ack_id, handed[1].ack_id)


async def test_without_auto_ack_who_has_a_message_answers_for_it(two: Cluster) -> None:
    url = await filled(two, 20, 600)
    async with AsyncClient(url) as client:
        billing = client.subscription("orders", "billing")
        found = billing.deliveries(auto_ack=False, idle_s=0.2)
        handed = [await anext(found) for _ in range(3)]
        await found.aclose()
        assert (await billing.stats())["leased"] == 3
        await billing.ack(handed)
        assert (await billing.stats())["backlog"] == 17


async def test_a_refusal_leaves_the_loop(two: Cluster) -> None:
    url = await filled(two, 1, 600)
    async with AsyncClient(url) as client:
        with pytest.raises(ApiError, match="nobody"):
            [one async for one in client.subscription("orders", "nobody").deliveries(idle_s=0)]
