"""Unacked messages go to the retry topic, and from there to the dead-letter topic."""

from __future__ import annotations

import asyncio
from typing import Any

from octavo.broker.partition.partition import Partition
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import Delivery, Nack, PartitionName, SubscriptionSettings, TopicName
from tests.support.cluster import Cluster, RunningBroker, batch, make_topic, owned, until

AGAIN = TopicName("public", "t-s-retry")
DEAD = TopicName("public", "t-s-dlq")


async def retried(
    running: RunningBroker, name: PartitionName, sub: str = "s", **settings: Any
) -> tuple[Partition, Subscription]:
    partition = await owned(running.broker, name)
    made = SubscriptionSettings(**{"type": "shared", "retry_deliveries": 1, **settings})
    info, _ = await running.broker.topics.create_subscription(name.topic_name, sub, made)
    return partition, await partition.subscribe(info)


async def received(
    running: RunningBroker, topic: TopicName, sub: str = "s", within_s: float = 15
) -> tuple[Subscription, Delivery]:
    partition = await owned(running.broker, topic.partition(0))
    subscription = await partition.subscription(sub)
    async with asyncio.timeout(within_s):
        while True:
            if got := await subscription.receive("d", messages_max=1, wait_s=1):
                return subscription, got[0]


async def test_from_its_topic_by_way_of_the_retry_topic_to_the_dead_letters(
    cluster: Cluster,
) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await retried(one, name, max_deliveries=3)
    topics = await one.broker.topics.names_in("public")
    assert {AGAIN.topic, DEAD.topic} <= set(topics), "made with the subscription"
    assert await one.broker.topics.subscription(AGAIN, "s")
    assert await one.broker.topics.subscription(DEAD, "s")
    await partition.publish(batch(2))
    got = await subscription.receive("c", messages_max=10)
    await subscription.acknowledge([got[1].ack_id], nacks=[Nack(got[0].ack_id, 300)])
    await until(lambda: subscription.stats().backlog == 0, "the original is acked")
    assert subscription.stats().retries == (0, 1, None)
    assert subscription.stats().dead_letters == (0, 0, None)
    again = await owned(one.broker, AGAIN.partition(0))
    early = await (await again.subscription("s")).receive("d", messages_max=1)
    assert early == [], "it is not due there before it would have been here"
    cluster.clock.now_ms += 2_000
    for expected in (1, 2):
        there, delivery = await received(one, AGAIN)
        assert delivery.record.value == b"m-0"
        assert delivery.delivery_count == expected
        assert dict(delivery.record.headers)["Octavo-Retry-Deliveries"] == b"1"
        await there.acknowledge(nacks=[Nack(delivery.ack_id, 0)])
    _, dead = await received(one, DEAD)
    headers = dict(dead.record.headers)
    assert dead.record.value == b"m-0"
    assert headers["Octavo-Origin-Topic"] == b"public/t-s-retry"
    assert (headers["Octavo-Retry-Topic"], headers["Octavo-Retry-Offset"]) == (b"public/t", b"0")
    await until(lambda: there.stats().backlog == 0, "what its copy is there of is acked")


async def test_subscriptions_that_share_a_retry_topic_get_their_own(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    shared = TopicName("public", "all-again")
    subs = {}
    for sub in ("s", "u"):
        partition, subs[sub] = await retried(one, name, sub, retry_topic="all-again")
    await partition.publish(batch(1))
    for sub, subscription in subs.items():
        (delivery,) = await subscription.receive("c", messages_max=10)
        await subscription.acknowledge(nacks=[Nack(delivery.ack_id)])
        there, found = await received(one, shared, sub)
        assert dict(found.record.headers)["Octavo-Retry-Subscription"] == sub.encode()
        await there.acknowledge([found.ack_id])
    for sub in subs:
        of = await (await owned(one.broker, shared.partition(0))).subscription(sub)
        assert await of.receive("d", messages_max=10, wait_s=0.2) == [], "each has its own alone"


async def test_a_successor_sends_what_its_predecessor_did_not(cluster: Cluster) -> None:
    first = await cluster.start("A", dead_letter_retry_ms=60_000, dead_letter_retry_ms_max=60_000)
    name = await make_topic(first.broker, TopicName("public", "t"))
    partition, subscription = await retried(first, name, retry_deliveries=2)
    await partition.publish(batch(1))
    await first.broker.topics.delete(AGAIN)
    for _ in range(2):
        (delivery,) = await subscription.receive("c", messages_max=1)
        await subscription.acknowledge(nacks=[Nack(delivery.ack_id, 0)])
    await until(lambda: subscription.stats().retries.problem, "it cannot be copied")
    assert subscription.stats().backlog == 1, "so it is not acked"
    await first.vanish()

    second = await cluster.start("B")
    made = SubscriptionSettings(type="shared", retry_deliveries=2)
    await second.broker.topics.create_subscription(name.topic_name, "s", made)
    partition = await owned(second.broker, name)
    subscription = await partition.subscription("s")
    assert await subscription.receive("c", messages_max=10) == [], "it had its deliveries here"
    _, found = await received(second, AGAIN)
    assert found.record.value == b"m-0"
    await until(lambda: subscription.stats().backlog == 0, "the original is acked")
