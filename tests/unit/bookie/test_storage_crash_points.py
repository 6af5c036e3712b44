"""Power fails before every single disk call of a short life, each time with another subset of the
unsynced sectors kept: what was acked is there, what was promised holds, the bookie starts.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from octavo.bookie.disk.files import DiskError
from octavo.protocol.codes import Code, NoSuchEntry, NoSuchLedger
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import CONFIG, KEY, Bench, abandon, entry_bytes

SMALL = replace(CONFIG, journal_file_bytes_max=4096, journal_preallocate_bytes=2048)


class Life:
    """What happened before the power failed."""

    def __init__(self, crash_at: int, seed: int) -> None:
        self.acked: dict[tuple[int, int], bytes] = {}
        self.tried: dict[tuple[int, int], bytes] = {}
        self.fenced = False
        self.lac = -1
        self.deleted: bool | None = False
        self.calls = 0
        self.after: MemoryDisk | None = None
        self.bench = Bench(SMALL)
        rng = random.Random(seed)

        def hook(call: str, path: str) -> None:
            self.calls += 1
            if self.calls == crash_at:
                self.after = self.bench.disk.crash(rng)
                raise DiskError("the power fails")

        self.bench.disk.hook = hook

    async def add(self, ledger_id: int, first: int, *payloads: bytes, recovery: bool) -> None:
        keys = [(ledger_id, first + n) for n in range(len(payloads))]
        self.tried |= dict(zip(keys, payloads, strict=True))
        if await self.bench.add(ledger_id, first, *payloads, recovery=recovery) is Code.OK:
            self.acked |= dict(zip(keys, payloads, strict=True))

    async def live(self) -> None:
        storage = self.bench.storage
        await storage.start()
        for number in range(6):
            payloads = [b"%d:%d" % (number, n) * 60 for n in range(3)]
            await self.add(number % 2, number // 2 * 3, *payloads, recovery=False)
        await storage.checkpoint()
        await self.add(0, 9, b"nine", recovery=False)
        await storage.control.fence(0, KEY)
        self.fenced = True
        await storage.control.set_explicit_lac(1, KEY, 8)
        self.lac = 8
        await self.add(2, 0, b"to be deleted", recovery=False)
        await storage.checkpoint()
        self.deleted = None
        await storage.delete_ledger(2)
        self.deleted = True
        await self.add(0, 10, b"recovered", recovery=True)
        await storage.checkpoint()
        await self.add(1, 9, b"last", recovery=False)
        await storage.close()

    async def check(self, disk: MemoryDisk) -> None:
        bench = Bench(SMALL, disk)
        bench.indexes = self.bench.indexes
        async with bench:
            storage = bench.storage
            for (ledger_id, entry_id), payload in self.tried.items():
                if ledger_id == 2 and self.deleted is not False:
                    continue
                try:
                    found = await storage.reads.read(ledger_id, entry_id)
                except (NoSuchEntry, NoSuchLedger):
                    assert (ledger_id, entry_id) not in self.acked
                else:
                    assert found == entry_bytes(ledger_id, entry_id, payload)
            if self.fenced:
                assert await bench.add(0, 99) is Code.FENCED
            if self.lac >= 0:
                assert storage.control.last_add_confirmed(1) == self.lac
            if self.deleted:
                assert await bench.add(2, 5) is Code.FENCED
                with pytest.raises(NoSuchLedger):
                    await storage.reads.read(2, 0)
            await storage.checkpoint()
            assert await bench.add(1, 50, b"goes on") is Code.OK


async def live_until(crash_at: int, seed: int) -> Life:
    life = Life(crash_at, seed)
    try:
        await life.live()
    except Exception:
        assert life.after is not None, "only the failing power may end a life"
    if life.after is not None:
        life.bench.disk.dead = True
        await abandon(life.bench.storage)
    return life


@pytest.mark.parametrize("seed", [1])
async def test_power_fails_before_every_disk_call(seed: int) -> None:
    whole = await live_until(0, seed)
    assert whole.after is None
    assert whole.deleted
    assert whole.calls > 100
    for crash_at in range(1, whole.calls + 1):
        life = await live_until(crash_at, seed * 1000 + crash_at)
        assert life.after is not None
        try:
            async with asyncio.timeout(20):
                await life.check(life.after)
        except Exception as error:
            error.add_note(f"power failed before disk call {crash_at} of {whole.calls}")
            raise
