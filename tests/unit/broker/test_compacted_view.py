"""Compacted views: where an offset is found, how much a page takes, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.errors import COMPACTED_VIEW_UNREADABLE
from octavo.broker.log.compaction_rules import CompactedBatch, Hints, Room, View, batch_of
from octavo.metadata.topics import CompactedLedger, CompactionRecord
from octavo.protocol.batch import check_batch, read_header
from octavo.protocol.records import Record, read_gapped_records
from tests.support.compacted_views import gapped
from tests.support.kit.refusals import raises_code


def ledger(ledger_id: int, first: int, last: int, count: int = 2) -> CompactedLedger:
    return CompactedLedger(ledger_id, first, last, count, 100)


def view(*ledgers: CompactedLedger, horizon: int = 90) -> View:
    return View(CompactionRecord(horizon, ledgers))


def entry(data: bytes, entry_id: int = 0) -> Any:
    return SimpleNamespace(entry_id=entry_id, payload=data)


def batch(first: int, last: int, ledger_id: int = 1, entry_id: int = 0) -> CompactedBatch:
    kept = [(first, Record(b"a", b"1"))] + [(last, Record(b"b", b"2"))] * (last > first)
    return batch_of(ledger(ledger_id, 0, 1_000), entry(gapped(kept, 0), entry_id))


def test_which_ledger_holds_an_offset_or_what_follows_it() -> None:
    found = view(ledger(1, 3, 17), ledger(2, 40, 88), ledger(3, 89, 89, 1))
    numbers = {0: 0, 3: 0, 4: 0, 17: 0, 18: 1, 39: 1, 40: 1, 88: 1, 89: 2, 90: 3, 500: 3}
    assert {offset: found.number_at(offset) for offset in numbers} == numbers
    assert found.ledger(2) == ledger(2, 40, 88)
    assert found.ledger(4) is None


@pytest.mark.parametrize("record", [None, CompactionRecord(run="begun"), CompactionRecord(9)])
def test_a_view_without_ledgers(record: CompactionRecord | None) -> None:
    found = View(record)
    assert found.horizon == (0 if record is None else record.horizon)
    assert found.number_at(0) == 0 == len(found.ledgers)


@pytest.mark.parametrize(
    "ledgers",
    [
        (ledger(1, 3, 17), ledger(2, 17, 30)),
        (ledger(1, 40, 50), ledger(2, 3, 17)),
        (ledger(1, 3, 90),),
        (ledger(1, 5, 4),),
        (ledger(1, 5, 6, 0),),
    ],
)
def test_a_view_that_cannot_be_is_refused(ledgers: tuple[CompactedLedger, ...]) -> None:
    with raises_code(COMPACTED_VIEW_UNREADABLE, match="of the compacted view"):
        view(*ledgers)


def test_an_entry_gets_its_own_offsets_back() -> None:
    kept = [(1_007, Record(b"a", b"1", (), 5)), (1_090, Record(b"b", None, (), 7))]
    one = batch_of(ledger(8, 1_000, 1_090), entry(gapped(kept, 1_000), 3))
    assert (one.base_offset, one.next_offset, one.ledger_id, one.entry_id) == (1_007, 1_091, 8, 3)
    assert one.header == read_header(one.data)
    check_batch(one.data, gaps=True)
    records = list(read_gapped_records(one.data))
    assert [one.base_offset + r.offset_delta for r in records] == [1_007, 1_090]
    assert [(r.key, r.value, r.timestamp_ms) for r in records] == [(b"a", b"1", 5), (b"b", None, 7)]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (gapped([(1_007, Record(b"a", b"1"))], 900), "goes from offset 1107 to 1107"),
        (gapped([(1_007, Record(b"a", b"1")), (1_095, Record(b"a", b"1"))], 1_000), "to 1095"),
        (gapped([(999, Record(b"a", b"1"))], 1_000), "from offset 999"),
        (b"x" * 100, "magic"),
    ],
)
def test_an_entry_outside_its_ledger_is_refused(data: bytes, match: str) -> None:
    with raises_code(COMPACTED_VIEW_UNREADABLE, match=match):
        batch_of(ledger(8, 1_000, 1_090), entry(data))


def test_a_page_takes_about_so_many_entries() -> None:
    whole = CompactedLedger(1, 0, 999, 500, 10_000)
    assert Room(10_000, 500).entries(whole, 50) == 51
    assert Room(1_000, 500).entries(whole, 50) == 6
    assert Room(10_000, 10).entries(whole, 50) == 2
    assert Room(1, 1).entries(whole, 50) == 1
    left = Room(10_000, 3).without(batch(0, 7))
    assert left.messages == 1, "messages count, not offsets"
    assert left.is_left
    assert not left.without(batch(8, 9)).is_left
    assert not Room(1, 100).without(batch(0, 7)).is_left


def test_who_goes_on_where_a_page_ended_need_not_search() -> None:
    hints = Hints()
    hints.note(batch(10, 20, entry_id=4), is_last=False)
    assert [hints.entry_of(1, offset) for offset in (9, 10, 15, 20, 21, 22)] == [
        None, 4, 4, 4, 5, None,
    ]  # fmt: skip
    assert hints.entry_of(2, 15) is None
    hints.note(batch(25, 31, entry_id=5), is_last=True)
    assert [hints.entry_of(1, offset) for offset in (25, 31, 32)] == [5, 5, None]
    assert [hints.entry_of(1, offset) for offset in (20, 21, 22, 24)] == [4, 5, 5, 5]
    for number in range(200):
        hints.note(batch(number, number, 7, number), is_last=True)
    assert hints.entry_of(1, 15) is None, "they are bounded"
    hints.clear()
    assert hints.entry_of(7, 199) is None
