"""Errors of the ledger client. Bookies' own error answers are in `octavo.protocol.codes`.

The set is closed. Each error says what was wrong and, where it helps, what would be right.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from octavo.protocol.codes import OctavoError, Scope


class LedgerError(OctavoError):
    """The base of all errors that the ledger client raises."""

    name = "ledger-error"


class BadLedgerOption(LedgerError):
    """A setting of the ledger client is out of range. The message says what would be right."""

    name = "bad-ledger-option"
    scope = Scope.PROCESS


class LedgerNotFound(LedgerError):
    """No such ledger in the metadata store: never made, or deleted."""

    name = "ledger-not-found"
    http_status = 404
    scope = Scope.LEDGER


class LedgerFenced(LedgerError):
    """Another client closed the ledger or is closing it. Its writer gets no further ack, ever."""

    name = "ledger-fenced"
    http_status = 409
    scope = Scope.LEDGER


class LedgerClosed(LedgerError):
    """This writer closed the ledger. The add is not part of it."""

    name = "ledger-closed"
    http_status = 409
    scope = Scope.LEDGER


class NotEnoughBookies(LedgerError):
    """Fewer usable bookies than an ensemble, or a write set, needs. The message names the usable
    bookies, and `why` says what is wrong with the others."""

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
    """The cluster has too few bookies, even if all were up: waiting will not help."""

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
    """A bookie cannot be reached, broke the connection, or did not answer in time."""

    name = "bookie-unavailable"
    http_status = 503
    retryable = True

    def __init__(self, bookie_id: str, reason: str) -> None:
        super().__init__(f"bookie {bookie_id}: {reason}")
        self.bookie_id = bookie_id
        self.reason = reason


class OutcomeUnknown(LedgerError):
    """The add may or may not be part of the ledger; only its recovery decides. `cause` says why."""

    name = "outcome-unknown"
    http_status = 504

    def __init__(self, ledger_id: int, entry_id: int, cause: OctavoError) -> None:
        super().__init__(f"ledger {ledger_id} entry {entry_id}: outcome unknown: {cause}")
        self.cause = cause
        self.__cause__ = cause


class RecoveryFailed(LedgerError):
    """Recovery could not prove where the ledger ends, and changed nothing. Try again later."""

    name = "recovery-failed"
    http_status = 503
    retryable = True
    scope = Scope.LEDGER


class ReadFailed(LedgerError):
    """No replica returned a good copy, and too few deny the entry: the answer is unknown."""

    name = "read-failed"
    http_status = 503
    retryable = True

    def __init__(self, ledger_id: int, entry_id: int, answers: Mapping[str, str]) -> None:
        said = "; ".join(f"{bookie}: {why}" for bookie, why in answers.items())
        super().__init__(f"ledger {ledger_id} entry {entry_id}: no replica returned it ({said})")
        self.answers = dict(answers)


class LedgerDamaged(LedgerError):
    """An entry does not follow from the entry before it: it is forged, or entries are missing."""

    name = "ledger-damaged"
    http_status = 503
    scope = Scope.LEDGER

    def __init__(self, ledger_id: int, entry_id: int, what: str) -> None:
        super().__init__(f"ledger {ledger_id} is damaged: entry {entry_id} {what}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class EntryTampered(LedgerDamaged):
    """An entry of an encrypted ledger was not sealed under this ledger's key for this id."""

    name = "entry-tampered"
    http_status = 503


class BeyondLastConfirmed(LedgerError):
    """A read above the last confirmed entry that the reader knows of."""

    name = "beyond-last-confirmed"
    http_status = 404
    retryable = True

    def __init__(self, ledger_id: int, entry_id: int, last_add_confirmed: int) -> None:
        super().__init__(
            f"ledger {ledger_id}: entry {entry_id} is above the last confirmed, "
            f"{last_add_confirmed}; call refresh() or wait_for() to learn of later entries"
        )


class PayloadTooLong(LedgerError):
    """The payload does not fit one frame."""

    name = "payload-too-long"
    http_status = 413

    def __init__(self, payload_bytes: int, payload_bytes_max: int) -> None:
        super().__init__(f"payload of {payload_bytes} bytes; the limit is {payload_bytes_max}")


class WriterBusy(LedgerError):
    """The writer's limit of pending bytes or entries is reached: await `drain()` before adding."""

    name = "writer-busy"
    http_status = 429
    retryable = True


class DuplicateEntryId(LedgerError):
    """This writer already added an entry with this id."""

    name = "duplicate-entry-id"
    http_status = 409

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(f"ledger {ledger_id}: entry {entry_id} was added before")


class ClientClosed(LedgerError):
    """The ledger client of this process was closed. Ledgers stay open until their recovery."""

    name = "client-closed"
    http_status = 503


class WriteRefused(LedgerError):
    """The write cannot continue, for a reason that an ensemble change does not repair."""

    name = "write-refused"
    http_status = 503
    scope = Scope.LEDGER


class OffloadUnavailable(LedgerError):
    """An offloaded ledger's object cannot be reached. The message names it and the reason."""

    name = "offload-unavailable"
    http_status = 503
    retryable = True


class OffloadDamaged(LedgerError):
    """An offloaded ledger's object differs from the uploaded bytes. The message says where."""

    name = "offload-damaged"
    http_status = 503
    scope = Scope.LEDGER
