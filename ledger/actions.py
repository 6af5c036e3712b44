"""What the pure cores want done: frozen values, returned by their methods in order.

The driver does what an action says and tells the core how it went, by the method named in the
action's docstring. Some are for the log only and want no answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.metadata.ledgers import LedgerMetadata
from octavo.protocol.codes import OctavoError

# ---------------------------------------------------------------------- of a writer


@dataclass(frozen=True, slots=True)
class Written:
    """Deferred syncs: an ack quorum has all entries up to `last_entry`: answer their callers, in
    order. They are durable when `Confirmed` says so."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class Forced:
    """For callers, with deferred syncs: all entries up to `last_entry` are durable."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """All entries up to `last_entry` are durable: answer their callers, in order."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class ChooseReplacements:
    """Find a spare for each of these positions, outside `excluded`; answer with `chosen`."""

    positions: tuple[int, ...]
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Compare-and-set the ledger's record; answer with `written` or `conflict`."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send every entry from `first_entry` on to the bookie at `position`, newly or again."""

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
    """For the log: these bookies failed, none can replace them, and the writer goes on."""

    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stalled:
    """Too few bookies to go on. Give it some time, then call `give_up`."""

    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """No further ack. What is pending has an unknown outcome."""

    error: OctavoError


@dataclass(frozen=True, slots=True)
class Closed:
    """The ledger is closed as `metadata` says. What is pending was not stored."""

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

# ---------------------------------------------------------------------- of a recovery


@dataclass(frozen=True, slots=True)
class Fence:
    """A fencing read of the last entry; answer with `fenced` or `fence_failed`."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class FenceHolds:
    """For the log: every write set is fenced; reading goes on from `last_add_confirmed`."""

    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class Read:
    """A fencing read of one entry from its whole write set; answer for each bookie."""

    entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Recovery adds of `first_entry` … `last_entry` (those in its write sets) to one bookie."""

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
    """Closed, by this recovery or (`adopted`) by another closer."""

    metadata: LedgerMetadata
    version: int
    adopted: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """Not closed; the record stays as it is and a later attempt may succeed."""

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
