"""An ack id of one subscription acked the same message of another one.

Leases are numbered in each subscription from 1 on, and what told ack ids apart, the epoch, was that
of the partition: the first id that `a` gave out was also the first one that `b` did. A program that
mixed them up, or kept ids of a subscription that was deleted and made anew, was answered 200, and
nobody processed the message. Found as a user, with curl.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster

TOPIC = "/v1/topics/public/orders"
BATCHES = {"Accept": "application/vnd.kafka.recordbatch.v2"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        yield found


async def received(cluster: Cluster, name: str) -> str:
    answer = await cluster.api.post(f"{TOPIC}/subscriptions/{name}/receive")
    (message,) = answer.json()["messages"]
    return str(message["ack_id"])


async def make(cluster: Cluster, name: str) -> None:
    answer = await cluster.api.put(f"{TOPIC}/subscriptions/{name}", json={"type": "shared"})
    assert answer.status == 201, answer


async def refused(cluster: Cluster, name: str, ack_id: str) -> None:
    for word in ("ack_ids", "nack", "extend", "release"):
        answer = await cluster.api.post(f"{TOPIC}/subscriptions/{name}/ack", json={word: [ack_id]})
        assert (answer.status, answer.json()["code"]) == (409, "stale-lease"), answer
    figures = (await cluster.api.get(f"{TOPIC}/subscriptions/{name}")).json()
    assert figures["backlog"] == 1


async def test_an_ack_id_is_good_for_its_own_subscription_alone(cluster: Cluster) -> None:
    await cluster.api.put(TOPIC, json={})
    await cluster.api.post(f"{TOPIC}/messages", json={"value": 1})
    for name in ("a", "b"):
        await make(cluster, name)
    of_a, of_b = await received(cluster, "a"), await received(cluster, "b")
    assert of_a != of_b
    await refused(cluster, "b", of_a)

    answer = await cluster.api.post(f"{TOPIC}/subscriptions/b/ack", json={"ack_ids": [of_b]})
    assert answer.json() == {"acked": 1}
    await cluster.api.call("DELETE", f"{TOPIC}/subscriptions/a")
    await make(cluster, "a")
    await received(cluster, "a")
    await refused(cluster, "a", of_a)


async def test_one_that_came_with_batches_too(cluster: Cluster) -> None:
    await cluster.api.put(TOPIC, json={})
    await cluster.api.post(f"{TOPIC}/messages", json={"value": 1})
    for name in ("a", "b"):
        await make(cluster, name)
    answer = await cluster.api.post(f"{TOPIC}/subscriptions/a/receive", headers=BATCHES)
    lease = answer.headers["Octavo-Lease"]
    await received(cluster, "b")
    await refused(cluster, "b", f"0-0-{lease}")
    answer = await cluster.api.post(
        f"{TOPIC}/subscriptions/a/ack", json={"ack_ids": [f"0-0-{lease}"]}
    )
    assert answer.json() == {"acked": 1}
