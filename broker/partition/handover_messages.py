"""The end of a partition, as its owner describes it to the successor in a planned hand-over. Pure.

When an owner has stopped serving and has stored all pending messages, it knows what a recovery
would find out: the end and contents of the newest ledger, its producers, and the cursors. The owner
sends this description to the successor while it closes the ledgers, so that the successor need not
read from bookies. The successor compares the description with the metadata: the record's epoch, the
ledgers that the record names, and the closed ledger's last entry and length. If anything differs,
the successor recovers the partition as after a crash, with fencing.

The owner sends two messages: first that the partition comes, then how it ended.

    owner                                    successor
    serves    ── HandoverNotice ───────▶     makes its ledgers, knows the topic
              ◀──────────── prepared ──
    drains, closes its ledgers, lets go
              ── Handover, with its state ▶  claims, looks, one compare-and-set, serves
              ◀────────────── it serves ──

If the successor does not answer the first message, the owner continues to serve. If a later step
fails, the partition is free, and the broker that claims it recovers it as in any take-over.
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
"""A longer state is not sent: the successor replays the state ledger."""


class HandoverNotice(NamedTuple):
    """Sent to a successor before the owner lets go, so that the successor can make its ledgers."""

    incarnation: str
    epoch: int
    has_state: bool
    """Whether there is a state ledger."""


class HandoverState(NamedTuple):
    """Describes how the owner left the partition."""

    epoch: int
    ledger_id: int
    """The newest data ledger, which the owner closes."""
    last_entry: int
    contents: Contents
    """The totals of that ledger."""
    state_ledger: int | None
    """The state ledger, which the owner closes; nothing was added since `state` was taken."""
    state: tuple[bytes, ...]
    """Entries of a snapshot (state/format.py): cursors, and producers up to the end."""

    def fits(self, record: PartitionRecord) -> bool:
        """Whether no broker has opened the partition since, and the record names these ledgers."""
        return (
            is_written(record.ledgers)
            and record.epoch == self.epoch
            and record.ledgers[-1].ledger_id == self.ledger_id
            and record.state_ledger == self.state_ledger
        )

    def is_told_by(self, closed: LedgerMetadata) -> bool:
        """Whether the newest ledger is closed, at this last entry and with as many bytes."""
        return (
            closed.ledger_id == self.ledger_id
            and closed.state is LedgerState.CLOSED
            and closed.last_entry == self.last_entry
            and plain_length(closed) == self.contents.payload_bytes
        )


class Handover(NamedTuple):
    """Tells the successor that the partition has been released for it."""

    incarnation: str
    """The topic's incarnation."""
    placed: bool = False
    """Whether an operator or the balance gave it on purpose: then it stays while the successor
    lives, whatever the preference."""
    end: HandoverState | None = None
    """How the partition ends; None: the successor must find out."""
    by: str = ""
    """The id of the owner that hands the partition over."""
    why: str = ""
    """The owner's reason, in words."""


AskSuccessor = Callable[[BrokerInfo, PartitionName, Handover], Awaitable[None]]
"""Asks another broker to claim and open a partition released for it; returns when that broker
serves it. Raises what a call to another broker raises."""
AnnounceToSuccessor = Callable[[BrokerInfo, PartitionName, HandoverNotice], Awaitable[None]]
"""Asks another broker to prepare for a partition; returns when it has. Raises what a call to
another broker raises."""
