"""A receive over several partitions lost messages for a whole lease, with nothing broken.

It waits at all partitions; the first that has something ends the wait, and what was asked of other
brokers was broken off. An answer that was on its way then was read by nobody: its messages were out
for the ack timeout, came back counted as delivered, and in an exclusive or failover subscription
later ones of their partition had been handed out before them. And the broker that had been asked
noticed only a second later that nobody waited any more, and leased what came until then to nobody,
for a moment. Found as a user: `deliveries()` of a failover subscription of four partitions, on a
busy machine, had its order broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.operations.kinds import Leases, Receive, decode_answer, decode_request
from octavo.broker.operations.links import AskingLink
from tests.support.cluster import Cluster, running_cluster
from tests.support.fake_broker import Api, until

TOPIC = "/v1/topics/public/orders"
SUB = f"{TOPIC}/subscriptions/s"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


async def made(cluster: Cluster, kind: str) -> tuple[Api, int, int]:
    """A broker, a partition that it serves, and one that the other broker serves."""
    await cluster.api.put(TOPIC, json={"partitions": 2})
    await cluster.api.put(SUB, json={"type": kind})
    topic = (await cluster.api.get(TOPIC)).json()
    owners = [one["owner"] for one in topic["partitions"]]
    assert sorted(owners) == sorted(cluster.apis), "the partitions are spread over both brokers"
    return cluster.apis[owners[0]], 0, 1


async def publish(api: Api, partition: int, value: int) -> None:
    answer = await api.post(f"{TOPIC}/partitions/{partition}/messages", json={"value": value})
    assert answer.status == 200, answer


async def leased(api: Api, partition: int) -> int:
    stats = (await api.get(f"{TOPIC}/partitions/{partition}/subscriptions/s")).json()
    return int(stats["leased"])


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_an_answer_that_is_broken_off_is_asked_for_again(
    cluster: Cluster, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, here, there = await made(cluster, kind)
    ask, late = AskingLink.ask, asyncio.Event()

    async def slow(self: AskingLink, payload: bytes, **more: Any) -> bytes:
        answer = await ask(self, payload, **more)
        operation = decode_request(payload).operation
        if isinstance(operation, Receive) and not late.is_set():
            found = decode_answer(operation, answer)
            assert isinstance(found, Leases)
            if found.deliveries:
                late.set()
                await asyncio.sleep(30)  # the network is slow on the way back
        return answer

    monkeypatch.setattr(AskingLink, "ask", slow)
    receiving = asyncio.create_task(api.post(f"{SUB}/receive?wait=20&consumer=c"))
    await asyncio.sleep(0.1)
    await publish(api, there, 1)
    await asyncio.wait_for(late.wait(), 5)
    await publish(api, here, 2)
    got = (await receiving).json()["messages"]
    await publish(api, there, 3)
    got += (await api.post(f"{SUB}/receive?consumer=c&wait=2")).json()["messages"]
    assert [one["value"] for one in got if one["partition"] == there] == [1, 3]
    assert [one["value"] for one in got if one["partition"] == here] == [2]
    assert {one["delivery_count"] for one in got} == {1}


async def test_a_wait_ends_when_its_caller_goes(cluster: Cluster) -> None:
    api, here, _ = await made(cluster, "shared")
    path = f"{TOPIC}/partitions/{here}/subscriptions/s"
    waiting = asyncio.create_task(api.post(f"{path}/receive?wait=20"))
    (broker,) = [one for name, one in cluster.brokers.items() if cluster.apis[name] is api]
    (partition,) = broker.broker.ownership.open_partitions()
    subscription = await partition.subscription("s")
    await until(lambda: subscription.is_in_use)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: not subscription.is_in_use, 0.5)


async def test_what_was_given_again_is_not_taken_back(cluster: Cluster) -> None:
    api, here, _ = await made(cluster, "shared")
    await publish(api, here, 1)
    (broker,) = [one for name, one in cluster.brokers.items() if cluster.apis[name] is api]
    (partition,) = broker.broker.ownership.open_partitions()
    subscription = await partition.subscription("s")
    for again in (False, True):
        (first,) = await subscription.receive("c", messages_max=1, request=f"r{again}")
        if again:
            await subscription.receive("c", messages_max=1, request=f"r{again}")
        await subscription.take_back([first.ack_id])
        assert await leased(api, here) == again
