"""The lines that a walk over a file yields, and the options of a walk."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from octavo.bookie.disk.damage import Damage
from octavo.protocol.entry import DigestType

BODY_BYTES_MAX = 256 * 1024 * 1024
"""No block or extent is longer: a forged length must not fill the memory."""
YEAR_2000_MS = 946_684_800_000
_YEAR_10000_MS = 253_402_300_800_000


@dataclass(frozen=True, slots=True)
class Wish:
    ledger: int | None = None
    first: int = 0
    last: int | None = None
    entries: bool = False
    verify: bool = False
    digest: DigestType | None = None
    """The digest type of the ledgers; None: guess from the bytes."""
    password: bytes = b""

    def wants(self, ledger_id: int, first: int, last: int) -> bool:
        if self.ledger is not None and ledger_id != self.ledger:
            return False
        return last >= self.first and (self.last is None or first <= self.last)

    @property
    def is_narrow(self) -> bool:
        return self.ledger is not None or self.first > 0 or self.last is not None


@dataclass(slots=True)
class Line:
    kind: str
    """`header`, `block`, `extent`, `entry`, `fence`, `map`, `free`, `damage`, …"""
    offset: int
    length: int
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields for `--json`; `ledger`, `first`, `last` have columns of their own in the table."""
    note: str = ""
    damage: list[Damage] = field(default_factory=list)
    """Acknowledged data may be lost here."""
    depth: int = 0

    def as_json(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "type": self.kind,
            "path": path,
            "offset": self.offset,
            "bytes": self.length,
            **self.fields,
        }
        if self.damage:
            found["damage"] = [one.as_json() for one in self.damage]
            found["what"] = self.note
        return found


def spans(ids: list[int], most: int = 8) -> str:
    """Return text such as `0–4, 7` for ascending ids; at most `most` parts, then an ellipsis."""
    parts: list[list[int]] = []
    for one in ids:
        if parts and one == parts[-1][1] + 1:
            parts[-1][1] = one
        else:
            parts.append([one, one])
    shown = [f"{a}–{b}" if b > a else f"{a}" for a, b in parts[:most]]
    return ", ".join(shown + ["…"] * (len(parts) > most))


def entries_of(first: int | None, last: int | None) -> str:
    return f"entry {first}" if first == last else f"entries {first}–{last}"


def time_of(ms: int) -> str:
    """Return a date, or a number if outside the years 2000–9999."""
    if not YEAR_2000_MS <= ms < _YEAR_10000_MS:
        return f"{ms} ms"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
