"""Keeps one open ledger's entries on its ensemble: drives `writer_state.py` over real bookies.

Acks, refusals, broken connections and the clock become events of the pure core, whose actions are
carried out here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from octavo.ledger.actions import (
    ChangeDelayed,
    ChooseReplacements,
    Closed,
    Confirmed,
    Ended,
    EnsembleChanged,
    Forced,
    Send,
    Stalled,
    WriteMetadata,
    WriterAction,
    Written,
)
from octavo.ledger.bookies.bookies import RequestClass
from octavo.ledger.context import LedgerContext
from octavo.ledger.errors import BookieUnavailable, LedgerFenced
from octavo.ledger.records import ChangeLost, ChangeWritten, change_record
from octavo.ledger.write import writer_state
from octavo.ledger.write.bookie_channel import BookieChannel
from octavo.ledger.write.forces import Forces
from octavo.ledger.write.pending import Pending
from octavo.ledger.write.writer_state import Force, State, WriterState
from octavo.metadata.ledgers import LedgerMetadata
from octavo.protocol.backoff import Backoff
from octavo.protocol.codes import Code, OctavoError, error_for
from octavo.protocol.entry import digest_for, pack_lac
from octavo.protocol.extension import Op

_FATAL = (Code.FENCED, Code.UNAUTHORIZED, Code.NO_LEDGER)
"""After such an answer from any bookie the writer ends."""

_GIVE_UP_PAUSE_S = 0.02
"""The pause while a failed bookie is retried and the stall time ends."""
_TELL_AGAIN_S = 240.0
"""An idle ledger's LAC is sent to Apache bookies again after this time."""
_ANNOUNCE_PAUSE_S_MAX = 5.0

WriterEvent = EnsembleChanged | ChangeDelayed | Stalled | Forced | Ended | Closed


class ReplicationOwner(Protocol):
    def confirmed(self, last_entry: int) -> None:
        """Report that all entries up to `last_entry` are durable."""

    def written(self, last_entry: int) -> None:
        """Report that an ack quorum has written the entries, perhaps not durably."""

    def released(self) -> None:
        """Report that pending entries may have been released."""

    def tell(self, event: WriterEvent) -> None:
        """Report an event for the log, or the end of the writer."""


class EnsembleWriter:
    def __init__(
        self,
        client: LedgerContext,
        metadata: LedgerMetadata,
        version: int,
        owner: ReplicationOwner,
        *,
        deferred: bool = False,
        seal: Callable[[int, bytes], bytes] | None = None,
    ) -> None:
        self.core = WriterState(metadata, version, deferred=deferred)
        self.pending = Pending(metadata, self.core.quorum, deferred=deferred, seal=seal)
        self._client = client
        self._options = client.options
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._ledger_id = metadata.ledger_id
        # A force may sync much data: a slow one is no reason to replace a bookie.
        timeout_s = max(client.options.add_timeout_s, client.options.stall_timeout_s)
        self._forces = Forces(self.core, timeout_s, self._forced, self._force_failed)
        self._channels: list[BookieChannel] = []
        self._by_bookie: dict[str, BookieChannel] = {}
        self._stall: asyncio.TimerHandle | None = None
        self._stalled_lac = -1
        self._announced_lac = -1
        """Live bookies know it, or an add under way carries it."""
        self._announcing_lac = -1
        self._announce_at = 0.0
        self._announce_pauses = self._pauses_of_announcing()
        self._telling_again: asyncio.TimerHandle | None = None
        self._told: dict[str, None] = {}
        """Bookies that have confirmed the announced LAC."""
        self._flushed_at = self._loop.time()
        self._retry_at = 0.0
        self._stop_watching = client.bookies.on_change(self._spares_changed)
        self._sync_senders()

    def push(self, payloads: Sequence[bytes]) -> None:
        core, pending = self.core, self.pending
        lac, start = core.lac, 0
        now = self._flushed_at = self._loop.time()
        while start < len(payloads):
            chunk, stop = pending.encode(payloads, start, lac)
            core.push(stop - start)
            start = stop
            frames = pending.frames(chunk) if core.quorum.everywhere else None
            for channel in self._channels:
                channel.push(chunk, frames, now)
        self._announced_lac = max(self._announced_lac, lac)
        self._client.keep_ticking(self)

    # ------------------------------------------------------------------ answers of bookies

    def added(self, bookie_id: str, first: int, last: int) -> None:
        channel = self._by_bookie.get(bookie_id)
        if channel is None:
            return
        self.perform(self.core.acked(bookie_id, first, last))
        # How many acks the bookie still owes decides how much more it is sent.
        channel.heard(self._loop.time(), last - first + 1)
        self._release()
        if self.core.deferred:
            if self._is_half_full():
                self._forces.wanted = self.core.written_to
            self._forces.pump(self._channels)

    def _is_half_full(self) -> bool:
        """Whether unforced entries fill half the bound: force them before callers wait."""
        pending, options = self.pending, self._options
        return 2 * pending.held_bytes > options.pending_bytes_max or (
            2 * (pending.next_entry - pending.held_from) > options.pending_entries_max
        )

    def force(self, last_entry: int) -> None:
        """Make acked entries durable, with deferred syncs."""
        self._forces.wanted = max(self._forces.wanted, last_entry)
        self._forces.pump(self._channels)
        self._client.keep_ticking(self)

    def _forced(self, asked: Force) -> None:
        self.perform(self.core.forced(asked))
        self._release()
        self._forces.pump(self._channels)

    def _force_failed(self, bookie_id: str, error: OctavoError) -> None:
        self._client.bookies.suspect(bookie_id)
        self.perform(self.core.failed(bookie_id, error))
        self._release()

    def add_refused(self, bookie_id: str, code: int, first: int, last: int) -> None:
        channel = self._by_bookie.get(bookie_id)
        if channel is None:
            return
        what = f"bookie {bookie_id}: add of ledger {self._ledger_id} entries {first} to {last}"
        if code == Code.TOO_MANY_REQUESTS:
            channel.busy(self._loop.time(), first, last)
        elif code in _FATAL:
            error = LedgerFenced(what) if code == Code.FENCED else error_for(code, what)
            self.perform(self.core.refused(bookie_id, error))
        else:
            self._client.bookies.suspect(bookie_id)
            self.perform(self.core.failed(bookie_id, error_for(code, what)))
        self._release()

    def bookie_up(self, bookie_id: str) -> None:
        """Send a returned bookie its unconfirmed entries again."""
        channel = self._by_bookie.get(bookie_id)
        if channel is not None:
            channel.attach(self._loop.time())
            self.perform(self.core.returned(bookie_id))
            self._release()
            channel.pump()
            self._forces.pump(self._channels)

    def bookie_down(self, bookie_id: str, error: BookieUnavailable) -> None:
        if bookie_id in self._by_bookie:
            self._client.bookies.suspect(bookie_id)
            self.perform(self.core.failed(bookie_id, error))
            self._release()

    def bookie_writable(self, bookie_id: str) -> None:
        channel = self._by_bookie.get(bookie_id)
        if channel is not None:
            channel.pump()

    # ------------------------------------------------------------------ actions

    def perform(self, actions: list[WriterAction]) -> None:
        if not actions:
            return
        todo = deque(actions)
        while todo:
            action = todo.popleft()
            match action:
                case Confirmed(last_entry):
                    self._owner.confirmed(last_entry)
                case Written(last_entry):
                    self._owner.written(last_entry)
                case ChooseReplacements():
                    spares = self._client.replacements(action, self.core.metadata)
                    todo.extend(self.core.chosen(spares))
                case WriteMetadata(metadata, version):
                    self._client.spawn(self._change_record(metadata, version))
                case Send(position, bookie_id, first_entry):
                    self._forces.forget(bookie_id)
                    self._channels[position].restart(first_entry, self._loop.time())
                case EnsembleChanged():
                    self._sync_senders()
                    self._owner.tell(action)
                case ChangeDelayed() | Stalled():
                    self._retry_later()
                    self._start_stall_timer()
                    self._owner.tell(action)
                case Ended() | Closed():
                    self._owner.tell(action)

    async def _change_record(self, metadata: LedgerMetadata, version: int) -> None:
        try:
            outcome = await change_record(
                self._client.records, metadata, version, self._options.metadata_timeout_s
            )
        except OctavoError as error:
            self.perform(self.core.metadata_lost(error))
            return
        match outcome:
            case ChangeWritten(new_version):
                self.perform(self.core.written(new_version))
            case ChangeLost(current, found):
                self.perform(self.core.conflict(current, found))
        self._release()

    def _release(self) -> None:
        """Release entries that will not be sent again."""
        core = self.core
        floor = core.lac
        for position, acked_to in enumerate(core.acks.acked_to):
            if acked_to < floor and position not in core.down:
                # The next entry in whose write set it is.
                floor = min(floor, core.quorum.next_held(position, acked_to) - 1)
        self.pending.release(floor)
        self._owner.released()

    def stop(self) -> None:
        """Stop sending; a second call does nothing."""
        self._cancel_stall_timer()
        if self._telling_again is not None:
            self._telling_again.cancel()
            self._telling_again = None
        for channel in self._channels:
            self._detach(channel)
        self._channels = []
        self._stop_watching()
        self._client.stop_ticking(self)
        self.pending.release(self.pending.next_entry)

    def fail(self, error: OctavoError) -> None:
        """End the writer with an error; the ledger stays open until its recovery."""
        self.perform(self.core.abandon(error))

    # ------------------------------------------------------------------ the ensemble

    def _sync_senders(self) -> None:
        for position, bookie_id in enumerate(self.core.ensemble):
            if position < len(self._channels):
                if self._channels[position].bookie.bookie_id == bookie_id:
                    continue
                self._detach(self._channels[position])
            bookie = self._client.bookies.get(bookie_id, RequestClass.NORMAL)
            channel = BookieChannel(self, self.core, self.pending, position, bookie, self._options)
            self._channels[position : position + 1] = [channel]
            self._by_bookie[bookie_id] = channel
            channel.attach(self._loop.time())
            bookie.listen(self)

    def _detach(self, channel: BookieChannel) -> None:
        self._by_bookie.pop(channel.bookie.bookie_id, None)
        self._forces.forget(channel.bookie.bookie_id)
        channel.stop()
        channel.bookie.unlisten(self)

    def _spares_changed(self) -> None:
        self.perform(self.core.spares_changed())
        self._release()

    def _retry_later(self) -> None:
        self._retry_at = self._loop.time() + self._options.retry_failed_bookie_ms / 1000
        self._client.keep_ticking(self)

    def _start_stall_timer(self) -> None:
        if self._stall is None and self.core.state is State.STALLED:
            self._stalled_lac = self.core.lac
            self._stall = self._loop.call_later(self._options.stall_timeout_s, self._give_up)

    def _cancel_stall_timer(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _give_up(self) -> None:
        self._stall = None
        if self.core.state is State.OPEN:  # a failed bookie is being retried: give it this chance
            self._stall = self._loop.call_later(_GIVE_UP_PAUSE_S, self._give_up)
        else:
            core = self.core
            failed = {core.ensemble[p]: str(error) for p, error in core.down.items()}
            self.perform(core.give_up(self._client.why_no_choice(failed)))

    # ------------------------------------------------------------------ the clock

    def tick(self, now: float) -> bool:
        """Return False when nothing waits for time."""
        core = self.core
        if core.state not in writer_state.ADDABLE:
            return False
        if core.state is State.OPEN and (core.lac > self._stalled_lac or core.lac == core.lap):
            self._cancel_stall_timer()  # a bookie that returns only to refuse does not end a stall
        for channel in tuple(self._channels):
            if channel.overdue(now):
                self._time_out(channel, now)
        if core.down and now >= self._retry_at:
            self._retry_failed()
        announcing = self._announce_lac(now)
        self._forces.rested()
        self._forces.pump(self._channels)
        owed = any(channel.owes() for channel in self._channels)
        return bool(owed or core.down or announcing or self._forces.are_owed)

    def _time_out(self, channel: BookieChannel, now: float) -> None:
        bookie, timeout_s = channel.bookie, self._options.add_timeout_s
        error = BookieUnavailable(bookie.bookie_id, f"acked no add for {timeout_s:g} s")
        connection = bookie.connection
        self._client.bookies.suspect(bookie.bookie_id)
        self.perform(self.core.failed(bookie.bookie_id, error))
        self._release()
        if connection is not None and now - connection.received_at >= timeout_s:
            bookie.drop(error.reason)

    def _retry_failed(self) -> None:
        """Retry failed bookies without a replacement, and look for spares."""
        self._retry_later()
        self._client.bookies.probe()
        self._spares_changed()
        for position in sorted(self.core.down):
            if position < len(self._channels) and self._channels[position].bookie.is_up:
                self.perform(self.core.returned(self.core.ensemble[position]))
        self._release()

    def _announce_lac(self, now: float) -> bool:
        """Tell an idle ledger's bookies its LAC.

        Otherwise a reader at the end would wait for the last entry until the next add. False when
        all have confirmed.
        """
        lac = self.core.lac
        if lac <= self._announced_lac:
            return False
        idle_s = self._options.explicit_lac_interval_ms / 1000
        if lac != self._announcing_lac:
            self._announcing_lac, self._told = lac, {}
            self._announce_at, self._announce_pauses = now, self._pauses_of_announcing()
        if now - self._flushed_at < idle_s or now < self._announce_at:
            return True
        live = [self._channels[position].bookie for position in self.core.live]
        untold = [bookie for bookie in live if bookie.bookie_id not in self._told]
        if not untold:
            if not self.core.down:  # resend when it is back
                self._announced_lac = lac
            return bool(self.core.down)
        self._announce_at = now + self._announce_pauses.next_s()
        body = {"ledger": self._ledger_id, "key": self.pending.key, "lac": lac}
        for bookie in untold:
            if bookie.is_foreign:
                if self._telling_again is None:
                    self._telling_again = self._loop.call_later(_TELL_AGAIN_S, self._tell_again)
                if bookie.is_up:
                    self._client.spawn(self._tell_in_v3(bookie.bookie_id, lac))
            elif bookie.connection is not None and bookie.is_ours:
                done = partial(self._lac_told, bookie.bookie_id, lac)
                bookie.connection.request(Op.WRITE_LAC, body, done)
        return True

    async def _tell_in_v3(self, bookie_id: str, lac: int) -> None:
        """Tell an Apache bookie the explicit LAC, in v3: it takes it in no other way."""
        metadata = self.core.metadata
        signed = pack_lac(digest_for(metadata.digest_type, metadata.password), self._ledger_id, lac)
        done = partial(self._lac_told, bookie_id, lac)
        try:
            connection = await self._client.bookies.in_v3(bookie_id)
        except BookieUnavailable as error:
            done(error, {})
        else:
            connection.write_lac(self._ledger_id, lac, self.pending.key, signed, done)

    def _tell_again(self) -> None:
        """Announce the LAC again: Apache bookies keep it in memory for ten minutes."""
        self._telling_again = None
        self._announced_lac = self._announcing_lac = -1
        self._client.keep_ticking(self)

    def _pauses_of_announcing(self) -> Backoff:
        idle_s = self._options.explicit_lac_interval_ms / 1000
        return Backoff(idle_s, _ANNOUNCE_PAUSE_S_MAX, None)

    def _lac_told(
        self, bookie_id: str, lac: int, error: OctavoError | None, _body: dict[str, Any]
    ) -> None:
        if lac == self._announcing_lac and (error is None or not error.retryable):
            self._told[bookie_id] = None
