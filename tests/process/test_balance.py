"""Real brokers share partitions evenly, and again after each of them was restarted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import AsyncClient
from tests.support.processes.standalone import Standalone, standalone, until

pytestmark = pytest.mark.long

TOPICS = 20
PARTITIONS = 32
BALANCE_AFTER_MS = 1_500
EVEN_WITHIN_S = 40.0
"""Twenty times the time on an idle machine."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    with standalone(
        tmp_path / "data",
        "--set",
        f"broker.balance_after_ms={BALANCE_AFTER_MS}",
        "--session-timeout-ms",
        "2000",
    ) as one:
        yield one


def served(url: str) -> list[str]:
    try:
        with urllib.request.urlopen(f"{url}/v1/cluster", timeout=5) as answer:
            found: list[str] = json.load(answer)["partitions_here"]
            return found
    except OSError:
        return []


def shares(cluster: Standalone, topic: str) -> list[int]:
    prefix = f"{topic}/"
    return sorted(
        sum(name.startswith(prefix) for name in served(broker.address))
        for broker in cluster.cluster.of_kind("broker")
    )


def test_each_topic_lies_evenly_on_two_brokers(cluster: Standalone) -> None:
    async def make() -> None:
        async with AsyncClient(cluster.cluster.urls) as client:
            for number in range(TOPICS):
                await client.create_topic(f"t{number}", partitions=4)
                producer = await client.producer(f"t{number}")
                for partition in range(4):
                    await producer.send("m", partition=partition)
                await producer.close()

    asyncio.run(make())
    found = [
        Counter(name.rpartition("/")[0] for name in served(broker.address))
        for broker in cluster.cluster.of_kind("broker")
    ]
    for number in range(TOPICS):
        assert [one[f"public/t{number}"] for one in found] == [2, 2], number


def test_a_rolling_restart_ends_even_by_itself(cluster: Standalone) -> None:
    topic, half = "public/many", [PARTITIONS // 2, PARTITIONS // 2]
    over = asyncio.Event()
    waits_s: list[float] = []

    async def publish() -> int:
        async with AsyncClient(cluster.cluster.urls) as client:
            await client.create_topic(topic, partitions=PARTITIONS)
            producer = await client.producer(topic)
            sent = 0
            while not over.is_set():
                for partition in range(PARTITIONS):
                    await producer.send(f"{sent}", partition=partition)
                    sent += 1
                began_s = time.monotonic()
                await producer.flush()
                waits_s.append(time.monotonic() - began_s)
                await asyncio.sleep(0.02)
            await producer.close()
            return sent

    def restart_both() -> list[float]:
        took = []
        until(lambda: shares(cluster, topic) == half, "even at first", EVEN_WITHIN_S)
        for name in [broker.name for broker in cluster.cluster.of_kind("broker")]:
            pid = cluster.pids()[name]
            os.kill(pid, signal.SIGTERM)
            until(lambda name=name, pid=pid: cluster.pids().get(name) not in (None, pid), name)  # type: ignore[misc]
            began_s = time.monotonic()
            until(lambda: shares(cluster, topic) == half, f"even after {name}", EVEN_WITHIN_S)
            took.append(time.monotonic() - began_s)
        return took

    async def run() -> tuple[int, list[float]]:
        publishing = asyncio.create_task(publish())
        try:
            took = await asyncio.to_thread(restart_both)
        finally:
            over.set()
        return await publishing, took

    sent, took = asyncio.run(run())

    async def count() -> int:
        async with AsyncClient(cluster.cluster.urls) as client:
            found = 0
            for partition in range(PARTITIONS):
                texts = [m.text() async for m in client.messages(topic, partition=partition)]
                assert len(texts) == len(set(texts)), f"doubled in partition {partition}"
                found += len(texts)
            return found

    assert asyncio.run(count()) == sent
    waits_s.sort()
    print(
        f"even {took[0]:.1f} and {took[1]:.1f} s after the restarts; {sent} messages, a round of "
        f"all partitions waited at most {waits_s[-1]:.3f} s"
    )


def test_a_broker_that_is_stopped_hands_everything_on_first(cluster: Standalone) -> None:
    """Each partition is handed over, not recovered, while a publisher runs."""
    topic, partitions = "public/left", 12
    names = [f"{topic}/{number}" for number in range(partitions)]
    one, two = cluster.cluster.of_kind("broker")
    over = asyncio.Event()

    async def publish() -> int:
        async with AsyncClient(cluster.cluster.urls) as client:
            producer = await client.producer(topic)
            sent = 0
            while not over.is_set() or sent < partitions:
                await producer.send(f"{sent}", partition=sent % partitions)
                sent += 1
                if not sent % partitions:
                    await producer.flush()
            await producer.close()
            return sent

    def stop_one() -> list[str]:
        until(lambda: len(served(one.address) + served(two.address)) == partitions, "all open")
        mine = served(one.address)
        os.kill(cluster.pids()[one.name], signal.SIGTERM)
        until(lambda: set(served(two.address)) == set(names), "the other has all", EVEN_WITHIN_S)
        return mine

    async def run() -> tuple[list[str], int]:
        async with AsyncClient(cluster.cluster.urls) as client:
            await client.create_topic(topic, partitions=partitions)
        publishing = asyncio.create_task(publish())
        try:
            mine = await asyncio.to_thread(stop_one)
        finally:
            over.set()
        return mine, await publishing

    mine, sent = asyncio.run(run())
    log = [json.loads(line) for line in Path(two.log).read_text().splitlines()]
    left = {one["partition"] for one in log if one["event"] == "partition_taken_as_left"}
    assert mine
    assert left >= set(mine), "none of them was recovered"

    async def count() -> int:
        async with AsyncClient([two.address]) as client:
            found = 0
            for partition in range(partitions):
                texts = [m.text() async for m in client.messages(topic, partition=partition)]
                assert len(texts) == len(set(texts)), f"doubled in partition {partition}"
                found += len(texts)
            return found

    assert asyncio.run(count()) == sent
