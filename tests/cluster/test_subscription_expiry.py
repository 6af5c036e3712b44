"""Unused subscriptions are removed as their topic's policy says, and never by surprise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

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
    """Return whether it exists. Looking does not use it."""
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
        if len(asked) == 3:  # A client came after the owners were asked to stop serving it.
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
    for name in ("B", "C"):
        running = await cluster.start(name)
        partition = await owned(running.broker, NAME.partition(0))
        assert partition._subscriptions.used_ms() == marked, "an answered ack's use is durable"
        if name == "B":
            await running.vanish()
    await until(lambda: running.broker.deletion_time() is not None, "a time is known")
    assert not partition.unused_subscriptions(DAY_MS)


VOLATILE = {"type": "shared", "durable": False}


async def test_one_that_is_not_durable_lives_as_long_as_somebody_uses_it(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as two:
        for name in ("A", "B"):
            await two.start_broker(name, {"non_durable_expiry_ms": 1_500})
        assert (await two.api.put(TOPIC, json={"partitions": 2})).status == 201
        owners = {await two.owner_of(f"{TOPIC}/partitions/{n}") for n in range(2)}
        assert len(owners) == 2, "one of them has to be asked over HTTP"
        await two.api.post(f"{TOPIC}/partitions/1/messages", b"held", "text/plain")
        for sub in ("idle", "polled", "waits", "holds"):
            settings = VOLATILE | {"start": "earliest" if sub == "holds" else "latest"}
            assert (await two.api.put(f"{TOPIC}/subscriptions/{sub}", json=settings)).status == 201
        assert (await two.api.put(f"{TOPIC}/subscriptions/kept", json={})).status == 201
        (held,) = (await two.api.post(f"{TOPIC}/subscriptions/holds/receive")).json()["messages"]

        async def use(path: str) -> None:
            while True:
                answer = await two.api.post(path)
                assert answer.status in (200, 204), answer
                await asyncio.sleep(0.05)

        users = [
            asyncio.create_task(use(f"{TOPIC}/partitions/1/subscriptions/{sub}"))
            for sub in ("polled/receive", "waits/receive?wait=4&max=1&consumer=c")
        ]
        async with asyncio.timeout(60):
            while await there(two, "idle"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await asyncio.sleep(2.0)
        for sub in ("polled", "waits", "holds", "kept"):
            assert await there(two, sub), sub
        assert not any(user.done() for user in users)
        for user in users:
            user.cancel()
        await asyncio.gather(*users, return_exceptions=True)
        path = f"{TOPIC}/subscriptions/holds/ack"
        answer = await two.api.post(path, json={"ack_ids": [held["ack_id"]]})
        assert answer.json()["acked"] == 1, "its lease was never taken from it"
        async with asyncio.timeout(60):
            for sub in ("polled", "waits", "holds"):
                while await there(two, sub):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert await there(two, "kept"), "a durable one stays, whoever uses it"
        answer = await two.api.post(f"{TOPIC}/subscriptions/holds/receive")
        assert (answer.status, answer.json()["code"]) == (404, "subscription-not-found")
        await until(lambda: _volatile(two) == [], "no owner remembers them")
        assert (await two.api.put(f"{TOPIC}/subscriptions/holds", json=VOLATILE)).status == 201


def _volatile(cluster: Cluster) -> list[str]:
    return [
        name
        for running in cluster.brokers.values()
        for partition in running.broker.ownership.open_partitions()
        for name in partition._subscriptions._volatile
    ]


async def test_a_successor_lets_it_go_whom_nobody_uses(cluster: Cluster) -> None:
    """It has no durable state, so the next owner has to ask which subscriptions there are."""
    brief: dict[str, Any] = {"trim_interval_ms": 100, "non_durable_expiry_ms": 1_000}
    first = await cluster.start("A", **brief)
    policies = Policies(inactive_ms=3_000)
    await first.broker.topics.create(NAME, TopicSettings(policies=policies))
    partition = await owned(first.broker, NAME.partition(0))
    volatile = SubscriptionSettings(type="shared", durable=False)
    info, _ = await first.broker.topics.create_subscription(NAME, "s", volatile)
    subscription = await partition.subscribe(info)
    await partition.publish(batch(1))
    assert await subscription.receive("c", messages_max=1)
    await first.vanish()
    second = (await cluster.start("B", **brief)).broker
    partition = await owned(second, NAME.partition(0))
    assert partition._subscriptions.oldest_unacked() is None, "it keeps nothing"
    await until(lambda: partition.knows_subscriptions, "it has asked")
    cluster.clock.now_ms += 60_000
    async with asyncio.timeout(60):
        while await second.topics.list_subscriptions(NAME):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    with pytest.raises(SubscriptionNotFound):
        await partition.subscription("s")
