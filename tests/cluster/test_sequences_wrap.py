"""A producer's sequences wrap at 2³¹, over real brokers. Both sides are made to believe that two
thousand million messages were published."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Literal

import pytest

from octavo import AsyncClient
from octavo.broker.state.producers import SEQUENCE_MODULUS, ProducerState, Remembered
from octavo.broker.types import PartitionName
from octavo.client.producer import Producer
from octavo.client.wire import NoAnswer
from tests.support.cluster import Cluster, running_cluster

NAME = PartitionName("public", "t", 0)
PRODUCER_ID = 7
BEFORE = SEQUENCE_MODULUS - 90


def lose_answers(client: AsyncClient, rng: random.Random) -> list[str]:
    once: Any = client.transport._once
    lost: list[str] = []

    async def some(url: str, method: str, path: str, *rest: Any) -> Any:
        answer = await once(url, method, path, *rest)
        if method == "POST" and rng.random() < 0.3:
            lost.append(path)
            raise NoAnswer("connection lost")
        return answer

    client.transport._once = some  # type: ignore[method-assign, assignment]
    return lost


async def published_before(cluster: Cluster) -> str:
    owner = await cluster.owner_of("/v1/topics/public/t/partitions/0")
    partition = await cluster.brokers[owner].broker.ownership.partition(NAME)
    publisher = partition._publisher
    assert publisher is not None
    for table in (publisher._producers, publisher.stored_producers):
        table.restore(ProducerState(PRODUCER_ID, 0, (Remembered(BEFORE - 1, BEFORE - 1, -1),)))
    return owner


def going_on(producer: Producer) -> None:
    producer._queues[0]._sequence = BEFORE


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["batch", "ndjson"])
async def test_each_message_once_over_the_end_of_the_numbers(
    tmp_path: Path, encoding: Literal["batch", "ndjson"]
) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        urls = [api.url for api in cluster.apis.values()]
        async with AsyncClient(urls, rng=random.Random(3)) as client:
            await client.create_topic("t")
            owner = await published_before(cluster)
            lost = lose_answers(client, random.Random(5))
            producer = await client.producer(
                "t", producer_id=PRODUCER_ID, encoding=encoding, batch_bytes=300, linger_ms=0
            )
            going_on(producer)
            for number in range(100):
                await producer.send(f"{number:03d}")
            await producer.flush()
            assert producer._queues[0]._sequence == 10
            await cluster.stop_broker(owner)
            for number in range(100, 200):
                await producer.send(f"{number:03d}")
            await producer.close()
            assert lost
            stored = [f"{number:03d}" for number in range(200)]
            assert [message.text() async for message in client.messages("t")] == stored
            again = await client.producer(
                "t", producer_id=PRODUCER_ID, encoding=encoding, batch_bytes=450, linger_ms=0
            )
            going_on(again)
            receipts = [await again.send(text) for text in [*stored, "more"]]
            await again.close()
            places = [await receipt for receipt in receipts]
            assert all(one.duplicate for one in places[:-1])
            assert [message.text() async for message in client.messages("t")] == [*stored, "more"]
