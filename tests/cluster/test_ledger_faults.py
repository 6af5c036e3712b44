"""Ledgers while bookies fail: ensemble changes, delays, recovery, overload, damage."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.adds import AddBatch
from octavo.bookie.node import BookieNode
from octavo.ledger.actions import ChangeDelayed, EnsembleChanged, Stalled
from octavo.ledger.bookies.bookies import Bookies, RequestClass
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import (
    BookieUnavailable,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
    OutcomeUnknown,
    ReadFailed,
    RecoveryFailed,
    TooFewBookies,
)
from octavo.ledger.quorum import Quorum
from octavo.ledger.recover.events import BookieReplaced, FenceAnswered
from octavo.ledger.write.writer import LedgerWriter, WriterEvent
from octavo.metadata.bookies import BookieInfo, BookieRegistry
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.store import MetadataUnavailable
from octavo.protocol.codes import Code, NoSuchEntry, NoSuchLedger, OctavoError
from octavo.protocol.entry import master_key
from octavo.protocol.frames import Flag, add_prefix
from tests.support.cluster import Cluster, add_many, payload_of, running_cluster
from tests.support.cluster import until as gone_until
from tests.support.raw_bookie import TroubledDisk, tell_read_only, until


class Writes:
    def __init__(self, writer: LedgerWriter) -> None:
        self.writer = writer
        self.acked = -1
        self.errors: list[OctavoError] = []
        self.events: list[WriterEvent] = []
        writer.on_event.append(self.events.append)
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        with contextlib.suppress(OctavoError):
            while True:
                self.writer.add(payload_of(self.writer.last_add_pushed + 1), self._done)
                await self.writer.drain()
                await asyncio.sleep(0.0005)

    def _done(self, entry_id: int, error: OctavoError | None) -> None:
        if error is not None:
            self.errors.append(error)
            return
        assert entry_id == self.acked + 1
        self.acked = entry_id

    async def more(self, count: int) -> None:
        goal = self.acked + count
        await until(lambda: self.acked >= goal)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def seen(self, kind: type) -> list[WriterEvent]:
        return [event for event in self.events if isinstance(event, kind)]


async def all_there(cluster: Cluster, writes: Writes) -> None:
    reader = await (await cluster.client(99)).open(writes.writer.ledger_id)
    assert reader.is_closed
    assert reader.last_add_confirmed >= writes.acked
    entries = await reader.read(0, reader.last_add_confirmed)
    assert [e.payload for e in entries] == [payload_of(i) for i in range(len(entries))]


async def assert_on_ack_quorum(cluster: Cluster, metadata: LedgerMetadata) -> None:
    """P5: every entry is on Qa of the bookies that the record names for it."""
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    for entry_id in range(metadata.last_entry + 1):
        bookies = metadata.fragment_of(entry_id).bookies
        copies = 0
        for position in quorum.write_set(entry_id):
            node = cluster.nodes.get(bookies[position])
            if node is not None:
                with contextlib.suppress(NoSuchEntry, NoSuchLedger):
                    await node.storage.reads.read(metadata.ledger_id, entry_id)
                    copies += 1
        assert copies >= metadata.ack_quorum, entry_id


async def test_a_bookie_stops_while_writing_and_a_spare_takes_its_place(cluster: Cluster) -> None:
    await cluster.start_bookie("b4")
    client = await cluster.client()
    writes = Writes(await client.create())
    await writes.more(50)
    first = writes.writer.metadata.fragments[0].bookies
    spare = ({"b1", "b2", "b3", "b4"} - set(first)).pop()
    await cluster.stop_bookie(first[0])
    await until(lambda: writes.seen(EnsembleChanged))
    await writes.more(50)
    await writes.stop()
    metadata = await writes.writer.close()
    assert metadata.fragments[-1].bookies == (spare, *first[1:])
    assert len(metadata.fragments) == 2
    assert not writes.errors
    await all_there(cluster, writes)


async def test_without_a_spare_the_change_waits_for_the_bookie_or_another(
    cluster: Cluster,
) -> None:
    client = await cluster.client()
    writes = Writes(await client.create())
    await writes.more(20)
    await cluster.stop_bookie("b2")
    await until(lambda: writes.seen(ChangeDelayed))
    await writes.more(20)
    await cluster.start_bookie("b2")
    await until(lambda: not writes.writer.failed_bookies)
    await writes.more(20)
    assert len(writes.writer.metadata.fragments) == 1
    await cluster.stop_bookie("b1")
    await writes.more(20)
    await cluster.start_bookie("b4")
    await until(lambda: writes.seen(EnsembleChanged))
    await writes.more(20)
    await writes.stop()
    metadata = await writes.writer.close()
    assert "b4" in metadata.fragments[-1].bookies
    assert not writes.errors
    await all_there(cluster, writes)


async def test_below_the_ack_quorum_the_writer_waits_then_ends_and_can_be_closed(
    cluster: Cluster,
) -> None:
    client = await cluster.client(stall_timeout_s=0.3)
    writes = Writes(await client.create())
    await writes.more(20)
    for name in ("b1", "b2"):
        await cluster.stop_bookie(name)
    await until(lambda: writes.errors)
    assert writes.seen(Stalled)
    # NotEnoughBookies itself only for adds that had not left this process yet.
    assert all(isinstance(error, OutcomeUnknown | NotEnoughBookies) for error in writes.errors)
    with pytest.raises(NotEnoughBookies):
        await writes.writer.append(b"x")
    await writes.stop()
    metadata = await writes.writer.close()
    assert metadata.last_entry == writes.acked
    assert metadata.length == 100 * (writes.acked + 1)


async def test_an_add_of_the_turn_in_which_the_writer_ends_is_certainly_not_stored(
    cluster: Cluster,
) -> None:
    """Unsent adds are certainly absent; the outcome of sent adds is unknown."""
    client = await cluster.client(stall_timeout_s=0.6)
    writer = await client.create()
    await add_many(writer, 20)
    answers: dict[int, OctavoError | None] = {}
    loop = asyncio.get_running_loop()

    def add() -> None:
        writer.add(b"of the last turn", answers.__setitem__)

    def stalled(event: WriterEvent) -> None:
        if isinstance(event, Stalled):
            writer.on_event.clear()
            loop.call_soon(writer.add, b"sent to one bookie", answers.__setitem__)
            loop.call_later(0.2, time.sleep, 0.5)  # After it both of these are due, in this order.
            loop.call_later(0.4, add)

    writer.on_event.append(stalled)
    sent = [cluster.nodes[name] for name in ("b1", "b2", "b3")]
    for name in ("b1", "b2"):
        await cluster.stop_bookie(name)
    await until(lambda: len(answers) == 2)
    assert isinstance(answers[20], OutcomeUnknown)
    assert isinstance(answers[21], NotEnoughBookies)
    left = sent[2].storage.reads
    assert await left.read(writer.ledger_id, 20)
    with pytest.raises(NoSuchEntry):
        await left.read(writer.ledger_id, 21)
    assert (await writer.close()).last_entry == 19


async def test_a_stalled_writer_goes_on_when_a_bookie_comes_back(cluster: Cluster) -> None:
    client = await cluster.client(stall_timeout_s=20)
    writes = Writes(await client.create())
    await writes.more(20)
    for name in ("b1", "b2"):
        await cluster.stop_bookie(name)
    await until(lambda: writes.seen(Stalled))
    await cluster.start_bookie("b1")
    await writes.more(20)
    await writes.stop()
    await writes.writer.close()
    assert not writes.errors
    await all_there(cluster, writes)


async def test_a_fenced_writer_gets_no_ack_and_does_not_close(cluster: Cluster) -> None:
    client, other = await cluster.client(1), await cluster.client(2)
    writes = Writes(await client.create())
    await writes.more(50)
    metadata = await other.recover(writes.writer.ledger_id)
    await until(lambda: writes.errors)
    assert writes.acked <= metadata.last_entry
    # LedgerFenced itself only for adds that had not left this process yet.
    assert all(isinstance(error, OutcomeUnknown | LedgerFenced) for error in writes.errors)
    with pytest.raises(LedgerFenced):
        await writes.writer.append(b"x")
    with pytest.raises(LedgerFenced):
        await writes.writer.close()
    await writes.stop()
    assert await client.metadata(writes.writer.ledger_id) == metadata
    await all_there(cluster, writes)


async def test_33_recovery_with_one_bookie_down_and_a_spare(cluster: Cluster) -> None:
    await cluster.start_bookie("b4")
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await client.create()
    await add_many(writer, 30)
    ensemble = writer.metadata.fragments[0].bookies
    await client.close()
    await cluster.stop_bookie(ensemble[1])
    seen: list[object] = []
    metadata = await other.recover(writer.ledger_id, observe=seen.append)
    assert metadata.last_entry == 29
    answers = [e for e in seen if isinstance(e, FenceAnswered)]
    assert {e.bookie_id for e in answers} >= {ensemble[0], ensemble[2]}
    # The close waits for an ack quorum of the written-back entries, not for the slowest bookie.
    for event in seen:
        if isinstance(event, BookieReplaced):
            assert metadata.fragments[-1] == Fragment(event.first_entry, event.new)
    await assert_on_ack_quorum(cluster, metadata)
    reader = await other.open(writer.ledger_id)
    assert len(await reader.read(0, 29)) == 30


async def test_29_recovery_is_refused_without_coverage_and_works_later(cluster: Cluster) -> None:
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await client.create()
    await add_many(writer, 10)
    await client.close()
    for name in ("b1", "b2"):
        await cluster.stop_bookie(name)
    with pytest.raises(RecoveryFailed, match="cannot fence"):
        await other.recover(writer.ledger_id)
    assert (await other.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    await cluster.start_bookie("b1")
    assert (await other.recover(writer.ledger_id)).last_entry == 9


async def test_25_a_fence_survives_a_restart_of_every_bookie(cluster: Cluster) -> None:
    client, other = await cluster.client(1, stall_timeout_s=60), await cluster.client(2)
    writer = await client.create()
    await add_many(writer, 10)
    await other.recover(writer.ledger_id)
    for name in ("b1", "b2", "b3"):
        await cluster.stop_bookie(name)
        await cluster.start_bookie(name)
    with pytest.raises((OutcomeUnknown, LedgerFenced)):
        await writer.append(b"late")
    with pytest.raises(LedgerFenced):
        await writer.append(b"later")


async def test_40_closing_while_another_recovers(cluster: Cluster) -> None:
    """No. 40: one end, whichever wins."""
    client, other = await cluster.client(1), await cluster.client(2)
    for _ in range(5):
        writer = await client.create()
        await add_many(writer, 20)
        closed, recovered = await asyncio.gather(
            writer.close(), other.recover(writer.ledger_id), return_exceptions=True
        )
        assert not isinstance(recovered, BaseException)
        assert recovered.last_entry == 19
        assert isinstance(closed, LedgerFenced) or closed == recovered


def slow_down(disk: TroubledDisk, seconds: float) -> None:
    disk.hook = lambda call, path: (
        time.sleep(seconds) if call == "datasync" and "journal" in path else None
    )


async def test_overload_with_a_slow_disk_fails_nothing_and_changes_nothing(tmp_path: Path) -> None:
    """20,000 adds of 100 B in flight; two disks of three take 1 s for each sync."""
    async with running_cluster(tmp_path, 1) as cluster:
        disk = TroubledDisk()
        for name in ("b2", "b3"):
            await cluster.start_bookie(name, disk=disk)
        client = await cluster.client(add_timeout_s=4.0)
        writer = await client.create()
        await cluster.start_bookie("b4")
        slow_down(disk, 1.0)
        events: list[WriterEvent] = []
        writer.on_event.append(events.append)
        for _ in range(3):
            await add_many(writer, 20_000)
        disk.hook = lambda call, path: None
        assert not events
        metadata = await writer.close()
        assert (metadata.last_entry, len(metadata.fragments)) == (59_999, 1)


async def test_one_slow_bookie_does_not_fill_the_writers_memory(tmp_path: Path) -> None:
    """pulsar #14861: with Qa < Qw the laggard's entries are bounded; drain holds the caller."""
    async with running_cluster(tmp_path, 2) as cluster:
        disk = TroubledDisk()
        await cluster.start_bookie("b3", disk=disk)
        client = await cluster.client(pending_bytes_max=1 << 20, add_timeout_s=20)
        writer = await client.create()
        gate = threading.Event()
        disk.hook = lambda call, path: (
            gate.wait(20) is None if call == "datasync" and "journal" in path else None
        )
        try:
            confirmed = 0
            for _ in range(20):
                await add_many(writer, 100, size=1000)
                confirmed += 100
            drained = asyncio.ensure_future(writer.drain())
            await asyncio.sleep(0)
            assert not drained.done(), "two megabytes are held for the slow one"
            assert writer.last_add_confirmed == confirmed - 1, "though all of it is confirmed"
        finally:
            gate.set()
        await drained
        assert writer.pending_bytes <= 1 << 20
        await writer.close()


class Moody:
    def __init__(self, node: BookieNode) -> None:
        self.refused = 0
        self.left = 0
        self._add = node.storage.add
        node.storage.add = self._moody_add  # type: ignore[method-assign, assignment]

    def _moody_add(self, runs, done, lane, *, deferred=False) -> None:  # type: ignore[no-untyped-def]
        taken = []
        for run in runs:
            if self.left > 0:
                self.left -= 1
                self.refused += 1
                done([(run, Code.TOO_MANY_REQUESTS)])
            else:
                taken.append(run)
        if taken:
            self._add(taken, done, lane, deferred=deferred)


@pytest.mark.parametrize("everywhere", [True, False])
async def test_too_many_requests_slow_the_writer_and_nothing_else(
    cluster: Cluster, everywhere: bool
) -> None:
    for name in ("b4", "b5"):
        await cluster.start_bookie(name)
    client = await cluster.client()
    writer = await client.create(ensemble_size=3 if everywhere else 4)
    events: list[WriterEvent] = []
    writer.on_event.append(events.append)
    moody = [Moody(cluster.nodes[b]) for b in writer.metadata.fragments[0].bookies[:2]]
    for one in moody:
        one.left = 40
    for _ in range(3):
        await add_many(writer, 20_000 if everywhere else 2_000)
    assert sum(one.refused for one in moody) > 0
    assert not events
    metadata = await writer.close()
    assert len(metadata.fragments) == 1
    reader = await client.open(writer.ledger_id)
    count = 0
    async for entry in reader.entries(0, metadata.last_entry):
        assert entry.payload == payload_of(entry.entry_id)
        count += 1
    assert count == metadata.last_entry + 1


async def test_a_read_only_bookie_is_replaced(cluster: Cluster) -> None:
    await cluster.start_bookie("b4")
    client = await cluster.client()
    writes = Writes(await client.create())
    await writes.more(20)
    victim = writes.writer.metadata.fragments[0].bookies[0]
    tell_read_only(cluster.nodes[victim], True)
    await until(lambda: writes.seen(EnsembleChanged))
    await writes.more(20)
    await writes.stop()
    assert victim not in (await writes.writer.close()).fragments[-1].bookies
    assert not writes.errors
    await all_there(cluster, writes)


async def test_a_damaged_replica_is_reported_and_another_serves(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    await add_many(writer, 50)
    await writer.close()
    flipped = "b2"
    storage = cluster.nodes[flipped].storage
    read, read_many = storage.reads.read, storage.reads.read_many

    def flip(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1])

    async def damaged_read(*where: int, **how: bool) -> bytes:
        return flip(await read(*where, **how))

    async def damaged_read_many(*where: int, **how: bool) -> list[bytes]:
        entries = await read_many(*where, **how)
        return [*entries[:3], *map(flip, entries[3:])]

    storage.reads.read = damaged_read  # type: ignore[method-assign, assignment]
    storage.reads.read_many = damaged_read_many  # type: ignore[method-assign, assignment]
    storage.reads.read_now = lambda *_: None  # type: ignore[method-assign]
    damaged = 0
    for _ in range(6):
        reader = await client.open(writer.ledger_id)
        assert [e.payload for e in await reader.read(0, 49)] == [payload_of(i) for i in range(50)]
        assert (await reader.read(7, 7))[0].payload == payload_of(7)
        damaged += reader.damaged_replicas
    assert damaged


async def test_absent_only_when_the_whole_write_set_says_so(cluster: Cluster) -> None:
    client = await cluster.client(read_timeout_s=0.5, connect_timeout_s=0.5)
    writer = await client.create()
    await add_many(writer, 5)
    metadata = await writer.close()
    await client.delete(writer.ledger_id)
    await client.records.create(replace(metadata, last_entry=9, creator_token=0))
    reader = await client.open(writer.ledger_id)
    with pytest.raises(NoSuchEntry):
        await reader.read(9, 9)
    await cluster.stop_bookie("b2")
    with pytest.raises(ReadFailed, match="b2"):
        await reader.read(9, 9)


async def test_a_closed_ledgers_moved_fragment_is_found(cluster: Cluster) -> None:
    """API-5: re-replication rewrites ensembles of closed ledgers under open readers."""
    await cluster.start_bookie("b4")
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await add_many(writer, 5)
    metadata = await writer.close()
    reader = await other.open(writer.ledger_id)
    twin = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
    while twin.metadata.fragments == metadata.fragments:
        twin = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
    (old,), (new,) = metadata.fragments[0].bookies, twin.metadata.fragments[0].bookies
    key = master_key(metadata.password)
    await copy_ledger(cluster.nodes[old], cluster.nodes[new], writer.ledger_id, 5, key)
    _, version = await client.records.read(writer.ledger_id)
    moved = replace(metadata, fragments=(Fragment(0, (new,)),))
    await cluster.stop_bookie(old)
    await client.records.write(moved, version)
    assert len(await reader.read(0, 4)) == 5


async def copy_ledger(
    source: BookieNode, target: BookieNode, ledger_id: int, count: int, key: bytes
) -> None:
    for entry_id in range(count):
        data = await source.storage.reads.read(ledger_id, entry_id)
        frame = add_prefix(key, len(data), Flag.RECOVERY_ADD) + data
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        run = AddBatch(ledger_id, entry_id, 1, key, True, frame, [0])
        target.storage.add([run], lambda _, done=done: done.set_result(None))  # type: ignore[misc]
        await done


async def test_a_speculative_read_beats_a_silent_bookie(cluster: Cluster) -> None:
    """No. 45: the sticky replica hangs; the next one answers long before the deadline."""
    client = await cluster.client(speculative_read_ms=50, read_timeout_s=10)
    writer = await client.create()
    await add_many(writer, 5)
    await writer.close()
    never = asyncio.get_running_loop().create_future()

    async def hang(*args: object) -> bytes:
        await never
        return b""

    loop = asyncio.get_running_loop()
    for name in ("b1", "b2"):
        cluster.nodes[name].storage.reads.read = hang  # type: ignore[method-assign, assignment]
    reader = await client.open(writer.ledger_id)
    began = loop.time()
    for entry_id in range(5):
        assert (await reader.read(entry_id, entry_id))[0].payload == payload_of(entry_id)
    assert loop.time() - began < 5
    never.cancel()


async def test_metadata_away_during_an_ensemble_change(cluster: Cluster) -> None:
    await cluster.start_bookie("b4")
    client = await cluster.client()
    writes = Writes(await client.create())
    await writes.more(20)
    write = client.records.write
    away = True

    async def failing(metadata, version):  # type: ignore[no-untyped-def]
        if away:
            raise MetadataUnavailable("away")
        return await write(metadata, version)

    client.records.write = failing  # type: ignore[method-assign]
    await cluster.stop_bookie(writes.writer.metadata.fragments[0].bookies[0])
    await until(lambda: writes.writer.failed_bookies)
    frozen = writes.acked
    await asyncio.sleep(0.2)
    assert writes.acked == frozen, "P14"
    away = False
    await writes.more(20)
    await writes.stop()
    assert len((await writes.writer.close()).fragments) == 2
    assert not writes.errors
    await all_there(cluster, writes)


async def test_the_writer_gives_up(tmp_path: Path) -> None:
    """A bookie came back, refused the add, and went again: each return began the writer's time
    again, so that it never gave up. Now only a confirmed add ends a stall (seed 1500079 of
    `beyond`)."""
    async with running_cluster(tmp_path) as cluster:
        client = await cluster.client(stall_timeout_s=0.4, retry_failed_bookie_ms=30.0)
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
        await writer.append(b"all are well")
        storage: Any = cluster.nodes["b3"].storage
        refused = 0

        def refuses(runs: Any, done: Any, lane: Any = 0, **_: Any) -> None:
            nonlocal refused
            refused += 1
            answer = [(run, Code.IO) for run in runs]
            asyncio.get_running_loop().call_later(0.15, done, answer)

        storage.add = refuses
        async with asyncio.timeout(20):
            with pytest.raises(OutcomeUnknown) as unknown:
                await writer.append(b"one is not")
        assert isinstance(unknown.value.cause, NotEnoughBookies)
        assert refused > 2, "it came back, and back"


class TurnsToASpare:
    """Turns to a spare, as a recovery does."""

    def __init__(self, bookies: Bookies) -> None:
        self.bookies = bookies
        self.told: list[str] = []

    def bookie_up(self, bookie_id: str) -> None: ...

    def bookie_writable(self, bookie_id: str) -> None: ...

    def bookie_down(self, bookie_id: str, error: BookieUnavailable) -> None:
        self.told.append(bookie_id)
        if bookie_id == "b1":
            self.bookies.get("b2").listen(self)


async def test_who_is_told_of_the_end_may_turn_to_another_bookie(tmp_path: Path) -> None:
    """A recovery that turned to a spare while `close` told the listeners changed the dict of
    bookies during the loop over it: a RuntimeError."""
    async with running_cluster(tmp_path) as cluster:
        client = await cluster.client()
        bookies = client.bookies
        listener = TurnsToASpare(bookies)
        bookies.get("b1").listen(listener)
        await until(lambda: bookies.get("b1").is_up)
        await cluster.drop_client(client)
        assert listener.told == ["b1"]
        assert not bookies.get("b2").is_up, "nobody would close that connection"


class Listener:
    def __init__(self) -> None:
        self.up: asyncio.Event = asyncio.Event()

    def bookie_up(self, bookie_id: str) -> None:
        self.up.set()

    def bookie_down(self, bookie_id: str, error: BookieUnavailable) -> None:
        pass

    def bookie_writable(self, bookie_id: str) -> None:
        pass


@pytest.mark.parametrize(("host", "port"), [("a" * 70 + ".example", 3181), ("127.0.0.1", 70_000)])
async def test_it_is_tried_until_its_record_is_right(tmp_path: Path, host: str, port: int) -> None:
    """A bookie registered under an invalid host name was never tried again, even when the record
    was corrected."""
    async with running_cluster(tmp_path, bookies=1) as cluster:
        registry = BookieRegistry(cluster.store)
        node = cluster.nodes["b1"]
        await registry.unregister("b1")
        await registry.register(BookieInfo("b1", host, port, False, {}))
        client = await cluster.client()
        bookie = client.bookies.get("b1")
        with pytest.raises(BookieUnavailable):
            await bookie.connected()
        listener = Listener()
        bookie.listen(listener)
        await asyncio.sleep(0.1)
        await registry.unregister("b1")
        await registry.register(BookieInfo("b1", node.host, node.port, False, {}))
        async with asyncio.timeout(10):
            await listener.up.wait()


# A process kept its state of every bookie that it had ever met, and counted it as a bookie of the
# cluster.


def _kept(client: LedgerClient) -> set[str]:
    return {bookie_id for bookie_id, _ in client.bookies._bookies}


async def _come_and_go(cluster: Cluster, client: LedgerClient, name: str) -> None:
    await cluster.start_bookie(name)
    await client.bookies.reload()
    writer = await client.create(ensemble_size=4, write_quorum=4, ack_quorum=3)
    await add_many(writer, 3)
    other = await cluster.client(seed=2)
    await other.recover(writer.ledger_id)
    await client.bookies.get(name, RequestClass.RECOVERY).connected()
    reader = await client.open(writer.ledger_id)
    assert len(await reader.read(0, 2)) == 3
    await reader.close()
    writer.abandon(LedgerClosed("not wanted any more"))
    await client.delete(writer.ledger_id)
    await cluster.drop_client(other)
    assert name in _kept(client)
    await cluster.stop_bookie(name)
    await BookieRegistry(cluster.store).delete_cookie(name, 0)


async def test_what_is_kept_is_as_many_as_there_are(cluster: Cluster) -> None:
    client = await cluster.client()
    for number in range(4, 8):
        await _come_and_go(cluster, client, f"b{number}")
    await gone_until(lambda: _kept(client) <= {"b1", "b2", "b3"}, "those that are there")
    with pytest.raises(TooFewBookies, match="4"):
        await client.create(ensemble_size=4, write_quorum=4, ack_quorum=3)
    assert set(client.bookies._known) == {"b1", "b2", "b3"}


async def test_one_that_comes_back_is_talked_to_again(cluster: Cluster) -> None:
    client = await cluster.client()
    old = client.bookies.get("b3")
    await old.connected()
    await cluster.stop_bookie("b3")
    await gone_until(lambda: "b3" not in _kept(client), "let go")
    with pytest.raises(BookieUnavailable):
        await old.connected()
    with pytest.raises(NotEnoughBookies):
        await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await cluster.start_bookie("b3")
    await gone_until(lambda: "b3" in client.bookies.available, "there again")
    assert await old.connected() is client.bookies.get("b3").connection
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
    await add_many(writer, 3)
    await writer.close()
