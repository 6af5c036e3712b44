"""The end of a partition, as its owner describes it to the heir in a planned hand-over. Pure.

An owner that has stopped serving, and has stored all pending messages, knows all that a recovery
would find out: the end and contents of the newest ledger, its producers, and the cursors. It sends
this to the heir while it closes the ledgers; the heir then need not read it from bookies. The heir
compares it with the metadata: the record's epoch, the ledgers that the record names, and the closed
ledger's last entry and length. If anything differs, the heir discards the description and recovers
the partition as after a crash, with fencing.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.broker.log.ledger_list import Contents, is_written
from octavo.ledger.encryption import plain_length
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.topics import PartitionRecord

STATE_BYTES_MAX = 1024 * 1024
"""A longer state is not sent: the heir replays the state ledger."""


class Foretold(NamedTuple):
    """Sent to an heir before the owner lets go, so that the heir can make its ledgers."""

    incarnation: str
    epoch: int
    has_state: bool
    """Whether there is a state ledger."""


class PartitionEnd(NamedTuple):
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
