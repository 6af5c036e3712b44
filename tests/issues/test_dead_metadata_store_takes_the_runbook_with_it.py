"""With the metadata store dead, `/v1/cluster` and `/`, the runbook's beginning, took 10 s: 503.

And with a broker asleep `GET` of a topic, which every new producer begins with, had no end at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.http.api import topics as api_topics
from octavo.broker.operations import control
from octavo.metadata.store import SessionState
from tests.support.cluster import Cluster, RunningBroker, running_cluster
from tests.support.fake_broker import Answer

AT_ONCE_S = 0.1
BUSY_MACHINE_S = 0.4
TOPIC = "/v1/topics/public/orders"


@contextlib.asynccontextmanager
async def dead_store(node: RunningBroker) -> AsyncIterator[None]:
    """Nothing that this broker asks of its store is answered, and its session is in doubt."""
    store: Any = node.store
    dead, alive = threading.Event(), threading.Event()

    def die() -> None:
        dead.set()
        alive.wait()

    store._executor.submit(die)
    await asyncio.to_thread(dead.wait)
    # A poll that was answered just before tells of a store that lives: let it tell first.
    await asyncio.sleep(0.01)
    store._set_state(SessionState.SUSPENDED)
    store._watches.notify_all()  # what was known is in doubt as well
    try:
        yield
    finally:
        alive.set()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        assert (await cluster.api.put(TOPIC, json={"partitions": 2})).status == 201
        assert (await cluster.api.get(TOPIC)).status == 200
        yield cluster


async def at_once(asked: Any) -> Answer:
    begun = time.monotonic()
    answer: Answer = await asked
    took_s = time.monotonic() - begun
    assert took_s < AT_ONCE_S + BUSY_MACHINE_S, f"{took_s:.3f} s"
    return answer


async def test_the_cluster_is_shown_as_last_known_and_says_so(cluster: Cluster) -> None:
    node, api = cluster.brokers["broker-0"], cluster.apis["broker-0"]
    before = (await api.get("/v1/cluster")).json()
    assert before["stale"] is None
    assert before["metadata"]["out_of_reach_since"] is None
    assert len(before["bookies"]) == 3
    assert before["topics"] == ["public/orders"]
    now_ms = time.time() * 1000
    async with dead_store(node):
        for _ in range(3):
            answer = await at_once(api.get("/v1/cluster"))
            assert answer.status == 200
            found = answer.json()
            assert found["stale"]["what"] == ["bookies", "brokers", "topics"]
            assert abs(found["stale"]["since"] - now_ms) < 5000
            assert found["metadata"]["session"] == "suspended"
            assert found["metadata"]["out_of_reach_since"] == found["stale"]["since"]
            for name in ("bookies", "topics", "partitions_here"):
                assert found[name] == before[name]
            for broker, same in zip(found["brokers"], before["brokers"], strict=True):
                age_s = same["age"] if broker["age"] is None else broker["age"]
                assert broker == {**same, "age": age_s}, "its figures grow old, and stay"
        page = await at_once(api.get("/"))
        assert page.status == 200
        assert "has not confirmed bookies, brokers and topics for" in page.body.decode()
        bookies = await at_once(api.get("/v1/bookies"))
        assert len(bookies.json()["bookies"]) == 3
        assert bookies.json()["stale"]["what"] == ["bookies"]
        assert (await at_once(api.get("/v1/brokers"))).status == 200
        assert (await at_once(api.get(TOPIC))).status == 200
        ready = await at_once(api.get("/readyz"))
        assert ready.status == 503
        assert "out of reach" in ready.json()["detail"]

    async with asyncio.timeout(10):
        while (await api.get("/v1/cluster")).json()["stale"] is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_what_only_the_store_knows_is_refused_soon(cluster: Cluster) -> None:
    node, api = cluster.brokers["broker-0"], cluster.apis["broker-0"]
    async with dead_store(node):
        for path in ("/v1/ledgers", "/v1/ledgers/0", "/v1/topics/public", "/v1/namespaces"):
            async with asyncio.timeout(8):  # it was 10; a busy machine needs some of it
                answer = await api.get(path)
            assert answer.status == 503, path
            assert answer.json()["code"] == "metadata-unavailable"
            assert "/v1/cluster" in answer.json()["detail"]


@pytest.mark.long
async def test_a_topic_is_shown_although_an_owner_sleeps(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_topics, "FIGURES_WITHIN_S", 0.3)
    owners = [await cluster.owner_of(f"{TOPIC}/partitions/{n}") for n in range(2)]
    asleep = owners[0]
    asked = next(api for name, api in cluster.apis.items() if name != asleep)

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    real = control.run

    async def run(broker: Any, partition: Any, operation: Any, rules: Any) -> Any:
        if partition.stats().broker_id == asleep:
            await never()
        return await real(broker, partition, operation, rules)

    monkeypatch.setattr(control, "run", run)
    async with asyncio.timeout(5):
        found = (await asked.get(TOPIC)).json()
    assert found["settings"]["partitions"] == 2
    for number, owner in enumerate(owners):
        shown = found["partitions"][number]
        if owner == asleep:
            assert shown["problem"]["code"] == "no-figures-in-time"
        else:
            assert shown["owner"] == owner
