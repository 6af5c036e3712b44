"""Random processes of a real cluster are killed while messages are published and consumed.

A producer and a shared subscription run all the time; after each kill −9 the supervisor starts the
victim again, and the next one dies. At the end every message is stored exactly once and in order,
and was delivered. Replay: `CHAOS_SEED=… CHAOS_KILLS=… pytest tests/process/test_random_kills.py`.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from octavo import AsyncClient
from octavo.client.errors import ClientError
from octavo.client.producer import Producer
from tests.process.cluster import Standalone, standalone

KILLS = int(os.environ.get("CHAOS_KILLS", "6"))
SEED = int(os.environ.get("CHAOS_SEED", random.randrange(10**6)))
TOPIC = "public/chaos"
PARTITIONS = 3
KEYS = 40
BACK_TIMEOUT_S = 60.0


class Traffic:
    """A producer with two encodings and a consumer, until told to stop."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.sent: list[list[str]] = [[], []]
        self.delivered: set[str] = set()
        self.stopping = asyncio.Event()

    async def publish(self, which: int, producer: Producer) -> None:
        number = 0
        while not self.stopping.is_set():
            text = f"{which}-{number}"
            await producer.send(text, key=f"k{number % KEYS}")
            self.sent[which].append(text)
            number += 1
            await asyncio.sleep(0.0005)
        await producer.close()

    async def consume(self) -> None:
        """At least once: a lease that its broker took to the grave comes again."""
        consumer = await self.client.subscribe(TOPIC, "s", type="shared", ack_timeout_s=3)
        idle = 0
        while idle < 2:
            received = await consumer.receive(500, wait_s=4.0)
            idle = idle + 1 if not received and self.stopping.is_set() else 0
            if not received:
                continue
            self.delivered.update(delivery.text() for delivery in received)
            try:
                await consumer.ack(received)
            except ClientError as error:
                if getattr(error, "code", "") != "stale-lease":
                    raise


async def kill_at_random(one: Standalone, rng: random.Random) -> list[str]:
    """One victim after the other, each when all run again."""
    victims: list[str] = []
    loop = asyncio.get_running_loop()
    for _ in range(KILLS):
        victim = rng.choice(sorted(one.pids()))
        victims.append(victim)
        before = one.kill(victim)
        deadline = loop.time() + BACK_TIMEOUT_S
        while True:
            member = one.cluster.member(victim)
            assert member is not None
            if member.state == "running" and member.pid != before:
                break
            assert loop.time() < deadline, f"{victim} is not back"
            await asyncio.sleep(0.05)
        await asyncio.sleep(rng.uniform(0.0, 0.7))
    return victims


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_random_kills(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with standalone(tmp_path / "data", "--session-timeout-ms", "1500") as one:
        async with AsyncClient(one.cluster.urls, attempt_s=4.0) as client:
            await client.create_topic(TOPIC, partitions=PARTITIONS)
            traffic = Traffic(client)
            producers = [
                await client.producer(TOPIC, encoding="batch"),
                await client.producer(TOPIC, encoding="ndjson"),
            ]
            async with asyncio.TaskGroup() as group:
                for which, producer in enumerate(producers):
                    group.create_task(traffic.publish(which, producer))
                group.create_task(traffic.consume())
                victims = await kill_at_random(one, rng)
                traffic.stopping.set()
            stored: list[str] = []
            order: dict[tuple[str, bytes | None], int] = {}
            for partition in range(PARTITIONS):
                async for message in client.messages(TOPIC, partition=partition):
                    text = message.text()
                    stored.append(text)
                    which, _, number = text.partition("-")
                    key = (which, message.key)
                    assert order.get(key, -1) < int(number), f"out of order: {text}"
                    order[key] = int(number)
    what = f"CHAOS_SEED={SEED}, killed {victims}"
    expected = sorted(traffic.sent[0] + traffic.sent[1])
    assert len(expected) > 500, what
    lost = set(expected) - set(stored)
    assert not lost, f"{what}: {len(lost)} lost, for example {sorted(lost)[:5]}"
    assert sorted(stored) == expected, f"{what}: stored twice"
    missed = set(expected) - traffic.delivered
    assert not missed, f"{what}: {len(missed)} never delivered, for example {sorted(missed)[:5]}"
