"""What the ledger client raises, beside what a bookie answers (`octavo.protocol.codes`).

The set is closed. Each error says what was wrong, and where it helps, what would be right.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from octavo.protocol.codes import OctavoError, Scope


class LedgerError(OctavoError):
    """The root of what the ledger client raises."""

    name = "ledger-error"


class LedgerNotFound(LedgerError):
    """No such ledger in the metadata store: never made, or deleted."""

    name = "ledger-not-found"
    scope = Scope.LEDGER


class LedgerFenced(LedgerError):
    """Somebody else closed the ledger or is closing it. Its writer gets no further ack, ever."""

    name = "ledger-fenced"
    scope = Scope.LEDGER


class LedgerClosed(LedgerError):
    """The ledger was closed by this writer. The add was not stored as part of it."""

    name = "ledger-closed"
    scope = Scope.LEDGER


class NotEnoughBookies(LedgerError):
    """Fewer bookies than an ensemble, or a write set, needs. Names those that are up, and says in
    `why` what keeps the others from being a choice."""

    name = "not-enough-bookies"
    retryable = True

    def __init__(self, what: str, needed: int, up: Collection[str], why: str = "") -> None:
        names = ", ".join(sorted(up)) or "none"
        said = f"{what}: {needed} bookies needed, {len(up)} usable ({names})"
        super().__init__(f"{said}; {why}" if why else said)
        self.needed = needed
        self.up = tuple(sorted(up))


class TooFewBookies(NotEnoughBookies):
    """The cluster has not that many, those that are down included: waiting will not help."""

    name = "too-few-bookies"
    retryable = False

    def __init__(self, needed: int, known: Collection[str], up: Collection[str]) -> None:
        LedgerError.__init__(
            self,
            f"an ensemble of {needed} bookies cannot be had: this cluster has {len(known)} "
            f"({', '.join(sorted(known)) or 'none'}), {len(up)} of them up. "
            "Add bookies, or make the topic anew with a smaller ensemble",
        )
        self.needed = needed
        self.up = tuple(sorted(up))


class BookieUnavailable(LedgerError):
    """A bookie cannot be reached, broke the connection, or did not answer in time."""

    name = "bookie-unavailable"
    retryable = True

    def __init__(self, bookie_id: str, reason: str) -> None:
        super().__init__(f"bookie {bookie_id}: {reason}")
        self.bookie_id = bookie_id
        self.reason = reason


class OutcomeUnknown(LedgerError):
    """The add may or may not be part of the ledger; only its recovery decides. `cause` says why."""

    name = "outcome-unknown"

    def __init__(self, ledger_id: int, entry_id: int, cause: OctavoError) -> None:
        super().__init__(f"ledger {ledger_id} entry {entry_id}: outcome unknown: {cause}")
        self.cause = cause
        self.__cause__ = cause


class RecoveryFailed(LedgerError):
    """Recovery could not prove where the ledger ends. Nothing was guessed; try again later."""

    name = "recovery-failed"
    retryable = True
    scope = Scope.LEDGER


class ReadFailed(LedgerError):
    """No replica gave a good copy, and not all vouched for its absence: the answer is unknown."""

    name = "read-failed"
    retryable = True

    def __init__(self, ledger_id: int, entry_id: int, answers: Mapping[str, str]) -> None:
        said = "; ".join(f"{bookie}: {why}" for bookie, why in answers.items())
        super().__init__(f"ledger {ledger_id} entry {entry_id}: no replica gave it ({said})")
        self.answers = dict(answers)


class LedgerDamaged(LedgerError):
    """An entry that does not follow from the one before it: forged, or something is missing."""

    name = "ledger-damaged"
    scope = Scope.LEDGER

    def __init__(self, ledger_id: int, entry_id: int, what: str) -> None:
        super().__init__(f"ledger {ledger_id} is damaged: entry {entry_id} {what}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class EntryTampered(LedgerDamaged):
    """An entry of an encrypted ledger that was not written so, there, under the ledger's key."""

    name = "entry-tampered"


class BeyondLastConfirmed(LedgerError):
    """A read above the last confirmed entry that the reader knows of."""

    name = "beyond-last-confirmed"
    retryable = True

    def __init__(self, ledger_id: int, entry_id: int, last_add_confirmed: int) -> None:
        super().__init__(
            f"ledger {ledger_id}: entry {entry_id} is above the last confirmed, "
            f"{last_add_confirmed}; refresh() or wait_for() learns of later ones"
        )


class PayloadTooLong(LedgerError):
    """The payload does not fit one frame."""

    name = "payload-too-long"

    def __init__(self, payload_bytes: int, payload_bytes_max: int) -> None:
        super().__init__(f"payload of {payload_bytes} bytes; the limit is {payload_bytes_max}")


class WriterBusy(LedgerError):
    """More is pending than the writer may hold: await `drain()` before adding more."""

    name = "writer-busy"
    retryable = True


class DuplicateEntryId(LedgerError):
    """An entry of this id was added before, by this writer."""

    name = "duplicate-entry-id"

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(f"ledger {ledger_id}: entry {entry_id} was added before")


class ClientClosed(LedgerError):
    """The ledger client of this process was closed. Ledgers stay open, for their recovery."""

    name = "client-closed"


class WriteRefused(LedgerError):
    """The ledger's write cannot go on for a reason that no change of ensemble repairs."""

    name = "write-refused"
    scope = Scope.LEDGER


class OffloadUnavailable(LedgerError):
    """An offloaded ledger's object cannot be reached. The message names it and the reason."""

    name = "offload-unavailable"
    retryable = True


class OffloadDamaged(LedgerError):
    """An offloaded ledger's object is not what was written. The message says where."""

    name = "offload-damaged"
    scope = Scope.LEDGER
