"""A read that waits while its open ledger is closed, and the next one too, finds its end.

Seen by the simulator (seed 133): the last entry of a ledger that is not being written any more was
taken for −1, and the read ended in an IndexError.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from octavo.broker.log.entry_index import EntryIndex
from octavo.broker.log.ledger_list import LedgerList
from octavo.broker.log.reader import LogReader, ReadAheadBudget
from octavo.broker.types import PartitionName
from octavo.ledger.read.open_batch import opening
from octavo.metadata.topics import PartitionLedger


class ClosedReader:
    ledger_id, is_closed, last_add_confirmed = 1, True, 3

    async def close(self) -> None:
        pass


async def test_the_end_of_a_ledger_that_was_closed_meanwhile() -> None:
    opened: list[int] = []

    async def open_ledger(ledger_id: int) -> ClosedReader:
        opened.append(ledger_id)
        return ClosedReader()

    record: Any = SimpleNamespace(ledgers=LedgerList((PartitionLedger(1, 0),)))
    ledgers: Any = SimpleNamespace(open=open_ledger)
    written = {1: 7}
    reader = LogReader(
        PartitionName("public", "t", 0), ledgers, record, EntryIndex(), ReadAheadBudget(1),
        lambda ledger_id: written.get(ledger_id, -1), opening,
    )  # fmt: skip
    link = record.ledgers.find(0)
    assert await reader._last_entry_of(link) == 7
    written = {3: 0}
    record.ledgers = LedgerList(
        (PartitionLedger(1, 0, 4), PartitionLedger(2, 4, 2), PartitionLedger(3, 6))
    )
    assert await reader._last_entry_of(link) == 3, "what the record says now, not what it said"
    assert opened == [1]
