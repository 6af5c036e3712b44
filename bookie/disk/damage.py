"""The known damage on this bookie's disks: kept and named, never skipped.

A damaged range is answered as *unknown*. The registry starts empty, and may be called from any
thread.

A `Loss` is data that this bookie had vouched for and a start finds missing. The start fails, unless
the operator accepts the loss. Then the good data is kept (startup/repair.py), and the bookie enters
limbo for the rest.
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
    FILE_HEADER = "file-header"
    """No record can be trusted to belong to the file."""
    RECORD_HEADER = "record-header"
    """`length` reaches to the next good header, if known."""
    TRUNCATED = "truncated"
    EXTENT_CHECKSUM = "extent-checksum"
    ENTRY_DIGEST = "entry-digest"
    """The extent's checksum matches, the entry's digest does not."""
    WRONG_RECORD = "wrong-record"
    """Another record than the index says, or with frames of other entries."""
    NOT_INDEXED = "not-indexed"
    """The index does not know this good record: its entries read as absent."""
    LEDGERS_MAP = "ledgers-map"
    """No entry is lost: the log is walked instead."""
    MISSING_FILE = "missing-file"
    UNREADABLE = "unreadable"
    """The disk fails to read these bytes twice."""
    INDEX = "index"
    MARK = "mark"
    JOURNAL = "journal"
    STATE = "state"


_BY_LEDGER = frozenset({DamageKind.MISSING_FILE, DamageKind.STATE})
"""Kinds that report each ledger as a separate finding."""
_Key = tuple[DamageKind, str, int, int | None]


class Damage(NamedTuple):
    kind: DamageKind
    path: str
    offset: int
    length: int
    ledger_id: int | None = None
    """The ledger whose entries `first … last` are lost here."""
    first: int | None = None
    last: int | None = None
    found_ms: int = 0

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "kind": self.kind.value}


class DamagedRead(BookieIOError):
    """The entry may exist: unknown, never absent."""

    def __init__(self, message: str, damage: Damage) -> None:
        super().__init__(message)
        self.damage = damage


class DamageRegistry:
    def __init__(
        self,
        clock: Callable[[], int] = lambda: 0,
        findings_max: int = FINDINGS_MAX,
        *,
        told: bool = True,
    ) -> None:
        """Keep findings; `clock` gives milliseconds; without `told` nothing is logged."""
        self._told = told
        self._clock = clock
        self._findings_max = findings_max
        self._lock = threading.Lock()
        self._found: dict[_Key, Damage] = {}
        self.dropped = 0

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
        """Log a new finding; return the finding that is kept."""
        return self.add(Damage(kind, path, offset, length, ledger_id, first, last))

    def add(self, damage: Damage) -> Damage:
        """Completes a known finding whose ledger was unknown."""
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
        with self._lock:
            return list(self._found.values())

    def listing(self, limit: int) -> dict[str, Any]:
        found = self.current()
        return {
            "findings": len(found),
            "dropped": self.dropped,
            "damage": [damage.as_json() for damage in found[:limit]],
        }

    def counts(self) -> dict[str, int]:
        found = {kind.value: 0 for kind in DamageKind}
        for damage in self.current():
            found[damage.kind.value] += 1
        return found

    def clear_file(self, name: str) -> None:
        self._clear(lambda damage: damage.path.rpartition("/")[2] == name)

    def clear_range(self, path: str, start: int, end: int, *kinds: DamageKind) -> None:
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
    kind: DamageKind
    path: str
    offset: int
    length: int
    """0 if the length is unknown, or the file is missing."""
    why: str


OnLoss = Callable[[str], Awaitable[None]]


async def tell_losses(
    losses: Sequence[Loss], damages: DamageRegistry, on_loss: OnLoss | None
) -> None:
    for loss in losses:
        damages.report(loss.kind, loss.path, loss.offset, loss.length)
    if losses and on_loss is not None:
        await on_loss(in_words(losses))


def in_words(losses: Sequence[Loss]) -> str:
    named = "; ".join(loss.why for loss in losses[:_NAMED_MAX])
    more = len(losses) - _NAMED_MAX
    return f"{named}; and {more} more" if more > 0 else named
