"""Who waited for messages of a subscription that was deleted heard of it up to 15 s later.

The owners of its partitions were told by a look now and then; until then a stream of it stayed
open, and a receive waited, for messages that could not be acked. Found as a user, with curl.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster

TOPIC = "/v1/topics/public/orders"
SUB = f"{TOPIC}/subscriptions/s"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


@pytest.mark.parametrize("path", ["receive?wait=20", "stream"])
async def test_whoever_waits_hears_of_it_at_once(cluster: Cluster, path: str) -> None:
    await cluster.api.put(TOPIC, json={"partitions": 3})
    await cluster.api.put(SUB, json={"type": "shared"})
    method = "GET" if path == "stream" else "POST"
    waiting = [
        asyncio.create_task(api.call(method, f"{SUB}/{path}")) for api in cluster.apis.values()
    ]
    await asyncio.sleep(0.3)
    answer = await cluster.api.call("DELETE", SUB)
    assert answer.status == 204
    for answer in await asyncio.wait_for(asyncio.gather(*waiting), 3):
        assert b"subscription-not-found" in answer.body, answer
