"""The Python client at the tail of a partition: one stream, through all changes of its broker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.errors import OffsetTrimmed
from octavo.broker.http.api import read
from octavo.broker.partition.partition import Partition
from octavo.client.client import AsyncClient
from octavo.client.errors import ApiError, NotFound, TopicReplaced, Trimmed
from octavo.client.sync import Client
from octavo.client.transport import Transport
from tests.support.cluster import Cluster, running_cluster
from tests.support.http_api import until

TOPIC = "/v1/topics/public/t/partitions/0"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        async with AsyncClient(found.api.url) as client:
            await client.create_topic("t")
        yield found


def urls_of(cluster: Cluster) -> list[str]:
    return [api.url for api in cluster.apis.values()]


async def publish(cluster: Cluster, first: int, count: int) -> None:
    async with AsyncClient(urls_of(cluster)) as client:
        for number in range(first, first + count):
            await client.publish("t", b"%d" % number)


class Follower:
    def __init__(self, client: AsyncClient, **how: Any) -> None:
        self.offsets: list[int] = []
        self.task = asyncio.create_task(self._run(client, how))

    async def _run(self, client: AsyncClient, how: dict[str, Any]) -> None:
        async with aclosing(client.pages("t", follow=True, **how)) as pages:
            async for page in pages:
                assert [message.value for message in page] == [b"%d" % m.offset for m in page]
                self.offsets += [message.offset for message in page]

    async def __aenter__(self) -> Follower:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def streams_of(cluster: Cluster) -> dict[str, int]:
    return {
        name: running.server._services.streams.taken
        for name, running in cluster.brokers.items()
        if running.server is not None and not running.gone
    }


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the client's requests by calls, not by streams."""
    asked: list[str] = []
    call = Transport.call

    async def noted(self: Transport, method: str, path: str, **how: Any) -> Any:
        asked.append(f"{method} {path}")
        return await call(self, method, path, **how)

    monkeypatch.setattr(Transport, "call", noted)
    return asked


async def test_messages_come_without_calls(cluster: Cluster, calls: list[str]) -> None:
    await publish(cluster, 0, 3)
    owner = await cluster.owner_of(TOPIC)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1)
        assert follower.offsets == [0, 1, 2]
        assert streams_of(cluster)[owner] == 1, "it goes straight to the owner"
        calls.clear()
        await publish(cluster, 3, 20)
        await until(lambda: len(follower.offsets) == 23)
        assert follower.offsets == [*range(23)]
        assert not [one for one in calls if one.startswith("GET") and "messages" in one]
    await until(lambda: sum(streams_of(cluster).values()) == 0)


async def test_it_goes_on_through_a_killed_owner(cluster: Cluster) -> None:
    await publish(cluster, 0, 3)
    owner = await cluster.owner_of(TOPIC)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: len(follower.offsets) == 3 and sum(streams_of(cluster).values()) == 1)
        running = cluster.brokers[owner]
        assert running.server is not None
        await running.vanish()
        await running.server._cut_off()
        cluster.apis.pop(owner)
        await publish(cluster, 3, 10)
        await until(lambda: len(follower.offsets) == 13, 20)
        await until(lambda: sum(streams_of(cluster).values()) == 1, 20)
        await publish(cluster, 13, 10)
        await until(lambda: len(follower.offsets) == 23, 20)
        assert follower.offsets == [*range(23)]
        assert not follower.task.done()


async def test_it_goes_on_when_a_broker_stops(cluster: Cluster) -> None:
    await publish(cluster, 0, 1)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1)
        await cluster.stop_broker(await cluster.owner_of(TOPIC))
        await publish(cluster, 1, 5)
        await until(lambda: len(follower.offsets) == 6, 20)
        assert follower.offsets == [*range(6)]


@pytest.mark.parametrize("start", ["latest", 2])
async def test_from_where_it_is_told(cluster: Cluster, start: str | int) -> None:
    await publish(cluster, 0, 4)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client, start=start) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1)
        await publish(cluster, 4, 2)
        first = 4 if start == "latest" else 2
        await until(lambda: follower.offsets[-1:] == [5])
        assert follower.offsets == [*range(first, 6)]


async def test_nothing_for_long(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "LIVES_S", 0.1)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1)
        await until(lambda: sum(streams_of(cluster).values()) == 0)
        monkeypatch.setattr(read, "LIVES_S", 20.0)
        await publish(cluster, 0, 1)
        await until(lambda: sum(streams_of(cluster).values()) == 1)
        await publish(cluster, 1, 2)
        await until(lambda: follower.offsets == [0, 1, 2])


async def test_where_there_are_too_many_streams(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.start_broker("small", streams_max=1)
        async with AsyncClient(cluster.api.url) as client:
            await client.create_topic("t")
            async with Follower(client) as one, Follower(client) as two:
                await until(lambda: sum(streams_of(cluster).values()) == 1)
                await publish(cluster, 0, 10)
                await until(lambda: len(one.offsets) == len(two.offsets) == 10)
                assert one.offsets == two.offsets == [*range(10)]


async def test_a_slow_reader_misses_nothing(tmp_path: Path) -> None:
    """Its stream is not read and cut off at last; the reader continues all the same."""
    size, count = 200_000, 150
    async with running_cluster(tmp_path) as cluster:
        await cluster.start_broker("impatient", stall_timeout_ms=300)
        async with AsyncClient(cluster.api.url) as client:
            await client.create_topic("t")
            offsets: list[int] = []
            found: Any = client.messages("t", follow=True)
            async with aclosing(found) as messages:
                first = asyncio.ensure_future(anext(messages))
                await until(lambda: sum(streams_of(cluster).values()) == 1)
                async with client.producer("t") as producer:
                    for number in range(count):
                        await producer.send(b"%d " % number + b"x" * size)
                offsets.append((await first).offset)
                server = cluster.brokers["impatient"].server
                assert server is not None
                await until(lambda: sum(streams_of(cluster).values()) == 0, 20)
                async for message in messages:
                    assert (message.value or b"").startswith(b"%d " % message.offset)
                    offsets.append(message.offset)
                    if len(offsets) == count:
                        break
            assert offsets == [*range(count)]


async def test_a_deleted_topic(cluster: Cluster) -> None:
    await publish(cluster, 0, 1)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1 and follower.offsets == [0])
        await client.delete_topic("t")
        with pytest.raises(NotFound, match="topic"):
            await asyncio.wait_for(asyncio.shield(follower.task), 20)


async def test_a_topic_made_anew(cluster: Cluster) -> None:
    await publish(cluster, 0, 3)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1 and len(follower.offsets) == 3)
        async with AsyncClient(urls_of(cluster)) as other:
            await other.delete_topic("t")
            await other.create_topic("t")
            await publish(cluster, 0, 5)
        with pytest.raises((NotFound, TopicReplaced)):
            await asyncio.wait_for(asyncio.shield(follower.task), 20)
        assert follower.offsets == [0, 1, 2]


async def test_an_offset_ahead(cluster: Cluster) -> None:
    await publish(cluster, 0, 1)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client, start=7) as follower:
        with pytest.raises(ApiError, match="7") as caught:
            await asyncio.wait_for(asyncio.shield(follower.task), 20)
        assert caught.value.code == "offset-beyond-end"


async def test_trimmed_while_it_follows(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await publish(cluster, 0, 2)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1 and len(follower.offsets) == 2)

        async def trimmed(*_: Any, **__: Any) -> Any:
            raise OffsetTrimmed("gone", 9)

        monkeypatch.setattr(Partition, "read", trimmed)
        await publish(cluster, 2, 1)
        with pytest.raises(Trimmed) as caught:
            await asyncio.wait_for(asyncio.shield(follower.task), 20)
        assert caught.value.earliest == 9


async def test_the_synchronous_client(cluster: Cluster) -> None:
    await publish(cluster, 0, 2)
    offsets: list[int] = []
    url = cluster.api.url

    def run() -> None:
        with Client(url) as client:
            for message in client.messages("t", follow=True):
                offsets.append(message.offset)
                if message.offset == 4:
                    break

    thread = threading.Thread(target=run)
    thread.start()
    await until(lambda: len(offsets) == 2 and sum(streams_of(cluster).values()) == 1)
    began = time.monotonic()
    await publish(cluster, 2, 3)
    await until(lambda: len(offsets) == 5)
    assert time.monotonic() - began < 5
    await asyncio.to_thread(thread.join)
    assert offsets == [*range(5)]
    await until(lambda: sum(streams_of(cluster).values()) == 0)
