"""A partition over real bookies: publish, read, roll over, retain, refuse; and faults of its
tasks, its writer, its ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker.cluster import in_use
from octavo.broker.cluster.background_tasks import BackgroundTasks
from octavo.broker.cluster.in_use import RecoveryDoor, writes
from octavo.broker.cluster.registry import encode_broker
from octavo.broker.errors import (
    BATCH_TOO_LONG,
    MessageNotFound,
    OffsetBeyondEnd,
    OffsetMismatch,
    OffsetTrimmed,
    SequenceGap,
    StaleProducerEpoch,
    TooManyRecoveries,
)
from octavo.broker.log.orphan_ledgers import custom_of, partition_of
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition.opening import Opened, PartitionOpener
from octavo.broker.partition.partition import Partition
from octavo.broker.state.log import StateLog
from octavo.broker.types import (
    BrokerInfo,
    MessageId,
    PartitionName,
    PartitionState,
    SubscriptionSettings,
    TopicName,
)
from octavo.ledger.errors import NotEnoughBookies
from octavo.ledger.write.ensemble_writer import EnsembleWriter
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.store import ANY_VERSION, MetadataUnavailable
from octavo.metadata.topics import (
    NamespaceRecord,
    PartitionLedger,
    PartitionRecord,
    TopicRecord,
    TopicSettings,
    TopicStore,
    owner_path,
)
from octavo.protocol.batch import InvalidBatch, read_header
from octavo.protocol.codes import OctavoError
from tests.support.cluster import Cluster, batch, make_topic, owned, running_cluster, until, values
from tests.support.http_api import Answer
from tests.support.kit.refusals import raises_code
from tests.support.raw_bookie import open_metadata


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


# After an unexpected error in a background task of a partition, callers waited in silence for
# ever.


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> None:
    right: Any = getattr(owner, method)

    async def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, method, right)
        raise RuntimeError("a bug")

    monkeypatch.setattr(owner, method, wrong)


async def test_an_opening_is_tried_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = (await cluster.start("A")).broker
    name = await make_topic(broker)
    fail_once(monkeypatch, PartitionOpener, "take_over")

    async def opened() -> bool:
        try:
            return (await broker.ownership.owner_of(name, forwarded=True)).local
        except Exception:
            return False

    async with asyncio.timeout(10):
        while not await opened():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_roll_over_that_fails_ends_the_pipeline_and_another_begins(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker, rollover_entries=2))
    await partition.publish(batch(tag="none"))
    right = PartitionRecordKeeper.change
    fail_once(monkeypatch, PartitionRecordKeeper, "change")
    await partition.publish(batch(tag="one"))
    await until(lambda: PartitionRecordKeeper.change is right, "it has failed", 10.0)
    async with asyncio.timeout(10):
        while True:
            try:
                await partition.publish(batch(tag="two"))
                break
            except Exception:
                await asyncio.sleep(0.02)


async def test_a_reopening_is_tried_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker))
    await partition.publish(batch())
    fail_once(monkeypatch, PartitionOpener, "reopen")
    assert partition._publisher is not None
    partition._publisher.fail(NotEnoughBookies("planted", 2, []))
    await until(lambda: partition.state is PartitionState.OPEN, "it is open again", 10.0)
    await partition.publish(batch())


# An unexpected error in one partition ended the maintenance of all. Now each piece is a separate
# chore.


@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_a_bug_in_one_partition_leaves_the_others_maintained(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    one = await cluster.start("A", trim_interval_ms=20)
    partitions = []
    for number in range(3):
        name = await make_topic(
            one.broker, TopicName("public", f"t{number}"), retention_bytes=0, rollover_entries=1
        )
        partitions.append(await owned(one.broker, name))
    maintain, ill = Partition.maintain, partitions[0].name

    async def broken(partition: Partition) -> None:
        if partition.name == ill:
            if how == "hangs":
                await asyncio.Event().wait()
            raise RuntimeError("a bug")
        await maintain(partition)

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "maintain", broken)
        with capture_logs() as logs:
            for partition in partitions:
                for _ in range(4):
                    await partition.publish(batch(1))
            await until(lambda: all(p.earliest_offset >= 3 for p in partitions[1:]), "trimmed")
            if how == "raises":
                await until(
                    lambda: one.broker.background_tasks.failures["upkeep"] > 1, "tried again"
                )
        assert partitions[0].earliest_offset == 0
    if how == "raises":
        failed = [line for line in logs if line["event"] == "chore_failed"]
        assert {(line["chore"], line["of"]) for line in failed} == {("upkeep", str(ill))}
        assert one.broker.duties().chore_failures.keys() == {"upkeep"}
        await until(lambda: partitions[0].earliest_offset >= 3, "trimmed once the bug is gone")


async def test_what_goes_on_failing_is_tried_ever_less_often_and_seldom_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    now_s, tried = 0.0, 0
    monkeypatch.setattr(loop, "time", lambda: now_s)
    begun: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        begun.append(loop.create_task(work))
        return begun[-1]

    background_tasks = BackgroundTasks(1_000, spawn)

    async def fail() -> None:
        nonlocal tried
        tried += 1
        raise RuntimeError("a bug")

    with capture_logs() as logs:
        for _ in range(36_000):
            background_tasks.begin("trim", "p", fail)
            await asyncio.gather(*begun)
            begun.clear()
            now_s += 1.0
    assert tried == background_tasks.failures["trim"]
    assert 600 <= tried <= 610, "once a minute"
    assert len(logs) <= 7 + 60, "every ten minutes, once the pauses have grown"
    background_tasks.keep_only("trim", [])
    background_tasks.begin("trim", "p", fail)
    await asyncio.gather(*begun)
    assert tried in range(601, 612), "forgotten, so tried at once"


async def test_a_bug_in_a_ledgers_clock_ends_that_writer_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await cluster.start("A")
    ill, well = [
        await one.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2) for _ in range(2)
    ]
    tick = EnsembleWriter.tick
    ticked = 0

    def broken(replication: EnsembleWriter, now: float) -> bool:
        nonlocal ticked
        if replication.core.metadata.ledger_id == ill.ledger_id:
            raise RuntimeError("a bug")
        ticked += 1
        tick(replication, now)
        return True

    monkeypatch.setattr(EnsembleWriter, "tick", broken)
    for bookie in ("b2", "b3"):
        await cluster.stop_bookie(bookie)
    asked = [asyncio.create_task(writer.append(b"x")) for writer in (ill, well)]
    with pytest.raises(OctavoError, match="a bug"):
        await asked[0]
    before = ticked
    await until(lambda: ticked > before + 2, "the other writer's clock ticks on")
    asked[1].cancel()


async def test_a_bug_while_brokers_are_read_does_not_deafen_a_broker(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await cluster.start("A")
    registry: Any = one.broker.registry  # type: ignore[attr-defined]
    reload, failed = registry._reload, asyncio.Event()

    async def broken() -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a bug")
        await reload()

    monkeypatch.setattr(registry, "_reload", broken)
    await cluster.start("B")
    await until(lambda: len(one.broker.registry.brokers()) == 2, "A sees B")
    assert failed.is_set()


async def test_a_bug_while_a_bookie_is_connected_to_does_not_end_the_trying(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await cluster.start("A")
    writer = await one.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(b"x")
    bookie: Any = one.ledgers.bookies.get("b1")
    await until(lambda: bookie.is_up, "connected")
    opens, failed = type(bookie)._open, asyncio.Event()

    async def broken(self: Any) -> Any:
        if self is bookie and not failed.is_set():
            failed.set()
            raise RuntimeError("a bug")
        return await opens(self)

    monkeypatch.setattr(type(bookie), "_open", broken)
    bookie.drop("a test")
    await until(lambda: failed.is_set() and bookie.is_up, "connected again")


async def test_it_is_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reopening continued during a hand-over: when it finished first, the closed partition
    counted as served, and its new ledger was left open."""
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        partition = await owned(running.broker, await make_topic(running.broker))
        await partition.publish(batch())
        opening, closing, may_go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
        reopen, close = PartitionOpener.reopen, StateLog.close
        reopened: list[Opened] = []

        async def slow(opener: PartitionOpener, *known: Any) -> Opened:
            opening.set()
            await closing.wait()
            reopened.append(await reopen(opener, *known))
            return reopened[-1]

        async def slow_close(log: StateLog, *, drain: bool) -> None:
            closing.set()
            await may_go_on.wait()
            await close(log, drain=drain)

        monkeypatch.setattr(PartitionOpener, "reopen", slow)
        monkeypatch.setattr(StateLog, "close", slow_close)
        inside: Any = partition
        inside._publisher.fail(MetadataUnavailable("its ledger failed"))
        await opening.wait()
        assert partition.state is PartitionState.REOPENING
        handed_over = asyncio.create_task(partition.close(graceful=True))
        await closing.wait()
        await until(inside._reopening.done, "its opening is over")
        may_go_on.set()
        await handed_over
        assert not reopened
        assert inside._reopening.cancelled()
        assert partition.state is PartitionState.CLOSED


async def test_what_was_acked_is_read_without_a_publish(tmp_path: Path) -> None:
    """A writer that had waited too long for bookies ended unseen until the next add: reads of
    the last messages were a 503 until then (seed 1200746 of `recreate`)."""
    async with running_cluster(tmp_path) as brokers:
        broker = (await brokers.start("A", tail_cache_bytes_max=1)).broker
        name = await make_topic(broker)
        partition = await owned(broker, name)
        await partition.publish(batch(3))
        ended = partition._publisher.writer
        assert ended is not None
        for bookie in ("b1", "b2", "b3"):
            await brokers.stop_bookie(bookie)
        await until(lambda: ended.error is not None, "the writer gave up")
        assert partition.state is PartitionState.REOPENING
        for bookie in ("b1", "b2", "b3"):
            await brokers.start_bookie(bookie)
        await until(lambda: partition.state is PartitionState.OPEN, "it opened anew")
        found = await partition.read(0, bytes_max=1 << 20, count_max=10)
        assert [one.header.record_count for one in found] == [3]
        assert (await partition.publish(batch(1))).first_offset == 3


async def test_the_new_ledger_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        partition = await owned(
            running.broker, await make_topic(running.broker, rollover_entries=2)
        )

        failed = asyncio.Event()

        async def fails(writer: LedgerWriter) -> LedgerMetadata:
            failed.set()
            raise MetadataUnavailable("the store is away")

        monkeypatch.setattr(LedgerWriter, "close", fails)
        publishing = asyncio.gather(
            *(partition.publish(batch()) for _ in range(3)), return_exceptions=True
        )
        async with asyncio.timeout(15):
            await failed.wait()
            await publishing
        monkeypatch.undo()

        async def left_over() -> set[int]:
            named = {ledger_id for ledger_id, _ in partition.ledgers}
            return set(await running.ledgers.list()) - named

        async with asyncio.timeout(15):
            while partition.next_offset < 2 or await left_over():  # noqa: ASYNC110
                await asyncio.sleep(0.02)


# Each recovery fences the ledger that a healthy owner writes: a loop of `POST …/recover` stopped
# all publishing. Now it must be forced, and that once a minute.

TOPIC = "/v1/topics/public/one"
NAME = PartitionName("public", "one", 0)
LEDGER = 7


@pytest.fixture
async def recover_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        assert (await cluster.api.put(TOPIC)).status == 201
        yield cluster


async def named(cluster: Cluster) -> tuple[int, int]:
    await cluster.api.put(f"{TOPIC}/subscriptions/s")
    for node in cluster.brokers.values():
        for partition in node.broker.ownership.open_partitions():
            record = partition._record.value
            assert record.state_ledger is not None
            return record.ledgers[-1].ledger_id, record.state_ledger
    raise AssertionError("no broker serves it")


async def recover(cluster: Cluster, ledger: int, query: str = "") -> list[Answer]:
    path = f"/v1/ledgers/{ledger}/recover{query}"
    return [await api.post(path) for api in cluster.apis.values()]


async def test_the_ledgers_of_a_living_owner_are_refused_and_publishing_goes_on(
    recover_cluster: Cluster,
) -> None:
    assert (
        await recover_cluster.api.post(f"{TOPIC}/messages", b"first", "text/plain")
    ).status == 200
    for ledger in await named(recover_cluster):
        for number in range(10):
            for answer in await recover(recover_cluster, ledger):
                problem = answer.json()
                assert (answer.status, problem["code"]) == (409, "ledger-in-use"), answer
                assert problem["owner"] in recover_cluster.brokers
                assert "public/one/0" in problem["detail"]
                assert "force=true" in problem["detail"]
            said = await recover_cluster.api.post(f"{TOPIC}/messages", b"%d" % number, "text/plain")
            assert said.status == 200, said
        assert (await recover_cluster.api.get(f"/v1/ledgers/{ledger}")).json()["state"] == "OPEN"


async def test_an_operator_may_force_it_once_a_minute(recover_cluster: Cluster) -> None:
    await recover_cluster.api.post(f"{TOPIC}/messages", b"first", "text/plain")
    data, _ = await named(recover_cluster)
    api = recover_cluster.api
    forced = await api.post(f"/v1/ledgers/{data}/recover?force=true")
    assert (forced.status, forced.json()["state"]) == (200, "CLOSED"), forced
    async with asyncio.timeout(30):
        while (await api.post(f"{TOPIC}/messages", b"more", "text/plain")).status != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    data, _ = await named(recover_cluster)
    again = await api.post(f"/v1/ledgers/{data}/recover?force=true")
    assert (again.status, again.json()["code"]) == (429, "too-many-recoveries"), again
    assert 1 <= int(again.headers["Retry-After"]) <= in_use.FORCED_EVERY_S
    odd = await api.post(f"/v1/ledgers/{data}/recover?force=yes")
    assert odd.status == 400, odd


async def test_what_no_living_owner_writes_is_recovered(recover_cluster: Cluster) -> None:
    node = next(iter(recover_cluster.brokers.values()))
    record = PartitionRecord(incarnation="x", epoch=3)
    for custom in ({}, custom_of(PartitionName("public", "gone", 0), "data", record)):
        writer = await node.ledgers.create(custom=custom)
        await writer.append(b"one")
        for answer in await recover(recover_cluster, writer.ledger_id):
            assert answer.status == 200, answer
            assert (answer.json()["state"], answer.json()["last_entry"]) == ("CLOSED", 0)


async def test_it_is_in_use_as_long_as_a_claim_stands(tmp_path: Path) -> None:
    async with open_metadata(tmp_path) as store:
        topics = TopicStore(store)
        await topics.create_namespace("public", NamespaceRecord())
        await topics.create_topic("public", "one", TopicRecord(TopicSettings(), incarnation="x"))
        await topics.create_partition(*NAME, record(LEDGER))
        fragments = (Fragment(0, ("b1", "b2", "b3")),)
        ledger = LedgerMetadata(
            LEDGER, 3, 3, 2, fragments, custom=custom_of(NAME, "data", record(LEDGER))
        )
        assert await in_use.user_of(store, ledger) is None, "nobody owns it"
        await store.create(owner_path(*NAME), encode_broker(BrokerInfo("broker-9", "u"), "run"))
        assert await in_use.user_of(store, ledger) == (NAME, "broker-9")
        closed = replace(ledger, state=LedgerState.CLOSED, last_entry=3)
        assert await in_use.user_of(store, closed) is None
        await store.put(owner_path(*NAME), b"?", ANY_VERSION)
        assert (await in_use.user_of(store, ledger)) is not None, "somebody, who says no name"


def record(*ledgers: int, state: int | None = None, epoch: int = 3) -> PartitionRecord:
    links = tuple(PartitionLedger(one, 0) for one in ledgers)
    return PartitionRecord(links, state_ledger=state, epoch=epoch, incarnation="x")


@pytest.mark.parametrize(
    ("made_at", "now", "expected"),
    [
        (record(), record(1, LEDGER), True),
        (record(), record(1, state=LEDGER), True),
        (record(), record(1, 2), True),
        (record(), record(1, 2, epoch=4), False),
        (record(), record(1, state=LEDGER, epoch=4), True),
        (record(), record(LEDGER, epoch=4), True),
    ],
)
def test_an_owner_writes_what_its_record_names_or_may_name(
    made_at: PartitionRecord, now: PartitionRecord, expected: bool
) -> None:
    assert writes(LEDGER, custom_of(NAME, "data", made_at), now) is expected


def test_ledgers_of_older_versions_go_by_the_record_alone() -> None:
    custom = {"octavo.partition": b"public/one/0", "octavo.kind": b"data"}
    assert partition_of(custom) == NAME
    assert writes(LEDGER, custom, record(LEDGER))
    assert not writes(LEDGER, custom, record(1))


@pytest.mark.parametrize(
    "custom",
    [
        {},
        {"octavo.partition": b"public/one/0", "octavo.kind": b"transaction"},
        {"octavo.partition": b"public/one", "octavo.kind": b"data"},
        {"octavo.partition": b"public/\xff/0", "octavo.kind": b"data"},
        {"octavo.partition": b"public/one/-1", "octavo.kind": b"state"},
        {"octavo.partition": b"public/one/00", "octavo.kind": b"state"},
        {"octavo.partition": b"public/../0", "octavo.kind": b"state"},
    ],
)
def test_whatever_else_a_ledger_says_it_is_of_no_partition(custom: dict[str, bytes]) -> None:
    assert partition_of(custom) is None


def test_recoveries_are_limited_in_number_and_rate() -> None:
    door = RecoveryDoor()
    inside = []
    for _ in range(in_use.RECOVERIES_AT_ONCE):
        inside.append(door.entered(0.0))
        inside[-1].__enter__()
    with pytest.raises(TooManyRecoveries, match="at once") as full, door.entered(0.0):
        raise AssertionError
    assert full.value.retry_after_s == 1
    for one in inside:
        one.__exit__(None, None, None)
    for _ in range(in_use.RECOVERIES_A_MINUTE - len(inside)):
        with door.entered(0.5):
            pass
    with pytest.raises(TooManyRecoveries, match="a minute") as many, door.entered(1.0):
        raise AssertionError
    assert many.value.retry_after_s == 59
    with door.entered(60.1):
        pass


def test_forced_ones_are_a_minute_apart() -> None:
    door = RecoveryDoor()
    door.force(10.0)
    with pytest.raises(TooManyRecoveries, match="forced") as early:
        door.force(30.0)
    assert early.value.retry_after_s == 40
    door.force(70.0)
