"""The known damage on this bookie's disks: kept and named, never skipped.

Reads, the scrubber, compaction and the journal's replay report here. Operators, a metric and
re-replication read it. A finding is logged once, however often it is met. The list is bounded:
findings that arrive when it is full are counted and not logged. Nothing here decides about the
data: a damaged range stays on the disk and is answered as *unknown*.

May be called from any thread. Kept in memory only: after a restart, reads and the scrubber find the
remaining damage again.

A `Loss` is data that this bookie had vouched for and that a start finds missing. The start fails
with an error that names `REMEDY`, unless the operator accepts the loss. Then the good data is kept
(startup/repair.py), and the bookie enters limbo for the rest (ledgers/limbo.py).
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import structlog

from octavo.protocol.codes import BookieIOError

FINDINGS_MAX = 10_000

_log = structlog.get_logger()
REMEDY = (
    "Bring it back. If it is gone for good, start once with --accept-loss: what this bookie still "
    "has is served, what it may have lost is answered as unknown until it is re-replicated"
)
_NAMED_MAX = 3


class DamageKind(enum.StrEnum):
    """What is wrong with a place on the disk. The values are labels of the metric."""

    FILE_HEADER = "file-header"
    """The header of a file: no record in the file can be trusted to belong to it."""
    RECORD_HEADER = "record-header"
    """A record header; `length` reaches to the next good header, if that is known."""
    TRUNCATED = "truncated"
    """The file ends too early."""
    EXTENT_CHECKSUM = "extent-checksum"
    """An extent's bytes do not match its checksum."""
    ENTRY_DIGEST = "entry-digest"
    """An entry does not match its own digest, although its extent's checksum matches."""
    WRONG_RECORD = "wrong-record"
    """A good record, but another than the index says, or with frames of other entries."""
    NOT_INDEXED = "not-indexed"
    """A good record of a live ledger that the index does not know: its entries read as absent."""
    LEDGERS_MAP = "ledgers-map"
    """The ledgers map or footer of a sealed log. No entry is lost: the log is walked instead."""
    MISSING_FILE = "missing-file"
    """A file that the index or the mark names is missing."""
    UNREADABLE = "unreadable"
    """The disk fails to read these bytes, also at the second attempt."""
    INDEX = "index"
    """RocksDB found a damaged block in the index: its records cannot be looked up."""
    MARK = "mark"
    """A copy of the journal mark; another copy may be good."""
    JOURNAL = "journal"
    """A range of a journal file that held acknowledged records."""
    STATE = "state"
    """The ledger state contradicts what the logs and the index hold."""


_BY_LEDGER = frozenset({DamageKind.MISSING_FILE, DamageKind.STATE})
"""Kinds of damage without a place within a file: each ledger is a separate finding."""
_Key = tuple[DamageKind, str, int, int | None]


class Damage(NamedTuple):
    kind: DamageKind
    path: str
    offset: int
    length: int
    """The length of the damage, as far as it is known; else 0."""
    ledger_id: int | None = None
    """The ledger whose entries `first … last` are lost here; None when that is unknown."""
    first: int | None = None
    last: int | None = None
    found_ms: int = 0
    """Wall clock, when the damage was first reported."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values for the admin port and `octavo bookie check --json`."""
        return {**self._asdict(), "kind": self.kind.value}


class DamagedRead(BookieIOError):
    """A read that met damage: `damage` says where. The entry may exist: unknown, never absent."""

    def __init__(self, message: str, damage: Damage) -> None:
        super().__init__(message)
        self.damage = damage


class DamageRegistry:
    """The findings of a bookie, oldest first."""

    def __init__(
        self,
        clock: Callable[[], int] = lambda: 0,
        findings_max: int = FINDINGS_MAX,
        *,
        told: bool = True,
    ) -> None:
        """`clock` gives wall-clock milliseconds; without `told` nothing is logged."""
        self._told = told
        self._clock = clock
        self._findings_max = findings_max
        self._lock = threading.Lock()
        self._found: dict[_Key, Damage] = {}
        self.dropped = 0
        """Findings that arrived when the list was full."""

    def report(
        self,
        kind: DamageKind,
        path: str,
        offset: int = 0,
        length: int = 0,
        *,
        ledger_id: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> Damage:
        """Note a finding, and log it if it is new; return the finding that is kept."""
        return self.add(Damage(kind, path, offset, length, ledger_id, first, last))

    def add(self, damage: Damage) -> Damage:
        """Like `report`. A known finding is kept, and completed if its ledger was unknown."""
        owner = damage.ledger_id if damage.kind in _BY_LEDGER else None
        key = (damage.kind, damage.path, damage.offset, owner)
        with self._lock:
            known = self._found.get(key)
            if known is not None:
                if known.ledger_id is None and damage.ledger_id is not None:
                    known = self._found[key] = damage._replace(found_ms=known.found_ms)
                return known
            damage = damage._replace(found_ms=self._clock())
            if len(self._found) >= self._findings_max:
                self.dropped += 1
                first_dropped = self.dropped == 1
            else:
                self._found[key] = damage
                first_dropped = False
            kept = key in self._found
        if not self._told:
            return damage
        if kept:
            self._tell(damage)
        elif first_dropped:
            _log.error("damage_list_full", findings_max=self._findings_max)
        return damage

    @staticmethod
    def _tell(damage: Damage) -> None:
        _log.error(
            "damage_found",
            kind=damage.kind.value,
            path=damage.path,
            offset=damage.offset,
            length=damage.length,
            ledger=damage.ledger_id,
            first=damage.first,
            last=damage.last,
        )

    def current(self) -> list[Damage]:
        """Return every finding that still holds, oldest first."""
        with self._lock:
            return list(self._found.values())

    def listing(self, limit: int) -> dict[str, Any]:
        """Return at most `limit` findings for the admin port, oldest first."""
        found = self.current()
        return {
            "findings": len(found),
            "dropped": self.dropped,
            "damage": [damage.as_json() for damage in found[:limit]],
        }

    def counts(self) -> dict[str, int]:
        """Return the number of findings of every kind, for the metric."""
        found = {kind.value: 0 for kind in DamageKind}
        for damage in self.current():
            found[damage.kind.value] += 1
        return found

    def clear_file(self, name: str) -> None:
        """Drop the findings of a file that was removed."""
        self._clear(lambda damage: damage.path.rpartition("/")[2] == name)

    def clear_range(self, path: str, start: int, end: int, *kinds: DamageKind) -> None:
        """Drop findings of these kinds in bytes `start … end`, which were read back and are
        good."""
        self._clear(
            lambda damage: (
                damage.path == path and start <= damage.offset < end and damage.kind in kinds
            )
        )

    def _clear(self, gone: Callable[[Damage], bool]) -> None:
        with self._lock:
            if not self._found:
                return
            cleared = [key for key, damage in self._found.items() if gone(damage)]
            for key in cleared:
                del self._found[key]
            self.dropped = 0 if cleared else self.dropped
        for _, path, offset, _ in cleared if self._told else ():
            _log.info("damage_gone", path=path, offset=offset)


class Loss(NamedTuple):
    """Data that this bookie can no longer vouch for."""

    kind: DamageKind
    path: str
    offset: int
    length: int
    """The length of the loss; 0 when the file is missing, or the length is unknown."""
    why: str


OnLoss = Callable[[str], Awaitable[None]]
"""Called with a text that says what was lost; limbo for it is durable on return."""


async def tell_losses(
    losses: Sequence[Loss], damages: DamageRegistry, on_loss: OnLoss | None
) -> None:
    """Report each loss, then enter limbo for them."""
    for loss in losses:
        damages.report(loss.kind, loss.path, loss.offset, loss.length)
    if losses and on_loss is not None:
        await on_loss(in_words(losses))


def in_words(losses: Sequence[Loss]) -> str:
    """Describe the losses for the limbo file and the log."""
    named = "; ".join(loss.why for loss in losses[:_NAMED_MAX])
    more = len(losses) - _NAMED_MAX
    return f"{named}; and {more} more" if more > 0 else named
