"""A ledger's writer and its recoverers: the production state machines as nodes of a world. This
module does the drivers' part: an action becomes a message, an answer a method call."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.ledger import actions as wanted
from octavo.ledger.errors import LedgerFenced
from octavo.ledger.recover import recovery, recovery_state
from octavo.ledger.recover.recovery_state import RecoveryState
from octavo.ledger.write import writer_state
from octavo.ledger.write.writer_state import WriterState
from octavo.metadata.ledgers import LedgerState
from octavo.protocol.codes import Code
from octavo.protocol.frames import Flag
from tests.model.ledger_nodes import BYTES, LEDGER, RECORD, WRITER, Client, Entry, Record
from tests.model.world import Message, Mood, Node


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
