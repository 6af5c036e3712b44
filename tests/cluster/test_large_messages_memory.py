"""A hundred megabytes go in and come out, and no more than a few of them are in memory."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout
from crc32c import crc32c

from octavo.broker.http.api.large import UPLOAD_HELD_BYTES
from octavo.broker.partition.large import PIECES_UNDER_WAY_MAX
from octavo.protocol.large import PIECE_BYTES
from tests.support.cluster import Cluster, running_cluster, until

ONE = "/v1/topics/public/one"
PART = bytes(range(256)) * 1024
SIZE = 100 * 1024 * 1024
MEMORY_MAX = 32 * 1024 * 1024
"""Of all that is allocated while it passes. Bookies and brokers are one process here, and bookies
have what they have not flushed in memory, so those that take it have little room for that."""


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


async def test_there_are_no_more_uploads_at_once_than_there_is_room_for(tmp_path: Path) -> None:
    """One address may have three quarters of the room for bodies: one upload, and not two."""
    async with running_cluster(tmp_path) as cluster:
        await cluster.start_broker("broker-0", bodies_bytes_max=2 * UPLOAD_HELD_BYTES)
        assert (await cluster.api.put(ONE)).status == 201
        go_on = asyncio.Event()

        async def slow() -> AsyncGenerator[bytes, None]:
            yield PART
            await go_on.wait()

        first = asyncio.create_task(cluster.api.call("PUT", ONE + "/large", data=slow()))
        server = cluster.brokers["broker-0"].server
        assert server is not None
        await until(lambda: server._services.held.total, "the first one is under way")
        answer = await cluster.api.call("PUT", ONE + "/large", data=PART * 8)
        assert (answer.status, answer.json()["code"]) == (429, "overloaded"), answer
        go_on.set()
        # Whatever slow disks make of them: there is room.
        assert (await first).status != 429
        assert not server._services.held.total
        assert (await cluster.api.call("PUT", ONE + "/large", data=PART * 8)).status != 429


def test_what_an_upload_counts_as_is_what_it_takes() -> None:
    """A piece that gathers, the part that came last, and those on their way, which are copied."""
    assert UPLOAD_HELD_BYTES >= (PIECES_UNDER_WAY_MAX + 2) * PIECE_BYTES
