"""Read-ahead of what retention removed before it began ended with an AssertionError.

It is a task of its own, which begins a moment after the read that asked for it; a trim came in
between. Who read on from there at once was told of an error of the broker, not that the offset was
trimmed. Found by the simulator, once it looked at what tasks end with (seed 103, both). So did a
compaction that reads the log page by page, when a trim came between two pages (seed 101, topic).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.errors import OffsetTrimmed
from octavo.broker.log.ledger_list import LedgerList
from octavo.broker.log.reader import LogReader, ReadAheadBudget
from octavo.broker.types import PartitionName
from octavo.metadata.topics import PartitionLedger


async def test_a_read_of_what_is_trimmed_by_then_says_so() -> None:
    links = [PartitionLedger(ledger_id, 10 * ledger_id, 10) for ledger_id in range(3)]
    record: Any = SimpleNamespace(ledgers=LedgerList(tuple(links)))
    unused: Any = None
    reader = LogReader(
        PartitionName("public", "t", 0),
        unused,
        record,
        unused,
        ReadAheadBudget(1 << 30),
        unused,
        unused,
    )
    reader._read_ahead(5)
    record.ledgers = LedgerList(tuple(links[1:]), trimmed_to=10)
    with pytest.raises(OffsetTrimmed) as caught:
        await reader._chunk(5, 100)
    assert caught.value.earliest == 10
    with pytest.raises(OffsetTrimmed):
        await reader.read(5, 30, 100, 100)
