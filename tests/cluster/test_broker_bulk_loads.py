"""Ledgers written beforehand join partitions: whole, once, in order, whoever dies on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from octavo.broker.bulkload import rules
from octavo.broker.bulkload.checks import Offer
from octavo.broker.bulkload.driver import Committed
from octavo.broker.bulkload.rules import Caller
from octavo.broker.errors import (
    BrokerError,
    BulkLoadAborted,
    BulkLoadNotFound,
    BulkLoadUnfinished,
    InvalidBulkLoad,
    TopicNotFound,
)
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition.rollover import Rollover
from octavo.broker.types import PartitionName, SubscriptionSettings
from octavo.ledger.errors import LedgerNotFound
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.bulk_loads import PrivateLedger
from octavo.protocol.batch import read_header, with_base_offset
from octavo.protocol.codes import OctavoError
from tests.support.cluster import TOPIC, Cluster, RunningBroker, batch, make_topic, owned, values


async def private(
    running: RunningBroker,
    name: PartitionName,
    bulk_load: str,
    number: int,
    counts: Sequence[int],
    tag: str = "s",
    time_ms: int = 1_700_000_000_000,
) -> PrivateLedger:
    """A private ledger, closed: one batch for each count."""
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
    """Asks whichever of these brokers serves the partition, as the HTTP layer does."""

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
    assert first.next_offset == 3  # nothing is visible before the commit
    done = await commit(running, "q", 0, offers)
    assert (done.repeated, done.offsets) == (False, {zero: 3, one: 0})
    assert (await first.publish(batch(1, tag="after"))).first_offset == 6
    assert await values(first) == [
        "before-0", "before-1", "before-2", "a0-0", "a0-1", "a1-0", "after-0"
    ]  # fmt: skip
    assert await values(second) == ["b0-0", "c0-0", "c0-1"]
    # The empty open ledger of partition 1 left the chain, and the cluster.
    named = {ledger for one in (first, second) for ledger, _ in one.stats().ledgers}

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
    assert await abort("q", 4, [ledger.ledger_id]) == []  # the partition's own record knows
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
    with pytest.raises(BulkLoadAborted):
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
    data_ledger = partition.stats().ledgers[0][0]
    elsewhere = await private(running, TOPIC.partition(1), "q", 0, [1])
    for bad, why in (
        (PrivateLedger(open_one.ledger_id, 1, 1, 0, 0), "must be closed"),
        (PrivateLedger(data_ledger, 1, 1, 0, 0), "was not written for batch 0 of q"),
        (PrivateLedger(10**9, 1, 1, 0, 0), "no ledger"),
        (elsewhere, "is for public/flights/1"),
        (good, "is named twice"),
    ):
        with pytest.raises(InvalidBulkLoad, match=why):
            await commit(running, "q", 0, [Offer(name, (bad, good))])
    too_many = PrivateLedger(good.ledger_id, 4, good.bytes, 0, 0)
    with pytest.raises(InvalidBulkLoad, match="has 3 messages"):
        await commit(running, "q", 0, [Offer(name, (too_many,))])
    with pytest.raises(InvalidBulkLoad, match="was not written for batch 1"):
        await commit(running, "q", 1, [Offer(name, (good,))])
    with pytest.raises(InvalidBulkLoad, match="was not written"):
        await running.broker.bulk_loads.abort("q", 0, [data_ledger])
    with pytest.raises(BulkLoadNotFound):
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
    # From before the bulk load to after it in one read: what is cached must not skip what is not.
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
    """The owner stops for ever at one step; another one takes over, and the commit is repeated."""
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
    """Its record goes a week later: by a clock that somebody vouches for, and not before."""
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
            raise BrokerError("the owner of this one does not answer")
        return await first.load_part(bulk_load, number)

    bulk_loads = running.broker.bulk_loads
    with pytest.raises(BulkLoadUnfinished, match="flights/1 does not have its part yet"):
        await bulk_loads.commit("q", 0, offers, half)
    assert (first.next_offset, second.next_offset) == (2, 0)
    assert not (await bulk_loads.newest("q")).complete
    cluster.clock.now_ms -= 3_600_000  # set back: nobody may wait until it has caught up
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
        raise BrokerError("nobody answers")

    with pytest.raises(BulkLoadUnfinished):
        await running.broker.bulk_loads.commit("q", 0, [Offer(name, (ledgers[0],))], none)
    with pytest.raises(BulkLoadUnfinished):
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
        raise BrokerError("nobody answers")

    with pytest.raises(BulkLoadUnfinished):
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

    with pytest.raises(BulkLoadUnfinished):
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
    """Its old batches must not be taken for these in the partitions that had them, or half a batch
    would be missing; and what a partition has is neither added again nor given up."""
    running = await cluster.start("A", trim_interval_ms=50)
    zero = await make_topic(running.broker, partitions=2)
    one = TOPIC.partition(1)
    first, second = await owned(running.broker, zero), await owned(running.broker, one)
    old = await private(running, zero, "q", 4, [2], "old")
    await commit(running, "q", 4, [Offer(zero, (old,))])
    bulk_loads = running.broker.bulk_loads
    await forgotten(cluster, running, "q")
    with pytest.raises(InvalidBulkLoad, match="the batch was committed"):
        await commit(running, "q", 4, [Offer(zero, (old,))])
    assert await bulk_loads.abort("q", 4, [old.ledger_id]) == []
    offers = [Offer(name, (await private(running, name, "q", 3, [1], "new"),))
              for name in (zero, one)]  # fmt: skip
    done = await commit(running, "q", 3, offers)
    assert not done.repeated
    assert await values(first) == ["old0-0", "old0-1", "new0-0"]
    assert await values(second) == ["new0-0"]
