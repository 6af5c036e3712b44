"""`message_time: append`: the owner's time of storing a batch, the same for every reader."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from octavo.broker.cluster.forks import OwnersPoint
from octavo.broker.errors import PartitionUnavailable
from octavo.broker.partition.partition import Partition
from octavo.broker.partition.rollover import Insertion
from octavo.broker.types import PartitionName, SubscriptionSettings, TopicSettings
from octavo.metadata.topics import Policies
from octavo.protocol.append_time import ROLL_AFTER_MS, SPAN_MS
from octavo.protocol.batch import check_batch, with_base_offset
from octavo.protocol.records import Record, build_batch
from tests.cluster.test_broker_bulk_loads import private
from tests.cluster.test_compaction_by_itself import horizon_of
from tests.support.cluster import TOPIC, Cluster, batch, make_topic, owned, until

APPEND = Policies(message_time="append")
CREATE = Policies(message_time="create")
HOUR_MS = 3_600_000


async def times(partition: Partition, start: int = 0, *, compacted: bool = False) -> list[int]:
    found: list[int] = []
    offset = start
    opener = partition._context.open_batches
    while offset < partition.next_offset:
        for one in await partition.read(offset, bytes_max=100_000, count_max=10_000):
            check_batch(one.data)
            async with opener.opened(one) as windows:
                records = [record for _, some in windows.following(0) for record in some]
            at = records[offset - one.base_offset : one.header.record_count]
            assert {record.timestamp_ms for record in at} <= {
                one.header.first_timestamp,
                one.header.max_timestamp,
            }
            found += [record.timestamp_ms for record in at]
            offset = one.next_offset
    return found


async def cold(partition: Partition, start: int = 0) -> list[int]:
    partition._log.tail.clear()
    partition._log.tail = partition._log._cache.partition()
    return await times(partition, start)


async def lookups(partition: Partition, found: list[int], before: int) -> None:
    for time_ms in sorted({one + more for one in found for more in (0, 1)}):
        wanted = next((n for n, one in enumerate(found) if one >= time_ms), len(found))
        assert await partition.offset_at(time_ms) == before + wanted, time_ms


async def test_a_batch_has_the_time_at_which_it_is_stored_through_a_take_over(
    cluster: Cluster,
) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, policies=APPEND)
    partition = await owned(one.broker, name)
    clock, begun = cluster.clock, cluster.clock.now_ms
    await partition.publish(batch(2, time_ms=7))
    clock.now_ms += 5_000
    await partition.publish(batch(1, time_ms=2**50))
    clock.now_ms -= HOUR_MS
    await partition.publish(batch(1))
    wanted = [begun, begun, begun + 5_000, begun + 5_000]
    assert await times(partition) == wanted, "they never go back"
    assert await cold(partition) == wanted
    await lookups(partition, wanted, 0)
    await one.vanish()
    partition = await owned((await cluster.start("B")).broker, name)
    await partition.publish(batch(1))
    wanted.append(begun + 5_000)
    assert await cold(partition) == wanted, "nor at an owner whose clock is behind"
    clock.now_ms = begun + HOUR_MS
    await partition.publish(batch(3))
    wanted += [begun + HOUR_MS] * 3
    assert await times(partition) == wanted
    await lookups(partition, wanted, 0)
    assert partition._record.ledgers.segments[0].disorder_ms == 0, "known without reading it all"


async def test_the_floor_holds_behind_closed_ledgers_and_after_a_good_hand_over(
    cluster: Cluster,
) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, policies=APPEND, rollover_entries=2)
    partition = await owned(one.broker, name)
    clock, wanted = cluster.clock, []
    for number in range(7):
        clock.now_ms += 1_000 if number < 4 else -1_000
        await partition.publish(batch(2))
        wanted += [1_700_000_000_000 + 1_000 * min(number + 1, 4)] * 2
        await until(lambda: partition._rollover._task is None, "rolled over")
    assert len(partition._record.ledgers.segments) == 4
    assert await cold(partition) == wanted
    await one.close()
    partition = await owned((await cluster.start("B")).broker, name)
    await partition.publish(batch(1))
    wanted.append(wanted[-1])
    assert await cold(partition) == wanted
    await lookups(partition, wanted, 0)


async def set_policies(cluster: Cluster, partition: Partition, policies: Policies) -> None:
    broker = cluster.brokers["A"].broker
    before = partition._publisher.segment
    settings = (await broker.topics.get(TOPIC)).settings
    await broker.topics.update(TOPIC, replace(settings, policies=policies))
    wanted = policies.message_time
    await until(lambda: partition._settings().policies.message_time == wanted, "it is known")
    await partition.maintain()
    await until(lambda: partition._publisher.segment is not before, "another ledger")
    await until(lambda: partition._publisher.segment.released, "which the record names")


async def test_a_policy_that_changes_holds_from_the_next_ledger_on(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker)
    partition = await owned(one.broker, name)
    clock, begun = cluster.clock, cluster.clock.now_ms
    await partition.publish(batch(2, time_ms=begun + HOUR_MS))
    await set_policies(cluster, partition, APPEND)
    await partition.publish(batch(2, time_ms=5))
    await set_policies(cluster, partition, CREATE)
    stamped = with_base_offset(batch(1, time_ms=9), 0, 77)
    await partition.publish(stamped)
    clock.now_ms -= HOUR_MS
    await set_policies(cluster, partition, APPEND)
    assert partition._publisher.segment.entries == 0
    await set_policies(cluster, partition, CREATE)
    await set_policies(cluster, partition, APPEND)
    await partition.publish(batch(1, time_ms=6))
    later = begun + HOUR_MS
    wanted = [later, later + 1, begun, begun, 9, begun]
    assert await times(partition) == wanted, "the append times do not go back; the others may"
    assert await cold(partition) == wanted
    await lookups(partition, wanted, 0)
    await one.vanish()
    partition = await owned((await cluster.start("B")).broker, name)
    assert await cold(partition) == wanted
    await lookups(partition, wanted, 0)


async def test_a_ledger_ends_before_its_stamps_come_round_also_an_empty_one(
    cluster: Cluster,
) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, policies=APPEND, rollover_age_ms=400 * 24 * HOUR_MS)
    partition = await owned(one.broker, name)
    clock, begun = cluster.clock, cluster.clock.now_ms
    await partition.publish(batch(1))
    for number in range(3):
        before = partition._publisher.segment.ledger_id
        clock.now_ms += ROLL_AFTER_MS + 1
        await partition.maintain()
        await until(
            lambda ledger=before: partition._publisher.segment.ledger_id != ledger,
            "another ledger",
        )
        await until(lambda: partition._publisher.segment.released, "which the record names")
        if number:
            await partition.publish(batch(1))
    wanted = [begun + n * (ROLL_AFTER_MS + 1) for n in (0, 2, 3)]
    assert await cold(partition) == wanted
    clock.now_ms += SPAN_MS
    with pytest.raises(PartitionUnavailable, match="too old for the current append time"):
        await partition.publish(batch(1))
    await until(lambda: partition._publisher.failed is None, "it opens anew")
    partition = await owned(one.broker, name)
    async with asyncio.timeout(10):
        while True:
            try:
                await partition.publish(batch(1))
            except PartitionUnavailable:
                await asyncio.sleep(0.02)
            else:
                break
    assert await cold(partition) == [*wanted, clock.now_ms]
    await lookups(partition, [*wanted, clock.now_ms], 0)


async def test_what_was_written_beforehand_is_appended_when_it_joins(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, policies=APPEND)
    partition = await owned(one.broker, name)
    clock, begun = cluster.clock, cluster.clock.now_ms
    ledger = await private(one, name, "load", 0, [2, 3], time_ms=4)
    clock.now_ms += 1_000
    await partition.publish(batch(1))
    clock.now_ms -= HOUR_MS
    await joined(partition, ledger)
    await partition.publish(batch(1))
    wanted = [begun + 1_000] * 7
    assert await cold(partition) == wanted
    segment = partition._record.ledgers.segment_of(ledger.ledger_id)
    assert segment is not None
    assert (segment.first_ms, segment.last_ms, segment.disorder_ms) == (*wanted[:2], 0)
    await lookups(partition, wanted, 0)
    assert await partition.offset_at(begun + 500) == 0


async def joined(partition: Partition, ledger: Any) -> None:
    async def plan() -> Insertion:
        return Insertion((ledger,))

    await partition._rollover.insert(plan)


async def test_a_view_and_a_fork_have_the_same_times(cluster: Cluster) -> None:
    one = await cluster.start("A", trim_interval_ms=50)
    settings = TopicSettings(
        policies=APPEND,
        rollover_entries=2,
        compaction_after_bytes=1,
        compaction_dirty_ratio=0.0,
    )
    await one.broker.topics.create(TOPIC, settings)
    name = PartitionName(*TOPIC, 0)
    partition = await owned(one.broker, name)
    clock, begun = cluster.clock, cluster.clock.now_ms
    for number in range(6):
        clock.now_ms = begun + number
        rows = [Record(b"%d.%d" % (number, n), b"v", (), 3) for n in range(2)]
        await partition.publish(build_batch(rows))
    wanted = [begun + number for number in range(6) for _ in range(2)]
    await until(lambda: horizon_of(partition) >= 8, "a view of what is closed")
    page = await partition.compacted.read(0, bytes_max=100_000, count_max=100)
    rows_of: dict[int, int] = {}
    for one_batch in page.batches:
        async with partition._context.open_batches.opened(one_batch) as windows:
            for _, records in windows.following(0, gaps=True):
                for record in records:
                    rows_of[one_batch.base_offset + record.offset_delta] = record.timestamp_ms
    assert set(rows_of) >= set(range(horizon_of(partition)))
    assert all(wanted[offset] == time_ms for offset, time_ms in rows_of.items()), rows_of
    found = [await partition.compacted.resolve(time_ms=begun + n) for n in (0, 1)]
    assert found == [0, 2]

    source = await one.broker.topics.get(TOPIC)
    for cut in (3, 4):
        point = OwnersPoint(partition.epoch, await partition.fork_point(cut))
        fork = TOPIC._replace(topic=f"fork{cut}")
        clock.now_ms = begun - HOUR_MS
        await one.broker.forks.make(source, fork, {0: point})
        copy = await owned(one.broker, fork.partition(0))
        await copy.publish(batch(1))
        assert await cold(copy) == [*wanted[:cut], wanted[cut - 1]]
        await lookups(copy, [*wanted[:cut], wanted[cut - 1]], 0)


async def test_retention_goes_by_the_append_time(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, policies=APPEND, retention_ms=1_000, rollover_entries=1)
    partition = await owned(one.broker, name)
    for time_ms in (1, 2**50):
        await partition.publish(batch(1, time_ms=time_ms))
    await partition.publish(batch(1))
    await partition.maintain()
    assert partition.earliest_offset == 0
    cluster.clock.now_ms += 2_000
    await until(lambda: partition._rollover._task is None, "rolled over")
    await partition.maintain()
    await until(lambda: partition.earliest_offset == 3, "all is too old")


async def test_a_due_time_is_kept(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, policies=APPEND)
    partition = await owned(one.broker, name)
    info, _ = await one.broker.topics.create_subscription(
        TOPIC, "s", SubscriptionSettings(type="shared", start="earliest")
    )
    subscription = await partition.subscribe(info)
    due_ms = cluster.clock.now_ms + HOUR_MS
    headers = [("octavo-deliver-at", b"%d" % due_ms)]
    await partition.publish(build_batch([Record(None, b"later", headers, 1)]))
    await partition.publish(batch(1))
    given = await subscription.receive("c", messages_max=9)
    assert [one.offset for one in given] == [1]
    assert given[0].record.timestamp_ms == cluster.clock.now_ms
