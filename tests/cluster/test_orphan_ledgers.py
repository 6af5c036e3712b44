"""Ledgers, records and objects that no topic names any more are removed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.errors import (
    AckOutcomeUnknown,
    BrokerError,
    NotOwner,
    PartitionUnavailable,
    PublishOutcomeUnknown,
)
from octavo.broker.log.orphan_ledgers import custom_of, label_of
from octavo.broker.log.record import PartitionRecordKeeper, with_ledgers
from octavo.broker.log.retention import RetentionPolicy
from octavo.broker.partition import opening
from octavo.broker.partition.partition import Partition
from octavo.broker.state.format import Op, producers_op, snapshot
from octavo.broker.types import (
    BrokerInfo,
    PartitionName,
    SubscriptionSettings,
    TopicName,
    TopicSettings,
)
from octavo.clock import wall_clock_ms
from octavo.ledger.errors import BookieUnavailable, NotEnoughBookies
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.store import MetadataStore, MetadataUnavailable, RecordNotFound
from octavo.metadata.topics import (
    PartitionLedger,
    PartitionRecord,
    SubscriptionRecord,
    TopicStore,
    owner_path,
)
from octavo.pipeline.offload import begin, finish, remove_orphans
from octavo.pipeline.offload_copy import copy_in_task
from octavo.pipeline.offload_rules import OffloadPolicy, planned
from octavo.protocol.codes import OctavoError
from octavo.spark.cluster import connected
from tests.support.cluster import (
    TOPIC,
    Cluster,
    RunningBroker,
    add_many,
    batch,
    make_topic,
    owned,
    payload_of,
    running_cluster,
    until,
    values,
)
from tests.support.memory_state_ledgers import MemoryLedgers, MemoryWriter, Served
from tests.support.spark_place import Place, running_place
from tests.support.storage_support import eventually
from tests.unit.broker.test_ledger_list import Rolling
from tests.unit.broker.test_publisher import turns

# Each case counts all ledgers, and finds only ledgers that records name.

TIMES = 4
SWEEPING: dict[str, Any] = {"sweep_interval_ms": 50, "leftover_grace_ms": 150}


async def named(running: RunningBroker) -> set[int]:
    records = TopicStore(running.store)
    found: set[int] = set()
    for namespace in await records.list_namespaces():
        for topic in await records.list_topics(namespace):
            for number in await records.list_partitions(namespace, topic):
                record, _ = await records.read_partition(namespace, topic, number)
                found |= {link.ledger_id for link in record.ledgers}
                found |= set() if record.state_ledger is None else {record.state_ledger}
    return found


async def left_over(running: RunningBroker) -> set[int]:
    listed = set(await running.ledgers.list())
    return listed - await named(running)


async def until_none_is_left(running: RunningBroker) -> None:
    async with asyncio.timeout(30):
        while await left_over(running):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def unsuccessfully(running: RunningBroker, name: PartitionName) -> None:
    try:
        await running.broker.ownership.owner_of(name, forwarded=True)
    except OctavoError:
        await asyncio.sleep(0.02)


async def open_again(running: RunningBroker, name: PartitionName) -> Partition:
    async with asyncio.timeout(15):
        while True:
            try:
                return await owned(running.broker, name)
            except PartitionUnavailable:
                await asyncio.sleep(0.01)


class Unanswered:
    """Every change of a partition's record has neither effect nor answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changes = 0
        self.begun = asyncio.Event()
        self._patch = monkeypatch

    def __enter__(self) -> Unanswered:
        async def fail(_: PartitionRecordKeeper, make: Any) -> None:
            self.changes += 1
            self.begun.set()
            raise MetadataUnavailable("the store does not answer")

        self._patch.setattr(PartitionRecordKeeper, "change", fail)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


async def make_leftovers(
    running: RunningBroker, name: PartitionName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make orphans by failed openings: each makes a state ledger, because only batches tell of a
    producer."""
    partition = await open_again(running, name)
    info, _ = await running.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings(start="earliest")
    )
    first = (await partition.publish(batch(tag="acked"))).first_offset
    await (await partition.subscribe(info)).acknowledge(up_to=first)
    await partition.publish(batch(tag="told", producer_id=7, producer_epoch=0, base_sequence=0))
    partition.abandon("another is said to serve it")
    with Unanswered(monkeypatch) as store:
        while store.changes < TIMES:
            await unsuccessfully(running, name)


async def test_after_failed_openings(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await cluster.start("A", **SWEEPING)
    name = await make_topic(one.broker)
    await make_leftovers(one, name, monkeypatch)
    assert len(await left_over(one)) >= TIMES
    partition = await open_again(one, name)
    await partition.publish(batch(2))
    await until_none_is_left(one)
    assert one.broker.duties().leftovers_removed >= TIMES
    assert await values(partition) == ["acked-0", "told-0", "m-0", "m-1"]


async def test_after_failed_roll_overs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await cluster.start("A", publish_timeout_ms=2_000, **SWEEPING)
    name = await make_topic(one.broker, rollover_entries=1)
    partition = await open_again(one, name)
    for _ in range(TIMES):
        with Unanswered(monkeypatch) as store:
            publishing = asyncio.gather(
                *(partition.publish(batch()) for _ in range(3)), return_exceptions=True
            )
            async with asyncio.timeout(15):
                await store.begun.wait()
                await publishing
        async with asyncio.timeout(15):
            while True:
                try:
                    await partition.publish(batch())
                    break
                except OctavoError:
                    await asyncio.sleep(0.01)
    await until_none_is_left(one)
    assert len(await values(partition)) == partition.next_offset


async def test_after_deletions_and_crashes_of_owners(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = PartitionName(*TOPIC, 0)
    for number in range(TIMES):
        owner = await cluster.start(f"A{number}")
        gone = await make_topic(owner.broker, TopicName("public", f"gone{number}"))
        await make_leftovers(owner, gone, monkeypatch)
        await (await open_again(owner, gone)).publish(batch())
        await owner.broker.topics.delete(gone.topic_name)
        await make_topic(owner.broker, TOPIC, rollover_entries=1)
        partition = await open_again(owner, name)
        await partition.publish(batch())
        with Unanswered(monkeypatch) as store:
            publishing = [asyncio.create_task(partition.publish(batch())) for _ in range(2)]
            async with asyncio.timeout(15):
                await store.begun.wait()
                await owner.vanish()
                await asyncio.gather(*publishing, return_exceptions=True)
                await owner.bury()
    last = await cluster.start("B", **SWEEPING)
    partition = await open_again(last, name)
    await until(lambda: len(last.broker.registry.brokers()) == 1, "the others' sessions are over")
    assert last.broker.duties().leftovers_removed + len(await left_over(last)) > TIMES * TIMES
    await until_none_is_left(last)
    assert len(await values(partition)) == partition.next_offset >= TIMES


async def test_others_ledgers_stay(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers of this very epoch, since its owner may name them; and all without our label."""
    one = await cluster.start("A", **SWEEPING)
    name = await make_topic(one.broker)
    partition = await open_again(one, name)
    record = partition._record.value
    custom: list[dict[str, bytes]] = [
        {},
        {"application": b"another"},
        {"octavo.partition": b"public/gone/0", "octavo.kind": b"data"},
        {"octavo.partition": b"public/gone/0", "octavo.kind": b"transaction"},
        custom_of(name, "data", record),
    ]
    kept = {(await one.ledgers.create(custom=one_of)).ledger_id for one_of in custom}
    goes = await one.ledgers.create(
        custom=custom_of(PartitionName("public", "gone", 0), "data", record)
    )
    async with asyncio.timeout(30):
        while goes.ledger_id in await one.ledgers.list():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await left_over(one) == kept


async def test_a_state_ledger_is_not_named_at_a_later_epoch() -> None:
    """It is made while its partition is reopened: a sweep would take it for an orphan."""
    made: list[int] = []

    def snapshot() -> list[bytes]:
        made.append(served.record.value.epoch)
        if len(made) == 1:
            served.record.value = PartitionRecord(incarnation="i", epoch=4)
        return []

    served = Served(snapshot)
    served.record.value = PartitionRecord(incarnation="i", epoch=3)
    await served.log.append(_an_op())
    assert served.record.value.state_ledger == 2
    assert [*served.ledgers.writers] == [2], "the first one is removed"
    label = label_of(served.ledgers.custom[2])
    assert label is not None
    assert label.epoch == served.record.value.epoch == 4


def _an_op() -> Op:
    return producers_op(0, [])


# A broker's discarded writers stayed registered at bookies, ticks and reconnects as long as the
# process lived. Each case counts all registrations before and after.

DISCARDED_TIMES = 6


def registered(running: RunningBroker) -> dict[str, int]:
    broker: Any = running.broker
    ledgers: Any = running.ledgers
    store: Any = running.store
    bookies = ledgers.bookies._bookies.values()
    return {
        "writers": len(ledgers._writers),
        "ticking": len(ledgers._ticking),
        "recoveries": len(ledgers._recoveries),
        "listeners": sum(len(bookie._listeners) for bookie in bookies),
        "sinks": sum(len(b.connection._sinks) for b in bookies if b.connection is not None),
        "watchers of bookies": len(ledgers.bookies._on_change),
        "watches": sum(len(found) for found in store._watches._watches.values()),
        "partitions": broker.ownership.held(),
        "holdings": len(broker.ownership._holdings),
        "claimed once": len(broker.ownership._outstanding),
        "lookups": len(broker.ownership._lookups),
        "claims sent": len(broker.ownership._ownership._sent),
        "topics": len(broker.topics._known),
        "chores": len(broker.background_tasks._failing),
        "tasks": len(broker._tasks),
    }


async def as_before(running: RunningBroker, before: dict[str, int]) -> None:
    """Wait for the same counts: some are removed in the background."""
    try:
        await until(lambda: registered(running) == before, "as before", 10)
    except AssertionError:
        assert registered(running) == before


async def used(running: RunningBroker, name: PartitionName) -> Partition:
    async with asyncio.timeout(15):
        while True:
            try:
                partition = await owned(running.broker, name)
                break
            except PartitionUnavailable:
                await asyncio.sleep(0.02)
    first = (await partition.publish(batch(2))).first_offset
    info, _ = await running.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings()
    )
    await (await partition.subscribe(info)).acknowledge(up_to=first)
    return partition


async def settled(running: RunningBroker, name: PartitionName) -> dict[str, int]:
    await used(running, name)
    seen: list[dict[str, int]] = []

    def steady() -> bool:
        seen.append(registered(running))
        return len(seen) > 30 and all(one == seen[-1] for one in seen[-30:])

    await until(steady, "nothing changes any more")
    return seen[-1]


async def test_after_losses_of_ownership(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker)
    before = await settled(one, name)
    for _ in range(DISCARDED_TIMES):
        (await used(one, name)).abandon("another is said to serve it")
    await used(one, name)
    await as_before(one, before)


HEIR = BrokerInfo("B", "")


async def makes_ready(foretold: object) -> bool:
    return True


async def nobody_to_ask(incarnation: str, end: object) -> None:
    pass


async def test_after_hand_overs(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker)
    before = await settled(one, name)
    owners: Any = one.broker.ownership  # type: ignore[attr-defined]
    for _ in range(DISCARDED_TIMES):
        await used(one, name)
        assert await owners.hand_on(name, HEIR, makes_ready, nobody_to_ask, 0.1) is None
    await used(one, name)
    await as_before(one, before)


@pytest.mark.parametrize("fails", ["create", "write", "change"])
async def test_discarded_after_failed_openings(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Only batches tell of a producer, so each opening makes a state ledger and writes it."""
    one = await cluster.start("A")
    name = await make_topic(one.broker)
    before = await settled(one, name)
    partition = await one.broker.ownership.partition(name)
    await partition.publish(batch(1, producer_id=7, producer_epoch=0, base_sequence=0))
    failed = 0

    async def fail(*_: object, **__: object) -> None:
        nonlocal failed
        failed += 1
        raise MetadataUnavailable("the store does not answer")

    with monkeypatch.context() as patch:
        if fails == "change":
            patch.setattr(PartitionRecordKeeper, "change", fail)
        elif fails == "write":
            patch.setattr(opening, "write_snapshot", fail)
        else:
            patch.setattr(one.ledgers, "create", fail)
        partition.abandon("another is said to serve it")
        for _ in range(500):
            if failed >= DISCARDED_TIMES:
                break
            try:
                await one.broker.ownership.owner_of(name, forwarded=True)
            except OctavoError:
                await asyncio.sleep(0.02)
    assert failed >= DISCARDED_TIMES
    await used(one, name)
    await as_before(one, before)


async def test_after_roll_overs_of_both_ledgers(cluster: Cluster) -> None:
    one = await cluster.start("A", state_ledger_entries_max=2)
    name = await make_topic(one.broker, rollover_entries=1)
    before = await settled(one, name)
    for _ in range(DISCARDED_TIMES):
        await used(one, name)
    await as_before(one, before)


async def test_discarded_after_failed_roll_overs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await cluster.start("A", publish_timeout_ms=2_000)
    name = await make_topic(one.broker, rollover_entries=1)
    before = await settled(one, name)
    change = PartitionRecordKeeper.change
    left = 0

    async def fail(keeper: PartitionRecordKeeper, make: Any) -> None:
        nonlocal left
        if left:
            left -= 1
            raise MetadataUnavailable("the store does not answer")
        await change(keeper, make)

    monkeypatch.setattr(PartitionRecordKeeper, "change", fail)
    for _ in range(DISCARDED_TIMES):
        left = 1
        partition = await one.broker.ownership.partition(name)
        results = await asyncio.gather(
            *(partition.publish(batch(1)) for _ in range(4)), return_exceptions=True
        )
        for one_of in results:
            assert not isinstance(one_of, BaseException) or isinstance(one_of, BrokerError), one_of
        async with asyncio.timeout(15):
            while True:
                try:
                    await partition.publish(batch(1))
                    break
                except BrokerError:
                    await asyncio.sleep(0.01)
    left = 0
    await as_before(one, before)


async def test_after_failed_replacements_of_the_state_ledger(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await cluster.start("A", state_ledger_entries_max=1)
    name = await make_topic(one.broker)
    before = await settled(one, name)
    create: Callable[..., Any] = one.ledgers.create
    left = 0

    async def fail_once(*args: Any, **settings: Any) -> LedgerWriter:
        nonlocal left
        if left:
            left -= 1
            raise MetadataUnavailable("the store does not answer")
        return await create(*args, **settings)

    monkeypatch.setattr(one.ledgers, "create", fail_once)
    subscription = await (await one.broker.ownership.partition(name)).subscription("s")
    for _ in range(DISCARDED_TIMES):
        first = (await (await one.broker.ownership.partition(name)).publish(batch(3))).first_offset
        for offset in range(first, first + 3):
            left = 1
            try:
                await subscription.acknowledge(up_to=offset)
            except OctavoError:
                await subscription.acknowledge(up_to=offset)
    await as_before(one, before)


async def test_after_deletions_of_topics(cluster: Cluster) -> None:
    one = await cluster.start("A")
    before = await settled(one, await make_topic(one.broker))
    for number in range(DISCARDED_TIMES):
        name = await make_topic(one.broker, TopicName("public", f"gone{number}"))
        await used(one, name)
        await one.broker.topics.delete(name.topic_name)
    await as_before(one, before)


# A state ledger whose snapshot failed, and a data ledger of an interrupted roll-over, stayed
# until a sweep found them.

NOTHING: Op = []


def empty() -> Iterable[bytes]:
    return snapshot([], [], 0)


class HeldUp(MemoryLedgers):
    async def create(self, **settings: object) -> MemoryWriter:
        writer = await super().create(**settings)
        writer.go_on.clear()
        return writer


@pytest.mark.parametrize("how", ["fails", "is broken off"])
async def test_of_a_snapshot_that(how: str) -> None:
    served = Served(empty)
    served.ledgers = served.log._ledgers = HeldUp()  # type: ignore[assignment]
    asked = asyncio.create_task(served.log.append(NOTHING))
    await turns()
    (writer,) = served.ledgers.writers.values()
    if how == "fails":
        writer.ended = BookieUnavailable("b1", "gone")
        writer.go_on.set()
        with pytest.raises(AckOutcomeUnknown):
            await asked
    else:
        await served.log.close(drain=False)
        with pytest.raises(NotOwner):
            await asked
    await turns()
    assert writer.ended is not None
    assert not served.ledgers.writers, "it is deleted: no record can name it"


async def test_one_that_the_record_may_name_is_let_go_of_and_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served(empty)

    async def no_answer(_: object) -> None:
        raise MetadataUnavailable("no answer")

    monkeypatch.setattr(served.record, "change", no_answer)
    with pytest.raises(AckOutcomeUnknown):
        await served.log.append(NOTHING)
    await turns()
    (writer,) = served.ledgers.writers.values()
    assert writer.ended is not None


async def test_of_a_roll_over_that_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    rolling = Rolling(monkeypatch)
    before, after = await rolling.begin()
    rolling.bench.publisher.fail(NotEnoughBookies("ledger 1", 2, ["b3"]))
    rolling.rollover._task = rolling.task
    await rolling.rollover.cancel()
    await turns()
    assert rolling.said == ["discarded 2"]
    for publish in (before, after):
        with pytest.raises(PublishOutcomeUnknown):
            await publish


async def test_of_a_roll_over_that_meets_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    rolling = Rolling(monkeypatch)

    async def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rolling.old, "close", broken)
    before, after = await rolling.begin()
    rolling.old.confirm()
    await rolling.task
    await turns()
    assert rolling.said == ["discarded 2"]
    assert (await before).first_offset == 100
    with pytest.raises(PublishOutcomeUnknown):
        await after


# A deleted topic left paths in the metadata store for ever: the name was listed, but a 404 to
# every call.

FOLDER_TOPIC = TopicName("public", "flights")
NAME = FOLDER_TOPIC.partition(0)


async def test_nothing_is_left_of_a_deleted_topic(cluster: Cluster) -> None:
    a = await cluster.start("A")
    before = await paths(a.store)
    await a.broker.topics.create(FOLDER_TOPIC, TopicSettings(partitions=2))
    await (await owned(a.broker, NAME)).publish(batch())
    assert await a.store.children("/octavo/owners/public/flights") == ["0"]
    await a.broker.topics.delete(FOLDER_TOPIC)
    left = await paths(a.store) - before
    assert not {path for path in left if "flights" in path}, left


async def test_what_came_too_late_is_removed(cluster: Cluster) -> None:
    a = await cluster.start("A", sweep_interval_ms=50)
    records = TopicStore(a.store)
    writer = await a.ledgers.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
    dead = "of an earlier topic"
    await records.create_subscription(*FOLDER_TOPIC, "s", SubscriptionRecord(incarnation=dead))
    link = PartitionLedger(writer.ledger_id, 0)
    await records.create_partition(*NAME, PartitionRecord((link,), incarnation=dead))
    await a.store.create(owner_path(*NAME), b"somebody")
    await a.store.delete(owner_path(*NAME), 0)
    await until_nothing_is_left(a.store)
    assert await a.ledgers.list() == []


async def test_a_topic_that_is_made_meanwhile_is_whole(cluster: Cluster) -> None:
    a = await cluster.start("A", sweep_interval_ms=10)
    b = await cluster.start("B", sweep_interval_ms=10)
    records = TopicStore(a.store)
    for turn in range(10):
        late = SubscriptionRecord(incarnation="of an earlier topic")
        await records.create_subscription(*FOLDER_TOPIC, "s", late)
        while True:
            info, new = await a.broker.topics.create(FOLDER_TOPIC, TopicSettings())
            if new:
                break
        assert (await b.broker.topics.get(FOLDER_TOPIC)).incarnation == info.incarnation
        await (await owned(b.broker, NAME)).publish(batch(tag=str(turn)))
        assert await values(await owned(b.broker, NAME)) == [f"{turn}-0"]
        await a.broker.topics.delete(FOLDER_TOPIC, info.incarnation)
    await until_nothing_is_left(a.store)


async def until_nothing_is_left(store: MetadataStore) -> None:
    async with asyncio.timeout(15):
        while left := {path for path in await paths(store) if "flights" in path}:
            assert left
            await asyncio.sleep(0.01)


async def paths(store: MetadataStore, below: str = "/octavo") -> set[str]:
    found = set()
    for name in await store.children(below):
        path = f"{below}/{name}"
        found |= {path} | await paths(store, path)
    return found


async def test_every_path_is_seen(cluster: Cluster) -> None:
    a = await cluster.start("A")
    await a.store.create("/octavo/x/y", b"")
    assert {"/octavo/x", "/octavo/x/y"} <= await paths(a.store)
    with pytest.raises(RecordNotFound):
        await a.store.get("/octavo/z")


async def test_a_trim_while_a_ledger_is_reopened_holds(tmp_path: Path) -> None:
    """The owner trimmed its ledger list while it reopened a failed ledger; the reopening then
    wrote the list that it had read before, with deleted ledgers (seed 2036887)."""
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        name = await make_topic(running.broker, rollover_entries=1)
        partition = await owned(running.broker, name)
        for number in range(1, 3):
            await partition.publish(batch(1, time_ms=brokers.clock.now_ms))
            await until(lambda n=number: len(partition._record.ledgers.segments) > n, "a roll-over")
        await partition.publish(batch(1, time_ms=brokers.clock.now_ms))
        await partition._rollover.cancel()  # type: ignore[union-attr]
        record, opener = partition._record, partition._opener
        before = [link.ledger_id for link in record.ledgers.segments]
        policy = RetentionPolicy(None, 0)
        measure: Any = opener._measure

        async def measure_while_it_is_trimmed(recovered: Any) -> Any:
            found = await measure(recovered)
            await record.change(
                lambda value: with_ledgers(value, policy.trimming(record.ledgers, 2**60, 0, None))
            )
            return found

        opener._measure = measure_while_it_is_trimmed  # type: ignore[method-assign]
        opened = await opener.reopen(partition._publisher.stored_producers, 3)
        assert opened.writer is not None
        after = [link.ledger_id for link in record.ledgers.segments]
        assert after == [before[-1], opened.writer.ledger_id]
        assert record.ledgers.earliest_offset == 2
        await opened.writer.close()


SIZE = 4000
COUNT = 100
LIMITS: dict[str, Any] = {
    "admin_port": 0,
    "entry_log_bytes_max": 1024 * 1024,
    "flush_interval_ms": 100,
    "gc_interval_ms": 100,
    "gc_quarantine_ms": 300,
    "gc_minor_interval_ms": 100,
    "gc_major_interval_ms": 100,
    "gc_bytes_per_s": 200 * 1024 * 1024,
}


def used_garbage(cluster: Cluster, name: str) -> int:
    size = 0
    for path in sorted((cluster.folder / name / "ledgers").glob("*.log"))[:-1]:
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


async def ask(port: int, request: str) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{request} HTTP/1.1\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_deleted_ledgers_leave_every_bookie(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, **LIMITS) as cluster:
        client = await cluster.client()
        written: list[LedgerWriter] = []
        for _ in range(12):
            writer = await client.create(
                ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"x"
            )
            await add_many(writer, COUNT, SIZE)
            await writer.close()
            written.append(writer)
        kept = written[5]
        reader = await client.open(kept.ledger_id, password=b"x")
        reading = asyncio.ensure_future(_read_on(reader, 200))
        for writer in written:
            if writer is not kept:
                await client.delete(writer.ledger_id)
        for name, node in cluster.nodes.items():
            await eventually(lambda node=node: node.storage.ledgers() == [kept.ledger_id], 30)  # type: ignore[misc]
            await eventually(
                lambda name=name: used_garbage(cluster, name) < COUNT * SIZE * 1.3 + 2**20,  # type: ignore[misc]
                30,
            )
        await reading
        async with asyncio.timeout(30):
            while True:
                status = await ask(cluster.nodes["b1"].admin.port, "GET /gc?limit=3")
                if status["total"]["ledgers_deleted"] >= 11:
                    break
                await asyncio.sleep(0.05)
        assert status["total"]["ledgers_deleted"] == 11
        assert status["logs"]
        assert all(log["reason"] for log in status["logs"])
        assert "rounds" in await ask(cluster.nodes["b1"].admin.port, "POST /gc?major=1")


async def _read_on(reader: Any, times: int) -> None:
    for _ in range(times):
        entries = await reader.read(0, COUNT - 1)
        assert [bytes(entry.payload) for entry in entries] == [
            payload_of(n, SIZE) for n in range(COUNT)
        ]
        await asyncio.sleep(0.005)


# A run that began a copy again removed the intent of the run before, which might still live and
# write its object: then nothing named that object. Now an intent stays until no run can be
# writing.

NAME_OFFLOADED = ("public", "flights", 0)
SOON = OffloadPolicy(grace_ms=0)
LATER = OffloadPolicy(grace_ms=0, forget_ms=0)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with running_place(tmp_path / "cluster") as made:
        yield made


async def begun_by(cluster: Any, place: Place, out: Path) -> Any:
    record = await cluster.record(str(TOPIC), 0)
    job = planned({NAME_OFFLOADED: record}, OffloadPolicy(), wall_clock_ms()).copies[0]
    return await begin(cluster, job, out.as_uri(), place.service)


def objects_in(out: Path) -> list[str]:
    return [path.as_uri() for path in out.rglob("*.parquet")]


@pytest.mark.timeout(600)
async def test_the_run_before_lives_and_dies_after_its_object(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with connected(place.service) as one, connected(place.service) as other:
        late = await begun_by(one, place, out)
        ours = await begun_by(other, place, out)
        await asyncio.to_thread(copy_in_task, late)
        done = await asyncio.to_thread(copy_in_task, ours)
        assert await finish(other, done)
        assert len(objects_in(out)) == 2
        assert await remove_orphans(other, LATER) == 1
        assert await TopicStore(place.cluster.store).list_intents() == [ours.about.uuid]
    assert objects_in(out) == [done.url]


@pytest.mark.timeout(600)
async def test_an_orphan_whose_object_comes_later(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "out"
    topics = TopicStore(place.cluster.store)
    async with connected(place.service) as cluster:
        late = await begun_by(cluster, place, out)
        await place.broker.topics.delete(TOPIC)
        await place.broker.topics.create(TOPIC, TopicSettings())
        assert await remove_orphans(cluster, SOON) == 0
        path = out / "public" / "flights" / "0" / f"{late.stem}-12345678.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"whole")
        assert await remove_orphans(cluster, SOON) == 1
        assert objects_in(out) == []
        assert await topics.list_intents() == [late.about.uuid], "another try of it may write yet"
        assert await remove_orphans(cluster, LATER) == 0
    assert await topics.list_intents() == []


@pytest.mark.timeout(600)
async def test_a_finish_that_comes_too_late_leaves_its_intent(place: Place, tmp_path: Path) -> None:
    """Spark may have given up an attempt of the task that still writes."""
    out = tmp_path / "out"
    async with connected(place.service) as cluster:
        task = await begun_by(cluster, place, out)
        done = await asyncio.to_thread(copy_in_task, task)
        assert not await finish(cluster, done._replace(written=None, failed="no room"))
        assert objects_in(out) == []
        await asyncio.to_thread(copy_in_task, task)
        assert await remove_orphans(cluster, LATER) == 1
    assert objects_in(out) == []
    assert await TopicStore(place.cluster.store).list_intents() == []
