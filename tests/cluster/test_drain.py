"""A drained broker gives all partitions away and gets none; an unloaded topic moves."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from octavo.broker.errors import BROKER_DRAINING, BROKER_NOT_FOUND, NoOtherBroker, NotOwner
from octavo.broker.types import PartitionName
from octavo.metadata.store import RecordNotFound
from tests.cluster.test_balance import QUICK, serve, share
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
from tests.support.kit.refusals import raises_code

SLOW = {**QUICK, "balance_after_ms": 600_000}


async def spread(cluster: Cluster, partitions: int = 6) -> tuple[RunningBroker, RunningBroker]:
    one = await cluster.start("A", **SLOW)
    two = await cluster.start("B", **SLOW)
    await until(
        lambda: len(one.broker.registry.live) == len(two.broker.registry.live) == 2, "they meet"
    )
    await make_topic(one.broker, partitions=partitions)
    for number in range(partitions):
        await serve([one, two], TOPIC.partition(number))
    assert (share(one.broker), share(two.broker)) == (partitions // 2, partitions // 2)
    return one, two


async def test_a_drained_broker_gives_everything_away_and_is_given_nothing(
    cluster: Cluster,
) -> None:
    one, two = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0]
    await mine.publish(batch(3))
    await one.broker.drain()
    await until(lambda: (share(one.broker), share(two.broker)) == (0, 6), "A is empty")
    moved = await two.broker.ownership.partition(mine.name)
    assert await values(moved) == ["m-0", "m-1", "m-2"]
    await until(lambda: "A" in two.broker.registry.statuses.drained, "B has heard")
    for broker in (one.broker, two.broker):
        assert {who.broker_id for who in broker.registry.preferred(TOPIC, 6)} == {"B"}
    assert one.broker.registry.settled() == two.broker.registry.settled() == ()
    await until(lambda: two.broker.registry.statuses.of("A").partitions == 0, "B knows its count")


async def test_undone_it_is_preferred_again(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    await one.broker.drain()
    await until(lambda: one.broker.ownership.held() == 0, "A is empty")
    await one.broker.undrain()
    await until(lambda: "A" not in two.broker.registry.statuses.drained, "B has heard")
    names = {who.broker_id for who in two.broker.registry.preferred(TOPIC, 6)}
    assert names == {"A", "B"}


async def test_started_anew_it_is_not_drained_although_its_old_record_stands(
    cluster: Cluster,
) -> None:
    one, two = await spread(cluster)
    await one.broker.drain()
    await until(lambda: "A" in two.broker.registry.statuses.drained, "B has heard")
    record = await two.store.get("/octavo/standings/A")
    await one.close()
    await two.store.create("/octavo/standings/A", record.value)
    again = await cluster.start("A", **SLOW)
    await until(lambda: len(two.broker.registry.live) == 2, "it is back")
    assert not again.broker.registry.is_draining
    assert "A" not in two.broker.registry.statuses.drained
    assert {who.broker_id for who in two.broker.registry.preferred(TOPIC, 6)} == {"A", "B"}


async def test_a_drain_outlives_the_end_of_a_session(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    await one.broker.drain()
    await until(lambda: share(two.broker) == 6, "B has all")
    told = two.broker.registry.statuses
    await until(lambda: told.of("A") == one.broker.standing(), "it has told that none is left")
    path = "/octavo/standings/A"
    assert (await two.store.get(path)).version > 0
    await one.expire()
    async with asyncio.timeout(15):
        while True:
            with contextlib.suppress(RecordNotFound):
                if not (await two.store.get(path)).version:
                    break
            await asyncio.sleep(0.02)
    await until(lambda: "A" in two.broker.registry.live, "it is registered")
    await until(lambda: "A" in two.broker.registry.statuses.drained, "and it drains")
    assert share(one.broker) == 0


async def test_the_last_broker_cannot_be_drained(cluster: Cluster) -> None:
    one = await cluster.start("A", **SLOW)
    with pytest.raises(NoOtherBroker, match="no other broker"):
        await one.broker.drain()
    assert not one.broker.registry.is_draining
    two = await cluster.start("B", **SLOW)
    await until(lambda: len(one.broker.registry.live) == 2, "B is seen")
    await one.broker.drain()
    await until(lambda: "A" in two.broker.registry.statuses.drained, "B has heard")
    with pytest.raises(NoOtherBroker):
        await two.broker.drain()


async def test_drained_alone_it_serves_all_the_same(cluster: Cluster) -> None:
    one, two = await spread(cluster, partitions=2)
    await one.broker.drain()
    await until(lambda: one.broker.ownership.held() == 0, "A is empty")
    await two.close()
    await until(lambda: share(one.broker) == 2, "A serves what nobody else could")


async def test_what_is_placed_stays_until_that_broker_is_drained(cluster: Cluster) -> None:
    one = await cluster.start("A", **QUICK)
    two = await cluster.start("B", **QUICK)
    name = await make_topic(one.broker, partitions=4)
    parts = [PartitionName(*name[:2], number) for number in range(4)]
    await until(lambda: one.broker.registry.settled() == ("A", "B"), "both have settled")
    for part in parts:
        owner = await serve([one, two], part)
        if owner is one:
            await one.broker.balance.unload(part, "B")
    assert (share(one.broker), share(two.broker)) == (0, 4)
    await asyncio.sleep(1.0)
    assert share(two.broker) == 4, "the preference does not take it back"
    await two.broker.drain()
    await until(lambda: (share(one.broker), share(two.broker)) == (4, 0), "B is empty")


async def test_unloaded_where_it_should_be_it_is_opened_anew(cluster: Cluster) -> None:
    one, _ = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0]
    await mine.publish(batch(2))
    found = await one.broker.balance.unload(mine.name, "")
    assert found.broker_id == "A"
    again = await one.broker.ownership.partition(mine.name)
    assert again.epoch == mine.epoch + 1
    assert await values(again) == ["m-0", "m-1"]


async def test_what_cannot_be_unloaded(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    mine, other = (one.broker.ownership.open_partitions()[0].name for one in (one, two))
    with raises_code(BROKER_NOT_FOUND, match=r"called nobody; there are: A, B"):
        await one.broker.balance.unload(mine, "nobody")
    with pytest.raises(NotOwner):
        await one.broker.balance.unload(other, "")
    assert (await owned(one.broker, mine)).name == mine
    await two.broker.drain()
    await until(lambda: "B" in one.broker.registry.statuses.drained, "A has heard")
    with raises_code(BROKER_DRAINING, match="B is being drained"):
        await one.broker.balance.unload(mine, "B")
