"""A topic with the setting is compacted by its broker: real brokers and ledgers."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from octavo.broker import broker as broker_module
from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.log import compaction_rules
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName, TopicName, TopicSettings
from octavo.metadata.compactions import begun, compacted_ledgers
from octavo.metadata.offloads import change_partition
from octavo.metadata.topics import TopicStore
from octavo.protocol.records import Record, build_batch, read_gapped_records
from tests.support.cluster import RunningBroker, owned, running_cluster, until

NAME = PartitionName("public", "accounts", 0)
PLACE = (NAME.namespace, NAME.topic, NAME.partition)
ALWAYS: dict[str, Any] = {
    "compaction_after_bytes": 1,
    "compaction_dirty_ratio": 0.0,
    "compaction_tombstones_ms": 0,
    "rollover_entries": 1,
}
Kept = dict[int, tuple[bytes | None, bytes | None]]


async def made(one: RunningBroker, **settings: Any) -> Partition:
    await one.broker.topics.create(NAME.topic_name, TopicSettings(**{**ALWAYS, **settings}))
    return await owned(one.broker, NAME)


class Written:
    def __init__(self) -> None:
        self.all: Kept = {}

    async def publish(self, partition: Partition, keys: str, *, batch: int = 2) -> None:
        """Publish a message for each letter: `-` has no key, a capital is a tombstone of its
        letter."""
        for at in range(0, len(keys), batch):
            records = []
            for letter in keys[at : at + batch]:
                offset = len(self.all)
                key = None if letter == "-" else letter.lower().encode()
                value = None if letter.isupper() else b"%d" % offset
                self.all[offset] = (key, value)
                records.append(Record(key, value, (("n", b"x"),), 1_000 + offset))
            await partition.publish(build_batch(records))

    def newest(self, horizon: int) -> Kept:
        last = {key or offset: offset for offset, (key, _) in self.all.items() if offset < horizon}
        return {offset: self.all[offset] for offset in sorted(last.values())}


async def read_view(partition: Partition) -> Kept:
    compacted = partition.compacted
    at = await compacted.resolve(at="earliest")
    found: Kept = {}
    while True:
        page = await compacted.read(at, bytes_max=300, count_max=7)
        for batch in page.batches:
            for one in read_gapped_records(batch.data):
                offset = batch.base_offset + one.offset_delta
                if offset >= page.start:
                    assert offset not in found
                    assert (one.headers, one.timestamp_ms) == ([("n", b"x")], 1_000 + offset)
                    found[offset] = (one.key, one.value)
        if page.following == at:
            return found
        at = page.following


def horizon_of(partition: Partition) -> int:
    view = partition._record.value.compaction
    return 0 if view is None else view.horizon


async def test_the_newest_of_each_key_run_after_run(tmp_path: Path) -> None:
    rng = random.Random(19)
    async with running_cluster(tmp_path) as cluster:
        one = await cluster.start("A", compaction_keys_max=3, compaction_grace_ms=1)
        partition = await made(one, compaction_tombstones_ms=10**15)
        written = Written()
        for _ in range(6):
            await written.publish(partition, "".join(rng.choices("abcdefgBF-", k=14)))
            while partition.compaction_is_due:
                before = horizon_of(partition)
                await partition.compact()
                horizon = horizon_of(partition)
                assert before <= horizon <= partition.next_offset
                assert await read_view(partition) == {
                    **written.newest(horizon),
                    **{at: one for at, one in written.all.items() if at >= horizon},
                }
                cluster.clock.now_ms += 10
        while horizon_of(partition) <= 70 or partition.compaction_is_due:
            await until(lambda: partition.compaction_is_due, "the last ledgers closed")
            await partition.compact()
            cluster.clock.now_ms += 10
        record = partition._record.value
        assert record.compaction is not None
        assert not record.compaction.retired
        left = set(await one.ledgers.list())
        named = {one.ledger_id for one in record.ledgers} | set(compacted_ledgers(record))
        assert left - named <= {record.state_ledger}, "ledgers of earlier views are gone"


async def test_tombstones_go_after_their_delay_and_one_view(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        one = await cluster.start("A")
        partition = await made(one, compaction_tombstones_ms=1_000)
        written, now_ms = Written(), 2_003
        # Offset 2 has timestamp 1002, offset 4 has 1004; one is older than the delay, one is not.
        context: Any = partition._context
        object.__setattr__(context, "deletion_time", lambda: DeletionTime(now_ms, "", 0, now_ms))
        cluster.clock.now_ms = now_ms
        await written.publish(partition, "abAcBdef", batch=8)
        await until(lambda: horizon_of_closed(partition) == 8, "a ledger is closed")
        await partition.compact()
        everything = await read_view(partition)
        assert everything == written.newest(8), "each tombstone is in one view at least"
        assert not partition.compaction_is_due, "no more often than once a delay for tombstones"
        now_ms = 3_003
        assert partition.compaction_is_due
        await partition.compact()
        assert set(everything) - set(await read_view(partition)) == {2, 4}
        assert not partition.compaction_is_due


def horizon_of_closed(partition: Partition) -> int:
    closed = [one for one in partition._record.ledgers.segments if one.count is not None]
    return closed[-1].base_offset + (closed[-1].count or 0) if closed else 0


async def test_raw_ledgers_go_when_the_view_covers_them_and_nobody_needs_them(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path) as cluster:
        one = await cluster.start("A")
        partition = await made(one, compaction_delete_raw=True, retention_bytes=0)
        written = Written()
        await written.publish(partition, "abcabcabc", batch=9)
        await until(lambda: horizon_of_closed(partition) == 9, "a ledger is closed")
        await written.publish(partition, "abcabcabc", batch=9)
        await until(lambda: horizon_of_closed(partition) == 18, "its ledgers are closed")
        await partition.maintain()
        assert partition.earliest_offset == 0, "nothing is in a view yet, so nothing goes"
        sub = await subscription(one.broker, partition)
        await partition.compact()
        assert partition.earliest_offset == 0, "the subscription has not read it"
        second = partition._record.ledgers.segments[1].base_offset
        await sub.acknowledge(up_to=second)
        await partition.maintain()
        assert partition.earliest_offset == second
        await sub.acknowledge(up_to=17)
        await partition.maintain()
        assert partition.earliest_offset == 18
        assert await read_view(partition) == written.newest(18)


async def test_run_follows_run_and_what_each_has_goes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_rules, "_RUN_MESSAGES_MIN", 5)
    monkeypatch.setattr(broker_module, "_RUN_REST_S", 0.01)
    async with running_cluster(tmp_path) as cluster:
        one = await cluster.start("A", trim_interval_ms=3_600_000)
        partition = await made(one, compaction_delete_raw=True, retention_bytes=0)
        written = Written()
        for _ in range(4):
            await written.publish(partition, "abcab", batch=5)
            await until(
                lambda: horizon_of_closed(partition) == len(written.all), "a ledger is closed"
            )
        stats = await partition.stats()
        assert stats.uncompacted == (stats.stored_bytes, True)
        one.broker._look_after(partition)
        await until(lambda: partition.earliest_offset == 20, "everything is in the view and gone")
        assert await read_view(partition) == written.newest(20)
        stats = await partition.stats()
        assert stats.uncompacted == (0, False)


async def subscription(broker: Any, partition: Partition) -> Any:
    from octavo.broker.types import SubscriptionSettings

    info, _ = await broker.topics.create_subscription(
        TopicName("public", "accounts"), "s", SubscriptionSettings()
    )
    return await partition.subscribe(info)


async def test_a_job_of_a_person_is_let_finish(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        one = await cluster.start("A", compaction_yield_ms=60_000)
        partition = await made(one)
        written = Written()
        await written.publish(partition, "abcabcabc")
        await until(lambda: horizon_of_closed(partition) > 0, "a ledger is closed")
        topics = TopicStore(cluster.store)
        now_ms = cluster.clock.now_ms
        await change_partition(topics, PLACE, lambda record: begun(record, "spark", now_ms))
        await partition.compact()
        assert horizon_of(partition) == 0
        assert not partition.compaction_is_due
        cluster.clock.now_ms += 60_000
        assert partition.compaction_is_due, "it has died"
        await partition.compact()
        assert horizon_of(partition) == horizon_of_closed(partition) > 0


async def test_a_run_that_is_broken_off_leaves_nothing(tmp_path: Path) -> None:
    """Its owner stops in the middle; the next one begins again, and sweeps the first one's
    objects."""
    async with running_cluster(tmp_path) as cluster:
        first = await cluster.start("A", compaction_bytes_per_s=1)
        partition = await made(first)
        written = Written()
        await written.publish(partition, "abcabcabcabc", batch=12)
        await until(lambda: horizon_of_closed(partition) == 12, "a ledger is closed")
        running = asyncio.ensure_future(partition.compact())
        await until(lambda: partition._record.value.compaction is not None, "a run has begun")
        view = partition._record.value.compaction
        assert view is not None
        assert view.run is not None
        orphan = await first.ledgers.create(custom=partition._compactor._labels(view.run))
        await orphan.close()
        await first.vanish()
        running.cancel()
        second = await cluster.start("B", leftover_grace_ms=1)
        taken = await owned(second.broker, NAME)
        sweep = second.broker._sweep_leftovers
        for _ in range(2):
            await sweep()
            await asyncio.sleep(0.01)
        assert orphan.ledger_id in await second.ledgers.list(), "its run may still publish it"
        await taken.compact()
        assert await read_view(taken) == written.newest(12)
        for _ in range(3):
            await sweep()
            await asyncio.sleep(0.01)
        named = set(compacted_ledgers(taken._record.value))
        assert orphan.ledger_id not in await second.ledgers.list()
        assert named <= set(await second.ledgers.list())
