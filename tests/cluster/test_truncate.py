"""Truncation on demand removes the oldest messages: over HTTP, at real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_forks import exists, forked, numbered, published, values
from tests.support.cluster import Cluster, running_cluster

ONE = "/v1/topics/public/one"
SUB = ONE + "/subscriptions/s"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        body = {"rollover": {"entries": 4}}
        assert (await found.api.put(ONE, json=body)).status == 201
        yield found


async def truncated(cluster: Cluster, before: Any, path: str = ONE) -> int:
    answer = await cluster.api.call("DELETE", f"{path}/messages?before={before}")
    assert answer.status == 200, answer
    (one,) = answer.json()["partitions"]
    assert one["partition"] == 0
    earliest: int = one["earliest_offset"]
    return earliest


async def first_ledgers(cluster: Cluster, before: int) -> list[int]:
    ledgers = (await cluster.api.get(ONE + "/partitions/0")).json()["ledgers"]
    pairs = pairwise(ledgers)
    return [one["id"] for one, after in pairs if after["base_offset"] <= before]


async def in_ledgers(cluster: Cluster, count: int) -> None:
    await published(cluster, ONE, 0, 20)
    async with asyncio.timeout(10):
        while not await first_ledgers(cluster, 20):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await published(cluster, ONE, 20, count - 20)


async def received(cluster: Cluster) -> list[int]:
    answer = await cluster.api.post(f"{SUB}/receive?max=1000&wait=1s")
    found = [one["value"] for one in answer.json()["messages"]] if answer.status == 200 else []
    assert answer.status in (200, 204), answer
    ids = [one["ack_id"] for one in answer.json()["messages"]] if found else []
    assert (await cluster.api.post(SUB + "/ack", json={"ack_ids": ids})).status == 200
    return found


async def stopped_owner(cluster: Cluster) -> None:
    await cluster.stop_broker(await cluster.owner_of(ONE + "/partitions/0"))


async def test_readers_and_subscriptions_begin_behind_it(cluster: Cluster) -> None:
    assert (await cluster.api.put(SUB, json={"start": "earliest"})).status == 201
    await in_ledgers(cluster, 52)
    first = await first_ledgers(cluster, 23)
    assert await truncated(cluster, 23) == 23
    answer = await cluster.api.get(ONE + "/messages?from=22")
    assert (answer.status, answer.json()["earliest_offset"]) == (410, 23)
    assert await values(cluster, ONE, 23) == numbered(range(52))[23:]
    (at,) = (await cluster.api.get(ONE + "/offsets?at=earliest")).json()["offsets"]
    assert at["offset"] == 23
    (at,) = (await cluster.api.get(ONE + "/offsets?at=1970-01-01T00:00:04Z")).json()["offsets"]
    assert at["offset"] == 23
    assert first
    assert not any([await exists(cluster, one) for one in first])
    assert (await cluster.api.get(SUB)).json()["backlog"] == 29
    assert await received(cluster) == [*range(23, 52)]
    assert await truncated(cluster, 5) == 23
    await stopped_owner(cluster)
    answer = await cluster.api.get(ONE + "/messages?from=22")
    assert (answer.status, answer.json()["earliest_offset"]) == (410, 23)
    await published(cluster, ONE, 52, 3)
    assert await values(cluster, ONE, 23) == numbered(range(55))[23:]
    assert await received(cluster) == [52, 53, 54]


async def test_all_of_it(cluster: Cluster) -> None:
    assert (await cluster.api.put(SUB, json={"start": "earliest"})).status == 201
    await published(cluster, ONE, 0, 12)
    assert await truncated(cluster, "latest") == 12
    assert await values(cluster, ONE, 12) == []
    await stopped_owner(cluster)
    await published(cluster, ONE, 12, 30)
    assert await values(cluster, ONE, 12) == numbered(range(42))[12:]
    assert await received(cluster) == [*range(12, 42)]
    answer = await cluster.api.call("DELETE", ONE + "/messages?before=43")
    assert (answer.status, answer.json()["next_offset"]) == (416, 42)
    answer = await cluster.api.call("DELETE", ONE + "/messages")
    assert (answer.status, answer.json()["code"]) == (400, "invalid-parameter")


async def test_a_fork_keeps_what_its_source_truncates(cluster: Cluster) -> None:
    await in_ledgers(cluster, 40)
    await truncated(cluster, 3)
    shared = (await first_ledgers(cluster, 25))[-1]
    await forked(cluster, ONE, "fork", 31)
    assert await truncated(cluster, 37) == 37
    fork = "/v1/topics/public/fork"
    assert await values(cluster, fork, 3) == numbered(range(31))[3:]
    answer = await cluster.api.get(fork + "/messages?from=2")
    assert (answer.status, answer.json()["earliest_offset"]) == (410, 3)
    assert await exists(cluster, shared)
    assert await truncated(cluster, 25, fork) == 25
    assert not await exists(cluster, shared)
    assert await values(cluster, fork, 25) == numbered(range(31))[25:]
    answer = await cluster.api.post(fork + "/fork", json={"name": "late", "at": 24})
    assert answer.status == 410, answer
    await forked(cluster, fork, "again", 25)
    await published(cluster, "/v1/topics/public/again", 90, 2)
    assert await values(cluster, "/v1/topics/public/again", 25) == [(25, 90), (26, 91)]


async def test_an_offset_is_of_one_partition(cluster: Cluster) -> None:
    two = "/v1/topics/public/two"
    assert (await cluster.api.put(two, json={"partitions": 2})).status == 201
    for number in range(2):
        await published(cluster, f"{two}/partitions/{number}", 0, 10)
    answer = await cluster.api.call("DELETE", two + "/messages?before=3")
    assert (answer.status, answer.json()["code"]) == (422, "partition-required")
    answer = await cluster.api.call("DELETE", two + "/partitions/1/messages?before=3")
    assert answer.json()["partitions"] == [{"partition": 1, "earliest_offset": 3}]
    answer = await cluster.api.call("DELETE", two + "/messages?before=1970-01-01T00:00:06Z")
    assert [one["earliest_offset"] for one in answer.json()["partitions"]] == [6, 6]
