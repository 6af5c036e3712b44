"""What a broker had discarded stayed registered for as long as the process lived.

The writers of data and state ledgers after each loss of ownership, failed opening and failed
roll-over: each listened to three bookies, reconnected when they restarted, and was looked at by
every tick. Every case here counts all that is registered before and after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from octavo.broker.errors import BrokerError, PartitionUnavailable
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition import opening
from octavo.broker.partition.partition import Partition
from octavo.broker.types import BrokerInfo, PartitionName, SubscriptionSettings, TopicName
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.store import MetadataUnavailable
from octavo.protocol.codes import OctavoError
from tests.support.cluster import (
    Cluster,
    RunningBroker,
    batch,
    make_topic,
    owned,
    until,
)

TIMES = 6


def registered(running: RunningBroker) -> dict[str, int]:
    """Everything that is entered somewhere and has to be removed one day."""
    broker: Any = running.broker
    ledgers: Any = running.ledgers
    store: Any = running.store
    bookies = ledgers.bookies._bookies.values()
    return {
        "writers": len(ledgers._writers),
        "ticking": len(ledgers._ticking),
        "recoveries": len(ledgers._recoveries),
        "listeners": sum(len(bookie._listeners) for bookie in bookies),
        "sinks": sum(len(b.connection._sinks) for b in bookies if b.connection is not None),
        "watchers of bookies": len(ledgers.bookies._on_change),
        "watches": sum(len(found) for found in store._watches._watches.values()),
        "partitions": broker.ownership.held(),
        "holdings": len(broker.ownership._holdings),
        "claimed once": len(broker.ownership._outstanding),
        "lookups": len(broker.ownership._lookups),
        "claims sent": len(broker.ownership._ownership._sent),
        "topics": len(broker.topics._known),
        "chores": len(broker.chores._failing),
        "tasks": len(broker._tasks),
    }


async def as_before(running: RunningBroker, before: dict[str, int]) -> None:
    """Within a moment, for some of it is let go in the background."""
    try:
        await until(lambda: registered(running) == before, "as before", 10)
    except AssertionError:
        assert registered(running) == before


async def used(running: RunningBroker, name: PartitionName) -> Partition:
    """The partition with a cursor in its state ledger, and messages."""
    async with asyncio.timeout(15):
        while True:
            try:
                partition = await owned(running.broker, name)
                break
            except PartitionUnavailable:
                await asyncio.sleep(0.02)  # it is tried again
    first = (await partition.publish(batch(2))).first_offset
    info, _ = await running.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings()
    )
    await (await partition.subscribe(info)).acknowledge(up_to=first)
    return partition


async def settled(running: RunningBroker, name: PartitionName) -> dict[str, int]:
    """The counts with one partition open that has been used."""
    await used(running, name)
    seen: list[dict[str, int]] = []

    def steady() -> bool:
        seen.append(registered(running))
        return len(seen) > 30 and all(one == seen[-1] for one in seen[-30:])

    await until(steady, "nothing changes any more")
    return seen[-1]


async def test_after_losses_of_ownership(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker)
    before = await settled(one, name)
    for _ in range(TIMES):
        (await used(one, name)).abandon("another is said to serve it")
    await used(one, name)
    await as_before(one, before)


HEIR = BrokerInfo("B", "")
"""Nobody is there."""


async def makes_ready(foretold: object) -> bool:
    """The heir says that it will take it."""
    return True


async def nobody_to_ask(incarnation: str, end: object) -> None:
    """The heir does not answer."""


async def test_after_hand_overs(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker)
    before = await settled(one, name)
    owners: Any = one.broker.ownership  # type: ignore[attr-defined]
    for _ in range(TIMES):
        await used(one, name)
        assert await owners.hand_on(name, HEIR, makes_ready, nobody_to_ask, 0.1) is None
    await used(one, name)
    await as_before(one, before)


@pytest.mark.parametrize("fails", ["create", "write", "change"])
async def test_after_failed_openings(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Of a producer the batches alone tell, so each opening makes a state ledger and writes it."""
    one = await cluster.start("A")
    name = await make_topic(one.broker)
    before = await settled(one, name)
    partition = await one.broker.ownership.partition(name)
    await partition.publish(batch(1, producer_id=7, producer_epoch=0, base_sequence=0))
    failed = 0

    async def fail(*_: object, **__: object) -> None:
        nonlocal failed
        failed += 1
        raise MetadataUnavailable("the store does not answer")

    with monkeypatch.context() as patch:
        if fails == "change":
            patch.setattr(PartitionRecordKeeper, "change", fail)
        elif fails == "write":
            patch.setattr(opening, "write_snapshot", fail)
        else:
            patch.setattr(one.ledgers, "create", fail)
        partition.abandon("another is said to serve it")
        for _ in range(500):
            if failed >= TIMES:
                break
            try:
                await one.broker.ownership.owner_of(name, forwarded=True)
            except OctavoError:
                await asyncio.sleep(0.02)
    assert failed >= TIMES
    await used(one, name)
    await as_before(one, before)


async def test_after_roll_overs_of_both_ledgers(cluster: Cluster) -> None:
    one = await cluster.start("A", state_ledger_entries_max=2)
    name = await make_topic(one.broker, rollover_entries=1)
    before = await settled(one, name)
    for _ in range(TIMES):
        await used(one, name)
    await as_before(one, before)


async def test_after_failed_roll_overs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await cluster.start("A", publish_timeout_ms=2_000)
    name = await make_topic(one.broker, rollover_entries=1)
    before = await settled(one, name)
    change = PartitionRecordKeeper.change
    left = 0

    async def fail(keeper: PartitionRecordKeeper, make: Any) -> None:
        nonlocal left
        if left:
            left -= 1
            raise MetadataUnavailable("the store does not answer")
        await change(keeper, make)

    monkeypatch.setattr(PartitionRecordKeeper, "change", fail)
    for _ in range(TIMES):
        left = 1
        partition = await one.broker.ownership.partition(name)
        results = await asyncio.gather(
            *(partition.publish(batch(1)) for _ in range(4)), return_exceptions=True
        )
        for one_of in results:
            assert not isinstance(one_of, BaseException) or isinstance(one_of, BrokerError), one_of
        async with asyncio.timeout(15):
            while True:
                try:
                    await partition.publish(batch(1))
                    break
                except BrokerError:
                    await asyncio.sleep(0.01)
    left = 0
    await as_before(one, before)


async def test_after_failed_replacements_of_the_state_ledger(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await cluster.start("A", state_ledger_entries_max=1)
    name = await make_topic(one.broker)
    before = await settled(one, name)
    create: Callable[..., Any] = one.ledgers.create
    left = 0

    async def fail_once(*args: Any, **settings: Any) -> LedgerWriter:
        nonlocal left
        if left:
            left -= 1
            raise MetadataUnavailable("the store does not answer")
        return await create(*args, **settings)

    monkeypatch.setattr(one.ledgers, "create", fail_once)
    subscription = await (await one.broker.ownership.partition(name)).subscription("s")
    for _ in range(TIMES):
        first = (await (await one.broker.ownership.partition(name)).publish(batch(3))).first_offset
        for offset in range(first, first + 3):
            left = 1
            try:
                await subscription.acknowledge(up_to=offset)
            except OctavoError:
                await subscription.acknowledge(up_to=offset)
    await as_before(one, before)


async def test_after_deletions_of_topics(cluster: Cluster) -> None:
    one = await cluster.start("A")
    before = await settled(one, await make_topic(one.broker))
    for number in range(TIMES):
        name = await make_topic(one.broker, TopicName("public", f"gone{number}"))
        await used(one, name)
        await one.broker.topics.delete(name.topic_name)
    await as_before(one, before)
