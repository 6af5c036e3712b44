"""A broker whose session ends, whose ledger is closed by others, whose store is away."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from octavo.broker.errors import BrokerError, NotOwner, PublishOutcomeUnknown
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName, SubscriptionSettings
from octavo.metadata.topics import TopicStore
from tests.support.cluster import Cluster, RunningBroker, batch, make_topic, owned, until, values


async def owner_among(name: PartitionName, *running: RunningBroker) -> Partition:
    async with asyncio.timeout(15):
        while True:
            for one in running:
                try:
                    if (await one.broker.ownership.owner_of(name)).local:
                        return await one.broker.ownership.partition(name)
                except BrokerError as error:
                    if not error.retryable:
                        raise
            await asyncio.sleep(0.01)


async def test_an_expired_session_ends_serving_at_once_and_the_broker_comes_back(
    cluster: Cluster,
) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    await partition.publish(batch(2, tag="a"))
    with capture_logs() as events:
        await first.expire()
        await until(lambda: not first.broker.ownership.open_partitions(), "A serves nothing")
    lost = [event for event in events if event["event"] == "partition_lost"]
    assert lost[0]["reason"].endswith("this broker's session has ended")
    with pytest.raises(NotOwner):
        await partition.publish(batch(1))
    with pytest.raises(NotOwner):
        await partition.read(0, bytes_max=1, count_max=1)
    await until(lambda: "A" in {b.broker_id for b in second.broker.registry.brokers()}, "A is back")
    again = await owner_among(name, first, second)
    assert (await again.publish(batch(1, tag="b"))).first_offset == 2
    assert await values(again) == ["a-0", "a-1", "b-0"]


async def test_a_ledger_closed_by_somebody_else_moves_the_partition(
    cluster: Cluster,
) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    ledger = (await partition.publish(batch(1, tag="a"))).ledger_id
    await second.ledgers.recover(ledger)
    with pytest.raises((PublishOutcomeUnknown, NotOwner), match="ledger-fenced"):
        await partition.publish(batch(1, tag="lost"))
    with pytest.raises(NotOwner):
        await partition.publish(batch(1, tag="refused"))
    again = await owner_among(name, first, second)
    assert again is not partition
    await again.publish(batch(1, tag="b"))
    assert await values(again) == ["a-0", "b-0"]


async def test_a_state_ledger_closed_by_somebody_else_moves_the_partition_too(
    cluster: Cluster,
) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    await partition.publish(batch(4))
    info, _ = await first.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings()
    )
    subscription = await partition.subscribe(info)
    await subscription.acknowledge(up_to=0)
    record, _ = await TopicStore(second.store).read_partition(*name)
    assert record.state_ledger is not None
    await second.ledgers.recover(record.state_ledger)
    with pytest.raises(NotOwner):
        await subscription.acknowledge(up_to=1)
    again = await owner_among(name, first, second)
    assert (await again.subscription("s")).stats().committed_offset == 1


async def test_whoever_waits_is_told_when_the_partition_goes(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    info, _ = await first.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings()
    )
    subscription = await partition.subscribe(info)
    waiting = [
        asyncio.create_task(partition.read(0, bytes_max=1, count_max=1, wait_s=60)),
        asyncio.create_task(subscription.receive("c", messages_max=1, wait_s=60)),
    ]
    await asyncio.sleep(0)
    await first.close()
    async with asyncio.timeout(10):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [NotOwner, NotOwner]


async def test_a_record_changed_behind_the_owner_stops_it(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker, rollover_entries=3)
    partition = await owned(first.broker, name)
    await partition.publish(batch(1, tag="0"))
    records = TopicStore(first.store)
    record, version = await records.read_partition(*name)
    await records.write_partition(*name, replace(record, epoch=record.epoch + 1), version)
    # These go to the ledger that the record names, so they count. Then it cannot roll over.
    await asyncio.gather(*(partition.publish(batch(1, tag=f"{n}")) for n in (1, 2)))
    await until(
        lambda: partition not in first.broker.ownership.open_partitions(), "A has given it up"
    )
    with pytest.raises(NotOwner):
        await partition.publish(batch(1))
    again = await owner_among(name, first)
    assert await values(again) == ["0-0", "1-0", "2-0"]
    async with asyncio.timeout(10):
        while len(await first.ledgers.list()) != len(again.ledgers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_broker_that_crashed_and_came_back_at_once_serves_again(
    cluster: Cluster,
) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    await (await owned(first.broker, name)).publish(batch(2, tag="a"))
    second = await cluster.start("B")
    # The old session ends only after its timeout; the same name is back before that.
    again = await cluster.start("A")
    await first.vanish()
    partition = await owner_among(name, again, second)
    assert (await partition.publish(batch(1, tag="b"))).first_offset == 2
    await until(lambda: len(second.broker.registry.brokers()) == 2, "B sees the new A")


async def test_everything_stops_and_comes_back(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    info, _ = await first.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings()
    )
    await (await partition.subscribe(info)).acknowledge()
    await partition.publish(batch(5, tag="a"))
    await (await partition.subscription("s")).acknowledge(up_to=2)
    await first.vanish()
    for bookie in ("b1", "b2", "b3"):
        await cluster.stop_bookie(bookie)
    for bookie in ("b1", "b2", "b3"):
        await cluster.start_bookie(bookie)
    partition = await owner_among(name, await cluster.start("C"))
    assert await values(partition) == [f"a-{n}" for n in range(5)]
    got = await (await partition.subscription("s")).receive("c", messages_max=9)
    assert [one.offset for one in got] == [3, 4]
