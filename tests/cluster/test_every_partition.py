"""A topic of several partitions is read whole; a call on one partition asks which.
`client.messages` and `client.read` silently read partition 0 only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from octavo.broker.http.api import read as broker_read
from octavo.broker.types import StoredBatch
from octavo.client import every_partition, following, reading
from octavo.client.client import AsyncClient
from octavo.client.errors import InvalidCall, NotFound
from octavo.client.types import Message
from octavo.protocol import leased
from tests.support.cluster import Cluster, running_cluster

LATE = "2100-01-01T00:00:00Z"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient([api.url for api in cluster.apis.values()]) as found:
        await found.create_topic("four", partitions=4)
        await found.create_topic("one")
        yield found


async def publish(client: AsyncClient, topic: str, first: int, count: int, parts: int = 4) -> None:
    for number in range(first, first + count):
        await client.publish(topic, b"%d" % number, partition=number % parts)


def values(messages: list[Message]) -> list[int]:
    return [int(message.value or b"") for message in messages]


async def test_all_partitions_one_after_the_other(client: AsyncClient) -> None:
    await publish(client, "four", 0, 12)
    in_order = [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    assert values([one async for one in client.messages("four")]) == in_order
    assert values(await client.read("four")) == in_order
    assert values(await client.read("four", limit=5)) == in_order[:5]
    assert values([one async for one in client.messages("four", partition=2)]) == [2, 6, 10]
    assert values(await client.read("four", partition=2, start=1)) == [6, 10]
    assert await client.read("four", start="latest") == []
    assert await client.read("four", start=LATE) == []
    assert values(await client.read("four", start="1970-01-01T00:00:00Z")) == in_order


@pytest.mark.parametrize("start", [0, 3, "0", "1:0:0"])
async def test_a_place_in_one_partition_needs_the_partition(
    client: AsyncClient, start: str | int
) -> None:
    await publish(client, "four", 0, 4)
    told = r"public/four has 4 partitions, and .*say which partition, 0 to 3"
    with pytest.raises(InvalidCall, match=told):
        await client.read("four", start=start)
    for follow in (False, True):
        with pytest.raises(InvalidCall, match=told):
            await anext(client.messages("four", start=start, follow=follow))
    with pytest.raises(InvalidCall, match=told):
        await client.truncate_topic("four", start)
    with pytest.raises(InvalidCall, match=told):
        await client.offset("four", at="latest")
    with pytest.raises(InvalidCall, match=told):
        await anext(client.body("four", 0))
    for wrong in (-1, True, "0"):
        with pytest.raises(InvalidCall, match="a partition must be a number"):
            await client.read("four", partition=wrong)  # type: ignore[arg-type]


async def test_one_partition_need_not_be_named(client: AsyncClient) -> None:
    await publish(client, "one", 0, 5, parts=1)
    assert values(await client.read("one", start=3)) == [3, 4]
    assert values([one async for one in client.messages("one", start=2)]) == [2, 3, 4]
    assert await client.offset("one") == 5
    assert b"".join([piece async for piece in client.body("one", 4)]) == b"4"
    with pytest.raises(NotFound):
        await client.read("none")


async def test_a_read_of_all_waits_for_the_first_of_any(client: AsyncClient) -> None:
    waiting = asyncio.create_task(client.read("four", wait_s=50))
    await asyncio.sleep(0)
    await client.publish("four", b"3", partition=3)
    assert values(await waiting) == [3]
    assert await client.read("four", start="latest", wait_s=0.05) == []


async def test_all_are_followed_also_those_that_are_added(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(every_partition, "LOOK_AGAIN_S", 0.05)
    await publish(client, "four", 0, 8)
    found: list[Message] = []

    async def until(count: int, messages: AsyncIterator[Message]) -> None:
        while len(found) < count:
            found.append(await anext(messages))

    async with aclosing(client.messages("four", follow=True)) as messages, asyncio.timeout(60):
        await until(8, messages)
        assert sorted(values(found)) == [*range(8)]
        await publish(client, "four", 8, 4)
        await until(12, messages)
        await client.update_topic("four", partitions=5)
        async with AsyncClient(client.transport.urls) as other:
            await other.publish("four", b"12", partition=4)
        await until(13, messages)
    assert found[-1].partition == 4
    for number in range(4):
        of_one = values([one for one in found if one.partition == number])
        assert of_one == sorted(of_one), "each partition is in order"
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not any("follow partition" in name or "look for" in name for name in names)


async def test_latest_is_one_moment_for_all(client: AsyncClient) -> None:
    """A message that is published between two reads is in the second, whatever its partition."""
    await publish(client, "four", 0, 4)
    async with aclosing(client.messages("four", start="latest", follow=True)) as messages:
        first = asyncio.create_task(anext(messages))
        await asyncio.sleep(0)
        while not first.done():
            await client.publish("four", b"100", partition=1)
            await asyncio.sleep(0.01)
        assert (await first).value == b"100"


async def test_a_follower_hears_that_its_topic_is_gone(client: AsyncClient) -> None:
    await publish(client, "four", 0, 1)
    async with aclosing(client.messages("four", follow=True)) as messages, asyncio.timeout(60):
        await anext(messages)
        await client.delete_topic("four")
        with pytest.raises(NotFound):
            await anext(messages)


async def test_every_message_has_its_id(client: AsyncClient, cluster: Cluster) -> None:
    subscription = await client.subscribe("one", "s")
    await client.publish_many("one", [(None, b"%d" % number) for number in range(5)])
    read = await client.read("one")
    received = [one async for one in subscription.deliveries(idle_s=0.5)]
    assert [one.id for one in read] == [one.id for one in received]
    assert all(part.isdigit() for one in read for part in one.id.split(":"))
    assert len({one.id for one in read}) == 5
    for message in read:
        assert await client.offset("one", at=message.id) == message.offset
    async with aclosing(client.messages("one", follow=True)) as messages, asyncio.timeout(60):
        followed = [await anext(messages) for _ in range(5)]
        for number in range(5, 12):
            await client.publish("one", b"%d" % number)
            followed.append(await anext(messages))
    assert [one.id for one in followed] == [one.id for one in await client.read("one")]
    for api in cluster.apis.values():
        async with AsyncClient(api.url) as other:
            assert [one.id for one in await other.read("one")] == [one.id for one in followed]


async def test_entries_that_no_header_holds_come_in_more_answers(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer ends where clients would refuse its header as too long."""
    for number in range(9):
        await client.publish("one", b"%d" % number)
    entries = broker_read._entries

    def of_ledgers_of_their_own(batches: list[StoredBatch]) -> list[tuple[int, int]]:
        return [(entry, 0) for _, entry in entries(batches)]

    monkeypatch.setattr(broker_read, "_entries", of_ledgers_of_their_own)
    monkeypatch.setattr(leased, "ENTRY_RUNS_MAX", 4)
    calls = 0
    read = reading.read_messages

    async def counted(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        return await read(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(following, "read_messages", counted)
    found = [one async for one in client.messages("one")]
    assert values(found) == [*range(9)]
    assert [one.id for one in found] == [f"{number}:0:0" for number in range(9)]
    assert calls == 4, "4, 4 and 1 messages, and the end"
