"""Readers of ledgers that stay open while they are in use, a few of them at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar


class _Closes(Protocol):
    async def close(self) -> None: ...


Reader = TypeVar("Reader", bound=_Closes)


class OpenReaders(Generic[Reader]):
    """By ledger. For one more than `readers_max` the one that was not used longest is closed."""

    def __init__(self, readers_max: int) -> None:
        self._readers_max = readers_max
        self._open: OrderedDict[int, Reader] = OrderedDict()

    def get(self, ledger_id: int) -> Reader | None:
        """The one that is open."""
        return self._open.get(ledger_id)

    async def get_or_open(
        self, ledger_id: int, opened_by: Callable[[], Awaitable[Reader]]
    ) -> Reader:
        """The one that is open, or a new one. Raises what opening raises."""
        reader = self._open.get(ledger_id)
        if reader is None:
            opened = await opened_by()
            reader = self._open.setdefault(ledger_id, opened)
            # Before anything is awaited: others may drop it, or open one more, meanwhile.
            self._open.move_to_end(ledger_id)
            if reader is not opened:  # somebody else was quicker
                await opened.close()
            if len(self._open) > self._readers_max:
                await self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(ledger_id)
        return reader

    async def drop(self, ledger_id: int, reader: Reader) -> None:
        """Close it: whoever asks next opens a new one."""
        if self._open.get(ledger_id) is reader:
            del self._open[ledger_id]
        await reader.close()

    async def close(self) -> None:
        """Close all, also those that are being opened: nobody would come back for them."""
        self._readers_max = 0
        while self._open:
            await self._open.popitem()[1].close()
