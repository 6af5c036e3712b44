"""Every broker read every transaction's record again every ten seconds, one after the other.

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
from octavo.broker.bulkload.driver import Transactions
from octavo.broker.errors import BrokerError, SpliceUnfinished
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName
from octavo.metadata.transactions import ABSENT, TransactionRecord, TransactionStore
from tests.cluster.test_broker_transactions import commit, private
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
    read = TransactionStore.read

    async def counted(store: TransactionStore, transaction: str) -> tuple[TransactionRecord, int]:
        reads[transaction] += 1
        return await read(store, transaction)

    running = await brokers.start("A", trim_interval_ms=ROUND_MS)
    records = TransactionStore(running.store)
    resting = TransactionRecord(batch=0, since_ms=1, changed_ms=brokers.clock.now_ms)
    for one in IDS:
        await records.write(one, resting, ABSENT)
    monkeypatch.setattr(TransactionStore, "read", counted)
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

    async def read(_: str) -> tuple[TransactionRecord, int]:
        store.watch.call_args.args[1]()
        return TransactionRecord(batch=0, changed_ms=1), 0

    store.read = read
    unused: Any = None
    transactions = Transactions(store, unused, unused, lambda: 1, lambda: None)
    assert await transactions.due() == ["q"]
    await transactions.sweep("q", unused)
    assert await transactions.due() == ["q"]
    store.read = AsyncMock(return_value=(TransactionRecord(batch=0, changed_ms=1), 0))
    await transactions.sweep("q", unused)
    assert await transactions.due() == []


async def test_a_slow_partition_holds_up_no_other_transaction(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await brokers.start("A", trim_interval_ms=ROUND_MS)
    slow = await make_topic(running.broker, partitions=2)
    quick = slow.topic_name.partition(1)
    for name in (slow, quick):
        await owned(running.broker, name)
    transactions = running.broker.transactions
    splice = Partition.splice

    async def hangs(partition: Partition, transaction: str, number: int) -> int | None:
        if partition.name == slow:
            await asyncio.Event().wait()
        return await splice(partition, transaction, number)

    monkeypatch.setattr(Partition, "splice", hangs)
    for one, name in (("a", slow), ("b", quick)):
        ledger = await private(running, name, one, 0, [2])
        with pytest.raises(SpliceUnfinished):
            await transactions.commit(one, 0, [Offer(name, (ledger,))], none)
    async with asyncio.timeout(10):
        while not (await transactions.newest("b")).complete:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert not (await transactions.newest("a")).complete


async def test_another_broker_finishes_what_one_that_died_had_committed(
    brokers: Cluster,
) -> None:
    """It learns of the batch by the watch alone: it knew the transaction, complete, before."""
    first = await brokers.start("A", trim_interval_ms=600_000)
    second = await brokers.start("B", trim_interval_ms=ROUND_MS)
    name = await make_topic(first.broker)
    await owned(second.broker, name)

    async def offer(number: int) -> list[Offer]:
        ledger = await private(first, name, "q", number, [1], f"n{number}-")
        return [Offer(PartitionName(*name), (ledger,))]

    await commit(second, "q", 0, await offer(0))
    seen = second.broker.transactions
    await until(lambda: "q" in seen.known and seen._seen["q"].complete, "known, complete")
    offers = await offer(1)
    with pytest.raises(SpliceUnfinished):
        await first.broker.transactions.commit("q", 1, offers, none)
    await first.vanish()
    async with asyncio.timeout(10):
        while not (await seen.newest("q")).complete:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await values(await owned(second.broker, name)) == ["n0-0-0", "n1-0-0"]
