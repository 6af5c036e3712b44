"""Who asked again for a fork after a broker's death was told that it is there, and it was not.

A `409 topic-exists`, not retryable, for a topic that answered 404 to everything, and vanished at
the next sweep, up to five minutes later: the record of a fork whose maker had died. Of a name that
is being deleted it was the same, where a `PUT` waits. Found by killing brokers amid forks of forks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.broker.types import TopicName
from octavo.metadata.topics import ForkRecord, TopicStore
from tests.support.cluster import Cluster, running_cluster

FORK = TopicName("public", "fork")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        assert (await found.api.put("/v1/topics/public/t", json={})).status == 201
        said = await found.api.post("/v1/topics/public/t/messages", json={"value": 1})
        assert said.status == 200
        yield found


async def _left_half_made(cluster: Cluster) -> None:
    """As a broker leaves it that died amid step 3."""
    records = TopicStore(cluster.store)
    record, _ = await records.read_topic("public", "t")
    fork = ForkRecord("t", record.incarnation, {0: 1})
    await records.create_topic(*FORK, replace(record, incarnation="dead-1", fork=fork))


@pytest.mark.parametrize("how", ["fork", "put"])
async def test_whoever_wants_the_name_gets_it(cluster: Cluster, how: str) -> None:
    await _left_half_made(cluster)

    async def asked() -> int:
        if how == "put":
            return (await cluster.api.put("/v1/topics/public/fork", json={})).status
        body = {"name": "fork"}
        return (await cluster.api.post("/v1/topics/public/t/fork", json=body)).status

    answers = [await asked()]
    async with asyncio.timeout(10):
        while answers[-1] == 503:
            await asyncio.sleep(0.05)
            answers.append(await asked())
    assert (answers[0], answers[-1]) == (503, 201)
    found = await cluster.api.get("/v1/topics/public/fork/messages")
    assert found.status == (200 if how == "fork" else 204)


async def test_one_that_is_there_is_told_as_there(cluster: Cluster) -> None:
    for wanted in (201, 409):
        found = await cluster.api.post("/v1/topics/public/t/fork", json={"name": "fork"})
        assert found.status == wanted
