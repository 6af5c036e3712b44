"""The storage engine against a dict: any sequence of operations, with crashes that keep any part of
what was not synced.

What was acked must be there; what was in flight at a crash may be there or not, whole; nothing else
may be there. A fence or an explicit LAC that returned holds for ever.
"""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.protocol.codes import Code, NoSuchEntry, NoSuchLedger
from tests.support.storage_support import KEY, Bench, entry_bytes, make_run

LEDGERS = (0, 1, 2)
ENTRIES = 24


class Add(NamedTuple):
    ledger_id: int
    first: int
    count: int
    recovery: bool
    wait: bool


class Fence(NamedTuple):
    ledger_id: int
    wait: bool


class Lac(NamedTuple):
    ledger_id: int
    lac: int


class Delete(NamedTuple):
    ledger_id: int


class Checkpoint(NamedTuple):
    wait: bool


class Crash(NamedTuple):
    seed: int | None


class Restart(NamedTuple):
    pass


ledger_ids = st.sampled_from(LEDGERS)
operations = st.one_of(
    st.builds(
        Add,
        ledger_ids,
        st.integers(0, ENTRIES - 6),
        st.integers(1, 6),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(
        Add,
        ledger_ids,
        st.integers(0, ENTRIES - 6),
        st.integers(1, 6),
        st.just(True),
        st.booleans(),
    ),
    st.builds(Fence, ledger_ids, st.booleans()),
    st.builds(Lac, ledger_ids, st.integers(0, ENTRIES)),
    st.builds(Delete, st.just(2)),
    st.builds(Checkpoint, st.booleans()),
    st.builds(Crash, st.none() | st.integers(0, 1000)),
    st.builds(Restart),
)


class Model:
    """What may be read: for each entry the payloads that are allowed, None for absent."""

    def __init__(self) -> None:
        self.allowed: dict[tuple[int, int], set[bytes | None]] = {}
        self.fenced: dict[int, bool] = {}
        self.lac: dict[int, int] = {}
        self.deleted: set[int] = set()
        self.serial = 0

    def of(self, ledger_id: int, entry_id: int) -> set[bytes | None]:
        return self.allowed.get((ledger_id, entry_id), {None})


class Runner:
    def __init__(self) -> None:
        self.model = Model()
        self.bench = Bench()
        self.in_flight: list[asyncio.Future[object]] = []

    async def run(self, steps: list[object]) -> None:
        async with self.bench:
            for step in steps:
                await self.step(step)
            await self.settle()
            await self.check()
            await self.step(Crash(None))

    async def settle(self) -> None:
        await asyncio.gather(*self.in_flight, return_exceptions=True)
        self.in_flight.clear()

    async def step(self, step: object) -> None:
        match step:
            case Add():
                await self.add(step)
            case Fence(ledger_id, wait):
                await self.fence(ledger_id, wait)
            case Lac(ledger_id, lac):
                if ledger_id not in self.model.deleted:
                    await self.bench.storage.control.set_explicit_lac(ledger_id, KEY, lac)
                    self.model.lac[ledger_id] = max(lac, self.model.lac.get(ledger_id, -1))
            case Delete(ledger_id):
                if ledger_id in self.bench.storage.ledgers():
                    await self.bench.storage.delete_ledger(ledger_id)
                    self.model.deleted.add(ledger_id)
            case Checkpoint(wait):
                task = asyncio.ensure_future(self.bench.storage.checkpoint())
                if wait:
                    await task
                else:
                    self.in_flight.append(task)
                    await asyncio.sleep(0)
            case Crash(seed):
                rng = None if seed is None else random.Random(seed)
                await self.bench.crash(rng)
                self.in_flight.clear()
                await self.check()
            case Restart():
                await self.settle()
                await self.bench.restart()
                await self.check()

    async def add(self, step: Add) -> None:
        model, ledger_id = self.model, step.ledger_id
        model.serial += 1
        payloads = [b"%d-%d" % (model.serial, n) * 40 for n in range(step.count)]
        run = make_run(ledger_id, step.first, payloads, recovery=step.recovery, lac=-1)
        sent = self.bench.send(run)
        keys = [(ledger_id, step.first + n) for n in range(step.count)]
        if sent.done() and sent.result() != [Code.OK]:
            assert ledger_id in model.deleted or (not step.recovery and ledger_id in model.fenced)
            return
        assert ledger_id not in model.deleted
        assert step.recovery or not model.fenced.get(ledger_id)
        for key, payload in zip(keys, payloads, strict=True):
            model.allowed[key] = model.of(*key) | {payload}

        def acked(future: asyncio.Future[list[Code]]) -> None:
            assert future.result() == [Code.OK]
            for key, payload in zip(keys, payloads, strict=True):
                later = {p for p in model.of(*key) if p is not None and serial(p) > serial(payload)}
                model.allowed[key] = {payload} | later

        sent.add_done_callback(acked)
        if step.wait:
            await sent
        else:
            self.in_flight.append(sent)

    async def fence(self, ledger_id: int, wait: bool) -> None:
        if ledger_id in self.model.deleted:
            return
        task = asyncio.ensure_future(self.bench.storage.control.fence(ledger_id, KEY))
        self.model.fenced.setdefault(ledger_id, False)

        def fenced(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.model.fenced[ledger_id] = True

        task.add_done_callback(fenced)
        if wait:
            await task
            await asyncio.sleep(0)
        else:
            self.in_flight.append(task)
            await asyncio.sleep(0)

    async def check(self) -> None:
        storage = self.bench.storage
        for ledger_id in LEDGERS:
            if ledger_id in self.model.deleted:
                assert ledger_id not in storage.ledgers()
                continue
            found: dict[int, bytes] = {}
            for entry_id in range(ENTRIES):
                payload: bytes | None = None
                try:
                    entry = await storage.reads.read(ledger_id, entry_id)
                    payload = entry[36:]
                    assert entry == entry_bytes(ledger_id, entry_id, payload, -1)
                    found[entry_id] = entry
                except (NoSuchEntry, NoSuchLedger):
                    pass
                assert payload in self.model.of(ledger_id, entry_id)
                # What was read once after a crash is what is there.
                self.model.allowed[ledger_id, entry_id] = {payload}
            await self.check_sequences(ledger_id, found)
            if self.model.fenced.get(ledger_id):
                assert storage.control.is_fenced(ledger_id)
            if self.model.lac.get(ledger_id, -1) >= 0:
                assert storage.control.last_add_confirmed(ledger_id) == self.model.lac[ledger_id]

    async def check_sequences(self, ledger_id: int, found: dict[int, bytes]) -> None:
        storage = self.bench.storage
        if ledger_id not in storage.ledgers():
            assert not found
            return
        held = {
            n
            for first, last in await storage.reads.entries(ledger_id)
            for n in range(first, last + 1)
        }
        assert held == set(found)
        if found:
            first = min(found)
            wanted = []
            while first + len(wanted) in found:
                wanted.append(found[first + len(wanted)])
            assert await storage.reads.read_many(ledger_id, first, 1000, 10**9) == wanted
            assert storage.control.last_entry(ledger_id) == max(found)


def serial(payload: bytes) -> int:
    return int(payload.split(b"-")[0])


@settings(max_examples=100, deadline=None)
@given(st.lists(operations, max_size=30))
def test_any_history_agrees_with_a_dict(steps: list[object]) -> None:
    asyncio.run(Runner().run(steps))
