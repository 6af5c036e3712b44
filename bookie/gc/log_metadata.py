"""Count all bytes and the bytes of live ledgers in each entry log, by its ledgers map.

They only choose which logs to read. Maps are read again each time; a log without a map is walked
once, and its sums are kept, up to a bound.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from octavo.bookie.disk.damage import DamagedRead, DamageRegistry
from octavo.bookie.disk.files import Blocking
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.gc.rules import LogFacts, longest
from octavo.bookie.index.log_slice import log_end
from octavo.bookie.ledgers.rules import Fate
from octavo.bookie.write.checkpoint import Checkpointer
from octavo.protocol.codes import BookieIOError

_KEPT_PAIRS_MAX = 500_000
"""The sums of logs without a map take at most 8 MiB."""
_LEDGERS_AT_ONCE = 2000


class _Sums(NamedTuple):
    bytes: int
    pairs: array[int]
    """Ledger, bytes, ledger, bytes, …"""

    def items(self) -> Iterator[tuple[int, int]]:
        return zip(self.pairs[::2], self.pairs[1::2], strict=True)


class Counted(NamedTuple):
    logs: list[LogFacts]
    deleted: dict[int, None]
    """Deleted ledgers that still have records in some log."""
    complete: bool


class EntryLogMetadata:
    def __init__(
        self,
        logs: EntryLogs,
        checkpointer: Checkpointer,
        blocking: Blocking,
        fate: Callable[[int], Fate],
        damages: DamageRegistry,
        stopping: Callable[[], bool],
    ) -> None:
        self._logs = logs
        self._stopping = stopping
        self._checkpointer = checkpointer
        self._blocking = blocking
        self._fate = fate
        self._damages = damages
        self._kept: dict[int, _Sums] = {}

    async def take(self, quarantine_left_ms: Mapping[int, int]) -> Counted:
        settled = await self._blocking(self._checkpointer.settled_log_id)
        found: list[LogFacts] = []
        deleted: dict[int, None] = {}
        complete = True
        log_ids = self._logs.log_ids
        for log_id in [kept for kept in self._kept if kept not in log_ids]:
            del self._kept[log_id]
        for log_id in log_ids:
            if self._stopping():
                return Counted(found, deleted, complete=False)
            try:
                sums = await self._blocking(self._sums, log_id, log_id < settled)
            except BookieIOError as error:
                complete = False
                why = str(error)
                if isinstance(error, DamagedRead):
                    damage = self._damages.add(error.damage)
                    why = f"damaged from byte {damage.offset} on: {damage.kind.value}"
                found.append(LogFacts(log_id, 0, 0, log_id >= settled, why_not=why))
                continue
            live = whole = 0
            waiting: list[int] = []
            for number, (ledger_id, count) in enumerate(sums.items()):
                whole += count
                if self._fate(ledger_id) is Fate.DELETED:
                    deleted[ledger_id] = None
                else:
                    live += count
                    if ledger_id in quarantine_left_ms:
                        waiting.append(ledger_id)
                if number % _LEDGERS_AT_ONCE == _LEDGERS_AT_ONCE - 1:
                    await asyncio.sleep(0)
            quarantined = longest(waiting, quarantine_left_ms)
            current = log_id >= settled
            found.append(LogFacts(log_id, sums.bytes, live, current, "", quarantined, whole))
        return Counted(found, deleted, complete)

    def _sums(self, log_id: int, settled: bool) -> _Sums:
        kept = self._kept.get(log_id)
        if kept is not None:
            return kept
        bytes_of = self._logs.ledgers_of(log_id)
        pairs = array("q", [number for pair in sorted(bytes_of.items()) for number in pair])
        # The current log's file is longer than its content: count the frames.
        size = self._logs.size_of(log_id) if settled else sum(bytes_of.values())
        sums = _Sums(size, pairs)
        held = sum(len(one.pairs) for one in self._kept.values()) // 2
        if settled and log_end(self._logs, log_id).bytes_of is None and held < _KEPT_PAIRS_MAX:
            self._kept[log_id] = sums
        return sums
