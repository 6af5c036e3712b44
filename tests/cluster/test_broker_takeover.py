"""Partitions change their owner by a crash, a hand-over, or a pause. Sessions and requests do
not end by the clock here, so a busy machine breaks no test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker.broker import Broker
from octavo.broker.cluster.membership import preferred_brokers
from octavo.broker.cluster.ownership import Lookup
from octavo.broker.config import BrokerConfig
from octavo.broker.errors import (
    AckOutcomeUnknown,
    BrokerError,
    NotOwner,
    PartitionMoving,
    PartitionUnavailable,
    PublishOutcomeUnknown,
    SequenceGap,
    TopicNotFound,
)
from octavo.broker.operations.streams import end_of
from octavo.broker.partition.opening import PartitionOpener
from octavo.broker.partition.partition import Partition
from octavo.broker.state.producers import ProducerTable
from octavo.broker.types import (
    MessageId,
    Owner,
    PartitionName,
    SubscriptionSettings,
    TopicName,
    TopicSettings,
)
from octavo.metadata.election import Ownership
from octavo.metadata.ledgers import LedgerState
from octavo.metadata.store import MetadataStore, MetadataUnavailable, RecordNotFound
from octavo.metadata.topics import owner_path
from octavo.protocol.codes import OctavoError
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
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
from tests.unit.broker.test_partition_record import NAME


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, patient=True) as running:
        yield running


async def owner_at(running: RunningBroker, name: PartitionName) -> Owner:
    async with asyncio.timeout(60):
        while True:
            try:
                return await running.broker.ownership.owner_of(name)
            except PartitionMoving:
                await asyncio.sleep(0.01)


async def test_a_survivor_takes_over_at_once_and_nothing_acked_is_lost(
    cluster: Cluster,
) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    for number in range(20):
        await partition.publish(batch(3, tag=f"m{number}"))
    assert (await owner_at(second, name)).broker_id == "A"
    old_ledger = partition.ledgers[-1][0]
    with capture_logs() as events:
        await first.vanish()
        await until(
            lambda: second.broker.ownership.open_partitions(), "B serves the partition unasked"
        )
    taken = [event for event in events if event["event"] == "partition_taken_over"]
    assert [(e["broker"], e["ledger"], e["last_entry"]) for e in taken] == [("B", old_ledger, 19)]
    assert taken[0]["new_ledger"] != old_ledger
    assert taken[0]["duration_ms"] > 0
    survivor = await second.broker.ownership.partition(name)
    assert survivor.next_offset == 60
    assert (await survivor.publish(batch(1, tag="after"))).first_offset == 60
    assert await values(survivor) == [f"m{n}-{i}" for n in range(20) for i in range(3)] + [
        "after-0"
    ]
    metadata = await second.ledgers.metadata(old_ledger)
    assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 19)


async def test_who_waits_for_another_owner_hears_of_it(cluster: Cluster) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    await owned(first.broker, name)
    assert (await owner_at(second, name)).broker_id == "A"
    seen = second.broker.ownership.owner_changes(name)
    waiting = asyncio.create_task(second.broker.ownership.until_owner_changes(name, seen, 3600))
    await first.vanish()
    async with asyncio.timeout(60):
        await waiting
        await second.broker.ownership.until_owner_changes(name, seen, 3600)
    assert second.broker.ownership.owner_changes(name) > seen


async def test_the_old_owner_is_fenced_and_two_owners_never_both_ack(
    cluster: Cluster,
) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    old = await owned(first.broker, name)
    stop = False
    acked: list[tuple[str, int]] = []
    refused: list[OctavoError] = []

    async def publish_on(partition_of: str) -> None:
        broker = first.broker if partition_of == "A" else second.broker
        number = 0
        while not stop:
            try:
                partition = (
                    old if broker is first.broker else await broker.ownership.partition(name)
                )
                published = await partition.publish(batch(1, tag=f"{partition_of}{number}"))
                acked.append((f"{partition_of}{number}-0", published.first_offset))
                number += 1
            except BrokerError as error:
                if partition_of == "A":
                    refused.append(error)
                await asyncio.sleep(0.005)

    publishing = [asyncio.create_task(publish_on(which)) for which in "AB"]
    try:
        await until(lambda: len(acked) > 20, "A publishes")
        await first.vanish()
        await until(lambda: sum(1 for value, _ in acked if value[0] == "B") > 20, "B publishes")
    finally:
        stop = True
        await asyncio.gather(*publishing)

    assert isinstance(refused[0], PublishOutcomeUnknown | NotOwner)
    assert "fenced" in str(refused[0])
    with pytest.raises(NotOwner):
        await old.publish(batch(1))
    stored = await values(await second.broker.ownership.partition(name))
    assert {offset: stored[offset] for _, offset in acked} == {o: v for v, o in acked}
    last_of_a = max(offset for value, offset in acked if value[0] == "A")
    assert all(offset > last_of_a for value, offset in acked if value[0] == "B")


async def test_an_idempotent_publish_survives_a_take_over(cluster: Cluster) -> None:
    first = await cluster.start("A", producer_checkpoint_bytes=500)
    second = await cluster.start("B")
    name = await make_topic(first.broker, rollover_entries=10)
    partition = await owned(first.broker, name)
    sent = [
        batch(2, tag=f"m{n}", producer_id=7, producer_epoch=3, base_sequence=2 * n)
        for n in range(33)
    ]
    stored = [await partition.publish(one) for one in sent]
    await first.vanish()
    survivor = await owned(second.broker, name)
    for repeated in (32, 30, 28):
        again = await survivor.publish(sent[repeated])
        assert again == stored[repeated]._replace(duplicate=True)
    ancient = await survivor.publish(sent[3])
    assert (ancient.duplicate, ancient.first_offset) == (True, -1)
    with pytest.raises(SequenceGap) as gap:
        await survivor.publish(batch(1, producer_id=7, producer_epoch=3, base_sequence=70))
    assert gap.value.expected == 66
    new = batch(1, tag="new", producer_id=7, producer_epoch=3, base_sequence=66)
    assert (await survivor.publish(new)).first_offset == 66
    assert await values(survivor) == [f"m{n}-{i}" for n in range(33) for i in range(2)] + ["new-0"]


async def test_cursors_survive_a_crash(cluster: Cluster) -> None:
    first = await cluster.start("A", state_ledger_entries_max=5)
    second = await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    info, _ = await first.broker.topics.create_subscription(
        TOPIC, "s", SubscriptionSettings(type="shared")
    )
    subscription = await partition.subscribe(info)
    for _ in range(10):
        await partition.publish(batch(10))
    got = await subscription.receive("c", messages_max=100)
    acked = [one for one in got if one.offset % 3]
    for one in acked[:30]:
        await subscription.acknowledge([one.ack_id])
    await asyncio.gather(*(subscription.acknowledge([one.ack_id]) for one in acked[30:]))
    await first.vanish()
    survivor = await owned(second.broker, name)
    again = await (await survivor.subscription("s")).receive("d", messages_max=1000)
    assert [one.offset for one in again] == list(range(0, 100, 3))
    with pytest.raises((NotOwner, AckOutcomeUnknown)):
        await subscription.acknowledge([got[0].ack_id])


async def test_a_graceful_stop_hands_over_quickly(cluster: Cluster) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    await partition.publish(batch(5))
    old_ledger = partition.ledgers[-1][0]
    with capture_logs() as events:
        await first.close()
        await until(
            lambda: second.broker.ownership.open_partitions(), "B serves the partition unasked"
        )
    assert not [e for e in events if e["event"] in ("partition_lost", "broker_task_failed")]
    survivor = await second.broker.ownership.partition(name)
    assert (await survivor.publish(batch(1))).first_offset == 5
    assert (await second.ledgers.metadata(old_ledger)).state is LedgerState.CLOSED
    with pytest.raises(NotOwner):
        await partition.publish(batch(1))


async def test_publishing_goes_on_through_handovers_without_loss(cluster: Cluster) -> None:
    running = {who: await cluster.start(who) for who in "AB"}
    name = await make_topic(running["A"].broker, rollover_entries=30)
    await owned(running["A"].broker, name)
    stop = False
    acked: list[str] = []
    errors: list[OctavoError] = []

    async def publish() -> None:
        sequence = 0
        while not stop:
            one = batch(
                1, tag=f"{sequence}", producer_id=9, producer_epoch=0, base_sequence=sequence
            )
            for who in list(running):
                try:
                    owner = await running[who].broker.ownership.owner_of(name)
                    if owner.local:
                        await (await running[who].broker.ownership.partition(name)).publish(one)
                        acked.append(f"{sequence}-0")
                        sequence += 1
                        break
                except OctavoError as error:
                    errors.append(error)
                await asyncio.sleep(0.005)

    publishing = asyncio.create_task(publish())
    try:
        for goes, comes in (("A", "C"), ("B", "D"), ("C", "E")):
            goal = len(acked) + 40
            await until(lambda goal=goal: len(acked) > goal, f"publishing before {goes} goes")
            running[comes] = await cluster.start(comes)
            gone = running.pop(goes)
            await (gone.vanish() if goes == "B" else gone.close())
        goal = len(acked) + 40
        await until(lambda: len(acked) > goal, "publishing goes on")
    finally:
        stop = True
        await publishing
    assert all(error.retryable for error in errors), errors
    for one in running.values():
        owner = await owner_at(one, name)
        if owner.local:
            stored = await values(await one.broker.ownership.partition(name))
            assert stored == acked
            return
    raise AssertionError("no broker serves the partition")


async def test_too_few_bookies_then_enough_again(cluster: Cluster) -> None:
    broker = (await cluster.start("A", publish_timeout_ms=20_000)).broker
    name = await make_topic(broker)
    partition = await owned(broker, name)
    await partition.publish(batch(1, tag="before"))
    await cluster.stop_bookie("b2")
    await cluster.stop_bookie("b3")
    with pytest.raises((PublishOutcomeUnknown, PartitionUnavailable)) as unknown:
        await partition.publish(batch(1, tag="lost"))
    assert "bookies needed" in str(unknown.value) or "b1" in str(unknown.value)
    with pytest.raises(PartitionUnavailable):
        await partition.publish(batch(1, tag="refused"))
    assert (await values(partition))[0] == "before-0", "reads go on"
    await cluster.start_bookie("b2")
    await cluster.start_bookie("b3")

    published = None
    async with asyncio.timeout(60):
        while published is None:
            try:
                published = await partition.publish(batch(1, tag="after"))
            except PartitionUnavailable:
                await asyncio.sleep(0.05)
    stored = await values(partition)
    assert stored[published.first_offset] == "after-0"
    assert stored[0] == "before-0"


async def test_a_broker_that_does_not_own_says_who_does(cluster: Cluster) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    await make_topic(first.broker, partitions=16)
    await until(lambda: len(second.broker.registry.brokers()) == 2, "B sees both")
    await until(lambda: len(first.broker.registry.brokers()) == 2, "A sees both")
    seen = set()
    for number, wanted in enumerate(preferred_brokers(TOPIC, 16, ("A", "B"))):
        name = TOPIC.partition(number)
        from_a, from_b = (
            await owner_at(first, name),
            await owner_at(second, name),
        )
        assert (from_a.broker_id, from_b.broker_id) == (wanted, wanted)
        assert (from_a.local, from_b.local) == (wanted == "A", wanted == "B")
        seen.add(wanted)
    assert seen == {"A", "B"}
    theirs = TOPIC.partition(preferred_brokers(TOPIC, 16, ("A", "B")).index("B"))
    with pytest.raises(NotOwner):
        await first.broker.ownership.partition(theirs)


async def test_a_deleted_topic_is_served_no_more_and_leaves_no_ledgers(
    cluster: Cluster,
) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    await partition.publish(batch(1))
    info, _ = await first.broker.topics.create_subscription(TOPIC, "s", SubscriptionSettings())
    await (await partition.subscribe(info)).acknowledge(up_to=0)
    await second.broker.topics.delete(TOPIC)
    await until(lambda: not first.broker.ownership.open_partitions(), "A has dropped the partition")
    with pytest.raises(BrokerError):
        await partition.publish(batch(1))
    assert await first.ledgers.list() == []
    assert await first.broker.topics.names_in("public") == []
    await make_topic(second.broker, TopicName("public", "flights"))
    again = await owned(second.broker, name)
    assert again.next_offset == 0


async def test_a_state_ledger_that_is_long_in_bytes_is_replaced(cluster: Cluster) -> None:
    first = await cluster.start("A", state_ledger_bytes_max=300)
    partition = await owned(first.broker, await make_topic(first.broker))
    info, _ = await first.broker.topics.create_subscription(
        TOPIC, "s", SubscriptionSettings(type="shared")
    )
    subscription = await partition.subscribe(info)
    await partition.publish(batch(100))
    ledgers = set()
    for one in await subscription.receive("c", messages_max=100):
        await subscription.acknowledge([one.ack_id])
        ledgers.add(partition._record.value.state_ledger)
    assert 2 < len(ledgers) < 50


PARTITIONS = 40


async def test_looks_that_fail_do_not_multiply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failed look made all other partitions look again: thousands of partitions left no
    turn for the beat of the new session."""
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        first = await make_topic(running.broker, partitions=PARTITIONS)
        names = [first._replace(partition=number) for number in range(PARTITIONS)]
        for name in names:
            await owned(running.broker, name)
        manager = running.broker.ownership
        alarm, check = Lookup.alarm, manager._check_exists
        fails, alarms = PARTITIONS, 0

        async def check_exists(*args: Any) -> Any:
            nonlocal fails
            if fails:
                fails -= 1
                raise MetadataUnavailable("the machine has no time")
            return await check(*args)

        def counted(self: Lookup) -> None:
            nonlocal alarms
            alarms += 1
            alarm(self)

        await running.expire()
        await until(lambda: not manager.open_partitions(), "it has let go")
        monkeypatch.setattr(manager, "_check_exists", check_exists)
        monkeypatch.setattr(manager, "_awaited", dict.fromkeys(names, 1))
        monkeypatch.setattr(Lookup, "alarm", counted)
        looks = [asyncio.create_task(manager._take_if_free(name, used=True)) for name in names]
        await asyncio.wait(looks)
        assert alarms < 10 * PARTITIONS
        served = manager.open_partitions
        await until(lambda: len(served()) == PARTITIONS, "all are served again", 60)
        manager._awaited.clear()


# After a reconnect a broker forgot topics and owners, and read them before the next call: when
# the store was away again at once, no partition took messages.

READS = ("get", "children", "sync")


def alarm(store: MetadataStore) -> None:
    away: Any = store
    away._watches.notify_all()


def take_away(patch: pytest.MonkeyPatch, running: RunningBroker, *, silent: bool) -> list[str]:
    asked: list[str] = []

    async def no_answer(path: str = "/") -> None:
        asked.append(path)
        if silent:
            await asyncio.Event().wait()
        raise MetadataUnavailable("no answer in time")

    for name in READS:
        patch.setattr(running.store, name, no_answer)
    return asked


@pytest.mark.parametrize("silent", [True, False])
async def test_what_needs_no_change_goes_on(
    plain_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    one, two = await plain_cluster.start("A"), await plain_cluster.start("B")
    name = await make_topic(one.broker)
    await one.broker.topics.create_subscription(TOPIC, "readers", SubscriptionSettings())
    partition = await owned(one.broker, name)
    await partition.publish(batch(1, tag="a"))
    readers = await one.broker.topics.subscription(TOPIC, "readers")
    subscription = await partition.subscribe(readers)
    assert (await two.broker.ownership.owner_of(name)).broker_id == "A"
    await two.broker.topics.subscription(TOPIC, "readers")
    with monkeypatch.context() as patch:
        for running in (one, two):
            asked = take_away(patch, running, silent=silent)
            alarm(running.store)
            await until(lambda asked=asked: bool(asked), "the broker reads again")  # type: ignore[misc]
        async with asyncio.timeout(10):
            for tag in "bcd":
                assert (await one.broker.ownership.owner_of(name)).local
                assert (await two.broker.ownership.owner_of(name)).broker_id == "A"
                for running in (one, two):
                    assert (await running.broker.topics.get(TOPIC)).settings == TopicSettings()
                    await running.broker.topics.subscription(TOPIC, "readers")
                await (await one.broker.ownership.partition(name)).publish(batch(1, tag=tag))
        assert await partition.subscription("readers") is subscription
        assert len(await subscription.receive("c", messages_max=10)) >= 3
        with pytest.raises((MetadataUnavailable, TimeoutError)):
            async with asyncio.timeout(1):
                await one.broker.topics.get(TopicName("public", "other"))


async def test_what_changed_meanwhile_is_seen_afterwards(
    plain_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was slow, the session lived, and no other alarm comes."""
    one, two = await plain_cluster.start("A"), await plain_cluster.start("B")
    await make_topic(one.broker)
    gone = TopicName("public", "gone")
    await make_topic(one.broker, gone)
    for topic in (TOPIC, gone):
        assert (await one.broker.topics.get(topic)).settings.partitions == 1
    with monkeypatch.context() as patch:
        take_away(patch, one, silent=False)
        alarm(one.store)
        await two.broker.topics.update(TOPIC, TopicSettings(partitions=3))
        await two.broker.topics.delete(gone)
        await asyncio.sleep(0.2)
        assert (await one.broker.topics.get(TOPIC)).settings.partitions == 1
        with pytest.raises(MetadataUnavailable):
            await one.broker.topics.get(gone)

    async def sees() -> bool:
        try:
            await one.broker.topics.get(gone)
        except TopicNotFound:
            return (await one.broker.topics.get(TOPIC)).settings.partitions == 3
        return False

    async with asyncio.timeout(10):
        while not await sees():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# A take-over a little longer than `open_timeout_ms` was repeated for ever with the same timeout
# (seed 1400391).

ALLOWED_MS = 600
TAKE_OVER, REOPEN = "take-over", "reopen"


class Slow:
    """An opener with slow take-overs; notes how long each attempt was allowed."""

    def __init__(self, takes_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.takes_s = takes_s
        self.attempts_s: list[float] = []
        unused: Any = None
        self.opener = PartitionOpener(
            NAME,
            BrokerConfig(broker_id="A", open_timeout_ms=ALLOWED_MS),
            unused,
            unused,
            unused,
            lambda: unused,
            lambda: 0,
            lambda work: work.close(),
        )
        monkeypatch.setattr(self.opener, "_open", self._open)

    async def _open(self, *_: object) -> Any:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.attempts_s.append(round(loop.time() - began_s, 3))

    async def once(self, kind: str) -> bool:
        try:
            if kind == TAKE_OVER:
                await self.opener.take_over()
            else:
                await self.opener.reopen(ProducerTable(8), 0)
        except PartitionUnavailable:
            return False
        return True


def virtual(work: Coroutine[Any, Any, Slow]) -> Slow:
    slow: Slow = SimLoop(1, trace=Trace()).run_until_complete(work)
    return slow


@pytest.mark.parametrize("kind", [TAKE_OVER, REOPEN])
def test_each_attempt_has_twice_the_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def until_open() -> Slow:
        slow = Slow(1.4, monkeypatch)
        opened = [await slow.once(kind) for _ in range(3)]
        assert opened == [False, False, True]
        slow.takes_s = 3600
        assert not await slow.once(kind)
        return slow

    assert virtual(until_open()).attempts_s == [0.6, 1.2, 1.4, 0.6]


def test_what_is_stuck_is_still_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_open() -> Slow:
        slow = Slow(3600, monkeypatch)
        assert not any([await slow.once(TAKE_OVER) for _ in range(6)])
        return slow

    assert virtual(never_open()).attempts_s == [0.6, 1.2, 2.4, 4.8, 4.8, 4.8]


# An owner that was replaced without knowing it refused for good what its successor would take:
# sequences, offsets, `If-Match`. Now it proves its ownership before such a refusal.

SUCCESSORS_LEDGER = 2


def numbered(first: int) -> bytes:
    return batch(2, tag=f"m{first}", producer_id=7, producer_epoch=0, base_sequence=first)


async def two_owners(cluster: Cluster) -> tuple[Broker, Partition, Broker, PartitionName]:
    old = await cluster.start("A")
    new = await cluster.start("B")
    name = await make_topic(old.broker)
    partition = await owned(old.broker, name)
    settings = SubscriptionSettings(type="exclusive")
    info, _ = await old.broker.topics.create_subscription(TOPIC, "s", settings)
    await partition.subscribe(info)
    await partition.publish(numbered(0))
    await old.vanish()
    successor = await owned(new.broker, name)
    stored = await successor.publish(numbered(2))
    assert stored.first_offset == 2
    return old.broker, partition, new.broker, name


async def test_a_sequence_that_only_the_successor_expects(plain_cluster: Cluster) -> None:
    _, deposed, new, name = await two_owners(plain_cluster)
    with pytest.raises(NotOwner):
        await deposed.publish(numbered(4))
    assert (await (await new.ownership.partition(name)).publish(numbered(4))).first_offset == 4


async def test_an_offset_that_only_the_successor_has_next(plain_cluster: Cluster) -> None:
    _, deposed, new, name = await two_owners(plain_cluster)
    with pytest.raises(NotOwner):
        await deposed.publish(batch(1), expected_offset=4)
    successor = await new.ownership.partition(name)
    assert (await successor.publish(batch(1), expected_offset=4)).first_offset == 4


async def read(partition: Partition) -> None:
    await partition.read(4, bytes_max=1, count_max=1)


async def look_up(partition: Partition) -> None:
    await partition.position(MessageId(SUCCESSORS_LEDGER, 0, 0))


async def end_of_a_stream(partition: Partition) -> None:
    """Seed 166 of `stream`: a fork was refused because of its source's outdated end."""
    assert await end_of(partition, 4) == 4


@pytest.mark.parametrize("work", [read, look_up, end_of_a_stream])
async def test_what_only_the_successor_has(
    plain_cluster: Cluster, work: Callable[[Partition], Awaitable[None]]
) -> None:
    old, _, new, name = await two_owners(plain_cluster)
    successor = await new.ownership.partition(name)
    assert successor.ledgers[-1][0] == SUCCESSORS_LEDGER
    with pytest.raises((NotOwner, PartitionUnavailable)):
        await plain_cluster.at_owner(old, name, work)
    await work(successor)


# A partition whose lost claim a broker could not release had no owner: others forwarded calls to
# that broker, which refused them as long as it ran.


async def lost_and_not_released(
    broker: Broker, name: PartitionName, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def fail(ownership: Ownership, path: str) -> None:
        asked.append(path)
        ownership._held.discard(path)
        ownership._sent.pop(path)
        raise MetadataUnavailable("no answer in time")

    with monkeypatch.context() as patch:
        patch.setattr(Ownership, "release", fail)
        (await broker.ownership.partition(name)).abandon("somebody else is said to write it")
        await until(lambda: bool(asked), "the broker tried to release its claim")


@pytest.mark.parametrize("alone", [True, False])
async def test_the_broker_of_a_claim_that_could_not_be_released_serves_again(
    alone: bool, plain_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await plain_cluster.start("A")
    name = await make_topic(one.broker)
    partition = await owned(one.broker, name)
    await partition.publish(batch(2, tag="a"))
    if not alone:
        registry = one.broker.registry
        await plain_cluster.start("B")
        await until(lambda: len(registry.live) == 2, "A knows of B")
        monkeypatch.setattr(registry, "preferred", lambda *_: (registry.live["B"],))
    await lost_and_not_released(one.broker, name, monkeypatch)
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(PartitionMoving):
                if (await one.broker.ownership.owner_of(name)).local:
                    break
            await asyncio.sleep(0.01)
    again = await one.broker.ownership.partition(name)
    assert (await again.publish(batch(1, tag="b"))).first_offset == 2
    assert await values(again) == ["a-0", "a-1", "b-0"]


async def test_a_topic_is_deleted_though_a_claim_of_it_could_not_be_released(
    plain_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await plain_cluster.start("A")
    name = await make_topic(one.broker)
    await owned(one.broker, name)
    await lost_and_not_released(one.broker, name, monkeypatch)
    async with asyncio.timeout(10):
        await one.broker.topics.delete(name.topic_name)
    with pytest.raises(RecordNotFound):
        await one.store.get(owner_path(*name))


_PARTITIONS = 6


async def test_callers_at_the_same_time_learn_the_same_owner(plain_cluster: Cluster) -> None:
    """The lookup counted as known from its start: a second caller meanwhile claimed another
    broker's partition, or asked the wrong broker."""
    first = (await plain_cluster.start("A")).broker
    await make_topic(first, partitions=_PARTITIONS)
    for number in range(_PARTITIONS):
        await owned(first, TOPIC.partition(number))
    second = (await plain_cluster.start("B")).broker
    asked = [TOPIC.partition(number) for number in range(_PARTITIONS) for _ in range(3)]
    found = await asyncio.gather(
        *(second.ownership.owner_of(name, forwarded=True) for name in asked)
    )
    assert {owner.broker_id for owner in found} == {"A"}
