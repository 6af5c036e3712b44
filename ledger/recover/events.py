"""The steps of a recovery as an observer gets them.

1 the record is read        4 entries are read with fencing reads, to find the end
2 it is marked IN_RECOVERY  5 the entries found are written back to an ack quorum
3 the bookies are fenced    6 the record is closed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from octavo.metadata.ledgers import LedgerMetadata


@dataclass(frozen=True, slots=True)
class MetadataSeen:
    """The record was read: at the start, or after another process changed it."""

    step: ClassVar[int] = 1
    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class MarkedInRecovery:
    """The old writer cannot change the record any more."""

    step: ClassVar[int] = 2
    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class FenceAnswered:
    """A bookie answered the fence: its LAC, or None when it is not known to be fenced."""

    step: ClassVar[int] = 3
    bookie_id: str
    answer: str
    last_add_confirmed: int | None


@dataclass(frozen=True, slots=True)
class FenceHeld:
    """The old writer gets no further ack."""

    step: ClassVar[int] = 3
    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class EntryAnswered:
    step: ClassVar[int] = 4
    entry_id: int
    bookie_id: str
    answer: str


@dataclass(frozen=True, slots=True)
class LastEntryFound:
    step: ClassVar[int] = 4
    last_entry: int


@dataclass(frozen=True, slots=True)
class WrittenBack:
    step: ClassVar[int] = 5
    bookie_id: str
    first_entry: int
    last_entry: int


@dataclass(frozen=True, slots=True)
class BookieReplaced:
    """A bookie that did not take the write-back is replaced; step 6 publishes the new ensemble."""

    step: ClassVar[int] = 5
    first_entry: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerRecovered:
    """Closed by this recovery or (`adopted`) by another process."""

    step: ClassVar[int] = 6
    metadata: LedgerMetadata
    version: int
    adopted: bool


RecoveryEvent = (
    MetadataSeen
    | MarkedInRecovery
    | FenceAnswered
    | FenceHeld
    | EntryAnswered
    | LastEntryFound
    | WrittenBack
    | BookieReplaced
    | LedgerRecovered
)
