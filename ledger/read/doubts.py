"""Ask bookies to compare their copies of a doubtful entry (rereplication/comparing.py).

A reader cannot tell which of two entries that do not follow one another is wrong, nor where. So all
bookies that hold them are asked, at most once a minute per entry.
"""

from __future__ import annotations

import asyncio

import structlog

from octavo.ledger.context import LedgerContext
from octavo.metadata.ledgers import LedgerMetadata
from octavo.protocol.codes import OctavoError
from octavo.protocol.extension import Op

log = structlog.get_logger()

_AGAIN_S = 60.0
_KEPT_MAX = 1_000


class Doubts:
    def __init__(self, client: LedgerContext) -> None:
        self._client = client
        self._told: dict[tuple[int, int], float] = {}

    def tell(self, metadata: LedgerMetadata, entry_id: int) -> None:
        now = asyncio.get_running_loop().time()
        doubted = metadata.ledger_id, entry_id
        if now - self._told.get(doubted, now - _AGAIN_S) < _AGAIN_S:
            return
        self._told.pop(doubted, None)
        self._told[doubted] = now
        if len(self._told) > _KEPT_MAX:
            del self._told[next(iter(self._told))]
        first = max(0, entry_id - 1)
        holders = {
            bookie: None
            for one in range(first, entry_id + 1)
            for bookie in metadata.fragment_of(one).bookies
        }
        for bookie in holders:
            if self._client.bookies.get(bookie).is_ours:
                self._client.spawn(self._tell(bookie, metadata.ledger_id, first, entry_id))

    async def _tell(self, bookie: str, ledger_id: int, first: int, last: int) -> None:
        span = {"ledger": ledger_id, "first": first, "last": last}
        try:
            await self._client.request(bookie, Op.FETCH_COPIES, span)
        except OctavoError as error:
            log.info("doubt_not_told", bookie=bookie, ledger=ledger_id, reason=str(error))
