"""What a deleted topic left in the metadata store for ever, one path and more for each topic.

The folder above its owners' records, which are ephemeral and go by themselves; and what somebody
made below its path when it was gone already: that path had no record, so the name stood in the list
of topics, was a 404 for whoever asked, and no deletion found anything to delete.
"""

from __future__ import annotations

import asyncio

import pytest

from octavo.broker.types import TopicName, TopicSettings
from octavo.metadata.store import MetadataStore, RecordNotFound
from octavo.metadata.topics import (
    PartitionLedger,
    PartitionRecord,
    SubscriptionRecord,
    TopicStore,
    owner_path,
)
from tests.support.cluster import Cluster, batch, owned, values

TOPIC = TopicName("public", "flights")
NAME = TOPIC.partition(0)


async def test_nothing_is_left_of_a_deleted_topic(cluster: Cluster) -> None:
    a = await cluster.start("A")
    before = await paths(a.store)
    await a.broker.topics.create(TOPIC, TopicSettings(partitions=2))
    await (await owned(a.broker, NAME)).publish(batch())
    assert await a.store.children("/octavo/owners/public/flights") == ["0"]
    await a.broker.topics.delete(TOPIC)
    left = await paths(a.store) - before
    assert not {path for path in left if "flights" in path}, left


async def test_what_came_too_late_is_removed(cluster: Cluster) -> None:
    """A subscription, a partition's record with its ledger, and an owner's folder."""
    a = await cluster.start("A", sweep_interval_ms=50)
    records = TopicStore(a.store)
    writer = await a.ledgers.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
    dead = "of an earlier topic"
    await records.create_subscription(*TOPIC, "s", SubscriptionRecord(incarnation=dead))
    link = PartitionLedger(writer.ledger_id, 0)
    await records.create_partition(*NAME, PartitionRecord((link,), incarnation=dead))
    await a.store.create(owner_path(*NAME), b"somebody")
    await a.store.delete(owner_path(*NAME), 0)
    await until_nothing_is_left(a.store)
    assert await a.ledgers.list() == []


async def test_a_topic_that_is_made_meanwhile_is_whole(cluster: Cluster) -> None:
    """Sweeps of two brokers beside one who makes it: never a path that it uses."""
    a = await cluster.start("A", sweep_interval_ms=10)
    b = await cluster.start("B", sweep_interval_ms=10)
    records = TopicStore(a.store)
    for turn in range(10):
        late = SubscriptionRecord(incarnation="of an earlier topic")
        await records.create_subscription(*TOPIC, "s", late)
        while True:
            info, new = await a.broker.topics.create(TOPIC, TopicSettings())
            if new:
                break
        assert (await b.broker.topics.get(TOPIC)).incarnation == info.incarnation
        await (await owned(b.broker, NAME)).publish(batch(tag=str(turn)))
        assert await values(await owned(b.broker, NAME)) == [f"{turn}-0"]
        await a.broker.topics.delete(TOPIC, info.incarnation)
    await until_nothing_is_left(a.store)


async def until_nothing_is_left(store: MetadataStore) -> None:
    async with asyncio.timeout(15):
        while left := {path for path in await paths(store) if "flights" in path}:
            assert left
            await asyncio.sleep(0.01)


async def paths(store: MetadataStore, below: str = "/octavo") -> set[str]:
    """Every path there is."""
    found = set()
    for name in await store.children(below):
        path = f"{below}/{name}"
        found |= {path} | await paths(store, path)
    return found


async def test_every_path_is_seen(cluster: Cluster) -> None:
    a = await cluster.start("A")
    await a.store.create("/octavo/x/y", b"")
    assert {"/octavo/x", "/octavo/x/y"} <= await paths(a.store)
    with pytest.raises(RecordNotFound):
        await a.store.get("/octavo/z")
