"""Short lives of the production storage, with its promises before and after each call that
changes the disk: the crash points."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from octavo.bookie.config import BookieConfig
from octavo.bookie.journal.journal import journal_of
from octavo.protocol.codes import Code
from tests.sim.disk import SimDisk
from tests.sim.disk_faults import CHANGES, SYNCS, DiskFaults, Rule
from tests.sim.inode import Inode
from tests.sim.loop import SimLoop
from tests.support.engine_lab.images import Moment, freeze
from tests.support.engine_lab.life import (
    BIG_BYTES,
    PAYLOAD_BYTES,
    TINY,
    EngineLife,
    Fact,
    silence,
    tinier,
)

TWO_JOURNALS = replace(TINY, journal_directories=("/j", "/k"))
OTHER = next(n for n in range(50, 99) if journal_of(n, 2) != journal_of(1, 2))


class CrashPoint(NamedTuple):
    where: str
    moment: Moment
    facts: tuple[Fact, ...]
    sure: bool = True


class Recorder(DiskFaults):
    def __init__(self, facts: Callable[[], tuple[Fact, ...]], found: list[CrashPoint]) -> None:
        super().__init__()
        self._facts = facts
        self._found = found
        self._seen = CHANGES | SYNCS

    def record(self) -> None:
        self.rules = [Rule("record", None)]  # type: ignore[arg-type]

    def before(self, disk: SimDisk, call: str, path: str) -> None:
        if call in self._seen:
            self.keep(disk, f"before {call} {path}")

    def after(self, disk: SimDisk, call: str, path: str) -> None:
        self.keep(disk, f"after {call} {path}")

    def keep(self, disk: SimDisk, where: str) -> None:
        self._found.append(CrashPoint(where, freeze(disk), self._facts()))

    def writing(
        self, disk: SimDisk, path: str, inode: Inode, offset: int, data: bytes
    ) -> list[tuple[int, bytes]]:
        return [(offset, data)]

    def syncing(self, disk: SimDisk, path: str, inode: Inode | None) -> None:
        pass


class Life(EngineLife):
    def __init__(self, loop: SimLoop, config: BookieConfig = TINY) -> None:
        super().__init__(SimDisk(), config)
        self.loop = loop
        self.points: list[CrashPoint] = []
        self.recorder = Recorder(lambda: self.facts, self.points)
        self.disk.faults = self.recorder
        self.ledger_id = 1
        self.next_entry: dict[int, int] = {}

    # A life's steps

    async def add(self, size: int = PAYLOAD_BYTES, *, ledger_id: int = 0) -> None:
        ledger_id = ledger_id or self.ledger_id
        await self._add(ledger_id, self._next_entry(ledger_id), size)

    def _next_entry(self, ledger_id: int) -> int:
        entry_id = self.next_entry.get(ledger_id, 0)
        self.next_entry[ledger_id] = entry_id + 1
        return entry_id

    async def _add(self, ledger_id: int, entry_id: int, size: int = PAYLOAD_BYTES) -> None:
        code = await self.send(ledger_id, [entry_id], size)
        assert code is Code.OK, f"{ledger_id}:{entry_id} was answered {code}"

    async def again(self) -> None:
        """Repeat an add that has no answer yet: at the same time, and again afterwards."""
        ledger_id, entry_id = self.ledger_id, self._next_entry(self.ledger_id)
        await asyncio.gather(*(self._add(ledger_id, entry_id) for _ in range(2)))
        await self._add(ledger_id, entry_id)

    async def roll(self) -> None:
        await self.add(BIG_BYTES)

    async def other(self) -> None:
        await self.add(ledger_id=OTHER)

    async def fence_it(self) -> None:
        await self.fence(self.ledger_id)

    async def confirm(self) -> None:
        await self.lac(self.ledger_id, self.next_entry.get(self.ledger_id, 0) - 1)

    async def checkpoint(self) -> None:
        await self.storage.checkpoint()

    async def delete_it(self) -> None:
        ledger_id = self.ledger_id
        if ledger_id in self.storage.ledgers():
            self.ledger_id += 1
            await self.delete(ledger_id)

    async def gc(self) -> None:
        await self.collect(compact=False)

    async def compact(self) -> None:
        """Rewrite each log that holds dead entries, then do as `gc` does."""
        await self.collect(compact=True)

    async def crowd(self) -> None:
        compaction = self.loop.create_task(self.compact())
        await asyncio.sleep(0)
        await asyncio.gather(self.add(), self.delete_it(), self.checkpoint(), compaction)

    async def restart(self) -> None:
        await self.storage.close()
        await self.start()

    async def power(self) -> None:
        await silence(self.storage)
        self.disk.crash()
        await self.start()

    async def busy(self) -> None:
        checkpoint = self.loop.create_task(self.storage.checkpoint())
        await asyncio.sleep(0)
        await asyncio.gather(self.add(), self.confirm(), checkpoint)


OPERATIONS: dict[str, Callable[[Life], Awaitable[None]]] = {
    "add": Life.add,
    "again": Life.again,
    "roll": Life.roll,
    "fence": Life.fence_it,
    "lac": Life.confirm,
    "checkpoint": Life.checkpoint,
    "delete": Life.delete_it,
    "gc": Life.gc,
    "compact": Life.compact,
    "restart": Life.restart,
    "power": Life.power,
    "busy": Life.busy,
    "crowd": Life.crowd,
}


WITH_TWO_JOURNALS = {**OPERATIONS, "other": Life.other}


def points_of(
    sequence: Sequence[str], loop: SimLoop, config: BookieConfig = TINY
) -> list[CrashPoint]:
    """Live `sequence`. Return the crash points of its last operation, or of the first start."""
    life = Life(loop, config)

    async def live() -> None:
        if not sequence:
            life.recorder.record()
        await life.start()
        for number, name in enumerate(sequence):
            if number == len(sequence) - 1:
                life.recorder.record()
            await WITH_TWO_JOURNALS[name](life)
        life.recorder.keep(life.disk, "at the end")
        await silence(life.storage)

    with tinier():
        loop.run_until_complete(live())
    return life.points
