"""Of a durable stream that is not there the answer told how to make a topic, and a producer could
acquire the exclusive access to a stream: from then on nobody's append was taken, not even its own,
for an append has no place for the epoch. Found as a user, with curl.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster

STREAM = "/v1/durable-streams/public/story"
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        yield found


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_what_is_not_there_is_a_stream(cluster: Cluster, method: str) -> None:
    answer = await cluster.api.call(method, STREAM, data=b"x", headers=TEXT)
    assert (answer.status, answer.json()["code"]) == (404, "stream-not-found")
    assert "PUT /v1/durable-streams/public/story makes it" in answer.json()["detail"]


async def test_nobody_has_a_stream_alone(cluster: Cluster) -> None:
    assert (await cluster.api.put(STREAM, headers=TEXT)).status == 201
    path = "/v1/topics/public/story/partitions/0/producer-access"
    answer = await cluster.api.post(path, json={"producer": "a"})
    assert (answer.status, answer.json()["code"]) == (409, "topic-is-stream")
    answer = await cluster.api.post(STREAM, data=b"Once", headers=TEXT)
    assert answer.status == 204
