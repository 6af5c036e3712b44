"""Namespaces, topics and subscriptions by two brokers over one metadata store."""

from __future__ import annotations

import asyncio

import pytest

from octavo.broker.broker import Broker
from octavo.broker.errors import (
    InvalidName,
    InvalidSettings,
    NamespaceNotEmpty,
    NamespaceNotFound,
    PartitionNotFound,
    SettingsConflict,
    SubscriptionNotFound,
    TooManySubscriptions,
    TopicNotFound,
)
from octavo.broker.types import PartitionState, SubscriptionSettings, TopicName, TopicSettings
from tests.support.cluster import Cluster, batch, owned, until

NAME = TopicName("public", "flights")


async def test_namespaces(cluster: Cluster) -> None:
    a, b = (await cluster.start("A")).broker, (await cluster.start("B")).broker
    assert await a.topics.list_namespaces() == ["public"]
    assert await a.topics.create_namespace("air")
    assert not await b.topics.create_namespace("air")
    assert await b.topics.list_namespaces() == ["air", "public"]
    await b.topics.create(TopicName("air", "t"), TopicSettings())
    with pytest.raises(NamespaceNotEmpty):
        await a.topics.delete_namespace("air")
    await a.topics.delete(TopicName("air", "t"))
    await a.topics.delete_namespace("air")
    with pytest.raises(NamespaceNotFound, match="no namespace 'air'"):
        await b.topics.names_in("air")
    with pytest.raises(NamespaceNotFound):
        await b.topics.create(TopicName("air", "t"), TopicSettings())
    with pytest.raises(InvalidName):
        await a.topics.create_namespace("../x")


async def test_creating_twice(cluster: Cluster) -> None:
    a, b = (await cluster.start("A")).broker, (await cluster.start("B")).broker
    info, new = await a.topics.create(NAME, TopicSettings(partitions=2))
    assert (new, info.settings.partitions) == (True, 2)
    assert await b.topics.create(NAME, TopicSettings(partitions=2)) == (info, False)
    with pytest.raises(SettingsConflict, match="exists with other settings") as conflict:
        await b.topics.create(NAME, TopicSettings(partitions=3))
    assert conflict.value.found == TopicSettings(partitions=2)
    assert conflict.value.wanted == TopicSettings(partitions=3)
    assert await b.topics.get(NAME) == info
    assert await a.topics.names_in("public") == ["flights"]
    with pytest.raises(TopicNotFound, match="no topic public/none"):
        await a.topics.get(TopicName("public", "none"))


async def test_partitions_grow_and_settings_reach_the_owner(cluster: Cluster) -> None:
    a, b = (await cluster.start("A")).broker, (await cluster.start("B")).broker
    await a.topics.create(NAME, TopicSettings())
    partition = await owned(a, NAME.partition(0))
    with pytest.raises(PartitionNotFound, match="partitions 0 to 0, not 1"):
        await a.ownership.owner_of(NAME.partition(1))
    grown = TopicSettings(partitions=3, rollover_entries=2)
    await b.topics.update(NAME, grown)
    with pytest.raises(InvalidSettings, match="not fewer"):
        await b.topics.update(NAME, TopicSettings(partitions=2))
    assert (await b.topics.get(NAME)).settings == grown
    for _ in range(200):
        await partition.publish(batch(1))
        if len(partition.stats().ledgers) > 1:
            break
    assert len(partition.stats().ledgers) > 1, "the new roll-over reached the open partition"
    assert (await owned(a, NAME.partition(2))).next_offset == 0


async def test_a_deletion_is_seen_everywhere(cluster: Cluster) -> None:
    a, b = (await cluster.start("A")).broker, (await cluster.start("B")).broker
    await a.topics.create(NAME, TopicSettings())
    await b.topics.get(NAME)
    await a.topics.delete(NAME)
    with pytest.raises(TopicNotFound):
        await a.topics.get(NAME)
    with pytest.raises(TopicNotFound):
        await a.topics.delete(NAME)

    async with asyncio.timeout(15):
        with pytest.raises(TopicNotFound):
            await get_until_it_fails(b)


async def get_until_it_fails(broker: Broker) -> None:
    while True:
        await broker.topics.get(NAME)
        await asyncio.sleep(0.01)


async def test_subscriptions(cluster: Cluster) -> None:
    a, b = (await cluster.start("A")).broker, (await cluster.start("B")).broker
    await a.topics.create(NAME, TopicSettings(partitions=2))
    shared = SubscriptionSettings(type="shared", ack_timeout_ms=500)
    info, new = await a.topics.create_subscription(NAME, "s", shared)
    assert (new, info.settings, info.partitions) == (True, shared, 2)
    assert await b.topics.create_subscription(NAME, "s", shared) == (info, False)
    with pytest.raises(SettingsConflict, match="exists with other settings"):
        await b.topics.create_subscription(NAME, "s", SubscriptionSettings())
    assert await b.topics.list_subscriptions(NAME) == [info]
    with pytest.raises(InvalidName):
        await a.topics.create_subscription(NAME, "..", shared)
    with pytest.raises(TopicNotFound):
        await a.topics.create_subscription(TopicName("public", "none"), "s", shared)
    await b.topics.delete_subscription(NAME, "s")
    with pytest.raises(SubscriptionNotFound):
        await b.topics.subscription(NAME, "s")
    with pytest.raises(SubscriptionNotFound):
        await b.topics.delete_subscription(NAME, "s")


async def test_a_partition_added_later_is_read_from_its_beginning(cluster: Cluster) -> None:
    a = (await cluster.start("A")).broker
    await a.topics.create(NAME, TopicSettings())
    await a.topics.create_subscription(NAME, "s", SubscriptionSettings(start="latest"))
    await a.topics.update(NAME, TopicSettings(partitions=2))
    for number in range(2):
        partition = await owned(a, NAME.partition(number))
        await partition.publish(batch(4))
        # The cursor is made only now, by its first use.
        backlog = (await partition.subscription("s")).stats().backlog
        assert backlog == (0 if number == 0 else 4)


async def test_a_namesake_made_at_once_is_another_topic(cluster: Cluster) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    await first.broker.topics.create(NAME, TopicSettings())
    old = await owned(first.broker, NAME.partition(0))
    await old.publish(batch(3))
    await second.broker.topics.delete(NAME)
    cluster.clock.now_ms += 1
    await second.broker.topics.create(NAME, TopicSettings())
    await until(lambda: old.state is PartitionState.CLOSED, "A has dropped the old topic's")
    new = await owned(first.broker, NAME.partition(0))
    assert new.next_offset == 0


async def test_a_topic_has_a_bounded_number_of_subscriptions(cluster: Cluster) -> None:
    """Each costs memory at the owner, and there was no bound."""
    a = (await cluster.start("A", subscriptions_max=2)).broker
    await a.topics.create(NAME, TopicSettings())
    settings = SubscriptionSettings(type="shared")
    for name in ("s0", "s1", "s1"):
        await a.topics.create_subscription(NAME, name, settings)
    with pytest.raises(TooManySubscriptions, match="has 2 subscriptions, and may have 2"):
        await a.topics.create_subscription(NAME, "s2", settings)
    await a.topics.delete_subscription(NAME, "s0")
    await a.topics.create_subscription(NAME, "s2", settings)
