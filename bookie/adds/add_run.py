"""A run of adds: consecutive entries of one ledger, as they came off the wire.

The unit in which the hot path works: one object, one key check, one fence check, one place in
the journal and one answer for many entries. The frames are the bytes that the journal stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class AddRun:
    """Entries `first_entry … first_entry + count − 1` of `ledger_id`. Not changed once made."""

    ledger_id: int
    first_entry: int
    count: int
    key: bytes
    """The 20-byte master key that all the adds carry."""
    recovery: bool
    """Whether they pass the fence (BookKeeper RECOVERY_ADD)."""
    frames: bytes
    """Whole v2 add frames back to back."""
    offsets: Sequence[int]
    """Where each frame begins in `frames`; a `range` when all are of one length."""

    @property
    def last_entry(self) -> int:
        """The id of the last entry."""
        return self.first_entry + self.count - 1
