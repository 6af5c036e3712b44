"""Versions of records begin anew with a topic that was deleted and made again.

A job that had read a partition's record before, and wrote it afterwards, overwrote the new one's at
an equal version: its ledgers, with acked messages, were named no more. So did an owner that was
stopped meanwhile and spoke first. The record is written only while its topic stands.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from octavo.broker.log.record import OwnershipLost, PartitionRecordKeeper
from octavo.broker.types import TopicName, TopicSettings
from octavo.metadata.compactions import begun
from octavo.metadata.offloads import change_partition
from octavo.metadata.store import RecordNotFound
from octavo.metadata.topics import PartitionRecord, TopicRecord, TopicStore
from octavo.metadata.topics import TopicSettings as StoredSettings
from tests.support.cluster import Cluster, batch, owned, values

TOPIC = TopicName("public", "t")
NAME = TOPIC.partition(0)


async def test_a_topic_made_anew_between_its_read_and_its_write(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    topics = TopicStore((await cluster.start("B")).store)
    versions: list[int] = []

    async def make() -> None:
        await broker.topics.create(TOPIC, TopicSettings())
        partition = await owned(broker, NAME)
        await partition.publish(batch(3, tag="new" if versions else "old"))
        versions.append((await topics.read_partition(*NAME))[1])

    class Slow(TopicStore):
        async def write_partition(self, *args: Any, **kwargs: Any) -> int:
            await broker.topics.delete(TOPIC)
            await make()
            return await super().write_partition(*args, **kwargs)

    await make()
    slow = Slow((await cluster.start("C")).store)
    with pytest.raises(RecordNotFound):
        await change_partition(
            slow,
            (NAME.namespace, NAME.topic, NAME.partition),
            lambda record: begun(record, "run", 1),
        )
    assert versions[0] == versions[1], "else a version alone would do"
    record, _ = await topics.read_partition(*NAME)
    assert record.incarnation == (await broker.topics.get(TOPIC)).incarnation
    assert record.compaction is None
    await (await cluster.start("D")).broker.topics.get(TOPIC)
    assert await values(await owned(broker, NAME)) == [f"new-{number}" for number in range(3)]
    await change_partition(
        topics, (NAME.namespace, NAME.topic, NAME.partition), lambda record: begun(record, "run", 1)
    )
    assert (await topics.read_partition(*NAME))[0].compaction is not None


async def test_an_owner_that_was_stopped_meanwhile(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    topics = TopicStore((await cluster.start("B")).store)
    first, _ = await broker.topics.create(TOPIC, TopicSettings())
    stopped = PartitionRecordKeeper(topics, NAME, 5000, first.incarnation)
    await stopped.read()
    await broker.topics.delete(TOPIC)
    second, _ = await broker.topics.create(TOPIC, TopicSettings())
    await PartitionRecordKeeper(topics, NAME, 5000, second.incarnation).read()
    with pytest.raises(OwnershipLost):
        await stopped.change(lambda record: replace(record, epoch=7))
    record, version = await topics.read_partition(*NAME)
    assert (record.incarnation, record.epoch, version) == (second.incarnation, 0, 0)


async def test_nothing_is_left_of_a_topic(cluster: Cluster) -> None:
    node = await cluster.start("A")
    for _ in range(3):
        await node.broker.topics.create(TOPIC, TopicSettings(partitions=2))
        assert len(await node.store.children("/octavo/incarnations")) == 1
        await node.broker.topics.delete(TOPIC)
        assert await node.store.children("/octavo/incarnations") == []


async def test_topics_of_an_older_version_are_served_and_deleted(cluster: Cluster) -> None:
    node = await cluster.start("A")
    topics = TopicStore(node.store)
    await topics.create_topic(*TOPIC, TopicRecord(StoredSettings(), 7, incarnation="old-1"))
    await topics.create_partition(*NAME, PartitionRecord(incarnation="old-1"))
    await (await owned(node.broker, NAME)).publish(batch(3))
    await change_partition(
        topics, (NAME.namespace, NAME.topic, NAME.partition), lambda record: begun(record, "run", 1)
    )
    await node.broker.topics.delete(TOPIC)
    assert await node.broker.topics.names_in("public") == []
