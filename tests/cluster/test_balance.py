"""Partitions are spread evenly over brokers, and handed over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.broker import Broker
from octavo.broker.cluster.balance import Patience
from octavo.broker.errors import NotOwner, PartitionMoving
from octavo.broker.types import PartitionName
from octavo.metadata.store import MetadataUnavailable
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

# Only unowned partitions were ever claimed, so a broker that joined or restarted got none.

QUICK: dict[str, Any] = {
    "balance_after_ms": 300,
    "balance_interval_ms": 50,
    "balance_pause_ms": 1,
}


async def serve(running: list[RunningBroker], name: PartitionName) -> RunningBroker:
    async with asyncio.timeout(15):
        while True:
            for one in running:
                try:
                    owner = await one.broker.ownership.owner_of(name)
                except OctavoError:
                    continue
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
    monkeypatch.setattr(two.broker.ownership, "reconcile", lambda: None)
    one.broker.ask_peer = None
    mine = {p.name: p.epoch for p in one.broker.ownership.open_partitions()}
    await until(
        lambda: any(p.epoch > mine[p.name] + 1 for p in one.broker.ownership.open_partitions()),
        "one was given away and taken back, twice",
    )
    assert share(two.broker) == 0


# A successor whose watch was late had not heard of the partition that was closed for it: the
# owner took it back and closed it again, and it was unserved for 5 s each time.


async def test_an_heir_whose_watches_are_silent_takes_it(cluster: Cluster) -> None:
    """It remembers another owner from an earlier request."""
    one = await cluster.start("A", **QUICK)
    name = await make_topic(one.broker, partitions=2)
    for number in range(2):
        partition = await owned(one.broker, name._replace(partition=number))
        await partition.publish(batch(1))
    two = await cluster.start("B", deaf=True, **QUICK)
    for number in range(2):
        found = await two.broker.ownership.owner_of(name._replace(partition=number))
        assert found.broker_id == "A"
    await until(lambda: len(two.broker.ownership.open_partitions()) == 1, "B has its half")
    assert len(one.broker.ownership.open_partitions()) == 1
    await until(lambda: one.broker.balance.moved == 1, "A has heard that B serves it")


async def test_an_heir_of_a_topic_made_again_takes_it(cluster: Cluster) -> None:
    one = await cluster.start("A", **QUICK)
    two = await cluster.start("B", **QUICK)
    await until(lambda: len(one.broker.registry.brokers()) == 2, "A sees B")
    for _ in range(2):
        name = await make_topic(one.broker, partitions=2)
        for number in range(2):
            await owned(one.broker, name._replace(partition=number))
        await until(lambda: len(two.broker.ownership.open_partitions()) == 1, "B has its half")
        await one.broker.topics.delete(name.topic_name)


async def test_an_heir_that_refuses_is_left_alone_for_longer_and_longer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.broker.cluster.balance._TAKEN_WITHIN_S", 0.05)
    one = await cluster.start("A", **{**QUICK, "balance_after_ms": 20})
    name = await make_topic(one.broker, partitions=8)
    for number in range(8):
        await owned(one.broker, name._replace(partition=number))
    asked: list[str] = []
    pauses: list[float] = []
    took_nothing = one.broker.balance._patience.took_nothing

    async def refuses(*of: Any) -> None:
        asked.append(str(of[1]))
        raise ConnectionRefusedError("no client listens")

    def noted(broker_id: str, now_s: float) -> float:
        pauses.append(took_nothing(broker_id, now_s))
        return pauses[-1]

    one.broker.ask_peer = refuses
    monkeypatch.setattr(one.broker.balance._patience, "took_nothing", noted)
    two = await cluster.start("B", deaf=True, **QUICK)
    monkeypatch.setattr(two.broker.ownership, "reconcile", lambda: None)
    await until(lambda: len(pauses) == 4, "it was tried four times")
    assert pauses == [0.04, 0.08, 0.16, 0.32]
    assert asked
    assert not one.broker.balance.moved


def test_the_pauses_of_a_broker() -> None:
    patience = Patience(20.0)
    assert patience.may_be_given("B", 0.0)
    now_s, pauses = 0.0, []
    for _ in range(7):
        pauses.append(patience.took_nothing("B", now_s))
        assert not patience.may_be_given("B", now_s + pauses[-1] - 1)
        assert patience.may_be_given("A", now_s), "others are not to blame"
        now_s += pauses[-1]
        assert patience.may_be_given("B", now_s)
    assert pauses == [20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]
    patience.took("B")
    assert patience.took_nothing("B", now_s) == 20.0
    patience.keep_only(["B"])
    assert not patience.may_be_given("B", now_s)
    patience.keep_only(["A"])
    assert patience.may_be_given("B", now_s), "it has started anew"


async def test_it_can_be_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoing a drain whose announcement got no answer looked like the announced state, so it
    was not announced: the others gave the broker nothing until its restart."""
    async with running_cluster(tmp_path, brokers=2) as cluster:
        drained, other = (cluster.brokers[f"broker-{number}"] for number in range(2))
        standings = other.broker.registry.statuses
        await _until(lambda: len(drained.broker.registry.live) == 2)
        await drained.broker.undrain()
        put: Any = drained.store.put

        async def answer_is_lost(path: str, value: bytes, version: int) -> Any:
            await put(path, value, version)
            raise MetadataUnavailable("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(drained.store, "put", answer_is_lost)
            with pytest.raises(MetadataUnavailable):
                await drained.broker.drain()
        await _until(lambda: standings.drained == {"broker-0"})
        await drained.broker.undrain()
        await _until(lambda: not standings.drained)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
