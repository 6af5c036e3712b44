"""Ledger metadata: a small record for each ledger, changed only by compare-and-set.

    OPEN → CLOSED                 its writer closed it
    OPEN → IN_RECOVERY → CLOSED   a recovery closed it

The bytes are BookKeeper's v3 (docs/formats/ledger_metadata.md).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.protocol.entry import INVALID_ENTRY_ID, DigestType


class LedgerState(enum.IntEnum):
    """The numbers are BookKeeper's."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Fragment:
    """The entries up to the next fragment, on the same ensemble."""

    first_entry: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """`last_entry` and `length` count only when CLOSED."""

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: int = INVALID_ENTRY_ID
    length: int = 0
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)
    """Proves the right to write and fence; see `metadata/secret.py`."""
    created_ms: int = 0
    custom: Mapping[str, bytes] = field(default_factory=dict)
    creator_token: int = 0

    def __post_init__(self) -> None:
        assert self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1
        assert self.fragments
        assert self.fragments[0].first_entry == 0
        for before, after in zip(self.fragments, self.fragments[1:], strict=False):
            assert before.first_entry < after.first_entry
        for fragment in self.fragments:
            assert len(set(fragment.bookies)) == len(fragment.bookies) == self.ensemble_size

    def fragment_of(self, entry_id: int) -> Fragment:
        assert entry_id >= 0
        for fragment in reversed(self.fragments):
            if fragment.first_entry <= entry_id:
                return fragment
        raise AssertionError("the first fragment starts at entry 0")
