"""Retention deleted messages of age 0, because their ledger began and ended with old ones.

A take-over read the first and the last batch of the ledger that it closed, and took the newer of
their timestamps for the newest of all. A producer that fills up old data beside a live one was
enough: 999 of 1,000 messages were gone 1.5 s after the next take-over, with a retention of 24 h.
Tried from outside; the simulator's producers all stamped with a clock that goes on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.broker.log.ledger_list import Contents
from octavo.broker.log.record import with_ledgers
from octavo.broker.partition.partition import Partition
from octavo.ledger.errors import LedgerError
from octavo.metadata.topics import PartitionLedger
from tests.support.cluster import Cluster, batch, make_topic, owned, running_cluster, until

DAY_MS = 24 * 3600 * 1000


async def taken_over(brokers: Cluster, *ages_days: float) -> Partition:
    """A partition with a retention of a day, in which a dead owner left messages so old."""
    first = await brokers.start("A")
    name = await make_topic(first.broker, retention_ms=DAY_MS)
    partition = await owned(first.broker, name)
    for age in ages_days:
        await partition.publish(batch(1, time_ms=brokers.clock.now_ms - int(age * DAY_MS)))
    await first.vanish()
    return await owned((await brokers.start("B")).broker, name)


async def kept_up(partition: Partition) -> None:
    for _ in range(3):
        await partition.maintain()
        await until(lambda: partition._maintenance._measuring is None, "the ledger is measured")


def oldest(partition: Partition) -> PartitionLedger:
    return partition._record.ledgers.segments[0]


async def test_fresh_messages_between_old_ones_stay(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as brokers:
        partition = await taken_over(brokers, 400, 0, 0, 0.5, 400)
        await kept_up(partition)
        assert partition.earliest_offset == 0
        link, now_ms = oldest(partition), brokers.clock.now_ms
        assert (link.first_ms, link.last_ms) == (now_ms - 400 * DAY_MS, now_ms)
        assert link.disorder_ms == 400 * DAY_MS


async def test_what_is_old_throughout_goes(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as brokers:
        partition = await taken_over(brokers, 400, 2, 3, 400)
        await kept_up(partition)
        assert partition.earliest_offset == 4


async def test_a_ledger_that_cannot_be_read_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as brokers:
        partition = await taken_over(brokers, 400, 2, 3, 400)

        async def refuse(_: PartitionLedger) -> Contents:
            raise LedgerError("no bookie answers")

        monkeypatch.setattr(partition._log.reader, "contents_of", refuse)
        await kept_up(partition)
        assert partition.earliest_offset == 0
        monkeypatch.undo()
        await kept_up(partition)
        assert partition.earliest_offset == 4, "and goes when it can be read again"


async def test_what_an_older_version_wrote_is_not_believed(tmp_path: Path) -> None:
    """Nothing tells a right link of such a version from a wrong one."""
    async with running_cluster(tmp_path) as brokers:
        partition = await taken_over(brokers, 400, 0, 400)
        wrong = Contents(3, 0, 0, brokers.clock.now_ms - 400 * DAY_MS, -1)
        await partition._record.change(
            lambda record: with_ledgers(
                record, partition._record.ledgers.measuring(oldest(partition).ledger_id, wrong)
            )
        )
        await kept_up(partition)
        assert partition.earliest_offset == 0
        assert oldest(partition).last_ms == brokers.clock.now_ms
