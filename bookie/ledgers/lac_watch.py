"""Parked readers: futures that end when a ledger's LAC passes a bound. Pure but for the futures."""

from __future__ import annotations

import asyncio


class LacWatches:
    """Used on the loop only. The caller bounds how many there are."""

    def __init__(self) -> None:
        self._parked: dict[int, dict[asyncio.Future[int], int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._parked.values()))

    def park(self, ledger_id: int, after: int) -> asyncio.Future[int]:
        """A future that ends with the LAC once it is above `after`. Cancel it to give it up."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._parked.setdefault(ledger_id, {})[future] = after
        future.add_done_callback(lambda done: self._leave(ledger_id, done))
        return future

    def moved(self, ledger_id: int, lac: int) -> None:
        """The LAC of a ledger went up."""
        for future, after in self._parked.get(ledger_id, {}).items():
            if lac > after and not future.done():
                future.set_result(lac)

    def cancel_all(self) -> None:
        """The bookie stops."""
        for parked in list(self._parked.values()):
            for future in parked:
                future.cancel()

    def _leave(self, ledger_id: int, done: asyncio.Future[int]) -> None:
        parked = self._parked.get(ledger_id, {})
        parked.pop(done, None)
        if not parked:
            self._parked.pop(ledger_id, None)
