"""Policies on a real cluster: which value is effective, and what ttl, quotas and expiry remove."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker.errors import (
    BacklogQuotaExceeded,
    BacklogQuotaRejected,
    DueAfterExpiry,
    PartitionMoving,
    SubscriptionNotFound,
)
from octavo.broker.partition.partition import Partition
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import StoredBatch, SubscriptionSettings, TopicName, TopicSettings
from octavo.metadata.topics import Policies
from octavo.protocol.due import due_header
from octavo.protocol.records import Record, build_batch
from tests.support.cluster import Cluster, batch, owned, running_cluster, until
from tests.support.raw_bookie import TroubledDisk

NAME = TopicName("public", "flights")


def committed(partition: Partition, subscription: str = "s") -> int:
    return partition._subscriptions.committed().get(subscription, -1)


def is_marked(partition: Partition) -> bool:
    """Whether a mark covers all messages: a message behind the last mark has no known age."""
    marks = partition._backlogs.ages.marks
    return bool(marks) and marks[-1].offset == partition.next_offset


async def test_what_a_namespace_says_reaches_running_owners(cluster: Cluster) -> None:
    a, b = (await cluster.start("A")).broker, (await cluster.start("B")).broker
    await a.topics.create(NAME, TopicSettings())
    partition = await owned(a, NAME.partition(0))
    assert partition._settings().policies.ttl_ms is None
    said = Policies(ttl_ms=5_000, retention_ms=7)
    await b.topics.set_policies("public", lambda record: replace(record, policies=said))
    await until(lambda: partition._settings().policies.ttl_ms == 5_000, "the namespace's word")
    assert partition._settings().retention_ms == 7
    await b.topics.update(NAME, TopicSettings(retention_ms=-1, policies=Policies(ttl_ms=9)))
    await until(lambda: partition._settings().policies.ttl_ms == 9, "the topic's word")
    assert partition._settings().retention_ms is None
    await b.topics.update(NAME, TopicSettings())
    await b.topics.set_policies("public", lambda record: replace(record, policies=Policies()))
    await until(lambda: partition._settings().policies.ttl_ms is None, "nobody's word")


async def test_old_messages_count_as_acked_also_after_a_take_over(cluster: Cluster) -> None:
    a = (await cluster.start("A", trim_interval_ms=50)).broker
    await a.topics.create(NAME, TopicSettings(policies=Policies(ttl_ms=100_000)))
    await a.topics.create_subscription(NAME, "s", SubscriptionSettings())
    info = await a.topics.subscription(NAME, "s")
    name = NAME.partition(0)
    partition = await owned(a, name)
    subscription = await partition.subscribe(info)
    await partition.publish(batch(3))
    given = await subscription.receive("c", messages_max=1)
    await until(lambda: is_marked(partition), "a mark behind all of them")
    cluster.clock.now_ms += 60_000
    await partition.publish(batch(2))
    await asyncio.sleep(0.2)
    assert committed(partition) == 0, "they are not that old yet"
    await cluster.brokers["A"].vanish()
    b = (await cluster.start("B", trim_interval_ms=50)).broker
    partition = await owned(b, name)
    assert partition._backlogs.ages.marks, "the new owner knows how old they are"
    cluster.clock.now_ms += 80_000
    await until(lambda: committed(partition) == 3, "the first three are old")
    await until(lambda: b.duties().messages_expired == 3, "it is counted")
    subscription = await partition.subscription("s")
    assert [one.offset for one in await subscription.receive("d", messages_max=9)] == [3, 4]
    cluster.clock.now_ms += 150_000
    await until(lambda: committed(partition) == 5, "all are old")
    assert (await partition.read(0, bytes_max=10**6, count_max=9))[0].base_offset == 0, (
        "a time to live deletes nothing: that is retention's business"
    )
    assert len(given) == 1


def due_at(due_ms: int) -> Record:
    return Record(None, b"%d" % due_ms, (due_header(due_ms),), 0)


async def test_a_ttl_that_is_shortened_passes_over_what_is_not_due(cluster: Cluster) -> None:
    broker = (await cluster.start("A", trim_interval_ms=50)).broker
    await broker.topics.create(NAME, TopicSettings(policies=Policies(ttl_ms=1_000_000)))
    kind = SubscriptionSettings(type="shared")
    await broker.topics.create_subscription(NAME, "s", kind)
    partition = await owned(broker, NAME.partition(0))
    subscription = await partition.subscribe(await broker.topics.subscription(NAME, "s"))
    now_ms = cluster.clock.now_ms
    with pytest.raises(DueAfterExpiry, match="due in 1000 s"):
        await partition.publish_single(due_at(now_ms + 1_000_000))
    # In one batch: after a mark between two the second would stay young while the clock stands.
    await partition.publish(build_batch([due_at(now_ms + 999_999), due_at(now_ms + 50_000)]))
    await until(lambda: is_marked(partition), "a mark behind all of them")
    await broker.topics.update(NAME, TopicSettings())
    said = Policies(ttl_ms=100_000)
    await broker.topics.set_policies("public", lambda record: replace(record, policies=said))
    await until(lambda: partition._settings().policies.ttl_ms == 100_000, "the namespace's word")
    with pytest.raises(DueAfterExpiry, match="due in 100 s"):
        await partition.publish_single(due_at(now_ms + 100_000))
    with pytest.raises(DueAfterExpiry, match="message 0 of its batch"):
        await partition.publish(build_batch([due_at(now_ms + 100_000)]))
    cluster.clock.now_ms += 60_000
    assert [one.offset for one in await subscription.receive("c", messages_max=9)] == [1]
    assert committed(partition) == 0
    cluster.clock.now_ms += 60_000
    with capture_logs() as logs:
        await until(lambda: committed(partition) == 2, "stored longer ago than the new ttl")
        await until(lambda: broker.duties().messages_expired == 2, "it is counted")
        await asyncio.sleep(0)
    (told,) = [log for log in logs if log["event"] == "messages_expired"]
    assert (told["messages"], told["before_offset"], told["subscription"]) == (2, 2, "s")
    cluster.clock.now_ms += 1_000_000
    assert await subscription.receive("c", messages_max=9) == []


async def test_a_ttl_that_is_taken_back_lets_what_waits_be_delivered(cluster: Cluster) -> None:
    broker = (await cluster.start("A", trim_interval_ms=50)).broker
    await broker.topics.create(NAME, TopicSettings(policies=Policies(ttl_ms=100_000)))
    await broker.topics.create_subscription(NAME, "s", SubscriptionSettings(type="shared"))
    partition = await owned(broker, NAME.partition(0))
    subscription = await partition.subscribe(await broker.topics.subscription(NAME, "s"))
    await partition.publish_single(due_at(cluster.clock.now_ms + 99_999))
    await until(lambda: is_marked(partition), "a mark behind all of them")
    await broker.topics.update(NAME, TopicSettings(policies=Policies(ttl_ms=-1)))
    await until(lambda: partition._settings().policies.ttl_ms is None, "the topic's word")
    await partition.maintain()
    cluster.clock.now_ms += 200_000
    await asyncio.sleep(0.2)
    given = await subscription.receive("c", messages_max=9, wait_s=10)
    assert [one.offset for one in given] == [0]


async def with_quota(
    cluster: Cluster, policy: str, *names: str, **config: Any
) -> tuple[Partition, list[Subscription]]:
    broker = (await cluster.start("A", trim_interval_ms=50, **config)).broker
    size = len(batch(10))
    policies = Policies(backlog_bytes=2 * size, backlog_policy=policy)
    await broker.topics.create(NAME, TopicSettings(policies=policies))
    partition = await owned(broker, NAME.partition(0))
    subscriptions = []
    for name in names:
        await broker.topics.create_subscription(NAME, name, SubscriptionSettings())
        subscriptions.append(
            await partition.subscribe(await broker.topics.subscription(NAME, name))
        )
    return partition, subscriptions


async def test_a_publish_beyond_the_quota_is_held_until_there_is_room(cluster: Cluster) -> None:
    partition, (slow, fast) = await with_quota(cluster, "hold", "slow", "fast")
    for _ in range(3):
        await partition.publish(batch(10))
    held = [asyncio.create_task(partition.publish(batch(1))) for _ in range(5)]
    await asyncio.sleep(0.1)
    assert not any(one.done() for one in held)
    await fast.receive("c", messages_max=1)
    await fast.acknowledge(up_to=29)
    await asyncio.sleep(0.1)
    assert not any(one.done() for one in held), "the slowest counts"
    await slow.receive("c", messages_max=1)
    await slow.acknowledge(up_to=9)
    found = await asyncio.gather(*held)
    assert [one.first_offset for one in found] == list(range(30, 35)), "in their order"
    assert partition.next_offset == 35


async def test_who_is_held_for_too_long_is_told_of_whom_and_how_much(cluster: Cluster) -> None:
    partition, _ = await with_quota(cluster, "hold", "slow", backlog_hold_ms=100)
    for _ in range(3):
        await partition.publish(batch(10))
    size = 3 * len(batch(10))
    with pytest.raises(BacklogQuotaExceeded, match=rf"'slow'.* {size} bytes are kept") as told:
        await partition.publish(batch(1))
    assert told.value.retryable
    assert told.value.subscription == "slow"
    assert partition.next_offset == 30
    broker = cluster.brokers["A"].broker
    await broker.topics.delete_subscription(NAME, "slow")
    await until(lambda: not committed_all(partition), "the deletion is noticed")
    await partition.publish(batch(1))


def committed_all(partition: Partition) -> dict[str, int]:
    return partition._subscriptions.committed()


async def test_a_publish_beyond_the_quota_is_rejected(cluster: Cluster) -> None:
    partition, (slow,) = await with_quota(cluster, "reject", "slow")
    for _ in range(3):
        await partition.publish(batch(10))
    with pytest.raises(BacklogQuotaRejected, match="subscription 'slow' has not acked offset 0"):
        await partition.publish(batch(1))
    broker = cluster.brokers["A"].broker
    policies = Policies(backlog_bytes=10**6, backlog_policy="reject")
    await broker.topics.update(NAME, TopicSettings(policies=policies))
    await until(lambda: partition._backlogs._over is None, "a higher quota is room")
    await partition.publish(batch(1))
    assert (await slow.receive("c", messages_max=1))[0].offset == 0


async def test_a_repeat_of_what_is_stored_is_no_new_message(cluster: Cluster) -> None:
    """Its producer has not heard the answer: a refusal would say that nothing was stored."""
    partition, _ = await with_quota(cluster, "reject", "slow")
    sent = batch(30, producer_id=7, producer_epoch=0, base_sequence=0)
    stored = await partition.publish(sent)
    with pytest.raises(BacklogQuotaRejected):
        await partition.publish(batch(1))
    again = await partition.publish(sent)
    assert again.duplicate
    assert again.first_offset == stored.first_offset
    with pytest.raises(BacklogQuotaRejected):
        await partition.publish(batch(1, producer_id=7, producer_epoch=0, base_sequence=30))


async def test_a_repeat_is_not_refused_by_a_ttl_that_came_later(cluster: Cluster) -> None:
    """A clock went back between a publish and its repeat (seed 93000016)."""
    a = (await cluster.start("A")).broker
    await a.topics.create(NAME, TopicSettings())
    partition = await owned(a, NAME.partition(0))
    due = Record(b"k", b"v", [due_header(cluster.clock.now_ms + 60_000)], 0)
    first = build_batch([due], producer_id=7, producer_epoch=0, base_sequence=0)
    stored = await partition.publish(first)
    await a.topics.update(NAME, TopicSettings(policies=Policies(ttl_ms=1_000)))
    await until(lambda: partition._settings().policies.ttl_ms == 1_000, "the topic's word")
    again = await partition.publish(first)
    assert again.duplicate
    assert again.first_offset == stored.first_offset
    with pytest.raises(DueAfterExpiry):
        await partition.publish(
            build_batch([due], producer_id=7, producer_epoch=0, base_sequence=1)
        )


async def test_the_oldest_is_evicted_for_the_slowest_alone(cluster: Cluster) -> None:
    partition, (slow, fast) = await with_quota(cluster, "evict", "slow", "fast")
    await partition.publish(batch(10))
    await partition.publish(batch(10))
    await fast.receive("c", messages_max=1)
    await fast.acknowledge(up_to=14)
    await partition.publish(batch(10))
    await until(lambda: committed_all(partition)["slow"] == 10, "the first ten are evicted")
    assert committed_all(partition)["fast"] == 15
    duties = cluster.brokers["A"].broker.duties
    await until(lambda: duties().messages_evicted == 10, "it is counted")
    assert [one.offset for one in await slow.receive("c", messages_max=2)] == [10, 11]
    assert (await partition.read(0, bytes_max=10**6, count_max=1))[0].base_offset == 0
    for _ in range(20):
        await partition.publish(batch(10))
    await until(lambda: committed_all(partition)["slow"] == 210, "no more than the quota is kept")
    await until(lambda: committed_all(partition)["fast"] == 210, "nor for the other, in its turn")


async def test_a_quota_by_age(cluster: Cluster) -> None:
    broker = (await cluster.start("A", trim_interval_ms=50)).broker
    policies = Policies(backlog_age_ms=100_000, backlog_policy="evict")
    await broker.topics.create(NAME, TopicSettings(policies=policies))
    partition = await owned(broker, NAME.partition(0))
    await broker.topics.create_subscription(NAME, "s", SubscriptionSettings())
    await partition.subscribe(await broker.topics.subscription(NAME, "s"))
    await partition.publish(batch(3))
    await until(lambda: is_marked(partition), "a mark behind all of them")
    cluster.clock.now_ms += 90_000
    await partition.publish(batch(2))
    await until(lambda: len(partition._backlogs.ages.marks) == 2, "another mark")
    assert committed(partition) == 0
    cluster.clock.now_ms += 60_000
    await until(lambda: committed(partition) == 3, "the first three are too old")


async def test_changed_copies_and_durability_hold_with_the_next_publish(cluster: Cluster) -> None:
    broker = (await cluster.start("A", trim_interval_ms=50)).broker
    await broker.topics.create(NAME, TopicSettings(ensemble_size=2, write_quorum=2, ack_quorum=2))
    partition = await owned(broker, NAME.partition(0))
    await partition.publish(batch())
    await asyncio.sleep(0.2)
    assert len(partition.ledgers) == 1, "nothing changed"

    def newest() -> tuple[int, int, int, bool]:
        writer = partition._publisher.segment.writer
        assert writer is not None
        made = writer.metadata
        return made.ensemble_size, made.write_quorum, made.ack_quorum, writer.deferred

    assert newest() == (2, 2, 2, False)
    await broker.topics.update(NAME, TopicSettings(ensemble_size=3, write_quorum=3, ack_quorum=2))
    await until(lambda: newest() == (3, 3, 2, False), "the open ledger is followed by another")
    deferred = Policies(durability="deferred")
    await broker.topics.update(NAME, TopicSettings(policies=deferred))
    await asyncio.sleep(0.2)
    assert newest() == (3, 3, 2, False), "an empty ledger stays"
    await partition.publish(batch())
    await until(lambda: newest() == (3, 3, 2, True), "the next publish has it followed")
    found = [await partition.publish(batch()) for _ in range(20)]
    assert [one.first_offset for one in found] == list(range(2, 22))
    await broker.topics.update(NAME, TopicSettings())
    await partition.publish(batch())
    await until(lambda: newest() == (3, 3, 2, False), "synced again")
    await until(lambda: partition.next_offset == 23, "what was acked before is synced as well")
    assert [one.base_offset for one in await read_all(partition)] == list(range(23))


async def read_all(partition: Partition) -> list[StoredBatch]:
    found: list[StoredBatch] = []
    while (offset := found[-1].next_offset if found else 0) < partition.next_offset:
        found += await partition.read(offset, bytes_max=10**6, count_max=10**6)
    return found


async def test_a_deferred_ack_waits_for_no_sync_and_a_reader_does(tmp_path: Path) -> None:
    gate = threading.Event()
    slow = threading.Event()

    def hook(call: str, path: str) -> None:
        if slow.is_set() and call == "datasync" and "/journal/" in path:
            gate.wait(20)

    async with running_cluster(tmp_path, bookies=0) as cluster:
        for number in range(3):
            disk = TroubledDisk()
            disk.hook = hook
            await cluster.start_bookie(f"b{number}", disk=disk)
        broker = (await cluster.start("A")).broker
        policies = Policies(durability="deferred")
        await broker.topics.create(NAME, TopicSettings(policies=policies))
        partition = await owned(broker, NAME.partition(0))
        await partition.publish(batch())
        await until(lambda: partition.next_offset == 1, "the first is synced")
        slow.set()
        try:
            async with asyncio.timeout(5):
                found = [await partition.publish(batch()) for _ in range(5)]
            assert [one.first_offset for one in found] == [1, 2, 3, 4, 5]
            await asyncio.sleep(0.3)
            assert partition.next_offset == 1, "nobody reads what a power failure may take back"
        finally:
            gate.set()
        await until(lambda: partition.next_offset == 6, "it is synced")
        assert len(await read_all(partition)) == 6
        repeat = batch(producer_id=7, producer_epoch=0, base_sequence=0)
        assert not (await partition.publish(repeat)).duplicate
        assert (await partition.publish(repeat)).duplicate
        assert partition.next_offset == 7, "a repeat is answered when the first is durable"


TOPIC = "/v1/topics/public/t"
NAME_EXPIRY = TopicName("public", "t")
DAY_MS = 24 * 3_600_000


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
    await broker.topics.create(
        NAME_EXPIRY, TopicSettings(policies=Policies(subscription_expiry_ms=50))
    )
    partition = await owned(broker, NAME_EXPIRY.partition(0))
    info, _ = await broker.topics.create_subscription(
        NAME_EXPIRY, "s", SubscriptionSettings(type="shared")
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
    assert await broker.topics.subscription(NAME_EXPIRY, "s")
    await asyncio.sleep(0.1)
    cluster.clock.now_ms += 1_000
    await broker.inactive.expire(partition)
    with pytest.raises(SubscriptionNotFound):
        await partition.subscription("s")


async def test_a_successor_knows_by_the_mark(cluster: Cluster) -> None:
    policies = Policies(subscription_expiry_ms=DAY_MS)
    first = await cluster.start("A")
    await first.broker.topics.create(NAME_EXPIRY, TopicSettings(policies=policies))
    partition = await owned(first.broker, NAME_EXPIRY.partition(0))
    info, _ = await first.broker.topics.create_subscription(
        NAME_EXPIRY, "s", SubscriptionSettings(type="shared")
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
        partition = await owned(running.broker, NAME_EXPIRY.partition(0))
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
    await first.broker.topics.create(NAME_EXPIRY, TopicSettings(policies=policies))
    partition = await owned(first.broker, NAME_EXPIRY.partition(0))
    volatile = SubscriptionSettings(type="shared", durable=False)
    info, _ = await first.broker.topics.create_subscription(NAME_EXPIRY, "s", volatile)
    subscription = await partition.subscribe(info)
    await partition.publish(batch(1))
    assert await subscription.receive("c", messages_max=1)
    await first.vanish()
    second = (await cluster.start("B", **brief)).broker
    partition = await owned(second, NAME_EXPIRY.partition(0))
    assert partition._subscriptions.oldest_unacked() is None, "it keeps nothing"
    await until(lambda: partition.knows_subscriptions, "it has asked")
    cluster.clock.now_ms += 60_000
    async with asyncio.timeout(60):
        while await second.topics.list_subscriptions(NAME_EXPIRY):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    with pytest.raises(SubscriptionNotFound):
        await partition.subscription("s")


IDLE = {"delete_when_inactive": 1, "partitions": 2}


async def gone(cluster: Cluster, within_s: float) -> bool:
    """Return whether the topic goes within that time. Asking for its settings does not use it."""
    try:
        async with asyncio.timeout(within_s):
            while (await cluster.api.get(TOPIC)).status != 404:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        return False
    return True


async def test_a_topic_goes_whose_partitions_nobody_uses(two: Cluster) -> None:
    assert (await two.api.put(TOPIC, json=IDLE)).status == 201
    for n in range(2):
        for _ in range(3):
            answer = await two.api.post(f"{TOPIC}/partitions/{n}/messages", b"x", "text/plain")
            assert answer.status == 200
    owners = {await two.owner_of(f"{TOPIC}/partitions/{n}") for n in range(2)}
    assert len(owners) == 2, "one of them has to be asked over HTTP"
    assert await gone(two, 20)
    assert (await two.api.post(f"{TOPIC}/messages", b"x", "text/plain")).status == 404


async def test_a_topic_stays_that_has_a_subscription_a_producer_or_a_reader(two: Cluster) -> None:
    assert (await two.api.put(TOPIC, json=IDLE)).status == 201
    assert (await two.api.put(f"{TOPIC}/subscriptions/s")).status == 201
    assert not await gone(two, 2.5), "a subscription holds it"
    assert (await two.api.call("DELETE", f"{TOPIC}/subscriptions/s")).status == 204

    async def use(call: str) -> None:
        while True:
            path = f"{TOPIC}/partitions/1/messages"
            answer = await (
                two.api.get(path) if call == "read" else two.api.post(path, b"x", "text/plain")
            )
            assert answer.status in (200, 204), answer
            await asyncio.sleep(0.3)

    for call in ("publish", "read"):
        user = asyncio.create_task(use(call))
        assert not await gone(two, 2.5), f"{call} of one partition holds all"
        assert not user.done()
        user.cancel()
        await asyncio.gather(user, return_exceptions=True)
    assert (await two.api.call("PATCH", TOPIC, json={"delete_when_inactive": None})).status == 200
    assert not await gone(two, 2.0), "without the policy nothing goes"


async def test_who_comes_at_the_very_end_is_refused_and_keeps_the_topic(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    name = TopicName("public", "late")
    await broker.topics.create(name, TopicSettings(policies=Policies(inactive_ms=50)))
    partition = await owned(broker, name.partition(0))
    await partition.publish(batch())
    await asyncio.sleep(0.1)
    cluster.clock.now_ms += 1_000
    ask, asked = Partition.is_unused, list[float]()

    def is_unused(self: Partition, for_ms: int, retire_s: float = 0.0) -> bool:
        asked.append(retire_s)
        if len(asked) == 3:  # A client came after the owners were asked to stop serving.
            with pytest.raises(PartitionMoving, match="delete_when_inactive"):
                self._check_open()
        return ask(self, for_ms, retire_s)

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(Partition, "is_unused", is_unused)
        await broker.inactive.look(partition)
    assert [retire_s > 0 for retire_s in asked] == [False, True, True]
    await partition.publish(batch())
    assert (await broker.topics.newest(name)).name == name
    await asyncio.sleep(0.1)
    cluster.clock.now_ms += 1_000
    await broker.inactive.look(partition)
    assert not await broker.topics.names_in("public")
