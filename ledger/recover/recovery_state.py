"""Close a ledger that another process wrote: the six steps of recovery as a pure state machine.

    step  state     does                                                        leaves by
    1     START     read the metadata; closed already: done                     metadata_read
    2     MARKING   CAS the record to IN_RECOVERY                               written, conflict
    3     FENCING   fence the newest fragment's ensemble, learn the LAC         fenced, fence_failed
    4, 5  READING   read from the LAC on with fencing reads; write the entries  entry_*, acked,
                    found back to their whole write set; find the end           failed, chosen
    6     CLOSING   CAS to CLOSED with last entry, length, new fragments        written, conflict
          DONE / FAILED

It never guesses. An entry exists when one replica returns it; it does not exist when Qw − Qa + 1
bookies of its write set deny it; otherwise recovery fails and the ledger stays IN_RECOVERY (P27,
P30). It reads from the ensembles of its start, even while its own write-back replaces bookies, and
only the closing CAS publishes these changes (P31): otherwise a concurrent recovery would read from
bookies that never had the entries. Any number of recoveries end with the same close (P33): the CAS
decides, and the losers adopt the winner's record.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from octavo.ledger.actions import (
    ChooseReplacements,
    Confirmed,
    Done,
    EndFound,
    EnsembleChanged,
    Failed,
    Fence,
    FenceHolds,
    Read,
    RecoveryAction,
    Send,
    Stalled,
    WriteBack,
    WriteMetadata,
    WriterAction,
)
from octavo.ledger.errors import BookieUnavailable, RecoveryFailed
from octavo.ledger.quorum import quorum_of
from octavo.ledger.write import writer_state
from octavo.ledger.write.writer_state import WriterState
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.protocol.codes import OctavoError, Unauthorized

READ_AHEAD_MIN = 2
READ_AHEAD_MAX = 128
"""Entries read at once above the last decided entry. Starts low and doubles: a writer that waits
for each answer leaves one entry at most, and a broker recovers thousands of such ledgers.
"""
READ_AHEAD_BYTES_MAX = 16 * 1024 * 1024


class State(enum.Enum):
    START = "start"
    MARKING = "marking"
    FENCING = "fencing"
    READING = "reading"
    CLOSING = "closing"
    DONE = "done"
    FAILED = "failed"


NEXT_STATES: Mapping[State, frozenset[State]] = {
    State.START: frozenset({State.MARKING, State.FENCING, State.DONE}),
    State.MARKING: frozenset({State.FENCING, State.DONE}),
    State.FENCING: frozenset({State.READING, State.FAILED}),
    State.READING: frozenset({State.FENCING, State.CLOSING, State.FAILED}),
    State.CLOSING: frozenset({State.MARKING, State.FENCING, State.DONE}),
    State.DONE: frozenset(),
    State.FAILED: frozenset(),
}
"""The allowed steps; after a lost compare-and-set the recovery starts again."""


@dataclass(slots=True)
class Found:
    """`length` is the ledger's, up to this entry."""

    data: bytes
    length: int


@dataclass(slots=True)
class _Poll:
    asked: tuple[str, ...]
    found: Found | None = None
    denied: set[str] = field(default_factory=set)
    unknown: dict[str, str] = field(default_factory=dict)


class RecoveryState:
    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.state = State.START
        self._reset()

    def _reset(self) -> None:
        self._fences: dict[int, int] = {}
        self._fence_failures: dict[int, OctavoError] = {}
        self._unsure: dict[int, None] = {}  # positions in limbo, in order
        self._squatted: dict[int, OctavoError] = {}
        self._polls: dict[int, _Poll] = {}
        self.entries: dict[int, Found] = {}
        self._next_read = 0
        self._decided = -1
        self._read_ahead = READ_AHEAD_MIN
        self._end: int | None = None
        self._length = 0
        self._writing: WriterState | None = None

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    def is_held_by(self, bookie_id: str, entry_id: int) -> bool:
        if self._writing is None or bookie_id not in self._writing.ensemble:
            return False
        return self._quorum.holds(self._writing.ensemble.index(bookie_id), entry_id)

    def is_owing(self, bookie_id: str, last: int) -> bool:
        """Whether the bookie has not acked all of the write-back up to `last`."""
        if self._writing is None or bookie_id not in self._writing.ensemble:
            return False
        position = self._writing.ensemble.index(bookie_id)
        reached = self._writing.acks.acked_to[position]
        return self._quorum.next_held(position, reached) <= last

    # ------------------------------------------------------------------ steps 1 and 2

    def metadata_read(self, metadata: LedgerMetadata, version: int) -> list[RecoveryAction]:
        """Start, or start again because the record changed meanwhile."""
        assert metadata.ledger_id == self.ledger_id
        self._reset()
        self._metadata, self._version = metadata, version
        self._quorum = quorum_of(metadata)
        if metadata.state is LedgerState.CLOSED:
            self._enter(State.DONE)
            return [Done(metadata, version, adopted=True)]
        if metadata.state is LedgerState.IN_RECOVERY:
            return self._fence()
        self._enter(State.MARKING)
        return [WriteMetadata(replace(metadata, state=LedgerState.IN_RECOVERY), version)]

    def written(self, version: int) -> list[RecoveryAction]:
        if self.state is State.MARKING:
            self._metadata = replace(self._metadata, state=LedgerState.IN_RECOVERY)
            self._version = version
            return self._fence()
        assert self.state is State.CLOSING
        self._enter(State.DONE)
        return [Done(self._closed_record(), version, adopted=False)]

    def conflict(self, current: LedgerMetadata, version: int) -> list[RecoveryAction]:
        """Start again after a lost compare-and-set; `current` is the record now."""
        if (
            self.state is State.CLOSING
            and current.state is LedgerState.IN_RECOVERY
            and current.fragments[-1] == self._metadata.fragments[-1]
        ):
            # Re-replication changed an older fragment: keep that, and the entries found here.
            self._metadata, self._version = current, version
            return [WriteMetadata(self._closed_record(), version)]
        return self.metadata_read(current, version)

    # ------------------------------------------------------------------ step 3

    def _fence(self) -> list[RecoveryAction]:
        self._enter(State.FENCING)
        ensemble = self._metadata.fragments[-1].bookies
        self._fences.update(dict.fromkeys(self._squatted, -1))
        return [Fence(bookie) for bookie in ensemble]

    def fenced(self, bookie_id: str, last_add_confirmed: int) -> list[RecoveryAction]:
        """Count a durably fenced bookie; its LAC is −1 if it never heard of the ledger.

        After a restart of the recovery another bookie may hold its position.
        """
        ensemble = self._metadata.fragments[-1].bookies
        if self.state is not State.FENCING or bookie_id not in ensemble:
            return []
        self._fences[ensemble.index(bookie_id)] = last_add_confirmed
        if not self._quorum.covers(self._fences.keys()):
            return []
        # The entry before the newest fragment was confirmed, even if no bookie says so (#2615).
        start = max(*self._fences.values(), self._metadata.fragments[-1].first_entry - 1)
        return [FenceHolds(start), *self._start_reading(start)]

    def squatted(self, bookie_id: str, error: OctavoError) -> list[RecoveryAction]:
        """Note a bookie that durably has the ledger's id under another ledger's key.

        It can store no entry, so it counts as fenced, denies every read, and takes no write-back.
        The caller has checked that our key is the record's.
        """
        ensemble = self._metadata.fragments[-1].bookies
        if self.state not in (State.FENCING, State.READING) or bookie_id not in ensemble:
            return []
        self._squatted[ensemble.index(bookie_id)] = error
        if self.state is State.FENCING:
            return self.fenced(bookie_id, -1)
        if not any(map(self._barred, range(self._start + 1, self._decided + 1))):
            return self._takes_nothing(bookie_id, error)
        # These entries were never acked, and cannot get a quorum: start again.
        known = self._squatted
        self._reset()
        self._squatted = known
        return self._fence()

    def fence_failed(self, bookie_id: str, error: OctavoError) -> list[RecoveryAction]:
        """Note that a bookie sent no answer or an error: it may not be fenced."""
        down = isinstance(error, BookieUnavailable)  # a bookie that answers may still store entries
        if down and self.state is State.READING:
            return self._takes_nothing(bookie_id, error)
        ensemble = self._metadata.fragments[-1].bookies
        if self.state is not State.FENCING or bookie_id not in ensemble:
            return []
        if isinstance(error, Unauthorized):
            return self._fail(error)
        return self._not_counted(bookie_id, error)

    def _takes_nothing(self, bookie_id: str, error: OctavoError) -> list[RecoveryAction]:
        """Replace a bookie whose fence holds if it is needed now; else mark it down."""
        back = self._writing
        if back is None or bookie_id not in back.ensemble:
            return []
        if back.lap > back.lac:
            return self.failed(bookie_id, error)
        back.down.setdefault(back.ensemble.index(bookie_id), error)
        return []

    def fence_unknown(self, bookie_id: str, error: OctavoError) -> list[RecoveryAction]:
        """Note a fenced bookie that has lost data: its LAC proves nothing (#2612).

        It does not count, but takes write-backs.
        """
        ensemble = self._metadata.fragments[-1].bookies
        if self.state is not State.FENCING or bookie_id not in ensemble:
            return []
        self._unsure[ensemble.index(bookie_id)] = None
        return self._not_counted(bookie_id, error)

    def _not_counted(self, bookie_id: str, error: OctavoError) -> list[RecoveryAction]:
        """Fail when the others cannot cover the ensemble."""
        ensemble = self._metadata.fragments[-1].bookies
        self._fence_failures[ensemble.index(bookie_id)] = error
        reachable = set(range(self._quorum.ensemble_size)) - set(self._fence_failures)
        if self._quorum.covers(reachable):
            return []
        reasons = "; ".join(str(error) for error in self._fence_failures.values())
        return self._fail(
            RecoveryFailed(
                f"ledger {self.ledger_id}: cannot fence: {self._quorum.denials} of every "
                f"{self._quorum.write_quorum} neighbours must answer ({reasons})"
            )
        )

    # ------------------------------------------------------------------ steps 4 and 5

    def _start_reading(self, start: int) -> list[RecoveryAction]:
        self._enter(State.READING)
        self._start = self._decided = start
        self._writing = WriterState(
            self._metadata, self._version, last_add_confirmed=start, publish=False
        )
        for position, error in (self._fence_failures | self._squatted).items():
            if position not in self._unsure:
                self._writing.down[position] = error
        # Read too, for the ledger's length up to it.
        self._next_read = max(start, 0)
        return self._read_on()

    def _read_on(self) -> list[RecoveryAction]:
        assert self._writing is not None
        if self.state is not State.READING:
            return []
        actions: list[RecoveryAction] = []
        limit = min(self._decided, self._writing.lac + READ_AHEAD_MAX) + self._read_ahead
        while self._end is None and self._next_read <= limit:
            entry_id = self._next_read
            bookies = self._metadata.fragment_of(entry_id).bookies
            asked = tuple(bookies[p] for p in self._quorum.write_set(entry_id))
            self._polls[entry_id] = _Poll(asked)
            actions.append(Read(entry_id, asked))
            self._next_read += 1
        return actions

    def entry_found(self, entry_id: int, data: bytes, length: int) -> list[RecoveryAction]:
        """Accept an entry that came whole and with a good digest: it exists."""
        poll = self._polls.get(entry_id)
        if self.state is not State.READING or poll is None or poll.found is not None:
            return []
        poll.found = Found(data, length)
        return self._decide()

    def entry_absent(self, entry_id: int, bookie_id: str) -> list[RecoveryAction]:
        """Count a denial by a replica that is fenced, with its disk intact."""
        poll = self._polls.get(entry_id)
        if self.state is not State.READING or poll is None or bookie_id not in poll.asked:
            return []
        poll.denied.add(bookie_id)
        return self._decide()

    def entry_unknown(self, entry_id: int, bookie_id: str, reason: str) -> list[RecoveryAction]:
        """Note no answer, a damaged copy or a disk error: never a denial (P29)."""
        poll = self._polls.get(entry_id)
        if self.state is not State.READING or poll is None or bookie_id not in poll.asked:
            return []
        poll.unknown[bookie_id] = reason
        return self._decide()

    def _decide(self) -> list[RecoveryAction]:
        """Decide entries in order, as far as each is certain."""
        actions: list[RecoveryAction] = []
        first = self._decided + 1
        while self._end is None:
            entry_id = min(self._polls, default=-1)
            poll = self._polls.get(entry_id)
            if poll is None:
                break
            barred = self._barred(entry_id)
            if poll.found is not None and not barred:
                self._take(entry_id, poll.found)
            elif barred or (len(poll.denied) >= self._quorum.denials and entry_id > self._start):
                self._end = entry_id - 1
                self._polls.clear()
                actions.append(EndFound(self._end))
            elif len(poll.denied) + len(poll.unknown) == len(poll.asked):
                return self._fail(self._undecided(entry_id, poll))
            else:
                break
        return actions + self._write_back(first) + self._read_on() + self._close_if_complete()

    def _barred(self, entry_id: int) -> bool:
        """Whether squatted bookies keep this entry from a quorum: it was never acked."""
        squatted = sum(p in self._squatted for p in self._quorum.write_set(entry_id))
        return squatted >= self._quorum.denials and entry_id > self._start

    def _take(self, entry_id: int, found: Found) -> None:
        del self._polls[entry_id]
        self._length = found.length
        if entry_id <= self._start:
            return  # confirmed before: read only for its length
        assert entry_id == self._decided + 1
        self._decided = entry_id
        self.entries[entry_id] = found
        room = max(1, READ_AHEAD_BYTES_MAX // max(1, len(found.data)))
        self._read_ahead = min(self._read_ahead * 2, READ_AHEAD_MAX, room)

    def _undecided(self, entry_id: int, poll: _Poll) -> RecoveryFailed:
        said = [f"{bookie} denies it" for bookie in sorted(poll.denied)]
        said += [f"{bookie}: {reason}" for bookie, reason in sorted(poll.unknown.items())]
        return RecoveryFailed(
            f"ledger {self.ledger_id}: cannot tell whether entry {entry_id} exists: "
            f"{self._quorum.denials} denials or one good copy needed ({'; '.join(said)})"
        )

    def _write_back(self, first: int) -> list[RecoveryAction]:
        assert self._writing is not None
        if self._decided < first:
            return []
        self._writing.push(self._decided - first + 1)
        actions: list[RecoveryAction] = [
            WriteBack(p, self._writing.ensemble[p], first, self._decided)
            for p in self._writing.live
        ]
        # Bookies that did not answer the fence are replaced only when needed.
        return actions + self._translate(self._writing.spares_changed())

    def acked(self, bookie_id: str, first: int, last: int) -> list[RecoveryAction]:
        if self._writing is None:
            return []
        return self._written_back(self._writing.acked(bookie_id, first, last))

    def failed(self, bookie_id: str, reason: OctavoError) -> list[RecoveryAction]:
        if self._writing is None or self.state is not State.READING:
            return []
        return self._written_back(self._writing.failed(bookie_id, reason))

    def chosen(self, spares: Mapping[int, str]) -> list[RecoveryAction]:
        if self._writing is None:
            return []
        return self._written_back(self._writing.chosen(spares))

    def _written_back(self, done: list[WriterAction]) -> list[RecoveryAction]:
        if self.state is not State.READING:
            return []
        actions = self._translate(done)
        if self.state is not State.READING:
            return actions
        return actions + self._read_on() + self._close_if_complete()

    def _translate(self, done: list[WriterAction]) -> list[RecoveryAction]:
        """Turn actions of the write-back's writer state into a recovery's."""
        assert self._writing is not None
        actions: list[RecoveryAction] = []
        for action in done:
            match action:
                case Confirmed(last_entry):
                    for entry_id in [e for e in self.entries if e <= last_entry]:
                        del self.entries[entry_id]
                case Send(position, bookie_id, first) if first <= self._writing.lap:
                    actions.append(WriteBack(position, bookie_id, first, self._writing.lap))
                case ChooseReplacements() | EnsembleChanged():
                    actions.append(action)
                case Stalled(bookies):
                    return self._fail(
                        RecoveryFailed(
                            f"ledger {self.ledger_id}: cannot write back to an ack quorum: "
                            f"{', '.join(bookies)} failed and no other bookie is available"
                        )
                    )
                case _:
                    pass
        return actions

    # ------------------------------------------------------------------ step 6

    def _close_if_complete(self) -> list[RecoveryAction]:
        assert self._writing is not None
        complete = self.state is State.READING and self._end == self._writing.lac
        if not complete or self._writing.state is not writer_state.State.OPEN or self._polls:
            return []
        self._enter(State.CLOSING)
        return [WriteMetadata(self._closed_record(), self._version)]

    def _closed_record(self) -> LedgerMetadata:
        assert self._writing is not None
        assert self._end is not None
        assert self._end == self._writing.lac
        newest = self._metadata.fragments[-1].first_entry
        made = tuple(f for f in self._writing.metadata.fragments if f.first_entry >= newest)
        fragments: tuple[Fragment, ...] = (*self._metadata.fragments[:-1], *made)
        return replace(
            self._metadata,
            state=LedgerState.CLOSED,
            fragments=fragments,
            last_entry=self._end,
            length=self._length,
        )

    def _fail(self, error: OctavoError) -> list[RecoveryAction]:
        self._enter(State.FAILED)
        return [Failed(error)]

    def _enter(self, state: State) -> None:
        if state is self.state:
            return
        assert state in NEXT_STATES[self.state], (self.state, state)
        self.state = state
