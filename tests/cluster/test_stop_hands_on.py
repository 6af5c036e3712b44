"""A stopping broker hands its partitions on first, if another broker takes them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker.errors import PartitionMoving
from octavo.broker.partition.handover_messages import Handover, HandoverNotice
from octavo.broker.types import BrokerInfo, PartitionName
from octavo.metadata.store import RecordNotFound
from tests.cluster.test_balance import serve, share
from tests.cluster.test_drain import SLOW, spread
from tests.cluster.test_hand_over import one_partition, whole
from tests.support.cluster import TOPIC, Cluster, batch, make_topic, owned, until, values


async def test_what_a_stopped_broker_serves_is_taken_as_it_left_it(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    mine = [partition.name for partition in one.broker.ownership.open_partitions()]
    for name in mine:
        await (await one.broker.ownership.partition(name)).publish(batch(2))
    with capture_logs() as logs:
        await one.close()
    assert share(two.broker) == 6, "at once: nobody had to find out"
    taken = [log["partition"] for log in logs if log["event"] == "partition_taken_as_left"]
    assert sorted(taken) == sorted(map(str, mine))
    assert not {"partition_taken_over", "not_all_handed_on"} & {log["event"] for log in logs}
    for name in mine:
        assert await values(await two.broker.ownership.partition(name)) == ["m-0", "m-1"]


async def test_cursors_and_producers_go_along(cluster: Cluster) -> None:
    one, two, name = await one_partition(cluster)
    await one.close()
    await whole(two, name)


async def test_publishers_amid_a_stop_are_served_by_it_or_by_the_next(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    stored: dict[int, list[str]] = {number: [] for number in range(6)}
    over = False

    async def publish(number: int) -> None:
        while not over:
            tag = str(len(stored[number]))
            try:
                owner = await serve([one, two], TOPIC.partition(number))
                partition = await owner.broker.ownership.partition(TOPIC.partition(number))
                await partition.publish(
                    batch(1, tag=tag, producer_id=3, producer_epoch=0, base_sequence=int(tag))
                )
            except Exception:
                await asyncio.sleep(0.005)
            else:
                stored[number].append(f"{tag}-0")

    publishers = [asyncio.create_task(publish(number)) for number in range(6)]
    await until(lambda: all(len(found) > 2 for found in stored.values()), "they publish")
    await one.close()
    before = {number: len(found) for number, found in stored.items()}
    await until(lambda: all(len(stored[n]) > before[n] + 2 for n in stored), "they go on")
    over = True
    await asyncio.gather(*publishers)
    for number, found in stored.items():
        assert await values(await owned(two.broker, TOPIC.partition(number))) == found


async def test_an_heir_that_does_not_answer_holds_nobody_up(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0]
    await mine.publish(batch(3))

    async def silent(*_: Any) -> None:
        await asyncio.sleep(600)

    one.broker.announce_to_peer = silent
    with capture_logs() as logs:
        async with asyncio.timeout(15):
            await one.close()
    assert [log["partitions"] for log in logs if log["event"] == "not_all_handed_on"] == [3]
    await until(lambda: share(two.broker) == 6, "B has all of them")
    assert await values(await owned(two.broker, mine.name)) == ["m-0", "m-1", "m-2"]


async def test_cut_off_amid_a_hand_over_it_gives_the_partition_up_all_the_same(
    cluster: Cluster,
) -> None:
    """Its successor does not answer, the time is over, and the claim must not stay."""
    one, two, name = await one_partition(cluster)

    async def silent(successor: BrokerInfo, of: PartitionName, handed: Handover) -> None:
        await asyncio.sleep(600)

    one.broker.ask_peer = silent
    async with asyncio.timeout(15):
        await one.close()
    await whole_again(two, name)


async def whole_again(two: Any, name: PartitionName) -> None:
    await owned(two.broker, name)
    await whole(two, name)


async def test_alone_it_just_closes(cluster: Cluster) -> None:
    one = await cluster.start("A", **SLOW)
    name = await make_topic(one.broker)
    await (await owned(one.broker, name)).publish(batch(2))
    with capture_logs() as logs:
        await one.close()
    assert not {"handover_not_taken", "not_all_handed_on"} & {log["event"] for log in logs}
    with pytest.raises(RecordNotFound):
        await cluster.store.get("/octavo/owners/public/flights/0")
    again = await cluster.start("B", **SLOW)
    assert await values(await owned(again.broker, name)) == ["m-0", "m-1"]


async def test_all_that_are_stopped_at_once_give_each_other_nothing(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    for running in (one, two):
        await running.broker.ownership.open_partitions()[0].publish(batch(1))
    async with asyncio.timeout(20):
        await asyncio.gather(one.close(), two.close())
    three = await cluster.start("C", **SLOW)
    for number in range(6):
        await owned(three.broker, TOPIC.partition(number))
    assert share(three.broker) == 6


async def test_who_leaves_is_given_nothing_and_started_again_it_is_like_any_other(
    cluster: Cluster,
) -> None:
    one, two, name = await one_partition(cluster)
    partition = await one.broker.ownership.partition(name)
    incarnation = (await one.broker.topics.get(name.topic_name)).incarnation
    two.broker.ownership.take_no_more()
    with pytest.raises(PartitionMoving, match="cannot be given"):
        await two.broker.ownership.prepare(name, HandoverNotice(incarnation, partition.epoch, True))
    with pytest.raises(PartitionMoving, match="it stops"):
        await two.broker.ownership.take(name, Handover(incarnation))
    await two.close()
    again = await cluster.start("B", **SLOW)
    await until(lambda: len(one.broker.registry.live) == 2, "it is back")
    assert "B" not in one.broker.registry.statuses.drained
    await one.broker.balance.unload(name, "B")
    await whole(again, name)


async def test_a_bug_on_the_way_keeps_nothing_from_being_released(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test's store with an unknown record ended a broker that was asked to stop."""
    one, two = await spread(cluster)

    async def wrong(_: Any) -> None:
        raise KeyError("standings")

    monkeypatch.setattr(one.broker.registry.statuses, "tell", wrong)
    with capture_logs() as logs:
        await one.close()
    told = [log for log in logs if log["event"] == "broker_task_failed"]
    assert [log["task"] for log in told] == ["give_away"]
    await until(lambda: share(two.broker) == 6, "B has all of them")


async def test_without_a_session_nothing_is_waited_for(cluster: Cluster) -> None:
    """It cannot write down its partitions' state: the next owner recovers them."""
    one = await cluster.start("A", handover_timeout_ms=600_000)
    await make_topic(one.broker)
    name = TOPIC.partition(0)
    await (await owned(one.broker, name)).publish(batch(2))
    await one.vanish()
    async with asyncio.timeout(15):
        await one.broker.close()
    assert not one.broker.ownership.held()
    two = await cluster.start("B")
    assert await values(await owned(two.broker, name)) == ["m-0", "m-1"]
