"""A world without network or clock in which the pure cores of the ledger run: bookies as dicts.

What an action asks for becomes an `Envelope`; delivering it does the thing and feeds the answer to
the core. Tests choose the order: first in first out for scenarios, every order for the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ledger import recovering, writing
from ledger.errors import BookieUnavailable, LedgerFenced
from ledger.recovering import Recovering
from ledger.writing import Writing
from metadata.ledgers import Fragment, LedgerMetadata


@dataclass
class ModelBookie:
    """One bookie's disk and its honesty."""

    entries: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """Entry id → (content, LAC that it carried)."""
    fenced: bool = False
    up: bool = True
    unknown: bool = False
    """It may have lost data, and says so."""

    @property
    def lac(self) -> int:
        if not self.entries:
            return -1
        return self.entries[max(self.entries)][1]


class World:
    """Bookies and the ledger's record."""

    def __init__(self, bookies: str, metadata: LedgerMetadata) -> None:
        self.bookies = {name: ModelBookie() for name in bookies}
        self.metadata = metadata
        self.version = 0

    def cas(self, metadata: LedgerMetadata, version: int) -> bool:
        if version != self.version:
            return False
        self.metadata = metadata
        self.version += 1
        return True

    def spares(self, ensemble: tuple[str, ...], positions: tuple[int, ...]) -> dict[int, str]:
        free = [b for b, bookie in self.bookies.items() if bookie.up and b not in ensemble]
        return dict(zip(positions, free, strict=False))


class Recoverer:
    """A recovery, with what it has under way."""

    def __init__(self, world: World, ledger_id: int = 7) -> None:
        self.world = world
        self.core = Recovering(ledger_id)
        self.inbox: list[Callable[[], list[recovering.Action]]] = []
        self.labels: list[str] = []
        self.log: list[recovering.Action] = []
        self.on_deliver: Callable[[str], None] = lambda label: None

    def start(self) -> None:
        self._take(self.core.metadata_read(self.world.metadata, self.world.version))

    @property
    def result(self) -> recovering.Done | recovering.Failed | None:
        found = [a for a in self.log if isinstance(a, recovering.Done | recovering.Failed)]
        return found[-1] if found else None

    def deliver(self, index: int = 0) -> None:
        """Let one thing that is under way happen."""
        label = self.labels.pop(index)
        happen = self.inbox.pop(index)
        self.on_deliver(label)
        self._take(happen())

    def run(self) -> recovering.Done | recovering.Failed:
        while self.inbox:
            self.deliver()
        assert self.result is not None, f"stuck in {self.core.state}"
        return self.result

    def run_from_start(self) -> recovering.Done | recovering.Failed:
        self.start()
        return self.run()

    def _post(self, label: str, happen: Callable[[], list[recovering.Action]]) -> None:
        self.labels.append(label)
        self.inbox.append(happen)

    def _take(self, actions: list[recovering.Action]) -> None:
        for action in actions:
            self.log.append(action)
            match action:
                case recovering.WriteMetadata(metadata, version):
                    self._post("cas", lambda m=metadata, v=version: self._cas(m, v))
                case recovering.Fence(position, bookie):
                    self._post(f"fence {bookie}", lambda p=position, b=bookie: self._fence(p, b))
                case recovering.Read(entry_id, bookies):
                    for bookie in bookies:
                        self._post(
                            f"read {entry_id} {bookie}",
                            lambda e=entry_id, b=bookie: self._read(e, b),
                        )
                case recovering.WriteBack(_, bookie, first, last):
                    held = [
                        (e, self.core.entries[e].data)
                        for e in range(first, last + 1)
                        if e in self.core.entries and self.core.is_held_by(bookie, e)
                    ]
                    self._post(f"write {bookie}", lambda b=bookie, h=held: self._write(b, h))
                case writing.ChooseReplacements(positions, ensemble):
                    self._take(self.core.chosen(self.world.spares(ensemble, positions)))
                case _:
                    pass

    def _cas(self, metadata: LedgerMetadata, version: int) -> list[recovering.Action]:
        if self.world.cas(metadata, version):
            return self.core.written(self.world.version)
        return self.core.conflict(self.world.metadata, self.world.version)

    def _fence(self, position: int, bookie: str) -> list[recovering.Action]:
        found = self.world.bookies[bookie]
        if not found.up:
            return self.core.fence_failed(position, BookieUnavailable(bookie, "down"))
        found.fenced = True
        if found.unknown:
            return self.core.fence_failed(position, BookieUnavailable(bookie, "unknown state"))
        return self.core.fenced(position, found.lac)

    def _read(self, entry_id: int, bookie: str) -> list[recovering.Action]:
        found = self.world.bookies[bookie]
        if not found.up:
            return self.core.entry_unknown(entry_id, bookie, "down")
        found.fenced = True
        if entry_id in found.entries:
            data = found.entries[entry_id][0]
            return self.core.entry_found(entry_id, data, 10 * (entry_id + 1))
        if found.unknown:
            return self.core.entry_unknown(entry_id, bookie, "unknown state")
        return self.core.entry_absent(entry_id, bookie)

    def _write(self, bookie: str, held: list[tuple[int, bytes]]) -> list[recovering.Action]:
        found = self.world.bookies[bookie]
        if not found.up:
            return self.core.failed(bookie, BookieUnavailable(bookie, "down"))
        actions: list[recovering.Action] = []
        for entry_id, data in held:
            found.entries.setdefault(entry_id, (data, entry_id - 1))
            actions += self.core.acked(bookie, entry_id, entry_id)
        return actions


class Owner:
    """A writer, with what it has under way."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.core = Writing(world.metadata, world.version)
        self.inbox: list[Callable[[], list[writing.Action]]] = []
        self.labels: list[str] = []
        self.acked = -1
        self.log: list[writing.Action] = []
        self.lac_of: dict[int, int] = {}

    @property
    def ended(self) -> bool:
        return any(isinstance(action, writing.Ended) for action in self.log)

    def add(self) -> None:
        """One more entry, sent to its write set."""
        self.core.push(1)
        entry_id = self.core.lap
        self.lac_of[entry_id] = self.core.lac
        for position in self.core.live:
            if self.core.quorum.holds(position, entry_id):
                self._send(self.core.ensemble[position], entry_id)

    def deliver(self, index: int = 0) -> None:
        self.labels.pop(index)
        self.take(self.inbox.pop(index)())

    def _post(self, label: str, happen: Callable[[], list[writing.Action]]) -> None:
        self.labels.append(label)
        self.inbox.append(happen)

    def _send(self, bookie: str, entry_id: int) -> None:
        lac = self.lac_of[entry_id]
        self._post(f"add {entry_id} {bookie}", lambda: self._store(bookie, entry_id, lac))

    def _store(self, bookie: str, entry_id: int, lac: int) -> list[writing.Action]:
        found = self.world.bookies[bookie]
        if not found.up:
            return self.core.failed(bookie, BookieUnavailable(bookie, "down"))
        if found.fenced:
            return self.core.refused(bookie, LedgerFenced("fenced"))
        found.entries[entry_id] = (content(entry_id), lac)
        self._post(f"ack {entry_id} {bookie}", lambda: self.core.acked(bookie, entry_id, entry_id))
        return []

    def take(self, actions: list[writing.Action]) -> None:
        for action in actions:
            self.log.append(action)
            match action:
                case writing.Confirmed(last_entry):
                    self.acked = last_entry
                case writing.ChooseReplacements(positions, ensemble):
                    self.take(self.core.chosen(self.world.spares(ensemble, positions)))
                case writing.WriteMetadata(metadata, version):
                    self._post("cas", lambda m=metadata, v=version: self._cas(m, v))
                case writing.Send(position, bookie, first):
                    for entry_id in range(first, self.core.lap + 1):
                        if self.core.quorum.holds(position, entry_id):
                            self._send(bookie, entry_id)
                case _:
                    pass

    def _cas(self, metadata: LedgerMetadata, version: int) -> list[writing.Action]:
        if self.world.cas(metadata, version):
            return self.core.written(self.world.version)
        return self.core.conflict(self.world.metadata, self.world.version)


def content(entry_id: int) -> bytes:
    return b"entry %d" % entry_id


def new_ledger(e: int = 3, qw: int = 3, qa: int = 2, **how: Any) -> LedgerMetadata:
    return LedgerMetadata(7, e, qw, qa, (Fragment(0, tuple("abcdefgh"[:e])),), **how)
