"""A life of the production storage that makes every kind of call, and handles its errors, on
virtual time. An error must be a declared one; a read is right or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from octavo.bookie.disk.files import DiskFull
from octavo.protocol.codes import Code, OctavoError
from tests.io_errors.faults import FailingCalls
from tests.sim.disk import SimDisk
from tests.support.engine_lab.life import PAYLOAD_BYTES, TINY, Broken, EngineLife

CONFIG = replace(TINY, flush_interval_ms=1000, read_cache_bytes_max=600)
_ANSWER_S_MAX = 60.0
_FLUSHED_S = 3.0
_REFUSALS = (Code.READ_ONLY, Code.IO)


class FailingLife(EngineLife):
    allowed = (OctavoError,)

    def __init__(self, disk: SimDisk, faults: FailingCalls) -> None:
        super().__init__(disk, CONFIG)
        self.faults = faults
        self.ended: BaseException | None = None
        """The error of a start, a close or the collector, which ends the process."""
        self.ended_by = "refused to start, or ended in its close"

    @property
    def dead(self) -> bool:
        return bool(self.fatal) or self.ended is not None

    async def live(self) -> None:
        for step in STEPS:
            if self.dead:
                return
            await self._within(step(self), step)

    async def settle(self) -> None:
        await asyncio.sleep(_FLUSHED_S)

    async def _within(self, work: Awaitable[None], what: object) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                await work
        except TimeoutError as error:
            raise Broken(f"no answer within {_ANSWER_S_MAX} s: {what}") from error

    # Steps

    async def start(self) -> None:
        try:
            await super().start()
        except OctavoError as error:
            self.ended = error

    async def restart(self) -> None:
        """Restart, orderly if possible; a disk that is full for a while has room by then."""
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
        code = await self.send(ledger_id, entry_ids, size)
        if code is not Code.OK and code not in _REFUSALS:
            raise Broken(f"an add of ledger {ledger_id} was answered {code!r}")

    async def compact(self) -> None:
        """Run the collector and rewrite everything; an error ends the process."""
        try:
            await self.collect(compact=True)
        except (OctavoError, OSError) as error:
            if isinstance(error, DiskFull):
                raise Broken(f"a full disk ended the collector: {error}") from error
            if not self.fatal:
                self.ended, self.ended_by = error, "ended by its collector"
            self.note_forgotten()


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
    _COMPACT,  # logs are emptied, renewed and removed, and the marker of a deletion goes
    _READ,
    _step("add", 1, 4, size=1000),
    _FLUSH,
    _COMPACT,
    _READ,
    _step("add", 5, 0),
    _step("restart"),
    _READ,
)
