"""The writer of a ledger, as its callers see it: add, wait, close.

`add` notes payload and callback; once per turn of the loop `ensemble_writer.py` sends the same
bytes to every bookie; `WriterState.acked` says which entries are confirmed; `confirmed` calls the
callbacks, in order.

With deferred syncs callers are answered when an ack quorum has written the entry, and the LAC
follows after a force.

Above the bound of entries that any live bookie has not acked, `drain` waits: so the slowest live
bookie sets the pace, and memory stays bounded (pulsar #14861). A bookie that sends nothing for
`add_timeout_s` is replaced, or the writer continues without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

import structlog

from octavo.ledger.actions import ChangeDelayed, Closed, Ended, EnsembleChanged, Forced, Stalled
from octavo.ledger.context import LedgerContext
from octavo.ledger.encryption import Sealing
from octavo.ledger.errors import (
    ClientClosed,
    LedgerClosed,
    OutcomeUnknown,
    PayloadTooLong,
    WriterBusy,
)
from octavo.ledger.write import writer_state
from octavo.ledger.write.ensemble_writer import EnsembleWriter, WriterEvent
from octavo.ledger.write.writer_state import State
from octavo.metadata.ledgers import LedgerMetadata
from octavo.protocol.codes import OctavoError, Unauthorized
from octavo.protocol.entry import Buffer
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

log = structlog.get_logger()

__all__ = ["AddDone", "LedgerWriter", "WriterEvent"]

AddDone = Callable[[int, OctavoError | None], None]
"""(entry id, None) when durable (with deferred syncs: written), else (entry id, error)."""
_HELD_FACTOR_MAX = 4
"""A caller that never drains has a bug."""


class LedgerWriter:
    def __init__(
        self,
        client: LedgerContext,
        metadata: LedgerMetadata,
        version: int,
        *,
        deferred: bool = False,
        sealing: Sealing | None = None,
    ) -> None:
        self._client = client
        self._sealing = sealing
        self._options = client.options
        self._loop = asyncio.get_running_loop()
        self._payloads: list[bytes] = []
        self._payload_bytes = 0
        self._dones: deque[AddDone] = deque()
        self._answered = -1
        self._next_entry = 0
        self._flush_scheduled = False
        self._drained: list[asyncio.Future[None]] = []
        self._forced: list[tuple[int, asyncio.Future[None]]] = []
        self._all_answered: asyncio.Future[None] | None = None
        self._confirming = False
        self._error: OctavoError | None = None
        self._closing: asyncio.Task[LedgerMetadata] | None = None
        self._closed: asyncio.Future[LedgerMetadata] | None = None
        self._length_at_end: int | None = None
        self.on_event: list[Callable[[WriterEvent], None]] = []
        seal = None if sealing is None else sealing.seal
        self._ensemble_writer = EnsembleWriter(
            client, metadata, version, self, deferred=deferred, seal=seal
        )
        self._core = self._ensemble_writer.core
        self._pending = self._ensemble_writer.pending

    def describe(self) -> dict[str, int]:
        return {
            "payload_bytes": self._payload_bytes,
            "unanswered": len(self._dones),
            "drains": sum(not one.done() for one in self._drained),
            "forces": sum(not one.done() for _, one in self._forced),
        }

    def waits_in_vain(self) -> str:
        """Name work that could run; empty when there is none."""
        if not self._is_full() and any(not one.done() for one in self._drained):
            return "callers wait for room, and there is room"
        return ""

    # ------------------------------------------------------------------ calls of the owner

    @property
    def ledger_id(self) -> int:
        return self._core.metadata.ledger_id

    @property
    def deferred(self) -> bool:
        """Whether an ack means only that the entry is written; see `force`."""
        return self._core.deferred

    @property
    def metadata(self) -> LedgerMetadata:
        return self._core.metadata

    @property
    def last_add_confirmed(self) -> int:
        """Return the last durable entry, with all entries before it; −1 at first."""
        return self._core.lac

    @property
    def last_add_pushed(self) -> int:
        """Return the last added entry; −1 at first."""
        return self._next_entry - 1

    @property
    def length(self) -> int:
        return self._pending.length + self._payload_bytes

    @property
    def pending_bytes(self) -> int:
        return self._pending.held_bytes + self._payload_bytes

    @property
    def failed_bookies(self) -> tuple[str, ...]:
        return tuple(self._core.ensemble[position] for position in sorted(self._core.down))

    @property
    def sealing(self) -> Sealing | None:
        """Return the sealing of an encrypted ledger, or None."""
        return self._sealing

    @property
    def error(self) -> OctavoError | None:
        """Adds raise this error from now on."""
        return self._error

    def add(self, payload: Buffer, done: AddDone) -> int:
        """Add an entry; `done(entry_id, error)` is called later, in entry order.

        Raises `LedgerFenced`, `LedgerClosed` or the error that ended the writer, `PayloadTooLong`,
        `KeyMissing`, and `WriterBusy` when far more than `drain` allows is pending. `done` gets
        `OutcomeUnknown` if the entry may be part of the ledger, another error if it certainly is
        not.
        """
        if self._error is not None:
            raise self._error
        if self._sealing is not None:
            self._sealing.check()
        if type(payload) is not bytes:
            payload = bytes(payload)
        size = len(payload)
        if size > ENTRY_PAYLOAD_BYTES_MAX:
            raise PayloadTooLong(size, ENTRY_PAYLOAD_BYTES_MAX)
        if self._overfull():
            raise WriterBusy(
                f"ledger {self.ledger_id}: {self.pending_bytes} bytes in {len(self._dones)} "
                "entries are pending; await drain() before adding more"
            )
        self._payloads.append(payload)
        self._payload_bytes += size
        self._dones.append(done)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        entry_id = self._next_entry
        self._next_entry = entry_id + 1
        return entry_id

    async def append(self, payload: Buffer) -> int:
        """Add an entry and wait until it is durable. Raises the errors of `add`."""
        await self.drain()
        future: asyncio.Future[int] = self._loop.create_future()

        def done(entry_id: int, error: OctavoError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(entry_id)
            else:
                future.set_exception(error)

        self.add(payload, done)
        return await future

    async def drain(self) -> None:
        """Wait while too much is pending. Returns at once if the writer ended."""
        while self._is_full() and self._error is None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(waiter)
            await waiter

    async def force(self) -> int:
        """Wait until every entry acked so far is durable; return the last one.

        Raises the error that ended the writer.
        """
        last_entry = self._core.written_to
        if last_entry > self._core.lac:
            if self._error is not None and self._core.state not in writer_state.ADDABLE:
                raise self._error
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._forced.append((last_entry, waiter))
            self._ensemble_writer.force(last_entry)
            await waiter
        return self._core.lac

    async def close(self) -> LedgerMetadata:
        """Refuse new adds, wait for pending ones, and close the ledger at the last confirmed entry.

        Entries that cannot be forced in time are not in the ledger. Raises `LedgerFenced` when
        another client closes it, and `MetadataUnavailable`: call again, or leave it to its
        recovery.
        """
        if self._closing is None or self._close_may_be_repeated(self._closing):
            if self._error is None:
                self._error = LedgerClosed(f"ledger {self.ledger_id} was closed by its writer")
            self._closing = self._client.spawn(self._close())
        return await asyncio.shield(self._closing)

    def _close_may_be_repeated(self, closing: asyncio.Task[LedgerMetadata]) -> bool:
        return closing.done() and self._core.state is State.ENDED and not self._core.fenced

    def abandon(self, error: OctavoError) -> None:
        """Acknowledge nothing more, and leave the ledger open.

        A callback of `add` may call this: entries confirmed with its entry are answered first.
        """
        if self._confirming:
            self._loop.call_soon(self.abandon, error)
        else:
            self._ensemble_writer.perform(self._core.abandon(error))

    # ------------------------------------------------------------------ adds and their answers

    def _is_full(self) -> bool:
        options = self._options
        held = self._next_entry - min(self._pending.held_from, self._answered + 1)
        return self.pending_bytes > options.pending_bytes_max or held > options.pending_entries_max

    def _overfull(self) -> bool:
        options = self._options
        return (
            self._pending.held_bytes + self._payload_bytes
            > _HELD_FACTOR_MAX * options.pending_bytes_max
            or len(self._dones) > _HELD_FACTOR_MAX * options.pending_entries_max
        )

    def _flush(self) -> None:
        """Hand on the adds of this turn of the loop."""
        self._flush_scheduled = False
        if self._payloads and self._core.state in writer_state.ADDABLE:
            payloads, self._payloads = self._payloads, []
            self._payload_bytes = 0
            self._ensemble_writer.push(payloads)

    def confirmed(self, last_entry: int) -> None:
        """Answer callers: all entries up to `last_entry` are durable."""
        if not self._core.deferred:
            self.written(last_entry)
            return
        waiting, self._forced = self._forced, []
        for wanted, waiter in waiting:
            if wanted > last_entry:
                self._forced.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self.tell(Forced(last_entry))

    def written(self, last_entry: int) -> None:
        popleft = self._dones.popleft
        self._confirming = True
        while self._answered < last_entry:
            try:
                for entry_id in range(self._answered + 1, last_entry + 1):
                    self._answered = entry_id
                    popleft()(entry_id, None)
            except Exception as error:  # a caller's bug must not keep others from their answer
                self._report(error)
        self._confirming = False
        if self._all_answered is not None and not self._dones:
            self._answer_closer()

    def _report(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": f"callback of ledger {self.ledger_id} failed", "exception": error}
        )

    def released(self) -> None:
        """Wake the callers of `drain` if there is room."""
        if self._drained and not self._is_full():
            self._wake()

    def _wake(self) -> None:
        waiters, self._drained = self._drained, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # ------------------------------------------------------------------ the end

    def tell(self, event: WriterEvent) -> None:
        """End the writer on `Ended` and `Closed`."""
        ledger_id = self.ledger_id
        match event:
            case EnsembleChanged(first_entry, old, new):
                log.info(
                    "ensemble_changed", ledger=ledger_id, first_entry=first_entry, old=old, new=new
                )
            case ChangeDelayed(bookies):
                log.warning("ensemble_change_delayed", ledger=ledger_id, failed=bookies)
            case Stalled(bookies):
                log.warning("writer_stalled", ledger=ledger_id, failed=bookies)
            case Forced():
                pass
            case Ended(ClientClosed() as error):
                log.info("writer_abandoned", ledger=ledger_id)
                self._end(error)
            case Ended(error):
                lost = self._core.fenced and not isinstance(error, Unauthorized)
                name = "ledger_fenced" if lost else "writer_ended"
                log.warning(name, ledger=ledger_id, error=error.name, reason=str(error))
                if isinstance(error, Unauthorized):
                    self._client.id_taken(ledger_id, str(error))
                self._end(error)
            case Closed(metadata):
                log.info("ledger_closed", ledger=ledger_id, last_entry=metadata.last_entry)
                self._end(LedgerClosed(f"ledger {ledger_id} was closed by its writer"))
                if self._closed is not None and not self._closed.done():
                    self._closed.set_result(metadata)
        for listener in tuple(self.on_event):
            listener(event)

    def _end(self, error: OctavoError) -> None:
        self._error = error
        if self._length_at_end is None:
            self._length_at_end = self._pending.length_at(self._core.lac)
        closed = self._core.state is State.CLOSED
        dones, self._dones = self._dones, deque()
        self._payloads.clear()
        self._payload_bytes = 0
        self._ensemble_writer.stop()
        for entry_id, done in enumerate(dones, self._answered + 1):
            certain = closed or entry_id > self._core.lap
            try:
                done(
                    entry_id, error if certain else OutcomeUnknown(self.ledger_id, entry_id, error)
                )
            except Exception as failure:
                self._report(failure)
        if self._closed is not None and not self._closed.done() and not closed:
            self._closed.set_exception(error)
        forced, self._forced = self._forced, []
        for _, waiter in forced:
            if not waiter.done():
                waiter.set_exception(error)
        self._wake()
        self._answer_closer()
        self._client.forget(self)

    def _answer_closer(self) -> None:
        if self._all_answered is not None and not self._all_answered.done():
            self._all_answered.set_result(None)

    async def _close(self) -> LedgerMetadata:
        core = self._core
        self._flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.metadata_timeout_s):
                if self._dones and core.state in writer_state.ADDABLE:
                    self._all_answered = self._loop.create_future()
                    await self._all_answered
                if core.state in writer_state.ADDABLE:
                    with contextlib.suppress(OctavoError):
                        await self.force()
        if core.fenced or core.state is State.CLOSED:
            assert self._error is not None
            raise self._error
        self._closed = self._loop.create_future()
        length = self._length_at_end
        if length is None:
            length = self._pending.length_at(core.lac)
        self._ensemble_writer.perform(core.close(length))
        return await self._closed
