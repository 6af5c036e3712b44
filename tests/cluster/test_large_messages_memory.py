"""A hundred megabytes go in and come out, with no more than a few of them in memory."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout
from crc32c import crc32c

from octavo.broker.operations.large import HELD_BYTES, HELD_BYTES_MIN
from octavo.broker.partition.large import PIECES_UNDER_WAY_MAX
from octavo.protocol.large import PIECE_BYTES
from tests.support.cluster import Cluster, running_cluster, until

ONE = "/v1/topics/public/one"
PART = bytes(range(256)) * 1024
SIZE = 100 * 1024 * 1024
MEMORY_MAX = 32 * 1024 * 1024
"""The most that is allocated while it passes; bookies, which keep unflushed data in memory, have
little room for that here."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    small: dict[str, Any] = {
        "write_cache_bytes_max": 4 * PIECE_BYTES,
        "read_cache_bytes_max": PIECE_BYTES,
    }
    async with running_cluster(tmp_path, 1, brokers=1, **small) as found:
        body = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
        assert (await found.api.put(ONE, json=body)).status == 201
        yield found


async def in_parts() -> AsyncGenerator[bytes, None]:
    for _ in range(SIZE // len(PART)):
        yield PART


async def test_a_hundred_megabytes_pass_through_bounded_memory(cluster: Cluster) -> None:
    whole = 0
    for _ in range(SIZE // len(PART)):
        whole = crc32c(PART, whole)
    timeout = ClientTimeout(total=280)
    async with ClientSession(timeout=timeout) as session:
        tracemalloc.start()
        try:
            async with session.put(cluster.api.url + ONE + "/large", data=in_parts()) as answer:
                assert answer.status == 200, await answer.text()
                found = await answer.json()
            assert (found["size"], found["crc32c"]) == (SIZE, f"{whole:08x}")
            _, peak_in = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            crc = size = 0
            url = f"{cluster.api.url}{ONE}/messages/{found['offset']}/body"
            async with session.get(url) as answer:
                assert answer.headers["Octavo-Crc32c"] == found["crc32c"]
                async for part in answer.content.iter_any():
                    crc, size = crc32c(part, crc), size + len(part)
            _, peak_out = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (size, crc) == (SIZE, whole)
    assert max(peak_in, peak_out) < MEMORY_MAX, (peak_in, peak_out)


async def test_uploads_count_as_what_has_arrived_and_slow_ones_make_room(tmp_path: Path) -> None:
    """Each upload of a byte a second counted as 8 MiB: 48 of them took all room for bodies."""
    async with running_cluster(tmp_path) as cluster:
        await cluster.start_broker("broker-0", bodies_bytes_max=2 * HELD_BYTES)
        assert (await cluster.api.put(ONE)).status == 201
        go_on = asyncio.Event()

        async def trickle(first: bytes = b"x") -> AsyncGenerator[bytes, None]:
            yield first
            while not go_on.is_set():
                await asyncio.sleep(0.2)
                yield b"x"

        server = cluster.brokers["broker-0"].server
        assert server is not None
        held = server._services.held
        slow = [
            asyncio.create_task(cluster.api.call("PUT", ONE + "/large", data=trickle()))
            for _ in range(24)
        ]
        await until(lambda: held.total >= 24 * HELD_BYTES_MIN, "all are under way")
        assert held.total < 24 * HELD_BYTES_MIN + 24 * 1024, "what has arrived, no more"
        answer = await cluster.api.call("PUT", ONE + "/large", data=PART * 8)
        assert answer.status == 200, answer
        # Uploads that have filled more than half of the room, and trickle on, lose their places.
        greedy = [
            asyncio.create_task(cluster.api.call("PUT", ONE + "/large", data=trickle(PART * 16)))
            for _ in range(2)
        ]
        await until(lambda: held.pressed, "more than half is taken")
        await until(lambda: not held.pressed, "the slowest have made room")
        await until(lambda: any(one.done() for one in greedy), "the client hears of it")
        answers = [await one for one in greedy if one.done()]
        assert [(one.status, one.json()["code"]) for one in answers] == [(408, "body-too-slow")]
        go_on.set()
        await asyncio.gather(*slow, *greedy)
        assert not held.total, "whatever became of them, all is given back"
        assert not held._by_peer


def test_what_an_upload_counts_as_is_what_it_takes() -> None:
    assert HELD_BYTES >= (PIECES_UNDER_WAY_MAX + 2) * PIECE_BYTES
