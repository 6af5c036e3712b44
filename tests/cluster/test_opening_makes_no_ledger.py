"""An opened partition gets no ledger before the first publish, and no state ledger before the
first ack. Ledgers that its last owner closed are not recovered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker.errors import NotOwner
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName, SubscriptionSettings
from octavo.metadata.topics import PartitionRecord, TopicStore, owner_path
from octavo.protocol.codes import OctavoError
from tests.support.cluster import Cluster, RunningBroker, batch, make_topic, owned, until, values


async def record_of(running: RunningBroker, name: PartitionName) -> PartitionRecord:
    return (await TopicStore(running.store).read_partition(*name))[0]


async def numbered(partition: Partition, number: int) -> Any:
    return await partition.publish(
        batch(1, tag=f"{number}", producer_id=7, producer_epoch=0, base_sequence=number)
    )


async def test_a_ledger_is_made_for_the_first_publish(cluster: Cluster) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker)
    partition = await owned(running.broker, name)
    assert await partition.read(0, bytes_max=1, count_max=1) == []
    assert not list(partition.ledgers)
    assert await running.ledgers.list() == []
    assert (await partition.publish(batch(2, tag="a"))).first_offset == 0
    assert (await partition.publish(batch(1, tag="b"))).first_offset == 2
    assert [base for _, base in partition.ledgers] == [0]
    assert len(await running.ledgers.list()) == 1


async def test_what_was_closed_in_good_order_is_only_read(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    await partition.publish(batch(2, tag="a"))
    info, _ = await first.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings(start="earliest")
    )
    await (await partition.subscribe(info)).acknowledge(up_to=0)
    await first.close()
    with capture_logs() as events:
        for number in range(2, 4):
            again = await cluster.start(f"B{number}")
            before = await record_of(again, name)
            assert [link.count for link in before.ledgers] == [2]
            assert (before.epoch, before.producers_upto) == (number - 1, 2)
            partition = await owned(again.broker, name)
            assert await values(partition) == ["a-0", "a-1"]
            assert (await partition.subscription("s")).stats().committed_offset == 1
            assert await record_of(again, name) == replace(before, epoch=number)
            if number == 2:
                await again.close()
    said = [(one["event"], one.get("ledger")) for one in events]
    assert said.count(("partition_taken_over", None)) == 2, "no ledger of messages was recovered"
    assert "ledger_created" not in {event for event, _ in said}
    await (await partition.subscription("s")).acknowledge(up_to=1)
    assert (await record_of(again, name)).state_ledger != before.state_ledger
    assert (await partition.publish(batch(1, tag="b"))).first_offset == 2
    await again.vanish()
    partition = await owned((await cluster.start("C")).broker, name)
    assert await values(partition) == ["a-0", "a-1", "b-0"]
    assert (await partition.subscription("s")).stats().committed_offset == 2


@pytest.mark.parametrize("subscribed", [False, True])
async def test_producers_are_known_again_however_the_owners_end(
    cluster: Cluster, subscribed: bool
) -> None:
    running = await cluster.start("A0")
    name = await make_topic(running.broker)
    partition = await owned(running.broker, name)
    if subscribed:
        info, _ = await running.broker.topics.create_subscription(
            name.topic_name, "s", SubscriptionSettings(start="earliest")
        )
        await partition.subscribe(info)
    for number in range(6):
        assert not (await numbered(partition, number)).duplicate
        await (running.vanish() if number % 3 == 2 else running.close())
        for unused in range(2):
            running = await cluster.start(f"A{number}{unused}")
            partition = await owned(running.broker, name)
            if not unused:
                await (running.vanish() if number % 2 else running.close())
        assert (await numbered(partition, number)).duplicate
    assert await values(partition) == [f"{n}-0" for n in range(6)]


async def test_a_successor_for_which_nobody_came_keeps_the_former_owner_out(
    cluster: Cluster,
) -> None:
    """Neither has a ledger that could be fenced: the record alone decides."""
    first = await cluster.start("A", deaf=True)
    name = await make_topic(first.broker)
    await (await owned(first.broker, name)).publish(batch(1, tag="a"))
    await first.broker.ownership.open_anew(name, placed=False)
    unaware = await first.broker.ownership.partition(name)
    second = await cluster.start("B")
    await second.store.delete(owner_path(*name))
    successor = await owned(second.broker, name)
    assert successor.ledgers == unaware.ledgers
    with pytest.raises(NotOwner):
        await unaware.publish(batch(1, tag="late"))
    with pytest.raises(NotOwner):
        await unaware.prove()
    assert await values(successor) == ["a-0"]
    assert (await successor.publish(batch(1, tag="b"))).first_offset == 1
    await until(lambda: not first.broker.ownership.open_partitions(), "A gives it up")


async def test_the_last_ledger_of_a_partition_that_nobody_writes_to_goes_by_age(
    cluster: Cluster,
) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker, retention_ms=60_000)
    partition = await owned(running.broker, name)
    await partition.publish(batch(3, time_ms=cluster.clock.now_ms))
    await running.broker.ownership.open_anew(name, placed=False)
    partition = await running.broker.ownership.partition(name)
    await partition.maintain()
    assert len(partition.ledgers) == 1
    cluster.clock.now_ms += 120_000
    async with asyncio.timeout(10):
        while partition.earliest_offset == 0:
            running.broker._tell_time()
            await asyncio.sleep(0.02)
            await partition.maintain()
    assert (partition.earliest_offset, partition.ledgers) == (3, ())
    assert (await partition.publish(batch(1))).first_offset == 3


async def test_who_waits_while_no_ledger_can_be_made_is_refused_and_served_later(
    cluster: Cluster,
) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker)
    partition = await owned(running.broker, name)
    for bookie in ("b1", "b2"):
        await cluster.stop_bookie(bookie)
    await until(lambda: list(running.ledgers.bookies.available) == ["b3"], "it has heard of it")
    with pytest.raises(OctavoError, match="not stored"):
        await partition.publish(batch(1, tag="refused"))
    for bookie in ("b1", "b2"):
        await cluster.start_bookie(bookie)
    async with asyncio.timeout(20):
        while partition.next_offset == 0:
            try:
                await partition.publish(batch(1, tag="a"))
            except OctavoError:
                await asyncio.sleep(0.02)
    assert await values(partition) == ["a-0"]
