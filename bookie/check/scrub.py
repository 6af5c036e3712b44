"""The scrubber: read every entry log back at a bounded rate and report damage.

So damage is found while there are other copies. A pass walks the logs in order, up to the mark,
past every cache. A finding is cleared when the bytes are read back good, or are gone.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import structlog

from octavo.bookie.disk.damage import Damage, DamagedRead, DamageKind, DamageRegistry
from octavo.bookie.disk.files import Disk, DiskError, NoDescriptorLeft
from octavo.bookie.entrylog.format import file_name
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.entrylog.walk import Checked, LogCheck
from octavo.bookie.index.index import IndexedExtent, LedgerIndex
from octavo.protocol.codes import BookieIOError

SLICE_BYTES = 256 * 1024
_AT_REST = (
    DamageKind.FILE_HEADER,
    DamageKind.RECORD_HEADER,
    DamageKind.TRUNCATED,
    DamageKind.EXTENT_CHECKSUM,
    DamageKind.ENTRY_DIGEST,
    DamageKind.UNREADABLE,
    DamageKind.MISSING_FILE,
)

_log = structlog.get_logger()


class LogScrub:
    def __init__(
        self,
        disk: Disk,
        logs: EntryLogs,
        index: LedgerIndex,
        damages: DamageRegistry,
        log_id: int,
        end: int | None,
        *,
        on_good: Callable[[Checked], None] | None = None,
        uncached: bool = True,
    ) -> None:
        """Scrub a log up to `end`, the mark's (None: all); `on_good` gets every good record."""
        self._logs = logs
        self._index = index
        self._damages = damages
        self._runs: list[IndexedExtent] | None = None
        self._log_id = log_id
        self._walk = LogCheck(
            disk,
            logs.path_of(log_id),
            log_id,
            end=end,
            starts=self._starts,
            uncached=uncached and end is None,
        )
        self._on_good = on_good

    @property
    def offset(self) -> int:
        return self._walk.offset

    @property
    def done(self) -> bool:
        return self._walk.done

    def step(self) -> int:
        """Return the slice's bytes. Raises `NoDescriptorLeft`."""
        before = self._walk.offset
        try:
            found = self._walk.step(SLICE_BYTES)
        except NoDescriptorLeft:
            raise  # this error tells nothing about the log
        except (FileNotFoundError, DiskError) as error:
            self._walk.done = True
            gone = isinstance(error, FileNotFoundError)
            self._lost_file(DamageKind.MISSING_FILE if gone else DamageKind.UNREADABLE)
            return 0
        for walked in found:
            for fault in walked.faults:
                self._report(fault, walked)
            if self._on_good is not None and not walked.faults:
                self._on_good(walked)
        self._clear_good(before, found)
        if self._log_id not in self._logs.log_ids:  # removed while it was read
            self._walk.done = True
            self._damages.clear_file(file_name(self._log_id))
        return self._walk.offset - before

    def _clear_good(self, before: int, found: list[Checked]) -> None:
        start = before
        for walked in found:
            if walked.faults:
                self._damages.clear_range(self._walk.path, start, walked.location.offset, *_AT_REST)
                start = walked.location.offset + walked.location.length
        self._damages.clear_range(self._walk.path, start, self._walk.offset, *_AT_REST)
        if self._walk.ledgers is not None:  # the map is good, so the records are
            self._damages.clear_range(
                self._walk.path, self._walk.end, sys.maxsize, DamageKind.LEDGERS_MAP, *_AT_REST
            )

    def _report(self, fault: Damage, walked: Checked) -> None:
        try:
            runs = self._held(fault, walked)
        except BookieIOError as error:
            if isinstance(error, DamagedRead):
                self._damages.add(error.damage)
            runs = []
        if not runs:
            self._damages.add(fault._replace(ledger_id=None, first=None, last=None))
        elif walked.record is not None:
            assert fault.first is not None
            assert fault.last is not None
            self._damages.add(
                fault._replace(
                    first=max(fault.first, runs[0].first), last=min(fault.last, runs[-1].last)
                )
            )
        else:
            for run in runs:
                self._damages.report(
                    fault.kind,
                    fault.path,
                    run.location.offset,
                    run.location.length,
                    ledger_id=run.ledger_id,
                    first=run.first,
                    last=run.last,
                )

    def _held(self, fault: Damage, walked: Checked) -> list[IndexedExtent]:
        at = walked.location
        if walked.record is None:
            found = self._indexed()
            return [
                run for run in found if at.offset <= run.location.offset < at.offset + at.length
            ]
        assert fault.ledger_id is not None
        assert fault.first is not None
        assert fault.last is not None
        runs = self._index.runs(fault.ledger_id, fault.first, fault.last)
        return [run for run in runs if run.location[:2] == at[:2]]

    def _indexed(self) -> list[IndexedExtent]:
        if self._runs is None:
            ledgers = self._walk.ledgers
            if ledgers is None:
                runs = self._index.all_runs()
            else:
                runs = (run for ledger_id in ledgers for run in self._index.runs(ledger_id))
            held = [run for run in runs if run.location.log_id == self._log_id]
            self._runs = sorted(held, key=lambda run: (run.location.offset, run.first))
        return self._runs

    def _starts(self) -> list[int]:
        try:
            return [run.location.offset for run in self._indexed()]
        except BookieIOError as error:
            if isinstance(error, DamagedRead):
                self._damages.add(error.damage)
            return []

    def _lost_file(self, kind: DamageKind) -> None:
        if self._log_id not in self._logs.log_ids:
            self._damages.clear_file(file_name(self._log_id))
            return
        self._starts()
        spans: dict[int, tuple[int, int]] = {}
        for run in self._runs or ():
            first, last = spans.get(run.ledger_id, (run.first, run.last))
            spans[run.ledger_id] = (min(first, run.first), max(last, run.last))
        if not spans:
            self._damages.report(kind, self._walk.path)
        for ledger_id, (first, last) in spans.items():
            self._damages.report(kind, self._walk.path, ledger_id=ledger_id, first=first, last=last)


class Scrubber:
    def __init__(
        self,
        *,
        disk: Disk,
        logs: EntryLogs,
        index: LedgerIndex,
        damages: DamageRegistry,
        vouched: Callable[[], tuple[int, int]],
        bytes_per_s: int,
        interval_s: float,
    ) -> None:
        """Scrub logs; `vouched` is the mark's (log id, offset); `interval_s` 0: only on request."""
        self._disk = disk
        self._logs = logs
        self._index = index
        self._damages = damages
        self._vouched = vouched
        self._bytes_per_s = bytes_per_s
        self._interval_s = interval_s
        self._executor: Executor = ThreadPoolExecutor(1, "octavo-scrub")
        self._wanted = asyncio.Event()
        self._under_way: asyncio.Future[int] | None = None
        self._stopping = False
        self._due_s = 0.0
        self._at = (0, 0)
        self._running = False
        self._ended_s: float | None = None
        self.passes = 0
        self.bytes = 0

    async def run(self) -> None:
        """Scrub at intervals; an error ends a pass, never the bookie."""
        while True:
            if self._interval_s or self._wanted.is_set():
                self._wanted.clear()
                try:
                    await self.one_pass()
                except (BookieIOError, DiskError) as error:
                    _log.warning("scrub_failed", reason=str(error))
                except Exception as error:
                    _log.error("scrub_failed", reason=repr(error), exc_info=error)
            try:
                async with asyncio.timeout(self._interval_s or None):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    def start_pass(self) -> None:
        if not self._running:
            self._wanted.set()

    async def one_pass(self) -> None:
        self._running = True
        self._due_s = asyncio.get_running_loop().time()
        try:
            for log_id in self._logs.log_ids:
                marked_id, marked = self._vouched()
                if log_id > marked_id:
                    break
                await self._log(log_id, marked if log_id == marked_id else None)
        finally:
            self._running = False
        self.passes += 1
        self._ended_s = asyncio.get_running_loop().time()
        _log.info("scrub_pass_ended", passes=self.passes, damage=len(self._damages.current()))

    async def _log(self, log_id: int, end: int | None) -> None:
        scrub = LogScrub(self._disk, self._logs, self._index, self._damages, log_id, end)
        loop = asyncio.get_running_loop()
        while not scrub.done:
            if self._stopping:
                raise asyncio.CancelledError
            self._under_way = loop.run_in_executor(self._executor, scrub.step)
            size = await asyncio.shield(self._under_way)
            self.bytes += size
            self._at = (log_id, scrub.offset)
            self._due_s = max(loop.time(), self._due_s + size / self._bytes_per_s)
            await asyncio.sleep(self._due_s - loop.time())

    async def stop(self) -> None:
        self._stopping = True
        if self._under_way is not None and not self._under_way.done():
            await asyncio.wait([self._under_way])
        self._executor.shutdown(wait=False)

    @property
    def last_pass_age_s(self) -> float:
        """Return the last pass's age; −1 before the first pass ends."""
        if self._ended_s is None:
            return -1
        return asyncio.get_running_loop().time() - self._ended_s

    def progress(self) -> tuple[int, int, float]:
        return self.bytes, self.passes, self.last_pass_age_s

    def status(self) -> dict[str, Any]:
        return {
            "running": self._running,
            "log_id": self._at[0],
            "offset": self._at[1],
            "last_log_id": self._vouched()[0],
            "bytes": self.bytes,
            "bytes_per_s": self._bytes_per_s,
            "passes": self.passes,
            "last_pass_age_s": round(self.last_pass_age_s, 3),
            "damage": len(self._damages.current()),
        }
