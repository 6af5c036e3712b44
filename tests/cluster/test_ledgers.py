"""Ledgers over real bookies: write, read, close, follow, recover; deferred syncs, explicit ids,
connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.ledger.actions import EnsembleChanged, Forced
from octavo.ledger.bookies.bookies import Bookies, RequestClass
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import (
    BeyondLastConfirmed,
    BookieUnavailable,
    DuplicateEntryId,
    LedgerClosed,
    LedgerError,
    LedgerFenced,
    LedgerNotFound,
    OutcomeUnknown,
    PayloadTooLong,
    TooFewBookies,
    WriterBusy,
)
from octavo.ledger.options import LedgerOptions
from octavo.ledger.recover.events import RecoveryEvent
from octavo.ledger.write import ensemble_writer
from octavo.ledger.write.explicit_ids import ExplicitIds
from octavo.ledger.write.writer import WriterEvent
from octavo.metadata.bookies import BookieInfo, BookieRegistry
from octavo.metadata.ledgers import LedgerState
from octavo.metadata.store import MetadataStore
from octavo.pipeline.audit import _ledger as audit_ledger
from octavo.protocol.codes import BadRequest, Code, NoSuchEntry, OctavoError, Unauthorized
from octavo.protocol.entry import DigestType, digest_for, pack_entry
from octavo.protocol.extension import Op, decode_request, encode_answer
from octavo.protocol.frames import LENGTH, PREFIX, READ, read_answer
from octavo.protocol.frames import Op as V2Op
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.spark.cluster import Cluster as ClusterApache
from tests.support.apache_bookie import FakeApacheBookie, apache_bookie
from tests.support.cluster import Cluster, add_many, payload_of, running_cluster
from tests.support.raw_bookie import TroubledDisk, open_metadata, until


async def test_an_ack_quorum_of_one_is_warned_of_once_in_a_process(cluster: Cluster) -> None:
    client = await cluster.client()
    with capture_logs() as logs:
        for quorum in ((3, 2), (1, 1), (2, 1), (3, 1), (2, 1)):
            write, ack = quorum
            writer = await client.create(ensemble_size=3, write_quorum=write, ack_quorum=ack)
            await writer.close()
    told = [log for log in logs if log["event"] == "ack_quorum_of_one"]
    assert [log["log_level"] for log in told] == ["warning"]
    assert "ack_quorum is 1 of write_quorum 2" in told[0]["reason"]


async def test_written_closed_and_read_back(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    await add_many(writer, 3000)
    assert writer.last_add_confirmed == 2999
    metadata = await writer.close()
    assert metadata.state is LedgerState.CLOSED
    assert (metadata.last_entry, metadata.length) == (2999, 300_000)

    reader = await client.open(writer.ledger_id)
    entries = await reader.read(0, 2999)
    assert [e.entry_id for e in entries] == list(range(3000))
    assert all(e.payload == payload_of(e.entry_id) for e in entries)
    assert entries[-1].length == 300_000
    assert [e.entry_id async for e in reader.entries(7, 2990)] == list(range(7, 2991))
    with pytest.raises(BeyondLastConfirmed):
        await reader.read(0, 3000)


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_every_digest(cluster: Cluster, digest_type: DigestType) -> None:
    client = await cluster.client()
    writer = await client.create(digest_type=digest_type, password=b"pw")
    await add_many(writer, 20)
    await writer.close()
    reader = await client.open(writer.ledger_id, password=b"pw")
    assert [e.payload for e in await reader.read(0, 19)] == [payload_of(i) for i in range(20)]
    with pytest.raises(Unauthorized):
        await client.open(writer.ledger_id, password=b"other")


async def test_striped_over_five_bookies(cluster: Cluster) -> None:
    for name in ("b4", "b5"):
        await cluster.start_bookie(name)
    client = await cluster.client()
    writer = await client.create(ensemble_size=5, write_quorum=3, ack_quorum=2)
    await add_many(writer, 500)
    await writer.close()
    reader = await client.open(writer.ledger_id)
    entries = await reader.read(0, 499)
    assert [e.payload for e in entries] == [payload_of(i) for i in range(500)]


async def test_large_and_empty_payloads(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    payloads: list[Any] = [b"", b"a" * 1_000_000, bytearray(b"b" * 70_000), b"c", b"d" * 4_000_000]
    await asyncio.gather(*(writer.append(payload) for payload in payloads))
    with pytest.raises(PayloadTooLong):
        await writer.append(b"e" * (ENTRY_PAYLOAD_BYTES_MAX + 1))
    await writer.close()
    reader = await client.open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, 4)] == payloads


async def test_an_empty_ledger_closes_at_minus_one(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    assert (await writer.close()).last_entry == -1
    reader = await client.open(writer.ledger_id)
    assert reader.is_closed
    assert reader.last_add_confirmed == -1


async def test_close_waits_for_what_is_under_way_and_refuses_more(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    appends = [asyncio.ensure_future(writer.append(b"x")) for _ in range(10)]
    await asyncio.sleep(0)
    first, second = await asyncio.gather(writer.close(), writer.close())
    assert first == second
    assert first.last_entry == 9
    assert await asyncio.gather(*appends) == list(range(10))
    with pytest.raises(LedgerClosed):
        await writer.append(b"late")


async def test_fewer_bookies_than_an_ensemble_names_who_is_up(cluster: Cluster) -> None:
    client = await cluster.client()
    with pytest.raises(
        TooFewBookies, match=r"4 bookies, but this cluster has 3 \(b1, b2, b3\), 3 of"
    ):
        await client.create(ensemble_size=4)


async def test_delete_and_list(cluster: Cluster) -> None:
    client = await cluster.client()
    writers = [await client.create() for _ in range(3)]
    assert await client.list() == [w.ledger_id for w in writers]
    await client.delete(writers[1].ledger_id)
    assert await client.list() == [writers[0].ledger_id, writers[2].ledger_id]
    # An operator's list met a ledger that retention had just deleted, and failed as a whole.
    assert list(await client.standing([0, 1, 2])) == [0, 2]
    for use in (client.delete, client.open, client.recover, client.metadata):
        with pytest.raises(LedgerNotFound):
            await use(writers[1].ledger_id)  # type: ignore[operator]


async def test_a_reader_follows_an_open_ledger(cluster: Cluster) -> None:
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await client.create()
    await add_many(writer, 10)
    reader = await other.open(writer.ledger_id)
    assert not reader.is_closed
    assert await reader.wait_for(8, 10) == 9
    assert (await reader.read(9, 9))[0].payload == payload_of(9)
    waiting = asyncio.ensure_future(reader.wait_for(9, 10))
    await add_many(writer, 1)
    assert await waiting == 10
    assert await reader.refresh() == 10
    assert await reader.wait_for(10, 0.05) == 10
    waiting = asyncio.ensure_future(reader.wait_for(10, 10))
    await asyncio.sleep(0)
    await writer.close()
    assert await waiting == 10
    assert reader.is_closed
    await reader.close()


async def test_recovery_closes_an_abandoned_ledger(cluster: Cluster) -> None:
    """Reference 21 (testBasicFencing): the old writer gets no further ack."""
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await client.create()
    await add_many(writer, 100)
    seen: list[RecoveryEvent] = []
    metadata = await other.recover(writer.ledger_id, observe=seen.append)
    assert metadata.state is LedgerState.CLOSED
    assert (metadata.last_entry, metadata.length) == (99, 10_000)
    assert sorted({event.step for event in seen}) == [1, 2, 3, 4, 6] or sorted(
        {event.step for event in seen}
    ) == [1, 2, 3, 4, 5, 6]
    with pytest.raises((LedgerFenced, OutcomeUnknown)):
        await writer.append(b"late")
    with pytest.raises(LedgerFenced):
        await writer.append(b"later")
    with pytest.raises(LedgerFenced):
        await writer.close()
    reader = await client.open(writer.ledger_id)
    assert len(await reader.read(0, 99)) == 100


async def test_open_without_recovery_does_not_fence(cluster: Cluster) -> None:
    """Reference 23 (testNoRecoveryOpen)."""
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await client.create()
    await add_many(writer, 10)
    reader = await other.open(writer.ledger_id)
    assert await reader.wait_for(8, 10) == 9
    assert len(await reader.read(0, 9)) == 10
    await add_many(writer, 10)
    assert (await writer.close()).last_entry == 19


async def test_recovering_with_a_wrong_password_changes_nothing(cluster: Cluster) -> None:
    """Reference 26 and 41 (testFencingBadPassword, testLedgerRecoveryWithWrongPassword)."""
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await client.create(password=b"right")
    await add_many(writer, 5)
    with pytest.raises(Unauthorized):
        await other.recover(writer.ledger_id, password=b"wrong")
    await add_many(writer, 5)
    assert (await writer.close()).last_entry == 9


async def test_many_open_with_recovery_at_once_and_agree(cluster: Cluster) -> None:
    """Reference 22 (testManyOpenParallel)."""
    writer = await (await cluster.client()).create()
    await add_many(writer, 50)
    patient = {"read_timeout_s": 60.0, "add_timeout_s": 60.0, "stall_timeout_s": 60.0}
    clients = [await cluster.client(seed, **patient) for seed in range(2, 8)]
    closed = await asyncio.gather(*(c.recover(writer.ledger_id) for c in clients))
    assert {(m.last_entry, m.length, m.state) for m in closed} == {(49, 5000, LedgerState.CLOSED)}


@pytest.mark.parametrize("passwords", [(b"right", b"wrong"), (b"wrong", b"right")])
async def test_a_recovery_is_shared_by_callers_of_one_password(
    cluster: Cluster, passwords: tuple[bytes, bytes]
) -> None:
    """A wrong password was accepted while a recovery with the right one ran, and the other way
    round."""
    client = await cluster.client(1)
    writer = await client.create(password=b"right")
    await add_many(writer, 3)
    other = await cluster.client(2)
    tasks = [
        asyncio.ensure_future(other.recover(writer.ledger_id, password=password))
        for password in (*passwords, b"right")
    ]
    found = await asyncio.gather(*tasks, return_exceptions=True)
    for password, outcome in zip((*passwords, b"right"), found, strict=True):
        assert isinstance(outcome, Unauthorized) == (password == b"wrong"), (password, outcome)
    assert other.describe()["recoveries"] == 0


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


async def test_in_any_order_answered_in_the_order_of_ids(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    adds, answered = ExplicitIds(writer), list[int]()
    ids = list(range(300))
    random.Random(5).shuffle(ids)

    def done(entry_id: int, error: OctavoError | None) -> None:
        assert error is None
        answered.append(entry_id)

    for entry_id in ids:
        adds.add(entry_id, payload_of(entry_id), done)
    await until(lambda: len(answered) == 300)
    assert answered == list(range(300))
    assert adds.early_bytes == 0
    await adds.append(300, payload_of(300))
    await adds.close()
    reader = await client.open(writer.ledger_id)
    found = await reader.read(0, 300)
    assert [entry.payload for entry in found] == [payload_of(n) for n in range(301)]


async def test_a_gap_stalls_what_is_behind_it_and_a_close_drops_that(cluster: Cluster) -> None:
    adds = ExplicitIds(await (await cluster.client()).create())
    await adds.append(0, b"first")
    late = asyncio.create_task(adds.append(2, b"third"))
    await asyncio.sleep(0)
    with pytest.raises(DuplicateEntryId, match="entry 2 was added before"):
        adds.add(2, b"once more", lambda *_: None)
    with pytest.raises(DuplicateEntryId):
        adds.add(0, b"once more", lambda *_: None)
    with pytest.raises(LedgerError, match="ids begin with 0"):
        adds.add(-1, b"", lambda *_: None)
    metadata = await adds.close()
    assert metadata.last_entry == 0
    with pytest.raises(LedgerClosed):
        await late
    with pytest.raises(LedgerClosed):
        adds.add(1, b"too late", lambda *_: None)


async def test_what_waits_is_bounded(cluster: Cluster) -> None:
    adds = ExplicitIds(await (await cluster.client()).create(), early_bytes_max=10_000)
    answered: list[int] = []
    for entry_id in (3, 2):
        adds.add(entry_id, bytes(4_000), lambda entry_id, _: answered.append(entry_id))
    with pytest.raises(WriterBusy, match="wait for entry 0"):
        adds.add(1, bytes(4_000), lambda *_: None)
    await adds.append(0, b"")
    await adds.append(1, b"")
    await until(lambda: answered == [2, 3])


async def test_unconfirmed_entries_are_read_as_far_as_they_are_there(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create(deferred_sync=True)
    await add_many(writer, 10)
    reader = await client.open(writer.ledger_id)
    assert reader.last_add_confirmed == -1
    found = await reader.read_unconfirmed(3, 20)
    assert [entry.payload for entry in found] == [payload_of(n) for n in range(3, 10)]
    assert await reader.read_unconfirmed(10, 20) == []
    with pytest.raises(LedgerError, match="no range"):
        await reader.read_unconfirmed(5, 3)
    await writer.close()
    other = await client.open(writer.ledger_id)
    assert len(await other.read_unconfirmed(0, 99)) == 10


# Only the writer could read the last entries of an idle ledger on Apache's bookies: the explicit
# LAC that confirms them was sent to Octavo's bookies only.

DEADLINE_S = 20


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with open_metadata(tmp_path) as store:
        yield store


@pytest.fixture
async def bookies(store: MetadataStore) -> AsyncIterator[list[FakeApacheBookie]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(apache_bookie(store, f"a{n}")) for n in (1, 2, 3)]


@pytest.fixture
async def client(
    store: MetadataStore, bookies: list[FakeApacheBookie]
) -> AsyncIterator[LedgerClient]:
    client = LedgerClient(store, rng=random.Random(1), options=LedgerOptions())
    await client.start()
    yield client
    await client.close()
    assert not any(bookie.hung_up for bookie in bookies), "what one of Apache's does not understand"


@pytest.mark.parametrize("digest_type", DigestType)
async def test_the_end_of_an_idle_ledger_can_be_read(
    client: LedgerClient, digest_type: DigestType
) -> None:
    writer = await client.create(digest_type=digest_type, password=b"secret")
    await add_many(writer, 20)
    reader = await client.open(writer.ledger_id)
    assert await reader.wait_for(18, DEADLINE_S) == 19
    assert [entry.entry_id for entry in await reader.read(0, 19)] == list(range(20))


async def test_it_is_told_again_for_a_bookie_forgets_it(
    client: LedgerClient, bookies: list[FakeApacheBookie], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's bookies keep it in memory, for ten minutes."""
    monkeypatch.setattr(ensemble_writer, "_TELL_AGAIN_S", 0.2)
    writer = await client.create()
    await add_many(writer, 20)
    for _ in range(2):
        await until(lambda: all(bookie.lacs for bookie in bookies))
        for bookie in bookies:
            bookie.lacs.clear()
    await until(lambda: all(bookie.lacs for bookie in bookies))


async def test_a_lac_that_is_not_signed_is_not_believed(
    client: LedgerClient, bookies: list[FakeApacheBookie], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ensemble_writer, "_TELL_AGAIN_S", 3600)
    writer = await client.create()
    await add_many(writer, 20)
    await add_many(writer, 1)
    await until(lambda: all(bookie.lacs for bookie in bookies))
    signed = bookies[0].lacs[writer.ledger_id]
    for bookie in bookies:
        bookie.lacs[writer.ledger_id] = signed[:-1] + bytes((signed[-1] ^ 1,))
    reader = await client.open(writer.ledger_id)
    assert reader.last_add_confirmed == -1, "all that they say is doubtful"
    for bookie in bookies:
        bookie.lacs[writer.ledger_id] = signed
    assert await reader.refresh() == 20


async def test_what_is_octavos_own_is_not_asked(client: LedgerClient) -> None:
    """The bookie would hang up, and all requests on the connection would fail."""
    with pytest.raises(BadRequest, match="is an Apache bookie, and LIST_ENTRIES is"):
        await client.request("a1", Op.LIST_ENTRIES, {"ledger": 1})


async def test_audit_reads_what_it_cannot_ask(
    store: MetadataStore, client: LedgerClient, bookies: list[FakeApacheBookie]
) -> None:
    writer = await client.create()
    await add_many(writer, 20)
    metadata = await writer.close()
    cluster = ClusterApache(store)
    await cluster.ledgers.start()
    try:
        findings, copies = await audit_ledger(cluster, metadata, 19)
        assert (findings.counts, copies) == ({}, 60)
        del bookies[1].entries[writer.ledger_id][7]
        findings, copies = await audit_ledger(cluster, metadata, 19)
        assert (findings.counts, copies) == ({"copy-missing": 1}, 59)
        assert findings.kept[0].what == "bookie a2 lacks entries 7"
    finally:
        await cluster.ledgers.close()


Answering = Callable[[bytes, asyncio.StreamWriter], None]
ENTRY = pack_entry(digest_for(DigestType.CRC32C, b""), 1, 0, -1, 3, b"abc")


@contextlib.asynccontextmanager
async def fake_bookie(
    store: MetadataStore, name: str, answer: Answering, *, ours: bool = True, says: str = ""
) -> AsyncIterator[None]:
    """A registered server that hands each frame to `answer`; it answers NODE_INFO itself."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(LENGTH.unpack(head)[0])
                if frame[4] == 0x4F and frame[5] == Op.NODE_INFO:
                    request = decode_request(memoryview(frame))
                    body = {"bookie_id": says or name}
                    writer.write(encode_answer(Op.NODE_INFO, request.request_id, Code.OK, body))
                else:
                    answer(frame, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    properties = {"incarnation": name} if ours else {}
    registry = BookieRegistry(store)
    await registry.register(BookieInfo(name, "127.0.0.1", port, properties=properties))
    try:
        yield
    finally:
        await registry.unregister(name)
        server.close()


@contextlib.asynccontextmanager
async def pool_of(store: MetadataStore, **options: float) -> AsyncIterator[Bookies]:
    pool = Bookies(BookieRegistry(store), LedgerOptions(**options), random.Random(1))  # type: ignore[arg-type]
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()


async def read(pool: Bookies, name: str, entry_id: int) -> bytes:
    connection = await pool.get(name).connected()
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def done(error: OctavoError | None, data: bytes) -> None:
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(data)

    connection.read(1, entry_id, done)
    return await answer


def is_read(frame: bytes) -> bool:
    return PREFIX.unpack_from(frame)[1] >> 16 & 0xFF == V2Op.READ and frame[4] == 2


def ids(frame: bytes) -> tuple[int, int]:
    _, _, ledger_id, entry_id = READ.unpack_from(frame)
    return ledger_id, entry_id


async def test_answers_are_matched_by_entry_whatever_their_order(store: MetadataStore) -> None:
    held: list[bytes] = []

    def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
        held.append(frame)
        if len(held) == 3:
            for one in reversed(held):
                code = 1 if ids(one)[1] == 2 else 0
                writer.write(read_answer(2 if code else 0, *ids(one), b"" if code else ENTRY))

    async with fake_bookie(store, "f1", answer), pool_of(store) as pool:
        found = await asyncio.gather(
            *(read(pool, "f1", i) for i in (0, 1, 2)), return_exceptions=True
        )
        assert found[:2] == [ENTRY, ENTRY]
        assert isinstance(found[2], NoSuchEntry)


async def test_a_silent_bookie_times_out_and_is_given_up(store: MetadataStore) -> None:
    def silent(frame: bytes, writer: asyncio.StreamWriter) -> None:
        pass

    async with fake_bookie(store, "f1", silent), pool_of(store, read_timeout_s=0.2) as pool:
        found = await asyncio.gather(
            *(read(pool, "f1", i) for i in range(3)), return_exceptions=True
        )
        assert all(isinstance(error, BookieUnavailable) for error in found)
        assert not pool.get("f1").is_up


async def test_a_late_answer_is_not_taken_for_another(store: MetadataStore) -> None:
    frames: list[tuple[bytes, asyncio.StreamWriter]] = []

    def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
        if ids(frame)[1] == 9:
            writer.write(read_answer(0, 1, 9, ENTRY))
            return
        frames.append((frame, writer))
        if len(frames) == 2:
            writer.write(read_answer(2, 1, 0) + read_answer(0, 1, 0, ENTRY))

    async with fake_bookie(store, "f1", answer), pool_of(store, read_timeout_s=0.3) as pool:
        first = asyncio.ensure_future(read(pool, "f1", 0))
        while not first.done():
            await read(pool, "f1", 9)
            await asyncio.sleep(0.02)
        assert isinstance(first.exception(), BookieUnavailable)
        assert pool.get("f1").is_up
        assert await read(pool, "f1", 0) == ENTRY


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff rubbish",
        b"\x00\x00\x00\x08\x02\x63\x00\x00abcd",
        read_answer(0, 77, 77, ENTRY),
        b"\x00\x00\x00\x01x",
    ],
)
async def test_broken_bytes_end_the_connection_and_nothing_else(
    store: MetadataStore, garbage: bytes
) -> None:
    calls = 0

    def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        writer.write(garbage if calls == 1 else read_answer(0, *ids(frame), ENTRY))

    async with fake_bookie(store, "f1", answer), pool_of(store) as pool:
        with pytest.raises(BookieUnavailable):
            await read(pool, "f1", 0)
        assert await read(pool, "f1", 0) == ENTRY, "a new connection serves again"


async def test_another_bookie_at_the_address_is_refused(store: MetadataStore) -> None:
    def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("nothing is asked of the wrong bookie")

    async with fake_bookie(store, "f1", answer, says="f2"), pool_of(store) as pool:
        with pytest.raises(BookieUnavailable, match="bookie f2 answers at its address"):
            await read(pool, "f1", 0)


async def test_an_unknown_bookie(store: MetadataStore) -> None:
    async with pool_of(store, connect_timeout_s=1) as pool:
        with pytest.raises(BookieUnavailable, match="not registered"):
            await read(pool, "nobody", 0)
        with pytest.raises(BookieUnavailable):
            await read(pool, "127.0.0.1:1", 0)


async def test_request_classes_do_not_share_a_connection(store: MetadataStore) -> None:
    def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(read_answer(0, *ids(frame), ENTRY))

    async with fake_bookie(store, "f1", answer), pool_of(store) as pool:
        normal = await pool.get("f1", RequestClass.NORMAL).connected()
        recovery = await pool.get("f1", RequestClass.RECOVERY).connected()
        assert normal is not recovery


async def test_a_foreign_bookie_gets_bookkeepers_frames_only(store: MetadataStore) -> None:
    async with apache_bookie(store, "f1") as bookie:
        client = LedgerClient(store, rng=random.Random(1), options=LedgerOptions())
        await client.start()
        writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await add_many(writer, 50)
        await add_many(writer, 1)
        reader = await client.open(writer.ledger_id)
        assert await reader.wait_for(49, 20) == 50, "the LAC that came alone"
        assert (await reader.read(49, 50))[1].entry_id == 50
        await writer.close()
        await client.close()
        assert not bookie.hung_up


async def test_pending_requests_fail_when_the_client_closes(store: MetadataStore) -> None:
    asked = asyncio.Event()

    def silent(frame: bytes, writer: asyncio.StreamWriter) -> None:
        asked.set()

    async with fake_bookie(store, "f1", silent), pool_of(store) as pool:
        pending: Awaitable[bytes] = asyncio.ensure_future(read(pool, "f1", 0))
        await asked.wait()
        await pool.close()
        with pytest.raises(BookieUnavailable, match="closing"):
            await pending
