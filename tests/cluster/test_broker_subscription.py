"""Subscriptions over real bookies: receive, ack, nack, extend, seek, and durability."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

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
from octavo.broker.types import Delivery, Nack, PartitionName, SubscriptionSettings
from octavo.protocol.batch import HEADER_BYTES, with_base_offset
from tests.support.cluster import Cluster, batch, make_topic, owned, running_cluster, until
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
