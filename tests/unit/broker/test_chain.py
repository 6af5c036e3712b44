"""The chain against a plain list: one item per message, naming the ledger that holds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.log.chain import Chain, Contents, RetentionPolicy, RolloverPolicy
from octavo.metadata.topics import PartitionLedger

counts = st.lists(st.integers(0, 7), min_size=1, max_size=12)


def build(sizes: list[int]) -> tuple[Chain, list[int]]:
    """The chain of closed ledgers with so many messages each, and its model."""
    chain = Chain()
    model: list[int] = []
    for ledger_id, count in enumerate(sizes):
        chain = chain.appending(ledger_id)
        contents = Contents(count, 10 * count, 500, 1000 + ledger_id)
        chain = chain.closing_last(contents, closed_ms=7)
        model += [ledger_id] * count
    return chain, model


@given(counts)
def test_every_offset_is_found_in_its_ledger(sizes: list[int]) -> None:
    chain, model = build(sizes)
    assert chain.end_offset == len(model)
    for offset, ledger_id in enumerate(model):
        link = chain.find(offset)
        assert link.ledger_id == ledger_id
        assert offset - link.base_offset == offset - model.index(ledger_id)
        assert chain.link_of(ledger_id) == link
    assert [link.count for link in chain.links] == [n for n in sizes if n]
    assert chain.closed_bytes == 10 * len(model)


@given(counts, st.integers(0, 12))
def test_retention_by_time_drops_a_prefix(sizes: list[int], age: int) -> None:
    chain, model = build([*sizes, 3])
    now = 1000 + len(sizes)
    newer = chain.trimming(RetentionPolicy(age, None), now)
    kept = [link.ledger_id for link in newer.links]
    expected = [i for i in dict.fromkeys(model) if now - (1000 + i) <= age or i == len(sizes)]
    assert kept == expected
    assert newer.earliest_offset == model.index(kept[0])
    assert newer.end_offset == chain.end_offset
    assert chain.dropped_in(newer) == [i for i in dict.fromkeys(model) if i not in kept]


@given(counts, st.integers(0, 300))
def test_retention_by_size_keeps_at_least_that_much(sizes: list[int], keep_bytes: int) -> None:
    chain, _ = build([*sizes, 1])
    newer = chain.trimming(RetentionPolicy(None, keep_bytes), 0)
    assert newer.closed_bytes >= min(keep_bytes, chain.closed_bytes)
    if len(newer.links) > 1:
        assert newer.closed_bytes - newer.links[0].bytes < keep_bytes


def test_no_limit_trims_nothing() -> None:
    chain, _ = build([1, 2, 3])
    assert chain.trimming(RetentionPolicy(None, None), 10**15) is chain


def test_the_open_ledger_covers_what_comes() -> None:
    chain = build([5])[0].appending(77)
    assert chain.find(5).ledger_id == chain.find(5_000).ledger_id == 77
    assert chain.after(0) == chain.last
    assert chain.after(77) is None


def test_an_empty_ledger_leaves_the_chain() -> None:
    chain = build([5])[0].appending(77)
    closed = chain.closing_last(Contents(), 7)
    assert chain.dropped_in(closed) == [77]
    assert closed.appending(78).find(5).base_offset == 5


def test_offsets_go_on_when_all_was_trimmed() -> None:
    chain = Chain((), trimmed_to=40).appending(3)
    assert (chain.earliest_offset, chain.find(41).base_offset) == (40, 40)
    emptied = chain.closing_last(Contents(), 7)
    assert (emptied.links, emptied.earliest_offset, emptied.end_offset) == ((), 40, 40)


@pytest.mark.parametrize(
    "links",
    [
        (PartitionLedger(1, 0), PartitionLedger(2, 5)),
        (PartitionLedger(1, 0, count=4), PartitionLedger(2, 5)),
        (PartitionLedger(1, 0, count=6), PartitionLedger(2, 5)),
    ],
)
def test_a_chain_with_gap_overlap_or_unclosed_link_is_no_chain(
    links: tuple[PartitionLedger, ...],
) -> None:
    with pytest.raises(AssertionError):
        Chain(links)


def test_rollover_by_size_entries_or_age_but_never_when_empty() -> None:
    policy = RolloverPolicy(bytes_max=100, entries_max=10, age_ms_max=1000)
    assert not policy.due(99, 9, 999)
    assert policy.due(100, 9, 999)
    assert policy.due(99, 10, 999)
    assert policy.due(99, 9, 1000)
    assert not policy.due(100, 0, 1000)
