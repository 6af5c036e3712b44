"""A ledger's record and its bookies, and the common parts of their clients. Bookies and spares
follow production's rules; a record that `Record` cannot turn into metadata is a violation."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from octavo.bookie.adds import AddBatch
from octavo.bookie.ledgers import rules as ledger_rules
from octavo.bookie.ledgers.state import LedgerState as KnownLedger
from octavo.ledger import actions as wanted
from octavo.ledger.bookies.placement import choose_replacements
from octavo.ledger.errors import LedgerError
from octavo.metadata.bookies import BookieInfo
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.protocol.codes import Code
from tests.model.world import Message, Mood, Node

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
