"""The messages of a planned hand-over, from a partition's owner to its successor. Pure.

    owner                                    successor
    serves    ── HandoverNotice ───────▶     makes its ledgers, knows the topic
              ◀──────────── prepared ──
    drains, closes its ledgers, lets go
              ── Handover, with its state ▶  claims, looks, one compare-and-set, serves
              ◀────────────── it serves ──

The state is what a recovery would find out, so the successor need not read from bookies. It
compares the state with the metadata; if anything differs, it recovers the partition as after a
crash, with fencing. If it does not answer the first message, the owner continues to serve; if a
later step fails, another broker claims and recovers the partition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from octavo.broker.log.ledger_list import Contents, is_written
from octavo.broker.types import BrokerInfo, PartitionName
from octavo.ledger.encryption import plain_length
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.topics import PartitionRecord

STATE_BYTES_MAX = 1024 * 1024
"""The longest state of a hand-over; for a longer one, the successor replays the state ledger."""


class HandoverNotice(NamedTuple):
    incarnation: str
    epoch: int
    has_state: bool


class HandoverState(NamedTuple):
    epoch: int
    ledger_id: int
    last_entry: int
    contents: Contents
    state_ledger: int | None
    """Nothing was added to this state ledger since `state` was taken."""
    state: tuple[bytes, ...]
    """Entries of a snapshot (state/format.py)."""

    def fits(self, record: PartitionRecord) -> bool:
        return (
            is_written(record.ledgers)
            and record.epoch == self.epoch
            and record.ledgers[-1].ledger_id == self.ledger_id
            and record.state_ledger == self.state_ledger
        )

    def is_told_by(self, closed: LedgerMetadata) -> bool:
        return (
            closed.ledger_id == self.ledger_id
            and closed.state is LedgerState.CLOSED
            and closed.last_entry == self.last_entry
            and plain_length(closed) == self.contents.payload_bytes
        )


class Handover(NamedTuple):
    incarnation: str
    placed: bool = False
    """Placed by an operator or the balance: stays while the successor lives, whatever the
    preference.
    """
    end: HandoverState | None = None
    """None: the successor must find out."""
    by: str = ""
    why: str = ""


AskSuccessor = Callable[[BrokerInfo, PartitionName, Handover], Awaitable[None]]
"""Returns when the broker serves the partition."""
AnnounceToSuccessor = Callable[[BrokerInfo, PartitionName, HandoverNotice], Awaitable[None]]
"""Returns when the broker is prepared."""
