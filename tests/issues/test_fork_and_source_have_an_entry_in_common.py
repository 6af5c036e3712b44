"""Of an entry that a fork cuts, fork and source were shown what the other one has of it.

A broker keeps batches open by ledger and entry, and both are the same for a fork and its source. Of
a batch of two messages, forked between them, the fork showed both when the source was read first,
and the source's readers got a 500 when the fork was: seed 16 of profile `stream`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster

PATH = "/v1/durable-streams/public/"
MESSAGES = "/v1/topics/public/{}/messages?from=earliest"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        yield found


async def shown(cluster: Cluster, name: str) -> tuple[list[int], list[int]]:
    """As a stream, and as a topic."""
    stream = await cluster.api.get(PATH + name)
    topic = await cluster.api.get(MESSAGES.format(name))
    assert (stream.status, topic.status) == (200, 200), (stream, topic)
    return stream.json(), [one["value"] for one in topic.json()["messages"]]


@pytest.mark.parametrize("first", ["source", "fork"])
async def test_each_is_shown_its_own(cluster: Cluster, first: str) -> None:
    await cluster.api.call("PUT", PATH + "source", headers=JSON)
    assert (await cluster.api.post(PATH + "source", b"[1, 2]", JSON["Content-Type"])).status == 204
    at = f"{0:016d}_{1:016d}"
    words = {**JSON, "Stream-Forked-From": PATH + "source", "Stream-Fork-Offset": at}
    assert (await cluster.api.call("PUT", PATH + "fork", headers=words)).status == 201
    has = {"source": ([1, 2], [1, 2]), "fork": ([1], [1])}
    for name in sorted(has, key=lambda one: one != first):
        assert await shown(cluster, name) == has[name]
