"""Retention and truncation remove the oldest messages, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.broker import Broker
from octavo.broker.clock.deletion_clock import ClockLimits
from octavo.broker.clock.timekeeper import Timekeeper
from octavo.broker.errors import OffsetTrimmed
from octavo.broker.log.ledger_list import Contents, LedgerList
from octavo.broker.log.reader import LogReader, ReadAheadBudget
from octavo.broker.log.record import with_ledgers
from octavo.broker.log.retention import RetentionPolicy
from octavo.broker.partition.partition import Partition
from octavo.broker.state.format import Op
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import PartitionName, SubscriptionSettings
from octavo.ledger.errors import LedgerError
from octavo.metadata.clock import ClockRecord, Written
from octavo.metadata.topics import PartitionLedger
from tests.cluster.test_forks import exists, forked, numbered, published, values
from tests.support.cluster import Cluster, batch, make_topic, owned, running_cluster, until

# With a broker's clock 8 days ahead the next trim took everything, and one message stamped ten
# years ahead kept everything behind it. Now deletion by age uses several clocks, and messages are
# not younger than their arrival.

DAY_MS = 24 * 3600 * 1000
QUICK: dict[str, Any] = {"clock_beat_ms": 20, "clock_quarantine_ms": 100}


async def filled(brokers: Cluster, *ages_days: float) -> tuple[Broker, Partition]:
    """A topic kept for 7 days, each message in its own ledger, the clocks believed."""
    broker = (await brokers.start("A", **QUICK)).broker
    name = await make_topic(broker, retention_ms=7 * DAY_MS, rollover_entries=1)
    partition = await owned(broker, name)
    for number, age in enumerate(ages_days, 1):
        stamp = -1 if age == float("inf") else brokers.clock.now_ms - int(age * DAY_MS)
        await partition.publish(batch(1, time_ms=stamp))
        await until(lambda n=number: len(partition._record.ledgers.segments) > n, "a roll-over")
    await until(lambda: broker.deletion_time() is not None, "the store was heard")
    return broker, partition


def believes(broker: Broker) -> bool:
    time = broker.deletion_time()
    return time is not None and not time.doubt


@pytest.mark.parametrize("days", [8, 4000])
async def test_a_clock_set_forward_deletes_nothing(tmp_path: Path, days: int) -> None:
    async with running_cluster(tmp_path) as brokers:
        broker, partition = await filled(brokers, 0, 0, 0)
        brokers.clock.now_ms += days * DAY_MS
        await partition.maintain()
        assert partition.earliest_offset == 0
        time = broker.deletion_time()
        assert time is not None
        assert "ahead of the time that was counted" in time.doubt
        brokers.clock.now_ms -= days * DAY_MS
        time = broker.deletion_time()
        assert time is not None
        assert not time.doubt


async def test_a_broker_that_starts_with_a_wrong_clock_deletes_nothing(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as brokers:
        _, partition = await filled(brokers, 0, 0, 0)
        await brokers.brokers["A"].close()
        brokers.clock.now_ms += 8 * DAY_MS
        broker = (await brokers.start("B", **QUICK)).broker
        partition = await owned(broker, partition.name)
        await until(lambda: broker.deletion_time() is not None, "the store was heard")
        await partition.maintain()
        assert partition.earliest_offset == 0


async def test_who_operates_it_confirms_that_a_week_has_passed(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as brokers:
        broker, partition = await filled(brokers, 0, 0, 0)
        other = (await brokers.start("B", **QUICK)).broker
        await until(lambda: other.deletion_time() is not None, "the store was heard")
        brokers.clock.now_ms += 8 * DAY_MS
        await partition.maintain()
        assert partition.earliest_offset == 0
        await other.confirm_clock()
        await until(lambda: believes(broker), "the other brokers take it over")
        await partition.maintain()
        assert partition.earliest_offset == 3


async def test_a_message_from_the_future_is_as_old_as_its_arrival(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as brokers:
        broker, partition = await filled(brokers, -3650, 30, float("inf"), 30)
        await partition.maintain()
        assert partition.earliest_offset == 0, "none of the first ledger has come long ago"
        brokers.clock.now_ms += 8 * DAY_MS
        await broker.confirm_clock()
        await partition.maintain()
        assert partition.earliest_offset == 4


async def test_a_clock_set_back_makes_nothing_old(tmp_path: Path) -> None:
    """Dated by that clock, all messages were days old when it was right again."""
    async with running_cluster(tmp_path) as brokers:
        broker, partition = await filled(brokers, 0, 0)
        brokers.clock.now_ms -= 8 * DAY_MS
        assert not believes(broker)
        await until(lambda: believes(broker), "it has stayed so for long enough")
        await partition.maintain()
        assert partition.earliest_offset == 0
        brokers.clock.now_ms += 8 * DAY_MS
        await broker.confirm_clock()
        await partition.maintain()
        assert partition.earliest_offset == 0
        brokers.clock.now_ms += 8 * DAY_MS
        await broker.confirm_clock()
        await partition.maintain()
        assert partition.earliest_offset == 2


async def test_a_message_from_while_a_clock_was_behind_is_not_old(tmp_path: Path) -> None:
    """A message without a time was dated by a clock 8 days behind, and went when the clock was
    right."""
    async with running_cluster(tmp_path) as brokers:
        broker, partition = await filled(brokers)
        brokers.clock.now_ms -= 8 * DAY_MS
        assert not believes(broker)
        await until(lambda: believes(broker), "it has stayed so for long enough")
        await partition.publish(batch(1, time_ms=-1))
        await until(lambda: len(partition._record.ledgers.segments) > 1, "a roll-over")
        await partition.maintain()
        brokers.clock.now_ms += 8 * DAY_MS
        await broker.confirm_clock()
        await partition.maintain()
        assert partition.earliest_offset == 0
        brokers.clock.now_ms += 8 * DAY_MS
        await broker.confirm_clock()
        await partition.maintain()
        assert partition.earliest_offset == 1


def test_a_doubted_time_dates_nothing() -> None:
    ledger_list = LedgerList().appending(1).closing_last(1, Contents(1, 1, -1, -1), 5).appending(2)
    policy = RetentionPolicy(100, None)
    assert policy.trimming(ledger_list, 10**15) is ledger_list
    dated = ledger_list.dating(1_000)
    assert dated.dating(2_000) is dated, "once"
    assert policy.trimming(dated, 1_100) is dated
    assert policy.trimming(dated, 1_101).earliest_offset == 1


def test_what_was_stamped_since_its_date_is_no_older_than_its_stamp() -> None:
    """Dated by a clock that never knew the truth, or by a version that believed any clock."""
    week_ms, now_ms = 7 * DAY_MS, 1_700_000_000_000
    closed = (
        LedgerList().appending(1).closing_last(1, Contents(1, 1, now_ms, now_ms), 5).appending(2)
    )
    policy = RetentionPolicy(week_ms, None)
    dated = closed.dating(now_ms - 8 * DAY_MS)
    assert dated is not closed, "from the future, by that clock"
    assert policy.trimming(dated, now_ms) is dated
    assert policy.trimming(dated, now_ms + week_ms + 1).earliest_offset == 1


async def test_the_first_time_is_not_one_clocks_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store gave its time, then was away too long to be a witness: a cluster's first time
    was recorded an hour ahead (seed 1200291 of `recreate`)."""
    steady = SimpleNamespace(now=10.0)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: steady.now)
    hour_ms, true_ms = 3_600_000, 1_700_000_000_000
    written: list[int] = []

    class Store:
        record = ClockRecord()

        async def write(self, make: Callable[[ClockRecord], ClockRecord]) -> Written:
            if len(written) == 1:
                steady.now += 1.0
            self.record = make(self.record)
            written.append(self.record.time_ms)
            return Written(self.record, true_ms)

    store: Any = Store()
    keeper = Timekeeper(store, lambda: true_ms + hour_ms, ClockLimits(300_000, 600_000), beat_ms=20)
    await keeper.beat()
    assert written == [0, 0]
    found = keeper.now()
    assert found is not None
    assert found.now_ms == true_ms
    await keeper.beat()
    assert set(written) <= {0, true_ms}


# A take-over took the newer of a ledger's first and last timestamp for its newest: a ledger with
# old ends lost fresh messages.

AGE_DAY_MS = 24 * 3600 * 1000


async def taken_over(brokers: Cluster, *ages_days: float) -> Partition:
    first = await brokers.start("A")
    name = await make_topic(first.broker, retention_ms=AGE_DAY_MS)
    partition = await owned(first.broker, name)
    for age in ages_days:
        await partition.publish(batch(1, time_ms=brokers.clock.now_ms - int(age * AGE_DAY_MS)))
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
        assert (link.first_ms, link.last_ms) == (now_ms - 400 * AGE_DAY_MS, now_ms)
        assert link.disorder_ms == 400 * AGE_DAY_MS


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
    async with running_cluster(tmp_path) as brokers:
        partition = await taken_over(brokers, 400, 0, 400)
        wrong = Contents(3, 0, 0, brokers.clock.now_ms - 400 * AGE_DAY_MS, -1)
        await partition._record.change(
            lambda record: with_ledgers(
                record, partition._record.ledgers.measuring(oldest(partition).ledger_id, wrong)
            )
        )
        await kept_up(partition)
        assert partition.earliest_offset == 0
        assert oldest(partition).last_ms == brokers.clock.now_ms


async def test_a_read_of_what_is_trimmed_by_then_says_so() -> None:
    """A trim came between a read and its read-ahead, or between two pages of a compaction: the
    reader got an AssertionError in place of "trimmed" (seeds 101, 103)."""
    links = [PartitionLedger(ledger_id, 10 * ledger_id, 10) for ledger_id in range(3)]
    record: Any = SimpleNamespace(ledgers=LedgerList(tuple(links)))
    unused: Any = None
    reader = LogReader(
        PartitionName("public", "t", 0),
        unused,
        record,
        unused,
        ReadAheadBudget(1 << 30),
        unused,
        unused,
    )
    reader._read_ahead(5)
    record.ledgers = LedgerList(tuple(links[1:]), trimmed_to=10)
    with pytest.raises(OffsetTrimmed) as caught:
        await reader._chunk(5, 100)
    assert caught.value.earliest == 10
    with pytest.raises(OffsetTrimmed):
        await reader.read(5, 30, 100, 100)


# A trim computed its limit before a wait: a subscription that went back in between lost the
# messages that it had asked for.


@contextlib.asynccontextmanager
async def trimmable(folder: Path) -> AsyncIterator[tuple[Partition, Subscription]]:
    """Make 20 messages older than the retention, and a subscription that has had them all."""
    async with running_cluster(folder) as brokers:
        running = await brokers.start("A")
        name = await make_topic(running.broker, rollover_entries=5, retention_ms=60_000)
        partition = await owned(running.broker, name)
        for number in range(20):
            await partition.publish(
                batch(
                    1,
                    time_ms=brokers.clock.now_ms,
                    producer_id=7,
                    producer_epoch=0,
                    base_sequence=number,
                )
            )
        brokers.clock.now_ms += 70_000
        info, _ = await running.broker.topics.create_subscription(
            name.topic_name, "s", SubscriptionSettings()
        )
        subscription = await partition.subscribe(info)
        await subscription.seek(20)
        yield partition, subscription


async def test_a_seek_while_a_trim_waits_is_honoured(tmp_path: Path) -> None:
    async with trimmable(tmp_path) as (partition, subscription):
        maintenance: Any = partition._maintenance
        persist = maintenance._persist
        sought: list[int] = []

        async def persist_while_one_goes_back(op: Op) -> None:
            await persist(op)
            if not sought:
                sought.append(await subscription.seek(3))

        maintenance._persist = persist_while_one_goes_back
        await partition.maintain()
        assert sought == [3]
        assert partition.earliest_offset <= 3
        deliveries = await subscription.receive("c", messages_max=1, wait_s=0)
        assert [delivery.offset for delivery in deliveries] == [3]


async def test_a_seek_while_the_record_is_written_says_where_it_stands(tmp_path: Path) -> None:
    async with trimmable(tmp_path) as (partition, subscription):
        topics: Any = partition._record._topics
        write = topics.write_partition
        sought: list[int] = []

        async def write_while_one_goes_back(*args: Any, **how: Any) -> int:
            if not sought:
                sought.append(await subscription.seek(3))
            version: int = await write(*args, **how)
            return version

        topics.write_partition = write_while_one_goes_back
        await partition.maintain()
        assert partition.earliest_offset == sought[0], "told what is left, not what was asked for"
        assert partition.earliest_offset > 3


# Retention removed ledgers whose batches no checkpoint covered: after a take-over a repeat was
# stored again, and a producer was told to begin at 0 (topic seeds 124, 130).


@pytest.mark.parametrize("repeated", [0, 3])
async def test_a_batch_that_was_trimmed_is_still_known(tmp_path: Path, repeated: int) -> None:
    async with running_cluster(tmp_path) as brokers:
        first = await brokers.start("A", trim_interval_ms=20)
        name = await make_topic(first.broker, retention_bytes=0, rollover_entries=1)
        partition = await owned(first.broker, name)
        numbered = [
            batch(tag=f"m{n}", producer_id=7, producer_epoch=0, base_sequence=n) for n in range(4)
        ]
        for one in numbered:
            await partition.publish(one)
        await until(lambda: partition.earliest_offset == 4, "trimmed")
        await first.vanish()

        second = await brokers.start("B")
        partition = await owned(second.broker, name)
        published = await partition.publish(numbered[repeated])
        assert published.duplicate
        assert partition.next_offset == 4
        following = batch(tag="m4", producer_id=7, producer_epoch=0, base_sequence=4)
        assert (await partition.publish(following)).first_offset == 4


async def test_what_came_while_the_producers_were_written_is_not_trimmed(tmp_path: Path) -> None:
    """The checkpoint shows one moment; ledgers may have been filled and closed since."""
    async with running_cluster(tmp_path) as brokers:
        first = await brokers.start("A", trim_interval_ms=3_600_000)
        name = await make_topic(first.broker, retention_bytes=0, rollover_entries=1)
        partition = await owned(first.broker, name)
        numbered = [
            batch(tag=f"m{n}", producer_id=7, producer_epoch=0, base_sequence=n) for n in range(4)
        ]

        def newest_begins_at(offset: int) -> bool:
            return partition._record.ledgers.segments[-1].base_offset == offset

        async def publish(first: int, stop: int) -> None:
            for one in numbered[first:stop]:
                end = (await partition.publish(one)).first_offset + 1
                await until(partial(newest_begins_at, end), "rolled over")

        await publish(0, 2)
        maintenance: Any = partition._maintenance
        persist = maintenance._persist

        async def persist_while_some_publish(op: Op) -> None:
            maintenance._persist = persist
            await persist(op)
            await publish(2, 4)

        maintenance._persist = persist_while_some_publish
        await partition.maintain()
        assert partition.earliest_offset == 2
        await first.vanish()

        second = await brokers.start("B")
        partition = await owned(second.broker, name)
        assert (await partition.publish(numbered[3])).duplicate


ONE = "/v1/topics/public/one"
SUB = ONE + "/subscriptions/s"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        body = {"rollover": {"entries": 4}}
        assert (await found.api.put(ONE, json=body)).status == 201
        yield found


async def truncated(cluster: Cluster, before: Any, path: str = ONE) -> int:
    answer = await cluster.api.call("DELETE", f"{path}/messages?before={before}")
    assert answer.status == 200, answer
    (one,) = answer.json()["partitions"]
    assert one["partition"] == 0
    earliest: int = one["earliest_offset"]
    return earliest


async def first_ledgers(cluster: Cluster, before: int) -> list[int]:
    ledgers = (await cluster.api.get(ONE + "/partitions/0")).json()["ledgers"]
    pairs = pairwise(ledgers)
    return [one["id"] for one, after in pairs if after["base_offset"] <= before]


async def in_ledgers(cluster: Cluster, count: int) -> None:
    await published(cluster, ONE, 0, 20)
    async with asyncio.timeout(10):
        while not await first_ledgers(cluster, 20):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await published(cluster, ONE, 20, count - 20)


async def received(cluster: Cluster) -> list[int]:
    answer = await cluster.api.post(f"{SUB}/receive?max=1000&wait=1s")
    found = [one["value"] for one in answer.json()["messages"]] if answer.status == 200 else []
    assert answer.status in (200, 204), answer
    ids = [one["ack_id"] for one in answer.json()["messages"]] if found else []
    assert (await cluster.api.post(SUB + "/ack", json={"ack_ids": ids})).status == 200
    return found


async def stopped_owner(cluster: Cluster) -> None:
    await cluster.stop_broker(await cluster.owner_of(ONE + "/partitions/0"))


async def test_readers_and_subscriptions_begin_behind_it(cluster: Cluster) -> None:
    assert (await cluster.api.put(SUB, json={"start": "earliest"})).status == 201
    await in_ledgers(cluster, 52)
    first = await first_ledgers(cluster, 23)
    assert await truncated(cluster, 23) == 23
    answer = await cluster.api.get(ONE + "/messages?from=22")
    assert (answer.status, answer.json()["earliest_offset"]) == (410, 23)
    assert await values(cluster, ONE, 23) == numbered(range(52))[23:]
    (at,) = (await cluster.api.get(ONE + "/offsets?at=earliest")).json()["offsets"]
    assert at["offset"] == 23
    (at,) = (await cluster.api.get(ONE + "/offsets?at=1970-01-01T00:00:04Z")).json()["offsets"]
    assert at["offset"] == 23
    assert first
    assert not any([await exists(cluster, one) for one in first])
    assert (await cluster.api.get(SUB)).json()["backlog"] == 29
    assert await received(cluster) == [*range(23, 52)]
    assert await truncated(cluster, 5) == 23
    await stopped_owner(cluster)
    answer = await cluster.api.get(ONE + "/messages?from=22")
    assert (answer.status, answer.json()["earliest_offset"]) == (410, 23)
    await published(cluster, ONE, 52, 3)
    assert await values(cluster, ONE, 23) == numbered(range(55))[23:]
    assert await received(cluster) == [52, 53, 54]


async def test_all_of_it(cluster: Cluster) -> None:
    assert (await cluster.api.put(SUB, json={"start": "earliest"})).status == 201
    await published(cluster, ONE, 0, 12)
    assert await truncated(cluster, "latest") == 12
    assert await values(cluster, ONE, 12) == []
    await stopped_owner(cluster)
    await published(cluster, ONE, 12, 30)
    assert await values(cluster, ONE, 12) == numbered(range(42))[12:]
    assert await received(cluster) == [*range(12, 42)]
    answer = await cluster.api.call("DELETE", ONE + "/messages?before=43")
    assert (answer.status, answer.json()["next_offset"]) == (416, 42)
    answer = await cluster.api.call("DELETE", ONE + "/messages")
    assert (answer.status, answer.json()["code"]) == (400, "invalid-parameter")


async def test_a_fork_keeps_what_its_source_truncates(cluster: Cluster) -> None:
    await in_ledgers(cluster, 40)
    await truncated(cluster, 3)
    shared = (await first_ledgers(cluster, 25))[-1]
    await forked(cluster, ONE, "fork", 31)
    assert await truncated(cluster, 37) == 37
    fork = "/v1/topics/public/fork"
    assert await values(cluster, fork, 3) == numbered(range(31))[3:]
    answer = await cluster.api.get(fork + "/messages?from=2")
    assert (answer.status, answer.json()["earliest_offset"]) == (410, 3)
    assert await exists(cluster, shared)
    assert await truncated(cluster, 25, fork) == 25
    assert not await exists(cluster, shared)
    assert await values(cluster, fork, 25) == numbered(range(31))[25:]
    answer = await cluster.api.post(fork + "/fork", json={"name": "late", "at": 24})
    assert answer.status == 410, answer
    await forked(cluster, fork, "again", 25)
    await published(cluster, "/v1/topics/public/again", 90, 2)
    assert await values(cluster, "/v1/topics/public/again", 25) == [(25, 90), (26, 91)]


async def test_an_offset_is_of_one_partition(cluster: Cluster) -> None:
    two = "/v1/topics/public/two"
    assert (await cluster.api.put(two, json={"partitions": 2})).status == 201
    for number in range(2):
        await published(cluster, f"{two}/partitions/{number}", 0, 10)
    answer = await cluster.api.call("DELETE", two + "/messages?before=3")
    assert (answer.status, answer.json()["code"]) == (422, "partition-required")
    answer = await cluster.api.call("DELETE", two + "/partitions/1/messages?before=3")
    assert answer.json()["partitions"] == [{"partition": 1, "earliest_offset": 3}]
    answer = await cluster.api.call("DELETE", two + "/messages?before=1970-01-01T00:00:06Z")
    assert [one["earliest_offset"] for one in answer.json()["partitions"]] == [6, 6]
