"""The end of a partition here, as its heir is told it in a planned hand-over. Pure.

An owner that has drained a partition and closed its ledgers knows all that a recovery would find
out: how far the newest ledger goes and what it holds, who produced into it, where the cursors are.
It tells the heir, who need not read that from bookies. What the heir can see for itself in the
metadata it holds against it: the record's epoch, the ledgers that it names, the closed ledger's
last entry and length. Whatever does not fit is thrown away, and the partition is recovered as after
a crash: then fencing is what it rests on, as ever.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.broker.log.ledger_list import Contents, is_written
from octavo.ledger.encryption import plain_length
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.topics import PartitionRecord

STATE_BYTES_MAX = 1024 * 1024
"""A longer state is left in its ledger, for the heir to replay."""


class Foretold(NamedTuple):
    """What an heir is told before the owner lets go: enough to have its ledgers made."""

    incarnation: str
    epoch: int
    has_state: bool
    """Whether there is a state ledger."""


class PartitionEnd(NamedTuple):
    """How the owner left it."""

    epoch: int
    ledger_id: int
    """The newest data ledger, closed."""
    last_entry: int
    contents: Contents
    """Of that ledger."""
    state_ledger: int | None
    """Closed; nothing was added since `state` was taken."""
    state: tuple[bytes, ...]
    """Entries of a snapshot (state/format.py): cursors, and producers up to the end."""

    def fits(self, record: PartitionRecord) -> bool:
        """Whether nobody has opened the partition since, and the ledgers are those."""
        return (
            is_written(record.ledgers)
            and record.epoch == self.epoch
            and record.ledgers[-1].ledger_id == self.ledger_id
            and record.state_ledger == self.state_ledger
        )

    def is_told_by(self, closed: LedgerMetadata) -> bool:
        """Whether the newest ledger is closed for good, where this says, with as many bytes."""
        return (
            closed.ledger_id == self.ledger_id
            and closed.state is LedgerState.CLOSED
            and closed.last_entry == self.last_entry
            and plain_length(closed) == self.contents.payload_bytes
        )
