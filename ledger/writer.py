"""The writer of one ledger: drives `writing.py` over real bookies.

The way of an add: `add` notes payload and callback → once per loop turn `_flush` encodes all of
them (`pending.py`) and hands the same bytes to every bookie of the ensemble → `added` comes back
with a run of entries → `writing.acked` says what is confirmed → the callbacks, in order.

Relies on the event loop alone: no locks, and nothing here blocks. When it crashes, what was acked
is durable, and the ledger is closed by whoever recovers it.

Back-pressure. `pending_bytes` counts what any live bookie of the ensemble still owes an ack for;
above its bound `drain` waits. So the slowest live bookie sets the pace in the long run, a hiccup
of one is absorbed by the bound, and memory stays bounded (pulsar #14861). A bookie that gives no
sign of life for `add_timeout_s` is no longer live: its change begins and it is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from ledger import writing
from ledger.bookies import Lane
from ledger.errors import (
    BookieUnavailable,
    LedgerClosed,
    LedgerFenced,
    OutcomeUnknown,
    PayloadTooLong,
    WriterBusy,
)
from ledger.pending import Pending
from ledger.records import ChangeLost, ChangeWritten, change_record
from ledger.sender import Sender
from ledger.writing import (
    ChangeDelayed,
    ChooseReplacements,
    Closed,
    Confirmed,
    Ended,
    EnsembleChanged,
    Send,
    Stalled,
    State,
    WriteMetadata,
    Writing,
)
from metadata.ledgers import LedgerMetadata
from protocol.codes import Code, OctavoError, error_for
from protocol.entry import Buffer
from protocol.extension import Op
from protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from ledger.ledgers import LedgerClient

log = structlog.get_logger()

AddDone = Callable[[int, OctavoError | None], None]
WriterEvent = EnsembleChanged | ChangeDelayed | Stalled | Ended | Closed
_HELD_FACTOR_MAX = 4
"""`add` itself refuses at so many times the bound: a caller that never drains is a bug."""
_FATAL = (Code.FENCED, Code.UNAUTHORIZED, Code.NO_LEDGER)


class LedgerWriter:
    """One ledger, open for writing by this process. Made by `LedgerClient.create`."""

    def __init__(self, client: LedgerClient, metadata: LedgerMetadata, version: int) -> None:
        self._client = client
        self._options = client.options
        self._loop = asyncio.get_running_loop()
        self._core = Writing(metadata, version)
        self._pending = Pending(metadata, self._core.quorum)
        self._senders: list[Sender] = []
        self._by_bookie: dict[str, Sender] = {}
        self._payloads: list[bytes] = []
        self._payload_bytes = 0
        self._dones: deque[AddDone] = deque()
        self._answered = -1
        self._next_entry = 0
        self._flush_scheduled = False
        self._drained: list[asyncio.Future[None]] = []
        self._error: OctavoError | None = None
        self._closing: asyncio.Task[LedgerMetadata] | None = None
        self._closed: asyncio.Future[LedgerMetadata] | None = None
        self._all_answered: asyncio.Future[None] | None = None
        self._length_at_end: int | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._announced_lac = -1
        self._flushed_at = self._loop.time()
        self._retry_at = 0.0
        self.on_event: list[Callable[[WriterEvent], None]] = []
        """Called with each event of `WriterEvent`, on the loop."""
        self._stop_watching = client.bookies.on_change(self._spares_changed)
        self._sync_senders()

    # ------------------------------------------------------------------ what a caller sees

    @property
    def ledger_id(self) -> int:
        """Its id."""
        return self._core.metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record, as this writer last knew it."""
        return self._core.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is durable, with all before it; −1 at first."""
        return self._core.lac

    @property
    def last_add_pushed(self) -> int:
        """The last entry that was added; −1 at first."""
        return self._next_entry - 1

    @property
    def length(self) -> int:
        """Payload bytes of all that was added."""
        return self._pending.length + self._payload_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes held because some live bookie has not acked them."""
        return self._pending.held_bytes + self._payload_bytes

    @property
    def failed_bookies(self) -> tuple[str, ...]:
        """Members of the ensemble that are not written to at present."""
        return tuple(self._core.ensemble[position] for position in sorted(self._core.down))

    @property
    def error(self) -> OctavoError | None:
        """Why nothing can be added any more; None while it can."""
        return self._error

    def add(self, payload: Buffer, done: AddDone) -> int:
        """Append; `done(entry_id, error)` is called later, in entry order. Returns the entry id.

        A `bytes` payload is not copied. Raises `LedgerFenced`, `LedgerClosed` or whatever ended
        the writer, `PayloadTooLong`, and `WriterBusy` when far more than `drain` allows is pending.
        After an error other than None the entry may still exist (`OutcomeUnknown`).
        """
        if self._error is not None:
            raise self._error
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
        """Append and wait until it is durable; returns the entry id."""
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
        """Wait while more is pending than the bound. Returns at once on a writer that ended."""
        while self._is_full() and self._error is None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(waiter)
            await waiter

    async def close(self) -> LedgerMetadata:
        """Refuse new adds, wait for those under way, close the ledger at the last confirmed one.

        All callers get the same answer. Raises `LedgerFenced` when somebody else closes it, and
        what the metadata store raises; the ledger is then closed by its recovery.
        """
        if self._closing is None:
            if self._error is None:
                self._error = LedgerClosed(f"ledger {self.ledger_id} was closed by its writer")
            self._closing = self._client.spawn(self._close())
        return await asyncio.shield(self._closing)

    # ------------------------------------------------------------------ adds

    def _is_full(self) -> bool:
        options = self._options
        held = self._next_entry - min(self._pending.held_from, self._answered + 1)
        return self.pending_bytes > options.pending_bytes_max or held > options.pending_entries_max

    def _overfull(self) -> bool:
        options = self._options
        return (
            self.pending_bytes > _HELD_FACTOR_MAX * options.pending_bytes_max
            or len(self._dones) > _HELD_FACTOR_MAX * options.pending_entries_max
        )

    def _flush(self) -> None:
        """Encode what was added in this loop turn and hand it to the ensemble."""
        self._flush_scheduled = False
        if not self._payloads or self._core.state not in writing.ADDABLE:
            return
        payloads, self._payloads = self._payloads, []
        self._payload_bytes = 0
        core, pending = self._core, self._pending
        lac, start = core.lac, 0
        now = self._flushed_at = self._loop.time()
        while start < len(payloads):
            chunk, stop = pending.encode(payloads, start, lac)
            core.push(stop - start)
            start = stop
            frames = pending.frames(chunk) if core.quorum.everywhere else None
            for sender in self._senders:
                sender.push(chunk, frames, now)
        self._announced_lac = max(self._announced_lac, lac)
        self._client.keep_ticking(self)

    # ------------------------------------------------------------------ what bookies answer

    def added(self, bookie_id: str, first: int, last: int) -> None:
        """A bookie stored these entries."""
        sender = self._by_bookie.get(bookie_id)
        if sender is None:
            return
        sender.heard(self._loop.time(), last - first + 1)
        self._perform(self._core.acked(bookie_id, first, last))
        self._release()

    def add_refused(self, bookie_id: str, code: int, first: int, last: int) -> None:
        """A bookie did not store these entries."""
        sender = self._by_bookie.get(bookie_id)
        if sender is None:
            return
        what = f"bookie {bookie_id}: add of ledger {self.ledger_id} entries {first} to {last}"
        if code == Code.TOO_MANY_REQUESTS:
            sender.busy(self._loop.time(), first, last)
        elif code in _FATAL:
            error = LedgerFenced(what) if code == Code.FENCED else error_for(code, what)
            self._perform(self._core.refused(bookie_id, error))
        else:
            self._client.bookies.suspect(bookie_id)
            self._perform(self._core.failed(bookie_id, error_for(code, what)))
        self._release()

    def bookie_up(self, bookie_id: str) -> None:
        """A connection stands."""
        sender = self._by_bookie.get(bookie_id)
        if sender is not None:
            sender.attach(self._loop.time())
            self._perform(self._core.returned(bookie_id))
            sender.pump()

    def bookie_down(self, bookie_id: str, error: BookieUnavailable) -> None:
        """The connection broke, and with it what was under way."""
        if bookie_id in self._by_bookie:
            self._client.bookies.suspect(bookie_id)
            self._perform(self._core.failed(bookie_id, error))
            self._release()

    def bookie_writable(self, bookie_id: str) -> None:
        """It takes bytes again."""
        sender = self._by_bookie.get(bookie_id)
        if sender is not None:
            sender.pump()

    # ------------------------------------------------------------------ actions

    def _perform(self, actions: list[writing.Action]) -> None:
        todo = deque(actions)
        while todo:
            action = todo.popleft()
            match action:
                case Confirmed(last_entry):
                    self._confirm(last_entry)
                case ChooseReplacements():
                    todo.extend(self._core.chosen(self._client.replacements(action, self.metadata)))
                case WriteMetadata(metadata, version):
                    self._client.spawn(self._change_record(metadata, version))
                case Send(position, _, first_entry):
                    self._sync_senders()
                    self._senders[position].restart(first_entry, self._loop.time())
                case EnsembleChanged():
                    self._sync_senders()
                    self._tell("ensemble_changed", action)
                case ChangeDelayed():
                    self._retry_later()
                    self._tell("ensemble_change_delayed", action)
                case Stalled():
                    self._retry_later()
                    self._start_stall_timer()
                    self._tell("writer_stalled", action)
                case Ended(error):
                    self._end(error)
                    self._tell("ledger_fenced" if self._core.fenced else "writer_ended", action)
                case Closed(metadata):
                    self._end(self._error or LedgerClosed(f"ledger {self.ledger_id} is closed"))
                    if self._closed is not None and not self._closed.done():
                        self._closed.set_result(metadata)
                    self._tell("ledger_closed", action)
        if self._senders:
            for position, sender in enumerate(self._senders):
                sender.down = position in self._core.down

    def _confirm(self, last_entry: int) -> None:
        popleft = self._dones.popleft
        while self._answered < last_entry:
            try:
                for entry_id in range(self._answered + 1, last_entry + 1):
                    self._answered = entry_id
                    popleft()(entry_id, None)
            except Exception as error:  # a caller's bug must not cost the others their answers
                self._loop.call_exception_handler(
                    {"message": f"callback of ledger {self.ledger_id} failed", "exception": error}
                )
        if self._all_answered is not None and not self._dones:
            self._answer_closer()

    def _answer_closer(self) -> None:
        if self._all_answered is not None and not self._all_answered.done():
            self._all_answered.set_result(None)

    def _release(self) -> None:
        """Let go of what no bookie of the ensemble will be sent again."""
        core = self._core
        acked_to = core.acks.acked_to
        floor = core.lac
        for position in range(len(acked_to)):
            if acked_to[position] < floor and position not in core.down:
                floor = acked_to[position]
        self._pending.release(floor)
        if self._drained and not self._is_full():
            self._wake()

    def _wake(self) -> None:
        waiters, self._drained = self._drained, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _end(self, error: OctavoError) -> None:
        """No further ack: whoever waits gets an error, in order."""
        if self._error is None or not isinstance(error, LedgerClosed):
            self._error = error
        self._cancel_stall_timer()
        if self._length_at_end is None:
            self._length_at_end = self._pending.length_at(self._core.lac)
        closed = self._core.state is State.CLOSED
        sent_to = self._core.lap
        dones, self._dones = self._dones, deque()
        self._payloads.clear()
        self._payload_bytes = 0
        for entry_id, done in enumerate(dones, self._answered + 1):
            known = closed or entry_id > sent_to
            outcome = error if known else OutcomeUnknown(self.ledger_id, entry_id, error)
            with contextlib.suppress(Exception):
                done(entry_id, outcome)
        if self._closed is not None and not self._closed.done() and not closed:
            self._closed.set_exception(error)
        self._wake()
        self._answer_closer()
        self._detach_all()

    def _tell(self, event: str, action: WriterEvent) -> None:
        match action:
            case EnsembleChanged(first_entry, old, new):
                log.info(event, ledger=self.ledger_id, first_entry=first_entry, old=old, new=new)
            case ChangeDelayed(bookies) | Stalled(bookies):
                log.warning(event, ledger=self.ledger_id, failed=bookies)
            case Ended(error):
                log.warning(event, ledger=self.ledger_id, error=error.name, reason=str(error))
            case Closed(metadata):
                log.info(event, ledger=self.ledger_id, last_entry=metadata.last_entry)
        for listener in tuple(self.on_event):
            listener(action)

    def abandon(self, error: OctavoError) -> None:
        """The client is closing: no further ack; the ledger stays open, for its recovery."""
        self._perform(self._core.abandon(error))

    # ------------------------------------------------------------------ the ensemble

    def _sync_senders(self) -> None:
        """One sender for each position, with the bookie that stands there now."""
        for position, bookie_id in enumerate(self._core.ensemble):
            if position < len(self._senders):
                if self._senders[position].bookie.bookie_id == bookie_id:
                    continue
                self._detach(self._senders[position])
            bookie = self._client.bookies.get(bookie_id, Lane.NORMAL)
            sender = Sender(self, self._core, self._pending, position, bookie, self._options)
            self._senders[position : position + 1] = [sender]
            self._by_bookie[bookie_id] = sender
            sender.attach(self._loop.time())
            bookie.listen(self)

    def _detach(self, sender: Sender) -> None:
        self._by_bookie.pop(sender.bookie.bookie_id, None)
        sender.stop()
        sender.bookie.unlisten(self)

    def _detach_all(self) -> None:
        for sender in self._senders:
            self._detach(sender)
        self._senders = []
        self._stop_watching()
        self._client.forget(self)
        self._pending.release(self._pending.next_entry)

    def _spares_changed(self) -> None:
        self._perform(self._core.spares_changed())
        self._release()

    def _retry_later(self) -> None:
        self._retry_at = self._loop.time() + self._options.retry_failed_bookie_ms / 1000
        self._client.keep_ticking(self)

    def _start_stall_timer(self) -> None:
        if self._stall is None:
            self._stall = self._loop.call_later(self._options.stall_timeout_s, self._give_up)

    def _cancel_stall_timer(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _give_up(self) -> None:
        self._stall = None
        self._perform(self._core.give_up())

    # ------------------------------------------------------------------ the clock

    def tick(self, now: float) -> bool:
        """Deadlines and the explicit LAC; False when nothing here waits for time to pass."""
        core = self._core
        if core.state not in writing.ADDABLE:
            return False
        if core.state is not State.STALLED:
            self._cancel_stall_timer()
        for sender in tuple(self._senders):
            if sender.overdue(now):
                self._time_out(sender, now)
        if core.down and now >= self._retry_at:
            self._retry_failed()
        self._announce_lac(now)
        owed = any(sender.owes() for sender in self._senders)
        return bool(owed or core.down or self._announced_lac < core.lac)

    def _time_out(self, sender: Sender, now: float) -> None:
        bookie, timeout_s = sender.bookie, self._options.add_timeout_s
        error = BookieUnavailable(bookie.bookie_id, f"acked no add for {timeout_s:g} s")
        self._client.bookies.suspect(bookie.bookie_id)
        self._perform(self._core.failed(bookie.bookie_id, error))
        connection = bookie.connection
        if connection is not None and now - connection.received_at >= timeout_s:
            bookie.drop(error.reason)

    def _retry_failed(self) -> None:
        """Failed bookies without a replacement: is one well again, or is there a spare?"""
        self._retry_later()
        self._client.bookies.probe()
        for position in sorted(self._core.down):
            sender = self._senders[position]
            if sender.bookie.is_up:
                self._perform(self._core.returned(sender.bookie.bookie_id))
        self._spares_changed()

    def _announce_lac(self, now: float) -> None:
        lac = self._core.lac
        idle_s = self._options.explicit_lac_interval_ms / 1000
        if lac <= self._announced_lac or now - self._flushed_at < idle_s:
            return
        self._announced_lac = lac
        body = {"ledger": self.ledger_id, "key": self._pending.key, "lac": lac}
        for position in self._core.live:
            bookie = self._senders[position].bookie
            if bookie.connection is not None and bookie.is_ours:
                bookie.connection.request(Op.WRITE_LAC, body, _ignore)

    # ------------------------------------------------------------------ metadata and close

    async def _change_record(self, metadata: LedgerMetadata, version: int) -> None:
        try:
            outcome = await change_record(
                self._client.records, metadata, version, self._options.metadata_timeout_s
            )
        except OctavoError as error:
            self._perform(self._core.metadata_lost(error))
            return
        match outcome:
            case ChangeWritten(new_version):
                self._perform(self._core.written(new_version))
            case ChangeLost(current, found):
                self._perform(self._core.conflict(current, found))
        self._release()

    async def _close(self) -> LedgerMetadata:
        core = self._core
        self._flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.metadata_timeout_s):
                if self._dones and core.state in writing.ADDABLE:
                    self._all_answered = self._loop.create_future()
                    await self._all_answered
        if core.fenced or core.state is State.CLOSED:
            assert self._error is not None
            raise self._error
        self._closed = self._loop.create_future()
        length = self._length_at_end
        if length is None:
            length = self._pending.length_at(core.lac)
        self._perform(core.close(length))
        return await self._closed


def _ignore(error: OctavoError | None, body: dict[str, Any]) -> None:
    """The explicit LAC is a courtesy: the next add carries it anyway."""
