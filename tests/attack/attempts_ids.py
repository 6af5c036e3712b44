"""A client that reaches the bookies takes ledger ids before they are given out."""

from __future__ import annotations

import asyncio
import json
import time

from tests.attack.attempts import attempt
from tests.attack.world import World
from tests.support.raw_bookie import RawClient, add_of

FOREIGN = b"\x07" * 20
WAIT_S = 30.0


async def newest_ledger(world: World, path: str) -> int:
    said = await world.ask("GET", f"{path}/partitions/0")
    return max(int(one["id"]) for one in json.loads(said.body)["ledgers"])


async def squat(world: World, ids: range) -> None:
    for _, port in world.bookies:
        client = await RawClient.connect_to(port)
        try:
            for start in range(ids.start, ids.stop, 1_000):
                some = range(start, min(ids.stop, start + 1_000))
                client.send(b"".join(add_of(one, 0, b"mine", key=FOREIGN) for one in some))
                for _ in some:
                    await client.answer()
        finally:
            client.close()


async def stores(world: World, path: str) -> None:
    until = time.monotonic() + WAIT_S
    while True:
        said = await world.ask("POST", f"{path}/messages", b"x", Content_Type="text/plain")
        if said.status == 200:
            return
        assert said.status in (429, 503, 504), said
        assert time.monotonic() < until, said
        await asyncio.sleep(0.1)


@attempt("the next 300 ledger ids")
async def ids_ahead(world: World) -> None:
    path = await world.topic("ids-before", rollover={"entries": 5})
    await stores(world, path)
    newest = await newest_ledger(world, path)
    await squat(world, range(newest + 1, newest + 301))
    for _ in range(30):
        await stores(world, path)
    for number in range(4):
        await stores(world, await world.topic(f"ids-after-{number}"))


@attempt("more ledger ids than a bookie keeps", long=True, last=True)
async def ids_without_end(world: World) -> None:
    before = world.rss()
    await squat(world, range(1 << 40, (1 << 40) + 100_000))
    for name, grown in ((name, now - before[name]) for name, now in world.rss().items()):
        assert grown < 100 << 20, f"{name} has grown by {grown >> 20} MiB"
    for number in range(4):
        await stores(world, await world.topic(f"ids-beside-{number}"))
