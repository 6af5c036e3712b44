"""A world without network or clock for the pure cores of the ledger. A request becomes an
envelope; delivering it performs the request and answers the core. The test chooses the order;
tests/model visits every order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from octavo.ledger import actions as wanted
from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.recover.recovery_state import RecoveryState
from octavo.metadata.ledgers import Fragment, LedgerMetadata
from octavo.protocol.codes import Unauthorized

Held = tuple[tuple[int, bytes], ...]


@dataclass
class ModelBookie:
    entries: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    fenced: bool = False
    up: bool = True
    unknown: bool = False
    """The bookie may have lost data, and says so."""
    squatted: bool = False
    """The bookie has the ledger's id under another client's key."""

    @property
    def lac(self) -> int:
        if not self.entries:
            return -1
        return self.entries[max(self.entries)][1]


class World:
    def __init__(self, bookies: str, metadata: LedgerMetadata) -> None:
        self.bookies = {name: ModelBookie() for name in bookies}
        self.metadata = metadata
        self.version = 0
        self.reads_fence = True
        """False plants BookKeeper #2614."""

    def cas(self, metadata: LedgerMetadata, version: int) -> bool:
        if version != self.version:
            return False
        self.metadata = metadata
        self.version += 1
        return True

    def spares(self, ensemble: tuple[str, ...], positions: tuple[int, ...]) -> dict[int, str]:
        free = [b for b, bookie in self.bookies.items() if bookie.up and b not in ensemble]
        return dict(zip(positions, free, strict=False))


class Envelope(NamedTuple):
    label: str
    method: str
    args: tuple[Any, ...]


class Agent:
    def __init__(self, world: World) -> None:
        self.on_deliver: Callable[[str], object] = lambda label: None
        self.world = world
        self.inbox: list[Envelope] = []
        self.log: list[Any] = []

    @property
    def labels(self) -> list[str]:
        return [envelope.label for envelope in self.inbox]

    def deliver(self, index: int = 0) -> None:
        envelope = self.inbox.pop(index)
        self.on_deliver(envelope.label)
        self.take(getattr(self, envelope.method)(*envelope.args))

    def post(self, label: str, method: str, *args: Any) -> None:
        self.inbox.append(Envelope(label, method, args))

    def take(self, actions: list[Any]) -> None:
        raise NotImplementedError


class Recoverer(Agent):
    def __init__(self, world: World, name: str = "r", ledger_id: int = 7) -> None:
        super().__init__(world)
        self.name = name
        self.core = RecoveryState(ledger_id)
        self.result: wanted.Done | wanted.Failed | None = None

    def start(self) -> None:
        self.take(self.core.metadata_read(self.world.metadata, self.world.version))

    def run(self) -> wanted.Done | wanted.Failed:
        while self.inbox:
            self.deliver()
        assert self.result is not None, f"stuck in {self.core.state}"
        return self.result

    def run_from_start(self) -> wanted.Done | wanted.Failed:
        self.start()
        return self.run()

    def take(self, actions: list[wanted.RecoveryAction]) -> None:
        for action in actions:
            self.log.append(action)
            match action:
                case wanted.WriteMetadata(metadata, version):
                    self.post(f"cas {version}", "cas", metadata, version)
                case wanted.Fence(bookie):
                    self.post(f"fence {bookie}", "fence", bookie)
                case wanted.Read(entry_id, bookies):
                    for bookie in bookies:
                        self.post(f"read {entry_id} {bookie}", "read", entry_id, bookie)
                case wanted.WriteBack(_, bookie, first, last):
                    held = tuple(
                        (e, self.core.entries[e].data)
                        for e in range(first, last + 1)
                        if e in self.core.entries and self.core.is_held_by(bookie, e)
                    )
                    self.post(f"write {bookie} {[e for e, _ in held]}", "write", bookie, held)
                case wanted.ChooseReplacements(positions, ensemble):
                    self.take(self.core.chosen(self.world.spares(ensemble, positions)))
                case wanted.Done() | wanted.Failed():
                    self.result = action
                case _:
                    pass

    def cas(self, metadata: LedgerMetadata, version: int) -> list[wanted.RecoveryAction]:
        if self.world.cas(metadata, version):
            return self.core.written(self.world.version)
        return self.core.conflict(self.world.metadata, self.world.version)

    def fence(self, bookie: str) -> list[wanted.RecoveryAction]:
        found = self.world.bookies[bookie]
        if not found.up:
            return self.core.fence_failed(bookie, BookieUnavailable(bookie, "down"))
        if found.squatted:
            return self.core.squatted(bookie, Unauthorized("another key"))
        found.fenced = True
        if found.unknown:
            return self.core.fence_failed(bookie, BookieUnavailable(bookie, "unknown state"))
        return self.core.fenced(bookie, found.lac)

    def read(self, entry_id: int, bookie: str) -> list[wanted.RecoveryAction]:
        found = self.world.bookies[bookie]
        if not found.up:
            return self.core.entry_unknown(entry_id, bookie, "down")
        if found.squatted:
            return self.core.entry_absent(entry_id, bookie)
        found.fenced = found.fenced or self.world.reads_fence
        if entry_id in found.entries:
            data = found.entries[entry_id][0]
            return self.core.entry_found(entry_id, data, 10 * (entry_id + 1))
        if found.unknown:
            return self.core.entry_unknown(entry_id, bookie, "unknown state")
        return self.core.entry_absent(entry_id, bookie)

    def write(
        self, bookie: str, held: tuple[tuple[int, bytes], ...]
    ) -> list[wanted.RecoveryAction]:
        found = self.world.bookies[bookie]
        if not found.up:
            return self.core.failed(bookie, BookieUnavailable(bookie, "down"))
        if found.squatted:
            return self.core.failed(bookie, Unauthorized("another key"))
        actions: list[wanted.RecoveryAction] = []
        for entry_id, data in held:
            found.entries.setdefault(entry_id, (data, entry_id - 1))
            actions += self.core.acked(bookie, entry_id, entry_id)
        return actions


def content(entry_id: int) -> bytes:
    return b"entry %d" % entry_id


def new_ledger(e: int = 3, qw: int = 3, qa: int = 2, **how: Any) -> LedgerMetadata:
    return LedgerMetadata(7, e, qw, qa, (Fragment(0, tuple("abcdefgh"[:e])),), **how)
