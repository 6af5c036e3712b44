"""Log the steps of a ledger's recovery as events `recovery_step`, for the log of a take-over.

Answers about single entries have level `debug`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import structlog

from octavo.ledger.recover.events import (
    EntryAnswered,
    LedgerRecovered,
    MetadataSeen,
    RecoveryEvent,
)
from octavo.metadata.ledgers import LedgerMetadata, LedgerState

log = structlog.get_logger()
IN_FULL_MAX = 4
"""Recoveries at the same time that are logged step by step."""
FORGOTTEN_S = 60.0
"""A recovery that has not ended by then makes room for the next."""


class RecoveryLog:
    """Give it to `LedgerClient(observe_recovery=…)`.

    A broker's death recovers hundreds of ledgers: beyond `IN_FULL_MAX` at a time, only the last
    step is logged at `info`.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._in_full: dict[int, float] = {}

    def __call__(self, ledger_id: int, event: RecoveryEvent) -> None:
        is_shown = self._begin(ledger_id) if isinstance(event, MetadataSeen) else (
            ledger_id in self._in_full
        )  # fmt: skip
        if isinstance(event, LedgerRecovered):
            self._in_full.pop(ledger_id, None)
            is_shown = True
        say = log.info if is_shown and not isinstance(event, EntryAnswered) else log.debug
        say("recovery_step", **step_fields(ledger_id, event))

    def _begin(self, ledger_id: int) -> bool:
        now_s = self._now_s()
        for one, began_s in tuple(self._in_full.items()):
            if now_s - began_s > FORGOTTEN_S:  # the recovery failed and was not tried again
                del self._in_full[one]
        if ledger_id not in self._in_full and len(self._in_full) >= IN_FULL_MAX:
            return False
        self._in_full.setdefault(ledger_id, now_s)
        return True


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
