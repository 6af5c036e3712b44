"""A bookie whose journal takes time, and which can crash and lose unsynced records. As in
bookie/ledgers/control.py, records are admitted at once, journaled in that order, and answered
when durable. A crash includes the restart, which replays the journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.bookie.adds import AddBatch
from octavo.bookie.journal.format import Meta, MetaOp
from octavo.bookie.ledgers import rules as ledger_rules
from octavo.bookie.ledgers.state import LedgerState as KnownLedger
from octavo.protocol.codes import Code
from tests.model.ledger_nodes import KEY, LEDGER, Bookie, Client, Entry
from tests.model.world import Message, Mood

Record = tuple[int, Entry | None]
FENCE: Record = (-1, None)


class JournaledBookie(Bookie):
    """`durable` is its journal's content; `queue` waits for the next sync."""

    journals_fences = True
    answers_before_sync = False

    def __init__(self, name: str, *, crashes: bool = True) -> None:
        super().__init__(name, crashes=crashes)
        # A sync takes the whole queue, so its order makes no difference: sets are enough.
        self.durable: frozenset[Record] = frozenset()
        self.queue: frozenset[Record] = frozenset()
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
