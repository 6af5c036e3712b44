"""Empty an entry log and remove it, slice by slice, while the bookie serves its clients.

A record is dead when its ledger was deleted for good, or the index points to another copy. The file
is removed only when every byte was read back and accounted for; a map or a listing is never enough.
After a crash the next pass copies the rest. A damaged log stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import NamedTuple, TypeVar

from octavo.bookie.disk.damage import DamagedRead, DamageRegistry
from octavo.bookie.disk.files import Blocking, DiskFull
from octavo.bookie.entrylog.format import FILE_HEADER_BYTES, file_name
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.gc.log_metadata import Counted, EntryLogMetadata
from octavo.bookie.index.index import LedgerIndex
from octavo.bookie.index.log_slice import Stored, live_in, log_end, read_slice
from octavo.bookie.ledgers.control import LedgerControl
from octavo.bookie.ledgers.rules import Fate
from octavo.bookie.write.checkpoint import Checkpointer
from octavo.protocol.codes import BookieIOError

T = TypeVar("T")

_SLICE_BYTES = 1024 * 1024
_SLICE_BYTES_MIN = 64 * 1024
_BATCH_BYTES = 4 * 1024 * 1024
"""A checkpoint waits for one `relocate`."""


class Kept(Exception):
    """Why the log cannot be removed now."""


class Cleared(NamedTuple):
    log_id: int
    removed: bool
    reason: str
    """Why the log stays; empty when it was removed."""
    read_bytes: int
    copied_bytes: int


class Pace:
    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._due_s = 0.0
        self.slice_bytes = min(_SLICE_BYTES, max(_SLICE_BYTES_MIN, bytes_per_s // 4))
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        self._hurry.set()

    async def spend(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        self._due_s = max(self._due_s, loop.time()) + count / self._bytes_per_s
        try:
            async with asyncio.timeout(max(0.0, self._due_s - loop.time())):
                await self._hurry.wait()
        except TimeoutError:
            pass


class Compactor:
    def __init__(
        self,
        *,
        logs: EntryLogs,
        index: LedgerIndex,
        checkpointer: Checkpointer,
        executor: Executor,
        control: LedgerControl,
        damages: DamageRegistry,
        pace: Pace,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Compact logs; `on_fatal` is called when a write fails, except for lack of room."""
        self._logs = logs
        self._index = index
        self._checkpointer = checkpointer
        self._blocking = Blocking(executor)
        self._control = control
        self._damages = damages
        self._pace = pace
        self._on_fatal = on_fatal
        self._stopping = False
        self._log_metadata = EntryLogMetadata(
            logs, checkpointer, self._blocking, control.fate, damages, lambda: self._stopping
        )
        self.progress: tuple[int, int, int] | None = None
        """(log id, bytes read, bytes to read) of the pass under way."""

    def unsure_deletions(self) -> list[int]:
        """Return deletions in memory that are perhaps not on disk: delete these ledgers again."""
        return self._control.unsure_deletions()

    async def log_metadata(self, quarantine_left_ms: Mapping[int, int]) -> Counted:
        return await self._log_metadata.take(quarantine_left_ms)

    async def renew_current(self) -> None:
        """Begin a new log, so that the current log can be emptied. Raises `DiskFull`."""
        await self._changing(self._checkpointer.roll())

    async def drop_markers(self, before_ms: int, in_logs: Mapping[int, None]) -> int:
        """Forget deletions of ledgers that are in no log; return how many."""
        return await self._checkpointer.drop_markers(
            lambda ledger_id: (
                ledger_id not in in_logs and self._control.fate(ledger_id) is Fate.DELETED
            ),
            before_ms,
        )

    def stop(self) -> None:
        self._stopping = True
        self._pace.hurry()

    async def clear(self, log_id: int, *, copy: bool) -> Cleared:
        """Read all of a log, copy its live entries if `copy`, remove it if none is left.

        Raises errors in writing, except `DiskFull`: then the log stays.
        """
        self._read = self._copied = 0
        try:
            await self._pass(log_id, copy=copy)
            reason = ""
        except DamagedRead as error:
            damage = self._damages.add(error.damage)
            reason = f"damaged from byte {damage.offset} on: {damage.kind.value}"
        except (Kept, BookieIOError) as error:
            reason = str(error)
        except DiskFull as error:
            reason = f"no room to rewrite: {error}"
        finally:
            self.progress = None
        if not reason:
            self._damages.clear_file(file_name(log_id))
        return Cleared(log_id, not reason, reason, self._read, self._copied)

    async def _pass(self, log_id: int, *, copy: bool) -> None:
        end, bytes_of = await self._blocking(log_end, self._logs, log_id)
        offset = FILE_HEADER_BYTES
        seen: dict[int, int] = {}
        live: list[Stored] = []
        live_bytes = 0
        while offset < end:
            self._go_on()
            start = offset
            found, offset = await self._blocking(
                read_slice, self._logs, log_id, start, end, self._pace.slice_bytes
            )
            for one in found:
                ledger_id = one.record.ledger_id
                seen[ledger_id] = seen.get(ledger_id, 0) + len(one.frames)
            some = await self._blocking(self._live, self._of_live_ledgers(found))
            if some and not copy:
                raise Kept(f"ledger {some[0].record.ledger_id} has entries in it")
            live += some
            live_bytes += sum(len(one.frames) for one in some)
            if live_bytes >= _BATCH_BYTES:
                await self._relocate(live)
                live, live_bytes = [], 0
            self._read += offset - start
            self.progress = (log_id, offset, end)
            await self._pace.spend(offset - start)
        await self._relocate(live)
        if bytes_of is not None and bytes_of != seen:
            raise Kept("its ledgers map names other ledgers or bytes than were read in it")
        self._go_on()
        await self._changing(self._checkpointer.retire(log_id))

    def _go_on(self) -> None:
        if self._stopping:
            raise Kept("the bookie stops")

    def _of_live_ledgers(self, found: Iterable[Stored]) -> list[Stored]:
        """Return the records of live ledgers. Raises `Kept` when a ledger's state is uncertain."""
        kept: list[Stored] = []
        for one in found:
            ledger_id = one.record.ledger_id
            fate = self._control.fate(ledger_id)
            if fate is Fate.UNKNOWN:
                raise Kept(f"ledger {ledger_id} has entries in it, and nothing is known of it")
            if fate is Fate.UNSURE:
                raise Kept(f"ledger {ledger_id} is not surely deleted yet")
            if fate is Fate.LIVE:
                kept.append(one)
        return kept

    def _live(self, found: list[Stored]) -> list[Stored]:
        return [one for one in found if live_in(self._index, one)]

    async def _relocate(self, live: list[Stored]) -> None:
        if live:
            copied = await self._changing(self._checkpointer.relocate(live))
            self._copied += copied
            await self._pace.spend(copied)

    async def _changing(self, work: Awaitable[T]) -> T:
        """Await a write; an error is fatal, because it is unknown how much was written."""
        try:
            return await work
        except (DiskFull, BookieIOError, asyncio.CancelledError):
            raise
        except BaseException as error:
            self._on_fatal(error)
            raise
