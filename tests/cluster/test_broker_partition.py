"""A partition over real bookies: publish, read, roll over, retain, refuse."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.broker.errors import (
    BATCH_TOO_LONG,
    MessageNotFound,
    OffsetBeyondEnd,
    OffsetMismatch,
    OffsetTrimmed,
    SequenceGap,
    StaleProducerEpoch,
)
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.types import MessageId, PartitionState, SubscriptionSettings
from octavo.metadata.store import MetadataUnavailable
from octavo.protocol.batch import InvalidBatch, read_header
from tests.support.cluster import Cluster, batch, make_topic, owned, values
from tests.support.kit.refusals import raises_code


async def test_published_messages_have_dense_offsets_and_are_read_back(
    cluster: Cluster,
) -> None:
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker))
    first = await partition.publish(batch(3, tag="a"))
    second = await partition.publish(batch(2, tag="b"))
    assert (first.first_offset, first.last_offset, first.count) == (0, 2, 3)
    assert (second.first_offset, second.last_offset, second.duplicate) == (3, 4, False)
    assert (first.ledger_id, first.entry_id, second.entry_id) == (second.ledger_id, 0, 1)
    assert partition.next_offset == 5
    assert await values(partition) == ["a-0", "a-1", "a-2", "b-0", "b-1"]
    (stored,) = await partition.read(4, bytes_max=1, count_max=1)
    assert stored.base_offset == 3
    assert read_header(stored.data).base_offset == 3


async def test_publishes_that_arrive_together_are_confirmed_in_order(
    cluster: Cluster,
) -> None:
    broker = (await cluster.start("A", inflight_bytes_max=10_000)).broker
    partition = await owned(broker, await make_topic(broker))
    order: list[int] = []

    async def publish(number: int) -> None:
        published = await partition.publish(batch(2, tag=f"p{number}"))
        assert published.first_offset == 2 * number
        order.append(number)

    await asyncio.gather(*(publish(number) for number in range(200)))
    assert order == list(range(200))
    assert await values(partition) == [f"p{n}-{i}" for n in range(200) for i in range(2)]


async def test_many_rollovers_leave_no_gap_and_stop_nobody(cluster: Cluster) -> None:
    broker = (await cluster.start("A", tail_cache_bytes_max=1)).broker
    partition = await owned(broker, await make_topic(broker, rollover_entries=7))

    async def publish(number: int) -> None:
        assert (await partition.publish(batch(3, tag=f"r{number}"))).first_offset == 3 * number

    for start in range(0, 200, 4):
        await asyncio.gather(*(publish(number) for number in range(start, start + 4)))
    assert len(partition.ledgers) > 4
    assert await values(partition) == [f"r{n}-{i}" for n in range(200) for i in range(3)]
    for offset in (0, 1, 299, 300, 419, 598):
        expected = f"r{offset // 3}-{offset % 3}"
        assert (await values(partition, offset))[0] == expected


async def test_a_close_behind_a_failed_roll_over_keeps_what_was_acked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store missed only the change that names the new ledger, the close wrote the new
    ledger's end for the old one: its acked messages left the record (seed 91000032)."""
    running = await cluster.start("A")
    name = await make_topic(running.broker, rollover_entries=3)
    partition = await owned(running.broker, name)
    change = PartitionRecordKeeper.change
    named, back = asyncio.Event(), asyncio.Event()

    async def away(self: PartitionRecordKeeper, make: Any) -> Any:
        if back.is_set():
            return await change(self, make)
        named.set()
        await back.wait()
        raise MetadataUnavailable("did not answer")

    await partition.publish(batch(2, tag="a"))
    monkeypatch.setattr(PartitionRecordKeeper, "change", away)
    for tag in "bc":
        await partition.publish(batch(2, tag=tag))
    await asyncio.wait_for(named.wait(), 60)
    closing = asyncio.create_task(running.close())
    while partition.state is PartitionState.OPEN:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    back.set()
    await closing
    acked = [f"{tag}-{n}" for tag in "abc" for n in range(2)]
    successor = (await cluster.start("B")).broker
    assert await values(await owned(successor, name)) == acked


async def test_a_reader_at_the_end_is_woken(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker))
    waiting = asyncio.create_task(partition.read(0, bytes_max=1000, count_max=10, wait_s=20.0))
    await asyncio.sleep(0)
    await partition.publish(batch(2))
    (stored,) = await waiting
    assert stored.header.record_count == 2
    assert await partition.read(2, bytes_max=1000, count_max=10, wait_s=0.01) == []


async def test_offsets_outside_the_log(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    name = await make_topic(broker, rollover_entries=5, retention_bytes=0)
    partition = await owned(broker, name)
    with pytest.raises(OffsetBeyondEnd) as beyond:
        await partition.read(1, bytes_max=1, count_max=1)
    assert beyond.value.next_offset == 0
    for number in range(12):
        await partition.publish(batch(2, tag=f"t{number}"))
    while partition.earliest_offset < 10:
        await partition.maintain()
        await asyncio.sleep(0.01)
    await partition.publish(batch(2, tag="last"))
    with pytest.raises(OffsetTrimmed) as trimmed:
        await partition.read(9, bytes_max=1, count_max=1)
    assert trimmed.value.earliest == partition.earliest_offset
    assert len(await values(partition, partition.earliest_offset)) == 26 - partition.earliest_offset


async def test_retention_deletes_old_ledgers_but_not_what_is_unacked(
    cluster: Cluster,
) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker, rollover_entries=5, retention_ms=60_000)
    partition = await owned(running.broker, name)
    for number in range(20):
        await partition.publish(batch(1, tag=f"t{number}", time_ms=cluster.clock.now_ms))
        async with asyncio.timeout(20):
            while len(partition.ledgers) < 1 + (number + 1) // 5:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
    before = [ledger for ledger, _ in partition.ledgers]
    await partition.maintain()
    assert [ledger for ledger, _ in partition.ledgers] == before
    cluster.clock.now_ms += 70_000
    info, _ = await running.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings()
    )
    subscription = await partition.subscribe(info)
    await partition.maintain()
    assert partition.earliest_offset == 0, "the subscription still needs everything"
    await subscription.seek(12)
    await partition.maintain()
    assert 5 <= partition.earliest_offset <= 12
    await running.broker.topics.delete_subscription(name.topic_name, "s")
    await partition.maintain()
    after = [ledger for ledger, _ in partition.ledgers]
    assert partition.earliest_offset >= 15
    left = await running.ledgers.list()
    assert set(before) - set(after)
    assert not (set(before) - set(after)) & set(left)
    assert set(after) <= set(left)


async def test_by_time_and_by_message_id(cluster: Cluster) -> None:
    broker = (await cluster.start("A", tail_cache_bytes_max=1)).broker
    partition = await owned(broker, await make_topic(broker, rollover_entries=6))
    ids = []
    for number in range(30):
        published = await partition.publish(batch(3, time_ms=10_000 + 100 * number))
        ids.append(MessageId(published.ledger_id, published.entry_id, 2))
    assert await partition.offset_at(0) == 0
    assert await partition.offset_at(10_000 + 700) == 21
    assert await partition.offset_at(10_000 + 702) == 23
    assert await partition.offset_at(10_000 + 703) == 24
    assert await partition.offset_at(99_999) == partition.next_offset == 90
    assert [await partition.position(one) for one in ids] == list(range(2, 90, 3))
    for wrong in (
        MessageId(ids[0].ledger_id, 0, 3),
        MessageId(999, 0, 0),
        MessageId(ids[0][0], 77, 0),
    ):
        with pytest.raises(MessageNotFound):
            await partition.position(wrong)
    assert await partition.resolve(at="latest") == 90
    assert await partition.resolve(at=ids[1]) == 5


async def test_a_repeated_sequence_is_stored_once(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker))
    one = batch(3, tag="one", producer_id=7, producer_epoch=0, base_sequence=0)
    two = batch(2, tag="two", producer_id=7, producer_epoch=0, base_sequence=3)
    results = await asyncio.gather(*(partition.publish(b) for b in (one, one, two, one, two)))
    assert [r.duplicate for r in results] == [False, True, False, True, True]
    assert [r[:4] for r in results] == [results[i][:4] for i in (0, 0, 2, 0, 2)]
    with pytest.raises(SequenceGap) as gap:
        await partition.publish(batch(1, producer_id=7, producer_epoch=0, base_sequence=6))
    assert gap.value.expected == 5
    await partition.publish(batch(1, tag="new", producer_id=7, producer_epoch=1, base_sequence=0))
    with pytest.raises(StaleProducerEpoch):
        await partition.publish(batch(1, producer_id=7, producer_epoch=0, base_sequence=5))
    assert await values(partition) == ["one-0", "one-1", "one-2", "two-0", "two-1", "new-0"]


async def test_expected_offset_lets_one_writer_win(cluster: Cluster) -> None:
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker))
    results = await asyncio.gather(
        *(partition.publish(batch(1), expected_offset=0) for _ in range(5)), return_exceptions=True
    )
    lost = [r for r in results if isinstance(r, OffsetMismatch)]
    assert len(lost) == 4
    assert {error.next_offset for error in lost} == {1}
    assert (await partition.publish(batch(1), expected_offset=1)).first_offset == 1


async def test_bad_batches_are_refused_and_change_nothing(cluster: Cluster) -> None:
    broker = (await cluster.start("A", batch_bytes_max=5_000)).broker
    partition = await owned(broker, await make_topic(broker))
    good = batch(2)
    with pytest.raises(InvalidBatch, match="checksum"):
        await partition.publish(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(InvalidBatch, match="takes a single record batch"):
        await partition.publish(good + good)
    with raises_code(BATCH_TOO_LONG, match="one entry holds 5000"):
        await partition.publish(batch(1000))
    assert partition.next_offset == 0
    assert (await partition.publish(good)).first_offset == 0
