"""Valid record batches with hidden costs: brokers take them, and a read costs only what it asks
for."""

from __future__ import annotations

import asyncio
import json

from octavo.protocol.compression import Compression
from octavo.protocol.records import Record, build_batch
from tests.attack.attempts import attempt
from tests.attack.attempts_requests import BATCH
from tests.attack.world import World

BATCHES = 6


async def store(world: World, name: str, batch: bytes) -> str:
    path = await world.topic(name)
    body = {"start": "earliest"}
    said = await world.ask("PUT", f"{path}/subscriptions/s", body)
    assert said.status in (200, 201), said
    sent = await asyncio.gather(
        *(
            world.ask(
                "POST", f"{path}/messages", batch, broker=n % len(world.brokers), Content_Type=BATCH
            )
            for n in range(BATCHES)
        )
    )
    assert all(said.status in (200, 429) for said in sent), sent
    assert any(said.status == 200 for said in sent), sent
    return path


async def received(world: World, path: str, broker: int = 0) -> int:
    said = await world.ask(
        "POST", f"{path}/subscriptions/s/receive?max=10000&wait=20", broker=broker
    )
    assert said.status == 200, said
    return len(json.loads(said.body)["messages"])


@attempt("batches of 300,000 messages in kilobytes, received and read here and there")
async def very_many_messages(world: World) -> None:
    count = 300_000
    batch = build_batch([Record(None, b"x")] * count, compression=Compression.ZSTD)
    path = await store(world, "many-in-few", batch)
    for at in range(0, count, count // 5):
        said = await world.ask("GET", f"{path}/messages?from={at}&limit=1000")
        assert len(json.loads(said.body)["messages"]) == 1000, said
        assert await received(world, path) == 10_000


@attempt("batches of 60 MB in kilobytes, received and read by many at once", long=True)
async def very_long_messages(world: World) -> None:
    long = Record(None, bytes(4 << 20))
    batch = build_batch([long] * 15, compression=Compression.ZSTD)
    path = await store(world, "much-in-little", batch)
    for _ in range(1):
        counts = await asyncio.gather(*(received(world, path, n % 2) for n in range(4)))
        assert counts == [1] * 4
        reads = (world.ask("GET", f"{path}/messages?from={n}&limit=1000") for n in range(4))
        for said in await asyncio.gather(*reads):
            assert len(json.loads(said.body)["messages"]) == 1, said.status
