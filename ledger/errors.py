"""Errors of the ledger client; bookies' error answers are in `octavo.protocol.codes`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from octavo.protocol.codes import OctavoError, Scope


class LedgerError(OctavoError):
    name = "ledger-error"


class BadLedgerOption(LedgerError):
    name = "bad-ledger-option"
    scope = Scope.PROCESS


class LedgerNotFound(LedgerError):
    name = "ledger-not-found"
    http_status = 404
    scope = Scope.LEDGER


class LedgerFenced(LedgerError):
    """Another client closes the ledger. Its writer gets no further ack, ever."""

    name = "ledger-fenced"
    http_status = 409
    scope = Scope.LEDGER


class LedgerClosed(LedgerError):
    name = "ledger-closed"
    http_status = 409
    scope = Scope.LEDGER


class NotEnoughBookies(LedgerError):
    """Too few bookies can be used; `why` says what is wrong with the others."""

    name = "not-enough-bookies"
    http_status = 503
    retryable = True

    def __init__(self, what: str, needed: int, up: Collection[str], why: str = "") -> None:
        names = ", ".join(sorted(up)) or "none"
        said = f"{what}: {needed} bookies needed, {len(up)} usable ({names})"
        super().__init__(f"{said}; {why}" if why else said)
        self.needed = needed
        self.up = tuple(sorted(up))


class TooFewBookies(NotEnoughBookies):
    """Waiting will not help: even all bookies of the cluster are too few."""

    name = "too-few-bookies"
    retryable = False

    def __init__(self, needed: int, known: Collection[str], up: Collection[str]) -> None:
        LedgerError.__init__(
            self,
            f"an ensemble needs {needed} bookies, but this cluster has {len(known)} "
            f"({', '.join(sorted(known)) or 'none'}), {len(up)} of them up. "
            "Add bookies, or recreate the topic with a smaller ensemble",
        )
        self.needed = needed
        self.up = tuple(sorted(up))


class BookieUnavailable(LedgerError):
    name = "bookie-unavailable"
    http_status = 503
    retryable = True

    def __init__(self, bookie_id: str, reason: str) -> None:
        super().__init__(f"bookie {bookie_id}: {reason}")
        self.bookie_id = bookie_id
        self.reason = reason


class OutcomeUnknown(LedgerError):
    """Only the ledger's recovery decides whether it has the add. `cause` says why."""

    name = "outcome-unknown"
    http_status = 504

    def __init__(self, ledger_id: int, entry_id: int, cause: OctavoError) -> None:
        super().__init__(f"ledger {ledger_id} entry {entry_id}: outcome unknown: {cause}")
        self.cause = cause
        self.__cause__ = cause


class RecoveryFailed(LedgerError):
    """The end could not be proved, and nothing was changed. Try again later."""

    name = "recovery-failed"
    http_status = 503
    retryable = True
    scope = Scope.LEDGER


class ReadFailed(LedgerError):
    """No replica has a good copy, and too few deny the entry: unknown."""

    name = "read-failed"
    http_status = 503
    retryable = True

    def __init__(self, ledger_id: int, entry_id: int, answers: Mapping[str, str]) -> None:
        said = "; ".join(f"{bookie}: {why}" for bookie, why in answers.items())
        super().__init__(f"ledger {ledger_id} entry {entry_id}: no replica returned it ({said})")
        self.answers = dict(answers)


class LedgerDamaged(LedgerError):
    """An entry does not follow from the one before it: forged, or entries are missing."""

    name = "ledger-damaged"
    http_status = 503
    scope = Scope.LEDGER

    def __init__(self, ledger_id: int, entry_id: int, what: str) -> None:
        super().__init__(f"ledger {ledger_id} is damaged: entry {entry_id} {what}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class EntryTampered(LedgerDamaged):
    """An encrypted entry was not sealed under this ledger's key for this id."""

    name = "entry-tampered"
    http_status = 503


class BeyondLastConfirmed(LedgerError):
    """The entry is above the last confirmed entry that the reader knows of."""

    name = "beyond-last-confirmed"
    http_status = 404
    retryable = True

    def __init__(self, ledger_id: int, entry_id: int, last_add_confirmed: int) -> None:
        super().__init__(
            f"ledger {ledger_id}: entry {entry_id} is above the last confirmed, "
            f"{last_add_confirmed}; call refresh() or wait_for() to learn of later entries"
        )


class PayloadTooLong(LedgerError):
    name = "payload-too-long"
    http_status = 413

    def __init__(self, payload_bytes: int, payload_bytes_max: int) -> None:
        super().__init__(f"payload of {payload_bytes} bytes; the limit is {payload_bytes_max}")


class WriterBusy(LedgerError):
    """Too many adds are pending: await `drain()` before adding."""

    name = "writer-busy"
    http_status = 429
    retryable = True


class DuplicateEntryId(LedgerError):
    name = "duplicate-entry-id"
    http_status = 409

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(f"ledger {ledger_id}: entry {entry_id} was added before")


class ClientClosed(LedgerError):
    name = "client-closed"
    http_status = 503


class WriteRefused(LedgerError):
    """A bookie refused an add, and an ensemble change would not help."""

    name = "write-refused"
    http_status = 503
    scope = Scope.LEDGER


class OffloadUnavailable(LedgerError):
    name = "offload-unavailable"
    http_status = 503
    retryable = True


class OffloadDamaged(LedgerError):
    """The object differs from the uploaded bytes."""

    name = "offload-damaged"
    http_status = 503
    scope = Scope.LEDGER
