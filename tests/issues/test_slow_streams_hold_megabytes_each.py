"""Each slow reader of a subscription's stream made its broker hold megabytes that nobody counted:
500 of them took more than a gigabyte, twice what a broker is said to take at most.

A stream asked for 500 messages at a time, however long they were, several times over, and made all
frames of them before it sent the first. It asks for 64 KiB now, and what it holds is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import aiohttp
import pytest

from octavo import AsyncClient
from octavo.broker.http.api import feed
from octavo.broker.http.held_bytes import HeldBytes
from tests.support.cluster import running_cluster
from tests.support.fake_broker import until

MESSAGE_BYTES = 8_000
READERS = 6
BOUND = 2 * 1024 * 1024
TOPIC = "/v1/topics/public/t"


@pytest.mark.parametrize("form", ["json", "batches"])
async def test_what_slow_sockets_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    found: list[int] = []
    ready = feed.Feed._ready_for

    async def noting(self: feed.Feed, one: feed.Handout) -> None:
        found.append(one.held_bytes)
        await ready(self, one)

    monkeypatch.setattr(feed.Feed, "_ready_for", noting)
    async with running_cluster(tmp_path, brokers=1) as cluster:
        api = await cluster.start_broker("small", bodies_bytes_max=BOUND, stall_timeout_ms=60_000)
        server = cluster.brokers["small"].server
        assert server is not None
        held = server._services.held
        async with AsyncClient(cluster.api.url) as client, aiohttp.ClientSession() as session:
            await client.create_topic("t")
            async with client.producer("t", batch_bytes=20_000) as producer:
                for _ in range(2_000):
                    await producer.send(b"x" * MESSAGE_BYTES)
            async with contextlib.AsyncExitStack() as stack:
                for number in range(READERS):
                    await client.subscribe("t", f"s{number}", type="shared")
                    path = f"{TOPIC}/subscriptions/s{number}/stream?credits=2000&form={form}"
                    ws = await stack.enter_async_context(
                        session.ws_connect(api.url + path, max_msg_size=0, compress=0)
                    )
                    transport = ws._response.connection.transport  # type: ignore[union-attr]
                    assert transport is not None
                    transport.pause_reading()  # type: ignore[attr-defined]
                    stack.callback(transport.abort)  # type: ignore[attr-defined]
                await until(lambda: held.total >= BOUND // 8, 60)
                most = 0
                for _ in range(50):
                    most = max(most, held.total)
                    await asyncio.sleep(0.02)
                assert most < 2 * BOUND
            await until(lambda: held.total == 0, 60)
    first = feed.FIRST_OF_ALL * (MESSAGE_BYTES + 400)
    if form == "batches":  # stored batches stay whole; after an interruption one has 256 KiB
        first += 2 * 256 * 1024
    longest = 2 * max(first, feed.HANDOUT_BYTES + 30_000)
    assert found
    assert max(found) <= longest


def test_half_of_the_room_is_for_bodies() -> None:
    held = HeldBytes(1000)
    assert held.has_room_to_send(500)
    held.count_going_out("a", 500)
    assert not held.has_room_to_send(1)
    assert held.try_take("a", 250), "three quarters are one address's"
    assert held.try_take("b", 250)
    assert not held.try_take("b", 1)
    held.count_going_out("a", -500)
    assert held.total == 500
    assert held.has_room_to_send(500)
    assert not held.has_room_to_send(501)
