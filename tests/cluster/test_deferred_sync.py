"""Ledgers with deferred syncs over real bookies: acks, forces, LACs, bookies that come and go."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from octavo.ledger.actions import EnsembleChanged, Forced
from octavo.ledger.bookies.bookies import RequestClass
from octavo.ledger.errors import LedgerFenced, OutcomeUnknown
from octavo.ledger.write.writer import WriterEvent
from octavo.metadata.ledgers import LedgerState
from tests.support.cluster import Cluster, add_many, payload_of, running_cluster
from tests.support.raw_bookie import TroubledDisk, until


async def test_the_lac_follows_with_a_force(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create(deferred_sync=True)
    events: list[WriterEvent] = []
    writer.on_event.append(events.append)
    assert await writer.force() == -1
    await add_many(writer, 500)
    assert writer.last_add_confirmed == -1
    reader = await client.open(writer.ledger_id)
    assert reader.last_add_confirmed == -1
    assert await writer.force() == 499
    assert writer.last_add_confirmed == 499
    assert events[-1] == Forced(499)
    await add_many(writer, 10)
    assert writer.last_add_confirmed == 499
    assert await reader.wait_for(-1, 5.0) == 499, "an idle writer tells its LAC"
    metadata = await writer.close()
    assert metadata.last_entry == 509, "a close forces first"
    other = await (await cluster.client(2)).open(writer.ledger_id)
    assert [e.payload for e in await other.read(0, 509)] == [payload_of(n) for n in range(510)]


async def test_acks_wait_for_no_sync_and_a_force_for_a_quorum_of_them(tmp_path: Path) -> None:
    gate = threading.Event()
    held: list[str] = []

    def hook(call: str, path: str) -> None:
        if call == "datasync" and "/journal/" in path:
            held.append(path)
            gate.wait(20)

    async with running_cluster(tmp_path, bookies=0) as cluster:
        disks = [TroubledDisk() for _ in range(3)]
        for number, disk in enumerate(disks, 1):
            await cluster.start_bookie(f"b{number}", disk=disk)
        writer = await (await cluster.client(add_timeout_s=20.0)).create(deferred_sync=True)
        for disk in disks[:2]:
            disk.hook = hook
        try:
            await add_many(writer, 50)
            assert held == []
            forced = asyncio.create_task(writer.force())
            await until(lambda: len(held) == 2)
            assert not forced.done()
            assert writer.last_add_confirmed == -1, "one of three is not enough"
        finally:
            gate.set()
        assert await forced == 49


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
async def test_a_bookie_that_stops_is_replaced_with_all_that_was_not_forced(
    cluster: Cluster, quorums: tuple[int, int, int]
) -> None:
    await cluster.start_bookie("b4")
    e, qw, qa = quorums
    client = await cluster.client()
    writer = await client.create(
        ensemble_size=e, write_quorum=qw, ack_quorum=qa, deferred_sync=True
    )
    events: list[WriterEvent] = []
    writer.on_event.append(events.append)
    await add_many(writer, 30)
    await writer.force()
    await add_many(writer, 30)
    await cluster.stop_bookie(writer.metadata.fragments[0].bookies[0])
    await until(lambda: any(isinstance(event, EnsembleChanged) for event in events))
    assert writer.metadata.fragments[-1].first_entry == 30
    assert await writer.force() == 59
    spare = cluster.nodes["b4"] if "b4" in writer.metadata.fragments[-1].bookies else None
    if spare is not None and e == qw:
        assert await spare.storage.reads.entries(writer.ledger_id) == [(30, 59)]
    assert (await writer.close()).last_entry == 59


async def test_a_bookie_that_comes_back_gets_again_what_it_had_not_forced(
    cluster: Cluster,
) -> None:
    """There is no spare. Its answer to a force does not cover entries from before it stopped."""
    client = await cluster.client()
    writer = await client.create(deferred_sync=True)
    await add_many(writer, 20)
    await cluster.stop_bookie("b1")
    await until(lambda: writer.failed_bookies == ("b1",))
    await cluster.start_bookie("b1")
    await until(lambda: not writer.failed_bookies)
    assert await writer.force() == 19
    await add_many(writer, 5)
    assert await writer.force() == 24


async def test_who_never_forces_does_not_wait_for_himself(cluster: Cluster) -> None:
    client = await cluster.client(pending_bytes_max=200_000)
    writer = await client.create(deferred_sync=True)
    async with asyncio.timeout(30):
        for _ in range(500):
            await writer.append(bytes(10_000))
    assert writer.last_add_confirmed > 400
    assert writer.pending_bytes <= 200_000


async def test_a_bookie_that_forces_late_holds_up_nobody_for_ever(tmp_path: Path) -> None:
    """An entry that is durable on an ack quorum is held until all have it: the others are asked
    as well."""
    gate = threading.Event()

    def hook(call: str, path: str) -> None:
        if call == "datasync" and "/journal/" in path:
            gate.wait(20)

    async with running_cluster(tmp_path, bookies=0) as cluster:
        slow = TroubledDisk()
        for number in (1, 2, 3):
            disk = slow if number == 3 else TroubledDisk()
            await cluster.start_bookie(f"b{number}", disk=disk)
        client = await cluster.client(add_timeout_s=20.0, pending_entries_max=4)
        writer = await client.create(deferred_sync=True)
        slow.hook = hook
        try:
            await add_many(writer, 3)
            assert await writer.force() == 2
            await add_many(writer, 2)
            assert await writer.force() == 4
        finally:
            gate.set()
        async with asyncio.timeout(10):
            await writer.drain()


async def test_a_force_that_succeeds_after_its_bookie_refused_an_add(tmp_path: Path) -> None:
    """It broke the connection to that bookie, for every ledger of the process."""
    gate = threading.Event()

    def hook(call: str, path: str) -> None:
        if call == "datasync" and "/journal/" in path:
            gate.wait(20)

    async with running_cluster(tmp_path, bookies=0) as cluster:
        slow = TroubledDisk()
        for number in (1, 2, 3):
            disk = slow if number == 3 else TroubledDisk()
            await cluster.start_bookie(f"b{number}", disk=disk)
        client = await cluster.client(add_timeout_s=20.0, retry_failed_bookie_ms=60_000.0)
        writer = await client.create(deferred_sync=True)
        slow.hook = hook
        try:
            await add_many(writer, 3)
            assert await writer.force() == 2
            cluster.nodes["b3"].server.read_only = True
            await add_many(writer, 1)
            await until(lambda: writer.failed_bookies == ("b3",))
            connection = client.bookies.get("b3", RequestClass.NORMAL).connection
            assert connection is not None
            under_way = connection._by_id
            assert under_way, "the force has no answer yet"
        finally:
            gate.set()
        await until(lambda: not under_way)
        assert client.bookies.get("b3", RequestClass.NORMAL).connection is connection
        assert await writer.force() == 3
        cluster.nodes["b3"].server.read_only = False
        assert (await writer.close()).last_entry == 3


async def test_a_recovery_takes_what_is_there_and_the_writer_forces_no_more(
    cluster: Cluster,
) -> None:
    client = await cluster.client()
    writer = await client.create(deferred_sync=True)
    await add_many(writer, 20)
    await writer.force()
    await add_many(writer, 5)
    record = await (await cluster.client(2)).recover(writer.ledger_id)
    assert record.state is LedgerState.CLOSED
    assert record.last_entry == 24, "all of it was still there"
    with pytest.raises(OutcomeUnknown):
        await writer.append(b"late")
    with pytest.raises(LedgerFenced):
        await writer.force()
