"""Keeps the limbo file and what is in memory of it the same: loaded at a start, then leaving it.

What is in memory changes only after the file has: a crash never makes a bookie surer than it was
told to be. Rules and format: limbo.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from octavo.bookie.disk.blocking import Blocking
from octavo.bookie.disk.files import Disk, SyncFailed
from octavo.bookie.ledgers.limbo import Limbo, LimboRecord, read_limbo, vouched, write_limbo


class LimboFile:
    """Of one storage."""

    def __init__(
        self,
        limbo: Limbo,
        disk: Disk,
        directories: Sequence[str],
        blocking: Blocking,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._limbo = limbo
        self._disk = disk
        self._directories = directories
        self._blocking = blocking
        self._on_fatal = on_fatal
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Take what the file says. Raises `LimboDamaged`."""
        self._limbo.take(await self._blocking(read_limbo, self._disk, self._directories))

    async def vouch(self, ledger_ids: Iterable[int]) -> None:
        """These ledgers are whole here again: they leave limbo, durably.

        For who has found them closed, copied back all of them that this bookie is to hold, and
        fenced them here.
        """
        async with self._lock:
            if self._limbo.record is not None:
                await self._replace(vouched(self._limbo.record, ledger_ids))

    async def end(self) -> None:
        """All ledgers that name this bookie are whole here: the limbo is over, durably."""
        async with self._lock:
            if self._limbo.record is not None:
                await self._replace(replace(self._limbo.record, over=True))

    async def _replace(self, record: LimboRecord) -> None:
        try:
            await self._blocking(write_limbo, self._disk, self._directories, record)
        except SyncFailed as error:
            self._on_fatal(error)
            raise
        self._limbo.take(record)
