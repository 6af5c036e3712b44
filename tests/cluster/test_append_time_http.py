"""Show the same append times in all outputs of HTTP and the Python client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from octavo.broker.types import PartitionName
from octavo.client.client import AsyncClient
from octavo.client.types import decode_deliveries
from octavo.protocol.append_time import APPEND_TIME_HEADER, SPAN_MS, stamp_of, time_of
from octavo.protocol.batch import split_batches
from octavo.protocol.records import Record, build_batch, read_records
from tests.cluster.test_large_messages import uploaded
from tests.support.cluster import Cluster, running_cluster

BATCHES = "application/vnd.kafka.recordbatch.v2"
LINES = "application/x-ndjson"
NAME = PartitionName("public", "t", 0)
TOPIC = "/v1/topics/public/t"
MESSAGES = TOPIC + "/partitions/0/messages"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        body = {"message_time": "append"}
        assert (await found.api.put(TOPIC, json=body)).status == 201
        yield found


async def filled(cluster: Cluster) -> list[tuple[int, int]]:
    """Publish messages in every way; note for each the times around its storing."""
    between: list[tuple[int, int]] = []

    async def one(count: int, sent: Any) -> None:
        begun = time.time_ns() // 1_000_000
        answer = await sent
        assert answer.status == 200, answer
        between.extend([(begun, time.time_ns() // 1_000_000)] * count)

    api = cluster.api
    rows = [Record(b"k", b'"%d"' % n, (), 5 + n) for n in range(3)]
    await one(3, api.post(TOPIC + "/messages", build_batch(rows), BATCHES))
    await asyncio.sleep(0.01)
    packed = build_batch(rows, compression=4)
    await one(3, api.post(TOPIC + "/messages", packed, BATCHES))
    await asyncio.sleep(0.01)
    await one(1, api.post(TOPIC + "/messages", json={"value": 1, "timestamp": 7}))
    await asyncio.sleep(0.01)
    lines = b'{"value": 1, "timestamp": 8}\n{"value": 2}\n'
    await one(2, api.post(TOPIC + "/messages", lines, LINES))
    return between


async def in_json(cluster: Cluster, accept: str = "application/json") -> list[int]:
    answer = await cluster.api.get(MESSAGES, headers={"Accept": accept})
    assert answer.status == 200, answer
    if accept == LINES:
        return [json.loads(line)["timestamp"] for line in answer.body.splitlines()]
    return [one["timestamp"] for one in answer.json()["messages"]]


async def test_every_reader_sees_when_it_was_stored(cluster: Cluster) -> None:
    between = await filled(cluster)
    wanted = await in_json(cluster)
    assert wanted == sorted(wanted)
    assert len(set(wanted)) >= 4
    for time_ms, (since, until) in zip(wanted, between, strict=True):
        assert since <= time_ms <= until
    assert await in_json(cluster, LINES) == wanted

    for name, api in cluster.apis.items():
        answer = await api.get(MESSAGES, headers={"Accept": BATCHES})
        assert answer.headers[APPEND_TIME_HEADER] == f"0={wanted[0]}", name
        found, last_ms = [], wanted[0]
        for header, data in split_batches(answer.body):
            last_ms = time_of(header.partition_leader_epoch, last_ms)
            found += [last_ms] * header.record_count
            by_producer = next(read_records(bytes(data))).timestamp_ms
            assert by_producer in (5, 7, 8), "as its producer made it"
        assert found == wanted

        async with AsyncClient(api.url) as client:
            messages = await client.read("t", start="earliest")
            assert [one.timestamp_ms for one in messages] == wanted
            async with aclosing(client.pages("t", follow=True, start=4)) as pages:
                page = await anext(pages)
                assert [one.timestamp_ms for one in page] == wanted[4:]
            for accept in (f"{BATCHES}, application/json", "application/json", LINES):
                sub = f"s{len(accept)}{name[-1]}"
                await client.subscribe("t", sub, type="shared", start="earliest")
                answer = await api.post(
                    f"{TOPIC}/subscriptions/{sub}/receive?max=99", headers={"Accept": accept}
                )
                if accept == LINES:
                    given = [json.loads(line)["timestamp"] for line in answer.body.splitlines()]
                else:
                    deliveries, _ = decode_deliveries(answer.headers, answer.body)
                    given = [one.timestamp_ms for one in deliveries]
                assert given == wanted, accept

    for time_ms in wanted:
        answer = await cluster.api.get(f"{TOPIC}/partitions/0/offsets?at={iso(time_ms)}")
        assert answer.json()["offsets"][0]["offset"] == wanted.index(time_ms)


def iso(time_ms: int) -> str:
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_ms // 1000))
    return f"{when}.{time_ms % 1000:03d}Z"


async def test_streams_and_sockets_tell_it_too(cluster: Cluster) -> None:
    await filled(cluster)
    wanted = await in_json(cluster)
    async with aiohttp.ClientSession() as session:
        for api in cluster.apis.values():
            url = f"{api.url}{MESSAGES}?from=0&follow=true"
            for accept in (LINES, "text/event-stream"):
                found: list[int] = []
                async with session.get(url, headers={"Accept": accept}) as answer:
                    async for line in answer.content:
                        text = line.removeprefix(b"data: ").strip()
                        if text.startswith(b"{"):
                            found.append(json.loads(text)["timestamp"])
                        if len(found) == len(wanted):
                            break
                assert found == wanted
    for number, api in enumerate(cluster.apis.values()):
        async with AsyncClient(api.url) as client:
            subscription = await client.subscribe("t", f"w{number}", start="earliest")
            given = []
            async with aclosing(subscription.deliveries()) as deliveries:
                async for one in deliveries:
                    given.append(one.timestamp_ms)
                    if len(given) == len(wanted):
                        break
            assert given == wanted


async def test_a_follower_at_the_end_knows_the_time_of_what_comes(cluster: Cluster) -> None:
    """The stream begins before any batch tells the days of the stamps."""
    async with AsyncClient([api.url for api in cluster.apis.values()]) as client:
        found: list[int] = []

        async def follow() -> None:
            async with aclosing(client.pages("t", follow=True)) as pages:
                async for page in pages:
                    found.extend(one.timestamp_ms for one in page)

        task = asyncio.create_task(follow())
        for number in range(5):
            await client.publish("t", number, timestamp_ms=3)
            async with asyncio.timeout(10):
                while len(found) <= number:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert found == await in_json(cluster)
    assert min(found) > 1_700_000_000_000


async def test_a_stream_ends_where_its_head_does_not_tell_the_next_time(cluster: Cluster) -> None:
    await filled(cluster)
    owner = await cluster.owner_of(TOPIC + "/partitions/0")
    partition = await cluster.brokers[owner].broker.ownership.partition(NAME)
    now_ms = partition._publisher.appended_ms
    later_ms = now_ms + 3 * SPAN_MS
    segment = partition._publisher.segment
    partition._publisher._clock = lambda: later_ms
    segment.appended_ms = later_ms
    async with aiohttp.ClientSession() as session:
        url = f"{cluster.api.url}{MESSAGES}?from=6&follow=true"
        async with session.get(url, headers={"Accept": BATCHES}) as stream:
            body = await stream.content.readany()
            await cluster.api.post(TOPIC + "/messages", json={"value": 1})
            body += await stream.read()
    assert [header.base_offset for header, _ in split_batches(body)] == [6, 7]
    assert partition._publisher.appended_ms == later_ms
    assert stamp_of(later_ms) == stamp_of(now_ms), "it looks like no time at all"
    answer = await cluster.api.get(MESSAGES, headers={"Accept": BATCHES})
    assert [pair.partition("=")[2] for pair in answer.headers[APPEND_TIME_HEADER].split(",")][
        1:
    ] == [str(later_ms)]
    async with AsyncClient(cluster.api.url) as client:
        times = [one.timestamp_ms for one in await client.read("t")]
        assert times[-1] == later_ms
        assert times[-2] == now_ms


async def test_a_large_message_is_stored_when_it_is_there(cluster: Cluster) -> None:
    begun = time.time_ns() // 1_000_000
    await uploaded(cluster, path=TOPIC, Octavo_Timestamp="5")
    ended = time.time_ns() // 1_000_000
    (found,) = await in_json(cluster)
    assert begun <= found <= ended
