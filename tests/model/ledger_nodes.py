"""A ledger's record, its bookies, its writer and its recoverers: production's state machines and
rules as nodes of a world, and the invariants of every state."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from octavo.bookie.adds import AddBatch
from octavo.bookie.journal.format import Meta, MetaOp
from octavo.bookie.ledgers import rules as ledger_rules
from octavo.bookie.ledgers.state import LedgerState as KnownLedger
from octavo.ledger import actions as wanted
from octavo.ledger.bookies.placement import choose_replacements
from octavo.ledger.errors import LedgerError, LedgerFenced
from octavo.ledger.quorum import Quorum
from octavo.ledger.recover import recovery, recovery_state
from octavo.ledger.recover.recovery_state import RecoveryState, State
from octavo.ledger.write import writer_state
from octavo.ledger.write.writer_state import WriterState
from octavo.metadata.bookies import BookieInfo
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.protocol.codes import Code
from octavo.protocol.frames import Flag
from tests.model.world import Message, Mood, Node, Nodes

LEDGER, KEY = 7, b"k" * 20
RECORD, WRITER = "record", "writer"
BOOKIES = "abcdefgh"
BYTES = 10

Entry = tuple[bytes, int]
"""Content, and the LAC that it carries."""


class Record(NamedTuple):
    shape: tuple[int, int, int]
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: int = -1
    length: int = 0

    @staticmethod
    def of(metadata: LedgerMetadata) -> Record:
        shape = (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        return Record(
            shape, metadata.fragments, metadata.state, metadata.last_entry, metadata.length
        )

    def metadata(self) -> LedgerMetadata:
        """Return the production value; its own assertions are OnlyValidFragments (P10)."""
        return LedgerMetadata(
            LEDGER, *self.shape, self.fragments, self.state, self.last_entry, self.length
        )

    def under(self, by: Mapping[str, str]) -> Record:
        """Rename the bookies, as if these had always been their names."""
        names = sorted(name for name in by if name in BOOKIES)
        moved = [names.index(by[name]) for name in names]
        fragments = []
        for first_entry, bookies in [(f.first_entry, f.bookies) for f in self.fragments]:
            new = list(bookies)
            for position, bookie in enumerate(bookies):
                new[moved[position]] = by.get(bookie, bookie)
            fragments.append(Fragment(first_entry, tuple(new)))
        return self._replace(fragments=tuple(fragments))

    def brief(self) -> str:
        found = " ".join(f"{f.first_entry}:{''.join(f.bookies)}" for f in self.fragments)
        end = f" last={self.last_entry}" if self.state is LedgerState.CLOSED else ""
        return f"{self.state.name}[{found}]{end}"


class Store(Node):
    """The metadata store: one record, changed by compare-and-set."""

    NEXT: ClassVar = {
        LedgerState.OPEN: set(LedgerState),
        LedgerState.IN_RECOVERY: {LedgerState.IN_RECOVERY, LedgerState.CLOSED},
        LedgerState.CLOSED: set(),
    }

    def __init__(self, record: Record) -> None:
        super().__init__(RECORD)
        self.value = record
        self.version = 0

    def read(self, sender: str, attempt: int) -> None:
        self.post_at_once(sender, "metadata", attempt, self.value, self.version)

    def cas(self, sender: str, attempt: int, wanted: Record, version: int) -> None:
        # A recoverer waits for nothing else; a writer gets other answers meanwhile.
        answer = self.post if sender == WRITER else self.post_at_once
        if version != self.version:
            answer(sender, "lost", attempt, self.value, self.version)
            return
        assert wanted.state in self.NEXT[self.value.state], (
            f"P12, S2: {self.value.brief()} became {wanted.brief()}"
        )
        self.value, self.version = wanted, version + 1
        answer(sender, "written", attempt, self.version)

    def ignores(self, message: Message, sender: Client) -> bool:
        if sender.heeds(message):
            return False
        # A compare-and-set in flight still counts, if its version is still the present version.
        return message.method == "read" or message.args[3] != self.version

    def brief(self) -> str:
        return f"{self.value.brief()} v{self.version}"


class Bookie(Node):
    def __init__(self, name: str, *, crashes: bool = False) -> None:
        super().__init__(name)
        self.up = True
        self.crashes = crashes
        self.known: KnownLedger | None = None
        self.entries: dict[int, Entry] = {}

    @property
    def fenced(self) -> bool:
        return self.known is not None and self.known.fenced

    def moods(self) -> Sequence[Mood]:
        return [Mood("crash", (), 1)] if self.crashes and self.up else ()

    def crash(self) -> None:
        """Crash for good: its disk stays as it is, but does not answer any more."""
        self.up = False

    def add(self, sender: str, attempt: int, entry_id: int, entry: Entry, recovery: bool) -> None:
        if not self.up:
            self.post(sender, "unwritable", attempt, self.name)
            return
        run = AddBatch(LEDGER, entry_id, 1, KEY, recovery, b"", range(1))
        code = ledger_rules.admission(self.known, run, read_only=False)
        if code is not Code.OK:
            self.post(sender, "refused", attempt, self.name, entry_id, code)
            return
        if self.known is None:
            self.known = KnownLedger(KEY)
        self.store(entry_id, entry)
        self.post(sender, "stored", attempt, self.name, entry_id)

    def store(self, entry_id: int, entry: Entry) -> None:
        assert self.known is not None
        assert self.entries.get(entry_id, entry) == entry, "S4: two contents for one entry"
        self.entries[entry_id] = entry
        self.known.last_entry = max(self.known.last_entry, entry_id)

    def fence(self, sender: str, attempt: int) -> None:
        if self.reachable(sender, attempt) and self.fence_now():
            self.answer_fence(sender, attempt)

    def fence_now(self) -> bool:
        """Fence; return whether that is durable now."""
        if self.known is None:
            self.known = KnownLedger(KEY)
        ledger_rules.fence(self.known, sure=True, under_way=False)
        return True

    def answer_fence(self, sender: str, attempt: int) -> None:
        assert self.known is not None
        last = self.known.last_entry
        self.post(sender, "fenced", attempt, self.name, self.entries[last][1] if last >= 0 else -1)

    def read(self, sender: str, attempt: int, entry_id: int, fencing: bool) -> None:
        if self.reachable(sender, attempt, entry_id) and (not fencing or self.fence_now()):
            self.answer_read(sender, attempt, entry_id)

    def answer_read(self, sender: str, attempt: int, entry_id: int) -> None:
        entry = self.entries.get(entry_id)
        if entry is None:
            self.post(sender, "absent", attempt, self.name, entry_id)
        else:
            self.post(sender, "found", attempt, self.name, entry_id, entry)

    def reachable(self, sender: str, attempt: int, *about: int) -> bool:
        if not self.up:
            self.post(sender, "unreachable", attempt, self.name, *about)
        return self.up

    def ignores(self, message: Message, sender: Client) -> bool:
        if sender.heeds(message):
            return False
        if not self.up:
            return True
        if message.method != "add":
            return self.fenced
        _, _, entry_id, _, recovery = message.args
        return entry_id in self.entries or (self.fenced and not recovery)

    def brief(self) -> str:
        held = "".join(str(entry_id) for entry_id in sorted(self.entries)) or "nothing"
        return f"holds {held}{', fenced' if self.fenced else ''}{'' if self.up else ', DOWN'}"


class Client(Node):
    """The common part of writer and recoverer: known bookies, and which of them failed."""

    def __init__(self, name: str, bookies: str) -> None:
        super().__init__(name)
        self.bookies = bookies
        self.suspects: frozenset[str] = frozenset()
        self.attempt = 0

    def heeds(self, request: Message) -> bool:
        return not self.over()

    def spares(self, action: wanted.ChooseReplacements, write_quorum: int) -> dict[int, str]:
        infos = {name: BookieInfo(name, "host", 1) for name in self.bookies}
        return choose_replacements(
            infos, action.ensemble, action.positions, write_quorum,
            rng=random.Random(0), suspects=self.suspects,
        )  # fmt: skip

    def suspect(self, bookie: str) -> LedgerError:
        self.suspects |= {bookie}
        return LedgerError("no answer")


def new_record(shape: tuple[int, int, int]) -> Record:
    return Record(shape, (Fragment(0, tuple(BOOKIES[: shape[0]])),))


class Writer(Client):
    def __init__(
        self,
        record: Record,
        bookies: str,
        *,
        entries: int = 1,
        in_flight: int = 1,
        closes: bool = False,
        loses: bool = False,
    ) -> None:
        super().__init__(WRITER, bookies)
        self.core: WriterState | None = WriterState(record.metadata(), 0)
        self.entries, self.in_flight, self.closes, self.loses = entries, in_flight, closes, loses
        self.acked = -1
        self.lac_of: tuple[int, ...] = ()
        self.closed: Record | None = None

    def over(self) -> bool:
        return self.core is None

    def brief(self) -> str:
        state = "over" if self.core is None else self.core.state.value
        return f"{state}, acked {self.acked}"

    def moods(self) -> Sequence[Mood]:
        core = self.core
        if core is None:
            return ()
        found = []
        if core.state in writer_state.ADDABLE:
            if core.lap + 1 < self.entries and core.lap - core.lac < self.in_flight:
                found.append(Mood("push"))
            if self.loses:
                live = [core.ensemble[p] for p in core.live]
                found += [Mood("lose", (bookie,), 1) for bookie in live]
            if core.state in (writer_state.State.OPEN, writer_state.State.STALLED):
                found += [Mood("regain", (core.ensemble[p],)) for p in sorted(core.down)]
            if core.state is writer_state.State.STALLED:
                found.append(Mood("give_up"))
        if self.closes and core._close_length is None:
            found.append(Mood("close"))
        return found

    def push(self) -> None:
        assert self.core is not None
        self.core.push(1)
        self.lac_of += (self.core.lac,)
        for position in self.core.live:
            self._send(position, self.core.lap)

    def close(self) -> None:
        assert self.core is not None
        self._take(self.core.close(BYTES * (self.core.lac + 1)))

    def lose(self, bookie: str) -> None:
        """Break a connection, or time out. Messages in flight may still arrive."""
        assert self.core is not None
        self._take(self.core.failed(bookie, self.suspect(bookie)))

    def regain(self, bookie: str) -> None:
        assert self.core is not None
        self.suspects -= {bookie}
        self._take(self.core.returned(bookie))

    def give_up(self) -> None:
        assert self.core is not None
        self._take(self.core.give_up())

    def stored(self, attempt: int, bookie: str, entry_id: int) -> None:
        assert self.core is not None
        self._take(self.core.acked(bookie, entry_id, entry_id))

    def refused(self, attempt: int, bookie: str, entry_id: int, code: Code) -> None:
        assert self.core is not None
        self._take(self.core.refused(bookie, LedgerFenced(code.name)))

    def unwritable(self, attempt: int, bookie: str) -> None:
        self.lose(bookie)

    def written(self, attempt: int, version: int) -> None:
        assert self.core is not None
        self._take(self.core.written(version))

    def lost(self, attempt: int, current: Record, version: int) -> None:
        assert self.core is not None
        self._take(self.core.conflict(current.metadata(), version))

    def _send(self, position: int, entry_id: int) -> None:
        assert self.core is not None
        if self.core.quorum.holds(position, entry_id):
            entry = (b"e%d" % entry_id, self.lac_of[entry_id])
            self.post(self.core.ensemble[position], "add", self.name, 0, entry_id, entry, False)

    def _take(self, actions: list[wanted.WriterAction]) -> None:
        core = self.core
        assert core is not None
        todo = list(actions)
        while todo:
            match todo.pop(0):
                case wanted.Confirmed(last_entry):
                    assert core.state is writer_state.State.OPEN, (
                        "P14: acked amid an ensemble change"
                    )
                    assert last_entry > self.acked, "P13: acks come in order"
                    self.acked = last_entry
                    if self.acked == self.entries - 1 and not self.closes and not self.loses:
                        self.core = None
                case wanted.ChooseReplacements() as action:
                    todo += core.chosen(self.spares(action, core.quorum.write_quorum))
                case wanted.WriteMetadata(metadata, version):
                    if metadata.state is LedgerState.OPEN:
                        first = metadata.fragments[-1].first_entry
                        assert first == self.acked + 1, f"P17: fragment at {first}"
                    self.post(RECORD, "cas", self.name, 0, Record.of(metadata), version)
                case wanted.Send(position, _, first):
                    for entry_id in range(first, core.lap + 1):
                        self._send(position, entry_id)
                case wanted.Ended():
                    if core.fenced or not self.closes:
                        self.core = None
                case wanted.Closed(metadata):
                    self.closed = Record.of(metadata)
                    self.core = None
                case _:
                    pass


class Recoverer(Client):
    """Closes another client's ledger; after a failure it tries again."""

    def __init__(self, name: str, bookies: str, *, loses: bool = False) -> None:
        super().__init__(name, bookies)
        self.loses = loses
        self.core: RecoveryState | None = None
        self.done: Record | None = None
        self.failed = False
        self.post(RECORD, "read", self.name, 0)

    def over(self) -> bool:
        return self.done is not None

    def brief(self) -> str:
        if self.done is not None:
            return f"done, last {self.done.last_entry}"
        if self.failed:
            return "failed"
        return "waits" if self.core is None else self.core.state.value

    def heeds(self, request: Message) -> bool:
        """Exact, because a record that is IN_RECOVERY is never OPEN again: it starts over only
        before it has fenced any bookie."""
        core, attempt = self.core, request.args[1]
        if self.over() or self.failed or attempt != self.attempt:
            return False
        if request.to == RECORD:
            return True
        if core is None:
            return False
        match request.method:
            case "fence":
                # Late failures still count: they tell the write-back which bookies are down.
                late = self.loses and core.state is recovery_state.State.READING
                return late or core.state is recovery_state.State.FENCING
            case "read":
                return core.state is recovery_state.State.READING and request.args[2] in core._polls
            case _:
                return core.state is recovery_state.State.READING

    def ignores(self, message: Message, sender: Node) -> bool:
        core = self.core
        if self.over() or self.failed or message.args[0] != self.attempt:
            return True
        if core is None or message.sender == RECORD:
            return False
        match message.method:
            case "fenced":
                return core.state is not recovery_state.State.FENCING
            case "found" | "absent":
                reading = core.state is recovery_state.State.READING
                return not reading or message.args[2] not in core._polls
            case _:
                return core.state is recovery_state.State.CLOSING

    def moods(self) -> Sequence[Mood]:
        if self.failed:
            return [Mood("begin_again")]
        if not self.loses or self.core is None:
            return ()
        return [Mood("lose", (bookie,), 1) for bookie in self.bookies if self._owes(bookie)]

    def begin_again(self) -> None:
        self.failed = False
        self.attempt += 1
        self.suspects = frozenset()
        self.post(RECORD, "read", self.name, self.attempt)

    def _polled(self, bookie: str) -> list[int]:
        assert self.core is not None
        return [
            entry_id
            for entry_id, poll in self.core._polls.items()
            if bookie in poll.asked and poll.found is None
            and bookie not in poll.denied and bookie not in poll.unknown
        ]  # fmt: skip

    def _owes(self, bookie: str) -> bool:
        core = self.core
        assert core is not None
        if core.state is recovery_state.State.FENCING:
            ensemble = core.metadata.fragments[-1].bookies
            answered = {ensemble[p] for p in (*core._fences, *core._fence_failures)}
            return bookie in ensemble and bookie not in answered
        if core.state is not recovery_state.State.READING:
            return False
        return bool(self._polled(bookie)) or core.is_owing(bookie, core._decided)

    def lose(self, bookie: str) -> None:
        core, error = self.core, self.suspect(bookie)
        assert core is not None
        if core.state is recovery_state.State.FENCING:
            self._take(core.fence_failed(bookie, error))
            return
        for entry_id in self._polled(bookie):
            if self.core is not None:
                self._take(core.entry_unknown(entry_id, bookie, "no answer"))
        if self.core is not None and core.is_owing(bookie, core._decided):
            self._take(core.failed(bookie, error))

    def metadata(self, attempt: int, record: Record, version: int) -> None:
        self.core = RecoveryState(LEDGER)
        self._take(self.core.metadata_read(record.metadata(), version))

    def written(self, attempt: int, version: int) -> None:
        assert self.core is not None
        self._take(self.core.written(version))

    def lost(self, attempt: int, current: Record, version: int) -> None:
        assert self.core is not None
        self._take(self.core.conflict(current.metadata(), version))

    def fenced(self, attempt: int, bookie: str, lac: int) -> None:
        assert self.core is not None
        self._take(self.core.fenced(bookie, lac))

    def found(self, attempt: int, bookie: str, entry_id: int, entry: Entry) -> None:
        assert self.core is not None
        data = b"%b/%d" % entry
        self._take(self.core.entry_found(entry_id, data, BYTES * (entry_id + 1)))

    def absent(self, attempt: int, bookie: str, entry_id: int) -> None:
        assert self.core is not None
        self._take(self.core.entry_absent(entry_id, bookie))

    def unreachable(self, attempt: int, bookie: str, *about: int) -> None:
        core, error = self.core, self.suspect(bookie)
        assert core is not None
        if about:
            self._take(core.entry_unknown(about[0], bookie, "no answer"))
        elif core.state in (recovery_state.State.FENCING, recovery_state.State.READING):
            self._take(core.fence_failed(bookie, error))

    def unwritable(self, attempt: int, bookie: str) -> None:
        assert self.core is not None
        self._take(self.core.failed(bookie, self.suspect(bookie)))

    def stored(self, attempt: int, bookie: str, entry_id: int) -> None:
        assert self.core is not None
        self._take(self.core.acked(bookie, entry_id, entry_id))

    def refused(self, attempt: int, bookie: str, entry_id: int, code: Code) -> None:
        assert self.core is not None
        self._take(self.core.failed(bookie, self.suspect(bookie)))

    def _take(self, actions: list[wanted.RecoveryAction]) -> None:
        core = self.core
        assert core is not None
        todo = list(actions)
        while todo:
            match todo.pop(0):
                case wanted.WriteMetadata(metadata, version):
                    record = Record.of(metadata)
                    self.post(RECORD, "cas", self.name, self.attempt, record, version)
                case wanted.Fence(bookie):
                    self.post(bookie, "fence", self.name, self.attempt)
                case wanted.Read(entry_id, bookies):
                    fencing = bool(recovery._READ_FLAGS & Flag.FENCE)
                    for bookie in bookies:
                        self.post(bookie, "read", self.name, self.attempt, entry_id, fencing)
                case wanted.WriteBack(_, bookie, first, last):
                    self._write_back(bookie, first, last)
                case wanted.ChooseReplacements() as action:
                    todo += core.chosen(self.spares(action, core._quorum.write_quorum))
                case wanted.Done(metadata, _, _):
                    self.done, self.core = Record.of(metadata), None
                case wanted.Failed():
                    self.failed, self.core = True, None
                case _:
                    pass

    def _write_back(self, bookie: str, first: int, last: int) -> None:
        core = self.core
        assert core is not None
        passes = bool(recovery._ADD_FLAGS & Flag.RECOVERY_ADD)
        for entry_id in range(first, last + 1):
            found = core.entries.get(entry_id)
            if found is not None and core.is_held_by(bookie, entry_id):
                content, lac = found.data.split(b"/")
                entry = (content, int(lac))
                self.post(bookie, "add", self.name, self.attempt, entry_id, entry, passes)


def check(nodes: Nodes) -> str | None:
    record: Record = nodes[RECORD].value
    bookies = {node.name: node for node in nodes.values() if isinstance(node, Bookie)}
    writer = next(node for node in nodes.values() if isinstance(node, Writer))
    return (
        _acked(record, writer, bookies)
        or _lacs(record, writer, bookies)
        or _closed(record, writer, bookies)
        or _fences(nodes, record, bookies)
        or _views(record, [node for node in nodes.values() if isinstance(node, Recoverer)], writer)
    )


def _copies(record: Record, entry_id: int, bookies: dict[str, Bookie]) -> int:
    fragment = [f for f in record.fragments if f.first_entry <= entry_id][-1]
    positions = Quorum(*record.shape).write_set(entry_id)
    return sum(entry_id in bookies[fragment.bookies[p]].entries for p in positions)


def _acked(record: Record, writer: Writer, bookies: dict[str, Bookie]) -> str | None:
    """P15, S1 [AllAckedEntriesAreReadable]: an acked entry is on Qa of the bookies that the
    record names."""
    for entry_id in range(writer.acked + 1):
        if (found := _copies(record, entry_id, bookies)) < record.shape[2]:
            if record.state is LedgerState.CLOSED and record.last_entry < entry_id:
                return f"S3: entry {entry_id} was acked, the ledger ends at {record.last_entry}"
            return f"S1, P15: entry {entry_id} was acked and has {found} copies where it should be"
    if record.state is LedgerState.CLOSED and writer.acked > record.last_entry:
        return f"S3: entry {writer.acked} was acked, the ledger ends at {record.last_entry}"
    return None


def _lacs(record: Record, writer: Writer, bookies: dict[str, Bookie]) -> str | None:
    """S6, P16: no bookie has a LAC above the acked entries."""
    for bookie in bookies.values():
        for entry_id, (_, lac) in bookie.entries.items():
            if lac > writer.acked:
                return f"S6: {bookie.name} tells of LAC {lac} with entry {entry_id}"
    return None


def _closed(record: Record, writer: Writer, bookies: dict[str, Bookie]) -> str | None:
    """P5 [AllCommittedEntriesReachAckQuorum, NoOutOfOrderEntries], P11, S4."""
    if record.state is not LedgerState.CLOSED:
        return None
    if record.length != BYTES * (record.last_entry + 1):
        return f"P11: {record.length} bytes in {record.last_entry + 1} entries"
    for entry_id in range(record.last_entry + 1):
        if (found := _copies(record, entry_id, bookies)) < record.shape[2]:
            return f"P5: entry {entry_id} is part of the closed ledger and has {found} copies"
        contents = {b.entries[entry_id] for b in bookies.values() if entry_id in b.entries}
        if len(contents) > 1 or {content for content, _ in contents} != {b"e%d" % entry_id}:
            return f"S4, P6: entry {entry_id} is {contents}"
    return None


def _fences(nodes: Nodes, record: Record, bookies: dict[str, Bookie]) -> str | None:
    """S5, P26: a recovery that reads has a fence in every write set, so no new ack quorum can
    form there."""
    ensemble_size, write_quorum, ack_quorum = record.shape
    for node in nodes.values():
        if not isinstance(node, Recoverer) or node.core is None:
            continue
        if node.core.state not in (State.READING, State.CLOSING):
            continue
        ring = node.core.metadata.fragments[-1].bookies
        for start in range(ensemble_size):
            window = [ring[(start + k) % ensemble_size] for k in range(write_quorum)]
            free = [name for name in window if not bookies[name].fenced]
            if len(free) >= ack_quorum:
                return f"S5: {node.name} reads on, and {' and '.join(free)} may ack without it"
    return None


def _views(record: Record, recoverers: list[Recoverer], writer: Writer) -> str | None:
    """S2 [NoDivergenceBetweenClientAndMetaData]: every client that knows the end knows the same
    end."""
    for name, view in [(r.name, r.done) for r in recoverers] + [("writer", writer.closed)]:
        if view is not None and view != record:
            return f"S2: to {name} the ledger is {view.brief()}, in truth {record.brief()}"
    return None


JournalRecord = tuple[int, Entry | None]
FENCE: JournalRecord = (-1, None)


class JournaledBookie(Bookie):
    """`durable` is its journal's content; `queue` waits for the next sync."""

    journals_fences = True
    answers_before_sync = False

    def __init__(self, name: str, *, crashes: bool = True) -> None:
        super().__init__(name, crashes=crashes)
        # A sync takes the whole queue, so its order makes no difference: sets are enough.
        self.durable: frozenset[JournalRecord] = frozenset()
        self.queue: frozenset[JournalRecord] = frozenset()
        self.waiting: frozenset[tuple[Any, ...]] = frozenset()

    def moods(self) -> Sequence[Mood]:
        crash = [Mood("crash", (), 1)] if self.crashes else []
        return [*crash, Mood("sync")] if self.queue else crash

    def crash(self) -> None:
        for method, sender, *rest in sorted(self.waiting):
            self._break_off(method, sender, rest)
        self.queue, self.waiting = frozenset(), frozenset()
        self.known, self.entries = None, {}
        for entry_id, entry in sorted(self.durable, key=repr):
            if self.known is None:
                self.known = KnownLedger(KEY)
            if entry is None:
                ledger_rules.repeat(self.known, Meta(MetaOp.FENCE, LEDGER, KEY, -1))
            else:
                self.store(entry_id, entry)

    def _break_off(self, method: str, sender: str, rest: list[Any]) -> None:
        match method:
            case "answer_add":
                self.post(sender, "unwritable", rest[0], self.name)
            case "answer_fence":
                self.post(sender, "unreachable", rest[0], self.name)
            case _:
                self.post(sender, "unreachable", rest[0], self.name, rest[1])

    def sync(self) -> None:
        for entry_id, entry in sorted(self.queue, key=repr):
            if entry is not None:
                self.store(entry_id, entry)
        self.durable |= self.queue
        self.queue = frozenset()
        waiting, self.waiting = self.waiting, frozenset()
        for method, *args in sorted(waiting):
            getattr(self, method)(*args)

    def then(self, method: str, *args: Any) -> None:
        if self.queue and not self.answers_before_sync:
            self.waiting |= {(method, *args)}
        else:
            getattr(self, method)(*args)

    def add(self, sender: str, attempt: int, entry_id: int, entry: Entry, recovery: bool) -> None:
        run = AddBatch(LEDGER, entry_id, 1, KEY, recovery, b"", range(1))
        code = ledger_rules.admission(self.known, run, read_only=False)
        if code is not Code.OK:
            self.post(sender, "refused", attempt, self.name, entry_id, code)
            return
        if self.known is None:
            self.known = KnownLedger(KEY)
        self.queue |= {(entry_id, entry)}
        self.then("answer_add", sender, attempt, entry_id)

    def answer_add(self, sender: str, attempt: int, entry_id: int) -> None:
        self.post(sender, "stored", attempt, self.name, entry_id)

    def fence(self, sender: str, attempt: int) -> None:
        self._fence("answer_fence", sender, attempt)

    def read(self, sender: str, attempt: int, entry_id: int, fencing: bool) -> None:
        if fencing:
            self._fence("answer_read", sender, attempt, entry_id)
        else:
            self.answer_read(sender, attempt, entry_id)

    def _fence(self, *answer: Any) -> None:
        if self.known is None:
            self.known = KnownLedger(KEY)
        under_way = FENCE in self.queue
        step = ledger_rules.fence(self.known, sure=FENCE in self.durable, under_way=under_way)
        if step is ledger_rules.FenceStep.DURABLE:
            getattr(self, answer[0])(*answer[1:])
            return
        if step is ledger_rules.FenceStep.JOURNAL and self.journals_fences:
            self.queue |= {FENCE}
        self.then(*answer)

    def ignores(self, message: Message, sender: Client) -> bool:
        if sender.heeds(message):
            return False
        if message.method != "add":
            return FENCE in self.durable
        _, _, entry_id, entry, recovery = message.args
        return (entry_id, entry) in self.durable or (FENCE in self.durable and not recovery)

    def brief(self) -> str:
        waits = f", {len(self.queue)} not synced" if self.queue else ""
        return super().brief() + waits
