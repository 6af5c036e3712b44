"""The actions that the pure cores ask for: frozen values, returned by their methods in order.

The driver carries out each action and reports the result to the core, by the method that the
action's docstring names. Some actions are only for the log and need no result.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.metadata.ledgers import LedgerMetadata
from octavo.protocol.codes import OctavoError

# ---------------------------------------------------------------------- actions of a writer


@dataclass(frozen=True, slots=True)
class Written:
    """With deferred syncs: an ack quorum has written all entries up to `last_entry`. Answer the
    callers, in order. `Confirmed` follows when the entries are durable."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class Forced:
    """With deferred syncs: tell callers that all entries up to `last_entry` are durable."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """All entries up to `last_entry` are durable: answer the callers, in order."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class ChooseReplacements:
    """Find a spare that is not in `ensemble` for each of `positions`; answer with `chosen`."""

    positions: tuple[int, ...]
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Compare-and-set the ledger's record; answer with `written`, `conflict` or (to a writer)
    `metadata_lost`."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send (or resend) every entry from `first_entry` on to the bookie at `position`."""

    position: int
    bookie_id: str
    first_entry: int


@dataclass(frozen=True, slots=True)
class EnsembleChanged:
    """For the log: `new` replaces `old` from `first_entry` on."""

    first_entry: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChangeDelayed:
    """For the log: these bookies failed, no bookie can replace them, and the writer continues."""

    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stalled:
    """Too few bookies to continue. Wait, then call `give_up`."""

    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The writer acknowledges nothing more. Adds that were sent have an unknown outcome."""

    error: OctavoError


@dataclass(frozen=True, slots=True)
class Closed:
    """The ledger is closed as `metadata` says. Pending adds were not stored."""

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

# ---------------------------------------------------------------------- actions of a recovery


@dataclass(frozen=True, slots=True)
class Fence:
    """Send a fencing read of the last entry; answer with `fenced`, `fence_failed`, `fence_unknown`
    or `squatted`."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class FenceHolds:
    """For the log: every write set is fenced; reads continue from `last_add_confirmed`."""

    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class Read:
    """Send a fencing read of an entry to its whole write set; answer for each bookie with
    `entry_found`, `entry_absent` or `entry_unknown`."""

    entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Send recovery adds to one bookie, for the entries from `first_entry` to `last_entry` whose
    write set has `position`; answer with `acked` or `failed`."""

    position: int
    bookie_id: str
    first_entry: int
    last_entry: int


@dataclass(frozen=True, slots=True)
class EndFound:
    """For the log: the ledger ends with `last_entry`."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class Done:
    """The ledger is closed, by this recovery or (`adopted`) by another process."""

    metadata: LedgerMetadata
    version: int
    adopted: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The recovery has failed: the record stays as it is, and a later attempt may succeed."""

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
