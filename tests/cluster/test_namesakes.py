"""A topic that is deleted and made again is another topic."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from octavo import AsyncClient, Client, TopicReplaced
from octavo.broker.broker import Broker
from octavo.broker.errors import (
    BrokerError,
    NotOwner,
    PartitionMoving,
    StaleLease,
    SubscriptionNotFound,
    TopicChanged,
    TopicDeleting,
    TopicNotFound,
)
from octavo.broker.log.record import OwnershipLost, PartitionRecordKeeper
from octavo.broker.partition.partition import Partition
from octavo.broker.types import SubscriptionSettings, TopicName, TopicSettings
from octavo.client.errors import ApiError, Conflict
from octavo.metadata.bookies import BookieRegistry
from octavo.metadata.compactions import begun
from octavo.metadata.offloads import change_partition
from octavo.metadata.store import RecordNotFound
from octavo.metadata.topics import PartitionRecord, SubscriptionRecord, TopicRecord, TopicStore
from octavo.metadata.topics import TopicSettings as StoredSettings
from octavo.protocol.codes import OctavoError
from tests.support.cluster import Cluster, batch, make_topic, owned, running_cluster, until, values


async def test_no_partition_of_a_later_topic_is_given_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a broker looked for an owner the topic was deleted and made again: it took the
    opening of the new topic's partition for its own, and stored a message for the old topic
    there (seed 1800551 of `recreate`)."""
    broker = (await cluster.start("A")).broker
    name = await make_topic(broker)
    first = (await broker.topics.get(name.topic_name)).incarnation
    lookups = broker.ownership._lookups.of(name)
    looks, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(*_: Any) -> None:
        looks.set()
        await may_answer.wait()

    with monkeypatch.context() as patch:
        patch.setattr(type(lookups.owner), "value", slow)
        asked = asyncio.create_task(broker.ownership.owner_of(name, incarnation=first))
        await looks.wait()
    await broker.topics.delete(name.topic_name)
    await make_topic(broker)
    later = await broker.ownership.owner_of(name)
    assert later.local
    assert later.incarnation != first
    may_answer.set()
    with pytest.raises((PartitionMoving, TopicChanged)):
        await asked
    with pytest.raises(TopicChanged):
        await broker.ownership.owner_of(name, incarnation=first)


# A producer, reader or consumer of a deleted topic silently used the new one of that name. Now
# each is bound to the topic that it saw first.

WHAT_TO_DO = "deleted, and another one was made.*make a new producer, subscribe again"


def _urls(cluster: Cluster) -> list[str]:
    return [api.url for api in cluster.apis.values()]


async def _anew(cluster: Cluster, count: int, partitions: int = 1) -> None:
    async with AsyncClient(_urls(cluster)[-1]) as other:
        await other.delete_topic("t")
        await other.create_topic("t", partitions=partitions)
        await other.publish_many("t", [(None, f"new-{number}") for number in range(count)])


@pytest.mark.parametrize("encoding", ["batch", "ndjson"])
async def test_a_producer(two: Cluster, encoding: str) -> None:
    async with AsyncClient(_urls(two)) as client:
        await client.create_topic("t")
        producer = await client.producer("t", encoding=encoding, batch_bytes=1)  # type: ignore[arg-type]
        for number in range(5):
            await (await producer.send(f"old-{number}"))
        await _anew(two, 3)
        receipts = [producer.send_nowait("late") for _ in range(10)]
        for receipt in receipts:
            with pytest.raises(TopicReplaced, match=WHAT_TO_DO):
                await receipt
        with pytest.raises(TopicReplaced):
            await producer.send("later")
        with pytest.raises(TopicReplaced):
            await producer.close()
        fresh = await client.producer("t")
        await (await fresh.send("meant"))
        await fresh.close()
        found = [message.text() for message in await client.read("t")]
        assert found == ["new-0", "new-1", "new-2", "meant"]


async def test_publish_stands_alone(two: Cluster) -> None:
    async with AsyncClient(_urls(two)) as client:
        await client.create_topic("t")
        await client.publish_many("t", [(None, "old")] * 5)
        await _anew(two, 0, partitions=3)
        at = await asyncio.gather(*(client.publish("t", f"{number}") for number in range(20)))
        assert len(set(at)) == 20
        assert not any(position.duplicate for position in at)
        await _anew(two, 0)
        many = await client.publish_many("t", [("key", f"{number}") for number in range(20)])
        assert [position.offset for position in many] == [*range(20)]


async def test_a_reader(two: Cluster) -> None:
    async with (
        AsyncClient(_urls(two)) as client,
        AsyncClient(_urls(two)) as restarted,
    ):
        made = await client.create_topic("t")
        await client.publish_many("t", [(None, f"old-{number}") for number in range(20)])
        follower = client.messages("t", follow=True)
        assert [(await anext(follower)).offset for _ in range(20)] == [*range(20)]
        assert len(await client.read("t", limit=20)) == 20
        await _anew(two, 25)
        with pytest.raises(TopicReplaced, match=WHAT_TO_DO):
            await anext(follower)
        for _ in range(2):
            with pytest.raises(TopicReplaced):
                await client.read("t", start=20)
            with pytest.raises(TopicReplaced):
                await client.offset("t", at="7")
        with pytest.raises(TopicReplaced):
            await restarted.read("t", start=20, incarnation=made.incarnation)
        with pytest.raises(TopicReplaced):
            await anext(restarted.messages("t", start=20, incarnation=made.incarnation))
        assert (await client.read("t"))[0].text() == "new-0"
        assert (await client.read("t", start=20))[0].text() == "new-20"
        now = await restarted.topic("t")
        assert len(await restarted.read("t", start=20, incarnation=now.incarnation)) == 5


async def test_a_consumer(two: Cluster) -> None:
    async with AsyncClient(_urls(two)) as client:
        await client.create_topic("t", partitions=2)
        await client.publish_many("t", [(str(number), "old") for number in range(20)])
        consumer = await client.subscribe("t", "s", type="shared")
        late = client.subscription("t", "s")
        handed = await consumer.receive(10)
        assert await late.receive(1) is not None
        await _anew(two, 5, partitions=2)
        async with AsyncClient(_urls(two)) as other:
            await other.subscribe("t", "s", type="shared")
        calls = [
            consumer.ack(handed), consumer.nack(handed), consumer.extend(handed),
            consumer.ack_up_to(handed[0]), consumer.receive(), consumer.receive(partition=1),
            consumer.seek("earliest"), consumer.stats(), consumer.delete(), late.receive(),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(TopicReplaced, match=WHAT_TO_DO):
                await call
        again = await client.subscribe("t", "s", type="shared")
        assert len(await again.receive(10, wait_s=5)) > 0, "nothing of the new one was touched"


async def test_a_loop_over_deliveries(two: Cluster) -> None:
    async with AsyncClient(_urls(two)) as client:
        await client.create_topic("t")
        await client.publish_many("t", [(None, "old")] * 3)
        consumer = await client.subscribe("t", "s")
        seen: list[str] = []

        async def loop() -> None:
            async for delivery in consumer.deliveries(idle_s=20):
                seen.append(delivery.text())
                if len(seen) == 2:
                    await _anew(two, 5)

        with pytest.raises(TopicReplaced):
            await loop()
        assert set(seen) == {"old"}
        left = await client.subscribe("t", "s")
        deliveries = left.deliveries(idle_s=20)
        assert (await anext(deliveries)).text() == "new-0"
        await _anew(two, 5)
        await deliveries.aclose()


async def test_programs_without_an_event_loop(two: Cluster) -> None:
    urls = _urls(two)

    def program() -> None:
        with Client(urls) as client:
            made = client.create_topic("t")
            producer = client.producer("t", linger_ms=0)
            assert producer.send("old").result().offset == 0
            consumer = client.subscribe("t", "s")
            (handed,) = consumer.receive(wait_s=5)
            messages = client.messages("t", follow=True)
            assert next(messages).text() == "old"
            client.delete_topic("t")
            client.create_topic("t")
            with pytest.raises(TopicReplaced):
                producer.send("late").result()
            with pytest.raises(TopicReplaced):
                producer.flush()
            with pytest.raises(Conflict, match=WHAT_TO_DO):
                consumer.ack(handed)
            with pytest.raises(TopicReplaced):
                next(messages)
            with pytest.raises(TopicReplaced):
                client.read("t", start=0, incarnation=made.incarnation)
            assert client.publish("t", "new").offset == 0

    await asyncio.to_thread(program)


# An owner that had not heard of a `DELETE` went on acking into the dead topic. Now a topic has an
# incarnation, and a deletion revokes and fences before it answers. `OCTAVO_ROUNDS=500` makes the
# loop longer.

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
    told = ""
    while "[0] have not let go" not in told:  # a busy machine takes longer to come that far
        with pytest.raises(TopicDeleting, match="continues by itself") as refused:
            await other.topics.delete(TOPIC)
        told = str(refused.value)
    with pytest.raises(TopicNotFound, match="is being deleted"):
        await other.topics.get(TOPIC)
    with pytest.raises(BrokerError):
        await old.publish(batch())
    await until_topic_is_gone(other)
    _, new = await other.topics.create(TOPIC, TopicSettings())
    assert new


async def test_a_session_that_ends_is_as_good_as_a_release(cluster: Cluster) -> None:
    owner = await cluster.start("A", deaf=True)
    other = (await cluster.start("B")).broker
    await owner.broker.topics.create(TOPIC, TopicSettings())
    old = await owned(owner.broker, NAME)
    await old.publish(batch(3))
    await owner.vanish()
    await other.topics.delete(TOPIC)
    with pytest.raises(BrokerError):
        await old.publish(batch())


@pytest.mark.parametrize("consumers", [False, True])
async def test_a_session_that_ends_leaves_no_repeat_acked_either(
    cluster: Cluster, consumers: bool
) -> None:
    """A repeat adds nothing, so no bookie told its owner that it was fenced (seed 1400575)."""
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
    await owner.vanish()
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
        await records.write_topic(*TOPIC, replace(record, deleting=True), version)
        if finish == "create":
            _, new = await first.broker.topics.create(TOPIC, TopicSettings())
            assert new
            assert (await owned(first.broker, NAME)).next_offset == 0
            await first.broker.topics.delete(TOPIC)
        elif finish == "delete":
            try:
                await first.broker.topics.delete(TOPIC)
            except TopicNotFound:
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
    with pytest.raises(TopicChanged, match="another one was made in its place") as refused:
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
    """Publishers at three brokers, all of them deaf, that never stop; and readers."""
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
            except OctavoError:
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


# Versions of records begin again with a recreated topic: a job or a stopped owner overwrote the
# new record at an equal version. Now a record is written only while its topic exists.

JOB_TOPIC = TopicName("public", "t")
JOB_NAME = JOB_TOPIC.partition(0)


async def test_a_topic_made_anew_between_its_read_and_its_write(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    topics = TopicStore((await cluster.start("B")).store)
    versions: list[int] = []

    async def make() -> None:
        await broker.topics.create(JOB_TOPIC, TopicSettings())
        partition = await owned(broker, JOB_NAME)
        await partition.publish(batch(3, tag="new" if versions else "old"))
        versions.append((await topics.read_partition(*JOB_NAME))[1])

    class Slow(TopicStore):
        async def write_partition(self, *args: Any, **kwargs: Any) -> int:
            await broker.topics.delete(JOB_TOPIC)
            await make()
            return await super().write_partition(*args, **kwargs)

    await make()
    slow = Slow((await cluster.start("C")).store)
    with pytest.raises(RecordNotFound):
        await change_partition(
            slow,
            (JOB_NAME.namespace, JOB_NAME.topic, JOB_NAME.partition),
            lambda record: begun(record, "run", 1),
        )
    assert versions[0] == versions[1], "else a version alone would do"
    record, _ = await topics.read_partition(*JOB_NAME)
    assert record.incarnation == (await broker.topics.get(JOB_TOPIC)).incarnation
    assert record.compaction is None
    await (await cluster.start("D")).broker.topics.get(JOB_TOPIC)
    assert await values(await owned(broker, JOB_NAME)) == [f"new-{number}" for number in range(3)]
    await change_partition(
        topics,
        (JOB_NAME.namespace, JOB_NAME.topic, JOB_NAME.partition),
        lambda record: begun(record, "run", 1),
    )
    assert (await topics.read_partition(*JOB_NAME))[0].compaction is not None


async def test_an_owner_that_was_stopped_meanwhile(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    topics = TopicStore((await cluster.start("B")).store)
    first, _ = await broker.topics.create(JOB_TOPIC, TopicSettings())
    stopped = PartitionRecordKeeper(topics, JOB_NAME, 5000, first.incarnation)
    await stopped.read()
    await broker.topics.delete(JOB_TOPIC)
    second, _ = await broker.topics.create(JOB_TOPIC, TopicSettings())
    await PartitionRecordKeeper(topics, JOB_NAME, 5000, second.incarnation).read()
    with pytest.raises(OwnershipLost):
        await stopped.change(lambda record: replace(record, epoch=7))
    record, version = await topics.read_partition(*JOB_NAME)
    assert (record.incarnation, record.epoch, version) == (second.incarnation, 0, 0)


async def test_nothing_is_left_of_a_topic(cluster: Cluster) -> None:
    node = await cluster.start("A")
    for _ in range(3):
        await node.broker.topics.create(JOB_TOPIC, TopicSettings(partitions=2))
        assert len(await node.store.children("/octavo/incarnations")) == 1
        await node.broker.topics.delete(JOB_TOPIC)
        assert await node.store.children("/octavo/incarnations") == []


async def test_topics_of_an_older_version_are_served_and_deleted(cluster: Cluster) -> None:
    node = await cluster.start("A")
    topics = TopicStore(node.store)
    await topics.create_topic(*JOB_TOPIC, TopicRecord(StoredSettings(), 7, incarnation="old-1"))
    await topics.create_partition(*JOB_NAME, PartitionRecord(incarnation="old-1"))
    await (await owned(node.broker, JOB_NAME)).publish(batch(3))
    await change_partition(
        topics,
        (JOB_NAME.namespace, JOB_NAME.topic, JOB_NAME.partition),
        lambda record: begun(record, "run", 1),
    )
    await node.broker.topics.delete(JOB_TOPIC)
    assert await node.broker.topics.names_in("public") == []


MADE_NAME = TopicName("public", "flights")


async def test_a_reading_that_began_before_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller joined an older read of a caller that had come too early: 404 for a topic that
    another broker had just made (seed 2048 of `stream`)."""
    read, asked, goes_on = TopicStore.read_topic, 0, asyncio.Event()

    async def slow_to_answer(store: TopicStore, *name: str) -> Any:
        nonlocal asked
        asked += 1
        try:
            return await read(store, *name)
        finally:
            if asked == 1:
                await goes_on.wait()

    async with running_cluster(tmp_path) as cluster:
        one, other = await cluster.start("A"), await cluster.start("B")
        monkeypatch.setattr(TopicStore, "read_topic", slow_to_answer)
        too_early = asyncio.create_task(other.broker.topics.get(MADE_NAME))
        await until(lambda: asked == 1, "the first has read")
        await asyncio.sleep(0.1)
        made = asyncio.create_task(one.broker.topics.create(MADE_NAME, TopicSettings()))
        info, _ = await made
        after = asyncio.create_task(other.broker.topics.get(MADE_NAME))
        await asyncio.sleep(0.1)
        goes_on.set()
        assert (await after).incarnation == info.incarnation
        await too_early


# A topic with an ensemble larger than the number of bookies was created silently; publishing
# failed after 128 s.

LARGE_TOPIC = "/v1/topics/public/wide"
WIDE: dict[str, Any] = {"ensemble_size": 5, "write_quorum": 3, "ack_quorum": 2}


@pytest.fixture
async def large_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as cluster:
        yield cluster


async def test_more_bookies_than_there_are_is_refused_with_their_number(
    large_cluster: Cluster,
) -> None:
    answer = await large_cluster.api.put(LARGE_TOPIC, json=WIDE)
    assert answer.status == 422
    problem = answer.json()
    assert problem["code"] == "too-few-bookies"
    assert "ensemble_size is 5" in problem["detail"]
    assert "3 bookies (b1, b2, b3)" in problem["detail"]
    assert (await large_cluster.api.get(LARGE_TOPIC)).status == 404
    assert (await large_cluster.api.put(LARGE_TOPIC, json={"ensemble_size": 3})).status == 201
    answer = await large_cluster.api.call("PATCH", LARGE_TOPIC, json={"ensemble_size": 4})
    assert (answer.status, answer.json()["code"]) == (422, "too-few-bookies")


async def test_bookies_that_are_down_count(large_cluster: Cluster) -> None:
    registry = BookieRegistry(large_cluster.brokers["broker-0"].store)
    cookie, _ = await registry.read_cookie("b1")
    for name in ("b4", "b5"):
        await registry.write_cookie(replace(cookie, bookie_id=name))
    assert (await large_cluster.api.put(LARGE_TOPIC, json=WIDE)).status == 201
    for name in ("b4", "b5"):
        await registry.delete_cookie(name, 0)
    assert (await large_cluster.api.put(LARGE_TOPIC, json=WIDE)).status == 200


async def test_publishing_to_one_that_is_there_fails_soon_and_says_why(
    large_cluster: Cluster,
) -> None:
    store = large_cluster.brokers["broker-0"].store
    await TopicStore(store).create_topic("public", "wide", TopicRecord(TopicSettings(**WIDE)))
    async with asyncio.timeout(10), AsyncClient(large_cluster.api.url) as client:
        with pytest.raises(ApiError, match="this cluster has 3") as refused:
            await client.publish("wide", b"x")
    assert (refused.value.status, refused.value.code) == (503, "too-few-bookies")
    assert not refused.value.can_retry
