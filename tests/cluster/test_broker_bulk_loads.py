"""Ledgers written beforehand join partitions: whole, once, in order, whichever process dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.bulkload import rules
from octavo.broker.bulkload.driver import ANYBODY, BulkLoads, Committed, Offer
from octavo.broker.bulkload.rules import Caller, Standing
from octavo.broker.errors import (
    BULK_LOAD_ABORTED,
    BULK_LOAD_NOT_FOUND,
    BULK_LOAD_UNFINISHED,
    FOREIGN_BULK_LOAD,
    INVALID_BULK_LOAD,
    BatchOutOfOrder,
    BrokerError,
    TopicNotFound,
)
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition.partition import Partition
from octavo.broker.partition.rollover import Rollover
from octavo.broker.types import PartitionName, SubscriptionSettings
from octavo.ledger.errors import LedgerNotFound
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.bulk_loads import BulkLoadRecord, BulkLoadStore, PrivateLedger
from octavo.metadata.one_record import ABSENT
from octavo.metadata.topic_records import decode_record, encode_record
from octavo.protocol.batch import read_header, with_base_offset
from octavo.protocol.codes import OctavoError
from octavo.protocol.records import Record, build_batch
from octavo.spark import commit as sink
from octavo.spark.cluster import connected
from octavo.spark.orphans import collect_orphans
from octavo.spark.sink_ledgers import TaskLedgers
from octavo.spark.sink_rows import Target
from tests.support.cluster import (
    TOPIC,
    Cluster,
    RunningBroker,
    batch,
    make_topic,
    owned,
    running_cluster,
    until,
    values,
)
from tests.support.http_api import Answer
from tests.support.kit.refusals import raises_code


async def private(
    running: RunningBroker,
    name: PartitionName,
    bulk_load: str,
    number: int,
    counts: Sequence[int],
    tag: str = "s",
    time_ms: int = 1_700_000_000_000,
) -> PrivateLedger:
    writer = await running.ledgers.create(
        custom={
            rules.KIND_KEY: rules.KIND,
            rules.PARTITION_KEY: str(name).encode(),
            rules.BULK_LOAD_KEY: bulk_load.encode(),
            rules.BATCH_KEY: str(number).encode(),
        }
    )
    base = size = 0
    for at, count in enumerate(counts):
        data = with_base_offset(batch(count, tag=f"{tag}{at}", time_ms=time_ms), base)
        base += read_header(data).record_count
        size += len(data)
        await writer.append(data)
    await writer.close()
    return PrivateLedger(writer.ledger_id, base, size, time_ms, time_ms + max(counts) - 1)


def at_owners(
    *cluster: RunningBroker,
) -> Callable[[PartitionName, str, int], Awaitable[int | None]]:
    async def load_part(name: PartitionName, bulk_load: str, number: int) -> int | None:
        for running in cluster:
            if running.gone:
                continue
            try:
                partition = await running.broker.ownership.partition(name)
            except OctavoError:
                continue
            return await partition.load_part(bulk_load, number)
        partition = await owned(next(one for one in cluster if not one.gone).broker, name)
        return await partition.load_part(bulk_load, number)

    return load_part


async def commit(
    running: RunningBroker, bulk_load: str, number: int, offers: list[Offer], *more: RunningBroker
) -> Committed:
    return await running.broker.bulk_loads.commit(
        bulk_load, number, offers, at_owners(running, *more), caller=Caller(after=number - 1)
    )


async def test_a_batch_joins_several_partitions_between_what_is_published(
    cluster: Cluster,
) -> None:
    running = await cluster.start("A")
    zero = await make_topic(running.broker, partitions=2)
    one = TOPIC.partition(1)
    first, second = await owned(running.broker, zero), await owned(running.broker, one)
    await first.publish(batch(3, tag="before"))
    offers = [
        Offer(zero, (await private(running, zero, "q", 0, [2, 1], "a"),)),
        Offer(
            one,
            (
                await private(running, one, "q", 0, [1], "b"),
                await private(running, one, "q", 0, [2], "c"),
            ),
        ),
    ]
    assert first.next_offset == 3
    done = await commit(running, "q", 0, offers)
    assert (done.repeated, done.offsets) == (False, {zero: 3, one: 0})
    assert (await first.publish(batch(1, tag="after"))).first_offset == 6
    assert await values(first) == [
        "before-0", "before-1", "before-2", "a0-0", "a0-1", "a1-0", "after-0"
    ]  # fmt: skip
    assert await values(second) == ["b0-0", "c0-0", "c0-1"]
    named = {ledger for one in (first, second) for ledger, _ in one.ledgers}

    async def strangers() -> set[int]:
        return set(await running.ledgers.list()) - named

    async with asyncio.timeout(10):
        while await strangers():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_repeat_does_nothing_and_another_attempt_is_given_up(
    cluster: Cluster,
) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker)
    partition = await owned(running.broker, name)
    ledger = await private(running, name, "q", 4, [3])
    await commit(running, "q", 4, [Offer(name, (ledger,))])
    assert (await commit(running, "q", 4, [Offer(name, (ledger,))])).repeated
    again = await private(running, name, "q", 4, [3], "again")
    older = await private(running, name, "q", 3, [3], "older")
    assert (await commit(running, "q", 4, [Offer(name, (again,))])).repeated
    assert (await commit(running, "q", 3, [Offer(name, (older,))])).repeated
    assert await values(partition) == ["s0-0", "s0-1", "s0-2"]
    abort = running.broker.bulk_loads.abort
    assert await abort("q", 4, [ledger.ledger_id, again.ledger_id]) == [again.ledger_id]
    assert await abort("q", 3, [older.ledger_id]) == [older.ledger_id]
    await commit(running, "q", 5, [])
    assert await abort("q", 4, [ledger.ledger_id]) == []
    assert await values(partition) == ["s0-0", "s0-1", "s0-2"]


async def test_what_was_given_up_is_never_committed(cluster: Cluster) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker)
    partition = await owned(running.broker, name)
    ledger = await private(running, name, "q", 0, [3])
    bulk_loads = running.broker.bulk_loads
    checked = asyncio.Event()
    go_on = asyncio.Event()
    check = bulk_loads._checks.parts

    async def slow(*args: Any) -> Any:
        found = await check(*args)
        checked.set()
        await go_on.wait()
        return found

    bulk_loads._checks.parts = slow  # type: ignore[method-assign, assignment]
    committing = asyncio.create_task(commit(running, "q", 0, [Offer(name, (ledger,))]))
    await checked.wait()
    assert await bulk_loads.abort("q", 0, [ledger.ledger_id]) == [ledger.ledger_id]
    go_on.set()
    with raises_code(BULK_LOAD_ABORTED):
        await committing
    with pytest.raises(LedgerNotFound):
        await running.ledgers.metadata(ledger.ledger_id)
    assert partition.next_offset == 0
    bulk_loads._checks.parts = check  # type: ignore[method-assign]
    again = await private(running, name, "q", 0, [2], "again")
    await commit(running, "q", 0, [Offer(name, (again,))])
    assert await values(partition) == ["again0-0", "again0-1"]


async def test_what_does_not_fit_is_refused_before_anything_is_committed(
    cluster: Cluster,
) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker)
    partition = await owned(running.broker, name)
    good = await private(running, name, "q", 0, [3])
    open_one = await running.ledgers.create(
        custom={
            rules.KIND_KEY: rules.KIND, rules.PARTITION_KEY: str(name).encode(),
            rules.BULK_LOAD_KEY: b"q", rules.BATCH_KEY: b"0",
        }
    )  # fmt: skip
    await partition.publish(batch(1))
    data_ledger = partition.ledgers[0][0]
    elsewhere = await private(running, TOPIC.partition(1), "q", 0, [1])
    for bad, why in (
        (PrivateLedger(open_one.ledger_id, 1, 1, 0, 0), "must be closed"),
        (PrivateLedger(data_ledger, 1, 1, 0, 0), "was not written for batch 0 of q"),
        (PrivateLedger(10**9, 1, 1, 0, 0), "no ledger"),
        (elsewhere, "is for public/flights/1"),
        (good, "is named twice"),
    ):
        with raises_code(INVALID_BULK_LOAD, match=why):
            await commit(running, "q", 0, [Offer(name, (bad, good))])
    too_many = PrivateLedger(good.ledger_id, 4, good.bytes, 0, 0)
    with raises_code(INVALID_BULK_LOAD, match="has 3 messages"):
        await commit(running, "q", 0, [Offer(name, (too_many,))])
    with raises_code(INVALID_BULK_LOAD, match="was not written for batch 1"):
        await commit(running, "q", 1, [Offer(name, (good,))])
    with raises_code(INVALID_BULK_LOAD, match="was not written"):
        await running.broker.bulk_loads.abort("q", 0, [data_ledger])
    with raises_code(BULK_LOAD_NOT_FOUND):
        await partition.load_part("q", 0)
    assert partition.next_offset == 1


async def test_publishers_go_on_while_batches_are_loaded(cluster: Cluster) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker)
    partition = await owned(running.broker, name)
    stop = False
    placed: dict[int, str] = {}

    async def publish(who: str) -> None:
        number = 0
        while not stop:
            published = await partition.publish(batch(2, tag=f"{who}{number}"))
            placed[published.first_offset] = f"{who}{number}-0"
            number += 1

    publishers = [asyncio.create_task(publish(who)) for who in "xy"]
    for number in range(6):
        ledger = await private(running, name, "q", number, [3, 2], f"t{number}-")
        done = await commit(running, "q", number, [Offer(name, (ledger,))])
        offset = done.offsets[name]
        assert offset is not None
        placed[offset] = f"t{number}-0-0"
        placed[offset + 3] = f"t{number}-1-0"
    stop = True
    await asyncio.gather(*publishers)
    found = await values(partition)
    assert len(found) == partition.next_offset
    assert {offset: found[offset] for offset in placed} == placed
    assert sum(tag.startswith("t") for tag in found) == 30


async def test_a_subscription_and_a_tailing_reader_see_it_like_any_message(
    cluster: Cluster,
) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker)
    partition = await owned(running.broker, name)
    info, _ = await running.broker.topics.create_subscription(
        TOPIC, "reports", SubscriptionSettings(start="earliest")
    )
    subscription = await partition.subscribe(info)
    await partition.publish(batch(2, tag="p"))
    waiting = asyncio.create_task(partition.read(2, bytes_max=10**6, count_max=99, wait_s=10))
    late = 1_700_000_500_000
    ledger = await private(running, name, "q", 0, [2, 2], time_ms=late)
    await commit(running, "q", 0, [Offer(name, (ledger,))])
    assert (await waiting)[0].base_offset == 2
    await partition.publish(batch(1, tag="z"))
    # The cache must not skip uncached messages.
    offset, seen = 0, []
    while offset < partition.next_offset:
        for stored in await partition.read(offset, bytes_max=10**6, count_max=99):
            assert stored.base_offset == offset
            offset = stored.next_offset
            seen.append(stored.ledger_id)
    assert seen.count(ledger.ledger_id) == 2
    assert await partition.offset_at(late) == 2
    assert await partition.offset_at(late + 1) == 3
    got: list[str] = []
    while len(got) < 7:
        deliveries = await subscription.receive("c", messages_max=3, wait_s=5)
        assert deliveries
        got += [(one.record.value or b"").decode() for one in deliveries]
        await subscription.acknowledge([one.ack_id for one in deliveries])
    assert got == ["p-0", "p-1", "s0-0", "s0-1", "s1-0", "s1-1", "z-0"]
    assert subscription.stats().backlog == 0


async def test_producers_are_still_known_after_a_bulk_load_and_a_take_over(
    cluster: Cluster,
) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    numbered = batch(2, tag="n", producer_id=9, producer_epoch=0, base_sequence=0)
    await partition.publish(numbered)
    ledger = await private(first, name, "q", 0, [4])
    await commit(first, "q", 0, [Offer(name, (ledger,))])
    following = batch(1, tag="m", producer_id=9, producer_epoch=0, base_sequence=2)
    assert (await partition.publish(following)).first_offset == 6
    await first.vanish()
    survivor = await owned(second.broker, name)
    assert (await survivor.publish(numbered)).duplicate
    again = await survivor.publish(following)
    assert (again.duplicate, again.first_offset) == (True, 6)
    assert survivor.next_offset == 7


STEPS = ("begun", "new ledger made", "old one closed", "record written")


@pytest.mark.parametrize("step", STEPS)
async def test_a_take_over_in_the_middle_has_all_of_it_or_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The owner stops at one step; another broker takes over, and the commit is repeated."""
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    await partition.publish(batch(2, tag="p"))
    ledger = await private(first, name, "q", 0, [3])
    reached = asyncio.Event()

    async def stops(*_: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    change, close = PartitionRecordKeeper.change, LedgerWriter.close
    if step == "begun":
        monkeypatch.setattr("octavo.broker.partition.rollover.create_ledger", stops)
    elif step == "new ledger made":
        monkeypatch.setattr(Rollover, "_replace", stops)
    elif step == "old one closed":

        async def closes(writer: LedgerWriter) -> Any:
            await close(writer)
            await stops()

        monkeypatch.setattr(LedgerWriter, "close", closes)
    else:

        async def changes(keeper: PartitionRecordKeeper, make: Any) -> Any:
            await change(keeper, make)
            await stops()

        monkeypatch.setattr(PartitionRecordKeeper, "change", changes)
    committing = asyncio.create_task(commit(first, "q", 0, [Offer(name, (ledger,))]))
    async with asyncio.timeout(15):
        await reached.wait()
    unanswered = asyncio.create_task(partition.publish(batch(1, tag="never")))
    await asyncio.sleep(0.05)
    monkeypatch.undo()
    await first.vanish()
    survivor = await owned(second.broker, name)
    has_it = step == "record written"
    found = await values(survivor)
    expected = ["p-0", "p-1", *(["s0-0", "s0-1", "s0-2"] if has_it else [])]
    assert found[: len(expected)] == expected
    assert set(found[len(expected) :]) <= {"never-0"}
    assert (await commit(second, "q", 0, [Offer(name, (ledger,))])).repeated
    await survivor.publish(batch(1, tag="z"))
    found = [value for value in await values(survivor) if value != "never-0"]
    assert found == ["p-0", "p-1", "s0-0", "s0-1", "s0-2", "z-0"]
    assert (await commit(second, "q", 0, [Offer(name, (ledger,))])).repeated
    assert survivor.next_offset == len(await values(survivor))
    for task in (committing, unanswered):
        task.cancel()
    await asyncio.gather(committing, unanswered, return_exceptions=True)


async def forgotten(cluster: Cluster, running: RunningBroker, bulk_load: str) -> None:
    """Remove its record a week later, by a believed clock."""
    bulk_loads = running.broker.bulk_loads
    cluster.clock.now_ms += 8 * 24 * 3600 * 1000
    await bulk_loads.sweep(bulk_load, running.broker._served_here)
    assert (await bulk_loads.newest(bulk_load)).batch >= 0, "by a clock that was set"
    await running.broker.confirm_clock()
    async with asyncio.timeout(60):
        while (await bulk_loads.newest(bulk_load)).batch >= 0:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_broker_finishes_what_the_one_that_committed_it_has_left(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.broker.bulkload.driver._SWEEP_AFTER_MS", 50)
    running = await cluster.start("A", trim_interval_ms=50)
    zero = await make_topic(running.broker, partitions=2)
    one = TOPIC.partition(1)
    first, second = await owned(running.broker, zero), await owned(running.broker, one)
    offers = [Offer(name, (await private(running, name, "q", 0, [2]),)) for name in (zero, one)]

    async def half(name: PartitionName, bulk_load: str, number: int) -> int | None:
        if name == one:
            raise BrokerError("the owner of this partition does not answer")
        return await first.load_part(bulk_load, number)

    bulk_loads = running.broker.bulk_loads
    with raises_code(BULK_LOAD_UNFINISHED, match="flights/1 does not have its part yet"):
        await bulk_loads.commit("q", 0, offers, half)
    assert (first.next_offset, second.next_offset) == (2, 0)
    assert not (await bulk_loads.newest("q")).complete
    cluster.clock.now_ms -= 3_600_000
    async with asyncio.timeout(60):
        while not (await bulk_loads.newest("q")).complete:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await values(second) == ["s0-0", "s0-1"]
    assert first.next_offset == 2
    time = running.broker.deletion_time()
    assert time is not None
    assert time.doubt, "what is half done waited for no clock"
    await forgotten(cluster, running, "q")


async def test_the_next_batch_waits_until_the_one_before_is_whole(cluster: Cluster) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker)
    partition = await owned(running.broker, name)
    ledgers = [await private(running, name, "q", n, [2], f"t{n}-") for n in range(2)]

    async def none(*_: Any) -> int | None:
        raise BrokerError("no broker answers")

    with raises_code(BULK_LOAD_UNFINISHED):
        await running.broker.bulk_loads.commit("q", 0, [Offer(name, (ledgers[0],))], none)
    with raises_code(BULK_LOAD_UNFINISHED):
        await running.broker.bulk_loads.commit("q", 1, [Offer(name, (ledgers[1],))], none)
    assert (await running.broker.bulk_loads.newest("q")).batch == 0
    await commit(running, "q", 1, [Offer(name, (ledgers[1],))])
    assert await values(partition) == ["t0-0-0", "t0-0-1", "t1-0-0", "t1-0-1"]


@pytest.mark.parametrize("later_ms", [0, 5], ids=["in the same millisecond", "later"])
async def test_a_topic_deleted_after_the_commit_takes_its_part_with_it(
    cluster: Cluster, later_ms: int
) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker)
    await owned(running.broker, name)
    ledger = await private(running, name, "q", 0, [2])

    async def none(*_: Any) -> int | None:
        raise BrokerError("no broker answers")

    with raises_code(BULK_LOAD_UNFINISHED):
        await running.broker.bulk_loads.commit("q", 0, [Offer(name, (ledger,))], none)
    await running.broker.topics.delete(TOPIC)
    cluster.clock.now_ms += later_ms
    await make_topic(running.broker)
    namesake = await owned(running.broker, name)
    assert (await commit(running, "q", 0, [])).repeated
    assert (await running.broker.bulk_loads.newest("q")).complete
    assert namesake.next_offset == 0
    async with asyncio.timeout(10):
        while ledger.ledger_id in await running.ledgers.list():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_who_does_not_find_a_topic_that_is_there_was_only_behind(
    cluster: Cluster,
) -> None:
    """A broker whose metadata lags says that the topic is missing: its part must not be lost."""
    running = await cluster.start("A")
    name = await make_topic(running.broker)
    partition = await owned(running.broker, name)
    ledger = await private(running, name, "q", 0, [2])

    async def behind(*_: Any) -> int | None:
        raise TopicNotFound("there is no such topic, says a broker that is behind")

    with raises_code(BULK_LOAD_UNFINISHED):
        await running.broker.bulk_loads.commit("q", 0, [Offer(name, (ledger,))], behind)
    assert (await commit(running, "q", 0, [])).repeated
    assert await values(partition) == ["s0-0", "s0-1"]


async def test_two_drivers_of_one_batch_commit_it_once(cluster: Cluster) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    ledgers = [await private(one, name, "q", 0, [2], tag) for one, tag in
               ((first, "a"), (second, "b"))]  # fmt: skip
    done = await asyncio.gather(
        commit(first, "q", 0, [Offer(name, (ledgers[0],))], second),
        commit(second, "q", 0, [Offer(name, (ledgers[1],))], first),
    )
    assert sorted(one.repeated for one in done) == [False, True]
    assert await values(partition) in (["a0-0", "a0-1"], ["b0-0", "b0-1"])


async def test_an_id_that_was_forgotten_and_is_used_again_is_a_new_one(
    cluster: Cluster,
) -> None:
    """Partitions that had the old batches must not take them for new batches."""
    running = await cluster.start("A", trim_interval_ms=50)
    zero = await make_topic(running.broker, partitions=2)
    one = TOPIC.partition(1)
    first, second = await owned(running.broker, zero), await owned(running.broker, one)
    old = await private(running, zero, "q", 4, [2], "old")
    await commit(running, "q", 4, [Offer(zero, (old,))])
    bulk_loads = running.broker.bulk_loads
    await forgotten(cluster, running, "q")
    with raises_code(INVALID_BULK_LOAD, match="the batch was committed"):
        await commit(running, "q", 4, [Offer(zero, (old,))])
    assert await bulk_loads.abort("q", 4, [old.ledger_id]) == []
    offers = [Offer(name, (await private(running, name, "q", 3, [1], "new"),))
              for name in (zero, one)]  # fmt: skip
    done = await commit(running, "q", 3, offers)
    assert not done.repeated
    assert await values(first) == ["old0-0", "old0-1", "new0-0"]
    assert await values(second) == ["new0-0"]


# Every broker read every bulk load's record every ten seconds, one after the other, and one slow
# partition held up all later ids.

ROUND_MS = 20
IDS = [f"t{number:02}" for number in range(30)]


@pytest.fixture
async def brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr("octavo.broker.bulkload.driver._SWEEP_AFTER_MS", 50)
    async with running_cluster(tmp_path) as cluster:
        yield cluster


async def none(*_: object) -> int | None:
    raise BrokerError("no broker answers")


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
    """The watch fires between the store's answer and its arrival."""
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
        with raises_code(BULK_LOAD_UNFINISHED):
            await bulk_loads.commit(one, 0, [Offer(name, (ledger,))], none)
    async with asyncio.timeout(10):
        while not (await bulk_loads.newest("b")).complete:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert not (await bulk_loads.newest("a")).complete


async def test_another_broker_finishes_what_one_that_died_had_committed(
    brokers: Cluster,
) -> None:
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
    with raises_code(BULK_LOAD_UNFINISHED):
        await first.broker.bulk_loads.commit("q", 1, offers, none)
    await first.vanish()
    async with asyncio.timeout(10):
        while not (await seen.newest("q")).complete:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await values(await owned(second.broker, name)) == ["n0-0-0", "n1-0-0"]


# Any caller could commit number 2⁶³−1 to any id: every later batch was a repeat, dropped with a
# 200. Now batches follow one another, and the token of its first batch owns the id.

HUGE = 2**63 - 1
FAR_TOPIC = "/v1/topics/public/one"
MINE = {"Bulk-Load-Token": "only I know this"}
TARGET = Target("public/one", 0)
SHARE = {"topic": "one", "partition": 0, "content": "1-1-a"}


@pytest.fixture
async def far_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        assert (await cluster.api.put(FAR_TOPIC)).status == 201
        yield cluster


async def ask(
    cluster: Cluster, call: str, batch_id: int, body: dict[str, Any], token: Any = None
) -> Answer:
    path = f"/v1/bulk-loads/t/batches/{batch_id}/{call}"
    return await cluster.api.call("POST", path, json=body, headers=token or {})


async def test_a_number_far_ahead_is_refused_with_the_next_one(far_cluster: Cluster) -> None:
    nothing: dict[str, Any] = {"parts": []}
    for expected in (0, 1):
        for call in ("begin", "commit"):
            for batch_id in (expected + 1, HUGE):
                said = await ask(far_cluster, call, batch_id, nothing)
                assert (said.status, said.json()["code"]) == (409, "batch-out-of-order"), said
                assert said.json()["expected_batch"] == expected
                assert f"is {expected};" in said.json()["detail"]
        said = await ask(far_cluster, "commit", expected, nothing)
        assert (said.status, said.json()["repeated"]) == (200, False), said
    said = await ask(far_cluster, "commit", 9, {**nothing, "after": 0})
    assert (said.status, said.json()["expected_batch"]) == (409, 2), said
    said = await ask(far_cluster, "commit", 9, {**nothing, "after": 9})
    assert (said.status, said.json()["code"]) == (422, "invalid-body"), said
    said = await ask(far_cluster, "commit", 9, {**nothing, "after": 1})
    assert (said.status, said.json()["repeated"]) == (200, False), said
    said = await ask(far_cluster, "commit", 9, {**nothing, "after": 1})
    assert (said.status, said.json()["repeated"]) == (200, True), said


async def test_an_id_is_its_owners(far_cluster: Cluster) -> None:
    nothing: dict[str, Any] = {"parts": []}
    said = await ask(far_cluster, "begin", 0, {"parts": [SHARE]}, MINE)
    assert said.status == 200, said
    for token in ({}, {"Bulk-Load-Token": "guessed"}, {"Bulk-Load-Token": "n\udce9"}):
        for call, batch_id, body in (
            ("begin", 0, {"parts": [SHARE]}),
            ("commit", 0, {**nothing, "published": True}),
            ("commit", 1, nothing),
            ("abort", 0, {"ledgers": [3]}),
            ("begin", HUGE, {"parts": []}),
        ):
            said = await ask(far_cluster, call, batch_id, body, token)
            assert (said.status, said.json()["code"]) == (403, "foreign-bulk-load"), said
    said = await ask(far_cluster, "commit", 0, {**nothing, "published": True}, MINE)
    assert (said.status, said.json()["repeated"]) == (200, False), said
    said = await ask(far_cluster, "commit", 1, nothing, {"Bulk-Load-Token": "x" * 201})
    assert (said.status, said.json()["code"]) == (400, "invalid-header"), said
    shown = (await far_cluster.api.get("/v1/bulk-loads/t")).body
    assert b"only I know" not in shown


@pytest.mark.parametrize("call", ["begin", "commit", "abort"])
async def test_a_token_of_another_cluster_binds_no_id(far_cluster: Cluster, call: str) -> None:
    """A long-lived Spark driver keeps its proof; a new cluster at the address must not take it."""
    body: dict[str, Any] = {"ledgers": []} if call == "abort" else {"parts": []}
    for other in ("gone", "n\udce9", "x" * 5_000):
        said = await ask(far_cluster, call, 0, body, {"Bulk-Load-Cluster": other} | MINE)
        assert (said.status, said.json()["code"]) == (409, "other-cluster"), said
    ours = await (await far_cluster.client()).records.instance_id()
    new = {"Bulk-Load-Token": "new"}
    for headers in ({"Bulk-Load-Cluster": ours, **new}, new):
        said = await ask(far_cluster, "commit", 0, {"parts": []}, headers)
        assert said.status == 200, said


@pytest.mark.parametrize(
    "share", [{**SHARE, "topic": "none"}, {**SHARE, "partition": 7}], ids=["topic", "partition"]
)
async def test_what_cannot_be_published_is_not_begun(
    far_cluster: Cluster, share: dict[str, Any]
) -> None:
    said = await ask(far_cluster, "begin", 0, {"parts": [SHARE | {"partition": 0}, share]})
    assert said.status == 404, said
    assert (await ask(far_cluster, "commit", 0, {"parts": []})).status == 200


async def test_the_sinks_id_is_the_clusters(far_cluster: Cluster) -> None:
    """A client that reads an id in a ledger's metadata cannot use it."""
    node = next(iter(far_cluster.brokers.values()))
    service = far_cluster.store.url
    async with connected(service) as spark:
        for batch_id in (7, 8, 12):
            task = TaskLedgers(spark, "t", batch_id, "0")
            await task.write([(TARGET, build_batch([Record(None, b"%d" % batch_id)]))])
            written = list(await task.close())
            assert await sink.commit(service, "t", batch_id, written, 30_000)
            for call, number, body in (
                ("commit", batch_id + 1, {"parts": []}),
                ("begin", batch_id + 1, {"parts": []}),
                ("abort", batch_id, {"ledgers": [written[0].ledger_id]}),
            ):
                said = await ask(far_cluster, call, number, body)
                assert said.status == 403, said
        numbers = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
        content = {TARGET: ("1-1-a", build_batch([Record(None, b"published")], **numbers))}
        assert await sink.publish(service, "t", 20, content, 30_000)
        assert not await sink.publish(service, "t", 20, content, 30_000)
    found, _ = await BulkLoadStore(node.store).read("t")
    assert (found.batch, found.complete) == (20, True)
    values = []
    for offset in range(4):
        shown = (await far_cluster.api.get(f"{FAR_TOPIC}/messages?from={offset}&limit=1")).json()
        (one,) = shown["messages"]
        values.append(one["value_text"] if "value_text" in one else one["value"])
    assert values == [7, 8, 12, "published"]


def test_ids_of_older_versions_are_bound_by_the_first_token() -> None:
    old = BulkLoadRecord(3, since_ms=1)
    assert decode_record(BulkLoadRecord, "r", encode_record(old)).token_digest == ""
    for caller in (ANYBODY, Caller("mine")):
        rules.check_caller(old, caller)
    bound = rules.committing(old, 4, (), 5, digest="mine")
    rules.check_caller(bound, Caller("mine"))
    for other in (ANYBODY, Caller("other")):
        with raises_code(FOREIGN_BULK_LOAD):
            rules.check_caller(bound, other)
    later = rules.committing(bound, 5, (), 6, digest="mine")
    assert later.token_digest == "mine"
    assert rules.committing(old, 4, (), 5).token_digest == ""
    begun = rules.beginning(old, 4, {}, 5, "mine")
    assert begun is not None
    assert begun.token_digest == "mine"


numbers = st.one_of(st.integers(0, 6), st.integers(0, HUGE))


@given(st.lists(st.tuples(numbers, st.one_of(st.none(), st.integers(-1, 6)))))
def test_no_batch_is_skipped_that_its_writer_did_not_skip(
    calls: list[tuple[int, int | None]],
) -> None:
    record = BulkLoadRecord()
    for batch_id, after in calls:
        before = record.batch
        try:
            rules.check_order(record, batch_id, after)
        except BatchOutOfOrder as error:
            expected: int | None = error.expected
        else:
            expected = None
        if expected is not None:
            assert batch_id > expected == before + 1
            continue
        if rules.standing(record, batch_id) is Standing.REPEATED:
            assert batch_id <= before
            continue
        assert batch_id == before + 1 or after == before or (before == -1 and after is not None)
        record = rules.committing(record, batch_id, (), 1)


def test_the_batch_that_was_begun_may_go_on_without_after() -> None:
    begun = rules.beginning(BulkLoadRecord(), 7, {}, 1)
    assert begun is not None
    rules.check_order(begun, 7, None)
    with pytest.raises(BatchOutOfOrder):
        rules.check_order(begun, 8, None)


async def test_orphans_of_a_foreign_id_hold_up_nobody(far_cluster: Cluster) -> None:
    node = next(iter(far_cluster.brokers.values()))
    assert (await ask(far_cluster, "commit", 0, {"parts": []}, MINE)).status == 200
    for bulk_load in ("t", "u"):
        writer = await node.ledgers.create(
            custom={
                rules.KIND_KEY: rules.KIND,
                rules.PARTITION_KEY: b"public/one/0",
                rules.BULK_LOAD_KEY: bulk_load.encode(),
                rules.BATCH_KEY: b"1",
            }
        )
        await writer.close()
    found = await collect_orphans(far_cluster.store.url, grace_ms=-60_000)
    assert {one.bulk_load: len(one.deleted) for one in found} == {"t": 0, "u": 1}
    assert [one.transaction for one in found] == ["t", "u"], "by its name of 0.1, until 0.3"
