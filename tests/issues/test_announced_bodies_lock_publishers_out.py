"""Heads that announced 8 MiB each, with no byte of body, took all room for bodies for a minute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.fake_broker import Running, running, until

TOPIC = "/v1/topics/public/one"
MESSAGES = f"{TOPIC}/messages"


@asynccontextmanager
async def senders(one: Running, count: int, announced: int, sent: int) -> AsyncIterator[None]:
    """So many publishes that announce `announced` bytes, send `sent` of them, and then nothing."""
    host, _, port = one.api.url.removeprefix("http://").partition(":")
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {MESSAGES} HTTP/1.1\r\nHost: x\r\nContent-Length: {announced}\r\n\r\n"
        writer.write(head.encode() + bytes(sent))
        writers.append(writer)
    server = one.servers[0]
    await until(lambda: server._services.in_hand.count >= count)
    await until(lambda: server._services.held._held >= sent * count * 9 // 10)
    try:
        yield
    finally:
        for writer in writers:
            writer.close()


async def publish(one: Running) -> int:
    async with asyncio.timeout(10):
        return (await one.api.post(MESSAGES, b"x" * 1000, "text/plain")).status


async def test_what_is_announced_takes_no_room() -> None:
    async with running(1, bodies_bytes_max=1_000_000, body_bytes_max=100_000) as one:
        assert (await one.api.put(TOPIC)).status == 201
        async with senders(one, 32, announced=100_000, sent=0):
            assert one.servers[0]._services.held._held == 0
            assert await publish(one) == 200


async def test_who_stands_still_loses_its_place() -> None:
    async with running(1, bodies_bytes_max=1_000_000, body_bytes_max=100_000) as one:
        assert (await one.api.put(TOPIC)).status == 201
        held = one.servers[0]._services.held
        # Their peer may take 750,000 bytes: the next one has to wait for the first to be cut off.
        async with senders(one, 10, announced=100_000, sent=74_900):
            assert held.pressed
            # The broker looks every two seconds, and who is told to come back comes back.
            while await publish(one) != 200:
                pass
            await until(lambda: not held.pressed, 20)


async def test_another_peer_has_room_while_one_takes_all_it_can() -> None:
    from octavo.broker.errors import Overloaded
    from octavo.broker.http.held_bytes import HeldBytes

    held = HeldBytes(1_000)
    await held.take("a", 750)
    taking = asyncio.ensure_future(held.take("a", 1))
    await held.take("b", 250)
    held.give_back("b", 250)
    assert not taking.done()
    held.give_back("a", 750)
    await taking
    held.give_back("a", 1)
    assert not held._by_peer
    await held.take("a", 700)
    refused = await asyncio.gather(held.take("a", 100), return_exceptions=True)
    assert isinstance(refused[0], Overloaded)
