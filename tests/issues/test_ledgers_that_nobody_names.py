"""Ledgers that no record names stayed for ever, and their entries on the disks of three bookies.

Failed openings, roll-overs of unknown outcome, crashes of owners and deletions left them behind.
Each case counts all ledgers and finds those that records name, and no others.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.broker.errors import PartitionUnavailable
from octavo.broker.log.leftover import custom_of, label_of
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition.partition import Partition
from octavo.broker.state.format import Op, producers_op
from octavo.broker.types import PartitionName, SubscriptionSettings, TopicName
from octavo.metadata.store import MetadataUnavailable
from octavo.metadata.topics import PartitionRecord, TopicStore
from octavo.protocol.codes import OctavoError
from tests.support.cluster import (
    TOPIC,
    Cluster,
    RunningBroker,
    batch,
    make_topic,
    owned,
    until,
    values,
)
from tests.support.memory_state_ledgers import Served

TIMES = 4
SWEEPING: dict[str, Any] = {"sweep_interval_ms": 50, "leftover_grace_ms": 150}


async def named(running: RunningBroker) -> set[int]:
    """By the records of all partitions."""
    records = TopicStore(running.store)
    found: set[int] = set()
    for namespace in await records.list_namespaces():
        for topic in await records.list_topics(namespace):
            for number in await records.list_partitions(namespace, topic):
                record, _ = await records.read_partition(namespace, topic, number)
                found |= {link.ledger_id for link in record.ledgers}
                found |= set() if record.state_ledger is None else {record.state_ledger}
    return found


async def left_over(running: RunningBroker) -> set[int]:
    listed = set(await running.ledgers.list())
    return listed - await named(running)


async def until_none_is_left(running: RunningBroker) -> None:
    async with asyncio.timeout(30):
        while await left_over(running):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def unsuccessfully(running: RunningBroker, name: PartitionName) -> None:
    """Have it opened; the changes of its record have no answer."""
    try:
        await running.broker.ownership.owner_of(name, forwarded=True)
    except OctavoError:
        await asyncio.sleep(0.02)


async def open_again(running: RunningBroker, name: PartitionName) -> Partition:
    """After the pause that follows a failure."""
    async with asyncio.timeout(15):
        while True:
            try:
                return await owned(running.broker, name)
            except PartitionUnavailable:
                await asyncio.sleep(0.01)


class Unanswered:
    """Every change of a partition's record ends without taking place and without an answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changes = 0
        self.begun = asyncio.Event()
        self._patch = monkeypatch

    def __enter__(self) -> Unanswered:
        async def fail(_: PartitionRecordKeeper, make: Any) -> None:
            self.changes += 1
            self.begun.set()
            raise MetadataUnavailable("the store does not answer")

        self._patch.setattr(PartitionRecordKeeper, "change", fail)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


async def make_leftovers(
    running: RunningBroker, name: PartitionName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By failed openings: each makes a state ledger, for of a producer the batches alone tell."""
    partition = await open_again(running, name)
    info, _ = await running.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings(start="earliest")
    )
    first = (await partition.publish(batch(tag="acked"))).first_offset
    await (await partition.subscribe(info)).acknowledge(up_to=first)
    await partition.publish(batch(tag="told", producer_id=7, producer_epoch=0, base_sequence=0))
    partition.abandon("another is said to serve it")
    with Unanswered(monkeypatch) as store:
        while store.changes < TIMES:
            await unsuccessfully(running, name)


async def test_after_failed_openings(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await cluster.start("A", **SWEEPING)
    name = await make_topic(one.broker)
    await make_leftovers(one, name, monkeypatch)
    assert len(await left_over(one)) >= TIMES
    partition = await open_again(one, name)
    await partition.publish(batch(2))
    await until_none_is_left(one)
    assert one.broker.duties().leftovers_removed >= TIMES
    assert await values(partition) == ["acked-0", "told-0", "m-0", "m-1"]


async def test_after_failed_roll_overs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await cluster.start("A", publish_timeout_ms=2_000, **SWEEPING)
    name = await make_topic(one.broker, rollover_entries=1)
    partition = await open_again(one, name)
    for _ in range(TIMES):
        with Unanswered(monkeypatch) as store:
            publishing = asyncio.gather(
                *(partition.publish(batch()) for _ in range(3)), return_exceptions=True
            )
            async with asyncio.timeout(15):
                await store.begun.wait()
                await publishing
        async with asyncio.timeout(15):
            while True:
                try:
                    await partition.publish(batch())
                    break
                except OctavoError:
                    await asyncio.sleep(0.01)
    await until_none_is_left(one)
    assert len(await values(partition)) == partition.next_offset


async def test_after_deletions_and_crashes_of_owners(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What died owners have left is found by another broker, of topics that are gone, too."""
    name = PartitionName(*TOPIC, 0)
    for number in range(TIMES):
        owner = await cluster.start(f"A{number}")
        gone = await make_topic(owner.broker, TopicName("public", f"gone{number}"))
        await make_leftovers(owner, gone, monkeypatch)
        await (await open_again(owner, gone)).publish(batch())
        await owner.broker.topics.delete(gone.topic_name)
        await make_topic(owner.broker, TOPIC, rollover_entries=1)
        partition = await open_again(owner, name)
        await partition.publish(batch())
        with Unanswered(monkeypatch) as store:
            publishing = [asyncio.create_task(partition.publish(batch())) for _ in range(2)]
            async with asyncio.timeout(15):
                await store.begun.wait()
                await owner.vanish()
                await asyncio.gather(*publishing, return_exceptions=True)
                await owner.bury()
    last = await cluster.start("B", **SWEEPING)
    partition = await open_again(last, name)
    await until(lambda: len(last.broker.registry.brokers()) == 1, "the others' sessions are over")
    assert last.broker.duties().leftovers_removed + len(await left_over(last)) > TIMES * TIMES
    await until_none_is_left(last)
    assert len(await values(partition)) == partition.next_offset >= TIMES


async def test_others_ledgers_stay(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this very epoch, for its owner may name them; and all without our label."""
    one = await cluster.start("A", **SWEEPING)
    name = await make_topic(one.broker)
    partition = await open_again(one, name)
    record = partition._record.value
    custom: list[dict[str, bytes]] = [
        {},
        {"application": b"another"},
        {"octavo.partition": b"public/gone/0", "octavo.kind": b"data"},
        {"octavo.partition": b"public/gone/0", "octavo.kind": b"transaction"},
        custom_of(name, "data", record),
    ]
    kept = {(await one.ledgers.create(custom=one_of)).ledger_id for one_of in custom}
    goes = await one.ledgers.create(
        custom=custom_of(PartitionName("public", "gone", 0), "data", record)
    )
    async with asyncio.timeout(30):
        while goes.ledger_id in await one.ledgers.list():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    # What goes was proved twice; whatever else could be was looked at as often.
    assert await left_over(one) == kept


async def test_a_state_ledger_is_not_named_at_a_later_epoch() -> None:
    """It is made while its partition is opened anew: a sweep would take it for left over."""
    made: list[int] = []

    def snapshot() -> list[bytes]:
        made.append(served.record.value.epoch)
        if len(made) == 1:  # the owner opens its partition anew meanwhile
            served.record.value = PartitionRecord(incarnation="i", epoch=4)
        return []

    served = Served(snapshot)
    served.record.value = PartitionRecord(incarnation="i", epoch=3)
    await served.log.append(_an_op())
    assert served.record.value.state_ledger == 2
    assert [*served.ledgers.writers] == [2], "the first one is removed"
    label = label_of(served.ledgers.custom[2])
    assert label is not None
    assert label.epoch == served.record.value.epoch == 4


def _an_op() -> Op:
    return producers_op(0, [])
