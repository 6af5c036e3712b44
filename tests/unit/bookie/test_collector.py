"""Garbage collection on real storage: what metadata deleted goes from the disk, nothing else."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie.collector import Collector
from bookie.config import BookieConfig
from bookie.disk import RealDisk
from bookie.proofs import Proofs
from bookie.storage import Storage
from metadata.embedded import EmbeddedStore
from metadata.ledger_record import Fragment, LedgerMetadata
from metadata.ledgers import LedgerStore
from metadata.store import MetadataUnavailable
from protocol.codes import Code, NoSuchLedger
from tests.storage_support import entry_bytes, make_run

PAYLOAD = b"x" * 4000
ENTRIES = 60
WEEK_MS = 7 * 24 * 3600 * 1000


class World:
    """A storage on a real disk, a metadata store, and a collector whose clock is ours."""

    def __init__(self, folder: Path, store: EmbeddedStore, **changed: Any) -> None:
        self.folder = folder
        self.store = store
        self.ledgers = LedgerStore(store, rng=random.Random(1))
        self.config = replace(
            BookieConfig(
                journal_directories=(f"{folder}/j",),
                ledger_directories=(f"{folder}/l",),
                journal_preallocate_bytes=64 * 1024,
                entry_log_bytes_max=512 * 1024,
                flush_interval_ms=3_600_000,
                gc_quarantine_ms=1,
            ),
            **changed,
        )
        self.now_ms = 10 * WEEK_MS

    async def start(self) -> None:
        self.storage = Storage(self.config, disk=RealDisk(), clock=lambda: self.now_ms)
        await self.storage.start()
        self.collector = Collector(
            self.config,
            self.storage,
            Proofs(self.store, self.ledgers, await self.ledgers.initialize()),
            clock=lambda: self.now_ms,
        )

    async def restart(self) -> None:
        await self.storage.close()
        await self.start()

    async def create(self, ledger_id: int) -> None:
        fragments = (Fragment(0, ("b",)),)
        await self.ledgers.create(LedgerMetadata(ledger_id, 1, 1, 1, fragments))

    async def add(self, ledger_id: int, first: int = 0, count: int = ENTRIES) -> None:
        codes: list[Code] = []
        run = make_run(ledger_id, first, [PAYLOAD] * count)
        self.storage.add([run], lambda results: codes.extend(code for _, code in results))
        await self.storage._journals.drain()
        assert codes == [Code.OK]

    async def fill(self, ledger_ids: range) -> None:
        """Make these ledgers, a flush for each."""
        for ledger_id in ledger_ids:
            await self.create(ledger_id)
            await self.add(ledger_id)
            await self.storage.checkpoint()

    async def rounds(self, count: int = 2, **forced: bool) -> None:
        for _ in range(count):
            self.collector.start_now(**forced)
            await self.collector.round()

    @property
    def logs(self) -> list[int]:
        return [int(path.stem, 16) for path in sorted((self.folder / "l").glob("*.log"))]

    async def check(self, ledger_id: int, count: int = ENTRIES) -> None:
        found = await self.storage.read_many(ledger_id, 0, count, 2**30)
        assert found == [entry_bytes(ledger_id, n, PAYLOAD) for n in range(count)]


Opener = Callable[..., Any]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = EmbeddedStore(str(tmp_path / "metadata.db"))
    await store.start()
    world = World(tmp_path, store)
    await world.start()
    yield world
    await world.storage.close()
    await store.close()


async def test_what_metadata_deleted_goes_from_the_disk(world: World) -> None:
    await world.fill(range(10))
    before = world.logs
    assert len(before) > 4
    for ledger_id in range(10):
        if ledger_id != 7:
            await world.ledgers.delete(ledger_id)
    await world.rounds(1)
    assert world.logs == before, "seen gone once is in quarantine"
    await world.check(0)
    await world.rounds(1)
    assert world.storage.ledgers() == [7]
    with pytest.raises(NoSuchLedger):
        await world.storage.read(0, 0)
    assert len(world.logs) < len(before)
    await world.rounds(3, major=True)
    assert len(world.logs) <= 2
    await world.check(7)
    await world.restart()
    await world.check(7)
    assert world.storage.ledgers() == [7]
    assert world.collector is not None


async def test_without_metadata_nothing_is_deleted(world: World) -> None:
    await world.fill(range(4))
    for ledger_id in range(4):
        await world.ledgers.delete(ledger_id)
    await world.rounds(1)
    await world.store.close()
    with pytest.raises(MetadataUnavailable):
        await world.ledgers.list()
    before = world.logs
    await world.rounds(3)
    assert world.storage.ledgers() == [0, 1, 2, 3]
    assert world.logs == before
    assert world.collector.status.last.metadata_error


async def test_another_cluster_proves_nothing(world: World) -> None:
    await world.fill(range(2))
    for ledger_id in range(2):
        await world.ledgers.delete(ledger_id)
    world.collector._proofs = Proofs(world.store, world.ledgers, "another")
    await world.rounds(3)
    assert world.storage.ledgers() == [0, 1]
    assert "belongs to cluster" in world.collector.status.last.metadata_error
