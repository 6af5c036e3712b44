"""What is in each entry log, by its ledgers map: how many bytes, and how many of ledgers that live.

An estimate, good for choosing which logs to read. A sealed log's map is read anew each time; one
that a dead process left without a map is stepped through once and its sums are kept, in 16 bytes
for each ledger of it, up to a bound. Logs are looked at one after another, so the memory that it
takes is that of one log's map, and of the numbers that it returns.
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
"""Of logs without a map: 8 MiB."""
_LEDGERS_AT_ONCE = 2000


class _Sums(NamedTuple):
    """One log, as read."""

    bytes: int
    pairs: array[int]
    """Ledger, bytes, ledger, bytes, …"""

    def items(self) -> Iterator[tuple[int, int]]:
        """(ledger, bytes) one after another."""
        return zip(self.pairs[::2], self.pairs[1::2], strict=True)


class Counted(NamedTuple):
    """What was found."""

    logs: list[LogFacts]
    deleted: dict[int, None]
    """The deleted ledgers of which some log still holds records."""
    complete: bool
    """Whether every log could be looked at."""


class EntryLogMetadata:
    """Counts the logs of one bookie."""

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
        """Look at every log, or as far as it goes until the bookie stops."""
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
        # The log that is written to has room reserved: what counts there is what it holds.
        size = self._logs.size_of(log_id) if settled else sum(bytes_of.values())
        sums = _Sums(size, pairs)
        held = sum(len(one.pairs) for one in self._kept.values()) // 2
        if settled and log_end(self._logs, log_id).bytes_of is None and held < _KEPT_PAIRS_MAX:
            self._kept[log_id] = sums
        return sums
