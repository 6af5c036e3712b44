"""Ledgers at their edges: hung bookies, striping, deletion, duplicates, a busy recovery."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.adds import AddBatch
from octavo.ledger.actions import EnsembleChanged
from octavo.ledger.errors import ClientClosed, LedgerFenced, OutcomeUnknown, WriterBusy
from octavo.ledger.records import read_record
from octavo.ledger.write.writer import WriterEvent
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState, LedgerStore
from octavo.metadata.store import MetadataStore, MetadataUnavailable, RecordExists
from octavo.protocol.codes import Code, NoSuchLedger, OctavoError, TooManyRequests
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry
from octavo.protocol.frames import add_prefix
from tests.support.cluster import Cluster, add_many, payload_of, running_cluster
from tests.support.raw_bookie import TroubledDisk, open_metadata, until


async def test_16_a_hung_bookie_is_replaced_after_the_add_timeout(tmp_path: Path) -> None:
    """No. 16: it takes the adds, and acks none of them."""
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
    """No. 8 and 9, #4097: pipelined, one bookie goes, every acked entry is read back."""
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
    """No. 28, testWriteAfterDeleted."""
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


async def test_each_callback_comes_once_and_tells_the_truth(tmp_path: Path) -> None:
    """If a callback of `add` abandoned its writer, callbacks confirmed with it were called
    twice, first with a false "unknown"."""
    async with running_cluster(tmp_path) as cluster:
        writer = await (await cluster.client()).create()
        answers: list[tuple[int, bool]] = []

        def done(entry_id: int, error: OctavoError | None) -> None:
            answers.append((entry_id, error is None))
            if entry_id == 0:
                writer.abandon(ClientClosed("enough"))

        for number in range(5):
            writer.add(b"%d" % number, done)
        async with asyncio.timeout(10):
            while len(answers) < 5 or writer.error is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert [entry_id for entry_id, _ in answers] == [0, 1, 2, 3, 4]
        confirmed = [entry_id for entry_id, durable in answers if durable]
        assert confirmed == list(range(writer.last_add_confirmed + 1))


# A ledger's record was read first and watched then: a close in between went unnoticed, and the
# reader waited for ever for entries that bookies would never confirm. A failed second read of a
# changed record ended the same way.


@pytest.fixture
async def closed_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as cluster:
        yield cluster


async def test_closed_after_the_record_was_read_and_before_it_is_watched(
    closed_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await closed_cluster.client(explicit_lac_interval_ms=60_000.0)
    writer = await client.create()
    await writer.append(b"the only one")
    told = asyncio.Event()

    async def read_just_before_the_close(*asked: Any) -> Any:
        found = await read_record(*asked)
        watch = client.records.watch(writer.ledger_id, told.set)
        await writer.close()
        async with asyncio.timeout(15):
            await told.wait()
        watch.cancel()
        return found

    monkeypatch.setattr("octavo.ledger.client.read_record", read_just_before_the_close)
    reader = await client.open(writer.ledger_id)
    assert await reader.wait_for(-1, 15) == 0
    assert reader.is_closed
    await reader.close()


async def test_a_record_that_could_not_be_read_at_once_is_read_later(
    closed_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await closed_cluster.client(explicit_lac_interval_ms=60_000.0)
    writer = await client.create()
    await writer.append(b"the only one")
    reader = await client.open(writer.ledger_id)
    failures = 0

    async def fail_twice(*asked: Any) -> Any:
        nonlocal failures
        if failures < 2:
            failures += 1
            raise MetadataUnavailable("a moment")
        return await read_record(*asked)

    monkeypatch.setattr("octavo.ledger.read.reader.read_record", fail_twice)
    await writer.close()
    assert await reader.wait_for(-1, 15) == 0
    assert reader.is_closed
    assert failures == 2
    await reader.close()


# The reply to a create was lost, and another client recovered the ledger meanwhile: its creator
# was given a closed ledger to write (seed 4201 of `beyond`), or made a deleted one again (seed
# 30280).

WANTED = LedgerMetadata(-1, 2, 2, 1, (Fragment(0, ("b1", "b2")),))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with open_metadata(tmp_path) as found:
        yield found


class _ReplyLost:
    """A store that never answers the first create of a ledger's record, and then runs
    `meanwhile`."""

    def __init__(self, store: MetadataStore, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._meanwhile: Callable[[], Awaitable[None]] | None = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, path: str, value: bytes, **how: Any) -> str:
        made = await self._store.create(path, value, **how)
        if "/L" in path and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
            raise MetadataUnavailable("no answer")
        return made


async def _recover(others: LedgerStore, state: LedgerState) -> None:
    found, version = await others.read(0)
    await others.write(replace(found, state=state), version)


@pytest.mark.parametrize("what", ["in recovery", "closed", "deleted"])
async def test_the_creator_gets_another_ledger(store: MetadataStore, what: str) -> None:
    others = LedgerStore(store, rng=random.Random(2))

    async def meanwhile() -> None:
        if what == "deleted":
            await others.delete(0)
        else:
            closed = what == "closed"
            await _recover(others, LedgerState.CLOSED if closed else LedgerState.IN_RECOVERY)

    mine = LedgerStore(_ReplyLost(store, meanwhile), rng=random.Random(1))  # type: ignore[arg-type]
    found, version = await mine.create(WANTED)
    assert (found.ledger_id, found.state, version) == (1, LedgerState.OPEN, 0)


async def test_an_id_of_ones_choice_is_taken_then(store: MetadataStore) -> None:
    others = LedgerStore(store, rng=random.Random(2))
    mine = LedgerStore(
        _ReplyLost(store, lambda: _recover(others, LedgerState.CLOSED)),  # type: ignore[arg-type]
        rng=random.Random(1),
    )
    with pytest.raises(RecordExists):
        await mine.create(replace(WANTED, ledger_id=0))


async def test_its_own_open_ledger_is_given_to_it(store: MetadataStore) -> None:
    async def nothing() -> None: ...

    mine = LedgerStore(_ReplyLost(store, nothing), rng=random.Random(1))  # type: ignore[arg-type]
    found, _ = await mine.create(WANTED)
    assert (found.ledger_id, found.state) == (0, LedgerState.OPEN)


# An explicit LAC that was lost was not repeated: readers of an idle ledger waited for the next
# add (topic seed 177).


async def test_an_idle_writer_tells_its_last_entry_until_it_is_known(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        refused: list[str] = []

        def refuse_twice(name: str) -> None:
            storage = cluster.nodes[name].storage
            told = storage.control.set_explicit_lac

            async def set_explicit_lac(ledger_id: int, key: bytes, lac: int) -> None:
                if refused.count(name) < 2:
                    refused.append(name)
                    raise TooManyRequests("busy")
                await told(ledger_id, key, lac)

            storage.control.set_explicit_lac = set_explicit_lac  # type: ignore[method-assign]

        for name in cluster.nodes:
            refuse_twice(name)
        client = await cluster.client(explicit_lac_interval_ms=20.0)
        writer = await client.create()
        await writer.append(b"the only one")
        reader = await (await cluster.client(seed=2)).open(writer.ledger_id)
        async with asyncio.timeout(15):
            while reader.last_add_confirmed < 0:
                await reader.wait_for(-1, 0.2)
        assert len(refused) >= 2
        await reader.close()


async def test_bookies_that_were_away_are_told_when_they_come_back(tmp_path: Path) -> None:
    async def refuse(ledger_id: int, key: bytes, lac: int) -> None:
        raise TooManyRequests("busy")

    async with running_cluster(tmp_path) as cluster:
        for node in cluster.nodes.values():
            node.storage.control.set_explicit_lac = refuse  # type: ignore[method-assign]
        client = await cluster.client(explicit_lac_interval_ms=20.0, stall_timeout_s=30.0)
        writer = await client.create()
        await writer.append(b"the only one")
        ensemble_writer = writer._ensemble_writer
        for name in ("b1", "b2", "b3"):
            await cluster.stop_bookie(name)
        looks = 0
        look = ensemble_writer._announce_lac

        def counted(now: float) -> bool:
            nonlocal looks
            looks += not ensemble_writer.core.live
            return look(now)

        ensemble_writer._announce_lac = counted  # type: ignore[method-assign]
        async with asyncio.timeout(15):
            while looks < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        for name in ("b1", "b2", "b3"):
            await cluster.start_bookie(name)
        reader = await (await cluster.client(seed=2)).open(writer.ledger_id)
        async with asyncio.timeout(15):
            while reader.last_add_confirmed < 0:
                await reader.wait_for(-1, 0.2)
        await reader.close()


async def test_each_last_entry_is_told_until_all_know_it_and_then_no_more(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        client = await cluster.client(explicit_lac_interval_ms=20.0)
        writer = await client.create()
        for entry_id in range(2):
            await writer.append(b"the newest one")
            async with asyncio.timeout(15):
                while client._ticking:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            states = [node.storage._states.get(writer.ledger_id) for node in cluster.nodes.values()]
            lacs = [state.last_add_confirmed for state in states if state is not None]
            assert lacs == [entry_id] * 3
