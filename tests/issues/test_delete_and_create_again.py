"""`DELETE` did not fence, so an owner that had not heard of it went on acking into the dead topic.

With no pause between `DELETE` and `PUT` all messages acked afterwards were gone a second later in
up to 19 of 60 rounds, and in 14 of 60 old messages were visible in the new topic. A topic has an
incarnation, deletion revokes and fences before it answers, and nothing depends on a watch.

`OCTAVO_ROUNDS=500` makes the loop a long one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from octavo.broker.broker import Broker
from octavo.broker.errors import (
    BrokerError,
    NotOwner,
    StaleLease,
    SubscriptionNotFound,
    TopicChanged,
    TopicDeleting,
    TopicNotFound,
)
from octavo.broker.partition.partition import Partition
from octavo.broker.types import SubscriptionSettings, TopicName, TopicSettings
from octavo.metadata.topics import SubscriptionRecord, TopicStore
from octavo.protocol.codes import OctavoError
from tests.support.cluster import Cluster, batch, owned, until, values

T = TypeVar("T")
TOPIC = TopicName("public", "flights")
NAME = TOPIC.partition(0)
ROUNDS = int(os.environ.get("OCTAVO_ROUNDS", "12"))


async def test_an_owner_that_hears_nothing_acks_nothing_more(cluster: Cluster) -> None:
    owner = (await cluster.start("A", deaf=True)).broker
    other = (await cluster.start("B", deaf=True)).broker
    first, _ = await owner.topics.create(TOPIC, TopicSettings())
    assert (await other.topics.get(TOPIC)).incarnation == first.incarnation
    old = await owned(owner, NAME)
    await old.publish(batch(3))
    await other.topics.delete(TOPIC)
    with pytest.raises(NotOwner):
        await old.publish(batch())
    with pytest.raises(NotOwner):
        await old.read(0, bytes_max=1000, count_max=10)
    second, new = await other.topics.create(TOPIC, TopicSettings())
    assert new
    assert second.incarnation != first.incarnation
    fresh = await owned(owner, NAME)
    assert (await fresh.publish(batch(tag="new"))).first_offset == 0
    assert await values(fresh) == ["new-0"]
    assert fresh.incarnation == second.incarnation


async def test_who_cannot_be_told_is_fenced_and_waited_for(cluster: Cluster) -> None:
    owner = (await cluster.start("A", deaf=True)).broker
    other = (await cluster.start("B", deletion_wait_ms=700)).broker
    await owner.topics.create(TOPIC, TopicSettings())
    old = await owned(owner, NAME)
    await old.publish(batch(3))
    other.tell_peer = None
    with pytest.raises(TopicDeleting, match=r"goes on by itself.*\[0\] have not let go"):
        await other.topics.delete(TOPIC)
    with pytest.raises(TopicNotFound, match="is being deleted"):
        await other.topics.get(TOPIC)
    with pytest.raises(BrokerError):
        await old.publish(batch())  # this tells it: its ledger is fenced
    await until_topic_is_gone(other)
    _, new = await other.topics.create(TOPIC, TopicSettings())
    assert new


async def test_a_session_that_ends_is_as_good_as_a_release(cluster: Cluster) -> None:
    owner = await cluster.start("A", deaf=True)
    other = (await cluster.start("B")).broker
    await owner.broker.topics.create(TOPIC, TopicSettings())
    old = await owned(owner.broker, NAME)
    await old.publish(batch(3))
    await owner.vanish()  # its session is over, and it does not know
    await other.topics.delete(TOPIC)
    with pytest.raises(BrokerError):
        await old.publish(batch())


@pytest.mark.parametrize("consumers", [False, True])
async def test_a_session_that_ends_leaves_no_repeat_acked_either(
    cluster: Cluster, consumers: bool
) -> None:
    """A repeat adds nothing, so no bookie told its owner that it was fenced: seed 1400575.

    A loader that makes its topic anew and begins again at sequence 0 was told that it is stored.
    """
    owner = await cluster.start("A", deaf=True)
    other = (await cluster.start("B")).broker
    await owner.broker.topics.create(TOPIC, TopicSettings())
    old = await owned(owner.broker, NAME)
    if consumers:
        info, _ = await owner.broker.topics.create_subscription(TOPIC, "s", SubscriptionSettings())
        await old.subscribe(info)
    numbered = batch(3, producer_id=7, producer_epoch=0, base_sequence=0)
    await old.publish(numbered)
    repeated = await old.publish(numbered)
    assert (repeated.duplicate, repeated.first_offset) == (True, 0)
    await owner.vanish()  # its session is over, and it does not know
    await other.topics.delete(TOPIC)
    with pytest.raises(BrokerError):
        await old.publish(numbered)


async def test_a_half_finished_deletion_ends_by_itself(cluster: Cluster) -> None:
    first = await cluster.start("A", sweep_interval_ms=50)
    records = TopicStore(first.store)
    for finish in ("create", "delete", "sweep"):
        await first.broker.topics.create(TOPIC, TopicSettings())
        await (await owned(first.broker, NAME)).publish(batch(2))
        record, version = await records.read_topic(*TOPIC)
        # A broker that died after the first step.
        await records.write_topic(*TOPIC, replace(record, deleting=True), version)
        if finish == "create":
            _, new = await first.broker.topics.create(TOPIC, TopicSettings())
            assert new
            assert (await owned(first.broker, NAME)).next_offset == 0
            await first.broker.topics.delete(TOPIC)
        elif finish == "delete":
            try:
                await first.broker.topics.delete(TOPIC)
            except TopicNotFound:  # the sweep was there before
                pass
        await until_topic_is_gone(first.broker)
        assert await first.ledgers.list() == [], "nothing is left of it"


async def test_two_delete_at_once_and_one_makes_it_anew(cluster: Cluster) -> None:
    """The slower one must not take the new topic for the old one."""
    a, b = (await cluster.start("A")).broker, (await cluster.start("B")).broker
    for _ in range(5):
        await a.topics.create(TOPIC, TopicSettings(partitions=3))
        await owned(a, NAME)

        async def delete(broker: Broker) -> None:
            try:
                await broker.topics.delete(TOPIC)
            except TopicNotFound:
                pass

        async def anew(broker: Broker) -> None:
            await delete(broker)
            await broker.topics.create(TOPIC, TopicSettings(partitions=2))

        await asyncio.gather(anew(a), delete(b), delete(b))
        # Either it stands, or the other deletion came after it: never half of it.
        try:
            found = await a.topics.get(TOPIC)
        except TopicNotFound:
            continue
        assert found.settings.partitions == 2
        await (await owned(a, NAME)).publish(batch())
        await a.topics.delete(TOPIC)


async def test_a_call_says_which_topic_it_means(cluster: Cluster) -> None:
    owner = (await cluster.start("A")).broker
    first, _ = await owner.topics.create(TOPIC, TopicSettings())
    await owned(owner, NAME)
    await owner.topics.delete(TOPIC)
    second, _ = await owner.topics.create(TOPIC, TopicSettings())
    with pytest.raises(TopicChanged, match="created again") as refused:
        await owner.ownership.owner_of(NAME, forwarded=True, incarnation=first.incarnation)
    assert refused.value.looked
    await owned(owner, NAME)
    assert (await owner.ownership.owner_of(NAME, incarnation=second.incarnation)).local


async def test_a_topic_that_grew_is_known_to_whoever_is_asked(cluster: Cluster) -> None:
    a = (await cluster.start("A")).broker
    b = (await cluster.start("B", deaf=True)).broker
    await a.topics.create(TOPIC, TopicSettings())
    await b.topics.get(TOPIC)
    await a.topics.update(TOPIC, TopicSettings(partitions=2))
    assert (await owned(b, TOPIC.partition(1))).next_offset == 0


async def test_what_consumers_and_producers_hold_is_of_one_topic(cluster: Cluster) -> None:
    a = (await cluster.start("A")).broker
    shared = SubscriptionSettings(type="shared")
    ids = []
    for _ in range(2):
        await a.topics.create(TOPIC, TopicSettings())
        info, _ = await a.topics.create_subscription(TOPIC, "s", shared)
        partition = await owned(a, NAME)
        stored = await partition.publish(batch(producer_id=7, producer_epoch=0, base_sequence=0))
        assert not stored.duplicate
        given = await (await partition.subscribe(info)).receive("c", messages_max=1)
        ids.append(given[0].ack_id)
        if len(ids) == 1:
            await a.topics.delete(TOPIC)
    assert ids[0] != ids[1]
    with pytest.raises(StaleLease):
        await (await partition.subscription("s")).acknowledge([ids[0]])
    await (await partition.subscription("s")).acknowledge([ids[1]])


async def test_a_subscription_made_too_late_is_nobodys(cluster: Cluster) -> None:
    a = await cluster.start("A")
    await a.broker.topics.create(TOPIC, TopicSettings())
    late = SubscriptionRecord(incarnation="of an earlier topic", created_ms=5)
    await TopicStore(a.store).create_subscription(*TOPIC, "s", late)
    with pytest.raises(SubscriptionNotFound):
        await a.broker.topics.subscription(TOPIC, "s")
    _, new = await a.broker.topics.create_subscription(TOPIC, "s", SubscriptionSettings())
    assert new


async def test_round_after_round_nothing_is_lost_and_nothing_old_is_seen(
    cluster: Cluster,
) -> None:
    """Publishers at three brokers, all of them deaf, that never stop; readers beside them."""
    nodes = [(await cluster.start(name, deaf=True)).broker for name in "ABC"]
    over = False
    acked: dict[str, list[str]] = {}

    async def publish(number: int) -> None:
        count = 0
        while not over:
            count += 1
            node = nodes[(number + count) % 3]

            async def work(partition: Partition, count: int = count) -> tuple[str, str]:
                tag = f"{partition.incarnation}:{number}:{count}"
                await partition.publish(batch(tag=tag))
                return partition.incarnation, f"{tag}-0"

            try:
                incarnation, value = await cluster.at_owner(node, NAME, work)
            except OctavoError:  # on a busy machine a session may end, too
                await asyncio.sleep(0.002)
            else:
                acked.setdefault(incarnation, []).append(value)

    publishers = [asyncio.create_task(publish(number)) for number in range(4)]
    try:
        for turn in range(ROUNDS):
            info, _ = await insisting(
                lambda at=nodes[turn % 3]: at.topics.create(TOPIC, TopicSettings())
            )
            before: list[str] = []
            await until(
                lambda now=info.incarnation: len(acked.get(now, ())) > 5, "publishes go on", 60
            )
            before = list(acked[info.incarnation])
            reader = nodes[(turn + 1) % 3]
            found = await insisting(lambda at=reader: cluster.at_owner(at, NAME, values))
            assert not {one for one in found if not one.startswith(info.incarnation)}
            assert not set(before) - set(found), "what was acked is there"
            await insisting(
                lambda at=nodes[(turn + 2) % 3], of=info.incarnation: at.topics.delete(TOPIC, of)
            )
            count = len(acked[info.incarnation])
            await asyncio.sleep(0)
            assert len(acked[info.incarnation]) == count, "acked after the deletion was answered"
    finally:
        over = True
        await asyncio.gather(*publishers)


async def insisting(call: Callable[[], Awaitable[T]]) -> T:
    """Until it is answered, as a client does."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except OctavoError as error:
                if not error.retryable:
                    raise
            await asyncio.sleep(0.01)


async def until_topic_is_gone(broker: Broker) -> None:
    async with asyncio.timeout(15):
        while True:
            if TOPIC.topic not in await broker.topics.names_in(TOPIC.namespace):
                return
            await asyncio.sleep(0.01)
