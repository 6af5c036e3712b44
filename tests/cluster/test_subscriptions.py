"""Subscriptions over real bookies: their types, acks, leases, seeks, due times, and durability."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from octavo import AsyncClient
from octavo.broker.broker import Broker
from octavo.broker.errors import (
    CUMULATIVE_ACK_NOT_ALLOWED,
    INVALID_ACK_ID,
    OffsetBeyondEnd,
    StaleLease,
    SubscriptionBusy,
    SubscriptionNotFound,
)
from octavo.broker.partition.partition import Partition
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import (
    Delivery,
    Nack,
    PartitionName,
    SubscriptionSettings,
    TopicName,
    TopicSettings,
)
from octavo.cli.main import run
from octavo.client.errors import ApiError, Trimmed
from octavo.clock import wall_clock_ms
from octavo.protocol.batch import HEADER_BYTES, with_base_offset
from octavo.protocol.due import due_header
from octavo.protocol.records import Record, build_batch
from tests.support.cluster import Cluster, batch, make_topic, owned, running_cluster, until
from tests.support.http_api import Api
from tests.support.kit.refusals import raises_code


async def subscribed(
    broker: Broker, name: PartitionName, sub: str = "s", **settings: Any
) -> tuple[Partition, Subscription]:
    partition = await owned(broker, name)
    info, _ = await broker.topics.create_subscription(
        name.topic_name, sub, SubscriptionSettings(**settings)
    )
    return partition, await partition.subscribe(info)


def offsets(deliveries: list[Delivery]) -> list[int]:
    return [one.offset for one in deliveries]


def ids(deliveries: list[Delivery], *wanted: int) -> list[str]:
    return [one.ack_id for one in deliveries if not wanted or one.offset in wanted]


async def received(subscription: Subscription, count: int) -> list[Delivery]:
    """Receive this many messages in any number of calls: slow disks make a receive give fewer."""
    got: list[Delivery] = []
    while len(got) < count:
        more = await subscription.receive("c", messages_max=count - len(got))
        assert more, f"{len(got)} of {count}"
        got += more
    return got


async def test_each_message_once_and_acks_survive_a_handover(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    partition, subscription = await subscribed(first.broker, name, type="shared")
    for number in range(10):
        await partition.publish(batch(5, tag=f"m{number}"))
    got = await subscription.receive("c", messages_max=30)
    more = await subscription.receive("d", messages_max=30)
    assert offsets(got) == list(range(30))
    assert offsets(more) == list(range(30, 50))
    assert [one.record.value for one in got[4:6]] == [b"m0-4", b"m1-0"]
    assert got[7].message_id.index == 2
    assert await subscription.receive("c", messages_max=30) == []
    odd = [one.ack_id for one in got if one.offset % 2]
    assert await subscription.acknowledge(odd[:8]) == 8
    assert await subscription.acknowledge(odd) == 7
    assert await subscription.acknowledge(ids(more)) == 20
    stats = subscription.stats()
    assert (stats.backlog, stats.unacked_ranges, stats.leased) == (15, 15, 15)
    await first.close()

    second = await cluster.start("B")
    partition = await owned(second.broker, name)
    subscription = await partition.subscription("s")
    assert subscription.stats().backlog == 15
    assert await subscription.receive("e", messages_max=100) == [], "the leases of c go on"
    assert await subscription.acknowledge(ids(got, 0)) == 1
    left = [one.ack_id for one in got if one.offset % 2 == 0 and one.offset]
    await subscription.acknowledge(nacks=[Nack(one) for one in left])
    again = await subscription.receive("e", messages_max=100)
    assert offsets(again) == list(range(2, 30, 2))
    assert {one.delivery_count for one in again} == {2}
    with pytest.raises(StaleLease):
        await subscription.acknowledge(ids(got, 2))
    # An ack that is repeated because its answer was lost is done, not stale.
    assert await subscription.acknowledge(ids(got, 1, 3)) == 0


async def test_successors_know_how_often_messages_were_delivered(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    partition, subscription = await subscribed(first.broker, name, type="shared")
    await partition.publish(batch(4))
    for _ in range(3):
        got = await subscription.receive("c", messages_max=4)
        await subscription.acknowledge(nacks=[Nack(one) for one in ids(got, 0, 1, 2)])
    got = await subscription.receive("c", messages_max=4)
    assert [(one.offset, one.delivery_count) for one in got] == [(0, 4), (1, 4), (2, 4)]
    await subscription.acknowledge(ids(got, 1))
    await first.vanish()

    second = await cluster.start("B")
    await owned(second.broker, name)
    await second.vanish()

    third = await cluster.start("C")
    partition = await owned(third.broker, name)
    subscription = await partition.subscription("s")
    again = await subscription.receive("e", messages_max=4)
    assert [(one.offset, one.delivery_count) for one in again] == [(0, 5), (2, 5), (3, 1)]
    await subscription.seek(0)
    again = await subscription.receive("e", messages_max=4)
    assert {one.delivery_count for one in again} == {1}, "a seek begins anew"


async def test_leases_end_and_count(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    name = await make_topic(broker)
    partition, subscription = await subscribed(broker, name, type="shared", ack_timeout_ms=150)
    await partition.publish(batch(4))
    got = await subscription.receive("c", messages_max=10)
    await subscription.acknowledge(ids(got, 1), nacks=[Nack(ids(got, 2)[0], 0)])
    nacked = await subscription.receive("d", messages_max=10)
    assert [(one.offset, one.delivery_count) for one in nacked] == [(2, 2)]
    again: list[Delivery] = []
    while len(again) < 3:
        again += await subscription.receive("e", messages_max=10, wait_s=10)
    assert sorted((one.offset, one.delivery_count) for one in again) == [(0, 2), (2, 3), (3, 2)]
    with pytest.raises(StaleLease) as stale:
        await subscription.acknowledge([*ids(got, 0), *ids(again, 3)])
    assert stale.value.stale == (ids(got, 0)[0],)
    assert subscription.stats().backlog == 2, "the good ack of the same call took effect"


async def test_extending_keeps_a_lease(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    name = await make_topic(broker)
    partition, subscription = await subscribed(broker, name, type="shared", ack_timeout_ms=300)
    await partition.publish(batch(2))
    got = await subscription.receive("c", messages_max=10)
    loop = asyncio.get_running_loop()
    until = loop.time() + 0.5
    while loop.time() < until:
        await subscription.acknowledge(extend=ids(got, 0))
        await subscription.receive("d", messages_max=10, wait_s=0.05)
    assert await subscription.acknowledge(ids(got, 0)) == 1


async def test_an_exclusive_subscription_refuses_a_second_consumer(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    name = await make_topic(broker)
    partition, subscription = await subscribed(broker, name, ack_timeout_ms=200)
    await partition.publish(batch(3))
    assert offsets(await subscription.receive("c", messages_max=1)) == [0]
    with pytest.raises(SubscriptionBusy, match="'c' holds it"):
        await subscription.receive("d", messages_max=1)
    got: list[Delivery] = []
    async with asyncio.timeout(10):
        while not got:
            try:
                got = await subscription.receive("d", messages_max=5)
            except SubscriptionBusy:
                await asyncio.sleep(0.02)
    assert [(one.offset, one.delivery_count) for one in got] == [(0, 2), (1, 1), (2, 1)]


async def test_cumulative_acks(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    name = await make_topic(broker)
    partition, exclusive = await subscribed(broker, name)
    _, shared = await subscribed(broker, name, "t", type="shared")
    await partition.publish(batch(10))
    assert await exclusive.acknowledge(up_to=6) == 7
    assert offsets(await exclusive.receive("c", messages_max=10)) == [7, 8, 9]
    with pytest.raises(OffsetBeyondEnd):
        await exclusive.acknowledge(up_to=10)
    with raises_code(CUMULATIVE_ACK_NOT_ALLOWED):
        await shared.acknowledge(up_to=1)


async def test_a_seek_goes_back_and_ends_leases(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    name = await make_topic(broker)
    partition, subscription = await subscribed(broker, name)
    await partition.publish(batch(10))
    got = await subscription.receive("c", messages_max=10)
    await subscription.acknowledge(ids(got, 0, 1, 2, 9))
    assert await subscription.seek(1) == 1
    with pytest.raises(StaleLease):
        await subscription.acknowledge(ids(got, 4))
    assert offsets(await subscription.receive("c", messages_max=99)) == list(range(1, 10))
    assert await subscription.seek(10**9) == 10
    assert await subscription.receive("c", messages_max=99) == []


async def test_waiting_consumers_share_what_comes(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    name = await make_topic(broker)
    partition, subscription = await subscribed(broker, name, type="shared")
    waiting = [
        asyncio.create_task(subscription.receive(consumer, messages_max=100, wait_s=20))
        for consumer in "abc"
    ]
    await asyncio.sleep(0)
    await partition.publish(batch(30))
    shares = await asyncio.gather(*waiting)
    assert sorted(o for share in shares for o in offsets(share)) == list(range(30))
    assert min(len(share) for share in shares) >= 5


async def test_a_consumer_that_goes_away_costs_nothing(cluster: Cluster) -> None:
    broker = (await cluster.start("A", tail_cache_bytes_max=1)).broker
    name = await make_topic(broker)
    partition, subscription = await subscribed(broker, name, type="shared")
    await partition.publish(batch(3))
    receiving = asyncio.create_task(subscription.receive("c", messages_max=10))
    await until(lambda: subscription.stats().leased, "the messages are handed out")
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    got = await subscription.receive("d", messages_max=10)
    assert [(one.offset, one.delivery_count) for one in got] == [(0, 1), (1, 1), (2, 1)]


async def test_starts_names_and_bad_ids(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    name = await make_topic(broker)
    partition = await owned(broker, name)
    await partition.publish(batch(5))
    _, latest = await subscribed(broker, name, "late", start="latest")
    _, earliest = await subscribed(broker, name, "early", start="earliest")
    assert (latest.stats().backlog, earliest.stats().backlog) == (0, 5)
    with pytest.raises(SubscriptionNotFound, match="no subscription 'none'"):
        await partition.subscription("none")
    for bad in ("", "x", "0-1-2", "0-1-2-3-4", "1-0-1-1"):
        with raises_code(INVALID_ACK_ID):
            await earliest.acknowledge([bad])
    await earliest.acknowledge(up_to=3)
    await broker.topics.delete_subscription(name.topic_name, "early")
    cluster.clock.now_ms += 1
    with pytest.raises(SubscriptionNotFound):
        await partition.subscription("early")
    _, again = await subscribed(broker, name, "early", start="earliest")
    assert again.stats().backlog == 5


async def test_a_batch_that_cannot_be_opened_does_not_stop_a_subscription(
    cluster: Cluster,
) -> None:
    from crc32c import crc32c

    broker = (await cluster.start("A")).broker
    name = await make_topic(broker)
    partition, subscription = await subscribed(broker, name)
    good = batch(2)
    noise = bytearray(good[:HEADER_BYTES] + b"\xff" * (len(good) - HEADER_BYTES))
    noise[17:21] = crc32c(memoryview(noise)[21:]).to_bytes(4, "big")
    await partition.publish(bytes(noise))
    await partition.publish(with_base_offset(good, 0))
    got = await subscription.receive("c", messages_max=10)
    assert offsets(got) == [0, 1, 2, 3]
    assert [dict(one.record.headers).keys() for one in got[:2]] == [{"octavo-error"}] * 2
    assert [one.record.value for one in got[2:]] == [b"m-0", b"m-1"]


async def test_redeliveries_that_lie_far_apart(cluster: Cluster) -> None:
    broker = (await cluster.start("A", tail_cache_bytes_max=1)).broker
    name = await make_topic(broker, rollover_entries=20)
    partition, subscription = await subscribed(broker, name, type="shared")
    for number in range(100):
        await partition.publish(batch(10, tag=f"m{number}"))
    got = await received(subscription, 1000)
    assert offsets(got) == list(range(1000))
    far = [3, 4, 255, 777, 999]
    await subscription.acknowledge(
        [one.ack_id for one in got if one.offset not in far],
        nacks=[Nack(one) for one in ids(got, *far)],
    )
    again = await received(subscription, len(far))
    assert offsets(again) == far
    assert await subscription.receive("c", messages_max=1000) == []
    assert [one.record.value for one in again] == [got[offset].record.value for offset in far]
    assert await subscription.acknowledge(ids(again)) == 5
    assert subscription.stats().committed_offset == 1000


# An ack id was valid in every subscription of a topic: leases are numbered from 1 in
# each, and the epoch was the partition's.

TOPIC = "/v1/topics/public/orders"
BATCHES = {"Accept": "application/vnd.kafka.recordbatch.v2"}


@pytest.fixture
async def foreign_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        yield found


async def foreign_received(cluster: Cluster, name: str) -> str:
    answer = await cluster.api.post(f"{TOPIC}/subscriptions/{name}/receive")
    (message,) = answer.json()["messages"]
    return str(message["ack_id"])


async def make(cluster: Cluster, name: str) -> None:
    answer = await cluster.api.put(f"{TOPIC}/subscriptions/{name}", json={"type": "shared"})
    assert answer.status == 201, answer


async def refused(cluster: Cluster, name: str, ack_id: str) -> None:
    for word in ("ack_ids", "nack", "extend", "release"):
        answer = await cluster.api.post(f"{TOPIC}/subscriptions/{name}/ack", json={word: [ack_id]})
        assert (answer.status, answer.json()["code"]) == (409, "stale-lease"), answer
    figures = (await cluster.api.get(f"{TOPIC}/subscriptions/{name}")).json()
    assert figures["backlog"] == 1


async def test_an_ack_id_is_good_for_its_own_subscription_alone(foreign_cluster: Cluster) -> None:
    await foreign_cluster.api.put(TOPIC, json={})
    await foreign_cluster.api.post(f"{TOPIC}/messages", json={"value": 1})
    for name in ("a", "b"):
        await make(foreign_cluster, name)
    of_a, of_b = (
        await foreign_received(foreign_cluster, "a"),
        await foreign_received(foreign_cluster, "b"),
    )
    assert of_a != of_b
    await refused(foreign_cluster, "b", of_a)

    answer = await foreign_cluster.api.post(
        f"{TOPIC}/subscriptions/b/ack", json={"ack_ids": [of_b]}
    )
    assert answer.json() == {"acked": 1}
    await foreign_cluster.api.call("DELETE", f"{TOPIC}/subscriptions/a")
    await make(foreign_cluster, "a")
    await foreign_received(foreign_cluster, "a")
    await refused(foreign_cluster, "a", of_a)


async def test_one_that_came_with_batches_too(foreign_cluster: Cluster) -> None:
    await foreign_cluster.api.put(TOPIC, json={})
    await foreign_cluster.api.post(f"{TOPIC}/messages", json={"value": 1})
    for name in ("a", "b"):
        await make(foreign_cluster, name)
    answer = await foreign_cluster.api.post(f"{TOPIC}/subscriptions/a/receive", headers=BATCHES)
    lease = answer.headers["Octavo-Lease"]
    await foreign_received(foreign_cluster, "b")
    await refused(foreign_cluster, "b", f"0-0-{lease}")
    answer = await foreign_cluster.api.post(
        f"{TOPIC}/subscriptions/a/ack", json={"ack_ids": [f"0-0-{lease}"]}
    )
    assert answer.json() == {"acked": 1}


SUB = TOPIC + "/subscriptions/s"


@pytest.fixture
async def cluster_types(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        assert (await found.api.put(TOPIC, json={"partitions": 2})).status == 201
        yield found


async def publish(cluster: Cluster, messages: list[dict[str, Any]]) -> None:
    assert (await cluster.api.post(TOPIC + "/messages", json={"messages": messages})).status == 200


async def test_a_key_shared_group_over_two_brokers(cluster_types: Cluster) -> None:
    # When an answer is lost, its messages come again after their leases end, and their keys wait
    # for that.
    settings = {"type": "key_shared", "consumer_timeout": "30s", "ack_timeout": 2}
    assert (await cluster_types.api.put(SUB, json=settings)).status == 201
    assert (await cluster_types.api.put(SUB, json=settings)).status == 200
    assert (await cluster_types.api.put(SUB, json={"type": "shared"})).status == 409
    apis = list(cluster_types.apis.values())

    done: list[list[tuple[str, int, int]]] = [[], [], []]

    async def work(number: int) -> None:
        """Return a consumer's messages, at its own broker; it gives every fifth back once."""
        got = done[number]
        api = apis[number % 2]
        while sum(map(len, done)) < 200:
            answer = await api.post(f"{SUB}/receive?max=7&wait=200ms&consumer=c{number}")
            for one in answer.json()["messages"] if answer.status == 200 else []:
                refused = one["offset"] % 5 == 0 and one["delivery_count"] == 1
                what = "nack" if refused else "ack_ids"
                answer = await api.post(SUB + "/ack", json={what: [one["ack_id"]]})
                if answer.status == 409:
                    continue
                assert answer.status == 200, answer
                if not refused:
                    got.append((one["key"], one["partition"], one["offset"]))

    workers = [asyncio.ensure_future(work(number)) for number in range(3)]
    for turn in range(10):
        await publish(cluster_types, [{"key": f"k{n}", "value": turn} for n in range(20)])
    async with asyncio.timeout(60):
        await asyncio.gather(*workers)
    every = sorted(one for mine in done for one in mine)
    assert len(every) == len(set(every)) == 200
    for mine in done:
        for number in range(20):
            offsets = [offset for key, _, offset in mine if key == f"k{number}"]
            assert offsets == sorted(offsets), "in order"
    figures = (await cluster_types.api.get(SUB)).json()
    assert figures["settings"]["type"] == "key_shared"
    assert figures["backlog"] == 0
    for part in figures["partitions"]:
        assert sum(one["slots"] for one in part["consumers"]) == 65_536


async def test_failover_stands_by_with_a_reason(cluster_types: Cluster) -> None:
    path = TOPIC + "/partitions/0/subscriptions/s"
    await cluster_types.api.put(SUB, json={"type": "failover", "consumer_timeout": 0.2})
    await publish(cluster_types, [{"key": f"k{n}", "value": n} for n in range(20)])
    first = (await cluster_types.api.post(path + "/receive?consumer=a&max=2")).json()["messages"]
    answer = await cluster_types.api.post(path + "/receive?consumer=b&max=2")
    assert answer.json()["messages"] == []
    assert "'a' is the active one; 'b' stands by" in answer.json()["held_back"]
    assert answer.headers["Octavo-Held-Back"] == answer.json()["held_back"]
    await cluster_types.api.post(path + "/ack", json={"ack_ids": [one["ack_id"] for one in first]})
    answer = await cluster_types.api.post(path + "/receive?consumer=b&max=2&wait=5")
    assert [one["offset"] for one in answer.json()["messages"]] == [2, 3]
    answer = await cluster_types.api.post(path + "/receive?consumer=b&priority=101")
    assert (answer.status, answer.json()["code"]) == (400, "invalid-parameter")


async def test_filters_limits_and_what_is_not_durable(cluster_types: Cluster) -> None:
    refused: list[dict[str, Any]] = [
        {"filter": {"headers": {"a": []}}},
        {"filter": {"headers": {"a": 5}}},
        {"filter": {"key_prefix": "x" * 300}},
        {"filter": {"query": "a = 1"}},
        {"max_unacked": 0},
        {"consumer_timeout": None},
        {"durable": "no"},
    ]
    for settings in refused:
        answer = await cluster_types.api.put(SUB, json=settings)
        assert answer.status == 422, (settings, answer)
    settings = {
        "type": "shared",
        "filter": {"headers": {"kind": ["order", "refund"], "to": "*"}, "key_prefix": "eu-"},
        "max_unacked_per_consumer": 2,
        "durable": False,
    }
    answer = await cluster_types.api.put(SUB, json=settings)
    assert answer.status == 201
    shown = answer.json()["settings"]
    assert shown["filter"] == {
        "headers": {"kind": ["order", "refund"], "to": ["*"]}, "key_prefix": "eu-",
    }  # fmt: skip
    assert (shown["durable"], shown["max_unacked_per_consumer"]) == (False, 2)
    await publish(
        cluster_types,
        [
            {"key": "eu-1", "value": 0, "headers": {"kind": "order", "to": "me"}},
            {"key": "us-1", "value": 1, "headers": {"kind": "order", "to": "me"}},
            {"key": "eu-1", "value": 2, "headers": {"kind": "other", "to": "me"}},
            {"key": "eu-1", "value": 3, "headers": {"kind": "refund", "to": ""}},
            {"key": "eu-1", "value": 4, "headers": {"kind": "refund"}},
            {"key": "eu-1", "value": 5, "headers": {"kind": "order", "to": "me"}},
        ],
    )
    got = (await cluster_types.api.post(SUB + "/receive?max=10&wait=2")).json()["messages"]
    assert [one["value"] for one in got] == [0, 3]
    answer = await cluster_types.api.post(SUB + "/receive?max=10")
    assert "one consumer has at most 2 out" in answer.json()["held_back"]
    await cluster_types.api.post(SUB + "/ack", json={"ack_ids": [one["ack_id"] for one in got]})
    got = (await cluster_types.api.post(SUB + "/receive?max=10&wait=2")).json()["messages"]
    assert [one["value"] for one in got] == [5]


async def test_the_client_has_all_of_it(cluster_types: Cluster) -> None:
    async with AsyncClient(cluster_types.api.url) as client:
        first = await client.subscribe(
            "orders",
            "s",
            type="key_shared",
            consumer="a",
            consumer_timeout="30s",
            max_unacked=100,
            max_unacked_per_consumer=50,
            filter={"headers": {"kind": "order", "to": ["me", "you"]}, "key_prefix": "eu-"},
            durable=False,
        )
        second = client.subscription("orders", "s", consumer="b", priority=1)
        settings = (await first.stats())["settings"]
        assert {name: one for name, one in settings.items() if one is not None} == {
            "type": "key_shared",
            "start": "earliest",
            "ack_timeout": 30,
            "consumer_timeout": 30,
            "max_unacked": 100,
            "max_unacked_per_consumer": 50,
            "filter": {
                "headers": {"kind": ["order"], "to": ["me", "you"]}, "key_prefix": "eu-",
            },
            "durable": False,
        }  # fmt: skip
        assert await first.receive(9) == [], "now both partitions know it"
        for number in range(6):
            headers = {"kind": "order", "to": "me" if number % 2 else "them"}
            await client.publish("orders", number, key=f"eu-{number}", headers=headers)
        assert await first.receive(1) != []
        assert await second.receive(9) == []
        assert "shared by consumers of priority 0" in (second.held_back or "")
        got = [delivery.value async for delivery in first.deliveries(idle_s=0.2)]
        assert len(got) == 2


async def test_the_streams_of_a_key_shared_subscription(cluster_types: Cluster) -> None:
    settings = {"type": "key_shared", "consumer_timeout": 0.3, "ack_timeout": 2}
    await cluster_types.api.put(SUB, json=settings)
    url = cluster_types.api.url + SUB + "/stream?credits=2&priority=0"
    seen: dict[str, list[int]] = {"a": [], "b": []}

    async def take(name: str, count: int) -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(url) as ws:
            while len(seen["a"]) + len(seen["b"]) < count:
                try:
                    said = (await ws.receive(timeout=0.3)).json()
                except TimeoutError:
                    continue
                for one in said.get("messages", []):
                    seen[name].append(one["value"])
                    await ws.send_json({"ack_ids": [one["ack_id"]]})

    first, second = asyncio.ensure_future(take("a", 60)), asyncio.ensure_future(take("b", 30))
    await asyncio.sleep(0.3)
    await publish(cluster_types, [{"key": f"k{n % 10}", "value": n} for n in range(30)])
    async with asyncio.timeout(20):
        await second
        await publish(cluster_types, [{"key": f"k{n % 10}", "value": n} for n in range(30, 60)])
        await first
    assert sorted(seen["a"] + seen["b"]) == list(range(60))
    for name in "ab":
        for key in range(10):
            mine = [one for one in seen[name] if one % 10 == key]
            assert mine == sorted(mine)


BATCH = "application/vnd.kafka.recordbatch.v2"
TWO = "/v1/topics/public/two"
ONE = "/v1/topics/public/one"


@pytest.fixture
async def apis(tmp_path: Path) -> AsyncIterator[list[Api]]:
    async with running_cluster(tmp_path) as cluster:
        yield [await cluster.start_broker(name) for name in ("A", "B")]


async def fill(api: Api, path: str, count: int, time_ms: int = 1_000) -> None:
    batch = build_batch([Record(None, b"%d" % n, timestamp_ms=time_ms + n) for n in range(count)])
    assert (await api.post(path + "/messages", batch, BATCH)).status == 200


async def test_each_way_of_moving_at_any_broker(apis: list[Api]) -> None:
    one, other = apis
    await one.put(ONE, json={})
    await fill(one, ONE, 10)
    sub = ONE + "/subscriptions/s"
    await one.put(sub, json={"type": "shared"})
    for api in apis:
        answer = await api.get(sub + "/peek?max=3")
        messages = answer.json()["messages"]
        assert [m["offset"] for m in messages] == [0, 1, 2], answer
        assert "ack_id" not in messages[0]
        assert "delivery_count" not in messages[0]
    got = (await one.post(sub + "/receive?max=4")).json()["messages"]
    assert [m["delivery_count"] for m in got] == [1, 1, 1, 1], "a look is no delivery"
    await one.post(sub + "/ack", json={"ack_ids": [got[1]["ack_id"]], "nack": [got[3]["ack_id"]]})
    messages = (await other.get(sub + "/peek?max=3")).json()["messages"]
    assert [(m["offset"], m.get("delivery_count")) for m in messages] == [
        (0, None), (2, None), (3, 1),
    ]  # fmt: skip
    answer = await other.post(sub + "/skip", json={"messages": 2})
    part = {"partition": 0, "acked": 2, "committed_offset": 3}
    assert answer.json() == {"acked": 2, "partitions": [part]}
    stale = await one.post(sub + "/ack", json={"ack_ids": [got[3]["ack_id"]]})
    assert stale.status == 409
    done = await one.post(sub + "/ack", json={"ack_ids": [got[2]["ack_id"]]})
    assert done.json() == {"acked": 0}, "skipped is acked: saying so again is no error"
    answer = await one.post(sub + "/skip", json={"messages": 100})
    assert answer.json()["acked"] == 7
    assert (await one.get(sub)).json()["backlog"] == 0
    assert (await one.get(sub + "/peek")).json() == {"messages": []}
    assert (await one.post(sub + "/seek", json={"to": 4})).json()["partitions"][0]["offset"] == 4
    beyond = await other.post(sub + "/seek", json={"to": 11})
    assert (beyond.status, beyond.json()["next_offset"]) == (416, 10)
    assert (await one.get(sub)).json()["backlog"] == 6, "nothing has moved"


async def test_what_is_too_old_is_acked_in_all_partitions(apis: list[Api]) -> None:
    one, other = apis
    await one.put(TWO, json={"partitions": 2})
    sub = TWO + "/subscriptions/s"
    await one.put(sub, json={})
    now_ms = int(time.time() * 1000)
    for number in (0, 1):
        await fill(one, f"{TWO}/partitions/{number}", 5, now_ms - 3_600_000)
        await fill(one, f"{TWO}/partitions/{number}", 3, now_ms)
    answer = await other.post(sub + "/expire", json={"older_than": "30m"})
    assert answer.json()["acked"] == 10, answer
    assert [one["committed_offset"] for one in answer.json()["partitions"]] == [5, 5]
    answer = await one.post(f"{TWO}/partitions/1/subscriptions/s/expire", json={"older_than": 0})
    assert answer.json()["partitions"][0]["partition"] == 1
    peeked = (await other.get(sub + "/peek?max=100")).json()["messages"]
    assert len(peeked) in (3, 4, 5, 6)
    assert all(m["offset"] >= 5 for m in peeked)


@pytest.mark.parametrize(
    ("word", "body", "status", "code"),
    [
        ("skip", {"messages": 0}, 422, "invalid-settings"),
        ("skip", {"messages": -1}, 422, "invalid-settings"),
        ("skip", {}, 422, None),
        ("expire", {"older_than": "soon"}, 422, "invalid-settings"),
        ("expire", {}, 422, None),
        ("seek", {"to": 5}, 422, "partition-required"),
    ],
)
async def test_bad_calls_say_what_would_be_right(
    apis: list[Api], word: str, body: dict[str, Any], status: int, code: str | None
) -> None:
    await apis[0].put(TWO, json={"partitions": 2})
    sub = TWO + "/subscriptions/s"
    await apis[0].put(sub, json={})
    answer = await apis[1].post(f"{sub}/{word}", json=body)
    assert answer.status == status, answer
    assert code in (None, answer.json()["code"])
    unknown = await apis[0].post(f"{TWO}/partitions/0/subscriptions/x/{word}", json=body)
    if answer.json()["code"] == "partition-required":
        assert (unknown.status, unknown.json()["code"]) == (404, "subscription-not-found")
    assert (await apis[1].get(f"{TWO}/subscriptions/x/peek")).status == 404


async def test_a_seek_before_what_retention_has_left(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        api = await cluster.start_broker("A")
        settings = {"rollover": {"entries": 1}, "retention": {"size": 0}}
        await api.put(ONE, json=settings)
        for _ in range(4):
            await fill(api, ONE, 5)
        sub = ONE + "/subscriptions/s"
        async with asyncio.timeout(20):
            while not await _earliest(api):  # noqa: ASYNC110 (another process's chore)
                await asyncio.sleep(0.1)
        earliest = await _earliest(api)
        await api.put(sub, json={})
        answer = await api.post(sub + "/seek", json={"to": 0})
        assert (answer.status, answer.json()["code"]) == (410, "offset-trimmed"), answer
        assert answer.json()["earliest_offset"] >= earliest
        async with AsyncClient(api.url) as client:
            with pytest.raises(Trimmed):
                await client.subscription("one", "s").seek(0)


async def _earliest(api: Api) -> int:
    found: int = (await api.get(ONE + "/offsets?at=earliest")).json()["offsets"][0]["offset"]
    return found


async def test_in_python(apis: list[Api]) -> None:
    await apis[0].put(TWO, json={"partitions": 2})
    async with AsyncClient([api.url for api in apis]) as client:
        consumer = await client.subscribe("two", "s", type="shared", max_deliveries=3)
        await fill(apis[0], TWO + "/partitions/0", 4)
        await fill(apis[0], TWO + "/partitions/1", 6)
        assert await consumer.lag() == {0: 4, 1: 6}
        assert [one.offset for one in await consumer.peek(2, partition=1)] == [0, 1]
        assert await consumer.skip(3, partition=1) == 3
        assert await consumer.expire(60) == 7
        assert await consumer.seek("earliest") == {0: 0, 1: 0}
        assert await consumer.seek(2, partition=0) == {0: 2}
        assert await consumer.lag() == {0: 2, 1: 6}
        assert await consumer.skip(1) == 2, "of each partition"
        with pytest.raises(ApiError) as refused:
            await consumer.seek(1)
        assert refused.value.code == "partition-required"
        (made,) = await client.subscriptions("two")
        assert made["settings"]["dead_letter_topic"] == "public/two-s-dlq"


async def test_by_the_command_line(apis: list[Api], capsys: pytest.CaptureFixture[str]) -> None:
    await apis[0].put(ONE, json={})
    await fill(apis[0], ONE, 8)

    async def said(*words: str) -> Any:
        line = ["subscription", *words, "--url", apis[1].url]
        assert await asyncio.to_thread(run, line) == 0, capsys.readouterr()
        out = capsys.readouterr().out
        return [json.loads(one) for one in out.splitlines()] if "--json" in words else out

    await said(
        "create", "one", "s", "--type", "shared", "--max-deliveries", "4", "--backoff", "1s,5m,3",
        "--ack-timeout", "1m",
    )  # fmt: skip
    [[listed]] = await said("list", "one", "--json")
    settings = listed["settings"]
    assert (settings["max_deliveries"], settings["ack_timeout"]) == (4, 60)
    assert settings["retry_backoff"] == {"first": 1, "most": 300, "factor": 3.0}
    assert "one-s-dlq" in await said("list", "one")
    assert (await said("lag", "one", "s", "--json"))[0]["backlog"] == 8
    assert "dead letters" in await said("lag", "one", "s")
    peeked = await said("peek", "one", "s", "-n", "2", "--json")
    assert [(one["offset"], one["value"]) for one in peeked] == [(0, 0), (1, 1)]
    assert await said("skip", "one", "s", "-n", "3", "--json") == [{"acked": 3}]
    assert await said("seek", "one", "s", "--to", "1", "--json") == [{"partitions": {"0": 1}}]
    assert await said("expire", "one", "s", "--older-than", "1h", "--json") == [{"acked": 7}]
    await said("delete", "one", "s", "--yes")
    assert await said("list", "one", "--json") == [[]]


@pytest.mark.parametrize("text", ["", "1s,", "1s,2s,3,4", "1s,2s,often"])
def test_a_back_off_that_is_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["subscription", "create", "one", "s", "--backoff", text]) == 2
    assert "--backoff" in capsys.readouterr().err


PATH = "/v1/topics/public/flights"


async def subscribed_delayed(cluster: Cluster, kind: str = "shared") -> Api:
    api = cluster.api
    assert (await api.put(PATH)).status == 201
    body = {"type": kind, "start": "earliest", "ack_timeout": 60}
    assert (await api.put(PATH + "/subscriptions/s", json=body)).status == 201
    return api


async def received_delayed(
    api: Api, wait: str = "0s", most: int = 100, accept: str = ""
) -> list[Any]:
    headers = {"Accept": accept} if accept else {}
    answer = await api.post(
        f"{PATH}/subscriptions/s/receive?max={most}&consumer=c&wait={wait}", headers=headers
    )
    return [] if answer.status == 204 else [one["value"] for one in answer.json()["messages"]]


async def test_by_every_way_in_and_in_the_order_of_due_times(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=1) as cluster:
        api = await subscribed_delayed(cluster)
        now_ms = wall_clock_ms()
        late = {"deliver_at": now_ms + 1_200}
        messages = [
            {"value": 0, "deliver_after": "900ms"},
            {"value": 1},
            {"value": 2, "deliver_after": 0.6},
            {"value": 3, **late},
            {"value": 4, "deliver_at": "2001-01-01T00:00:00Z"},
        ]
        assert (await api.post(PATH + "/messages", json={"messages": messages})).status == 200
        for name, value, body in (
            ("Octavo-Deliver-After", "300ms", b"5"),
            ("Octavo-Deliver-At", str(now_ms + 1_500), b"6"),
        ):
            for _ in range(2):
                headers = {name: value, "Content-Type": "application/octet-stream"}
                answer = await api.post(PATH + "/messages", body, headers=headers)
                assert answer.status == 200, answer
        assert await received_delayed(api) == [1, 4]
        found: list[Any] = []
        while len(found) < 7:
            got = await received_delayed(api, wait="2s")
            assert got, "what is due wakes who waits"
            found += got
        assert found == [5, 5, 2, 0, 3, 6, 6]
        assert wall_clock_ms() >= now_ms + 1_500
        stats = (await api.get(PATH + "/subscriptions/s")).json()["partitions"][0]
        assert (stats["leased"], stats["delayed"], stats["backlog"]) == (9, 0, 9)


async def test_a_batch_of_a_client_is_opened_only_where_it_says_so(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=1) as cluster:
        api = await subscribed_delayed(cluster)
        due_ms = wall_clock_ms() + 700
        plain = build_batch([Record(None, b"%d" % n) for n in range(3)])
        mixed = [
            Record(None, b"%d" % n, [due_header(due_ms + 10 * (9 - n))] if n % 2 else ())
            for n in range(3, 9)
        ]
        for batch in (plain, build_batch(mixed)):
            assert (await api.post(PATH + "/messages", batch, BATCH)).status == 200
        assert await received_delayed(api) == [0, 1, 2, 4, 6, 8]
        assert await received_delayed(api, wait="2s", most=2) == [7]
        assert await received_delayed(api, wait="2s", most=2) == [5]
        assert await received_delayed(api, wait="2s", most=2) == [3]


async def test_an_exclusive_subscription_does_not_wait(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=1) as cluster:
        api = await subscribed_delayed(cluster, "exclusive")
        message = {"value": 1, "deliver_after": "1h"}
        assert (await api.post(PATH + "/messages", json=message)).status == 200
        assert await received_delayed(api) == [1]


async def test_a_take_over_loses_none(tmp_path: Path) -> None:
    topic = TopicName("public", "flights")
    async with running_cluster(tmp_path) as cluster:
        first = await cluster.start("A", pending_messages_max=40)
        name = PartitionName(*topic, 0)
        await first.broker.topics.create(topic, TopicSettings())
        partition = await owned(first.broker, name)
        info, _ = await first.broker.topics.create_subscription(
            topic, "s", SubscriptionSettings(type="shared")
        )
        subscription = await partition.subscribe(info)
        now_ms = cluster.clock.now_ms
        for start in range(0, 50, 10):
            records = [
                Record(None, b"%d" % n, [due_header(now_ms + 1_000 - n)])
                for n in range(start, start + 10)
            ]
            await partition.publish(build_batch(records))
        await partition.publish(build_batch([Record(None, b"now")]))
        assert await subscription.receive("c", messages_max=3) == []
        assert "not due yet" in (subscription.held_back() or "")
        assert subscription.stats().delayed == 40
        await first.vanish()
        second = await cluster.start("B")
        taken = await owned(second.broker, name)
        again = await taken.subscription("s")
        found = await again.receive("c", messages_max=3)
        assert [one.record.value for one in found] == [b"now"]
        cluster.clock.now_ms += 980
        found = await again.receive("c", messages_max=30)
        assert [int(one.record.value or b"") for one in found] == list(range(49, 19, -1))
        await again.acknowledge([one.ack_id for one in found])
        cluster.clock.now_ms += 20
        rest = await again.receive("c", messages_max=30)
        assert len(rest) == 20
        assert {one.offset for one in found} | {one.offset for one in rest} == set(range(50))
