"""The ledger list against a plain list: one item per message, naming the ledger that holds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.log.ledger_list import Contents, Cut, ForkPoint, LedgerList, RolloverPolicy
from octavo.broker.log.retention import RetentionPolicy
from octavo.metadata.bulk_loads import PrivateLedger
from octavo.metadata.topics import PartitionLedger

counts = st.lists(st.integers(0, 7), min_size=1, max_size=12)


def build(sizes: list[int]) -> tuple[LedgerList, list[int]]:
    """Build a list of closed ledgers with these message counts, and its model."""
    ledger_list = LedgerList()
    model: list[int] = []
    for ledger_id, count in enumerate(sizes):
        ledger_list = ledger_list.appending(ledger_id)
        contents = Contents(count, 10 * count, 500, 1000 + ledger_id)
        ledger_list = ledger_list.closing_last(
            ledger_list.segments[-1].ledger_id, contents, closed_ms=7
        )
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
    newer = RetentionPolicy(age, None).trimming(ledger_list, now)
    kept = [segment.ledger_id for segment in newer.segments]
    expected = [i for i in dict.fromkeys(model) if now - (1000 + i) <= age or i == len(sizes)]
    assert kept == expected
    assert newer.earliest_offset == model.index(kept[0])
    assert newer.end_offset == ledger_list.end_offset
    assert ledger_list.dropped_in(newer) == [i for i in dict.fromkeys(model) if i not in kept]


@given(counts, st.integers(0, 300))
def test_retention_by_size_keeps_at_least_that_much(sizes: list[int], keep_bytes: int) -> None:
    ledger_list, _ = build([*sizes, 1])
    newer = RetentionPolicy(None, keep_bytes).trimming(ledger_list, 0)
    assert newer.closed_bytes >= min(keep_bytes, ledger_list.closed_bytes)
    if len(newer.segments) > 1:
        assert newer.closed_bytes - newer.segments[0].bytes < keep_bytes


def test_no_limit_trims_nothing() -> None:
    ledger_list, _ = build([1, 2, 3])
    assert RetentionPolicy(None, None).trimming(ledger_list, 10**15) is ledger_list


def test_the_open_ledger_covers_what_comes() -> None:
    ledger_list = build([5])[0].appending(77)
    assert ledger_list.find(5).ledger_id == ledger_list.find(5_000).ledger_id == 77
    assert ledger_list.after(0) == ledger_list.last
    assert ledger_list.after(77) is None


def test_an_empty_ledger_leaves_the_list() -> None:
    ledger_list = build([5])[0].appending(77)
    closed = ledger_list.closing_last(ledger_list.segments[-1].ledger_id, Contents(), 7)
    assert ledger_list.dropped_in(closed) == [77]
    assert closed.appending(78).find(5).base_offset == 5


def test_offsets_go_on_when_all_was_trimmed() -> None:
    ledger_list = LedgerList((), trimmed_to=40).appending(3)
    assert (ledger_list.earliest_offset, ledger_list.find(41).base_offset) == (40, 40)
    emptied = ledger_list.closing_last(ledger_list.segments[-1].ledger_id, Contents(), 7)
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


def held(ledger_list: LedgerList) -> dict[int, int]:
    """Return offset → ledger, for the remaining offsets."""
    return {
        offset: segment.ledger_id
        for segment in ledger_list.segments
        for offset in range(segment.base_offset, segment.base_offset + (segment.count or 0))
        if offset >= ledger_list.earliest_offset
    }


@given(counts, st.data())
def test_a_truncated_list_begins_there_and_never_goes_back(
    sizes: list[int], data: st.DataObject
) -> None:
    ledger_list, model = build(sizes)
    before = data.draw(st.integers(0, len(model)))
    after = ledger_list.appending(99).truncating(before)
    assert after.earliest_offset == before
    assert held(after) == dict(enumerate(model[before:], before))
    assert after.truncating(data.draw(st.integers(0, before))).earliest_offset == before
    assert after.segments[-1].ledger_id == 99
    # A ledger that lies before it as a whole is gone, or goes with the next trim.
    trimmed = RetentionPolicy(None, None).trimming(after, 0, limit=0)
    assert held(trimmed) == held(after)
    assert all((one.count or 0) + one.base_offset > before for one in trimmed.segments[:-1])
    contents = Contents(3, 30, 1, 2)
    closed = trimmed.closing_last(trimmed.segments[-1].ledger_id, contents, 7).appending(100)
    assert closed.earliest_offset == before
    assert closed.segments[-1].base_offset == len(model) + 3


@given(counts, st.data())
def test_a_fork_has_what_lies_before_it(sizes: list[int], data: st.DataObject) -> None:
    ledger_list, model = build(sizes)
    ledger_list = ledger_list.appending(99).truncating(data.draw(st.integers(0, len(model))))
    earliest, grown = ledger_list.earliest_offset, len(model) + 5  # five in the open one
    at = data.draw(st.integers(earliest, grown))
    cut = None
    if at > earliest:
        holds = ledger_list.find(at - 1)
        if holds.count is None or holds.base_offset + holds.count != at:
            cut = Cut(holds.ledger_id, 3, 50, 8)
    fork = ledger_list.forked(ForkPoint(at, cut), now_ms=9)
    assert fork.earliest_offset == earliest
    assert (fork.end_offset if fork.segments else fork.trimmed_to) == at
    everything = [*model, *[99] * 5]
    assert held(fork) == dict(enumerate(everything[earliest:at], earliest))
    assert all(one.shared and one.count for one in fork.segments)
    assert [one.ledger_id for one in fork.segments if one.cut >= 0] == (
        [cut.ledger_id] if cut else []
    )
    # A fork of the fork, in its turn.
    again = data.draw(st.integers(earliest, at))
    holds_again = None if again == earliest else fork.find(again - 1)
    if holds_again and holds_again.base_offset + (holds_again.count or 0) != again:
        cut = Cut(holds_again.ledger_id, 1, 5, 8)
    second = fork.forked(ForkPoint(again, cut), now_ms=9)
    assert held(second) == dict(enumerate(everything[earliest:again], earliest))


def test_a_fork_that_cannot_be_is_refused() -> None:
    ledger_list = build([3, 4])[0].appending(99).truncating(2)
    for point, why in (
        (ForkPoint(1), "offset 1 was trimmed; the earliest is 2"),
        (ForkPoint(5), "no cut is given for ledger 1"),
        (ForkPoint(5, Cut(0, 1, 1, -1)), "no cut is given for ledger 1"),
    ):
        with pytest.raises(ValueError, match=why):
            ledger_list.forked(point, 0)
    with pytest.raises(ValueError, match="the messages end at 7, before offset 9"):
        build([3, 4])[0].forked(ForkPoint(9), 0)


def test_why_the_oldest_ledger_stays() -> None:
    closed = LedgerList().appending(1).closing_last(1, Contents(5, 100, 10, 20), 30)
    both = closed.appending(2)
    none = RetentionPolicy(None, None)
    by_size, by_age = RetentionPolicy(None, 50), RetentionPolicy(1_000, None)
    assert "being written" in none.why_kept(LedgerList(), 0)
    assert "being written" in by_size.why_kept(LedgerList().appending(1), 0)
    assert "no retention is set" in none.why_kept(both, 0)
    assert "no retention is set" in RetentionPolicy(None, None, 100).why_kept(both, 0)
    assert "no compacted view" in RetentionPolicy(None, None, 0, True).why_kept(both, 0)
    assert (
        by_size.why_kept(both, 0, 10, {"s": 3, "t": 4}) == "subscription 's' has not acked offset 3"
    )
    assert "10 bytes would be left of 50" in by_size.why_kept(both, 0, 10, {"s": 5})
    assert "next round" in by_size.why_kept(both, 0, 50, {"s": 5})
    assert "not known to be older than 1 s" in by_age.why_kept(both, 500)
    assert "next round" in by_age.why_kept(both, 5_000)


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=8), st.data())
def test_pieces_are_hidden_and_nothing_else_is(
    made: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """Also in forks, wherever they are cut, and in later messages of those."""
    found = LedgerList()
    hidden: set[int] = set()
    for number, (count, large) in enumerate(made):
        end = found.end_offset
        pieces = count - 1 if large else None
        ledger = PrivateLedger(number, count, 10, 1, 1, pieces=pieces)
        found = found.inserting([ledger], 5, f"u{number}")
        hidden |= set(range(end, end + (pieces or 0)))
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, found.end_offset))
            segment = found.find(at - 1) if at else None
            cut = None if segment is None else Cut(segment.ledger_id, 0, 5, 1)
            found = found.forked(ForkPoint(at, cut), 9)
            hidden = {one for one in hidden if one < at}
            assert found.uploaded(f"u{number}") is None
    end = found.end_offset
    assert {one for start, stop in found.hidden for one in range(start, stop)} == hidden
    for offset in range(end + 1):
        expected = next(one for one in range(offset, end + 1) if one not in hidden)
        assert found.shown_from(offset) == expected
    gaps = zip(found.hidden, found.hidden[1:], strict=False)
    assert all(before[1] < after[0] for before, after in gaps)
