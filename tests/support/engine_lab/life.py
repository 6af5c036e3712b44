"""Drives a storage on a simulated disk and notes its promises, for crash states, io errors,
single faults and the engine model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import octavo.bookie.check.scrub
import octavo.bookie.gc.compaction
import octavo.bookie.ledgers.state
import octavo.bookie.storage
import octavo.bookie.write.checkpoint
from octavo.bookie.adds import AddBatch
from octavo.bookie.config import BookieConfig
from octavo.bookie.storage import Storage
from octavo.protocol.codes import Code, NoSuchEntry, NoSuchLedger
from tests.sim.disk import SimDisk
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
from tests.support.engine_lab.garbage import collect
from tests.support.storage_support import CONFIG, KEY, entry_bytes, make_run

TINY = replace(
    CONFIG,
    journal_file_bytes_max=1400,
    journal_preallocate_bytes=1400,
    entry_log_bytes_max=1500,
    write_cache_bytes_max=4096,
    read_cache_bytes_max=1,  # every read reaches the disk
    gc_bytes_per_s=2**40,
    gc_minor_ratio=0.99,
    gc_major_ratio=0.99,
    gc_deleted_keep_ms=1,
)
PAYLOAD_BYTES, BIG_BYTES = 300, 1000


class NoThreads:
    """Replaces a thread pool: a simulated loop starts no thread, and making a pool takes time."""

    def __init__(self, workers: int, name: str = "") -> None:
        self._max_workers = workers
        self._shutdown = False

    def shutdown(self, wait: bool = True) -> None:
        self._shutdown = True


# A checkpoint of two entries writes twice and rolls a log on the way; states are rewritten; a log
# is emptied in several pieces.
_TINIER: dict[tuple[Any, str], object] = {
    (octavo.bookie.write.checkpoint, "_SLICE_RUNS_MAX"): 1,
    (octavo.bookie.write.checkpoint, "EXTENT_BYTES_MAX"): 400,
    (octavo.bookie.ledgers.state, "_REWRITE_ABOVE_BYTES"): 100,
    (octavo.bookie.gc.compaction, "_SLICE_BYTES"): 500,
    (octavo.bookie.gc.compaction, "_BATCH_BYTES"): 400,
    (octavo.bookie.storage, "ThreadPoolExecutor"): NoThreads,
    (octavo.bookie.check.scrub, "ThreadPoolExecutor"): NoThreads,
}


@contextmanager
def tinier() -> Iterator[None]:
    before = {where: getattr(*where) for where in _TINIER}
    try:
        for where, value in _TINIER.items():
            setattr(*where, value)
        yield
    finally:
        for where, value in before.items():
            setattr(*where, value)


class CheckLoop(SimLoop):
    def __init__(self, seed: int = 1, *, trace: Trace | None = None) -> None:
        super().__init__(seed, trace=trace or Trace())
        self.run_in_executor = self._call_at_once  # type: ignore[method-assign, assignment]

    def _call_at_once(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def payload(ledger_id: int, entry_id: int, size: int) -> bytes:
    """Return the payload of an entry: never zeros, and different for each entry."""
    return (b"%d:%d " % (ledger_id, entry_id) * size)[:size]


def entry_of(ledger_id: int, entry_id: int, size: int) -> bytes:
    return entry_bytes(ledger_id, entry_id, payload(ledger_id, entry_id, size))


async def silence(storage: Storage) -> None:
    storage._flushing.task.cancel()
    await asyncio.gather(storage._flushing.task, return_exceptions=True)


Fact = tuple[str, int, int]
"""(kind, ledger, entry or LAC). `tried` stands before the request, `acked` after the answer."""


@dataclass
class Promised:
    tried: dict[int, int] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    fence_tried: bool = False
    fenced: bool = False
    lac_tried: int = -1
    lac: int = -1
    delete_tried: bool = False
    deleted: bool = False
    forgotten: bool = False
    """The deletion's marker may be gone, because no bookie needs it any more."""

    @property
    def is_known(self) -> bool:
        return bool(self.acked) or self.fenced or self.lac >= 0


def promises(facts: Sequence[Fact]) -> dict[int, Promised]:
    found: dict[int, Promised] = {}
    for what, ledger_id, value in facts:
        one = found.setdefault(ledger_id, Promised())
        kind, _, size = what.partition(" ")
        if kind == "tried":
            one.tried[value] = int(size)
        elif kind == "acked":
            one.acked.add(value)
        elif what == "lac tried":
            one.lac_tried = max(one.lac_tried, value)
        elif what == "lac":
            one.lac = max(one.lac, value)
        elif what == "fence tried":
            one.fence_tried = True
        elif what == "fenced":
            one.fenced = True
        elif what == "delete tried":
            one.delete_tried = True
        elif what == "deleted":
            one.deleted = True
        else:
            assert what == "forgotten", what
            one.forgotten = True
    return found


class Broken(AssertionError): ...


class EngineLife:
    allowed: tuple[type[Exception], ...] = ()

    def __init__(self, disk: SimDisk, config: BookieConfig) -> None:
        self.disk = disk
        self.config = config
        self.facts: tuple[Fact, ...] = ()
        self.fatal: list[BaseException] = []
        self.fenced: set[int] = set()
        self.storage: Storage

    def note(self, what: str, ledger_id: int, value: int = 0) -> None:
        self.facts += ((what, ledger_id, value),)

    async def start(self) -> None:
        self.fatal.clear()
        self.storage = await Storage.open(
            self.config,
            disk=self.disk,
            index_opener=self.disk.open_index,
            on_fatal=self.fatal.append,
        )

    async def send(
        self, ledger_id: int, entry_ids: Sequence[int], size: int = PAYLOAD_BYTES
    ) -> Code:
        """Add entries (as a recovery where the ledger is fenced) and return the answers."""
        run = make_run(
            ledger_id,
            entry_ids[0],
            [payload(ledger_id, entry_id, size) for entry_id in entry_ids],
            recovery=ledger_id in self.fenced,
        )
        for entry_id in entry_ids:
            self.note(f"tried {size}", ledger_id, entry_id)
        answered: asyncio.Future[Code] = asyncio.get_running_loop().create_future()

        def done(results: Sequence[tuple[AddBatch, Code]]) -> None:
            code = results[0][1]
            if code is Code.OK:
                self._still_promises()
                for entry_id in entry_ids:
                    self.note("acked", ledger_id, entry_id)
            answered.set_result(code)

        self.storage.add([run], done)
        return await answered

    async def fence(self, ledger_id: int) -> None:
        self.note("fence tried", ledger_id)
        self.fenced.add(ledger_id)
        if await self._told(self.storage.control.fence(ledger_id, KEY)):
            self.note("fenced", ledger_id)

    async def lac(self, ledger_id: int, value: int) -> None:
        self.note("lac tried", ledger_id, value)
        if await self._told(self.storage.control.set_explicit_lac(ledger_id, KEY, value)):
            self.note("lac", ledger_id, value)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger. Deleting an unknown ledger promises nothing."""
        if ledger_id not in self.storage.ledgers():
            return
        self.note("delete tried", ledger_id)
        if await self._told(self.storage.delete_ledger(ledger_id)):
            self.note("deleted", ledger_id)

    async def collect(self, *, compact: bool) -> None:
        await collect(self.storage, self.config, compact=compact)
        self.note_forgotten()

    def note_forgotten(self) -> None:
        for what, ledger_id, _ in self.facts:
            if what == "deleted" and self.storage._states.get(ledger_id) is None:
                self.note("forgotten", ledger_id)

    async def read_all(self) -> None:
        """Read every entry that was ever tried: each is right, or absent where it may be absent."""
        for ledger_id, one in promises(self.facts).items():
            for entry_id, size in one.tried.items():
                try:
                    found = await self.storage.reads.read(ledger_id, entry_id)
                except (NoSuchEntry, NoSuchLedger) as error:
                    if entry_id in one.acked and not one.delete_tried:
                        raise Broken(f"acked {ledger_id}:{entry_id} is denied: {error}") from error
                except self.allowed:
                    pass
                else:
                    if found != entry_of(ledger_id, entry_id, size):
                        raise Broken(f"other bytes than were written: {ledger_id}:{entry_id}")
                    if entry_id not in one.acked:
                        self.note("acked", ledger_id, entry_id)

    async def _told(self, call: Awaitable[None]) -> bool:
        try:
            await call
        except self.allowed:
            return False
        self._still_promises()
        return True

    def _still_promises(self) -> None:
        if self.fatal:
            raise Broken(f"promised something after it had failed: {self.fatal[0]}")
