"""Sessions of brokers and bookies, and what opening a partition does."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.bookie.disk.files import RealDisk
from octavo.bookie.ledgers.cookies import CookieRefused
from octavo.bookie.node import BookieNode, BookieStartTimeout
from octavo.broker.cluster import ownership
from octavo.broker.errors import BrokerError, BrokerIdTaken, NotOwner, PublishOutcomeUnknown
from octavo.broker.partition.partition import Partition, PartitionOpening
from octavo.broker.types import PartitionName, SubscriptionSettings, TopicName
from octavo.ledger.bookies import bookies as bookies_module
from octavo.ledger.bookies.bookies import Bookies
from octavo.ledger.bookies.placement import choose_ensemble
from octavo.ledger.options import LedgerOptions
from octavo.metadata.bookies import BookieInfo, BookieRegistry
from octavo.metadata.store import MetadataStore
from octavo.metadata.topics import PartitionRecord, TopicStore, owner_path
from octavo.protocol.codes import Code, OctavoError
from octavo.protocol.extension import Op
from tests.support.cluster import Cluster, RunningBroker, batch, make_topic, owned, until, values
from tests.support.metadata_trees import Tree, embedded_tree, zookeeper_tree
from tests.support.raw_bookie import (
    RawClient,
    TroubledDisk,
    add_of,
    config_in,
    entry_of,
    new_node,
    open_metadata,
    tell_read_only,
)
from tests.support.raw_bookie import until as until_space


async def owner_among(name: PartitionName, *running: RunningBroker) -> Partition:
    async with asyncio.timeout(15):
        while True:
            for one in running:
                try:
                    if (await one.broker.ownership.owner_of(name)).local:
                        return await one.broker.ownership.partition(name)
                except BrokerError as error:
                    if not error.retryable:
                        raise
            await asyncio.sleep(0.01)


async def test_an_expired_session_ends_serving_at_once_and_the_broker_comes_back(
    cluster: Cluster,
) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    await partition.publish(batch(2, tag="a"))
    with capture_logs() as events:
        await first.expire()
        await until(lambda: not first.broker.ownership.open_partitions(), "A serves nothing")
    lost = [event for event in events if event["event"] == "partition_lost"]
    assert lost[0]["reason"].endswith("this broker's session has ended")
    with pytest.raises(NotOwner):
        await partition.publish(batch(1))
    with pytest.raises(NotOwner):
        await partition.read(0, bytes_max=1, count_max=1)
    await until(lambda: "A" in {b.broker_id for b in second.broker.registry.brokers()}, "A is back")
    again = await owner_among(name, first, second)
    assert (await again.publish(batch(1, tag="b"))).first_offset == 2
    assert await values(again) == ["a-0", "a-1", "b-0"]


async def test_a_ledger_closed_by_somebody_else_moves_the_partition(
    cluster: Cluster,
) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    ledger = (await partition.publish(batch(1, tag="a"))).ledger_id
    await second.ledgers.recover(ledger)
    with pytest.raises((PublishOutcomeUnknown, NotOwner), match="ledger-fenced"):
        await partition.publish(batch(1, tag="lost"))
    with pytest.raises(NotOwner):
        await partition.publish(batch(1, tag="refused"))
    again = await owner_among(name, first, second)
    assert again is not partition
    await again.publish(batch(1, tag="b"))
    assert await values(again) == ["a-0", "b-0"]


async def test_a_state_ledger_closed_by_somebody_else_moves_the_partition_too(
    cluster: Cluster,
) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    await partition.publish(batch(4))
    info, _ = await first.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings()
    )
    subscription = await partition.subscribe(info)
    await subscription.acknowledge(up_to=0)
    record, _ = await TopicStore(second.store).read_partition(*name)
    assert record.state_ledger is not None
    await second.ledgers.recover(record.state_ledger)
    with pytest.raises(NotOwner):
        await subscription.acknowledge(up_to=1)
    again = await owner_among(name, first, second)
    assert (await again.subscription("s")).stats().committed_offset == 1


async def test_whoever_waits_is_told_when_the_partition_goes(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    info, _ = await first.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings()
    )
    subscription = await partition.subscribe(info)
    waiting = [
        asyncio.create_task(partition.read(0, bytes_max=1, count_max=1, wait_s=60)),
        asyncio.create_task(subscription.receive("c", messages_max=1, wait_s=60)),
    ]
    await asyncio.sleep(0)
    await first.close()
    async with asyncio.timeout(10):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [NotOwner, NotOwner]


async def test_a_record_changed_behind_the_owner_stops_it(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker, rollover_entries=3)
    partition = await owned(first.broker, name)
    await partition.publish(batch(1, tag="0"))
    records = TopicStore(first.store)
    record, version = await records.read_partition(*name)
    await records.write_partition(*name, replace(record, epoch=record.epoch + 1), version)
    # These go to the ledger that the record names, so they count. Then it cannot roll over.
    await asyncio.gather(*(partition.publish(batch(1, tag=f"{n}")) for n in (1, 2)))
    await until(
        lambda: partition not in first.broker.ownership.open_partitions(), "A has given it up"
    )
    with pytest.raises(NotOwner):
        await partition.publish(batch(1))
    again = await owner_among(name, first)
    assert await values(again) == ["0-0", "1-0", "2-0"]
    async with asyncio.timeout(10):
        while len(await first.ledgers.list()) != len(again.ledgers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_broker_that_crashed_and_came_back_at_once_serves_again(
    cluster: Cluster,
) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    await (await owned(first.broker, name)).publish(batch(2, tag="a"))
    second = await cluster.start("B")
    # The old session ends only after its timeout; the same name is back before that.
    again = await cluster.start("A")
    await first.vanish()
    partition = await owner_among(name, again, second)
    assert (await partition.publish(batch(1, tag="b"))).first_offset == 2
    await until(lambda: len(second.broker.registry.brokers()) == 2, "B sees the new A")


async def test_everything_stops_and_comes_back(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    info, _ = await first.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings()
    )
    await (await partition.subscribe(info)).acknowledge()
    await partition.publish(batch(5, tag="a"))
    await (await partition.subscription("s")).acknowledge(up_to=2)
    await first.vanish()
    for bookie in ("b1", "b2", "b3"):
        await cluster.stop_bookie(bookie)
    for bookie in ("b1", "b2", "b3"):
        await cluster.start_bookie(bookie)
    partition = await owner_among(name, await cluster.start("C"))
    assert await values(partition) == [f"a-{n}" for n in range(5)]
    got = await (await partition.subscription("s")).receive("c", messages_max=9)
    assert [one.offset for one in got] == [3, 4]


__all__ = ["embedded_tree", "tree", "zookeeper_tree"]


@pytest.fixture(params=["embedded", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def tree(request: pytest.FixtureRequest) -> Tree:
    """Stores that can share a loop with real sockets; the simulated store has its own."""
    found: Tree = request.getfixturevalue(f"{request.param}_tree")
    return found


def node_on(folder: Path, store: MetadataStore, **how: Any) -> BookieNode:
    return BookieNode(
        config_in(folder, **how), store, disk=RealDisk(), rng=random.Random(5), clock=lambda: 0
    )


async def registration(registry: BookieRegistry, *, read_only: bool = False) -> BookieInfo:
    async with asyncio.timeout(30):
        while True:
            info = (await registry.available()).get("bookie-1")
            if info is not None and info.read_only == read_only:
                return info
            await asyncio.sleep(0.02)


async def test_registers_anew_when_its_session_expired(tree: Any, tmp_path: Path) -> None:
    store, other = await tree.open(), await tree.open()
    registry = BookieRegistry(other)
    node = node_on(tmp_path, store)
    await node.start()
    try:
        before = await registration(registry)
        gone = asyncio.Event()
        registry.watch(gone.set)
        await registry.available()
        await tree.expire(store)
        await asyncio.wait_for(gone.wait(), 30)
        assert await registration(registry) == before
        client = await RawClient.connect(node)
        assert await client.add(add_of(1, 0)) is Code.OK
        client.close()
    finally:
        await node.stop()
    assert await registry.available() == {}


async def test_serves_while_metadata_is_out_of_reach(tree: Any, tmp_path: Path) -> None:
    store, other = await tree.open(impatient=True), await tree.open()
    node = node_on(tmp_path, store)
    await node.start()
    try:
        client = await RawClient.connect(node)
        async with tree.cut(store):
            assert await client.add(add_of(1, 0)) is Code.OK
            assert await client.read(1, 0) == entry_of(1, 0)
            tell_read_only(node, True)
            assert await client.add(add_of(1, 1)) is Code.READ_ONLY
        await registration(BookieRegistry(other), read_only=True)
        client.close()
    finally:
        await node.stop()


async def test_metadata_that_does_not_answer_at_start(
    tree: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await tree.open()

    async def hang(*args: object, **how: object) -> None:
        await asyncio.sleep(3600)

    node = node_on(tmp_path, store, start_timeout_ms=200)
    with monkeypatch.context() as silence:
        silence.setattr(store, "create", hang)
        with pytest.raises(BookieStartTimeout, match="does the metadata store"):
            await node.start()
    again = node_on(tmp_path, store)
    await again.start()
    await again.stop()


async def test_a_live_bookie_keeps_its_id(tree: Any, tmp_path: Path) -> None:
    node = node_on(tmp_path / "one", await tree.open())
    await node.start()
    other = await tree.open()
    second = node_on(tmp_path / "two", other)
    with pytest.raises(CookieRefused, match="give it another bookie_id"):
        await second.start()
    assert (await registration(BookieRegistry(other))).port == node.port
    await node.stop()


async def test_a_namesake_ends_and_names_the_other(cluster: Cluster) -> None:
    first = await cluster.start("A")
    second = await cluster.start("A")
    async with asyncio.timeout(30):
        with pytest.raises(BrokerIdTaken, match=r"broker id A .* http://A\.test"):
            await asyncio.shield(second.broker.failed)
    assert not first.broker.failed.done()
    partition = await owned(first.broker, await make_topic(first.broker))
    assert (await partition.publish(batch())).first_offset == 0


async def test_what_a_crash_left_behind_is_waited_for(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    await (await owned(first.broker, name)).publish(batch())
    await first.store.close()
    first.gone = True
    again = await cluster.start("A")
    partition = await owned(again.broker, name)
    assert (await partition.publish(batch())).first_offset == 1
    assert not again.broker.failed.done()


GIB = 2**30


async def test_free_space_that_changes_reaches_clients_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No watch tells of a change within a registration: clients look again now and then."""
    monkeypatch.setattr(bookies_module, "_LOOK_AGAIN_S", 0.02)
    disk = TroubledDisk()
    total = disk.free_bytes(str(tmp_path))[1]
    limits = {"disk_free_bytes_min": 2, "disk_free_bytes_resume": 3, "disk_free_bytes_reserve": 1}
    disk.free = total // 2
    async with open_metadata(tmp_path) as store:
        registry = BookieRegistry(store)
        others = [BookieInfo(n, n, 1, properties={"free_bytes": str(total // 2)}) for n in "ab"]
        for info in others:
            await registry.register(info)
        config = config_in(tmp_path / "b", disk_check_interval_ms=10, **limits)
        node = new_node(config, store, disk)
        await node.start()
        pool = Bookies(BookieRegistry(store), LedgerOptions(), random.Random(1))
        await pool.start()
        try:
            name = node.bookie_id
            assert pool.available[name].free_bytes == total // 2
            disk.free = total // 2 - total // 100
            client = await RawClient.connect(node)

            async def measured() -> int:
                answer = await client.call(Op.NODE_INFO)
                return int(answer.body["free_bytes"])

            while await measured() != disk.free:
                pass
            assert (await registry.available())[name].free_bytes == total // 2, "a hundredth"
            disk.free = total // 40
            await until_space(lambda: pool.available[name].free_bytes == total // 40)
            chosen = Counter[str]()
            for seed in range(100):
                chosen.update(choose_ensemble(pool.available, 2, 2, rng=random.Random(seed)))
            assert 0 < chosen[name] < 45, "the fullest of three, so less than its third of 200"
            client.close()
        finally:
            await pool.close()
            await node.stop()


COUNT = 8


async def test_it_does_not_wait_for_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await cluster.start("A")
    names = [await make_topic(one.broker, TopicName("public", f"t{n}")) for n in range(COUNT)]
    for name in names:
        await owned(one.broker, name)
    opened: list[str] = []
    goes_on, real = asyncio.Event(), PartitionOpening.open

    async def slow(opening: PartitionOpening) -> Partition:
        opened.append(opening.name.topic)
        await goes_on.wait()
        return await real(opening)

    monkeypatch.setattr(ownership, "_OPENINGS_AT_ONCE", 1)
    monkeypatch.setattr(PartitionOpening, "open", slow)
    two = await cluster.start("B")
    await one.vanish()
    await until(lambda: two.broker.ownership.held() == COUNT and opened, "all stand in line")
    assert len(opened) == 1
    last = names[-1] if opened != [names[-1].topic] else names[0]
    asked = asyncio.ensure_future(owned(two.broker, last))
    await asyncio.sleep(0.05)
    goes_on.set()
    await asked
    assert opened[1] == last.topic
    await until(lambda: len(two.broker.ownership.open_partitions()) == COUNT, "the others, too")
    assert sorted(opened) == sorted(name.topic for name in names)


async def record_of(running: RunningBroker, name: PartitionName) -> PartitionRecord:
    return (await TopicStore(running.store).read_partition(*name))[0]


async def numbered(partition: Partition, number: int) -> Any:
    return await partition.publish(
        batch(1, tag=f"{number}", producer_id=7, producer_epoch=0, base_sequence=number)
    )


async def test_a_ledger_is_made_for_the_first_publish(cluster: Cluster) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker)
    partition = await owned(running.broker, name)
    assert await partition.read(0, bytes_max=1, count_max=1) == []
    assert not list(partition.ledgers)
    assert await running.ledgers.list() == []
    assert (await partition.publish(batch(2, tag="a"))).first_offset == 0
    assert (await partition.publish(batch(1, tag="b"))).first_offset == 2
    assert [base for _, base in partition.ledgers] == [0]
    assert len(await running.ledgers.list()) == 1


async def test_what_was_closed_in_good_order_is_only_read(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    await partition.publish(batch(2, tag="a"))
    info, _ = await first.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings(start="earliest")
    )
    await (await partition.subscribe(info)).acknowledge(up_to=0)
    await first.close()
    with capture_logs() as events:
        for number in range(2, 4):
            again = await cluster.start(f"B{number}")
            before = await record_of(again, name)
            assert [link.count for link in before.ledgers] == [2]
            assert (before.epoch, before.producers_upto) == (number - 1, 2)
            partition = await owned(again.broker, name)
            assert await values(partition) == ["a-0", "a-1"]
            assert (await partition.subscription("s")).stats().committed_offset == 1
            assert await record_of(again, name) == replace(before, epoch=number)
            if number == 2:
                await again.close()
    said = [(one["event"], one.get("ledger")) for one in events]
    assert said.count(("partition_taken_over", None)) == 2, "no ledger of messages was recovered"
    assert "ledger_created" not in {event for event, _ in said}
    await (await partition.subscription("s")).acknowledge(up_to=1)
    assert (await record_of(again, name)).state_ledger != before.state_ledger
    assert (await partition.publish(batch(1, tag="b"))).first_offset == 2
    await again.vanish()
    partition = await owned((await cluster.start("C")).broker, name)
    assert await values(partition) == ["a-0", "a-1", "b-0"]
    assert (await partition.subscription("s")).stats().committed_offset == 2


@pytest.mark.parametrize("subscribed", [False, True])
async def test_producers_are_known_again_however_the_owners_end(
    cluster: Cluster, subscribed: bool
) -> None:
    running = await cluster.start("A0")
    name = await make_topic(running.broker)
    partition = await owned(running.broker, name)
    if subscribed:
        info, _ = await running.broker.topics.create_subscription(
            name.topic_name, "s", SubscriptionSettings(start="earliest")
        )
        await partition.subscribe(info)
    for number in range(6):
        assert not (await numbered(partition, number)).duplicate
        await (running.vanish() if number % 3 == 2 else running.close())
        for unused in range(2):
            running = await cluster.start(f"A{number}{unused}")
            partition = await owned(running.broker, name)
            if not unused:
                await (running.vanish() if number % 2 else running.close())
        assert (await numbered(partition, number)).duplicate
    assert await values(partition) == [f"{n}-0" for n in range(6)]


async def test_a_successor_for_which_nobody_came_keeps_the_former_owner_out(
    cluster: Cluster,
) -> None:
    """Neither has a ledger that could be fenced: the record alone decides."""
    first = await cluster.start("A", deaf=True)
    name = await make_topic(first.broker)
    await (await owned(first.broker, name)).publish(batch(1, tag="a"))
    await first.broker.ownership.open_anew(name, placed=False)
    unaware = await first.broker.ownership.partition(name)
    second = await cluster.start("B")
    await second.store.delete(owner_path(*name))
    successor = await owned(second.broker, name)
    assert successor.ledgers == unaware.ledgers
    with pytest.raises(NotOwner):
        await unaware.publish(batch(1, tag="late"))
    with pytest.raises(NotOwner):
        await unaware.prove()
    assert await values(successor) == ["a-0"]
    assert (await successor.publish(batch(1, tag="b"))).first_offset == 1
    await until(lambda: not first.broker.ownership.open_partitions(), "A gives it up")


async def test_the_last_ledger_of_a_partition_that_nobody_writes_to_goes_by_age(
    cluster: Cluster,
) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker, retention_ms=60_000)
    partition = await owned(running.broker, name)
    await partition.publish(batch(3, time_ms=cluster.clock.now_ms))
    await running.broker.ownership.open_anew(name, placed=False)
    partition = await running.broker.ownership.partition(name)
    await partition.maintain()
    assert len(partition.ledgers) == 1
    cluster.clock.now_ms += 120_000
    async with asyncio.timeout(10):
        while partition.earliest_offset == 0:
            running.broker._tell_time()
            await asyncio.sleep(0.02)
            await partition.maintain()
    assert (partition.earliest_offset, partition.ledgers) == (3, ())
    assert (await partition.publish(batch(1))).first_offset == 3


async def test_who_waits_while_no_ledger_can_be_made_is_refused_and_served_later(
    cluster: Cluster,
) -> None:
    running = await cluster.start("A")
    name = await make_topic(running.broker)
    partition = await owned(running.broker, name)
    for bookie in ("b1", "b2"):
        await cluster.stop_bookie(bookie)
    await until(lambda: list(running.ledgers.bookies.available) == ["b3"], "it has heard of it")
    with pytest.raises(OctavoError, match="not stored"):
        await partition.publish(batch(1, tag="refused"))
    for bookie in ("b1", "b2"):
        await cluster.start_bookie(bookie)
    async with asyncio.timeout(20):
        while partition.next_offset == 0:
            try:
                await partition.publish(batch(1, tag="a"))
            except OctavoError:
                await asyncio.sleep(0.02)
    assert await values(partition) == ["a-0"]
