"""Every broker read every bulk load's record again every ten seconds, one after the other.

An id is remembered for seven days, and nearly all of them rest: thousands of synced reads a round
and broker, for nothing. And one whose partition was slow held up all that came after it. Now what
has changed is read, by watches, and each is finished by itself. Found by reading.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from octavo.broker.bulkload.checks import Offer
from octavo.broker.bulkload.driver import BulkLoads
from octavo.broker.errors import BrokerError, BulkLoadUnfinished
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName
from octavo.metadata.bulk_loads import BulkLoadRecord, BulkLoadStore
from octavo.metadata.one_record import ABSENT
from tests.cluster.test_broker_bulk_loads import commit, private
from tests.support.cluster import (
    Cluster,
    make_topic,
    owned,
    running_cluster,
    until,
    values,
)

ROUND_MS = 20
IDS = [f"t{number:02}" for number in range(30)]


@pytest.fixture
async def brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr("octavo.broker.bulkload.driver._SWEEP_AFTER_MS", 50)
    async with running_cluster(tmp_path) as cluster:
        yield cluster


async def none(*_: object) -> int | None:
    raise BrokerError("nobody answers")


async def test_only_what_has_changed_is_read(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()
    read = BulkLoadStore.read

    async def counted(store: BulkLoadStore, bulk_load: str) -> tuple[BulkLoadRecord, int]:
        reads[bulk_load] += 1
        return await read(store, bulk_load)

    running = await brokers.start("A", trim_interval_ms=ROUND_MS)
    records = BulkLoadStore(running.store)
    resting = BulkLoadRecord(batch=0, since_ms=1, changed_ms=brokers.clock.now_ms)
    for one in IDS:
        await records.write(one, resting, ABSENT)
    monkeypatch.setattr(BulkLoadStore, "read", counted)
    await asyncio.sleep(5 * ROUND_MS / 1000)
    reads.clear()
    await asyncio.sleep(20 * ROUND_MS / 1000)
    assert sum(reads.values()) < len(IDS), "less than once each in 20 rounds"
    reads.clear()
    _, version = await read(records, IDS[7])
    await records.write(IDS[7], replace(resting, batch=1), version)
    await until(lambda: reads[IDS[7]] > 0, "it has changed, and is read again")


async def test_what_changes_while_it_is_read_is_read_again() -> None:
    """The alarm comes between the store's answer and its arrival."""
    store: Any = Mock(list=AsyncMock(return_value=["q"]))

    async def read(_: str) -> tuple[BulkLoadRecord, int]:
        store.watch.call_args.args[1]()
        return BulkLoadRecord(batch=0, changed_ms=1), 0

    store.read = read
    unused: Any = None
    bulk_loads = BulkLoads(store, unused, unused, lambda: 1, lambda: None)
    assert await bulk_loads.due() == ["q"]
    await bulk_loads.sweep("q", unused)
    assert await bulk_loads.due() == ["q"]
    store.read = AsyncMock(return_value=(BulkLoadRecord(batch=0, changed_ms=1), 0))
    await bulk_loads.sweep("q", unused)
    assert await bulk_loads.due() == []


async def test_a_slow_partition_holds_up_no_other_bulk_load(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await brokers.start("A", trim_interval_ms=ROUND_MS)
    slow = await make_topic(running.broker, partitions=2)
    quick = slow.topic_name.partition(1)
    for name in (slow, quick):
        await owned(running.broker, name)
    bulk_loads = running.broker.bulk_loads
    load_part = Partition.load_part

    async def hangs(partition: Partition, bulk_load: str, number: int) -> int | None:
        if partition.name == slow:
            await asyncio.Event().wait()
        return await load_part(partition, bulk_load, number)

    monkeypatch.setattr(Partition, "load_part", hangs)
    for one, name in (("a", slow), ("b", quick)):
        ledger = await private(running, name, one, 0, [2])
        with pytest.raises(BulkLoadUnfinished):
            await bulk_loads.commit(one, 0, [Offer(name, (ledger,))], none)
    async with asyncio.timeout(10):
        while not (await bulk_loads.newest("b")).complete:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert not (await bulk_loads.newest("a")).complete


async def test_another_broker_finishes_what_one_that_died_had_committed(
    brokers: Cluster,
) -> None:
    """It learns of the batch by the watch alone: it knew the bulk load, complete, before."""
    first = await brokers.start("A", trim_interval_ms=600_000)
    second = await brokers.start("B", trim_interval_ms=ROUND_MS)
    name = await make_topic(first.broker)
    await owned(second.broker, name)

    async def offer(number: int) -> list[Offer]:
        ledger = await private(first, name, "q", number, [1], f"n{number}-")
        return [Offer(PartitionName(*name), (ledger,))]

    await commit(second, "q", 0, await offer(0))
    seen = second.broker.bulk_loads
    await until(lambda: "q" in seen.known and seen._seen["q"].complete, "known, complete")
    offers = await offer(1)
    with pytest.raises(BulkLoadUnfinished):
        await first.broker.bulk_loads.commit("q", 1, offers, none)
    await first.vanish()
    async with asyncio.timeout(10):
        while not (await seen.newest("q")).complete:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await values(await owned(second.broker, name)) == ["n0-0-0", "n1-0-0"]
