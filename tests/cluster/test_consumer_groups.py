"""One consumer over several topics, and the members of a group, over real brokers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from octavo.client.client import AsyncClient
from octavo.client.consumer import TopicsConsumer
from octavo.client.errors import Conflict, InvalidCall, NotFound, TopicReplaced
from octavo.client.subscription import Subscription
from octavo.client.sync import Client
from octavo.client.types import Delivery, SubscriptionType
from tests.support.cluster import Cluster, running_cluster, until

SESSION_S = 1.5
WANTED = "messages and partitions as wanted"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient([api.url for api in cluster.apis.values()]) as found:
        yield found


class Worker:
    """A consumer at work; `vanish` ends it like a killed process."""

    def __init__(self, client: AsyncClient, topics: str, name: str = "", **how: Any) -> None:
        self.of: TopicsConsumer = client.consume(topics, "s", consumer=name or None, **how)
        self.got: Counter[str] = Counter()
        self.order: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async with aclosing(self.of.deliveries()) as deliveries:
            async for one in deliveries:
                self.got[one.text()] += 1
                self.order[one.topic, one.partition].append(one.offset)
                await asyncio.sleep(0)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def publish(client: AsyncClient, topic: str, count: int, tag: str = "") -> list[str]:
    values = [f"{topic}{tag}-{number}" for number in range(count)]
    await client.publish_many(topic, [(value, value) for value in values])
    return values


async def test_topics_appear_and_vanish_while_it_runs(client: AsyncClient) -> None:
    await client.create_topic("orders-eu", partitions=2)
    await client.create_topic("other")
    wanted = await publish(client, "orders-eu", 20)
    await publish(client, "other", 1)
    worker = Worker(client, "orders-*", refresh_s=0.1)
    await until(lambda: len(worker.got) == 20, WANTED)
    await client.create_topic("orders-us")
    wanted += await publish(client, "orders-us", 5)
    await until(lambda: len(worker.got) == 25, WANTED)
    assert worker.of.has == ["public/orders-eu", "public/orders-us"]
    await client.delete_topic("orders-us")
    await until(lambda: worker.of.has == ["public/orders-eu"], WANTED)
    await client.create_topic("orders-us")
    wanted += await publish(client, "orders-us", 3, "-again")
    await until(lambda: len(worker.got) == 28, WANTED)
    assert not worker.task.done()
    await worker.stop()
    assert worker.got == Counter(wanted)


@pytest.mark.parametrize("group", [False, True])
async def test_a_pattern_leaves_letters_alone_whatever_their_topic_is_called(
    client: AsyncClient, *, group: bool
) -> None:
    """A pattern included `orders-failed`, and made dead letters of its dead letters."""
    for topic in ("orders-eu", "orders-failed"):
        await client.create_topic(topic)
    worker = Worker(client, "orders-*", refresh_s=0.1, group=group, session_timeout_s=SESSION_S)
    await until(lambda: len(worker.of.has) == 2, WANTED)
    await client.subscribe(
        "orders-eu", "u", type="shared", max_deliveries=3, dead_letter_topic="orders-failed",
        retry_topic="orders-again",
    )  # fmt: skip
    left = ["public/orders-eu/0" if group else "public/orders-eu"]
    await until(lambda: worker.of.has == left, WANTED)
    assert (await client.topic("orders-failed")).stats["letters"] is True
    assert "letters" not in (await client.topic("orders-eu")).stats
    await client.delete_topic("orders-failed")
    await client.create_topic("orders-failed")
    (delivery,) = await refused(client)
    async with asyncio.timeout(30):
        while "letters" not in (await client.topic("orders-failed")).stats:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await until(lambda: worker.of.has == left, WANTED)
    assert not worker.task.done()
    await worker.stop()
    by_name = client.consume(["orders-failed"], "letters", start="earliest")
    async with aclosing(by_name.deliveries(idle_s=1.0)) as found:
        assert [one.text() async for one in found] == [delivery.text()]


@pytest.mark.parametrize("group", [False, True])
async def test_a_topic_that_is_made_anew_while_it_is_joined_ends_no_consumer(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, *, group: bool
) -> None:
    """`TopicReplaced` ended the consumer of a pattern when it came during a join."""
    lease_s, failures = Subscription.lease_s, [True]

    async def replaced_once(self: Subscription) -> float:
        if failures:
            failures.clear()
            raise TopicReplaced(409, {"code": TopicReplaced.name, "detail": "made anew"}, "GET")
        return await lease_s(self)

    monkeypatch.setattr(Subscription, "lease_s", replaced_once)
    await client.create_topic("orders-eu")
    worker = Worker(client, "orders-*", refresh_s=0.1, group=group, session_timeout_s=SESSION_S)
    await until(lambda: len(worker.of.has) == 1, WANTED)
    assert not failures
    await worker.stop()


async def refused(client: AsyncClient) -> list[Delivery]:
    await client.publish("orders-eu", "poison")
    first = client.subscription("orders-eu", "u", consumer="c")
    (delivery,) = await first.receive(1, wait_s=10)
    await first.nack(delivery)
    again = client.subscription("orders-again", "u", consumer="c")
    for _ in range(2):
        (delivery,) = await again.receive(1, wait_s=10)
        await again.nack(delivery)
    return [delivery]


async def test_by_name_and_ends_when_idle(client: AsyncClient) -> None:
    for topic in "ab":
        await client.create_topic(topic)
    wanted = await publish(client, "a", 3) + await publish(client, "b", 3)
    several = client.consume(["a", "public/b"], "s", ack_timeout_s=2.0)
    async with aclosing(several.deliveries(auto_ack=False, idle_s=0.5)) as found:
        deliveries = [one async for one in found]
        assert sorted(one.text() for one in deliveries) == sorted(wanted)
        assert {one.topic for one in deliveries} == {"public/a", "public/b"}
        await several.extend(deliveries)
        await several.ack(deliveries[1:])
    async with aclosing(client.consume(["a", "b"], "s").deliveries(idle_s=3.0)) as found:
        assert [one.text() async for one in found] == [deliveries[0].text()]
    with pytest.raises(NotFound):
        _ = [one async for one in client.consume(["a", "none"], "s").deliveries(idle_s=0.1)]
    with pytest.raises(InvalidCall, match="the same namespace"):
        client.consume(["a/b", "c/d"], "s", group=True)
    with pytest.raises(InvalidCall, match="share"):
        client.consume("a", "s", group=True, type="exclusive")
    with pytest.raises(InvalidCall, match="'failover' gives all"):
        client.consume("a", "s", group=True, type="failover")


@pytest.mark.parametrize("type_", ["exclusive", "failover", "shared", "key_shared"])
async def test_a_subscription_of_each_type(client: AsyncClient, type_: SubscriptionType) -> None:
    wanted: list[str] = []
    for topic in ("x-1", "x-2"):
        await client.create_topic(topic, partitions=2)
        wanted += await publish(client, topic, 20)
    worker = Worker(client, "x-*", type=type_)
    await until(lambda: len(worker.got) == 40, WANTED)
    for topic in ("x-1", "x-2"):
        async with asyncio.timeout(60):
            while (found := await client.subscription(topic, "s").stats())["backlog"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert found["settings"]["type"] == type_
    await worker.stop()
    assert worker.got == Counter(wanted)


async def test_members_share_and_who_leaves_is_replaced_at_once(client: AsyncClient) -> None:
    await client.create_topic("t-1", partitions=3)
    await client.create_topic("t-2", partitions=1)
    first = Worker(client, "t-*", "first", group=True)
    wanted = await publish(client, "t-1", 30)
    await until(lambda: len(first.got) == 30, WANTED)
    assert len(first.of.has) == 4
    second = Worker(client, "t-*", "second", group=True)
    await until(lambda: len(second.of.has) == 2 and len(first.of.has) == 2, WANTED, 5.0)
    assert not set(first.of.has) & set(second.of.has)
    wanted += await publish(client, "t-1", 30, "-x") + await publish(client, "t-2", 5)
    await until(lambda: len(first.got + second.got) == 65, WANTED)
    await second.stop()
    await until(lambda: len(first.of.has) == 4, WANTED, 5.0)
    wanted += await publish(client, "t-1", 10, "-y")
    await until(lambda: len(first.got + second.got) == 75, WANTED)
    assert first.got + second.got == Counter(wanted), "nothing twice: all was let go in good order"
    assert all(offsets == sorted(offsets) for offsets in first.order.values())
    await first.stop()


async def test_who_vanishes_is_replaced_and_cannot_ack(
    cluster: Cluster, client: AsyncClient
) -> None:
    await client.create_topic("t", partitions=2)
    body = {"topics": ["t"], "session_timeout": SESSION_S}
    path = "/v1/groups/public/s/members/zombie"
    told = (await cluster.api.call("POST", path, json=body)).json()
    assert told["partitions"] == ["public/t/0", "public/t/1"]
    wanted = await publish(client, "t", 20)
    consumer = await client.subscribe("t", "s", type="shared", consumer="zombie")
    held = await consumer.receive(100, partition=0, generation=told["generation"])
    assert held
    begun_s = asyncio.get_running_loop().time()
    worker = Worker(client, "t", "successor", group=True, session_timeout_s=SESSION_S)
    await until(lambda: len(worker.got) == 20, WANTED)
    assert asyncio.get_running_loop().time() - begun_s < SESSION_S + 2.0, "not the ack timeout"
    assert worker.got == Counter(wanted)
    with pytest.raises(Conflict) as stale:
        await consumer.receive(1, partition=0, generation=told["generation"])
    assert stale.value.code == "stale-generation"
    assert stale.value.problem["generation"] > told["generation"]
    async with AsyncClient([api.url for api in cluster.apis.values()], retry_s=0.5) as hasty:
        with pytest.raises(Conflict) as plain:
            await hasty.subscription("t", "s").receive(1, partition=0, wait_s=0.0)
    assert plain.value.code == "subscription-busy"
    await worker.stop()


async def test_what_was_taken_cannot_be_acked(cluster: Cluster, client: AsyncClient) -> None:
    await client.create_topic("t")
    await publish(client, "t", 4)
    zombie = await client.subscribe("t", "s", type="shared", consumer="zombie")
    successor = client.subscription("t", "s", consumer="successor")
    held = await zombie.receive(3, partition=0, generation=1)
    again = await successor.receive(3, partition=0, generation=2)
    assert [one.offset for one in again] == [one.offset for one in held] == [0, 1, 2]
    with pytest.raises(Conflict) as stale:
        await zombie.ack(held)
    assert stale.value.code == "stale-lease"
    await successor.ack(again)
    assert (await successor.stats())["backlog"] == 1


async def test_counts_and_delays_outlive_a_member(client: AsyncClient) -> None:
    await client.create_topic("t")
    await publish(client, "t", 4)
    first = await client.subscribe("t", "s", type="shared", consumer="first")
    successor = client.subscription("t", "s", consumer="successor")
    held = await first.receive(4, partition=0, generation=1)
    await first.nack(held[0])
    await first.nack(held[1], delay_s=600)
    (again,) = await first.receive(1, partition=0, generation=1)
    assert (again.offset, again.delivery_count) == (0, 2)
    taken = await successor.receive(10, partition=0, generation=2)
    assert [(one.offset, one.delivery_count) for one in taken] == [(0, 2), (2, 1), (3, 1)]
    assert (await successor.stats())["delayed"] == 1


async def test_pushed_to_a_member(cluster: Cluster, client: AsyncClient) -> None:
    await client.create_topic("t", partitions=2)
    await client.subscribe("t", "s", type="shared")
    await client.publish("t", "x", partition=1)
    path = "/v1/topics/public/t/partitions/1/subscriptions/s/stream?consumer=a&generation="
    async with cluster.api.session.ws_connect(cluster.api.url + path + "3") as first:
        assert json.loads((await first.receive()).data)["messages"][0]["value_text"] == "x"
        async with cluster.api.session.ws_connect(
            cluster.api.url + path.replace("=a", "=b") + "4"
        ) as second:
            assert json.loads((await second.receive()).data)["messages"][0]["value_text"] == "x"
            problem = json.loads((await first.receive()).data)["problem"]
            assert problem["code"] == "stale-generation"
    whole = await cluster.api.call(
        "POST", "/v1/topics/public/t/subscriptions/s/receive?generation=5"
    )
    assert (whole.status, whole.json()["code"]) == (422, "partition-required")


async def test_the_keeper_of_a_group_may_go(cluster: Cluster, client: AsyncClient) -> None:
    await client.create_topic("t", partitions=4)
    workers = [Worker(client, "t", name, group=True, session_timeout_s=SESSION_S) for name in "ab"]
    await until(lambda: all(len(worker.of.has) == 2 for worker in workers), WANTED, 5.0)
    wanted = await publish(client, "t", 40)
    await until(lambda: sum(len(worker.got) for worker in workers) == 40, WANTED)
    keeper = (await cluster.api.call("GET", "/v1/groups/public/s")).headers["Octavo-Owner"]
    name = next(name for name, api in cluster.apis.items() if api.url == keeper)
    await cluster.stop_broker(name)
    wanted += await publish(client, "t", 40, "-later")
    await until(lambda: sum(len(worker.got) for worker in workers) >= 80, WANTED)
    assert set(workers[0].got + workers[1].got) == set(wanted)
    await until(lambda: all(len(worker.of.has) == 2 for worker in workers), WANTED, 10.0)
    for worker in workers:
        await worker.stop()


def test_the_synchronous_face(tmp_path: Path) -> None:
    async def serve(ready: asyncio.Queue[str], over: asyncio.Event) -> None:
        async with running_cluster(tmp_path, brokers=1) as found:
            ready.put_nowait(found.api.url)
            await over.wait()

    async def main() -> list[str]:
        ready: asyncio.Queue[str] = asyncio.Queue()
        over = asyncio.Event()
        serving = asyncio.create_task(serve(ready, over))
        url = await ready.get()
        try:
            return await asyncio.to_thread(use, url)
        finally:
            over.set()
            await serving

    def use(url: str) -> list[str]:
        with Client(url) as client:
            for topic in ("x-1", "x-2"):
                client.create_topic(topic)
                client.publish(topic, topic)
            several = client.consume("x-?", "s", group=True)
            found = [one.text() for one in several.deliveries(idle_s=0.5)]
            assert several.has == []
            return found

    assert sorted(asyncio.run(main())) == ["x-1", "x-2"]
