"""The referee of the ledgers: sees every promise when it is made, and checks all later actions.

It stands outside of all processes and knows no faults. Properties are named as in
docs/properties.md. The first violation ends the seed: a violation that is found at once can be
explained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.ledger.quorum import Quorum, quorum_of
from octavo.metadata.ledger_codec import decode_ledger_metadata
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from tests.sim.events import Events
from tests.sim.moves import is_move, move_problems
from tests.support.memory_index import MemoryIndex

_NEXT = {
    LedgerState.OPEN: (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED),
    LedgerState.IN_RECOVERY: (LedgerState.IN_RECOVERY, LedgerState.CLOSED),
}


@dataclass(slots=True)
class LedgerHistory:
    ledger_id: int
    record: LedgerMetadata
    version: int
    writer: str = ""
    sent: list[bytes] = field(default_factory=list)
    """Payloads by entry id, as the writer sent them."""
    acked: int = -1
    """The last entry that may not be lost any more."""
    deferred: bool = False
    """Whether its writer gets answers before durability, which a force then confirms."""
    early: int = -1
    """With deferred syncs, the last entry that was answered."""
    exposed: int = -1
    """The highest LAC that any reader got."""
    refused: int = 2**63
    """The lowest entry that its writer knows is certainly not stored."""
    fence_held: bool = False
    """A recovery has fenced it for good."""
    late: dict[str, set[int]] = field(default_factory=dict)
    """Bookie → entries that it stored for the writer after the fence."""
    deleted: bool = False
    former: dict[int, set[str]] = field(default_factory=dict)
    """First entry of a fragment → bookies whose copies have moved to others."""
    denied: dict[str, int] = field(default_factory=dict)
    """Bookie → the lowest entry that it denied to a recovery."""
    quorum: Quorum = field(init=False)

    def __post_init__(self) -> None:
        record = self.record
        self.quorum = quorum_of(record)

    @property
    def is_closed(self) -> bool:
        return self.record.state is LedgerState.CLOSED

    @property
    def is_striped(self) -> bool:
        return self.record.ensemble_size > self.record.write_quorum

    def write_set(self, entry_id: int) -> tuple[str, ...]:
        bookies = self.record.fragment_of(entry_id).bookies
        return tuple(bookies[p] for p in self.quorum.write_set(entry_id))


class Violation(AssertionError):
    pass


class LedgerAudit:
    def __init__(self, now: Callable[[], float], events: Events) -> None:
        self._now = now
        self._events = events
        self.ledgers: dict[int, LedgerHistory] = {}
        self.held: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        """Bookie → ledger → entries that it reported durable."""
        self.written: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        """Bookie → ledger → entries that it acked before their deferred sync."""
        self.fenced: dict[str, dict[int, None]] = defaultdict(dict)
        """Bookie → ledgers that it reported durably fenced."""
        self.lacs: dict[str, dict[int, int]] = defaultdict(dict)
        """Bookie → ledger → explicit LAC that it reported durable."""
        self.forgot: dict[str, dict[int, None]] = defaultdict(dict)
        """Bookie → ledgers whose deletion it reported durable."""
        self.dropped: dict[str, dict[int, None]] = defaultdict(dict)
        """Bookie → ledgers whose deletion it has rightly forgotten."""
        self.bytes: dict[tuple[int, int], bytes] = {}
        """(ledger, entry) → bytes. Every bookie has to hold the same."""
        self.damaged: dict[str, str] = {}
        """Bookies whose disk lost durable data, through no fault of theirs."""
        self.rotten: set[str] = set()
        """Damaged bookies with changed bytes still on their disk, whatever else was lost since."""
        self.lost: dict[str, dict[int, None]] = {}
        """Bookie → ledgers with promises when it lost a disk."""
        self.let_go: dict[str, dict[int, None]] = defaultdict(dict)
        """Bookie → lost ledgers that it no longer has to hold."""
        self.failure: str | None = None

    def fail(self, what: str) -> None:
        if self.failure is None:
            self.failure = f"at {self._now():.6f} s: {what}"
            self._events.add("violation", what)

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.fail(what)

    # ------------------------------------------------------------------ the record

    def record_changed(self, ledger_id: int, value: bytes | None, version: int, by: str) -> None:
        history = self.ledgers.get(ledger_id)
        if value is None:
            if history is not None:
                history.deleted = True
                self._events.add("deleted", ledger_id, by)
            return
        record = decode_ledger_metadata(ledger_id, value)
        self._events.add("record", ledger_id, f"version {version} by {by}:", Short(record))
        if history is None:
            self.check(record.state is LedgerState.OPEN, f"P12 ledger {ledger_id} is born {record}")
            self.ledgers[ledger_id] = LedgerHistory(ledger_id, record, version)
            return
        old = history.record
        what = f"ledger {ledger_id} version {version} by {by}: {_short(old)} → {_short(record)}"
        self.check(version > 0, f"X26 a ledger gets an id that was used: {what}")
        self.check(version == history.version + 1, f"S7 versions are not linear: {what}")
        self.check(not history.deleted, f"P46 changed after deletion: {what}")
        if old.fragments != record.fragments and is_move(old, record):
            for problem in move_problems(history, record, self.held):
                self.fail(f"{problem}: {what}")
            for before, after in zip(old.fragments, record.fragments, strict=True):
                former = history.former.setdefault(before.first_entry, set())
                former |= set(before.bookies) - set(after.bookies)
            history.record, history.version = record, version
            return
        self.check(not history.is_closed, f"P2 a closed record was changed: {what}")
        self.check(record.state in _NEXT.get(old.state, ()), f"P12 state went back: {what}")
        self._check_fragments(history, record, what)
        history.record, history.version = record, version
        if history.is_closed:
            self._closed(history, what)

    def _check_fragments(self, history: LedgerHistory, new: LedgerMetadata, what: str) -> None:
        old = history.record
        firsts = [fragment.first_entry for fragment in new.fragments]
        self.check(firsts[0] == 0, f"P10 the first fragment is not at 0: {what}")
        self.check(firsts == sorted(set(firsts)), f"S7 fragments do not ascend: {what}")
        for fragment in new.fragments:
            distinct = len(set(fragment.bookies)) == len(fragment.bookies) == new.ensemble_size
            self.check(distinct, f"S7 a bookie stands twice in {fragment}: {what}")
        if new.fragments == old.fragments:
            return
        self.check(
            new.fragments[: len(old.fragments) - 1] == old.fragments[:-1],
            f"P32 an older fragment was changed: {what}",
        )
        self.check(
            firsts[: len(old.fragments)] == [f.first_entry for f in old.fragments],
            f"P10 fragments were moved: {what}",
        )
        if new.state is LedgerState.OPEN:
            self.check(
                firsts[-1] == history.acked + 1,
                f"P17 a fragment begins at {firsts[-1]}, acked is {history.acked}: {what}",
            )
        elif old.state is LedgerState.IN_RECOVERY and new.state is LedgerState.IN_RECOVERY:
            self.fail(f"P31 a recovery published its ensembles before the close: {what}")
        elif new.state is LedgerState.IN_RECOVERY:
            self.fail(f"P31 marking changed the fragments: {what}")

    def _closed(self, history: LedgerHistory, what: str) -> None:
        record, last = history.record, history.record.last_entry
        self.check(last >= history.acked, f"S3 closed at {last}, acked {history.acked}: {what}")
        self.check(last >= history.exposed, f"P8 closed below LAC {history.exposed}: {what}")
        refused = history.refused
        self.check(last < refused, f"P20 closed at {last}, refused {refused}: {what}")
        self.check(last < len(history.sent), f"P6 closed above all that was sent: {what}")
        length = sum(map(len, history.sent[: last + 1]))
        self.check(record.length == length, f"P11 length {record.length}, not {length}: {what}")
        for entry_id in range(last + 1):
            self._check_held(history, entry_id, f"P5 {what}")
            if self.failure:
                return

    def _check_held(self, history: LedgerHistory, entry_id: int, what: str) -> None:
        holders = self._holders(history, entry_id)
        self.check(
            len(holders) >= history.quorum.ack_quorum,
            f"{what}: entry {entry_id} is on {holders} of {history.write_set(entry_id)}, "
            f"ack quorum {history.quorum.ack_quorum}",
        )

    def _holders(self, history: LedgerHistory, entry_id: int) -> list[str]:
        wanted = history.write_set(entry_id)
        return [b for b in wanted if entry_id in self.held[b][history.ledger_id]]

    # ------------------------------------------------------------------ the writer

    def began(self, ledger_id: int, writer: str, *, deferred: bool = False) -> None:
        self.ledgers[ledger_id].writer = writer
        self.ledgers[ledger_id].deferred = deferred

    def sent(self, ledger_id: int, entry_id: int, payload: bytes) -> None:
        history = self.ledgers[ledger_id]
        self.check(entry_id == len(history.sent), f"P6 ledger {ledger_id} entry {entry_id}: a gap")
        history.sent.append(payload)

    def acked(self, ledger_id: int, entry_id: int) -> None:
        history = self.ledgers[ledger_id]
        what = f"ledger {ledger_id} entry {entry_id}"
        self._events.add("acked", ledger_id, entry_id)
        self.check(entry_id == history.acked + 1, f"P13 {what} acked after {history.acked}")
        history.acked = max(history.acked, entry_id)
        if history.is_closed and not any(ledger_id in gone for gone in self.dropped.values()):
            # A bookie that forgot both fence and deletion accepts a late add as a new one.
            last = history.record.last_entry
            self.check(entry_id <= last, f"P4 {what} acked after the close at {last}")
        if not history.deleted:
            self._check_held(history, entry_id, f"P15 {what} acked")
        if history.fence_held and not history.deleted:
            holders = self._holders(history, entry_id)
            in_time = [b for b in holders if entry_id not in history.late.get(b, ())]
            self.check(bool(in_time), f"P19 {what} acked, all copies made after the fence held")

    def answered_early(self, ledger_id: int, entry_id: int) -> None:
        history = self.ledgers[ledger_id]
        self._events.add("written", ledger_id, entry_id)
        what = f"P13 ledger {ledger_id} entry {entry_id} answered after {history.early}"
        self.check(entry_id == history.early + 1, what)
        history.early = max(history.early, entry_id)

    def refused(self, ledger_id: int, entry_id: int) -> None:
        history = self.ledgers[ledger_id]
        history.refused = min(entry_id, history.refused)
        if history.is_closed:
            last = history.record.last_entry
            self.check(entry_id > last, f"P20 entry {entry_id} refused, ledger ends at {last}")

    def closed(self, by: str, record: LedgerMetadata) -> None:
        history = self.ledgers[record.ledger_id]
        self._events.add("closed", by, record.ledger_id, record.last_entry)
        self.check(
            history.is_closed and history.record.last_entry == record.last_entry,
            f"S2 {by} was told {_short(record)}, the record is {_short(history.record)}",
        )

    # ------------------------------------------------------------------ the bookies

    def stored(self, bookie: str, ledger_id: int, first: int, last: int, recovery: bool) -> None:
        self._events.add("stored", bookie, ledger_id, f"{first}…{last}", "back" * recovery)
        self.held[bookie][ledger_id].update(range(first, last + 1))
        self._taken(bookie, ledger_id, first, last, recovery)

    def deferred(self, bookie: str, ledger_id: int, first: int, last: int, recovery: bool) -> None:
        self._events.add("written", bookie, ledger_id, f"{first}…{last}")
        self.check(not recovery, f"P21 {bookie} defers what a recovery adds to {ledger_id}")
        self.written[bookie][ledger_id].update(range(first, last + 1))
        self._taken(bookie, ledger_id, first, last, recovery)

    def forced(self, bookie: str, ledger_id: int, entries: set[int]) -> None:
        self._events.add("forced", bookie, ledger_id, len(entries))
        if not self.is_deleted(ledger_id):
            self.held[bookie][ledger_id] |= entries & self.written[bookie][ledger_id]

    def _taken(self, bookie: str, ledger_id: int, first: int, last: int, recovery: bool) -> None:
        self.check(ledger_id not in self.forgot[bookie], f"P46 {bookie} took deleted {ledger_id}")
        history = self.ledgers.get(ledger_id)
        if recovery or history is None:
            return
        what = f"bookie {bookie} took an ordinary add of ledger {ledger_id} entry {first}…{last}"
        self.check(ledger_id not in self.fenced[bookie], f"P24 fenced, {what}")
        unsure = ledger_id in self.lost.get(bookie, ())
        self.check(not unsure, f"P42 its disk lost, unsure whether it is fenced, {what}")
        denied = history.denied.get(bookie)
        if denied is not None:
            self.check(last < denied, f"P28 having denied {denied} to a recovery, {what}")
        if history.fence_held:
            history.late.setdefault(bookie, set()).update(range(first, last + 1))

    def fence_durable(self, bookie: str, ledger_id: int) -> None:
        self._events.add("fenced", bookie, ledger_id)
        self.fenced[bookie][ledger_id] = None

    def holds(self, bookie: str, ledger_id: int, entry_id: int) -> bool:
        history = self.ledgers.get(ledger_id)
        gone = history is not None and history.deleted
        return not gone and entry_id in self.held[bookie][ledger_id]

    def forgotten(self, bookie: str, ledger_id: int) -> None:
        self.held[bookie].pop(ledger_id, None)
        self.forgot[bookie][ledger_id] = None

    def marker_dropped(self, bookie: str, ledger_id: int) -> None:
        gone = self.is_deleted(ledger_id) or ledger_id not in self.ledgers
        self.check(gone, f"P46 {bookie} forgets that ledger {ledger_id} was deleted; it was not")
        self.forgot[bookie].pop(ledger_id, None)
        self.fenced[bookie].pop(ledger_id, None)
        history = self.ledgers.get(ledger_id)
        if history is not None:
            history.denied.pop(bookie, None)
        self.dropped[bookie][ledger_id] = None

    def reopened(self, bookie: str, storage: Any) -> None:
        """Check that a started bookie has everything that it ever reported durable (P38, P24)."""
        if not self.must_keep(bookie):
            return
        lost = self.lost.get(bookie, {})
        for ledger_id, entries in self.held[bookie].items():
            if self.is_deleted(ledger_id) or ledger_id in lost:
                continue
            missing = entries - covered(storage, ledger_id)
            if missing:
                self.fail(f"P38 bookie {bookie} lost ledger {ledger_id} entries {sorted(missing)}")
        dropped = {**self.dropped[bookie], **lost, **self.let_go[bookie]}
        for ledger_id in [found for found in self.fenced[bookie] if found not in dropped]:
            state = storage._states.get(ledger_id)
            if state is None or not (state.fenced or state.deleted):
                self.fail(f"P24 bookie {bookie} forgot the fence of ledger {ledger_id}")
        for ledger_id, lac in self.lacs[bookie].items():
            state = storage._states.get(ledger_id)
            if ledger_id in dropped:
                continue
            if state is None or not (state.last_add_confirmed >= lac or state.deleted):
                self.fail(f"P8 bookie {bookie} forgot LAC {lac} of ledger {ledger_id}")
        for ledger_id in self.forgot[bookie]:
            state = storage._states.get(ledger_id)
            if state is None or not state.deleted:
                self.fail(f"P40 bookie {bookie} holds ledger {ledger_id} again, which was deleted")

    def found_again(self, bookie: str, storage: Any) -> None:
        """Note unreported entries that a started bookie has: they are durable since the start.

        Entries with a deferred sync that it took since it listens do not count: its start is
        reported last.
        """
        if not self.must_keep(bookie):
            return
        lost = self.lost.get(bookie, {})
        for ledger_id, history in self.ledgers.items():
            if history.deleted or ledger_id in lost or ledger_id in self.forgot[bookie]:
                continue
            unsynced = self.written[bookie][ledger_id]
            if found := covered(storage, ledger_id) - unsynced:
                self.held[bookie][ledger_id] |= found

    def disk_lost(self, bookie: str) -> None:
        lost = self.lost.setdefault(bookie, {})
        for promised in (self.held, self.fenced, self.lacs):
            lost.update(dict.fromkeys(promised[bookie]))
        self.dropped[bookie].update(self.forgot.pop(bookie, {}))

    def serves(self, bookie: str, is_unsure: Callable[[int], bool]) -> None:
        sure = [
            ledger_id
            for ledger_id in self.lost.get(bookie, ())
            if not (self.is_deleted(ledger_id) or is_unsure(ledger_id))
        ]
        self.check(not sure, f"P42 bookie {bookie} lost its disk and is sure of ledgers {sure}")

    def whole_again(self, bookie: str, ledger_id: int, held: set[int], *, named: bool) -> None:
        """Note that a bookie is sure of a lost ledger again: it has the present content, and keeps
        it."""
        self.lost.get(bookie, {}).pop(ledger_id, None)
        self.held[bookie][ledger_id] = held
        self.lacs[bookie].pop(ledger_id, None)
        if not named:
            self.let_go[bookie][ledger_id] = None

    def must_keep(self, bookie: str, ledger_id: int | None = None) -> bool:
        """Whether a bookie must keep its promises. A bookie that lost a disk must keep newer
        ledgers."""
        if self.damaged.get(bookie) == "wiped":
            return ledger_id not in self.lost[bookie] and bookie not in self.rotten
        return bookie not in self.damaged

    def is_deleted(self, ledger_id: int) -> bool:
        history = self.ledgers.get(ledger_id)
        return history is not None and history.deleted

    def lac_durable(self, bookie: str, ledger_id: int, lac: int) -> None:
        known = self.lacs[bookie]
        known[ledger_id] = max(lac, known.get(ledger_id, -1))

    def answered(self, bookie: str, ledger_id: int, entry_id: int) -> None:
        history = self.ledgers[ledger_id]
        if not (history.is_closed or history.deleted):
            wanted = history.write_set(entry_id)
            former = history.former.get(history.record.fragment_of(entry_id).first_entry, ())
            if bookie not in wanted and bookie not in former:
                what = f"P31 ledger {ledger_id} entry {entry_id} was looked for on {bookie}"
                self.fail(f"{what}, the record names {wanted}")

    def denied(self, bookie: str, ledger_id: int, entry_id: int) -> None:
        history = self.ledgers[ledger_id]
        self._events.add("denied", bookie, ledger_id, entry_id)
        history.denied[bookie] = min(entry_id, history.denied.get(bookie, entry_id))

    def fence_holds(self, ledger_id: int) -> None:
        history = self.ledgers[ledger_id]
        history.fence_held = True

    # ------------------------------------------------------------------ the readers

    def learnt(self, reader: str, ledger_id: int, before: int, lac: int) -> None:
        history = self.ledgers[ledger_id]
        what = f"reader {reader} of ledger {ledger_id}: LAC {before} → {lac}"
        self.check(lac >= before, f"S6 {what}")
        bound = history.record.last_entry if history.is_closed else history.acked
        self.check(lac <= bound, f"S6 {what}, above {bound}")
        history.exposed = max(history.exposed, lac)

    def read(self, reader: str, ledger_id: int, entry_id: int, payload: bytes) -> None:
        history = self.ledgers[ledger_id]
        what = f"reader {reader} was given ledger {ledger_id} entry {entry_id}"
        if entry_id >= len(history.sent):
            self.fail(f"P6 {what}, never sent")
        elif payload != history.sent[entry_id]:
            self.fail(f"S4 {what}: {payload[:60]!r}, sent was {history.sent[entry_id][:60]!r}")

    def absent(self, reader: str, ledger_id: int, entry_id: int, error: object) -> None:
        if not self.ledgers[ledger_id].deleted:
            self.fail(f"S1 reader {reader}, ledger {ledger_id} entry {entry_id}: {error}")


class Short:
    def __init__(self, record: LedgerMetadata) -> None:
        self._record = record

    def __str__(self) -> str:
        return _short(self._record)


def _short(record: LedgerMetadata) -> str:
    fragments = " ".join(f"{f.first_entry}:{','.join(f.bookies)}" for f in record.fragments)
    end = f" last {record.last_entry}" if record.state is LedgerState.CLOSED else ""
    quorum = f"{record.ensemble_size}/{record.write_quorum}/{record.ack_quorum}"
    return f"{record.state.name} {quorum}{end} [{fragments}]"


def covered(storage: Any, ledger_id: int) -> set[int]:
    """Return a ledger's entries on a storage, without a step or a call of its disk."""
    found: set[int] = set()
    for first, last in storage._cache.intervals(ledger_id):
        found.update(range(first, last + 1))
    for run in MemoryIndex.runs(storage._index, ledger_id):
        found.update(range(run.first, run.last + 1))
    return found
