"""A copy of a large message that was given up amid its insertion had its ledger deleted.

Dead letters and retries of large messages are given so much time. What was under way when it was
over was cut off, but not the insertion, which goes on by itself: the record came to name a ledger
that whoever had been cut off threw away. The copy was lost, the next attempt took it for stored,
and nobody could read beyond it. Seeds of profile `large` found it as soon as they had such copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from octavo.broker.types import TopicName
from octavo.metadata.topics import PartitionRecord
from tests.cluster.test_large_messages import BODY, ONE, body_at, plain, shown, uploaded
from tests.support.cluster import Cluster, owned, running_cluster

Make = Callable[[PartitionRecord], PartitionRecord]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        assert (await found.api.put(ONE)).status == 201
        yield found


@pytest.mark.parametrize("applied", [False, True])
async def test_a_copy_that_is_given_up_amid_its_insertion_is_there(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    first = (await uploaded(cluster))["offset"]
    (broker,) = cluster.brokers.values()
    partition = await owned(broker.broker, TopicName("public", "one").partition(0))
    reached, released = asyncio.Event(), asyncio.Event()
    change = partition._record.change

    async def slow(make: Make) -> PartitionRecord:
        found = await change(make) if applied else None
        reached.set()
        await released.wait()
        return found or await change(make)

    monkeypatch.setattr(partition._record, "change", slow)
    reader = await partition.body(first)

    async def copies() -> None:
        async with aclosing(reader.pieces()) as pieces:
            await partition.copy_large("letter:1", reader.record, pieces)

    copying = asyncio.create_task(copies())
    async with asyncio.timeout(20):
        await reached.wait()
    copying.cancel()
    await asyncio.wait((copying,))
    await asyncio.sleep(0.2)
    released.set()
    last = await plain(cluster, "behind it")
    copy = last - 1
    assert await shown(cluster) == [(first, len(BODY)), (copy, len(BODY)), (last, "behind it")]
    assert await body_at(cluster, copy) == BODY
    again = await partition.begin_large("letter:1")
    assert getattr(again, "first_offset", None) == copy
