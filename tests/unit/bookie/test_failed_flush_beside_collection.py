"""A flush that fails halfway during garbage collection loses nothing. The mark may have moved by
then, so neither compaction nor the dropping of markers may count unflushed data as safe."""

from __future__ import annotations

import contextlib
import random

import pytest

from octavo.bookie.disk.files import DiskFull
from octavo.protocol.codes import BookieError, Code, NoSuchEntry, NoSuchLedger
from tests.support.storage_support import Bench, entry_bytes
from tests.unit.bookie.test_compaction import TINY, clear_all

LEDGERS = 4


class Life:
    """A storage, entries that it must have, and entries that it must never have again."""

    def __init__(self, bench: Bench, rng: random.Random) -> None:
        self.bench = bench
        self.rng = rng
        self.held: dict[tuple[int, int], bytes] = {}
        self.next_entry = [0] * LEDGERS
        self.gone: set[int] = set()
        self.forgotten: set[int] = set()
        """Deleted, perhaps without a marker by now."""

    async def add(self) -> None:
        ledger_id = self.rng.randrange(LEDGERS)
        if ledger_id in self.forgotten:
            return
        payload = b"%d:" % self.rng.randrange(10**6) + b"p" * self.rng.choice((1, 300))
        first = self.next_entry[ledger_id]
        code = await self.bench.add(ledger_id, first, payload)
        if ledger_id in self.gone:
            assert code is not Code.OK, "a deleted ledger takes no add ever again"
        elif code is Code.OK:
            self.held[ledger_id, first] = payload
            self.next_entry[ledger_id] += 1

    async def delete(self) -> None:
        ledger_id = self.rng.randrange(1, LEDGERS)
        if ledger_id not in self.gone and self.next_entry[ledger_id]:
            await self.bench.storage.delete_ledger(ledger_id)
            self.gone.add(ledger_id)

    async def flush(self) -> None:
        await self.bench.storage.checkpoint()

    async def flush_fails(self) -> None:
        """Fail a flush at a random step of the disk, or of the index, which comes last."""
        checkpointer = self.bench.storage._checkpointer
        names = ("_append_slice", "_flush_index", "_move_mark", "_state")
        with pytest.MonkeyPatch.context() as patch:
            step = self.rng.choice(names)

            def fail(*_: object) -> None:
                raise DiskFull("no room left")

            if step == "_state":
                patch.setattr(checkpointer._state_file, "append", fail)
            else:
                patch.setattr(checkpointer, step, fail)
            with contextlib.suppress(DiskFull):
                await checkpointer.run(
                    lambda: self.bench.storage._journals.durable_positions, lambda _: None
                )

    async def collect(self) -> None:
        with contextlib.suppress(BookieError, DiskFull):
            await clear_all(self.bench)
        with contextlib.suppress(DiskFull):
            await self.bench.storage._checkpointer.roll()

    async def drop_markers(self) -> None:
        logs = self.bench.storage.logs
        in_logs = {ledger_id: None for one in logs.log_ids for ledger_id in logs.ledgers_of(one)}
        if await self.bench.storage.compactor.drop_markers(2**60, in_logs):
            self.forgotten |= self.gone - in_logs.keys()

    async def crash(self) -> None:
        await self.bench.crash(self.rng)

    async def check(self) -> None:
        storage = self.bench.storage
        for (ledger_id, entry_id), payload in self.held.items():
            if ledger_id not in self.gone:
                found = await storage.reads.read(ledger_id, entry_id)
                assert found == entry_bytes(ledger_id, entry_id, payload)
            else:
                with pytest.raises((NoSuchLedger, NoSuchEntry)):
                    await storage.reads.read(ledger_id, entry_id)


@pytest.mark.parametrize("seed", range(60))
async def test_nothing_is_lost_and_nothing_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    async with Bench(TINY) as bench:
        life = Life(bench, rng)
        steps = (
            *(life.add,) * 6,
            *(life.flush, life.flush_fails, life.flush_fails),
            *(life.delete, life.collect, life.drop_markers, life.crash),
        )
        for _ in range(60):
            await rng.choice(steps)()
            await life.check()
        await life.crash()
        await life.check()
