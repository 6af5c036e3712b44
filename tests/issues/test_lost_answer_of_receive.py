"""A receive whose answer was lost left a gap that a cumulative ack then acknowledged unseen.

Found by random faults (tests/process/test_random_faults.py, seeds 7000 and 7005): the owner handed
60 messages out, the answer never arrived, the client asked again and got the 60 after them. What
lay between was leased until its time was over; `up_to` acknowledged it though nobody had seen it.
A receive now carries a number of its own, and asking again under it gives the same messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncClient
from octavo.broker.types import SubscriptionSettings
from octavo.client.wire import NoAnswer
from tests.support.cluster import Cluster, batch, make_topic, owned, running_cluster


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as found:
        yield found


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_asked_again_it_gives_the_same(brokers: Cluster, kind: Any) -> None:
    broker = (await brokers.start("A")).broker
    partition = await owned(broker, await make_topic(broker))
    await partition.publish(batch(9))
    settings = SubscriptionSettings(type=kind)
    await broker.topics.create_subscription(partition.name.topic_name, "s", settings)
    subscription = await partition.subscription("s")

    async def receive(request: str, consumer: str = "c") -> list[Any]:
        return await subscription.receive(consumer, messages_max=3, request=request)

    first = await receive("r1")
    assert [one.offset for one in first] == [0, 1, 2]
    assert await receive("r1") == first, "the same, under the same lease, not counted again"
    if kind == "shared":
        assert [one.offset for one in await receive("r1", "other")] == [3, 4, 5]
    await subscription.acknowledge([first[0].ack_id])
    assert await receive("r1") == first[1:], "what is acked does not come again"
    await subscription.acknowledge([one.ack_id for one in first])
    following = await receive("r1")
    assert following[0].offset == (6 if kind == "shared" else 3), "then it is a new receive"
    await subscription.seek(0)
    assert [one.offset for one in await receive("r1")] == [0, 1, 2], "a seek voids what was out"
    assert [one.offset for one in await receive("")] == [3, 4, 5]
    assert [one.offset for one in await receive("")] == [6, 7, 8], "without a number each is new"


class LosesAnswers:
    """Lets a call to `receive` happen, and then loses its answer; every second time."""

    def __init__(self, client: AsyncClient) -> None:
        self.lost = 0
        self._calls = 0
        self._once = client.transport._once
        client.transport._once = self  # type: ignore[method-assign, assignment]

    async def __call__(self, url: str, method: str, path: str, *rest: Any) -> Any:
        answer = await self._once(url, method, path, *rest)
        if path.endswith("/receive"):
            self._calls += 1
            if self._calls % 2:
                self.lost += 1
                raise NoAnswer("the answer was lost")
        return answer


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


async def test_a_cumulative_consumer_sees_every_message(cluster: Cluster) -> None:
    urls = [api.url for api in cluster.apis.values()]
    async with AsyncClient(urls) as client:
        await client.create_topic("lossy", partitions=2)
        producer = await client.producer("lossy")
        for number in range(100):
            await producer.send(str(number), partition=1)
        await producer.flush()
        await producer.close()
        subscription = await client.subscribe("lossy", "s")
        faults = LosesAnswers(client)
        seen: list[int] = []
        while len(seen) < 100:
            received = await subscription.receive(30, wait_s=2, partition=1)
            assert received, f"{len(seen)} of 100 came"
            seen += [one.offset for one in received]
            await subscription.ack_up_to(received[-1])
        assert seen == [*range(100)]
        assert faults.lost >= 4
