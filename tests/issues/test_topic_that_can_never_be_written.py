"""A topic with an ensemble of more bookies than there are was made in silence; publishing failed
after 128 s."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncClient
from octavo.client.errors import ApiError
from octavo.metadata.bookies import BookieRegistry
from octavo.metadata.topics import TopicRecord, TopicSettings, TopicStore
from tests.support.cluster import Cluster, running_cluster

TOPIC = "/v1/topics/public/wide"
WIDE: dict[str, Any] = {"ensemble_size": 5, "write_quorum": 3, "ack_quorum": 2}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as cluster:
        yield cluster


async def test_more_bookies_than_there_are_is_refused_with_their_number(
    cluster: Cluster,
) -> None:
    answer = await cluster.api.put(TOPIC, json=WIDE)
    assert answer.status == 422
    problem = answer.json()
    assert problem["code"] == "too-few-bookies"
    assert "ensemble_size is 5" in problem["detail"]
    assert "3 bookies (b1, b2, b3)" in problem["detail"]
    assert (await cluster.api.get(TOPIC)).status == 404
    assert (await cluster.api.put(TOPIC, json={"ensemble_size": 3})).status == 201
    answer = await cluster.api.call("PATCH", TOPIC, json={"ensemble_size": 4})
    assert (answer.status, answer.json()["code"]) == (422, "too-few-bookies")


async def test_bookies_that_are_down_count(cluster: Cluster) -> None:
    registry = BookieRegistry(cluster.brokers["broker-0"].store)
    cookie, _ = await registry.read_cookie("b1")
    for name in ("b4", "b5"):
        await registry.write_cookie(replace(cookie, bookie_id=name))
    assert (await cluster.api.put(TOPIC, json=WIDE)).status == 201
    # What is there already is not made: it can be put again without them.
    for name in ("b4", "b5"):
        await registry.delete_cookie(name, 0)
    assert (await cluster.api.put(TOPIC, json=WIDE)).status == 200


async def test_publishing_to_one_that_is_there_fails_soon_and_says_why(
    cluster: Cluster,
) -> None:
    store = cluster.brokers["broker-0"].store
    await TopicStore(store).create_topic("public", "wide", TopicRecord(TopicSettings(**WIDE)))
    async with asyncio.timeout(10), AsyncClient(cluster.api.url) as client:
        with pytest.raises(ApiError, match="this cluster has 3") as refused:
            await client.publish("wide", b"x")
    assert (refused.value.status, refused.value.code) == (503, "too-few-bookies")
    assert not refused.value.can_retry
