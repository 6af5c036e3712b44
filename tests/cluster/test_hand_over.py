"""A planned hand-over: the owner tells its successor the partition's state, which the successor
checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker.errors import NotOwner, PartitionMoving
from octavo.broker.partition.handover_messages import Handover, HandoverNotice, HandoverState
from octavo.broker.partition.partition import Partition
from octavo.broker.types import BrokerInfo, PartitionName, SubscriptionSettings
from tests.cluster.test_drain import SLOW
from tests.support.cluster import (
    Cluster,
    RunningBroker,
    batch,
    make_topic,
    owned,
    until,
    values,
)

Change = Callable[[HandoverState], HandoverState | None]


async def one_partition(cluster: Cluster) -> tuple[RunningBroker, RunningBroker, PartitionName]:
    """A serves it, with two messages, an idempotent producer, and an ack on a subscription."""
    one = await cluster.start("A", **SLOW)
    two = await cluster.start("B", **SLOW)
    await until(lambda: len(one.broker.registry.live) == 2, "A sees B")
    name = await make_topic(one.broker)
    partition = await owned(one.broker, name)
    info, _ = await one.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings(type="shared", start="earliest")
    )
    subscription = await partition.subscribe(info)
    for number in range(2):
        await partition.publish(
            batch(1, tag=f"{number}", producer_id=7, producer_epoch=0, base_sequence=number)
        )
    taken = await subscription.receive("c", messages_max=2)
    await subscription.acknowledge([taken[1].ack_id])
    return one, two, name


async def whole(two: RunningBroker, name: PartitionName) -> Partition:
    partition = await two.broker.ownership.partition(name)
    assert await values(partition) == ["0-0", "1-0"]
    again = await partition.publish(
        batch(1, tag="1", producer_id=7, producer_epoch=0, base_sequence=1)
    )
    assert again.duplicate
    assert again.first_offset == 1
    found = await partition.publish(
        batch(1, tag="2", producer_id=7, producer_epoch=0, base_sequence=2)
    )
    assert found.first_offset == 2
    subscription = await partition.subscription("s")
    left = await subscription.receive("c", messages_max=9)
    assert [one.offset for one in left] == [2], "the ack of 1 holds, and so does the lease of 0"
    assert subscription.stats().leased == 2
    return partition


def told(one: RunningBroker, change: Change) -> None:
    ask: Any = one.broker.ask_peer

    async def changed(successor: BrokerInfo, name: PartitionName, handed: Handover) -> None:
        assert handed.end is not None
        await ask(successor, name, handed._replace(end=change(handed.end)))

    one.broker.ask_peer = changed


async def test_the_heir_recovers_nothing(cluster: Cluster) -> None:
    one, two, name = await one_partition(cluster)
    with capture_logs() as logs:
        await one.broker.balance.unload(name, "B")
    events = [log["event"] for log in logs]
    assert "partition_taken_as_left" in events
    assert not {"ledger_recovered", "partition_taken_over", "not_as_left"} & set(events)
    await whole(two, name)


async def test_who_is_about_to_be_given_it_has_made_its_ledgers(cluster: Cluster) -> None:
    one, two, name = await one_partition(cluster)
    before = set(await two.ledgers.list())
    epoch = (await one.broker.ownership.partition(name)).epoch
    incarnation = (await one.broker.topics.get(name.topic_name)).incarnation
    await two.broker.ownership.prepare(name, HandoverNotice(incarnation, epoch, True))
    made = set(await two.ledgers.list()) - before
    assert len(made) == 2
    with pytest.raises(PartitionMoving):
        await one.broker.ownership.prepare(name, HandoverNotice(incarnation, epoch, True))
    async with asyncio.timeout(10):
        while made & set(await two.ledgers.list()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert (await values(await one.broker.ownership.partition(name))) == ["0-0", "1-0"]


WRONG: dict[str, Change] = {
    "nothing": lambda end: None,
    "another epoch": lambda end: end._replace(epoch=end.epoch - 1),
    "another ledger": lambda end: end._replace(ledger_id=end.ledger_id + 1),
    "an earlier end": lambda end: end._replace(last_entry=end.last_entry - 1),
    "fewer bytes": lambda end: end._replace(
        contents=end.contents._replace(payload_bytes=end.contents.payload_bytes - 1)
    ),
    "no state": lambda end: end._replace(state_ledger=None),
    "a state that cannot be read": lambda end: end._replace(state=(b"\xc1",)),
}


@pytest.mark.parametrize("what", WRONG)
async def test_what_is_not_so_is_found_out_and_recovered(cluster: Cluster, what: str) -> None:
    one, two, name = await one_partition(cluster)
    told(one, WRONG[what])
    with capture_logs() as logs:
        await one.broker.balance.unload(name, "B")
    events = [log["event"] for log in logs]
    assert "partition_taken_over" in events
    assert "partition_taken_as_left" not in events
    await whole(two, name)


async def test_an_owner_that_has_a_successor_unawares_gives_nothing_wrong(
    cluster: Cluster,
) -> None:
    """C has taken it over, served, and gone; A, which has heard of nothing, hands its state on."""
    one, _, name = await one_partition(cluster)
    mine = await one.broker.ownership.partition(name)
    await one.store.delete("/octavo/owners/public/flights/0")
    three = await cluster.start("C", **SLOW)
    other = await owned(three.broker, name)
    await other.publish(batch(1, tag="theirs"))
    assert mine.state.name in ("OPEN", "CLOSED")
    with pytest.raises(Exception, match=r"not served|not taken|another broker"):
        await one.broker.balance.unload(name, "B")
    assert await values(await owned(three.broker, name)) == ["0-0", "1-0", "theirs-0"]


async def test_nothing_is_closed_for_an_heir_that_cannot_be_reached(cluster: Cluster) -> None:
    one, _, name = await one_partition(cluster)
    mine = await one.broker.ownership.partition(name)

    async def refuses(*_: Any) -> None:
        raise ConnectionRefusedError("no client listens")

    one.broker.announce_to_peer = refuses
    with pytest.raises(Exception, match="was not taken by B"):
        await one.broker.balance.unload(name, "B")
    assert await one.broker.ownership.partition(name) is mine
    await mine.publish(batch(1))


async def test_a_long_state_is_left_in_its_ledger(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.broker.partition.partition.STATE_BYTES_MAX", 10)
    one, two, name = await one_partition(cluster)
    with capture_logs() as logs:
        await one.broker.balance.unload(name, "B")
    assert "partition_taken_over" in [log["event"] for log in logs]
    await whole(two, name)


async def test_publishers_amid_a_hand_over_are_stored_once_and_in_order(cluster: Cluster) -> None:
    one, two, name = await one_partition(cluster)
    running, over, stored = [one, two], False, ["0-0", "1-0"]

    async def publish() -> None:
        sequence = 0
        while not over:
            tag = f"p{sequence}"
            work = batch(1, tag=tag, producer_id=9, producer_epoch=0, base_sequence=sequence)
            try:
                await cluster.at_owner(running[sequence % 2].broker, name, _publishing(work))
            except (NotOwner, PartitionMoving):
                await asyncio.sleep(0.001)
            else:
                stored.append(f"{tag}-0")
                sequence += 1

    publishing = asyncio.create_task(publish())
    for to in "BABABA":
        await asyncio.sleep(0.05)
        giver = one if to == "B" else two
        await giver.broker.balance.unload(name, to)
    over = True
    await publishing
    assert len(stored) > 10
    assert await values(await owned(one.broker, name)) == stored


def _publishing(work: bytes) -> Callable[[Partition], Any]:
    return lambda partition: partition.publish(work)
