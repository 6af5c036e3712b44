"""The writer of a ledger as a pure state machine: pending and confirmed entries, replaced bookies.

Events are method calls; each returns the actions to carry out, in order. `ensemble_writer.py`
drives it for a ledger's owner, `recover/recovery_state.py` for write-backs (`publish=False`:
ensemble changes then stay in memory, P31).

Entries are confirmed in order (P13), by Qa bookies that the *published* ensemble names (P15,
BookKeeper #4097), never while an ensemble change is unresolved (P14). A fragment starts exactly at
the last confirmed entry + 1 (P17). After `Ended` nothing is confirmed (P19).

With deferred syncs (P21) only the answer to a force confirms. A failed bookie may have lost
unforced entries, so it or its replacement gets all of these again.

    state       means                                             leaves by
    OPEN        acks count                                        failed, close, refused
    CHOOSING    bookies failed; spares are being chosen           chosen
    PUBLISHING  a new ensemble is being written by CAS            written, conflict, failed
    STALLED     too few bookies live, no spare: wait for either   returned, spares_changed, give_up
    CLOSING     the closed record is being written by CAS         written, conflict
    CLOSED      the ledger is closed                              never
    ENDED       fenced, or cannot continue; close() may follow    close, unless fenced
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from octavo.ledger.actions import (
    ChangeDelayed,
    ChooseReplacements,
    Closed,
    Confirmed,
    Ended,
    EnsembleChanged,
    Send,
    Stalled,
    WriteMetadata,
    WriterAction,
    Written,
)
from octavo.ledger.errors import LedgerFenced, NotEnoughBookies, WriteRefused
from octavo.ledger.quorum import Acks, quorum_of
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.protocol.codes import OctavoError


class State(enum.Enum):
    OPEN = "open"
    CHOOSING = "choosing"
    PUBLISHING = "publishing"
    STALLED = "stalled"
    CLOSING = "closing"
    CLOSED = "closed"
    ENDED = "ended"


NEXT_STATES: Mapping[State, frozenset[State]] = {
    State.OPEN: frozenset({State.CHOOSING, State.CLOSING, State.ENDED}),
    State.CHOOSING: frozenset(
        {State.OPEN, State.PUBLISHING, State.STALLED, State.CLOSING, State.ENDED}
    ),
    State.PUBLISHING: frozenset({State.OPEN, State.CHOOSING, State.CLOSING, State.ENDED}),
    State.STALLED: frozenset({State.OPEN, State.CHOOSING, State.CLOSING, State.ENDED}),
    State.CLOSING: frozenset({State.CLOSED, State.ENDED}),
    State.CLOSED: frozenset(),
    State.ENDED: frozenset({State.CLOSING}),
}


ADDABLE = (State.OPEN, State.CHOOSING, State.PUBLISHING, State.STALLED)
"""Entries may be pushed; they are confirmed once OPEN again."""


_NONE: list[WriterAction] = []
"""Most acks of the hot path need no action."""


class Force(NamedTuple):
    bookie_id: str
    last_entry: int
    """The bookie has acked all its entries up to it."""
    term: int
    """Changes when the bookie fails, is replaced or returns."""


class WriterState:
    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        last_add_confirmed: int = -1,
        publish: bool = True,
        deferred: bool = False,
    ) -> None:
        self.metadata = metadata
        self.version = version
        self.quorum = quorum_of(metadata)
        self.state = State.OPEN
        self.lac = last_add_confirmed
        self.lap = last_add_confirmed
        self.ensemble = list(metadata.fragments[-1].bookies)
        self.acks = Acks(self.quorum, last_add_confirmed)
        """Entries that bookies have on disk."""
        self.received = Acks(self.quorum, last_add_confirmed) if deferred else self.acks
        """Entries that bookies have acked; a power failure may lose those that are not forced."""
        self._written_to = last_add_confirmed
        self._terms = [0] * self.quorum.ensemble_size
        """Changes whenever a position's acks are forgotten: see `Force`."""
        self._newest_term = 0
        self.down: dict[int, OctavoError] = {}
        """Positions whose bookie failed and was not replaced, with the reason."""
        self._publish = publish
        self._planned: dict[int, str] = {}
        self._asked: tuple[int, ...] = ()
        self._fenced = False
        self._close_length: int | None = None
        self._lost: Fragment | None = None
        """The record may have it: its compare-and-set got no answer."""

    # ------------------------------------------------------------------ adds and their answers

    def push(self, count: int) -> None:
        """Count new entries; the driver sends them to the positions in `live`."""
        assert self.state in ADDABLE, self.state
        self.lap += count

    @property
    def fenced(self) -> bool:
        """Whether another process fenced the ledger, or closed it."""
        return self._fenced

    @property
    def live(self) -> list[int]:
        return [p for p in range(self.quorum.ensemble_size) if p not in self.down]

    def acked(self, bookie_id: str, first: int, last: int) -> list[WriterAction]:
        """Count acks; only those of ensemble members count (P15)."""
        try:
            position = self.ensemble.index(bookie_id)
        except ValueError:
            return _NONE
        if last > self.lap:
            return self.failed(
                bookie_id, WriteRefused(f"{bookie_id} acked entry {last}, which it was not sent")
            )
        self.received.add(position, first, last)
        return self._confirm() if self.state is State.OPEN else _NONE

    @property
    def deferred(self) -> bool:
        """Whether an ack does not include a sync."""
        return self.received is not self.acks

    @property
    def written_to(self) -> int:
        """Return the last entry whose caller may have been answered."""
        return self._written_to if self.deferred else self.lac

    def to_force(self, position: int) -> Force:
        """Return the force for a position; its answer goes to `forced`."""
        last_entry = self.received.acked_to[position]
        return Force(self.ensemble[position], last_entry, self._terms[position])

    def forced(self, asked: Force) -> list[WriterAction]:
        """Note that the bookie made durable all that it had acked when asked.

        Ignored if it failed, was replaced or returned since: it must ack all unforced entries
        again.
        """
        if asked.bookie_id not in self.ensemble:
            return _NONE
        position = self.ensemble.index(asked.bookie_id)
        if asked.term != self._terms[position]:
            return _NONE
        assert asked.last_entry <= self.received.acked_to[position], "acks are never taken back"
        self.acks.add(position, self.acks.acked_to[position] + 1, asked.last_entry)
        return self._confirm() if self.state is State.OPEN else _NONE

    def _confirm(self) -> list[WriterAction]:
        assert self.state is State.OPEN, "P14: no ack while a change is unresolved"
        actions = self._note_written() if self.deferred else _NONE
        confirmed = self.acks.confirmed(self.lac, self.lap)
        if confirmed == self.lac:
            return actions
        assert self.lac < confirmed <= self.lap
        self.lac = confirmed
        return [*actions, Confirmed(confirmed)]

    def _note_written(self) -> list[WriterAction]:
        written = self.received.confirmed(self._written_to, self.lap)
        if written == self._written_to:
            return _NONE
        self._written_to = written
        return [Written(written)]

    def refused(self, bookie_id: str, error: OctavoError) -> list[WriterAction]:
        """End: the bookie answered "fenced" or "wrong key".

        One such answer suffices: that bookie's fence is durable.
        """
        if bookie_id not in self.ensemble or self.state not in ADDABLE:
            return []
        self._fenced = True
        return self._end(error)

    # ------------------------------------------------------------------ failures and spares

    def failed(self, bookie_id: str, reason: OctavoError) -> list[WriterAction]:
        """Count a bookie as failed, even for an add that was confirmed long ago (P18)."""
        if bookie_id not in self.ensemble or self.state not in ADDABLE:
            return []
        position = self.ensemble.index(bookie_id)
        self._forget_written(position)  # even if it was down already: late acks may have come
        if position in self.down:
            return []
        self.down[position] = reason
        if self.state in (State.OPEN, State.STALLED):
            return self._choose()
        return []

    def returned(self, bookie_id: str) -> list[WriterAction]:
        """Send a failed bookie its unconfirmed entries again, if it is still a member."""
        if self.state not in (State.OPEN, State.STALLED) or bookie_id not in self.ensemble:
            return []
        position = self.ensemble.index(bookie_id)
        if position not in self.down:
            return []
        del self.down[position]
        reached = self.acks.acked_to[position]
        if reached < self.lac:
            # Others have confirmed what it missed; its acks count from here on.
            self.acks.join(position, self.lac)
            reached = self.lac
        self._forget_written(position)
        actions: list[WriterAction] = [Send(position, bookie_id, reached + 1)]
        return actions + self._go_on()

    def _forget_written(self, position: int) -> None:
        """Forget acks of a failed bookie that were not forced: it may have lost these entries."""
        self._newest_term += 1
        self._terms[position] = self._newest_term
        if self.deferred:
            self.received.join(position, self.acks.acked_to[position])

    def spares_changed(self) -> list[WriterAction]:
        """Retry a delayed ensemble change: other bookies are available."""
        if self.down and self.state in (State.OPEN, State.STALLED):
            return self._choose()
        return []

    def abandon(self, error: OctavoError) -> list[WriterAction]:
        return self._end(error) if self.state in (*ADDABLE, State.CLOSING) else []

    def give_up(self, why: str = "") -> list[WriterAction]:
        """End after the time that `Stalled` allows; `why`: no bookies can be chosen."""
        if self.state is not State.STALLED:
            return []
        up = [self.ensemble[p] for p in self.live]
        return self._end(
            NotEnoughBookies(
                f"ledger {self.metadata.ledger_id}: cannot reach its ack quorum",
                self.quorum.ack_quorum,
                up,
                why,
            )
        )

    def _choose(self) -> list[WriterAction]:
        self._enter(State.CHOOSING)
        return self._ask()

    def _ask(self) -> list[WriterAction]:
        self._asked = tuple(sorted(self.down))
        return [ChooseReplacements(self._asked, tuple(self.ensemble))]

    def chosen(self, spares: Mapping[int, str]) -> list[WriterAction]:
        if self.state is not State.CHOOSING:
            return []
        if set(self.down) - set(self._asked):
            return self._ask()  # more bookies failed meanwhile: replace them together
        if not spares:
            return self._do_without()
        assert set(spares) <= set(self.down)
        assert not set(spares.values()) & set(self.ensemble)
        assert len(set(spares.values())) == len(spares)
        self._planned = dict(spares)
        if not self._publish:
            return self._apply(self._changed(self.metadata), self.version)
        self._enter(State.PUBLISHING)
        return [WriteMetadata(self._changed(self.metadata), self.version)]

    def _do_without(self) -> list[WriterAction]:
        bookies = tuple(self.ensemble[p] for p in sorted(self.down))
        if not self.quorum.writable(self.live):
            self._enter(State.STALLED)
            return [Stalled(bookies)]
        self._enter(State.OPEN)
        return [ChangeDelayed(bookies), *self._confirm()]

    def _go_on(self) -> list[WriterAction]:
        if self.state is State.STALLED and self.quorum.writable(self.live):
            self._enter(State.OPEN)
        return self._confirm() if self.state is State.OPEN else []

    # ------------------------------------------------------------------ the metadata record

    def _changed(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """Put the planned bookies from the first unconfirmed entry on."""
        bookies = list(self.ensemble)
        for position, spare in self._planned.items():
            bookies[position] = spare
        newest = Fragment(self.lac + 1, tuple(bookies))
        kept = metadata.fragments
        assert kept[-1].first_entry <= newest.first_entry, "P32: never below the newest fragment"
        if kept[-1].first_entry == newest.first_entry:
            kept = kept[:-1]
        return replace(metadata, fragments=(*kept, newest))

    def _apply(self, metadata: LedgerMetadata, version: int) -> list[WriterAction]:
        """Forget the acks of replaced bookies, send again, recount."""
        self.metadata, self.version = metadata, version
        old, first = tuple(self.ensemble), self.lac + 1
        actions: list[WriterAction] = []
        for position, spare in sorted(self._planned.items()):
            self.ensemble[position] = spare
            self.acks.join(position, self.lac)
            self._forget_written(position)
            del self.down[position]
            actions.append(Send(position, spare, first))
        self._planned = {}
        new = tuple(self.ensemble)
        assert new == metadata.fragments[-1].bookies
        actions.insert(0, EnsembleChanged(first, old, new))
        if self._close_length is not None:
            return [actions[0], *self._begin_close()]
        if self.down:
            return actions + self._choose()
        self._enter(State.OPEN)
        return actions + self._confirm()

    def written(self, version: int) -> list[WriterAction]:
        if self.state is State.CLOSING:
            return self._closed(self._closed_record(self.metadata))
        if self.state is not State.PUBLISHING:
            return []
        return self._apply(self._changed(self.metadata), version)

    def conflict(self, current: LedgerMetadata, version: int) -> list[WriterAction]:
        """Continue after a lost compare-and-set or answer; `current` is the record now."""
        if self.state is State.CLOSING:
            return self._close_conflict(current, version)
        if self.state is not State.PUBLISHING:
            return []
        if current.state is not LedgerState.OPEN:
            return self._fenced_by(current)
        wanted = self._changed(self.metadata)
        if current.fragments[-1] == wanted.fragments[-1]:
            return self._apply(current, version)  # our own write: only its answer was lost
        if current.fragments[-1] != self.metadata.fragments[-1]:
            return self._foreign(current)
        self.metadata, self.version = current, version  # re-replication changed an older fragment
        if self._close_length is not None:
            return self._begin_close()
        return [WriteMetadata(self._changed(current), version)]

    def metadata_lost(self, error: OctavoError) -> list[WriterAction]:
        """End: the store cannot be reached, or the record is gone."""
        if self.state is State.PUBLISHING:
            self._lost = self._changed(self.metadata).fragments[-1]
        elif self.state is not State.CLOSING:
            return []
        return self._end(error)

    # ------------------------------------------------------------------ the end

    def close(self, length: int) -> list[WriterAction]:
        """Close at the last confirmed entry; `length` is the payload bytes up to it."""
        assert self.state is not State.CLOSED
        if self._fenced or self._close_length is not None:
            return []
        self._close_length = length
        return [] if self.state is State.PUBLISHING else self._begin_close()

    def _begin_close(self) -> list[WriterAction]:
        self._enter(State.CLOSING)
        return [WriteMetadata(self._closed_record(self.metadata), self.version)]

    def _closed_record(self, metadata: LedgerMetadata) -> LedgerMetadata:
        assert self._close_length is not None
        return replace(
            metadata, state=LedgerState.CLOSED, last_entry=self.lac, length=self._close_length
        )

    def _close_conflict(self, current: LedgerMetadata, version: int) -> list[WriterAction]:
        if current.state is LedgerState.CLOSED:
            same = (current.last_entry, current.length) == (self.lac, self._close_length)
            return self._closed(current) if same else self._fenced_by(current)
        if current.state is LedgerState.IN_RECOVERY:
            return self._fenced_by(current)  # the recovery closes it
        if current.fragments[-1] not in (self.metadata.fragments[-1], self._lost):
            return self._foreign(current)
        self.metadata, self.version = current, version
        return self._begin_close()

    def _closed(self, metadata: LedgerMetadata) -> list[WriterAction]:
        self.metadata = metadata
        self._enter(State.CLOSED)
        return [Closed(metadata)]

    def _fenced_by(self, current: LedgerMetadata) -> list[WriterAction]:
        self._fenced = True
        found = (
            f"closed by another process at entry {current.last_entry}"
            if current.state is LedgerState.CLOSED
            else "being recovered by another process"
        )
        return self._end(LedgerFenced(f"ledger {current.ledger_id} is {found}"))

    def _foreign(self, current: LedgerMetadata) -> list[WriterAction]:
        self._fenced = True
        return self._end(
            LedgerFenced(
                f"ledger {current.ledger_id}: another process changed its newest fragment to "
                f"{current.fragments[-1]}"
            )
        )

    def _end(self, error: OctavoError) -> list[WriterAction]:
        self._enter(State.ENDED)
        self._planned = {}
        self._close_length = None
        return [Ended(error)]

    def _enter(self, state: State) -> None:
        if state is self.state:
            return
        assert state in NEXT_STATES[self.state], (self.state, state)
        self.state = state
