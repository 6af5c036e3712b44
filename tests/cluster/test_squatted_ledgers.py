"""Ledger ids that a stranger uses before their owner does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.ledgers.control import LedgerControl
from octavo.bookie.ledgers.ledger_admission import LedgerAdmission
from octavo.bookie.ledgers.limbo import LimboRecord
from octavo.bookie.ledgers.state import LedgerStates
from octavo.broker.errors import PartitionUnavailable, PublishOutcomeUnknown
from octavo.broker.partition.partition import Partition
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import OutcomeUnknown, RecoveryFailed
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.store import MetadataUnavailable
from octavo.protocol.codes import Code, TooManyRequests, Unauthorized, UnknownState
from tests.support.cluster import (
    Cluster,
    add_many,
    batch,
    make_topic,
    owned,
    running_cluster,
    values,
)
from tests.support.raw_bookie import KEY, RawClient, add_of, until

# The first key that a bookie sees is the ledger's: a stranger's entry under each of the next ids
# stopped topics for ever.

FOREIGN = bytes(range(20))
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as found:
        yield found


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as found:
        yield found


async def squat(cluster: Cluster, ids: range, bookies: int = 3) -> None:
    for node in list(cluster.nodes.values())[:bookies]:
        client = await RawClient.connect(node)
        try:
            client.send(b"".join(add_of(one, 0, b"mine", key=FOREIGN) for one in ids))
            await client.acked(len(ids))
        finally:
            client.close()


async def publish(partition: Partition, tag: str) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(PartitionUnavailable, PublishOutcomeUnknown):
                await partition.publish(batch(tag=tag))
                return
            await asyncio.sleep(0.01)


async def recovered(client: LedgerClient, ledger_id: int) -> LedgerMetadata:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(RecoveryFailed):
                return await client.recover(ledger_id)


async def test_topics_go_on_when_the_next_300_ids_are_taken(brokers: Cluster) -> None:
    running = await brokers.start("A")
    partition = await owned(running.broker, await make_topic(running.broker, rollover_entries=3))
    await squat(brokers, range(2, 302))
    for tag in LETTERS:
        await publish(partition, tag)
    found = [one.removesuffix("-0") for one in await values(partition)]
    assert "".join(dict.fromkeys(found)) == LETTERS, found
    assert running.ledgers.taken.count < 5, "it does not try them one after the other"


@pytest.mark.parametrize("bookies", [1, 2, 3])
async def test_a_ledger_whose_id_was_taken_is_closed(cluster: Cluster, bookies: int) -> None:
    client = await cluster.client()
    writer = await client.create()
    await squat(cluster, range(writer.ledger_id, writer.ledger_id + 1), bookies)
    with pytest.raises(OutcomeUnknown):
        await asyncio.gather(*[writer.append(b"%d" % one) for one in range(2_000)])
    found = await recovered(client, writer.ledger_id)
    assert found.state is LedgerState.CLOSED
    assert found.last_entry == -1 or bookies < 3


async def test_what_bookies_acked_before_others_came_stays(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    await writer.append(b"first")
    raw = await RawClient.connect(cluster.nodes["b1"])
    assert (await raw.add(add_of(writer.ledger_id, 1, key=FOREIGN))).name == "UNAUTHORIZED"
    raw.close()
    assert (await client.recover(writer.ledger_id)).last_entry == 0


async def test_the_cluster_leaves_the_ids_that_others_take(cluster: Cluster) -> None:
    client = await cluster.client()
    first = await client.create()
    await squat(cluster, range(first.ledger_id, first.ledger_id + 2_000))
    with pytest.raises(OutcomeUnknown):
        await first.append(b"x")
    second = await client.create()
    assert second.ledger_id >= 1 << 32, "the cluster has left the ids that others take"
    assert await second.append(b"x") == 0
    assert (await (await cluster.client()).create()).ledger_id == second.ledger_id + 1, "all of it"

    await squat(cluster, range(second.ledger_id + 2, second.ledger_id + 300))
    third = await client.create()
    assert third.ledger_id >= 2 << 32, "bookies were asked before it was made"
    assert await third.append(b"x") == 0
    assert client.taken.count == 2


class _Journals:
    def of(self, _: int) -> _Journals:
        return self

    def append(self, buffers: list[bytes], _length: int, done: Callable[[None], None]) -> None:
        self.written += buffers
        done(None)

    def __init__(self) -> None:
        self.written: list[bytes] = []


@pytest.mark.parametrize("lost", [False, True])
async def test_a_wrong_key_is_refused_for_good_or_not_at_all(lost: bool) -> None:
    """Recovery takes the refusal for a denial: it rests on a durable key."""
    journals = _Journals()
    control = LedgerControl(LedgerStates(), journals, lambda _: None)  # type: ignore[arg-type]
    await control.fence(7, FOREIGN)
    fenced = len(journals.written)
    if lost:
        control.limbo.take(LimboRecord(9, 0, "lost", "x"))
    with pytest.raises(UnknownState if lost else Unauthorized):
        await control.fence(7, KEY)
    assert lost or len(journals.written) == fenced + 1


# A bookie kept a stranger's ledgers in memory until a garbage collection: 300,000 of them took
# 176 MB.

BOUND = 50


@pytest.fixture
async def squatter_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, unlisted_ledgers_max=BOUND) as found:
        yield found


@pytest.mark.long
async def test_who_makes_ledgers_in_metadata_goes_on(squatter_cluster: Cluster) -> None:
    client = await squatter_cluster.client()
    old = await client.create()
    await add_many(old, 1)
    for node in squatter_cluster.nodes.values():
        raw = await RawClient.connect(node)
        codes = [await raw.add(add_of(1_000 + one, 0, b"mine")) for one in range(4 * BOUND)]
        assert set(codes) == {Code.OK, Code.TOO_MANY_REQUESTS}
        assert len(node.storage.ledgers()) <= BOUND + 1, "and the one that has a record"
        raw.close()
    for _ in range(5):
        new = await client.create()
        await add_many(new, 10)
        fresh = await client.create()
        assert (await client.recover(fresh.ledger_id)).last_entry == -1, "fenced before any add"
        assert (await client.recover(new.ledger_id)).last_entry == 9
    await add_many(old, 10)
    for node in squatter_cluster.nodes.values():
        assert len(node.storage.ledgers()) <= BOUND + 11


async def test_what_has_a_record_does_not_count() -> None:
    states = LedgerStates()
    admission = LedgerAdmission(states, BOUND)
    for one in range(BOUND):
        assert admission.may_begin(one)
        states.create(one, KEY)
    assert admission.may_begin(BOUND), "nobody can be asked yet"
    listings = 0
    away = True

    async def listing() -> list[int]:
        nonlocal listings
        listings += 1
        if away:
            raise MetadataUnavailable("away")
        return list(range(10, 2 * BOUND))

    admission.ask(listing)
    assert not admission.may_begin(BOUND)
    await until(lambda: listings == 1)
    assert not admission.may_begin(BOUND), "without an answer nothing begins"
    away = False
    while not admission.may_begin(BOUND):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert listings == 2
    states.create(BOUND, KEY)
    for one in range(1_000, 1_000 + BOUND - 10):
        assert admission.may_begin(one), "ten were not listed"
        states.create(one, KEY)
    assert not admission.may_begin(2_000)
    await admission.close()


async def test_a_fence_waits_as_well() -> None:
    """A denial would be taken for a fence."""
    unasked: Any = None
    control = LedgerControl(LedgerStates(), unasked, lambda _: None, unlisted_max=0)

    async def listing() -> list[int]:
        return []

    control.ledger_admission.ask(listing)
    with pytest.raises(TooManyRequests):
        await control.fence(7, KEY)
    await control.ledger_admission.close()
