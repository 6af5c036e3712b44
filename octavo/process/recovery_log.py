"""The steps of a ledger's recovery as log events: `recovery_step`, one per step and answer.

A take-over can then be read in a broker's log from the record that was found to the record that
was closed; `octavo demo fencing` shows exactly these lines. The answers about single entries are
many and of interest only to somebody who looks: they are logged at level `debug`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import structlog

from octavo.ledger.recover.events import EntryAnswered, RecoveryEvent
from octavo.metadata.ledgers import LedgerMetadata, LedgerState

log = structlog.get_logger()


def log_recovery_step(ledger_id: int, event: RecoveryEvent) -> None:
    """Log one step; give this to `LedgerClient(observe_recovery=…)`."""
    say = log.debug if isinstance(event, EntryAnswered) else log.info
    say("recovery_step", **step_fields(ledger_id, event))


def step_fields(ledger_id: int, event: RecoveryEvent) -> dict[str, Any]:
    """A step as the fields of its log event."""
    metadata: LedgerMetadata | None = getattr(event, "metadata", None)
    fields: dict[str, Any] = {"ledger": ledger_id, "step": event.step, "what": type(event).__name__}
    if metadata is None:
        return fields | asdict(event)
    closed = metadata.state is LedgerState.CLOSED
    return fields | {
        "state": metadata.state.name,
        "last_entry": metadata.last_entry if closed else None,
        "ensemble": metadata.fragments[-1].bookies,
        "version": getattr(event, "version", None),
        "adopted": getattr(event, "adopted", False),
    }
