"""Partitions lay where chance put them, and a broker that came was given nothing.

Of a hundred topics of four partitions twelve lay 4:0 on two brokers, for each partition chose by
itself; after a rolling restart of both the first to come back had 0 of 32, the other all of them,
and so it stayed: only what nobody served was ever claimed. Now a topic's partitions are spread
evenly (broker/cluster/preference.py), and what another should have is handed on
(broker/cluster/balance.py).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.broker.broker import Broker
from octavo.broker.errors import NotOwner, PartitionMoving
from octavo.broker.types import PartitionName
from octavo.protocol.codes import OctavoError
from tests.support.cluster import (
    TOPIC,
    Cluster,
    RunningBroker,
    batch,
    make_topic,
    until,
    values,
)

QUICK: dict[str, Any] = {
    "balance_after_ms": 300,
    "balance_interval_ms": 50,
    "balance_pause_ms": 1,
}


async def serve(running: list[RunningBroker], name: PartitionName) -> RunningBroker:
    """Who serves the partition, once somebody does."""
    async with asyncio.timeout(15):
        while True:
            for one in running:
                try:
                    owner = await one.broker.ownership.owner_of(name)
                except OctavoError:
                    continue  # it is being moved, or this one has stopped
                if owner.local:
                    return one
            await asyncio.sleep(0.01)


def share(broker: Broker) -> int:
    return len(broker.ownership.open_partitions())


async def test_a_broker_that_joins_is_given_its_share(cluster: Cluster) -> None:
    one = await cluster.start("A", **QUICK)
    name = await make_topic(one.broker, partitions=8)
    for number in range(8):
        await serve([one], TOPIC.partition(number))
    partition = await one.broker.ownership.partition(name)
    await partition.publish(batch(3))
    two = await cluster.start("B", **QUICK)
    await until(lambda: (share(one.broker), share(two.broker)) == (4, 4), "four and four")
    owner = await serve([one, two], name)
    assert await values(await owner.broker.ownership.partition(name)) == ["m-0", "m-1", "m-2"]
    assert not one.broker.balance.to_move()
    assert not two.broker.balance.to_move()


async def test_a_rolling_restart_ends_even_while_a_publisher_runs(cluster: Cluster) -> None:
    running = {name: await cluster.start(name, **QUICK) for name in "AB"}
    await make_topic(running["A"].broker, partitions=8)
    over = False
    stored: dict[int, list[str]] = {number: [] for number in range(8)}

    async def publish(number: int) -> None:
        name, sequence = TOPIC.partition(number), 0
        while not over:
            try:
                owner = await serve(list(running.values()), name)
                partition = await owner.broker.ownership.partition(name)
                await partition.publish(
                    batch(1, tag=str(sequence), producer_id=1, producer_epoch=0,
                          base_sequence=sequence)
                )  # fmt: skip
            except (NotOwner, PartitionMoving):
                await asyncio.sleep(0.005)
            else:
                stored[number].append(f"{sequence}-0")
                sequence += 1

    publishers = [asyncio.create_task(publish(number)) for number in range(8)]
    for name in "AB":
        await until(
            lambda: [share(one.broker) for one in running.values()] == [4, 4],
            "four and four",
            30,
        )
        await running[name].close()
        running[name] = await cluster.start(name, **QUICK)
    await until(
        lambda: [share(one.broker) for one in running.values()] == [4, 4], "four and four", 30
    )
    over = True
    await asyncio.gather(*publishers)
    for number in range(8):
        owner = await serve(list(running.values()), TOPIC.partition(number))
        found = await values(await owner.broker.ownership.partition(TOPIC.partition(number)))
        assert found == stored[number]


async def test_a_broker_that_comes_and_goes_moves_nothing(cluster: Cluster) -> None:
    one = await cluster.start("A", **QUICK)
    await make_topic(one.broker, partitions=8)
    for number in range(8):
        await serve([one], TOPIC.partition(number))
    epochs = {p.name: p.epoch for p in one.broker.ownership.open_partitions()}
    for _ in range(3):
        two = await cluster.start("B", **{**QUICK, "balance_after_ms": 600_000})
        await until(lambda: len(one.broker.registry.brokers()) == 2, "A sees B")
        assert not one.broker.balance.to_move(), "B has only just come"
        await two.close()
        await until(lambda: len(one.broker.registry.brokers()) == 1, "A sees that B has gone")
    assert {p.name: p.epoch for p in one.broker.ownership.open_partitions()} == epochs


async def test_what_nobody_takes_is_taken_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.broker.cluster.balance._TAKEN_WITHIN_S", 0.2)
    one = await cluster.start("A", **QUICK)
    await make_topic(one.broker, partitions=2)
    for number in range(2):
        await serve([one], TOPIC.partition(number))
    two = await cluster.start("B", **QUICK)
    monkeypatch.setattr(two.broker.ownership, "reconcile", lambda: None)  # it is deaf
    one.broker.ask_peer = None  # and nobody speaks to it
    mine = {p.name: p.epoch for p in one.broker.ownership.open_partitions()}
    await until(
        lambda: any(p.epoch > mine[p.name] + 1 for p in one.broker.ownership.open_partitions()),
        "one was given away and taken back, twice",
    )
    assert share(two.broker) == 0
