"""Receive and ack at a broker that does not own the partition. Messages whose answer does not
reach the client go to other consumers at once, and do not count as delivered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from octavo.broker.operations.frames import Frame, Kind
from octavo.broker.operations.kinds import REFUSAL_BYTES_MAX
from octavo.broker.operations.links import AnsweringLink, AskingLink
from octavo.broker.subscriptions.subscription import Subscription
from octavo.protocol.leased import LEASED_HEADER
from tests.support.cluster import RunningBroker, running_cluster
from tests.support.http_api import Api, until

TOPIC = "/v1/topics/public/orders"
SUB = f"{TOPIC}/subscriptions/s"
BATCHES = "application/vnd.kafka.recordbatch.v2"


class World(NamedTuple):
    owner: Api
    other: Api
    asking: RunningBroker
    subscription: Subscription

    @property
    def leased(self) -> int:
        return self.subscription.stats().leased

    @property
    def is_at_rest(self) -> bool:
        assert self.asking.server is not None
        held = self.asking.server._services.remote.describe()
        return not self.subscription.describe()["receiving"] and not any(held.values())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        await cluster.api.put(TOPIC, json={"partitions": 1})
        await cluster.api.put(SUB, json={"type": "shared", "ack_timeout": 600})
        (partition,) = (await cluster.api.get(TOPIC)).json()["partitions"]
        owner = partition["owner"]
        (other,) = {*cluster.apis} - {owner}
        serving = [one.broker for one in cluster.brokers.values() if one.broker]
        (open_here,) = [one for broker in serving for one in broker.ownership.open_partitions()]
        (asking,) = [one for one in cluster.brokers.values() if one.broker.broker_id == other]
        subscription = await open_here.subscription("s")
        yield World(cluster.apis[owner], cluster.apis[other], asking, subscription)


async def publish(api: Api, value: Any = "v") -> None:
    assert (await api.post(f"{TOPIC}/messages", json={"value": value})).status == 200


async def test_messages_and_acks_go_through_another_broker(world: World) -> None:
    await publish(world.owner, "a")
    found = await world.other.post(f"{SUB}/receive?consumer=c")
    (message,) = found.json()["messages"]
    assert message["value"] == "a"
    assert message["delivery_count"] == 1
    nacked = await world.other.post(f"{SUB}/ack", json={"nack": [message["ack_id"]]})
    assert nacked.json() == {"acked": 0}
    (again,) = (await world.other.post(f"{SUB}/receive?wait=5")).json()["messages"]
    assert again["delivery_count"] == 2
    acked = await world.other.post(f"{SUB}/ack", json={"ack_ids": [again["ack_id"]]})
    assert acked.json() == {"acked": 1}
    repeated = await world.other.post(f"{SUB}/ack", json={"ack_ids": [again["ack_id"]]})
    assert repeated.json() == {"acked": 0}


async def test_long_messages_come_whole(world: World) -> None:
    """They are longer than the reservation of a receive that waits."""
    waiting = asyncio.create_task(world.other.post(f"{SUB}/receive?wait=20&max=4"))
    await until(lambda: world.subscription.is_in_use)
    text = "x" * 900_000
    await publish(world.owner, text)
    assert [one["value"] for one in (await waiting).json()["messages"]] == [text]
    await publish(world.owner, text)
    stored = await world.other.call("POST", f"{SUB}/receive?wait=5", headers={"Accept": BATCHES})
    assert LEASED_HEADER in stored.headers
    assert len(stored.body) > len(text)


async def test_many_that_wait_take_no_room(world: World) -> None:
    await publish(world.other)
    assert len((await world.other.post(f"{SUB}/receive")).json()["messages"]) == 1
    waits = [asyncio.create_task(world.other.post(f"{SUB}/receive?wait=20")) for _ in range(60)]
    await until(lambda: world.subscription.describe()["receiving"] == 60)
    assert world.asking.server is not None
    held = world.asking.server._services.remote.describe()
    assert held["reserved_bytes"] <= 60 * REFUSAL_BYTES_MAX
    read = await world.other.get(f"{TOPIC}/messages?from=earliest&wait=5")
    assert len(read.json()["messages"]) == 1
    for one in waits:
        one.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    await until(lambda: world.leased == 1 and world.is_at_rest)


async def test_the_ack_ids_of_a_refusal_all_come(world: World) -> None:
    await publish(world.owner)
    (message,) = (await world.other.post(f"{SUB}/receive")).json()["messages"]
    stale = [f"0-{offset}-1-1" for offset in range(0, 4_000, 2)]
    asked = {"ack_ids": [message["ack_id"], *stale]}
    found = await world.other.post(f"{SUB}/ack", json=asked)
    assert found.status == 409
    assert found.json()["stale"] == stale
    assert world.subscription.stats().backlog == 0


async def test_a_client_that_leaves_while_its_answer_comes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, late = AskingLink._take, list[tuple[AskingLink, Frame]]()

    def held_back(self: AskingLink, frame: Frame) -> None:
        if not late and frame.kind is Kind.ANSWER:
            late.append((self, frame))
        else:
            take(self, frame)

    await publish(world.owner)
    monkeypatch.setattr(AskingLink, "_take", held_back)
    receiving = asyncio.create_task(world.other.post(f"{SUB}/receive?wait=20"))
    await until(lambda: bool(late))
    assert world.leased == 1
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    link, frame = late[0]
    await until(lambda: not link._waiters)
    take(link, frame)
    await until(lambda: world.leased == 0)
    (message,) = (await world.owner.post(f"{SUB}/receive")).json()["messages"]
    assert message["delivery_count"] == 1


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_connection_that_ends_before_the_answer_is_sent(
    world: World, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    await publish(world.other)
    assert len((await world.other.post(f"{SUB}/receive?max=1")).json()["messages"]) == 1
    answer, ended = AnsweringLink._send, list[int]()

    def cut(self: AnsweringLink, number: int, reply: Any) -> None:
        if not ended:
            ended.append(number)
            self.pause_writing()
            answer(self, number, reply)
            self.end("the network is cut")
        else:
            answer(self, number, reply)

    receiving = asyncio.create_task(world.other.post(f"{SUB}/receive?wait=20"))
    await until(lambda: world.subscription.describe()["receiving"] == 1)
    monkeypatch.setattr(AnsweringLink, "_send", cut)
    await publish(world.owner, "x" * size)
    (message,) = (await receiving).json()["messages"]
    assert ended
    assert message["offset"] == 1
    assert message["delivery_count"] == 1
    assert world.leased == 2


async def test_an_answer_that_is_lost_on_its_way_is_given_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, lost = AskingLink._take, list[Frame]()

    def cut(self: AskingLink, frame: Frame) -> None:
        if not lost and frame.kind is Kind.ANSWER:
            lost.append(frame)
            self.end("the network is cut")
        else:
            take(self, frame)

    await publish(world.owner, "a")
    await publish(world.owner, "b")
    monkeypatch.setattr(AskingLink, "_take", cut)
    found = (await world.other.post(f"{SUB}/receive?max=1&wait=20")).json()["messages"]
    assert lost
    assert [(one["value"], one["delivery_count"]) for one in found] == [("a", 1)]
    assert world.leased == 1


async def test_a_client_that_leaves_when_one_of_two_partitions_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        await cluster.api.put(TOPIC, json={"partitions": 2})
        await cluster.api.put(SUB, json={"type": "shared", "ack_timeout": 600})
        shown = (await cluster.api.get(TOPIC)).json()["partitions"]
        assert len({one["owner"] for one in shown}) == 2
        for number in (0, 1):
            path = f"{TOPIC}/partitions/{number}/messages"
            assert (await cluster.api.post(path, json={"value": "v"})).status == 200
        subscriptions = [
            await partition.subscription("s")
            for one in cluster.brokers.values()
            for partition in one.broker.ownership.open_partitions()
        ]

        def leased() -> int:
            return sum(one.stats().leased for one in subscriptions)

        take, late = AskingLink._take, list[tuple[AskingLink, Frame]]()

        def held_back(self: AskingLink, frame: Frame) -> None:
            if not late and frame.kind is Kind.ANSWER:
                late.append((self, frame))
            else:
                take(self, frame)

        monkeypatch.setattr(AskingLink, "_take", held_back)
        receiving = asyncio.create_task(cluster.api.post(f"{SUB}/receive?max=10"))
        await until(lambda: bool(late) and leased() == 2)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        link, frame = late[0]
        await until(lambda: not link._waiters)
        take(link, frame)
        await until(lambda: leased() == 0)
