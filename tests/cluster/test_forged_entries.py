"""A stranger's entries in a ledger are never served as its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from octavo.bookie.node import BookieNode
from octavo.broker.broker import Broker
from octavo.broker.errors import PartitionDamaged
from octavo.broker.partition.partition import Partition
from octavo.broker.types import MessageId, SubscriptionInfo, SubscriptionSettings, TopicName
from octavo.ledger.errors import LedgerDamaged
from octavo.ledger.read.continuity import Continuity
from octavo.process.copies import NodeCopies, kept_copies
from octavo.protocol.batch import with_base_offset
from octavo.protocol.entry import (
    DigestType,
    Entry,
    digest_for,
    master_key,
    pack_entry,
    unpack_entry,
)
from octavo.protocol.records import read_records
from tests.support.cluster import Cluster, batch, make_topic, owned, values

# A client that may write an entry can compute its checksum: a stranger's batch was believed, and
# a read silently skipped an acked offset.

CRC32C = digest_for(DigestType.CRC32C, b"")


Forge = Callable[[bytes], bytes]


def forged(
    node: BookieNode, ledger_id: int, entry_id: int, forge: Callable[[bytes], bytes]
) -> None:
    storage: Any = node.storage
    read_many, read_now = storage.reads.read_many, storage.reads.read_now

    def changed(ledger: int, first: int, found: list[bytes]) -> list[bytes]:
        at = entry_id - first
        if ledger != ledger_id or not 0 <= at < len(found):
            return found
        entry = unpack_entry(CRC32C, ledger_id, entry_id, found[at])
        payload = forge(bytes(entry.payload))
        put = pack_entry(CRC32C, ledger_id, entry_id, entry_id - 1, entry.length, payload)
        return [*found[:at], put, *found[at + 1 :]]

    async def many(ledger: int, first: int, *bounds: int, **how: bool) -> list[bytes]:
        return changed(ledger, first, await read_many(ledger, first, *bounds, **how))

    def now(ledger: int, first: int, *bounds: int) -> list[bytes] | None:
        found = read_now(ledger, first, *bounds)
        return found if found is None else changed(ledger, first, found)

    storage.reads.read_many, storage.reads.read_now = many, now


def moved_to(offset: int) -> Forge:
    return lambda payload: with_base_offset(payload, offset)


def longer(payload: bytes) -> bytes:
    return with_base_offset(batch(count=4, tag="evil"), int.from_bytes(payload[:8], "big"))


FORGERIES = {
    "a later offset": moved_to(9),
    "an earlier offset": moved_to(5),
    "more messages": longer,
    "no batch": lambda _: b"nothing",
}


async def filled(cluster: Cluster) -> tuple[Broker, Partition, int]:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    partition = await owned(first.broker, name)
    for number in range(10):
        await partition.publish(batch(count=3, tag=f"m{number}"))
    (ledger_id, _) = partition.ledgers[0]
    await first.close()
    second = await cluster.start("B")
    return second.broker, await owned(second.broker, name), ledger_id


EXPECTED = [f"m{number}-{i}" for number in range(10) for i in range(3)]


@pytest.mark.parametrize("what", FORGERIES)
async def test_one_bad_copy_is_read_around(cluster: Cluster, what: str) -> None:
    _, partition, ledger_id = await filled(cluster)
    forged(cluster.nodes["b1"], ledger_id, 4, FORGERIES[what])
    for start in range(0, 30, 7):
        assert await values(partition, start) == EXPECTED[start:]


@pytest.mark.parametrize("what", FORGERIES)
async def test_nothing_is_passed_over_where_all_copies_are_bad(cluster: Cluster, what: str) -> None:
    broker, partition, ledger_id = await filled(cluster)
    other = await owned(broker, await make_topic(broker, TopicName("public", "other")))
    await other.publish(batch(tag="fine"))
    for node in cluster.nodes.values():
        forged(node, ledger_id, 4, FORGERIES[what])
    with pytest.raises(PartitionDamaged) as told:
        await values(partition)
    assert str(partition.name) in str(told.value)
    assert f"ledger {ledger_id}" in str(told.value)
    assert "entry 4" in str(told.value) or "entry 5" in str(told.value)
    served = 0
    for offset in range(30):
        try:
            served += 1
            for stored in await partition.read(offset, bytes_max=1, count_max=1):
                record = list(read_records(stored.data))[offset - stored.base_offset]
                assert (record.value or b"").decode() == EXPECTED[offset], "never another one's"
        except PartitionDamaged:
            served -= 1
    assert served >= 9, "what comes before the damage is there"
    assert await values(other) == ["fine-0"], "other partitions go on"
    assert (await partition.publish(batch(tag="after"))).first_offset == 30, (
        "and this one is written"
    )


async def test_message_ids_do_not_pass_it_over(cluster: Cluster) -> None:
    _, partition, ledger_id = await filled(cluster)
    for node in cluster.nodes.values():
        forged(node, ledger_id, 4, moved_to(13))
    with pytest.raises(PartitionDamaged, match=r"entry 4 starts offset 13; expected is 12"):
        await partition.position(MessageId(ledger_id, 4, 0))


def test_what_follows_follows() -> None:
    def entry(number: int, offset: int, count: int = 3) -> Entry:
        return Entry(7, number, -1, 0, with_base_offset(batch(count=count), offset))

    order = Continuity(7, base_offset=100, count=9, last_entry=2)
    assert [order.follow(entry(n, 3 * n)).base_offset for n in range(3)] == [0, 3, 6]
    for expected, wrong, what in (
        (None, entry(0, 3), "starts offset 103; expected is 100"),
        (3, entry(1, 6), "starts offset 106; expected is 103"),
        (3, entry(1, 2), "starts offset 102; expected is 103"),
        (6, entry(2, 6, 4), "ends before offset 110; expected is 109"),
        (6, entry(2, 6, 2), "ends before offset 108; expected is 109"),
        (6, Entry(7, 2, -1, 0, b"x"), "is no record batch"),
    ):
        with pytest.raises(LedgerDamaged, match=f"entry {wrong.entry_id} {what}"):
            Continuity(7, base_offset=100, expected=expected, count=9, last_entry=2).follow(wrong)


async def test_a_subscription_does_not_pass_it_over(cluster: Cluster) -> None:
    _, partition, ledger_id = await filled(cluster)
    settings = SubscriptionSettings(start="earliest")
    subscription = await partition.subscribe(SubscriptionInfo("s", settings, 1))
    for node in cluster.nodes.values():
        forged(node, ledger_id, 4, moved_to(13))
    for number in range(3):
        got = await subscription.receive("c", messages_max=3)
        assert [(one.record.value or b"").decode() for one in got] == EXPECTED[3 * number :][:3]
    with pytest.raises(PartitionDamaged):
        await subscription.receive("c", messages_max=100)


def test_a_query_of_spark_begins_where_it_should() -> None:
    inside = Entry(7, 4, -1, 0, with_base_offset(batch(count=3), 12))
    order = Continuity(7, base_offset=100)
    order.follow_all([inside], from_or_before=13)
    with pytest.raises(LedgerDamaged, match="starts offset 112; expected is 115"):
        order.follow_all([inside], from_or_before=13)
    with pytest.raises(LedgerDamaged, match="starts offset 112; expected is 111"):
        Continuity(7, base_offset=100).follow_all([inside], from_or_before=11)


COPY_CRC32C = digest_for(DigestType.CRC32C, b"")
ENTRY = 4


@pytest.mark.parametrize("what", FORGERIES)
async def test_one_bad_copy_is_repaired_from_the_others(
    cluster: Cluster, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reader met the forged copy again: no scrubber finds it, and the bookie refused the
    right bytes as different from its own."""
    monkeypatch.setattr("octavo.process.copies._START_S", 0.0)
    _, partition, ledger_id = await filled(cluster)
    client = await cluster.client(8)
    metadata = await client.metadata(ledger_id)
    node = cluster.nodes["b1"]
    right = await node.storage.reads.read(ledger_id, ENTRY)
    entry = unpack_entry(COPY_CRC32C, ledger_id, ENTRY, right)
    payload = FORGERIES[what](bytes(entry.payload))
    wrong = pack_entry(COPY_CRC32C, ledger_id, ENTRY, ENTRY - 1, entry.length, payload)
    await NodeCopies(node).replace(master_key(metadata.password), wrong)
    assert await node.storage.reads.read(ledger_id, ENTRY) == wrong
    async with AsyncExitStack() as stack:
        for one in cluster.nodes.values():
            keeping = kept_copies(one, cluster.store, rng=random.Random(5))
            keeper = await stack.enter_async_context(keeping)
            assert keeper is not None
            async with asyncio.timeout(30):
                while not keeper.status.walks:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        looked: Any = partition
        log = looked._log.reader
        reader = await log._reader(log._record.ledgers.find(0))
        reader._sticky = metadata.fragments[0].bookies.index("b1")
        assert await values(partition) == EXPECTED
        async with asyncio.timeout(30):
            while (found := await node.storage.reads.read(ledger_id, ENTRY)) == wrong:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert unpack_entry(COPY_CRC32C, ledger_id, ENTRY, found).payload == entry.payload
    for name in ("b2", "b3"):
        await cluster.stop_bookie(name)
    entries = await (await client.open(ledger_id)).read(0, 9)
    assert bytes(entries[ENTRY].payload) == entry.payload
