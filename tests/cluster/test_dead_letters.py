"""Messages that cannot be processed are copied to the dead-letter topic, and acked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.broker.errors import SettingsConflict, StaleLease
from octavo.broker.partition.partition import Partition
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import Delivery, Nack, PartitionName, SubscriptionSettings, TopicName
from octavo.protocol.due import due_header, due_of
from octavo.protocol.records import Record, build_batch
from tests.support.cluster import (
    Cluster,
    RunningBroker,
    batch,
    make_topic,
    owned,
    until,
    values,
)

DEAD = TopicName("public", "t-s-dlq")


async def deadly(
    running: RunningBroker, name: PartitionName, **settings: Any
) -> tuple[Partition, Subscription]:
    partition = await owned(running.broker, name)
    made = SubscriptionSettings(**{"type": "shared", "max_deliveries": 2, **settings})
    info, _ = await running.broker.topics.create_subscription(name.topic_name, "s", made)
    return partition, await partition.subscribe(info)


async def refuse(subscription: Subscription, offset: int, times: int) -> None:
    for _ in range(times):
        got = await subscription.receive("c", messages_max=100)
        one = [delivery for delivery in got if delivery.offset == offset]
        others = [delivery.ack_id for delivery in got if delivery.offset != offset]
        assert one, f"offset {offset} is not among {got}"
        await subscription.acknowledge(nacks=[Nack(one[0].ack_id, 0)], release=others)


async def dead_letters(running: RunningBroker, count: int) -> list[Delivery]:
    partition = await owned(running.broker, DEAD.partition(0))
    subscription = await partition.subscription("s")
    got: list[Delivery] = []
    async with asyncio.timeout(15):
        while len(got) < count:
            got += await subscription.receive("d", messages_max=10, wait_s=1)
    return got


async def test_a_poison_message_ends_in_its_topic_and_blocks_nobody(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await deadly(one, name)
    topics = await one.broker.topics.names_in("public")
    assert DEAD.topic in topics, "made with the subscription, before there is a dead letter"
    await partition.publish(batch(3))
    await refuse(subscription, 1, 2)
    (letter,) = await dead_letters(one, 1)
    assert letter.record.value == b"m-1"
    headers = dict(letter.record.headers)
    assert headers["Octavo-Origin-Topic"] == b"public/t"
    assert (headers["Octavo-Origin-Offset"], headers["Octavo-Origin-Deliveries"]) == (b"1", b"2")
    await until(lambda: subscription.stats().backlog == 2, "the original is acked")
    got = await subscription.receive("c", messages_max=10)
    assert [(d.offset, d.delivery_count) for d in got] == [(0, 1), (2, 1)]
    assert subscription.stats().dead_letters == (0, 1, None)


async def test_without_its_topic_it_stays_and_the_figures_say_why(cluster: Cluster) -> None:
    one = await cluster.start("A", dead_letter_retry_ms=20, dead_letter_retry_ms_max=50)
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await deadly(one, name)
    await partition.publish(batch(3))
    await one.broker.topics.delete(DEAD)
    await refuse(subscription, 0, 2)
    await until(lambda: subscription.stats().dead_letters.problem, "a problem is told")
    waiting, sent, problem = subscription.stats().dead_letters
    assert (waiting, sent) == (1, 0)
    assert problem is not None
    assert "there is no topic public/t-s-dlq" in problem
    assert subscription.stats().backlog == 3
    got = await subscription.receive("c", messages_max=10)
    assert [d.offset for d in got] == [1, 2], "the others go on"
    await one.broker.topics.create(DEAD, partition._settings())
    await until(lambda: subscription.stats().dead_letters == (0, 1, None), "it is sent")


async def test_a_lease_that_ends_when_nobody_is_left_counts_too(cluster: Cluster) -> None:
    one = await cluster.start("A", trim_interval_ms=50)
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await deadly(one, name, max_deliveries=1, ack_timeout_ms=100)
    await partition.publish(batch(2))
    got = await subscription.receive("vanishes", messages_max=10)
    assert len(got) == 2
    letters = await dead_letters(one, 2)
    assert sorted(one.record.value or b"" for one in letters) == [b"m-0", b"m-1"]
    await until(lambda: subscription.stats().backlog == 0, "both are acked")
    with pytest.raises(StaleLease):
        await subscription.acknowledge([got[0].ack_id])


async def test_a_copy_that_was_stored_before_a_crash_is_not_stored_twice(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker, TopicName("public", "t"))
    partition, subscription = await deadly(first, name)
    await partition.publish(batch(2))

    async def crash(offsets: Any) -> None:
        raise OSError("died between copy and ack")

    burying: Any = subscription._dead_letters
    burying._ack = crash
    await refuse(subscription, 0, 2)
    dead = await owned(first.broker, DEAD.partition(0))
    await until(lambda: dead.next_offset == 1, "the copy is stored")
    await first.vanish()

    second = await cluster.start("B")
    partition = await owned(second.broker, name)
    subscription = await partition.subscription("s")
    assert subscription.stats().backlog == 2
    got = await subscription.receive("c", messages_max=10)
    assert [d.offset for d in got] == [1], "the first is spent, here as well"
    await until(lambda: subscription.stats().dead_letters.sent == 1, "it is sent again")
    dead = await owned(second.broker, DEAD.partition(0))
    assert await values(dead) == ["m-0"], "and was known"


async def test_after_a_seek_it_is_another_letter(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await deadly(one, name)
    await partition.publish(batch(1))
    for _ in range(2):
        await refuse(subscription, 0, 2)
        (letter,) = await dead_letters(one, 1)
        await until(lambda: subscription.stats().backlog == 0, "the original is acked")
        dead = await owned(one.broker, DEAD.partition(0))
        await (await dead.subscription("s")).acknowledge([letter.ack_id])
        await subscription.seek(0)


async def test_other_settings_of_dead_letters_are_other_settings(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    await deadly(one, name)
    await deadly(one, name, dead_letter_topic="t-s-dlq")
    with pytest.raises(SettingsConflict):
        await deadly(one, name, max_deliveries=3)
    with pytest.raises(SettingsConflict):
        await deadly(one, name, dead_letter_topic="elsewhere")
    assert "elsewhere" not in await one.broker.topics.names_in("public")


async def test_a_late_ack_of_a_dead_letter_is_stale(cluster: Cluster) -> None:
    """It was answered as in time, and another consumer got the letter."""
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await deadly(one, name, max_deliveries=1)
    await partition.publish(batch(2))
    late, acked = await subscription.receive("c", messages_max=2)
    assert await subscription.acknowledge([acked.ack_id], nacks=[Nack(late.ack_id, 0)]) == 1
    assert await subscription.acknowledge([acked.ack_id]) == 0, "a repeated ack is none too late"
    await dead_letters(one, 1)
    await until(lambda: subscription.stats().backlog == 0, "the original is acked")
    with pytest.raises(StaleLease, match="copied to the dead-letter") as told:
        await subscription.acknowledge([late.ack_id, acked.ack_id])
    assert list(told.value.stale) == [late.ack_id]


async def test_a_letter_of_a_message_for_later_is_there_at_once(cluster: Cluster) -> None:
    """It kept the due time of its original, and was not delivered for an hour."""
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await deadly(one, name, type="failover")
    later = Record(b"k", b"later", [due_header(cluster.clock.now_ms + 3_600_000)], 0)
    await partition.publish(build_batch([later]))
    await refuse(subscription, 0, 2)
    (letter,) = await dead_letters(one, 1)
    assert letter.record.value == b"later"
    assert due_of(letter.record.headers) is None
