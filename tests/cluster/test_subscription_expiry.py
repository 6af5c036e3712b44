"""Subscriptions that nobody uses go where their topic's policy says so, and never by surprise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.broker.errors import PartitionMoving, SubscriptionNotFound
from octavo.broker.partition.partition import Partition
from octavo.broker.types import SubscriptionSettings, TopicName, TopicSettings
from octavo.metadata.topics import Policies
from tests.support.cluster import Cluster, batch, owned, running_cluster, until

TOPIC = "/v1/topics/public/t"
NAME = TopicName("public", "t")
DAY_MS = 24 * 3_600_000


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


async def there(cluster: Cluster, sub: str) -> bool:
    """Looking at it is no use of it."""
    return (await cluster.api.get(f"{TOPIC}/subscriptions/{sub}")).status == 200


async def test_what_nobody_uses_goes_and_what_is_used_anywhere_stays(two: Cluster) -> None:
    settings = {"partitions": 2, "subscription_expiry": 4}
    assert (await two.api.put(TOPIC, json=settings)).status == 201
    owners = {await two.owner_of(f"{TOPIC}/partitions/{n}") for n in range(2)}
    assert len(owners) == 2, "one of them has to be asked over HTTP"
    shared = {"type": "shared"}
    for sub in ("idle", "used"):
        assert (await two.api.put(f"{TOPIC}/subscriptions/{sub}", json=shared)).status == 201
    dead = {"type": "shared", "max_deliveries": 2, "dead_letter_topic": "t"}
    await two.api.put("/v1/topics/public/other", json={})
    answer = await two.api.put("/v1/topics/public/other/subscriptions/letters", json=dead)
    assert answer.status == 201, answer

    async def use() -> None:
        while True:
            answer = await two.api.post(f"{TOPIC}/partitions/1/subscriptions/used/receive")
            assert answer.status in (200, 204), answer
            await asyncio.sleep(0.1)

    user = asyncio.create_task(use())
    async with asyncio.timeout(60):
        while await there(two, "idle"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)
    assert not user.done(), "used in one partition, it stays"
    assert await there(two, "letters"), "somebody's dead letters lie there"
    user.cancel()
    await asyncio.gather(user, return_exceptions=True)


async def test_who_holds_a_message_or_comes_at_the_very_end_keeps_it(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    await broker.topics.create(NAME, TopicSettings(policies=Policies(subscription_expiry_ms=50)))
    partition = await owned(broker, NAME.partition(0))
    info, _ = await broker.topics.create_subscription(
        NAME, "s", SubscriptionSettings(type="shared")
    )
    subscription = await partition.subscribe(info)
    await partition.publish(batch(1))
    (held,) = await subscription.receive("c", messages_max=1)
    await asyncio.sleep(0.1)
    cluster.clock.now_ms += 1_000
    assert not partition.unused_subscriptions(50), "a message is out"
    await subscription.acknowledge([held.ack_id])
    await asyncio.sleep(0.1)
    ask, asked = Partition.is_subscription_unused, list[float]()

    def is_unused(self: Partition, name: str, for_ms: int, retire_s: float = 0.0) -> bool:
        asked.append(retire_s)
        if len(asked) == 3:  # somebody came after the owners were asked to let nobody use it
            with pytest.raises(PartitionMoving, match="subscription_expiry"):
                subscription.use()
        return ask(self, name, for_ms, retire_s)

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(Partition, "is_subscription_unused", is_unused)
        await broker.inactive.expire(partition)
    assert [retire_s > 0 for retire_s in asked] == [False, True, True]
    assert await subscription.receive("c", messages_max=1) == []
    assert await broker.topics.subscription(NAME, "s")
    await asyncio.sleep(0.1)
    cluster.clock.now_ms += 1_000
    await broker.inactive.expire(partition)
    with pytest.raises(SubscriptionNotFound):
        await partition.subscription("s")


async def test_a_successor_knows_by_the_mark(cluster: Cluster) -> None:
    policies = Policies(subscription_expiry_ms=DAY_MS)
    first = await cluster.start("A")
    await first.broker.topics.create(NAME, TopicSettings(policies=policies))
    partition = await owned(first.broker, NAME.partition(0))
    info, _ = await first.broker.topics.create_subscription(
        NAME, "s", SubscriptionSettings(type="shared")
    )
    subscription = await partition.subscribe(info)
    await partition.publish(batch(1))
    (got,) = await subscription.receive("c", messages_max=1)
    await subscription.acknowledge([got.ack_id])
    marked = partition._subscriptions.used_ms()
    assert 0 <= marked["s"] - cluster.clock.now_ms < 600_000
    await first.vanish()
    for name in ("B", "C"):  # through a snapshot, too
        running = await cluster.start(name)
        partition = await owned(running.broker, NAME.partition(0))
        assert partition._subscriptions.used_ms() == marked, "an answered ack's use is durable"
        if name == "B":
            await running.vanish()
    await until(lambda: running.broker.deletion_time() is not None, "a time is known")
    assert not partition.unused_subscriptions(DAY_MS)
