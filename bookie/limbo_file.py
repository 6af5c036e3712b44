"""Keeps the limbo file and what is in memory of it the same: loaded at a start, then vouching.

What is in memory changes only after the file has: a crash never makes a bookie surer than it was
told to be. Rules and format: limbo.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from bookie.blocking import Blocking
from bookie.disk import Disk, SyncFailed
from bookie.limbo import Limbo, read_limbo, vouched, write_limbo


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
        """See `Storage.vouch`."""
        async with self._lock:
            if self._limbo.record is None:
                return
            record = vouched(self._limbo.record, ledger_ids)
            try:
                await self._blocking(write_limbo, self._disk, self._directories, record)
            except SyncFailed as error:
                self._on_fatal(error)
                raise
            self._limbo.take(record)
