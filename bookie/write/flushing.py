"""Flush the write cache when it is full or old, and again until a full disk has room.

Any error except "disk full" is final: `on_fatal` is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from octavo.bookie.disk.files import DiskFull
from octavo.bookie.journal.journal import Journals
from octavo.bookie.journal.mark import Position
from octavo.bookie.ledgers.state import LedgerStates
from octavo.bookie.write.cache import Memtable, WriteCache
from octavo.bookie.write.checkpoint import Checkpointer

_RETRY_FLUSH_S = 1.0

_log = structlog.get_logger()


class Flushing:
    def __init__(
        self,
        checkpointer: Checkpointer,
        journals: Journals,
        cache: WriteCache,
        states: LedgerStates,
        *,
        interval_s: float,
        on_flushed: Callable[[Memtable], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._checkpointer = checkpointer
        self._journals = journals
        self._cache = cache
        self._states = states
        self._interval_s = interval_s
        self._on_flushed = on_flushed
        self._on_fatal = on_fatal
        self._closing = False
        self._written_at: dict[tuple[Position, ...], int] = {}
        """For the positions of unfinished flushes, the bytes in the journals then."""
        self._safe_bytes = 0
        self._flushed_bytes = 0
        journals.stats.bytes_by_state = self._bytes_by_state
        self.wanted = asyncio.Event()
        """Set it to request a flush."""
        self.disk_full = False
        """Whether ordinary adds get READ_ONLY, until space returns."""
        self.task = asyncio.get_running_loop().create_task(self._flush_on(), name="flush")

    async def checkpoint(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._journals.catch_up()  # the mark cannot pass deferred adds without a sync
            mark = await self._checkpointer.run(self._positions, self._flushed)
        except DiskFull:
            raise
        except Exception as error:
            self._on_fatal(error)
            raise
        safe = self._safe_bytes = self._written_at.get(mark.journals, self._safe_bytes)
        self._written_at = {at: size for at, size in self._written_at.items() if size > safe}
        self._journals.stats.on_flush(self._flushed_bytes, loop.time() - began)
        await self._journals.remove_below(mark.journals)

    def _positions(self) -> tuple[Position, ...]:
        where = self._journals.durable_positions
        self._written_at[where] = self._journals.written_bytes
        return where

    def _flushed(self, memtable: Memtable) -> None:
        self._flushed_bytes = memtable.bytes
        self._on_flushed(memtable)

    def _bytes_by_state(self) -> dict[str, int]:
        flushing = self._cache.flushing
        return {
            "journal": self._journals.written_bytes - self._safe_bytes,
            "write_cache": self._cache.active.bytes,
            "flushing": flushing.bytes if flushing is not None else 0,
        }

    def note_full(self, why: str) -> None:
        """Flush again until the disk has room."""
        if not self.disk_full:
            self.disk_full = True
            self.wanted.set()
            _log.error("disk_full", error=why)

    async def stop(self) -> bool:
        """Stop after the current flush; return False if flushing was stopped before.

        Otherwise the next start would have to replay more.
        """
        if self._closing:
            return False
        self._closing = True
        self.wanted.set()
        await asyncio.gather(self.task, return_exceptions=True)
        return True

    async def _flush_on(self) -> None:
        try:
            while not self._closing:
                try:
                    async with asyncio.timeout(self._interval_s):
                        await self.wanted.wait()
                except TimeoutError:
                    pass
                self.wanted.clear()
                await self._flush_once()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._on_fatal(error)
            raise

    async def _flush_once(self) -> None:
        changed = self._cache.active.ledgers or self._cache.flushing or self._states.is_dirty
        if not changed and not self.disk_full:
            return
        try:
            await self.checkpoint()
            if self._cache.is_full:  # the adds that would set `wanted` may wait for this flush
                self.wanted.set()
            if self.disk_full:
                await self._journals.reserve()
                self.disk_full = False
                _log.info("disk_space_returned")
        except DiskFull as error:
            self.note_full(str(error))
            await asyncio.sleep(_RETRY_FLUSH_S)
            self.wanted.set()
