"""Short lives of the production storage, and what it promised by each moment of them.

A life is a sequence of operations. A crash point stands before and after every call that changes
the disk; `Recorder` keeps the disk of each, with all that had been tried and answered by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import octavo.bookie.check.scrub
import octavo.bookie.gc.compaction
import octavo.bookie.ledgers.state
import octavo.bookie.storage
import octavo.bookie.write.checkpoint
from octavo.bookie.adds import AddBatch
from octavo.bookie.config import BookieConfig
from octavo.bookie.journal.journal import journal_of
from octavo.bookie.storage import Storage
from octavo.protocol.codes import Code
from tests.crash_states.garbage import collect
from tests.crash_states.images import Moment, freeze
from tests.sim.disk import SimDisk
from tests.sim.disk_faults import CHANGES, SYNCS, DiskFaults, Rule
from tests.sim.inode import Inode
from tests.sim.loop import SimLoop
from tests.support.storage_support import CONFIG, KEY, entry_bytes, make_run

TINY = replace(
    CONFIG,
    journal_file_bytes_max=1400,
    journal_preallocate_bytes=1400,
    entry_log_bytes_max=1500,
    write_cache_bytes_max=4096,
    read_cache_bytes_max=1,  # what is read is read from the disk
    gc_bytes_per_s=2**40,
    gc_minor_ratio=0.99,
    gc_major_ratio=0.99,
    gc_deleted_keep_ms=1,
)
TWO_JOURNALS = replace(TINY, journal_directories=("/j", "/k"))


class NoThreads:
    """Stands where a thread pool would; a simulated loop starts none, and making one takes time."""

    def __init__(self, workers: int, name: str = "") -> None:
        self._max_workers = workers
        self._shutdown = False

    def shutdown(self, wait: bool = True) -> None:
        """Take no more calls."""
        self._shutdown = True


# So that a checkpoint of two entries writes twice, and a log rolls between; states are rewritten,
# and a log is emptied in several pieces.
_TINIER: dict[tuple[Any, str], object] = {
    (octavo.bookie.write.checkpoint, "_SLICE_RUNS_MAX"): 1,
    (octavo.bookie.write.checkpoint, "EXTENT_BYTES_MAX"): 400,
    (octavo.bookie.ledgers.state, "_REWRITE_ABOVE_BYTES"): 100,
    (octavo.bookie.gc.compaction, "_SLICE_BYTES"): 500,
    (octavo.bookie.gc.compaction, "_BATCH_BYTES"): 400,
    (octavo.bookie.storage, "ThreadPoolExecutor"): NoThreads,
    (octavo.bookie.check.scrub, "ThreadPoolExecutor"): NoThreads,
}
PAYLOAD_BYTES, BIG_BYTES = 300, 1000
OTHER = next(n for n in range(50, 99) if journal_of(n, 2) != journal_of(1, 2))
Fact = tuple[str, int, int]
"""(what, ledger, entry or LAC): `tried` before it is asked for, `acked` once it was answered."""


class CrashPoint(NamedTuple):
    """A moment, and what had been promised by then."""

    where: str
    moment: Moment
    facts: tuple[Fact, ...]
    sure: bool = True
    """False: what was tried and not acked may come and go."""


class Recorder(DiskFaults):
    """Sees every call that changes the disk, before and after."""

    def __init__(self, facts: Callable[[], tuple[Fact, ...]], found: list[CrashPoint]) -> None:
        super().__init__()
        self._facts = facts
        self._found = found
        self._seen = CHANGES | SYNCS

    def record(self) -> None:
        """From now on."""
        self.rules = [Rule("record", None)]  # type: ignore[arg-type]

    def before(self, disk: SimDisk, call: str, path: str) -> None:
        if call in self._seen:
            self.keep(disk, f"before {call} {path}")

    def after(self, disk: SimDisk, call: str, path: str) -> None:
        self.keep(disk, f"after {call} {path}")

    def keep(self, disk: SimDisk, where: str) -> None:
        self._found.append(CrashPoint(where, freeze(disk), self._facts()))

    def writing(
        self,
        disk: SimDisk,
        path: str,
        inode: Inode,
        offset: int,
        data: bytes,
    ) -> list[tuple[int, bytes]]:
        return [(offset, data)]

    def syncing(self, disk: SimDisk, path: str, inode: Inode | None) -> None:
        pass


def payload(ledger_id: int, entry_id: int, size: int) -> bytes:
    """What an entry holds; never zeros, never the same for two."""
    return (b"%d:%d " % (ledger_id, entry_id) * size)[:size]


class Life:
    """One storage from its first start on, doing what it is told."""

    def __init__(self, loop: SimLoop, config: BookieConfig = TINY) -> None:
        self.loop = loop
        self.config = config
        self.facts: tuple[Fact, ...] = ()
        self.points: list[CrashPoint] = []
        self.disk = SimDisk()
        self.recorder = Recorder(lambda: self.facts, self.points)
        self.disk.faults = self.recorder
        self.ledger_id = 1
        self.next_entry: dict[int, int] = {}
        self.fenced: set[int] = set()
        self.storage: Storage

    def note(self, what: str, ledger_id: int, value: int = 0) -> None:
        self.facts += ((what, ledger_id, value),)

    # A life's steps

    async def start(self) -> None:
        self.storage = Storage(self.config, disk=self.disk, index_opener=self.disk.open_index)
        await self.storage.start()

    async def add(self, size: int = PAYLOAD_BYTES, *, ledger_id: int = 0) -> None:
        ledger_id = ledger_id or self.ledger_id
        entry_id = self._next_entry(ledger_id)
        await self._send(ledger_id, entry_id, size)

    def _next_entry(self, ledger_id: int) -> int:
        entry_id = self.next_entry.get(ledger_id, 0)
        self.next_entry[ledger_id] = entry_id + 1
        return entry_id

    async def _send(self, ledger_id: int, entry_id: int, size: int) -> None:
        run = make_run(
            ledger_id,
            entry_id,
            [payload(ledger_id, entry_id, size)],
            recovery=ledger_id in self.fenced,
        )
        self.note(f"tried {size}", ledger_id, entry_id)
        answered = self.loop.create_future()

        def done(results: Sequence[tuple[AddBatch, Code]]) -> None:
            if results[0][1] is Code.OK:
                self.note("acked", ledger_id, entry_id)
            answered.set_result(results[0][1])

        self.storage.add([run], done)
        code = await answered
        assert code is Code.OK, f"{run} was answered {code}"

    async def again(self) -> None:
        """An add of which nothing is heard for a while: the same comes beside it, and after it."""
        ledger_id, entry_id = self.ledger_id, self._next_entry(self.ledger_id)
        adds = [self._send(ledger_id, entry_id, PAYLOAD_BYTES) for _ in range(2)]
        await asyncio.gather(*adds)
        await self._send(ledger_id, entry_id, PAYLOAD_BYTES)

    async def roll(self) -> None:
        """An add that makes the journal roll, and the entry log after it."""
        await self.add(BIG_BYTES)

    async def other(self) -> None:
        """An add to a ledger of another journal, if there is one."""
        await self.add(ledger_id=OTHER)

    async def fence(self) -> None:
        self.note("fence tried", self.ledger_id)
        self.fenced.add(self.ledger_id)
        await self.storage.fence(self.ledger_id, KEY)
        self.note("fenced", self.ledger_id)

    async def lac(self) -> None:
        value = self.next_entry.get(self.ledger_id, 0) - 1
        self.note("lac tried", self.ledger_id, value)
        await self.storage.set_explicit_lac(self.ledger_id, KEY, value)
        self.note("lac", self.ledger_id, value)

    async def checkpoint(self) -> None:
        await self.storage.checkpoint()

    async def delete(self) -> None:
        """Delete the ledger; what comes is of another one."""
        ledger_id = self.ledger_id
        if ledger_id not in self.storage.ledgers():
            return  # nothing is promised of a ledger that it never heard of
        self.ledger_id += 1
        self.note("delete tried", ledger_id)
        await self.storage.delete_ledger(ledger_id)
        self.note("deleted", ledger_id)

    async def gc(self) -> None:
        """Remove the logs in which nothing is live, and forget who was deleted long ago."""
        await self._collect(compact=False)

    async def compact(self) -> None:
        """Rewrite whatever log holds anything that is dead; then as `gc`."""
        await self._collect(compact=True)

    async def _collect(self, *, compact: bool) -> None:
        await collect(self.storage, self.config, compact=compact)
        for what, ledger_id, _ in self.facts:
            if what == "deleted" and self.storage._states.get(ledger_id) is None:
                self.note("forgotten", ledger_id)

    async def crowd(self) -> None:
        """An add, a deletion and a checkpoint while a compaction runs."""
        compaction = self.loop.create_task(self.compact())
        await asyncio.sleep(0)
        await asyncio.gather(self.add(), self.delete(), self.checkpoint(), compaction)

    async def restart(self) -> None:
        """In good order."""
        await self.storage.close()
        await self.start()

    async def power(self) -> None:
        """The power fails with nothing under way, and comes back."""
        await silence(self.storage)
        self.disk.crash()
        await self.start()

    async def busy(self) -> None:
        """An add and an explicit LAC while a checkpoint runs."""
        checkpoint = self.loop.create_task(self.storage.checkpoint())
        await asyncio.sleep(0)
        await asyncio.gather(self.add(), self.lac(), checkpoint)


OPERATIONS: dict[str, Callable[[Life], Awaitable[None]]] = {
    "add": Life.add,
    "again": Life.again,
    "roll": Life.roll,
    "fence": Life.fence,
    "lac": Life.lac,
    "checkpoint": Life.checkpoint,
    "delete": Life.delete,
    "gc": Life.gc,
    "compact": Life.compact,
    "restart": Life.restart,
    "power": Life.power,
    "busy": Life.busy,
    "crowd": Life.crowd,
}


WITH_TWO_JOURNALS = {**OPERATIONS, "other": Life.other}


@contextmanager
def tinier() -> Iterator[None]:
    """Within it, what is no setting is tiny too."""
    before = {where: getattr(*where) for where in _TINIER}
    try:
        for where, value in _TINIER.items():
            setattr(*where, value)
        yield
    finally:
        for where, value in before.items():
            setattr(*where, value)


async def silence(storage: Storage) -> None:
    """Its process is gone."""
    if storage._flushing is not None:
        storage._flushing.task.cancel()
        await asyncio.gather(storage._flushing.task, return_exceptions=True)


def points_of(
    sequence: Sequence[str], loop: SimLoop, config: BookieConfig = TINY
) -> list[CrashPoint]:
    """Live `sequence`; the crash points of its last operation, or of the first start."""
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


def entry_of(ledger_id: int, entry_id: int, size: int) -> bytes:
    """The whole entry as `Life.add` wrote it."""
    return entry_bytes(ledger_id, entry_id, payload(ledger_id, entry_id, size))
