"""Adds with ids that callers choose, in any order: BookKeeper's WriteAdvHandle.

An early add waits here until all lower ids have come, because callers are answered in the order of
ids.
"""

from __future__ import annotations

import asyncio

from octavo.ledger.actions import Closed, Ended
from octavo.ledger.errors import (
    DuplicateEntryId,
    LedgerClosed,
    LedgerError,
    PayloadTooLong,
    WriterBusy,
)
from octavo.ledger.write.writer import AddDone, LedgerWriter, WriterEvent
from octavo.metadata.ledgers import LedgerMetadata
from octavo.protocol.codes import OctavoError
from octavo.protocol.entry import Buffer
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

_BUSY_PAUSE_S = 0.02
_EARLY_COST_BYTES = 200
"""A waiting entry costs this in addition to its payload."""


class ExplicitIds:
    """Adds entries under the caller's ids; no other caller may add to `writer` from then on."""

    def __init__(self, writer: LedgerWriter, early_bytes_max: int = 32 * 1024 * 1024) -> None:
        self._writer = writer
        self._early_bytes_max = early_bytes_max
        self._early: dict[int, tuple[bytes, AddDone]] = {}
        self.early_bytes = 0
        """The cost of entries that wait for lower ids."""
        writer.on_event.append(self._heard)

    def describe(self) -> dict[str, int]:
        return {"early_bytes": self.early_bytes, "early": len(self._early)}

    def add(self, entry_id: int, payload: Buffer, done: AddDone) -> None:
        """Add an entry; `done(entry_id, error)` is called in the order of ids.

        Raises `DuplicateEntryId`, `WriterBusy` when too many bytes wait for a lower id, and the
        errors of `LedgerWriter.add`.
        """
        if entry_id < 0:
            raise LedgerError(f"entry {entry_id}: ids begin with 0")
        following = self._writer.last_add_pushed + 1
        if entry_id < following or entry_id in self._early:
            raise DuplicateEntryId(self._writer.ledger_id, entry_id)
        if self._writer.error is not None:
            raise self._writer.error
        if entry_id == following:
            self._writer.add(payload, done)
            self._go_on()
            return
        data = bytes(payload)
        if len(data) > ENTRY_PAYLOAD_BYTES_MAX:
            raise PayloadTooLong(len(data), ENTRY_PAYLOAD_BYTES_MAX)
        cost = len(data) + _EARLY_COST_BYTES
        if self.early_bytes + cost > self._early_bytes_max:
            raise WriterBusy(
                f"ledger {self._writer.ledger_id}: {self.early_bytes} bytes in {len(self._early)} "
                f"entries wait for entry {following}; add that entry first"
            )
        self._early[entry_id] = data, done
        self.early_bytes += cost

    async def append(self, entry_id: int, payload: Buffer) -> None:
        await self._writer.drain()
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: int, error: OctavoError | None) -> None:
            if answered.done():
                return
            if error is None:
                answered.set_result(None)
            else:
                answered.set_exception(error)

        self.add(entry_id, payload, done)
        await answered

    async def close(self) -> LedgerMetadata:
        """Close the ledger; entries behind a gap are not part of it."""
        missing = self._writer.last_add_pushed + 1
        why = f"was closed before entry {missing} came"
        self._fail(LedgerClosed(f"ledger {self._writer.ledger_id} {why}"))
        return await self._writer.close()

    def _go_on(self) -> None:
        """Add the entries that are next; if the writer is busy, they keep waiting."""
        while (found := self._early.get(self._writer.last_add_pushed + 1)) is not None:
            payload, done = found
            entry_id = self._writer.last_add_pushed + 1
            try:
                self._writer.add(payload, done)
            except WriterBusy:
                asyncio.get_running_loop().call_later(_BUSY_PAUSE_S, self._go_on)
                return
            except OctavoError as error:
                self._fail(error)
                return
            del self._early[entry_id]
            self.early_bytes -= len(payload) + _EARLY_COST_BYTES

    def _heard(self, event: WriterEvent) -> None:
        match event:
            case Ended(error):
                self._fail(error)
            case Closed():
                self._fail(LedgerClosed(f"ledger {self._writer.ledger_id} was closed"))
            case _:
                pass

    def _fail(self, error: OctavoError) -> None:
        early, self._early = self._early, {}
        self.early_bytes = 0
        for entry_id, (_, done) in sorted(early.items()):
            done(entry_id, error)
