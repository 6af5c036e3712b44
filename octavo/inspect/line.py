"""What a walk over a file yields, and what it is asked for. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from octavo.bookie.disk.damage import Damage
from octavo.protocol.entry import DigestType

BODY_BYTES_MAX = 256 * 1024 * 1024
"""No block or run is longer: a forged length must not fill the memory."""
YEAR_2000_MS = 946_684_800_000
_YEAR_10000_MS = 253_402_300_800_000


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for: which entries, how closely."""

    ledger: int | None = None
    first: int = 0
    last: int | None = None
    entries: bool = False
    """One line for every entry, with a look at its payload."""
    verify: bool = False
    """Check bodies and digests, not headers alone."""
    digest: DigestType | None = None
    """How the ledgers in question are protected; None: find out, as far as the bytes say it."""
    password: bytes = b""

    def wants(self, ledger_id: int, first: int, last: int) -> bool:
        """Whether any of the entries is asked for."""
        if self.ledger is not None and ledger_id != self.ledger:
            return False
        return last >= self.first and (self.last is None or first <= self.last)

    @property
    def is_narrow(self) -> bool:
        """Whether only some entries are asked for."""
        return self.ledger is not None or self.first > 0 or self.last is not None


@dataclass(slots=True)
class Line:
    """One thing at one place of a file."""

    kind: str
    """`header`, `block`, `run`, `entry`, `fence`, `map`, `free`, `damage`, …"""
    offset: int
    length: int
    fields: dict[str, Any] = field(default_factory=dict)
    """Plain values, for `--json`; `ledger`, `first`, `last` have columns of their own."""
    note: str = ""
    """The rest, for a person."""
    damage: list[Damage] = field(default_factory=list)
    """What is wrong here. Damage is what acknowledged data may have been lost by."""
    depth: int = 0
    """1 for what lies inside the line before."""

    def as_json(self, path: str) -> dict[str, Any]:
        """One object."""
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
    """`0–4, 7` for ascending ids; at most `most` parts, then an ellipsis."""
    parts: list[list[int]] = []
    for one in ids:
        if parts and one == parts[-1][1] + 1:
            parts[-1][1] = one
        else:
            parts.append([one, one])
    shown = [f"{a}–{b}" if b > a else f"{a}" for a, b in parts[:most]]
    return ", ".join(shown + ["…"] * (len(parts) > most))


def entries_of(first: int | None, last: int | None) -> str:
    """`entry 4`, `entries 4–9`."""
    return f"entry {first}" if first == last else f"entries {first}–{last}"


def time_of(ms: int) -> str:
    """Milliseconds since the epoch as a time; as a number where they are none of this age."""
    if not YEAR_2000_MS <= ms < _YEAR_10000_MS:
        return f"{ms} ms"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
