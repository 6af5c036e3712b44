"""Many of each harmless thing: connections, heads, long polls, half bodies."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.attack.attempts import attempt
from tests.attack.attempts_requests import T, request
from tests.attack.world import World, open_to

HELD_S = 4.0


async def serves(world: World, broker: int = 0) -> None:
    began = time.monotonic()
    said = await world.ask("GET", "/healthz", broker=broker)
    assert said.status == 200, said
    assert time.monotonic() - began < 5, "the broker answers late"


@attempt("connections that say nothing")
async def silent_connections(world: World) -> None:
    async with world.connections(1_000):
        await serves(world)


@attempt("more connections than there may be", long=True)
async def too_many_connections(world: World) -> None:
    async with world.connections(11_000):
        await serves(world)
        await serves(world)
    await serves(world)


@attempt("half a head each")
async def half_heads(world: World) -> None:
    async with world.connections(500, b"GET /healthz HTTP/1.1\r\nHost: loc"):
        await serves(world)


@attempt("heads that announce 8 MiB, and no body")
async def announced_bodies(world: World) -> None:
    await world.topic("attacked")
    head = f"POST {T}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8388608\r\n\r\n"
    async with world.connections(64, head.encode()):
        await asyncio.sleep(HELD_S)
        said = await world.ask("POST", f"{T}/messages", b"x", Content_Type="text/plain")
        assert said.status == 200, said


@attempt("bodies that stand still when all but a byte is there", long=True)
async def unfinished_bodies(world: World) -> None:
    await world.topic("attacked")
    head = f"POST {T}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n"
    async with world.connections(40, head.encode() + bytes(7_999_999)):
        await asyncio.sleep(HELD_S)
        await serves(world)


@attempt("lines of messages that never end")
async def endless_lines(world: World) -> None:
    await world.topic("attacked")
    head = (
        f"POST {T}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b'{"value":"' + b"x" * 3_000_000
    body = b"%x\r\n" % len(chunk) + chunk + b"\r\n"
    async with world.connections(20, head.encode() + body):
        await asyncio.sleep(HELD_S)
        await serves(world)


@attempt("long polls at a broker that passes them on")
async def forwarded_polls(world: World) -> None:
    path = await world.topic("polled")
    owner = await world.owner(path)
    other = (owner + 1) % len(world.brokers)
    poll = request("GET", f"{path}/messages?from=latest&wait=30s")
    async with world.connections(600, poll, broker=other):
        await asyncio.sleep(1)
        for _ in range(20):
            said = await world.ask(
                "POST", f"{path}/messages", b"x", broker=other, Content_Type="text/plain"
            )
            assert said.status == 200, said


@attempt("answers that nobody reads")
async def unread_answers(world: World) -> None:
    path = await world.topic("unread")
    lines = b"".join(b'{"value":"%s"}\n' % (b"x" * 1000) for _ in range(4_000))
    said = await world.ask("POST", f"{path}/messages", lines, Content_Type="application/x-ndjson")
    assert said.status == 200, said
    query = "from=earliest&limit=4000&max_bytes=4000000"
    ask = f"GET {path}/messages?{query} HTTP/1.1\r\nHost: a\r\n\r\n"
    async with world.connections(60, ask.encode() * 20) as made:
        for _, writer in made:
            reading: Any = writer.transport
            reading.pause_reading()
        await asyncio.sleep(HELD_S)
        await serves(world)


@attempt("requests one behind the other without reading")
async def pipelined(world: World) -> None:
    async with world.connections(
        20, request("GET", "/v1/cluster").replace(b"close", b"keep") * 500
    ):
        await asyncio.sleep(2)
        await serves(world)


@attempt("connections opened and closed as fast as it goes")
async def churn(world: World) -> None:
    until = time.monotonic() + HELD_S
    while time.monotonic() < until:
        made = await asyncio.gather(
            *(open_to(world.brokers[0]) for _ in range(50)), return_exceptions=True
        )
        for one in made:
            if not isinstance(one, BaseException):
                one[1].transport.abort()
    await serves(world)


@attempt("nonsense to a bookie")
async def bookie_nonsense(world: World) -> None:
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(64),
        b"\xff" * 64,
        b"\x7f\xff\xff\xff" + b"x" * 64,
    ):
        for address in world.bookies:
            for _ in range(50):
                _, writer = await open_to(address)
                writer.write(data)
                writer.close()


@attempt("half frames to a bookie")
async def half_frames(world: World) -> None:
    made = []
    for _ in range(500):
        _, writer = await open_to(world.bookies[0])
        writer.write(b"\x00\x00\x10\x00" + bytes(100))
        made.append(writer)
    await asyncio.sleep(1)
    for writer in made:
        writer.transport.abort()


@attempt("malformed requests as fast as it goes, for the log's sake")
async def malformed_for_the_log(world: World) -> None:
    before = world.log_bytes()
    until = time.monotonic() + HELD_S
    while time.monotonic() < until:
        some = [world.raw(b"\x16\x03\x01\r\n\r\n", broker=0, wait_s=5) for _ in range(20)]
        for said in await asyncio.gather(*some):
            assert said.status in (400, 503), said
    assert (more := world.log_bytes() - before) < 50_000, f"{more} bytes of log"
