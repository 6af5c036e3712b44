"""Logs the steps of a ledger's recovery: an event `recovery_step` for each step and answer.

So the log shows a whole take-over, from the record that was found to the closed record; `octavo
demo fencing` prints these events. The many answers about single entries have level `debug`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import structlog

from octavo.ledger.recover.events import EntryAnswered, RecoveryEvent
from octavo.metadata.ledgers import LedgerMetadata, LedgerState

log = structlog.get_logger()


def log_recovery_step(ledger_id: int, event: RecoveryEvent) -> None:
    """Log a step; to be passed as `LedgerClient(observe_recovery=…)`."""
    say = log.debug if isinstance(event, EntryAnswered) else log.info
    say("recovery_step", **step_fields(ledger_id, event))


def step_fields(ledger_id: int, event: RecoveryEvent) -> dict[str, Any]:
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
