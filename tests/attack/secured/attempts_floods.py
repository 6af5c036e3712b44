"""Floods of refused requests: they cost a bounded sum, and callers with rights go on."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time

from tests.attack.secured.attempts import another_address, bearer, request, secured
from tests.attack.secured.tokens import claims_of, signed
from tests.attack.secured.world import OPEN_TOPIC, SecuredWorld
from tests.attack.world import open_to

LOGINS = 10_000
AT_ONCE = 50
ROUND_S = 10.0


async def works(world: SecuredWorld) -> None:
    began = time.monotonic()
    said = await world.ask(
        "POST", f"{OPEN_TOPIC}/messages", b"x", who="alice", Content_Type="text/plain"
    )
    assert said.status == 200, said
    assert time.monotonic() - began < ROUND_S, "who may is answered late"


async def flood(world: SecuredWorld, broker: int, heads: list[bytes], count: int) -> set[bytes]:
    """Send `count` requests over a few connections, from a new address so that failures pause no
    other client; return the statuses."""
    found: set[bytes] = set()
    left, source = count, another_address()

    async def one() -> None:
        nonlocal left
        reader, writer = await open_to(world.brokers[broker], world.tls, source)
        try:
            while left > 0:
                left -= 1
                writer.write(heads[left % len(heads)])
                async with asyncio.timeout(30):
                    head = await reader.readuntil(b"\r\n\r\n")
                    found.add(head[9:12])
                    length = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
                    body = await reader.readexactly(int(length))
                world.guard(head + body)
                if b"connection: close" in head.lower():
                    writer.close()
                    reader, writer = await open_to(world.brokers[broker], world.tls, source)
        finally:
            writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    return found


async def beside(world: SecuredWorld, flooding: asyncio.Task[set[bytes]]) -> set[bytes]:
    while not flooding.done():
        await works(world)
        await asyncio.sleep(0.5)
    return await flooding


@secured("ten thousand passwords", long=True)
async def passwords(world: SecuredWorld) -> None:
    """Work is bounded, and the address is paused at last."""
    heads = []
    for number in range(500):
        name = "root" if number % 2 else f"user-{number}"
        proof = base64.b64encode(f"{name}:password-{number}".encode())
        heads.append(request(lines=[b"Authorization: Basic " + proof], close=False))
    found = await beside(world, asyncio.create_task(flood(world, 0, heads, LOGINS)))
    assert found <= {b"401", b"429", b"503"}, found
    await works(world)


@secured("ten thousand tokens, each another one", long=True)
async def tokens(world: SecuredWorld) -> None:
    heads = [
        request(lines=[bearer(signed(bytes(32), claims_of(f"u{number}")))], close=False)
        for number in range(2_000)
    ]
    found = await beside(world, asyncio.create_task(flood(world, 0, heads, LOGINS)))
    assert found <= {b"401", b"429"}, found
    await works(world)


@secured("ten thousand calls without a word of who")
async def strangers(world: SecuredWorld) -> None:
    found = await beside(
        world, asyncio.create_task(flood(world, 1, [request(close=False)], LOGINS))
    )
    assert found <= {b"401", b"429"}, found


@secured("ten thousand calls of one who may not", long=True)
async def forbidden(world: SecuredWorld) -> None:
    heads = [
        request(
            path=f"/v1/topics/vault/t{number}", lines=[bearer(world.tokens["mallory"])], close=False
        )
        for number in range(2_000)
    ]
    found = await beside(world, asyncio.create_task(flood(world, 1, heads, LOGINS)))
    assert found <= {b"403", b"429"}, found


@secured("keys of issuers that are asked for, each another one")
async def unknown_keys(world: SecuredWorld) -> None:
    """No request may go out for each of them."""
    heads = [
        request(
            lines=[bearer(signed(bytes(32), claims_of("root", iss="https://idp.example"),
                                 kid=f"key-{number}", algorithm="RS256"))],
            close=False,
        )
        for number in range(1_000)
    ]  # fmt: skip
    found = await flood(world, 0, heads, 2_000)
    assert found <= {b"401", b"429"}, found


@secured("a long body behind no right to send it")
async def bodies_of_strangers(world: SecuredWorld) -> None:
    """A caller without a right is refused by its head: the broker does not read its 8 MiB."""
    head = request("POST", f"{OPEN_TOPIC}/messages", [b"Content-Type: text/plain"], close=False)
    head = head.replace(b"Content-Length: 0", b"Content-Length: 8000000")
    began = time.monotonic()
    for broker in range(len(world.brokers)):
        await world.refused(head, (401,), broker=broker)
    assert time.monotonic() - began < 5


@secured("connections that show nothing and say nothing")
async def silent(world: SecuredWorld) -> None:
    writers = []
    for _ in range(600):
        with contextlib.suppress(OSError):
            _, writer = await open_to(world.brokers[0], world.tls)
            writers.append(writer)
    await works(world)
    for writer in writers:
        writer.transport.abort()


@secured("48 uploads at a byte a second take the room for bodies")
async def trickled_uploads(world: SecuredWorld) -> None:
    head = request(
        "POST", "/v1/topics/tenant/own/large",
        lines=[bearer(world.tokens["mallory"]), b"Transfer-Encoding: chunked"], close=False,
    ).replace(b"Content-Length: 0\r\n", b"")  # fmt: skip
    began = time.monotonic()
    writers = []
    try:
        for number in range(48):
            _, writer = await open_to(world.brokers[number % len(world.brokers)], world.tls)
            writer.write(head)
            writers.append(writer)
        while time.monotonic() - began < 6.0:
            for writer in writers:
                if not writer.is_closing():
                    writer.write(b"1\r\nx\r\n")
            await works(world)
            body = b"x" * 1_000_000
            said = await world.ask("POST", f"{OPEN_TOPIC}/messages", body, who="alice")
            assert said.status == 200, said
            await asyncio.sleep(1.0)
    finally:
        for writer in writers:
            writer.transport.abort()


@secured("one tenant takes all consumer groups, and claims partitions of another")
async def other_doors(world: SecuredWorld) -> None:
    member = "/v1/groups/tenant/g/members/m"
    body = {"topics": ["own"], "holds": ["vault/secret/0"]}
    said = await world.ask("POST", member, body, who="mallory")
    assert said.status == 200, said
    assert b"vault" not in said.body, said
    statuses = set()
    for number in range(520):
        path = f"/v1/groups/tenant/g{number}/members/m"
        said = await world.ask("POST", path, {"topics": ["own"]}, who="mallory")
        statuses.add(said.status)
    assert 409 in statuses, "one principal founds no more than a part of all groups"
    assert statuses <= {200, 409}, statuses
    for number in range(520):
        await world.ask("DELETE", f"/v1/groups/tenant/g{number}/members/m", who="mallory")
    await world.ask("DELETE", member, who="mallory")
