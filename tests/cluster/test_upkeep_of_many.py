"""Maintenance of thousands of partitions costs little, and never stops the loop."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from octavo.broker import broker as broker_module
from octavo.broker.cluster import ownership
from octavo.broker.partition.partition import Partition
from octavo.broker.types import TopicName
from tests.support.cluster import Cluster, RunningBroker, batch, make_topic, owned, until

INTERVAL_MS = 200


async def some_partitions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> tuple[RunningBroker, list[Partition], Counter[str]]:
    kept: Counter[str] = Counter()
    maintain = Partition.maintain

    async def counted(partition: Partition) -> None:
        kept[partition.name.topic] += 1
        await maintain(partition)

    monkeypatch.setattr(Partition, "maintain", counted)
    one = await cluster.start("A", trim_interval_ms=INTERVAL_MS)
    names = [await make_topic(one.broker, TopicName("public", f"t{n}")) for n in range(5)]
    return one, [await owned(one.broker, name) for name in names], kept


async def test_what_nobody_uses_is_looked_after_in_one_of_some_rounds(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, partitions, kept = await some_partitions(cluster, monkeypatch)
    await until(lambda: kept["t0"] > 0, "the first round")
    kept.clear()
    while kept["t0"] < 12:
        await partitions[0].publish(batch(1))
        await asyncio.sleep(INTERVAL_MS / 2000)
    assert 1 <= kept["t1"] <= 4, "in two of twelve rounds, or of a few more"
    kept.clear()
    await partitions[1].publish(batch(1))
    await until(lambda: kept["t1"] == 1, "in the next round, as it was used", timeout_s=2)


async def test_a_round_is_spread_over_its_interval(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "_KEPT_UP_AT_ONCE", 2)
    monkeypatch.setattr(broker_module, "_QUIET_ROUNDS", 1)
    loop, times = asyncio.get_running_loop(), dict[str, float]()
    _, _, kept = await some_partitions(cluster, monkeypatch)
    due = Partition.upkeep_is_due

    def noted(partition: Partition, quiet_s: float) -> bool:
        times[partition.name.topic] = loop.time()
        return due(partition, quiet_s)

    monkeypatch.setattr(Partition, "upkeep_is_due", noted)
    await until(lambda: len(kept) == 5 and min(kept.values()) >= 3, "some rounds")
    first, *others = sorted(times.values())
    assert others[-1] - first < 2 * INTERVAL_MS / 1000
    assert sum(one - first > INTERVAL_MS / 1000 / 4 for one in others) >= 1


@pytest.mark.parametrize("told_by", ["the broker that deletes", "a watch"])
async def test_a_topic_of_many_partitions_is_let_go_in_turns(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, told_by: str
) -> None:
    """A deletion of 2,000 partitions held a broker for half a second of processor time."""
    monkeypatch.setattr(ownership, "_ABANDONED_AT_ONCE", 3)
    loop, turn, abandoned = asyncio.get_running_loop(), 0, Counter[int]()
    abandon = Partition.abandon

    def counted(partition: Partition, why: str) -> None:
        abandoned[turn] += 1
        abandon(partition, why)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    monkeypatch.setattr(Partition, "abandon", counted)
    one = (await cluster.start("A")).broker
    name = TopicName("public", "many")
    await make_topic(one, name, partitions=10)
    for number in range(10):
        await owned(one, name.partition(number))
    info = await one.topics.get(name)
    loop.call_soon(next_turn)
    if told_by == "a watch":
        one.ownership.topic_deleted(name)
    else:
        assert await one.ownership.let_go(name, info.incarnation) == [*range(10)]
    await until(lambda: abandoned.total() == 10, "all are abandoned")
    assert max(abandoned.values()) == 3
