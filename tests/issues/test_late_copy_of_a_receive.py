"""A late copy of a receive took messages away, and a cumulative ack acknowledged them unseen.

A broker slept (SIGSTOP) with a call in its hands that it was to pass on. The client gave up
waiting, asked another broker, got its answer and went on. When the sleeper woke, it passed the old
call on: the owner leased the next messages to the same consumer, whose next call then got what came
after them; `up_to` acknowledged all. Found by tests/process/test_stopped_past_session.py. A call
with a lower number than one that has come already is late: nobody hears its answer.
"""

from __future__ import annotations

import asyncio

from octavo.broker.partition.partition import Partition
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import SubscriptionSettings
from tests.support.cluster import Cluster, batch, make_topic, owned


async def subscribed(cluster: Cluster, kind: str) -> tuple[Partition, Subscription]:
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker))
    settings = SubscriptionSettings(type=kind)  # type: ignore[arg-type]
    await broker.topics.create_subscription(partition.name.topic_name, "s", settings)
    return partition, await partition.subscription("s")


async def offsets(subscription: Subscription, request: str, wait_s: float = 0) -> list[int]:
    found = await subscription.receive("c", messages_max=3, request=request, wait_s=wait_s)
    return [one.offset for one in found]


async def test_it_gets_nothing(cluster: Cluster) -> None:
    partition, subscription = await subscribed(cluster, "exclusive")
    await partition.publish(batch(9))
    assert await offsets(subscription, "n-1") == [0, 1, 2]
    await subscription.acknowledge(up_to=2)
    assert await offsets(subscription, "n-9") == [3, 4, 5]
    await subscription.acknowledge(up_to=5)
    assert await offsets(subscription, "n-1") == []
    assert await offsets(subscription, "n-8", wait_s=5) == [], "and does not wait either"
    assert await offsets(subscription, "n-10") == [6, 7, 8], "numbers, not texts, are compared"


async def test_it_gets_nothing_after_a_call_that_got_nothing(cluster: Cluster) -> None:
    partition, subscription = await subscribed(cluster, "exclusive")
    assert await offsets(subscription, "n-2") == []
    await partition.publish(batch(3))
    assert await offsets(subscription, "n-1") == []
    assert await offsets(subscription, "n-3") == [0, 1, 2]


async def test_a_copy_of_the_newest_call_gets_nothing_new(cluster: Cluster) -> None:
    """What it was given is acked: its answer has come. What is not acked comes again."""
    partition, subscription = await subscribed(cluster, "exclusive")
    assert await offsets(subscription, "n-1") == []
    await partition.publish(batch(9))
    assert await offsets(subscription, "n-1", wait_s=5) == [], "answered already, with nothing"
    assert await offsets(subscription, "n-2") == [0, 1, 2]
    await subscription.acknowledge(up_to=1)
    assert await offsets(subscription, "n-2") == [2]
    await subscription.acknowledge(up_to=2)
    assert await offsets(subscription, "n-2") == []
    assert await offsets(subscription, "n-3") == [3, 4, 5]


async def test_a_repeated_call_that_waits_goes_on_waiting(cluster: Cluster) -> None:
    partition, subscription = await subscribed(cluster, "exclusive")
    first = asyncio.create_task(offsets(subscription, "n-1", wait_s=60))
    await asyncio.sleep(0)
    again = asyncio.create_task(offsets(subscription, "n-1", wait_s=60))
    await asyncio.sleep(0)
    await partition.publish(batch(3))
    assert await first == await again == [0, 1, 2]


async def test_one_that_waits_already_gives_up(cluster: Cluster) -> None:
    partition, subscription = await subscribed(cluster, "exclusive")
    waiting = asyncio.create_task(offsets(subscription, "n-1", wait_s=60))
    await asyncio.sleep(0)
    following = asyncio.create_task(offsets(subscription, "n-2", wait_s=60))
    await asyncio.sleep(0)
    await partition.publish(batch(3))
    assert await following == [0, 1, 2]
    assert await waiting == []


async def test_who_begins_anew_or_shares_is_not_late(cluster: Cluster) -> None:
    partition, subscription = await subscribed(cluster, "exclusive")
    await partition.publish(batch(9))
    assert await offsets(subscription, "n-5") == [0, 1, 2]
    assert await offsets(subscription, "m-1") == [3, 4, 5], "another life of the consumer"
    assert await offsets(subscription, "text") == [6, 7, 8]


async def test_consumers_that_share_ack_each_message(cluster: Cluster) -> None:
    partition, subscription = await subscribed(cluster, "shared")
    await partition.publish(batch(6))
    assert await offsets(subscription, "n-2") == [0, 1, 2]
    assert await offsets(subscription, "n-1") == [3, 4, 5], "calls side by side may overtake"
