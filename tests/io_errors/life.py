"""A life of the production storage that meets every kind of call, with errors taken as they come.

The flush loop is production's, on virtual time. Every answer is noted as in
tests/crash_states/lives.py; an error must be one that is declared, a read is right or an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from octavo.bookie.adds import AddBatch
from octavo.bookie.disk.files import DiskFull
from octavo.bookie.storage import Storage
from octavo.protocol.codes import Code, NoSuchEntry, NoSuchLedger, OctavoError
from tests.crash_states.check import promises
from tests.crash_states.garbage import collect
from tests.crash_states.lives import TINY, Fact, entry_of, payload
from tests.io_errors.faults import FailingCalls
from tests.sim.disk import SimDisk
from tests.support.storage_support import KEY, make_run

CONFIG = replace(TINY, flush_interval_ms=1000, read_cache_bytes_max=600)
PAYLOAD_BYTES = 300
_ANSWER_S_MAX = 60.0
_FLUSHED_S = 3.0
_REFUSALS = (Code.READ_ONLY, Code.IO)


class Broken(AssertionError):
    """The storage said or did what it must not."""


class FailingLife:
    """One storage, told to do one thing after another until it is dead."""

    def __init__(self, disk: SimDisk, faults: FailingCalls) -> None:
        self.disk = disk
        self.faults = faults
        self.facts: tuple[Fact, ...] = ()
        self.fatal: list[BaseException] = []
        self.ended: BaseException | None = None
        """What a start, a close or the collector came to grief with: the process ends with it."""
        self.ended_by = "refused to start, or ended in its close"
        self.storage: Storage
        self._fenced: set[int] = set()

    @property
    def dead(self) -> bool:
        """Whether a process would have ended by now."""
        return bool(self.fatal) or self.ended is not None

    def note(self, what: str, ledger_id: int, value: int = 0) -> None:
        self.facts += ((what, ledger_id, value),)

    async def live(self) -> None:
        """All steps, or as many as there is somebody alive for."""
        for step in STEPS:
            if self.dead:
                return
            await self._within(step(self), step)

    async def settle(self) -> None:
        """Time for what goes on by itself."""
        await asyncio.sleep(_FLUSHED_S)

    async def _within(self, work: Awaitable[None], what: object) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                await work
        except TimeoutError as error:
            raise Broken(f"no answer within {_ANSWER_S_MAX} s: {what}") from error

    # Steps

    async def start(self) -> None:
        self.storage = Storage(
            CONFIG,
            disk=self.disk,
            index_opener=self.disk.open_index,
            on_fatal=self.fatal.append,
        )
        try:
            await self.storage.start()
        except OctavoError as error:
            self.ended = error

    async def restart(self) -> None:
        """In good order, as far as that goes; a disk that is full for a while has room by then."""
        if self.faults.is_full_for_a_while and self.faults.failed:
            self.faults.heal()
            await self.settle()
        try:
            await self.storage.close()
        except OctavoError as error:
            self.ended = error
            return
        if not self.dead:
            await self.start()

    async def add(self, ledger_id: int, *entry_ids: int, size: int = PAYLOAD_BYTES) -> None:
        run = make_run(
            ledger_id,
            entry_ids[0],
            [payload(ledger_id, entry_id, size) for entry_id in entry_ids],
            recovery=ledger_id in self._fenced,
        )
        for entry_id in entry_ids:
            self.note(f"tried {size}", ledger_id, entry_id)
        answered: asyncio.Future[Code] = asyncio.get_running_loop().create_future()

        def done(results: Sequence[tuple[AddBatch, Code]]) -> None:
            code = results[0][1]
            if code is Code.OK:
                if self.fatal:
                    raise Broken(f"acked after it had failed: {self.fatal[0]}")
                for entry_id in entry_ids:
                    self.note("acked", ledger_id, entry_id)
            answered.set_result(code)

        self.storage.add([run], done)
        code = await answered
        if code is not Code.OK and code not in _REFUSALS:
            raise Broken(f"an add of ledger {ledger_id} was answered {code!r}")

    async def fence(self, ledger_id: int) -> None:
        self.note("fence tried", ledger_id)
        self._fenced.add(ledger_id)
        if await self._told(self.storage.fence(ledger_id, KEY)):
            self.note("fenced", ledger_id)

    async def lac(self, ledger_id: int, value: int) -> None:
        self.note("lac tried", ledger_id, value)
        if await self._told(self.storage.set_explicit_lac(ledger_id, KEY, value)):
            self.note("lac", ledger_id, value)

    async def delete(self, ledger_id: int) -> None:
        if ledger_id not in self.storage.ledgers():
            return
        self.note("delete tried", ledger_id)
        if await self._told(self.storage.delete_ledger(ledger_id)):
            self.note("deleted", ledger_id)

    async def compact(self) -> None:
        """Rounds of the collector, everything rewritten; what leaves it ends the process."""
        try:
            await collect(self.storage, CONFIG, compact=True)
        except (OctavoError, OSError) as error:
            if isinstance(error, DiskFull):
                raise Broken(f"a full disk ended the collector: {error}") from error
            if not self.fatal:
                self.ended, self.ended_by = error, "ended by its collector"
        for what, ledger_id, _ in self.facts:
            if what == "deleted" and self.storage._states.get(ledger_id) is None:
                self.note("forgotten", ledger_id)

    async def _told(self, call: Awaitable[None]) -> bool:
        try:
            await call
        except OctavoError:
            return False
        if self.fatal:
            raise Broken(f"promised something after it had failed: {self.fatal[0]}")
        return True

    async def read_all(self) -> None:
        """Everything that was ever tried: right, absent as it may be, or an error."""
        for ledger_id, one in promises(self.facts).items():
            for entry_id, size in one.tried.items():
                try:
                    found = await self.storage.read(ledger_id, entry_id)
                except (NoSuchEntry, NoSuchLedger) as error:
                    if entry_id in one.acked and not one.delete_tried:
                        raise Broken(f"acked {ledger_id}:{entry_id} is denied: {error}") from error
                except OctavoError:
                    pass
                else:
                    if found != entry_of(ledger_id, entry_id, size):
                        raise Broken(f"other bytes than were written: {ledger_id}:{entry_id}")
                    if entry_id not in one.acked:
                        self.note("acked", ledger_id, entry_id)  # whoever read it may tell others


Step = Callable[[FailingLife], Awaitable[None]]


def _step(name: str, *args: int, **how: int) -> Step:
    def call(life: FailingLife) -> Awaitable[None]:
        done: Awaitable[None] = getattr(life, name)(*args, **how)
        return done

    call.__qualname__ = f"{name}{args}"
    return call


_FLUSH = _step("settle")
_READ = _step("read_all")
_COMPACT = _step("compact")
STEPS: tuple[Step, ...] = (
    _step("start"),
    _step("add", 1, 0, 1),
    _step("add", 2, 0),
    _step("lac", 2, 0),
    _FLUSH,
    _READ,
    _step("add", 1, 2, size=1000),  # rolls the journal, and the entry log at the next flush
    _step("add", 2, 1),
    _step("fence", 1),
    _FLUSH,
    _READ,
    _step("add", 1, 3),
    _step("add", 3, 0, 1, 2),
    _step("delete", 2),
    _FLUSH,
    _step("restart"),
    _READ,
    _step("add", 3, 3, size=1000),
    _step("fence", 4),
    _FLUSH,
    _step("delete", 3),
    _COMPACT,  # logs are emptied, renewed and removed, the marker of a deletion goes
    _READ,
    _step("add", 1, 4, size=1000),
    _FLUSH,
    _COMPACT,
    _READ,
    _step("add", 5, 0),
    _step("restart"),
    _READ,
)
