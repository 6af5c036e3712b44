"""The Python client did not say which topic of a name it meant.

A producer whose topic had been deleted and made again was told of a `SequenceGap`, a reader at
offset 20 of the dead topic read the new one in silence, and an ack of the dead one was a stale
lease. Producers, readers and consumers are bound to the topic that they saw first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo import AsyncClient, Client, TopicReplaced
from octavo.client.errors import Conflict
from tests.support.cluster import Cluster, running_cluster

WHAT_TO_DO = "deleted, and another one was made.*make a new producer, subscribe again"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


def _urls(cluster: Cluster) -> list[str]:
    return [api.url for api in cluster.apis.values()]


async def _anew(cluster: Cluster, count: int, partitions: int = 1) -> None:
    """Somebody else deletes the topic, makes it again and publishes."""
    async with AsyncClient(_urls(cluster)[-1]) as other:
        await other.delete_topic("t")
        await other.create_topic("t", partitions=partitions)
        await other.publish_many("t", [(None, f"new-{number}") for number in range(count)])


@pytest.mark.parametrize("encoding", ["batch", "ndjson"])
async def test_a_producer(cluster: Cluster, encoding: str) -> None:
    async with AsyncClient(_urls(cluster)) as client:
        await client.create_topic("t")
        producer = await client.producer("t", encoding=encoding, batch_bytes=1)  # type: ignore[arg-type]
        for number in range(5):
            await (await producer.send(f"old-{number}"))
        await _anew(cluster, 3)
        receipts = [producer.send_nowait("late") for _ in range(10)]
        for receipt in receipts:
            with pytest.raises(TopicReplaced, match=WHAT_TO_DO):
                await receipt
        with pytest.raises(TopicReplaced):
            await producer.send("later")
        with pytest.raises(TopicReplaced):
            await producer.close()
        fresh = await client.producer("t")
        await (await fresh.send("meant"))
        await fresh.close()
        found = [message.text() for message in await client.read("t")]
        assert found == ["new-0", "new-1", "new-2", "meant"]


async def test_publish_stands_alone(cluster: Cluster) -> None:
    async with AsyncClient(_urls(cluster)) as client:
        await client.create_topic("t")
        await client.publish_many("t", [(None, "old")] * 5)
        await _anew(cluster, 0, partitions=3)
        at = await asyncio.gather(*(client.publish("t", f"{number}") for number in range(20)))
        assert len(set(at)) == 20
        assert not any(position.duplicate for position in at)
        await _anew(cluster, 0)
        many = await client.publish_many("t", [("key", f"{number}") for number in range(20)])
        assert [position.offset for position in many] == [*range(20)]


async def test_a_reader(cluster: Cluster) -> None:
    async with AsyncClient(_urls(cluster)) as client, AsyncClient(_urls(cluster)) as restarted:
        made = await client.create_topic("t")
        await client.publish_many("t", [(None, f"old-{number}") for number in range(20)])
        follower = client.messages("t", follow=True)
        assert [(await anext(follower)).offset for _ in range(20)] == [*range(20)]
        assert len(await client.read("t", limit=20)) == 20
        await _anew(cluster, 25)
        with pytest.raises(TopicReplaced, match=WHAT_TO_DO):
            await anext(follower)
        for _ in range(2):  # asked again it is no other topic
            with pytest.raises(TopicReplaced):
                await client.read("t", start=20)
            with pytest.raises(TopicReplaced):
                await client.offset("t", at="7")
        with pytest.raises(TopicReplaced):
            await restarted.read("t", start=20, incarnation=made.incarnation)
        with pytest.raises(TopicReplaced):
            await anext(restarted.messages("t", start=20, incarnation=made.incarnation))
        assert (await client.read("t"))[0].text() == "new-0"  # begun anew
        assert (await client.read("t", start=20))[0].text() == "new-20"
        now = await restarted.topic("t")
        assert len(await restarted.read("t", start=20, incarnation=now.incarnation)) == 5


async def test_a_consumer(cluster: Cluster) -> None:
    async with AsyncClient(_urls(cluster)) as client:
        await client.create_topic("t", partitions=2)
        await client.publish_many("t", [(str(number), "old") for number in range(20)])
        consumer = await client.subscribe("t", "s", type="shared")
        late = client.subscription("t", "s")
        handed = await consumer.receive(10)
        assert await late.receive(1) is not None
        await _anew(cluster, 5, partitions=2)
        async with AsyncClient(_urls(cluster)) as other:
            await other.subscribe("t", "s", type="shared")
        calls = [
            consumer.ack(handed), consumer.nack(handed), consumer.extend(handed),
            consumer.ack_up_to(handed[0]), consumer.receive(), consumer.receive(partition=1),
            consumer.seek("earliest"), consumer.stats(), consumer.delete(), late.receive(),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(TopicReplaced, match=WHAT_TO_DO):
                await call
        again = await client.subscribe("t", "s", type="shared")
        assert len(await again.receive(10, wait_s=5)) > 0, "nothing of the new one was touched"


async def test_a_loop_over_deliveries(cluster: Cluster) -> None:
    async with AsyncClient(_urls(cluster)) as client:
        await client.create_topic("t")
        await client.publish_many("t", [(None, "old")] * 3)
        consumer = await client.subscribe("t", "s")
        seen: list[str] = []

        async def loop() -> None:
            async for delivery in consumer.deliveries(idle_s=20):
                seen.append(delivery.text())
                if len(seen) == 2:
                    await _anew(cluster, 5)

        with pytest.raises(TopicReplaced):  # no `AcksUnsent`: nothing of it comes again
            await loop()
        assert set(seen) == {"old"}
        left = await client.subscribe("t", "s")
        deliveries = left.deliveries(idle_s=20)
        assert (await anext(deliveries)).text() == "new-0"
        await _anew(cluster, 5)
        await deliveries.aclose()  # there is nobody left to whom it could be given back


async def test_programs_without_an_event_loop(cluster: Cluster) -> None:
    urls = _urls(cluster)

    def program() -> None:
        with Client(urls) as client:
            made = client.create_topic("t")
            producer = client.producer("t", linger_ms=0)
            assert producer.send("old").result().offset == 0
            consumer = client.subscribe("t", "s")
            (handed,) = consumer.receive(wait_s=5)
            messages = client.messages("t", follow=True)
            assert next(messages).text() == "old"
            client.delete_topic("t")
            client.create_topic("t")
            with pytest.raises(TopicReplaced):
                producer.send("late").result()
            with pytest.raises(TopicReplaced):
                producer.flush()
            with pytest.raises(Conflict, match=WHAT_TO_DO):  # as it was before: a 409
                consumer.ack(handed)
            with pytest.raises(TopicReplaced):
                next(messages)
            with pytest.raises(TopicReplaced):
                client.read("t", start=0, incarnation=made.incarnation)
            assert client.publish("t", "new").offset == 0

    await asyncio.to_thread(program)
