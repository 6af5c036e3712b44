"""Partitions change their owner: by a crash, by a hand-over, by a paused owner that wakes.

No session and no request ends by the clock here: on a machine that stood still for seconds bookies
counted as silent and brokers as gone, and these tests failed for that alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from octavo.broker.cluster.preference import preferred_brokers
from octavo.broker.errors import (
    AckOutcomeUnknown,
    BrokerError,
    NotOwner,
    PartitionMoving,
    PartitionUnavailable,
    PublishOutcomeUnknown,
    SequenceGap,
)
from octavo.broker.types import Owner, PartitionName, SubscriptionSettings, TopicName
from octavo.metadata.ledgers import LedgerState
from octavo.protocol.codes import OctavoError
from tests.support.cluster import (
    TOPIC,
    Cluster,
    RunningBroker,
    batch,
    make_topic,
    owned,
    running_cluster,
    until,
    values,
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, patient=True) as running:
        yield running


async def owner_at(running: RunningBroker, name: PartitionName) -> Owner:
    """The owner, asked for until the partition is open."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await running.broker.ownership.owner_of(name)
            except PartitionMoving:
                await asyncio.sleep(0.01)


async def test_a_survivor_takes_over_at_once_and_nothing_acked_is_lost(
    cluster: Cluster,
) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    for number in range(20):
        await partition.publish(batch(3, tag=f"m{number}"))
    assert (await owner_at(second, name)).broker_id == "A"
    old_ledger = partition.stats().ledgers[-1][0]
    with capture_logs() as events:
        await first.vanish()
        await until(
            lambda: second.broker.ownership.open_partitions(), "B serves the partition unasked"
        )
    taken = [event for event in events if event["event"] == "partition_taken_over"]
    assert [(e["broker"], e["ledger"], e["last_entry"]) for e in taken] == [("B", old_ledger, 19)]
    assert taken[0]["new_ledger"] != old_ledger
    assert taken[0]["duration_ms"] > 0
    survivor = await second.broker.ownership.partition(name)
    assert survivor.next_offset == 60
    assert (await survivor.publish(batch(1, tag="after"))).first_offset == 60
    assert await values(survivor) == [f"m{n}-{i}" for n in range(20) for i in range(3)] + [
        "after-0"
    ]
    metadata = await second.ledgers.metadata(old_ledger)
    assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 19)


async def test_who_waits_for_another_owner_hears_of_it(cluster: Cluster) -> None:
    """Nobody polls: a request that met the dead owner goes on as soon as there is a new one."""
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    await owned(first.broker, name)
    assert (await owner_at(second, name)).broker_id == "A"
    seen = second.broker.ownership.owner_changes(name)
    waiting = asyncio.create_task(second.broker.ownership.until_owner_changes(name, seen, 3600))
    await first.vanish()
    async with asyncio.timeout(60):
        await waiting
        # Also when it comes while nobody waits yet.
        await second.broker.ownership.until_owner_changes(name, seen, 3600)
    assert second.broker.ownership.owner_changes(name) > seen


async def test_the_old_owner_is_fenced_and_two_owners_never_both_ack(
    cluster: Cluster,
) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    old = await owned(first.broker, name)
    stop = False
    acked: list[tuple[str, int]] = []
    refused: list[OctavoError] = []

    async def publish_on(partition_of: str) -> None:
        broker = first.broker if partition_of == "A" else second.broker
        number = 0
        while not stop:
            try:
                partition = (
                    old if broker is first.broker else await broker.ownership.partition(name)
                )
                published = await partition.publish(batch(1, tag=f"{partition_of}{number}"))
                acked.append((f"{partition_of}{number}-0", published.first_offset))
                number += 1
            except BrokerError as error:
                if partition_of == "A":
                    refused.append(error)
                await asyncio.sleep(0.005)

    publishing = [asyncio.create_task(publish_on(which)) for which in "AB"]
    try:
        await until(lambda: len(acked) > 20, "A publishes")
        # A's session ends without its hearing of it, as if it had been paused past its timeout.
        await first.vanish()
        await until(lambda: sum(1 for value, _ in acked if value[0] == "B") > 20, "B publishes")
    finally:
        stop = True
        await asyncio.gather(*publishing)

    assert isinstance(refused[0], PublishOutcomeUnknown | NotOwner)
    assert "fenced" in str(refused[0])
    with pytest.raises(NotOwner):
        await old.publish(batch(1))
    stored = await values(await second.broker.ownership.partition(name))
    assert {offset: stored[offset] for _, offset in acked} == {o: v for v, o in acked}
    last_of_a = max(offset for value, offset in acked if value[0] == "A")
    assert all(offset > last_of_a for value, offset in acked if value[0] == "B")


async def test_an_idempotent_publish_survives_a_take_over(cluster: Cluster) -> None:
    first = await cluster.start("A", producer_checkpoint_bytes=500)
    second = await cluster.start("B")
    name = await make_topic(first.broker, rollover_entries=10)
    partition = await owned(first.broker, name)
    sent = [
        batch(2, tag=f"m{n}", producer_id=7, producer_epoch=3, base_sequence=2 * n)
        for n in range(33)
    ]
    stored = [await partition.publish(one) for one in sent]
    await first.vanish()
    survivor = await owned(second.broker, name)
    for repeated in (32, 30, 28):
        again = await survivor.publish(sent[repeated])
        assert again == stored[repeated]._replace(duplicate=True)
    ancient = await survivor.publish(sent[3])
    assert (ancient.duplicate, ancient.first_offset) == (True, -1)
    with pytest.raises(SequenceGap) as gap:
        await survivor.publish(batch(1, producer_id=7, producer_epoch=3, base_sequence=70))
    assert gap.value.expected == 66
    new = batch(1, tag="new", producer_id=7, producer_epoch=3, base_sequence=66)
    assert (await survivor.publish(new)).first_offset == 66
    assert await values(survivor) == [f"m{n}-{i}" for n in range(33) for i in range(2)] + ["new-0"]


async def test_cursors_survive_a_crash(cluster: Cluster) -> None:
    first = await cluster.start("A", state_ledger_entries_max=5)
    second = await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    info, _ = await first.broker.topics.create_subscription(
        TOPIC, "s", SubscriptionSettings(type="shared")
    )
    subscription = await partition.subscribe(info)
    for _ in range(10):
        await partition.publish(batch(10))
    got = await subscription.receive("c", messages_max=100)
    acked = [one for one in got if one.offset % 3]
    for one in acked[:30]:
        await subscription.acknowledge([one.ack_id])
    await asyncio.gather(*(subscription.acknowledge([one.ack_id]) for one in acked[30:]))
    await first.vanish()
    survivor = await owned(second.broker, name)
    again = await (await survivor.subscription("s")).receive("d", messages_max=1000)
    assert [one.offset for one in again] == list(range(0, 100, 3))
    with pytest.raises((NotOwner, AckOutcomeUnknown)):
        await subscription.acknowledge([got[0].ack_id])


async def test_a_graceful_stop_hands_over_quickly(cluster: Cluster) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    await partition.publish(batch(5))
    old_ledger = partition.stats().ledgers[-1][0]
    with capture_logs() as events:
        await first.close()
        await until(
            lambda: second.broker.ownership.open_partitions(), "B serves the partition unasked"
        )
    assert not [e for e in events if e["event"] in ("partition_lost", "broker_task_failed")]
    survivor = await second.broker.ownership.partition(name)
    assert (await survivor.publish(batch(1))).first_offset == 5
    assert (await second.ledgers.metadata(old_ledger)).state is LedgerState.CLOSED
    with pytest.raises(NotOwner):
        await partition.publish(batch(1))


async def test_publishing_goes_on_through_handovers_without_loss(cluster: Cluster) -> None:
    running = {who: await cluster.start(who) for who in "AB"}
    name = await make_topic(running["A"].broker, rollover_entries=30)
    await owned(running["A"].broker, name)
    stop = False
    acked: list[str] = []
    errors: list[OctavoError] = []

    async def publish() -> None:
        sequence = 0
        while not stop:
            one = batch(
                1, tag=f"{sequence}", producer_id=9, producer_epoch=0, base_sequence=sequence
            )
            for who in list(running):
                try:
                    owner = await running[who].broker.ownership.owner_of(name)
                    if owner.local:
                        await (await running[who].broker.ownership.partition(name)).publish(one)
                        acked.append(f"{sequence}-0")
                        sequence += 1
                        break
                except OctavoError as error:
                    errors.append(error)
                await asyncio.sleep(0.005)

    publishing = asyncio.create_task(publish())
    try:
        for goes, comes in (("A", "C"), ("B", "D"), ("C", "E")):
            goal = len(acked) + 40
            await until(lambda goal=goal: len(acked) > goal, f"publishing before {goes} goes")
            running[comes] = await cluster.start(comes)
            gone = running.pop(goes)
            await (gone.vanish() if goes == "B" else gone.close())
        goal = len(acked) + 40
        await until(lambda: len(acked) > goal, "publishing goes on")
    finally:
        stop = True
        await publishing
    assert all(error.retryable for error in errors), errors
    for one in running.values():
        owner = await owner_at(one, name)
        if owner.local:
            stored = await values(await one.broker.ownership.partition(name))
            assert stored == acked
            return
    raise AssertionError("nobody serves the partition")


async def test_too_few_bookies_then_enough_again(cluster: Cluster) -> None:
    broker = (await cluster.start("A", publish_timeout_ms=20_000)).broker
    name = await make_topic(broker)
    partition = await owned(broker, name)
    await partition.publish(batch(1, tag="before"))
    await cluster.stop_bookie("b2")
    await cluster.stop_bookie("b3")
    with pytest.raises((PublishOutcomeUnknown, PartitionUnavailable)) as unknown:
        await partition.publish(batch(1, tag="lost"))
    assert "bookies needed" in str(unknown.value) or "b1" in str(unknown.value)
    with pytest.raises(PartitionUnavailable):
        await partition.publish(batch(1, tag="refused"))
    assert (await values(partition))[0] == "before-0", "reads go on"
    await cluster.start_bookie("b2")
    await cluster.start_bookie("b3")

    published = None
    async with asyncio.timeout(60):
        while published is None:
            try:
                published = await partition.publish(batch(1, tag="after"))
            except PartitionUnavailable:
                await asyncio.sleep(0.05)
    stored = await values(partition)
    assert stored[published.first_offset] == "after-0"
    assert stored[0] == "before-0"


async def test_a_broker_that_does_not_own_says_who_does(cluster: Cluster) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    await make_topic(first.broker, partitions=16)
    await until(lambda: len(second.broker.registry.brokers()) == 2, "B sees both")
    await until(lambda: len(first.broker.registry.brokers()) == 2, "A sees both")
    seen = set()
    for number, wanted in enumerate(preferred_brokers(TOPIC, 16, ("A", "B"))):
        name = TOPIC.partition(number)
        from_a, from_b = (
            await owner_at(first, name),
            await owner_at(second, name),
        )
        assert (from_a.broker_id, from_b.broker_id) == (wanted, wanted)
        assert (from_a.local, from_b.local) == (wanted == "A", wanted == "B")
        seen.add(wanted)
    assert seen == {"A", "B"}
    theirs = TOPIC.partition(preferred_brokers(TOPIC, 16, ("A", "B")).index("B"))
    with pytest.raises(NotOwner):
        await first.broker.ownership.partition(theirs)


async def test_a_deleted_topic_is_served_no_more_and_leaves_no_ledgers(
    cluster: Cluster,
) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    await partition.publish(batch(1))
    info, _ = await first.broker.topics.create_subscription(TOPIC, "s", SubscriptionSettings())
    await (await partition.subscribe(info)).acknowledge(up_to=0)
    await second.broker.topics.delete(TOPIC)
    await until(lambda: not first.broker.ownership.open_partitions(), "A has dropped the partition")
    with pytest.raises(BrokerError):
        await partition.publish(batch(1))
    assert await first.ledgers.list() == []
    assert await first.broker.topics.names_in("public") == []
    # A new topic of the same name begins at 0.
    await make_topic(second.broker, TopicName("public", "flights"))
    again = await owned(second.broker, name)
    assert again.next_offset == 0


async def test_a_state_ledger_that_is_long_in_bytes_is_replaced(cluster: Cluster) -> None:
    first = await cluster.start("A", state_ledger_bytes_max=300)
    partition = await owned(first.broker, await make_topic(first.broker))
    info, _ = await first.broker.topics.create_subscription(
        TOPIC, "s", SubscriptionSettings(type="shared")
    )
    subscription = await partition.subscribe(info)
    await partition.publish(batch(100))
    ledgers = set()
    for one in await subscription.receive("c", messages_max=100):
        await subscription.acknowledge([one.ack_id])
        ledgers.add(partition._record.value.state_ledger)
    assert 2 < len(ledgers) < 50
