"""A reader never heard that its ledger was closed, and the last entry could not be read any more.

A ledger's record was read first and watched then. Whatever changed between the two, nobody was told
of. When it was the close, nothing changes any more: the reader, which its broker keeps, waited at
every question for an entry that its bookies had no reason to confirm, five seconds each time, and
answered 503. Met by a test on a busy machine, once in some ten thousand. The second way to the same
end: the record had changed, and the one attempt to read it again failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.ledger.records import read_record
from octavo.metadata.store import MetadataUnavailable
from tests.support.cluster import Cluster, running_cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as cluster:
        yield cluster


async def test_closed_after_the_record_was_read_and_before_it_is_watched(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client(explicit_lac_interval_ms=60_000.0)
    writer = await client.create()
    await writer.append(b"the only one")
    told = asyncio.Event()

    async def read_just_before_the_close(*asked: Any) -> Any:
        found = await read_record(*asked)
        watch = client.records.watch(writer.ledger_id, told.set)
        await writer.close()
        async with asyncio.timeout(15):
            await told.wait()  # all who watch have heard of it
        watch.cancel()
        return found

    monkeypatch.setattr("octavo.ledger.client.read_record", read_just_before_the_close)
    reader = await client.open(writer.ledger_id)
    assert await reader.wait_for(-1, 15) == 0
    assert reader.is_closed
    await reader.close()


async def test_a_record_that_could_not_be_read_at_once_is_read_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client(explicit_lac_interval_ms=60_000.0)
    writer = await client.create()
    await writer.append(b"the only one")
    reader = await client.open(writer.ledger_id)
    failures = 0

    async def fail_twice(*asked: Any) -> Any:
        nonlocal failures
        if failures < 2:
            failures += 1
            raise MetadataUnavailable("a moment")
        return await read_record(*asked)

    monkeypatch.setattr("octavo.ledger.read.reader.read_record", fail_twice)
    await writer.close()
    assert await reader.wait_for(-1, 15) == 0
    assert reader.is_closed
    assert failures == 2
    await reader.close()
