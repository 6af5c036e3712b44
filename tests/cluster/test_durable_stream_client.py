"""Durable streams from Python: appended to once, read from any place, followed to their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncClient, Client, Conflict, InvalidCall, NotFound, TopicReplaced, Trimmed
from octavo.client.durable import AsyncStream, StreamPart
from octavo.client.errors import ApiError, Unreachable
from octavo.client.wire import Body, HttpWire, NoAnswer, Reply, Streamed
from tests.support.cluster import Cluster, running_cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient([api.url for api in cluster.apis.values()]) as found:
        yield found


async def values_of(stream: AsyncStream) -> list[Any]:
    return (await stream.read()).values


async def test_json_is_appended_and_read_from_any_place(client: AsyncClient) -> None:
    events = client.stream("public/events")
    with pytest.raises(NotFound, match="there is no stream public/events"):
        await events.head()
    assert await events.create() is True
    assert await events.create() is False
    first = await events.append({"a": 1})
    assert first.duplicate is False
    assert (await events.append([2, 3])).next_offset > first.next_offset
    last = await events.append_many([None, "x"])
    part = await events.read()
    assert part.values == [{"a": 1}, [2, 3], None, "x"], "a list is one message"
    assert (part.next_offset, part.up_to_date, part.closed) == (last.next_offset, True, False)
    assert (await events.read(first.next_offset)).values == [[2, 3], None, "x"]
    assert (await events.read("now")).values == []
    with pytest.raises(InvalidCall, match="JSON has no object"):
        await events.append(object())
    with pytest.raises(InvalidCall, match="no values to append"):
        await events.append_many([])
    with pytest.raises(Conflict):
        await client.stream("events").create("text/plain")


async def test_bytes_are_joined_and_may_be_of_any_kind(client: AsyncClient) -> None:
    story = client.stream("story")
    await story.create("text/plain", ttl_s=3_600)
    await story.append("Once upon a time")
    await story.append(b" there was a log.")
    found = await client.stream("story").read()
    assert found.data == b"Once upon a time there was a log."
    with pytest.raises(InvalidCall, match="is not JSON"):
        assert found.values
    with pytest.raises(InvalidCall, match="bytes or text"):
        await story.append({"a": 1})
    with pytest.raises(InvalidCall, match="bytes or text"):
        await story.close(5)
    with pytest.raises(InvalidCall, match="one by one"):
        await story.append_many([b"x"])
    said = await story.head()
    assert (said.content_type, said.ttl_s, said.expires_at) == ("text/plain", 3_600, None)
    assert (said.next_offset, said.closed) == (found.next_offset, False)
    until = datetime(2100, 1, 1, tzinfo=UTC)
    await client.stream("later").create(expires_at=until)
    assert (await client.stream("later").head()).expires_at == until
    with pytest.raises(InvalidCall, match="without a zone"):
        await client.stream("later").create(expires_at=datetime(2100, 1, 1))


async def test_followed_it_gives_all_as_it_comes_and_ends_with_the_stream(
    client: AsyncClient,
) -> None:
    events = client.stream("events")
    await events.create()
    await events.append(0)
    seen: list[Any] = []
    parts: list[StreamPart] = []

    async def follow() -> None:
        async for part in client.stream("events").follow():
            seen.extend(part.values)
            parts.append(part)

    follower = asyncio.create_task(follow())
    for number in range(1, 20):
        await events.append(number)
    assert await events.close("the end") == await events.close()
    async with asyncio.timeout(20):
        await follower
    assert seen == [*range(20), "the end"]
    assert parts[-1].closed
    (last,) = [part async for part in events.follow(parts[-1].next_offset)]
    assert last.values == []
    with pytest.raises(Conflict) as refused:
        await events.append("too late")
    assert refused.value.code == "stream-closed"
    assert (await events.head()).closed


async def test_a_fork_goes_its_own_way_and_outlives_its_source(client: AsyncClient) -> None:
    events = client.stream("events")
    await events.create()
    cut = (await events.append(1)).next_offset
    await events.append(2)
    again, whole = await events.fork("again", cut), await events.fork("whole")
    await again.append("mine")
    await events.append(3)
    assert await values_of(again) == [1, "mine"]
    assert await values_of(whole) == [1, 2]
    await events.delete()
    with pytest.raises(Trimmed):
        await events.read()
    assert await values_of(whole) == [1, 2]
    await again.delete()
    await whole.delete()
    with pytest.raises(NotFound):
        await whole.read()


async def test_one_of_the_same_name_is_another_one(client: AsyncClient) -> None:
    events, other = client.stream("events"), client.stream("events")
    await events.create()
    await events.append(1)
    await other.delete()
    await other.create()
    await other.append("another")
    with pytest.raises(TopicReplaced):
        await events.append(2)
    assert await events.create() is False, "now it means that one"
    await events.append(3)
    assert await values_of(events) == ["another", 3]


async def test_an_order_of_all_writers(client: AsyncClient) -> None:
    one, two = client.stream("events"), client.stream("events")
    await one.create()
    await one.append("first", seq="2026-01")
    await two.append("second", seq="2026-02")
    with pytest.raises(Conflict):
        await one.append("late", seq="2026-01")
    await one.append("no word, no order")
    assert await values_of(one) == ["first", "second", "no word, no order"]


class Torn:
    """HTTP whose answers to appends may get lost, whether they took effect or not."""

    def __init__(self) -> None:
        self.inner = HttpWire()
        self.lose = 0
        self.seen: list[tuple[str, str]] = []

    async def send(
        self, method: str, url: str, params: Mapping[str, str], body: Body,
        headers: Mapping[str, str], *, timeout_s: float, follow: bool = True,
    ) -> Reply:  # fmt: skip
        reply = await self.inner.send(
            method, url, params, body, headers, timeout_s=timeout_s, follow=follow
        )
        if method == "POST":
            self.seen.append((headers["Producer-Epoch"], headers["Producer-Seq"]))
            if self.lose:
                self.lose -= 1
                raise NoAnswer("the answer was lost")
        return reply

    def stream(
        self, url: str, params: Mapping[str, str], headers: Mapping[str, str], *, quiet_s: float
    ) -> AbstractAsyncContextManager[Streamed]:
        return self.inner.stream(url, params, headers, quiet_s=quiet_s)

    async def close(self) -> None:
        await self.inner.close()


async def test_an_append_whose_answer_was_lost_is_stored_once(cluster: Cluster) -> None:
    wire = Torn()
    async with AsyncClient([api.url for api in cluster.apis.values()], wire=wire) as client:
        events = client.stream("events")
        await events.create()
        wire.lose = 2
        assert (await events.append(1)).duplicate is True
        assert (await events.append(2)).duplicate is False
        assert await values_of(events) == [1, 2]
        assert wire.seen == [("0", "0")] * 3 + [("0", "1")]


async def test_after_one_of_which_nobody_knows_a_new_epoch_begins(cluster: Cluster) -> None:
    wire = Torn()
    urls = [api.url for api in cluster.apis.values()]
    async with AsyncClient(urls, wire=wire, retry_s=0.0) as client:
        events = client.stream("events")
        await events.create()
        await events.append(1)
        wire.lose = 1
        with pytest.raises(Unreachable):
            await events.append(2)
        with pytest.raises(ApiError):
            await events.append("x" * 5_000_000)
        assert (await events.append(3)).duplicate is False, "it must not pass for the lost one"
        assert await values_of(events) == [1, 2, 3]
        assert wire.seen == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "0")]


async def test_many_tasks_may_append_at_once(client: AsyncClient) -> None:
    events = client.stream("events")
    await events.create()
    await asyncio.gather(*(events.append(number) for number in range(30)))
    assert sorted(await values_of(events)) == [*range(30)]


async def test_it_goes_on_through_a_take_over(cluster: Cluster, client: AsyncClient) -> None:
    events = client.stream("events")
    await events.create()
    seen: list[Any] = []

    async def follow() -> None:
        async for part in client.stream("events").follow():
            seen.extend(part.values)

    follower = asyncio.create_task(follow())
    for number in range(5):
        await events.append(number)
    owner = await cluster.owner_of("/v1/topics/public/events/partitions/0")
    await cluster.stop_broker(owner)
    for number in range(5, 10):
        await events.append(number)
    await events.close()
    async with asyncio.timeout(30):
        await follower
    assert seen == [*range(10)]


async def test_the_client_that_waits_has_the_same(cluster: Cluster) -> None:
    def work() -> None:
        with Client(cluster.api.url) as client:
            events = client.stream("events")
            assert events.create() is True
            events.append({"a": 1})
            end = events.append_many([2, 3]).next_offset
            again = events.fork("again")
            assert events.close("end") > end
            assert [part.values for part in events.follow(end)] == [["end"]]
            assert events.read().values == [{"a": 1}, 2, 3, "end"]
            assert (again.name, again.read().values) == ("public/again", [{"a": 1}, 2, 3])
            assert events.head().closed
            again.delete()
            events.delete()

    await asyncio.to_thread(work)
