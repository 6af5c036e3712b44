"""Consumers: groups, several topics, `receive` in batches, and through brokers that do not own
the partition."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from octavo.broker.operations.frames import Frame, Kind
from octavo.broker.operations.kinds import REFUSAL_BYTES_MAX
from octavo.broker.operations.links import AnsweringLink, AskingLink
from octavo.broker.subscriptions.subscription import Subscription as SubscriptionOfBroker
from octavo.client.client import AsyncClient
from octavo.client.consumer import TopicsConsumer
from octavo.client.errors import Conflict, InvalidCall, NotFound, TopicReplaced
from octavo.client.subscription import Subscription
from octavo.client.sync import Client
from octavo.client.types import Delivery, SubscriptionType, decode_deliveries
from octavo.protocol.leased import LEASED_HEADER, Leased
from octavo.protocol.records import Record, build_batch
from tests.support.cluster import Cluster, RunningBroker, running_cluster, until
from tests.support.http_api import Api
from tests.support.http_api import until as until_elsewhere

SESSION_S = 1.5
WANTED = "messages and partitions as wanted"


@pytest.fixture
async def client(two: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient([api.url for api in two.apis.values()]) as found:
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


async def test_who_vanishes_is_replaced_and_cannot_ack(two: Cluster, client: AsyncClient) -> None:
    await client.create_topic("t", partitions=2)
    body = {"topics": ["t"], "session_timeout": SESSION_S}
    path = "/v1/groups/public/s/members/zombie"
    told = (await two.api.call("POST", path, json=body)).json()
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
    async with AsyncClient([api.url for api in two.apis.values()], retry_s=0.5) as hasty:
        with pytest.raises(Conflict) as plain:
            await hasty.subscription("t", "s").receive(1, partition=0, wait_s=0.0)
    assert plain.value.code == "subscription-busy"
    await worker.stop()


async def test_what_was_taken_cannot_be_acked(two: Cluster, client: AsyncClient) -> None:
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


async def test_pushed_to_a_member(two: Cluster, client: AsyncClient) -> None:
    await client.create_topic("t", partitions=2)
    await client.subscribe("t", "s", type="shared")
    await client.publish("t", "x", partition=1)
    path = "/v1/topics/public/t/partitions/1/subscriptions/s/stream?consumer=a&generation="
    async with two.api.session.ws_connect(two.api.url + path + "3") as first:
        assert json.loads((await first.receive()).data)["messages"][0]["value_text"] == "x"
        async with two.api.session.ws_connect(
            two.api.url + path.replace("=a", "=b") + "4"
        ) as second:
            assert json.loads((await second.receive()).data)["messages"][0]["value_text"] == "x"
            problem = json.loads((await first.receive()).data)["problem"]
            assert problem["code"] == "stale-generation"
    whole = await two.api.call("POST", "/v1/topics/public/t/subscriptions/s/receive?generation=5")
    assert (whole.status, whole.json()["code"]) == (422, "partition-required")


async def test_the_keeper_of_a_group_may_go(two: Cluster, client: AsyncClient) -> None:
    await client.create_topic("t", partitions=4)
    workers = [Worker(client, "t", name, group=True, session_timeout_s=SESSION_S) for name in "ab"]
    await until(lambda: all(len(worker.of.has) == 2 for worker in workers), WANTED, 5.0)
    wanted = await publish(client, "t", 40)
    await until(lambda: sum(len(worker.got) for worker in workers) == 40, WANTED)
    keeper = (await two.api.call("GET", "/v1/groups/public/s")).headers["Octavo-Owner"]
    name = next(name for name, api in two.apis.items() if api.url == keeper)
    await two.stop_broker(name)
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


BATCHES = "application/vnd.kafka.recordbatch.v2"
EITHER = {"Accept": f"{BATCHES}, application/json"}
SUB = "/v1/topics/public/t/subscriptions/s"
ODD = [
    Record(b"k", b"null", [("h", b"\xff"), ("h", None)], 5),
    Record(None, None, (), 6),
    Record(b"", b"", (), 7),
    Record(b"\xff", b'"hello"', [("", b"")], 8),
]


@pytest.fixture
async def cluster_batches(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        async with AsyncClient(found.api.url) as client:
            await client.create_topic("t")
            await client.subscribe("t", "s", type="shared", ack_timeout_s=600)
        yield found


async def fill(cluster: Cluster, *batches: list[Record]) -> None:
    for batch in batches:
        answer = await cluster.api.post("/v1/topics/public/t/messages", build_batch(batch), BATCHES)
        assert answer.status == 200, answer


async def receive(
    cluster: Cluster, most: int, broker: int = 0, **headers: str
) -> tuple[Leased | None, list[Delivery]]:
    answer = await [*cluster.apis.values()][broker].post(
        f"{SUB}/receive?max={most}", headers=headers or EITHER
    )
    assert answer.status in (200, 204), answer
    found, _ = decode_deliveries(answer.headers, answer.body)
    return (Leased.of(answer.headers) if LEASED_HEADER in answer.headers else None), found


async def ack(cluster: Cluster, **body: Any) -> Any:
    answer = await cluster.api.post(f"{SUB}/ack", json.dumps(body).encode(), "application/json")
    return answer.status, answer.json()


def numbered(count: int) -> list[Record]:
    return [Record(None, b"%d" % number, (), 1) for number in range(count)]


@pytest.mark.parametrize("broker", [0, 1])
async def test_the_same_messages_as_in_json(cluster_batches: Cluster, broker: int) -> None:
    await fill(cluster_batches, ODD, numbered(10))
    leased, found = await receive(cluster_batches, 14, broker)
    assert leased is not None
    assert leased.runs == [(0, 14, 1)]
    assert (await ack(cluster_batches, nack=[f"0-0:14-{leased.lease}"]))[0] == 200
    in_json, again = await receive(cluster_batches, 14, broker, Accept="application/json")
    assert in_json is None
    assert len(found) == 14
    for one, other in zip(found, again, strict=True):
        assert one.delivery_count == 1
        assert other.delivery_count == 2
        assert one.ack_id.rsplit("-", 1)[0] == other.ack_id.rsplit("-", 1)[0]
        for field in ("partition", "offset", "id", "key", "value", "headers", "timestamp_ms"):
            assert getattr(one, field) == getattr(other, field), field


async def test_a_part_of_a_batch_and_deliveries_again(cluster_batches: Cluster) -> None:
    await fill(cluster_batches, numbered(10), numbered(10))
    leased, found = await receive(cluster_batches, 12)
    assert leased is not None
    assert [one.offset for one in found] == [*range(12)]
    told = await ack(
        cluster_batches, ack_ids=[f"0-0:4-{leased.lease}"], nack=[f"0-8:10-{leased.lease}"]
    )
    assert told == (200, {"acked": 4})
    leased, found = await receive(cluster_batches, 100)
    assert leased is not None
    assert leased.runs == [(8, 10, 2), (12, 20, 1)]
    assert [one.offset for one in found] == [8, 9, *range(12, 20)]
    assert [one.delivery_count for one in found] == [2, 2, *[1] * 8]
    assert found[0].id.rsplit(":", 1)[1] == "8"
    assert found[-1].value == b"9"


async def test_few_messages_of_a_large_batch_come_alone(cluster_batches: Cluster) -> None:
    await fill(cluster_batches, numbered(100))
    leased, found = await receive(cluster_batches, 3)
    assert leased is None
    assert [one.offset for one in found] == [0, 1, 2]
    leased, found = await receive(cluster_batches, 90)
    assert leased is not None
    assert [one.offset for one in found] == [*range(3, 93)]


@pytest.mark.parametrize("broker", [0, 1])
async def test_one_by_one_they_come_as_the_caller_would_have_them(
    cluster_batches: Cluster, broker: int
) -> None:
    """Batches would have more than was asked for: then the next accepted type is used."""
    await fill(cluster_batches, numbered(100))
    for also, given in (("application/x-ndjson",) * 2, ("image/png", "application/json")):
        answer = await [*cluster_batches.apis.values()][broker].post(
            f"{SUB}/receive?max=2", headers={"Accept": f"{BATCHES}, {also}"}
        )
        assert (answer.status, answer.headers["Content-Type"].partition(";")[0]) == (200, given)


async def test_ranges_of_which_some_have_no_lease(cluster_batches: Cluster) -> None:
    await fill(cluster_batches, numbered(10))
    leased, _ = await receive(cluster_batches, 10)
    assert leased is not None
    assert (await ack(cluster_batches, nack=[f"0-3:5-{leased.lease}"]))[0] == 200
    status, told = await ack(cluster_batches, ack_ids=[f"0-0:10-{leased.lease}"])
    assert (status, told["code"], told["stale"]) == (409, "stale-lease", [f"0-3:5-{leased.lease}"])
    assert (await ack(cluster_batches, ack_ids=[f"0-5:10-{leased.lease}"]))[0] == 200
    _, found = await receive(cluster_batches, 10)
    assert [one.offset for one in found] == [3, 4]


@pytest.mark.parametrize("ack_id", ["0-5:5-1-1", "0-5:3-1-1", "0-:3-1-1", "0-1:2:3-1-1"])
async def test_ranges_that_are_none(cluster_batches: Cluster, ack_id: str) -> None:
    status, told = await ack(cluster_batches, ack_ids=[ack_id])
    assert (status, told["code"]) == (400, "invalid-ack-id")


async def test_several_partitions_have_no_batches_together(cluster_batches: Cluster) -> None:
    async with AsyncClient(cluster_batches.api.url) as client:
        await client.create_topic("u", partitions=2)
        await client.subscribe("u", "s")
    path = "/v1/topics/public/u/subscriptions/s/receive"
    assert (await cluster_batches.api.post(path, headers={"Accept": BATCHES})).status == 406
    assert (await cluster_batches.api.post(path, headers=EITHER)).status == 204


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_a_quick_loop_takes_batches_of_all_partitions(
    cluster_batches: Cluster, kind: Any
) -> None:
    async with AsyncClient(cluster_batches.api.url) as client:
        await client.create_topic("v", partitions=3)
        await client.publish_many("v", [(f"k{n % 50}", f"{n}") for n in range(5_000)])
        mine = await client.subscribe("v", "s", type=kind)
        seen = [one async for one in mine.deliveries(idle_s=0.3)]
        assert sorted(int(one.text()) for one in seen) == [*range(5_000)]
        for partition in range(3):
            of = [one.offset for one in seen if one.partition == partition]
            assert of == sorted(of)
        stats = await mine.stats()
        assert (stats["backlog"], stats["leased"]) == (0, 0)


TOPIC = "/v1/topics/public/orders"
SUB_ELSEWHERE = f"{TOPIC}/subscriptions/s"


class World(NamedTuple):
    owner: Api
    other: Api
    asking: RunningBroker
    subscription: SubscriptionOfBroker

    @property
    def leased(self) -> int:
        return self.subscription.stats().leased

    @property
    def is_at_rest(self) -> bool:
        assert self.asking.server is not None
        held = self.asking.server._services.remote.describe()
        return not self.subscription.describe()["receiving"] and not any(held.values())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        await cluster.api.put(TOPIC, json={"partitions": 1})
        await cluster.api.put(SUB_ELSEWHERE, json={"type": "shared", "ack_timeout": 600})
        (partition,) = (await cluster.api.get(TOPIC)).json()["partitions"]
        owner = partition["owner"]
        (other,) = {*cluster.apis} - {owner}
        serving = [one.broker for one in cluster.brokers.values() if one.broker]
        (open_here,) = [one for broker in serving for one in broker.ownership.open_partitions()]
        (asking,) = [one for one in cluster.brokers.values() if one.broker.broker_id == other]
        subscription = await open_here.subscription("s")
        yield World(cluster.apis[owner], cluster.apis[other], asking, subscription)


async def publish_elsewhere(api: Api, value: Any = "v") -> None:
    assert (await api.post(f"{TOPIC}/messages", json={"value": value})).status == 200


async def test_messages_and_acks_go_through_another_broker(world: World) -> None:
    await publish_elsewhere(world.owner, "a")
    found = await world.other.post(f"{SUB_ELSEWHERE}/receive?consumer=c")
    (message,) = found.json()["messages"]
    assert message["value"] == "a"
    assert message["delivery_count"] == 1
    nacked = await world.other.post(f"{SUB_ELSEWHERE}/ack", json={"nack": [message["ack_id"]]})
    assert nacked.json() == {"acked": 0}
    (again,) = (await world.other.post(f"{SUB_ELSEWHERE}/receive?wait=5")).json()["messages"]
    assert again["delivery_count"] == 2
    acked = await world.other.post(f"{SUB_ELSEWHERE}/ack", json={"ack_ids": [again["ack_id"]]})
    assert acked.json() == {"acked": 1}
    repeated = await world.other.post(f"{SUB_ELSEWHERE}/ack", json={"ack_ids": [again["ack_id"]]})
    assert repeated.json() == {"acked": 0}


async def test_long_messages_come_whole(world: World) -> None:
    """They are longer than the reservation of a receive that waits."""
    waiting = asyncio.create_task(world.other.post(f"{SUB_ELSEWHERE}/receive?wait=20&max=4"))
    await until_elsewhere(lambda: world.subscription.is_in_use)
    text = "x" * 900_000
    await publish_elsewhere(world.owner, text)
    assert [one["value"] for one in (await waiting).json()["messages"]] == [text]
    await publish_elsewhere(world.owner, text)
    stored = await world.other.call(
        "POST", f"{SUB_ELSEWHERE}/receive?wait=5", headers={"Accept": BATCHES}
    )
    assert LEASED_HEADER in stored.headers
    assert len(stored.body) > len(text)


async def test_many_that_wait_take_no_room(world: World) -> None:
    await publish_elsewhere(world.other)
    assert len((await world.other.post(f"{SUB_ELSEWHERE}/receive")).json()["messages"]) == 1
    waits = [
        asyncio.create_task(world.other.post(f"{SUB_ELSEWHERE}/receive?wait=20")) for _ in range(60)
    ]
    await until_elsewhere(lambda: world.subscription.describe()["receiving"] == 60)
    assert world.asking.server is not None
    held = world.asking.server._services.remote.describe()
    assert held["reserved_bytes"] <= 60 * REFUSAL_BYTES_MAX
    read = await world.other.get(f"{TOPIC}/messages?from=earliest&wait=5")
    assert len(read.json()["messages"]) == 1
    for one in waits:
        one.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    await until_elsewhere(lambda: world.leased == 1 and world.is_at_rest)


async def test_the_ack_ids_of_a_refusal_all_come(world: World) -> None:
    await publish_elsewhere(world.owner)
    (message,) = (await world.other.post(f"{SUB_ELSEWHERE}/receive")).json()["messages"]
    stale = [f"0-{offset}-1-1" for offset in range(0, 4_000, 2)]
    asked = {"ack_ids": [message["ack_id"], *stale]}
    found = await world.other.post(f"{SUB_ELSEWHERE}/ack", json=asked)
    assert found.status == 409
    assert found.json()["stale"] == stale
    assert world.subscription.stats().backlog == 0


async def test_a_client_that_leaves_while_its_answer_comes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, late = AskingLink._take, list[tuple[AskingLink, Frame]]()

    def held_back(self: AskingLink, frame: Frame) -> None:
        if not late and frame.kind is Kind.ANSWER:
            late.append((self, frame))
        else:
            take(self, frame)

    await publish_elsewhere(world.owner)
    monkeypatch.setattr(AskingLink, "_take", held_back)
    receiving = asyncio.create_task(world.other.post(f"{SUB_ELSEWHERE}/receive?wait=20"))
    await until_elsewhere(lambda: bool(late))
    assert world.leased == 1
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    link, frame = late[0]
    await until_elsewhere(lambda: not link._waiters)
    take(link, frame)
    await until_elsewhere(lambda: world.leased == 0)
    (message,) = (await world.owner.post(f"{SUB_ELSEWHERE}/receive")).json()["messages"]
    assert message["delivery_count"] == 1


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_connection_that_ends_before_the_answer_is_sent(
    world: World, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    await publish_elsewhere(world.other)
    assert len((await world.other.post(f"{SUB_ELSEWHERE}/receive?max=1")).json()["messages"]) == 1
    answer, ended = AnsweringLink._send, list[int]()

    def cut(self: AnsweringLink, number: int, reply: Any) -> None:
        if not ended:
            ended.append(number)
            self.pause_writing()
            answer(self, number, reply)
            self.end("the network is cut")
        else:
            answer(self, number, reply)

    receiving = asyncio.create_task(world.other.post(f"{SUB_ELSEWHERE}/receive?wait=20"))
    await until_elsewhere(lambda: world.subscription.describe()["receiving"] == 1)
    monkeypatch.setattr(AnsweringLink, "_send", cut)
    await publish_elsewhere(world.owner, "x" * size)
    (message,) = (await receiving).json()["messages"]
    assert ended
    assert message["offset"] == 1
    assert message["delivery_count"] == 1
    assert world.leased == 2


async def test_an_answer_that_is_lost_on_its_way_is_given_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, lost = AskingLink._take, list[Frame]()

    def cut(self: AskingLink, frame: Frame) -> None:
        if not lost and frame.kind is Kind.ANSWER:
            lost.append(frame)
            self.end("the network is cut")
        else:
            take(self, frame)

    await publish_elsewhere(world.owner, "a")
    await publish_elsewhere(world.owner, "b")
    monkeypatch.setattr(AskingLink, "_take", cut)
    found = (await world.other.post(f"{SUB_ELSEWHERE}/receive?max=1&wait=20")).json()["messages"]
    assert lost
    assert [(one["value"], one["delivery_count"]) for one in found] == [("a", 1)]
    assert world.leased == 1


async def test_a_client_that_leaves_when_one_of_two_partitions_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        await cluster.api.put(TOPIC, json={"partitions": 2})
        await cluster.api.put(SUB_ELSEWHERE, json={"type": "shared", "ack_timeout": 600})
        shown = (await cluster.api.get(TOPIC)).json()["partitions"]
        assert len({one["owner"] for one in shown}) == 2
        for number in (0, 1):
            path = f"{TOPIC}/partitions/{number}/messages"
            assert (await cluster.api.post(path, json={"value": "v"})).status == 200
        subscriptions = [
            await partition.subscription("s")
            for one in cluster.brokers.values()
            for partition in one.broker.ownership.open_partitions()
        ]

        def leased() -> int:
            return sum(one.stats().leased for one in subscriptions)

        take, late = AskingLink._take, list[tuple[AskingLink, Frame]]()

        def held_back(self: AskingLink, frame: Frame) -> None:
            if not late and frame.kind is Kind.ANSWER:
                late.append((self, frame))
            else:
                take(self, frame)

        monkeypatch.setattr(AskingLink, "_take", held_back)
        receiving = asyncio.create_task(cluster.api.post(f"{SUB_ELSEWHERE}/receive?max=10"))
        await until_elsewhere(lambda: bool(late) and leased() == 2)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        link, frame = late[0]
        await until_elsewhere(lambda: not link._waiters)
        take(link, frame)
        await until_elsewhere(lambda: leased() == 0)
