"""The ledger list against a plain list: one item per message, naming the ledger that holds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.log.ledger_list import Contents, LedgerList, RetentionPolicy, RolloverPolicy
from octavo.metadata.topics import PartitionLedger

counts = st.lists(st.integers(0, 7), min_size=1, max_size=12)


def build(sizes: list[int]) -> tuple[LedgerList, list[int]]:
    """The list of closed ledgers with so many messages each, and its model."""
    ledger_list = LedgerList()
    model: list[int] = []
    for ledger_id, count in enumerate(sizes):
        ledger_list = ledger_list.appending(ledger_id)
        contents = Contents(count, 10 * count, 500, 1000 + ledger_id)
        ledger_list = ledger_list.closing_last(contents, closed_ms=7)
        model += [ledger_id] * count
    return ledger_list, model


@given(counts)
def test_every_offset_is_found_in_its_ledger(sizes: list[int]) -> None:
    ledger_list, model = build(sizes)
    assert ledger_list.end_offset == len(model)
    for offset, ledger_id in enumerate(model):
        segment = ledger_list.find(offset)
        assert segment.ledger_id == ledger_id
        assert offset - segment.base_offset == offset - model.index(ledger_id)
        assert ledger_list.segment_of(ledger_id) == segment
    assert [segment.count for segment in ledger_list.segments] == [n for n in sizes if n]
    assert ledger_list.closed_bytes == 10 * len(model)


@given(counts, st.integers(0, 12))
def test_retention_by_time_drops_a_prefix(sizes: list[int], age: int) -> None:
    ledger_list, model = build([*sizes, 3])
    now = 1000 + len(sizes)
    newer = ledger_list.trimming(RetentionPolicy(age, None), now)
    kept = [segment.ledger_id for segment in newer.segments]
    expected = [i for i in dict.fromkeys(model) if now - (1000 + i) <= age or i == len(sizes)]
    assert kept == expected
    assert newer.earliest_offset == model.index(kept[0])
    assert newer.end_offset == ledger_list.end_offset
    assert ledger_list.dropped_in(newer) == [i for i in dict.fromkeys(model) if i not in kept]


@given(counts, st.integers(0, 300))
def test_retention_by_size_keeps_at_least_that_much(sizes: list[int], keep_bytes: int) -> None:
    ledger_list, _ = build([*sizes, 1])
    newer = ledger_list.trimming(RetentionPolicy(None, keep_bytes), 0)
    assert newer.closed_bytes >= min(keep_bytes, ledger_list.closed_bytes)
    if len(newer.segments) > 1:
        assert newer.closed_bytes - newer.segments[0].bytes < keep_bytes


def test_no_limit_trims_nothing() -> None:
    ledger_list, _ = build([1, 2, 3])
    assert ledger_list.trimming(RetentionPolicy(None, None), 10**15) is ledger_list


def test_the_open_ledger_covers_what_comes() -> None:
    ledger_list = build([5])[0].appending(77)
    assert ledger_list.find(5).ledger_id == ledger_list.find(5_000).ledger_id == 77
    assert ledger_list.after(0) == ledger_list.last
    assert ledger_list.after(77) is None


def test_an_empty_ledger_leaves_the_list() -> None:
    ledger_list = build([5])[0].appending(77)
    closed = ledger_list.closing_last(Contents(), 7)
    assert ledger_list.dropped_in(closed) == [77]
    assert closed.appending(78).find(5).base_offset == 5


def test_offsets_go_on_when_all_was_trimmed() -> None:
    ledger_list = LedgerList((), trimmed_to=40).appending(3)
    assert (ledger_list.earliest_offset, ledger_list.find(41).base_offset) == (40, 40)
    emptied = ledger_list.closing_last(Contents(), 7)
    assert (emptied.segments, emptied.earliest_offset, emptied.end_offset) == ((), 40, 40)


@pytest.mark.parametrize(
    "segments",
    [
        (PartitionLedger(1, 0), PartitionLedger(2, 5)),
        (PartitionLedger(1, 0, count=4), PartitionLedger(2, 5)),
        (PartitionLedger(1, 0, count=6), PartitionLedger(2, 5)),
    ],
)
def test_a_list_with_gap_overlap_or_unclosed_ledger_is_refused(
    segments: tuple[PartitionLedger, ...],
) -> None:
    with pytest.raises(AssertionError):
        LedgerList(segments)


def test_rollover_by_size_entries_or_age_but_never_when_empty() -> None:
    policy = RolloverPolicy(bytes_max=100, entries_max=10, age_ms_max=1000)
    assert not policy.due(99, 9, 999)
    assert policy.due(100, 9, 999)
    assert policy.due(99, 10, 999)
    assert policy.due(99, 9, 1000)
    assert not policy.due(100, 0, 1000)
