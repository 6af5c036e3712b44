"""The actions that the pure cores ask for, in order.

The driver carries out each and reports the result by the core's method that the docstring names.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.metadata.ledgers import LedgerMetadata
from octavo.protocol.codes import OctavoError


@dataclass(frozen=True, slots=True)
class Written:
    """Answer callers up to `last_entry`, with deferred syncs: not durable yet."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class Forced:
    """Report that all entries up to `last_entry` are durable, with deferred syncs."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """All entries up to `last_entry` are durable: answer callers, in order."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class ChooseReplacements:
    """Find spares that are not in `ensemble`; answer with `chosen`."""

    positions: tuple[int, ...]
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Compare-and-set the record; answer with `written`, `conflict` or (a writer)
    `metadata_lost`.
    """

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send entries from `first_entry` on to the bookie at `position`, even if sent before."""

    position: int
    bookie_id: str
    first_entry: int


@dataclass(frozen=True, slots=True)
class EnsembleChanged:
    first_entry: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChangeDelayed:
    """Log that no bookie can replace these, and that the writer continues."""

    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stalled:
    """Too few bookies are left. Wait, then call `give_up`."""

    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of sent adds is unknown."""

    error: OctavoError


@dataclass(frozen=True, slots=True)
class Closed:
    """Pending adds were not stored."""

    metadata: LedgerMetadata


WriterAction = (
    Confirmed
    | Written
    | ChooseReplacements
    | WriteMetadata
    | Send
    | EnsembleChanged
    | ChangeDelayed
    | Stalled
    | Ended
    | Closed
)


@dataclass(frozen=True, slots=True)
class Fence:
    """Send a fencing read of the last entry; answer with `fenced`, `fence_failed`, `fence_unknown`
    or `squatted`.
    """

    bookie_id: str


@dataclass(frozen=True, slots=True)
class FenceHolds:
    """Log that bookies of every write set are fenced."""

    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class Read:
    """A fencing read to the write set; for each bookie answer with `entry_found`, `entry_absent` or
    `entry_unknown`.
    """

    entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Recovery adds of these entries, as far as `position` holds them; answer with `acked` or
    `failed`.
    """

    position: int
    bookie_id: str
    first_entry: int
    last_entry: int


@dataclass(frozen=True, slots=True)
class EndFound:
    last_entry: int


@dataclass(frozen=True, slots=True)
class Done:
    metadata: LedgerMetadata
    version: int
    adopted: bool


@dataclass(frozen=True, slots=True)
class Failed:
    error: OctavoError


RecoveryAction = (
    WriteMetadata
    | Fence
    | FenceHolds
    | Read
    | WriteBack
    | EndFound
    | ChooseReplacements
    | EnsembleChanged
    | Done
    | Failed
)
