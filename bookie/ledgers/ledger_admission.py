"""Limit new ledgers on a bookie when many ledgers here may have no record in metadata.

Any client that reaches the port may write under any id, and each id takes memory until garbage
collection. So above a bound, a new ledger must first appear in a listing of all records; until then
the answer is `TooManyRequests`. Ledgers that are here or listed are never refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from octavo.bookie.ledgers.state import LedgerStates
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_BETWEEN_LISTINGS_S = 0.5

Listing = Callable[[], Awaitable[Sequence[int]]]
"""Returns all ledgers that have a record. Raises a `MetadataError`."""


class LedgerAdmission:
    def __init__(self, states: LedgerStates, unlisted_max: int) -> None:
        self._states = states
        self._unlisted_max = unlisted_max
        self._listed: frozenset[int] = frozenset()
        self._here_and_listed = 0
        self._listing: asyncio.Task[None] | None = None
        self._list: Listing | None = None
        self.on_begin: Callable[[], None] = lambda: None

    def ask(self, listing: Listing) -> None:
        """List ledgers with `listing` from now on; before this call, every ledger may begin."""
        self._list = listing

    def may_begin(self, ledger_id: int) -> bool:
        """Whether a ledger that is new here may begin; if so, count it."""
        if ledger_id in self._listed:
            self._here_and_listed += 1
            self.on_begin()
            return True
        if self._list is None or len(self._states) - self._here_and_listed < self._unlisted_max:
            self.on_begin()
            return True
        if self._listing is None:
            self._listing = asyncio.create_task(self._renew(self._list), name="list ledgers")
        return False

    async def close(self) -> None:
        self._list = None
        if self._listing is not None:
            self._listing.cancel()
            await asyncio.gather(self._listing, return_exceptions=True)

    async def _renew(self, listing: Listing) -> None:
        try:
            self._listed = frozenset(await listing())
            self._here_and_listed = sum(one in self._listed for one in self._states.all_ids())
            unlisted = len(self._states) - self._here_and_listed
            if unlisted >= self._unlisted_max:
                _log.warning("ledgers_without_record", ledgers=unlisted, bound=self._unlisted_max)
        except OctavoError as error:
            _log.warning("ledgers_not_listed", reason=str(error))
        await asyncio.sleep(_BETWEEN_LISTINGS_S)
        self._listing = None
