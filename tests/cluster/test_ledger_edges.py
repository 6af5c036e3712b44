"""Ledgers at their edges: hung bookies, striping, deletion, duplicates, a busy recovery."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.adds import AddBatch
from octavo.ledger.actions import EnsembleChanged
from octavo.ledger.errors import LedgerFenced, OutcomeUnknown, WriterBusy
from octavo.ledger.write.writer import WriterEvent
from octavo.metadata.ledgers import LedgerState
from octavo.protocol.codes import Code, NoSuchLedger, OctavoError, TooManyRequests
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry
from octavo.protocol.frames import add_prefix
from tests.support.cluster import Cluster, add_many, payload_of, running_cluster
from tests.support.raw_bookie import TroubledDisk, until


async def test_16_a_hung_bookie_is_replaced_after_the_add_timeout(tmp_path: Path) -> None:
    """No. 16: it takes the adds, and acks none of them ever again."""
    async with running_cluster(tmp_path, 2) as cluster:
        disk = TroubledDisk()
        await cluster.start_bookie("b3", disk=disk)
        client = await cluster.client(add_timeout_s=0.4)
        writer = await client.create()
        await add_many(writer, 10)
        await cluster.start_bookie("b4")
        gate = threading.Event()
        disk.hook = lambda call, path: (
            gate.wait(30) is None if call == "datasync" and "journal" in path else None
        )
        events: list[WriterEvent] = []
        writer.on_event.append(events.append)
        try:
            await add_many(writer, 10)
            await until(lambda: any(isinstance(e, EnsembleChanged) for e in events))
        finally:
            gate.set()
        metadata = await writer.close()
        assert "b4" in metadata.fragments[-1].bookies
        assert "b3" not in metadata.fragments[-1].bookies


@pytest.mark.parametrize("shape", [(4, 2, 2), (5, 3, 2), (3, 2, 1)])
async def test_9_striped_writing_survives_the_loss_of_a_bookie(
    tmp_path: Path, shape: tuple[int, int, int]
) -> None:
    """No. 8 and 9, #4097, for real: pipelined, one bookie goes, every acked entry is read back."""
    async with running_cluster(tmp_path, shape[0] + 1) as cluster:
        client = await cluster.client()
        writer = await client.create(
            ensemble_size=shape[0], write_quorum=shape[1], ack_quorum=shape[2]
        )
        acked: list[int] = []
        errors: list[OctavoError] = []

        def done(entry_id: int, error: OctavoError | None) -> None:
            if error is None:
                acked.append(entry_id)
            else:
                errors.append(error)

        for entry_id in range(2000):
            writer.add(payload_of(entry_id), done)
            if entry_id % 20 == 0:
                await asyncio.sleep(0)
            if entry_id == 700:
                await cluster.stop_bookie(writer.metadata.fragments[0].bookies[1])
        await until(lambda: len(acked) == 2000 or errors)
        assert not errors
        assert acked == list(range(2000))
        metadata = await writer.close()
        assert len(metadata.fragments) == 2
        reader = await (await cluster.client(5)).open(writer.ledger_id)
        # With Qa = 1 the only copy of an acked entry may have gone with its bookie.
        last = 1999 if shape[2] > 1 else -1
        async for entry in reader.entries(0, last):
            assert entry.payload == payload_of(entry.entry_id)


async def test_28_adds_to_a_deleted_ledger_are_refused(cluster: Cluster) -> None:
    """No. 28, testWriteAfterDeleted: once the bookies have noticed."""
    client = await cluster.client()
    writer = await client.create()
    await add_many(writer, 5)
    await client.delete(writer.ledger_id)
    for node in cluster.nodes.values():
        await node.storage.delete_ledger(writer.ledger_id)
    with pytest.raises(OutcomeUnknown) as caught:
        await writer.append(b"x")
    assert isinstance(caught.value.cause, NoSuchLedger | LedgerFenced)


async def test_20_recovery_gets_through_a_busy_bookie(cluster: Cluster) -> None:
    """No. 20, testRecoveryNotRejected, from the client's side: busy answers are waited out."""
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await client.create()
    await add_many(writer, 30)
    await client.close()
    busy = random.Random(1)
    for node in cluster.nodes.values():
        add, read = node.storage.add, node.storage.reads.read

        def moody_add(runs, done, lane, add=add, *, deferred=False) -> None:  # type: ignore[no-untyped-def]
            for run in runs:
                if busy.random() < 0.5:
                    done([(run, Code.TOO_MANY_REQUESTS)])
                else:
                    add([run], done, lane, deferred=deferred)

        async def moody_read(*where: int, read: Any = read, **how: bool) -> bytes:
            if busy.random() < 0.5:
                raise TooManyRequests("busy")
            return await read(*where, **how)  # type: ignore[no-any-return]

        node.storage.add = moody_add  # type: ignore[method-assign, assignment]
        node.storage.reads.read = moody_read  # type: ignore[method-assign, assignment]
        node.storage.reads.read_now = lambda *_: None  # type: ignore[method-assign]
    assert (await other.recover(writer.ledger_id)).last_entry == 29
    reader = await other.open(writer.ledger_id)
    for entry_id in range(30):
        assert (await reader.read(entry_id, entry_id))[0].payload == payload_of(entry_id)


async def test_an_add_below_the_confirmed_changes_nothing(cluster: Cluster) -> None:
    """A bookie that is sent an entry a second time keeps it once; the writer's end stands."""
    client = await cluster.client()
    writer = await client.create()
    await add_many(writer, 10)
    digest = digest_for(DigestType.CRC32C, b"")
    data = pack_entry(digest, writer.ledger_id, 3, -1, 400, payload_of(3))
    key = master_key(writer.metadata.password)
    frame = add_prefix(key, len(data)) + data
    for node in cluster.nodes.values():
        done: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
        run = AddBatch(writer.ledger_id, 3, 1, key, False, frame, [0])
        node.storage.add([run], lambda results, done=done: done.set_result(results[0][1]))  # type: ignore[misc]
        assert await done in (Code.OK, Code.BAD_REQUEST)
    metadata = await writer.close()
    assert (metadata.last_entry, metadata.state) == (9, LedgerState.CLOSED)
    reader = await client.open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, 9)] == [payload_of(i) for i in range(10)]


async def test_a_caller_that_never_drains_is_told(cluster: Cluster) -> None:
    client = await cluster.client(pending_bytes_max=10_000)
    writer = await client.create()
    results: list[OctavoError | None] = []

    def add_all() -> None:
        for _ in range(1000):
            writer.add(b"x" * 100, lambda _, error: results.append(error))

    with pytest.raises(WriterBusy, match="await drain"):
        add_all()
    await writer.drain()
    await add_many(writer, 10)
    await writer.close()
    assert len(results) > 390
    assert not any(results)


async def test_a_callback_that_fails_does_not_cost_the_others(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    answered: list[int] = []
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context.get("exception")))

    def done(entry_id: int, error: OctavoError | None) -> None:
        answered.append(entry_id)
        if entry_id % 2:
            raise RuntimeError("a caller's bug")

    for _ in range(10):
        writer.add(b"x", done)
    await until(lambda: len(answered) == 10)
    assert answered == list(range(10))
    await until(lambda: len(reported) == 5)
    await writer.close()


async def test_random_faults_lose_nothing_that_was_acked(tmp_path: Path) -> None:
    """Bookies stop and start while ledgers are written, abandoned and recovered."""
    rng = random.Random(11)
    async with running_cluster(tmp_path, 5) as cluster:
        names = sorted(cluster.nodes)
        for number in range(6):
            client = await cluster.client(number)
            writer = await client.create()
            acked = -1

            def done(entry_id: int, error: OctavoError | None) -> None:
                nonlocal acked
                if error is None:
                    acked = entry_id

            for entry_id in range(1500):
                if writer.error is not None:
                    break
                writer.add(payload_of(entry_id), done)
                if entry_id % 50 == 0:
                    await asyncio.sleep(0.001)
                if entry_id == 600:
                    victim = rng.choice(names)
                    await cluster.stop_bookie(victim)
                if entry_id == 1200:
                    await cluster.start_bookie(victim)
            other = await cluster.client(100 + number)
            metadata = await other.recover(writer.ledger_id)
            assert metadata.last_entry >= acked
            reader = await other.open(writer.ledger_id)
            async for entry in reader.entries(0, metadata.last_entry):
                assert entry.payload == payload_of(entry.entry_id)
            await client.close()
            assert acked <= metadata.last_entry, "P19: no ack after the close"
