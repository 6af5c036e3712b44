"""Readers of a partition whose ledgers are closed or released during a read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from octavo.broker.log.entry_index import EntryIndex
from octavo.broker.log.ledger_list import LedgerList
from octavo.broker.log.reader import LogReader, OpenReaders, ReadAheadBudget
from octavo.broker.types import PartitionName
from octavo.ledger.read.open_batch import opening
from octavo.metadata.topics import PartitionLedger

# A read ended with a KeyError when its ledger was released while another reader was being closed.
# At the bound of open ledgers, opening another closes the least recently used and waits for that; a
# release meanwhile took the new reader out of the table, where it was then sought. A reader that
# was being opened while all were closed stayed open for ever. A property test found it.


class Reader:
    def __init__(self) -> None:
        self.may_close = asyncio.Event()
        self.is_closed = False

    async def close(self) -> None:
        await self.may_close.wait()
        self.is_closed = True


async def test_it_may_be_dropped_meanwhile() -> None:
    readers = OpenReaders[Reader](1)
    old, new = Reader(), Reader()

    async def opened() -> Reader:
        return old if readers.get(1) is None else new

    await readers.get_or_open(1, opened)
    opening = asyncio.create_task(readers.get_or_open(2, opened))
    await asyncio.sleep(0)
    new.may_close.set()
    await readers.drop(2, new)
    old.may_close.set()
    assert await opening is new
    assert (old.is_closed, new.is_closed) == (True, True)


async def test_one_that_is_opened_too_late_is_closed() -> None:
    readers = OpenReaders[Reader](1)
    late, go_on = Reader(), asyncio.Event()
    late.may_close.set()

    async def opened() -> Reader:
        await go_on.wait()
        return late

    opening = asyncio.create_task(readers.get_or_open(1, opened))
    await asyncio.sleep(0)
    await readers.close()
    go_on.set()
    assert await opening is late
    assert late.is_closed


# A read that waits while its open ledger, and the next one too, is closed finds its end. The last
# entry of a ledger without a writer was taken for −1, and the read ended in an IndexError. The
# simulator found it (seed 133).


class OneReader:
    """Ledger 1, as it is when it is opened."""

    def __init__(self, last_add_confirmed: int, *, is_closed: bool) -> None:
        self.ledger_id = 1
        self.is_closed = is_closed
        self.last_add_confirmed = last_add_confirmed

    async def close(self) -> None:
        pass


def log_reader(record: Any, written: dict[int, int], *openings: OneReader) -> LogReader:
    """Make a reader to which opening ledger 1 returns `openings` in turn; `written`: its last entry
    here."""
    left = list(openings)

    async def open_ledger(ledger_id: int) -> OneReader:
        assert ledger_id == 1
        return left.pop(0)

    ledgers: Any = SimpleNamespace(open=open_ledger)
    return LogReader(
        PartitionName("public", "t", 0), ledgers, record, EntryIndex(), ReadAheadBudget(1),
        lambda ledger_id: written.get(ledger_id, -1), opening,
    )  # fmt: skip


async def test_the_end_of_a_ledger_that_was_closed_meanwhile() -> None:
    record: Any = SimpleNamespace(ledgers=LedgerList((PartitionLedger(1, 0),)))
    written = {1: 7}
    reader = log_reader(record, written, OneReader(3, is_closed=True))
    link = record.ledgers.find(0)
    assert await reader._last_entry_of(link) == 7
    del written[1]
    written[3] = 0
    record.ledgers = LedgerList(
        (PartitionLedger(1, 0, 4), PartitionLedger(2, 4, 2), PartitionLedger(3, 6))
    )
    assert await reader._last_entry_of(link) == 3, "what the record says now, not what it said"


async def test_a_reader_that_was_opened_while_its_ledger_grew_is_opened_again() -> None:
    """The ledger's end at that time is not its real end."""
    record: Any = SimpleNamespace(ledgers=LedgerList((PartitionLedger(1, 0),)))
    growing, closed = OneReader(3, is_closed=False), OneReader(6, is_closed=True)
    reader = log_reader(record, {}, growing, closed)
    assert await reader._reader(record.ledgers.find(0)) is growing
    record.ledgers = LedgerList((PartitionLedger(1, 0, 7), PartitionLedger(2, 7)))
    for _ in range(2):
        assert await reader._last_entry_of(record.ledgers.find(0)) == 6
