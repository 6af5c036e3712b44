"""Unused topics are removed as their policy says, and never by surprise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.broker.errors import PartitionMoving
from octavo.broker.partition.partition import Partition
from octavo.broker.types import TopicName, TopicSettings
from octavo.metadata.topics import Policies
from tests.support.cluster import Cluster, batch, owned, running_cluster

TOPIC = "/v1/topics/public/t"
IDLE = {"delete_when_inactive": 1, "partitions": 2}


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


async def gone(cluster: Cluster, within_s: float) -> bool:
    """Return whether the topic goes within that time. Asking for its settings does not use it."""
    try:
        async with asyncio.timeout(within_s):
            while (await cluster.api.get(TOPIC)).status != 404:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        return False
    return True


async def test_a_topic_goes_whose_partitions_nobody_uses(two: Cluster) -> None:
    assert (await two.api.put(TOPIC, json=IDLE)).status == 201
    for n in range(2):
        for _ in range(3):
            answer = await two.api.post(f"{TOPIC}/partitions/{n}/messages", b"x", "text/plain")
            assert answer.status == 200
    owners = {await two.owner_of(f"{TOPIC}/partitions/{n}") for n in range(2)}
    assert len(owners) == 2, "one of them has to be asked over HTTP"
    assert await gone(two, 20)
    assert (await two.api.post(f"{TOPIC}/messages", b"x", "text/plain")).status == 404


async def test_a_topic_stays_that_has_a_subscription_a_producer_or_a_reader(two: Cluster) -> None:
    assert (await two.api.put(TOPIC, json=IDLE)).status == 201
    assert (await two.api.put(f"{TOPIC}/subscriptions/s")).status == 201
    assert not await gone(two, 2.5), "a subscription holds it"
    assert (await two.api.call("DELETE", f"{TOPIC}/subscriptions/s")).status == 204

    async def use(call: str) -> None:
        while True:
            path = f"{TOPIC}/partitions/1/messages"
            answer = await (
                two.api.get(path) if call == "read" else two.api.post(path, b"x", "text/plain")
            )
            assert answer.status in (200, 204), answer
            await asyncio.sleep(0.3)

    for call in ("publish", "read"):
        user = asyncio.create_task(use(call))
        assert not await gone(two, 2.5), f"{call} of one partition holds all"
        assert not user.done()
        user.cancel()
        await asyncio.gather(user, return_exceptions=True)
    assert (await two.api.call("PATCH", TOPIC, json={"delete_when_inactive": None})).status == 200
    assert not await gone(two, 2.0), "without the policy nothing goes"


async def test_who_comes_at_the_very_end_is_refused_and_keeps_the_topic(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    name = TopicName("public", "late")
    await broker.topics.create(name, TopicSettings(policies=Policies(inactive_ms=50)))
    partition = await owned(broker, name.partition(0))
    await partition.publish(batch())
    await asyncio.sleep(0.1)
    cluster.clock.now_ms += 1_000
    ask, asked = Partition.is_unused, list[float]()

    def is_unused(self: Partition, for_ms: int, retire_s: float = 0.0) -> bool:
        asked.append(retire_s)
        if len(asked) == 3:  # A client came after the owners were asked to stop serving.
            with pytest.raises(PartitionMoving, match="delete_when_inactive"):
                self._check_open()
        return ask(self, for_ms, retire_s)

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(Partition, "is_unused", is_unused)
        await broker.inactive.look(partition)
    assert [retire_s > 0 for retire_s in asked] == [False, True, True]
    await partition.publish(batch())
    assert (await broker.topics.newest(name)).name == name
    await asyncio.sleep(0.1)
    cluster.clock.now_ms += 1_000
    await broker.inactive.look(partition)
    assert not await broker.topics.names_in("public")
