"""A production storage with its collector on a simulated disk, whose process may die between
any two steps: killed, or with its machine, whose disk keeps any part of the unsynced data."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from octavo.bookie.adds import AddBatch
from octavo.bookie.gc.collector import Collector
from octavo.bookie.gc.deletion_proof import DeletionProof, Proven
from octavo.bookie.storage import Storage
from octavo.protocol.codes import Code, NoSuchEntry, NoSuchLedger
from tests.engine_model.model import Ledger
from tests.sim.disk import SimDisk
from tests.sim.loop import SimLoop
from tests.sim.process import Process
from tests.sim.trace import Trace
from tests.support.engine_lab.life import TINY, entry_of, payload, tinier
from tests.support.storage_support import KEY, is_fenced, make_run

CONFIG = replace(TINY, gc_quarantine_ms=1, gc_minor_ratio=0.5, gc_major_ratio=0.95)
SLOTS, ENTRIES = 3, 12
SIZES = (40, 300, 1000)
_ANSWER_S_MAX = 600.0


class _Records(DeletionProof):
    """The metadata store: has every ledger whose record is not deleted."""

    def __init__(self, ledgers: dict[int, Ledger]) -> None:
        self._promised = ledgers

    async def prove(self, held: Sequence[int]) -> Proven:
        await asyncio.sleep(0.001)
        gone = [n for n in held if n in self._promised and self._promised[n].doomed]
        return Proven(gone, [n for n in held if n not in gone])


class Engine:
    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(seed, trace=Trace())
        self.disk = SimDisk()
        self.ledgers: dict[int, Ledger] = {}
        self.slots = list(range(SLOTS))
        """The present ledger of each slot; an id has one life."""
        self.under_way: list[asyncio.Future[Any]] = []
        self.deaths = 0
        self._collecting: asyncio.Future[Any] | None = None
        self._start()

    def ledger(self, slot: int) -> tuple[int, Ledger]:
        ledger_id = self.slots[slot]
        return ledger_id, self.ledgers.setdefault(ledger_id, Ledger())

    # Lives

    def _start(self) -> None:
        self.process = Process(self.loop, f"life {self.deaths}")
        self.handle = self.disk.attach(self.process)
        self.do(self._open(), wait=True)

    async def _open(self) -> None:
        self.storage = await Storage.open(
            CONFIG, disk=self.handle, index_opener=self.handle.open_index
        )
        records = _Records(self.ledgers)
        self.collector = Collector(CONFIG, self.storage, records, clock=lambda: 10**12)
        self._collecting = None

    def do(self, work: Coroutine[Any, Any, Any], *, wait: bool) -> asyncio.Future[Any]:
        """Run it in the process; without `wait`, other operations run at the same time."""
        task = self.process.spawn(work, "work")
        self._wait(task) if wait else self.under_way.append(task)
        return task

    def _wait(self, future: asyncio.Future[Any]) -> None:
        with tinier():
            self.loop.run_until(future, virtual_s_max=_ANSWER_S_MAX)
        future.result()

    def settle(self) -> None:
        for future in self.under_way:
            self._wait(future)
        self.under_way.clear()

    def die(self, *, power: bool, after_us: int, seed: int) -> None:
        with tinier():
            self.loop.run_until_complete(asyncio.sleep(after_us / 1e6))
        self.disk.kill_chance, self.disk.rng = float(not power), Random(seed)
        self.process.crash(power=power)
        self.under_way.clear()
        self.deaths += 1
        self._start()
        self.look(settled=True)

    def restart(self) -> None:
        self.settle()
        self.do(self.storage.close(), wait=True)
        self._start()
        self.look(settled=True)

    # Operations

    def add(self, slot: int, first: int, count: int, *, recovery: bool, wait: bool) -> None:
        ledger_id, ledger = self.ledger(slot)
        ids = range(first, first + count)
        payloads = [payload(ledger_id, n, _size(ledger_id, n)) for n in ids]
        run = make_run(ledger_id, first, payloads, recovery=recovery)
        must_refuse = ledger.fenced and not recovery
        for n in ids:
            ledger.try_add(n)
        answered = self.loop.create_future()

        def done(results: Sequence[tuple[AddBatch, Code]]) -> None:
            code = results[0][1]
            if code is Code.OK:
                assert not must_refuse, f"{run} was taken behind a fence"
                for n in ids:
                    ledger.ack(n)
            else:
                assert code is Code.FENCED, f"{run}: {code}"
                assert ledger.fence_tried, f"{run}: refused, and nobody fenced it"
                assert not recovery, f"{run}: a recovery add was refused"
            answered.set_result(code)

        self.process.run(self.storage.add, [run], done)
        self._wait(answered) if wait else self.under_way.append(answered)

    async def fence(self, slot: int) -> None:
        ledger_id, ledger = self.ledger(slot)
        ledger.fence_tried = True
        await self.storage.control.fence(ledger_id, KEY)
        ledger.fenced = True

    async def set_lac(self, slot: int, lac: int) -> None:
        ledger_id, ledger = self.ledger(slot)
        ledger.lac_max = max(ledger.lac_max, lac)
        await self.storage.control.set_explicit_lac(ledger_id, KEY, lac)
        ledger.lac = max(ledger.lac, lac)

    def delete(self, slot: int, *, by_collector: bool, wait: bool) -> None:
        """Delete its record; the collector will notice, or the test tells the storage."""
        self.settle()
        ledger_id, ledger = self.ledger(slot)
        ledger.doomed = True
        self.slots[slot] += SLOTS
        if not by_collector and ledger_id in self.storage.ledgers():
            self.do(self._delete(ledger_id, ledger), wait=wait)

    async def _delete(self, ledger_id: int, ledger: Ledger) -> None:
        await self.storage.delete_ledger(ledger_id)
        ledger.deleted = True

    def collect(self, *, compact: bool, wait: bool) -> None:
        if self._collecting is not None and not self._collecting.done():
            return
        if compact:
            self.process.run(lambda: self.collector.start_now(minor=True, major=True))
        self._collecting = self.do(self.collector.round(), wait=wait)

    # Questions

    def look(self, *, settled: bool) -> None:
        """Read everything. `settled`: what was found must be there from now on."""
        if settled:
            self.settle()
        self.do(self._look(settled), wait=True)

    async def _look(self, settled: bool) -> None:
        for ledger_id, ledger in self.ledgers.items():
            tried = sorted(ledger.tried)
            held = {n for n in tried if await self._read(ledger_id, n)}
            there = ledger_id in self.storage.ledgers()
            assert there or not held or not settled
            if ledger.deleted:
                assert not there, f"deleted ledger {ledger_id} is back"
                assert not held, f"entries of deleted ledger {ledger_id} are back"
            elif not there:
                assert ledger.doomed or not ledger.is_known, f"ledger {ledger_id} is forgotten"
                if settled:
                    ledger.deleted = ledger.doomed
                    if not ledger.doomed:
                        ledger.seen_absent()
            elif settled:
                fenced, lac = self._state(ledger_id)
                ledger.seen(held, fenced, lac)
                intervals = await self.storage.reads.entries(ledger_id)
                listed = {n for first, last in intervals for n in range(first, last + 1)}
                assert listed == held, f"lists {sorted(listed)}, holds {sorted(held)}"
                await self._read_in_a_row(ledger_id, held)
                assert self.storage.control.last_entry(ledger_id) == max(held, default=-1)
            elif not ledger.doomed:
                fenced, lac = self._state(ledger_id)
                assert fenced or not ledger.fenced
                assert ledger.lac <= lac <= ledger.lac_max

    async def _read_in_a_row(self, ledger_id: int, held: set[int]) -> None:
        first = last = min(held, default=0)
        while last in held:
            last += 1
        wanted = [entry_of(ledger_id, n, _size(ledger_id, n)) for n in range(first, last)]
        if wanted:
            found = await self.storage.reads.read_many(ledger_id, first, 1000, 10**9)
            assert found == wanted, f"{len(found)} entries in a row from {ledger_id}:{first}"

    def _state(self, ledger_id: int) -> tuple[bool, int]:
        return is_fenced(self.storage, ledger_id), self.storage.control.last_add_confirmed(
            ledger_id
        )

    async def _read(self, ledger_id: int, entry_id: int) -> bool:
        ledger = self.ledgers[ledger_id]
        must = entry_id in ledger.acked
        try:
            found = await self.storage.reads.read(ledger_id, entry_id)
        except (NoSuchEntry, NoSuchLedger):
            assert ledger.doomed or not must, f"acked entry {ledger_id}:{entry_id} is denied"
            return False
        wanted = entry_of(ledger_id, entry_id, _size(ledger_id, entry_id))
        assert found == wanted, f"other bytes of {ledger_id}:{entry_id}"
        return True


def _size(ledger_id: int, entry_id: int) -> int:
    return SIZES[(ledger_id * 7 + entry_id * 5) % len(SIZES)]
