"""Ack ids of ranges, and the headers of an answer in batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.types import AckId
from octavo.protocol.ack_ids import each, in_ranges, one, parts_of, shown, span_of
from octavo.protocol.leased import Leased, Run, runs_of

LEASES = st.sampled_from(["8-3", "8-4", "9-3"])
IDS = st.lists(st.builds(one, st.integers(0, 2), st.integers(0, 30), LEASES), unique=True)


@given(IDS)
def test_ranges_name_the_same_messages_in_the_same_order(ack_ids: list[str]) -> None:
    assert list(each(in_ranges(ack_ids))) == ack_ids


@given(st.integers(0, 9), st.integers(0, 100), st.integers(1, 1000))
def test_what_one_receive_gave_is_one_range(partition: int, start: int, count: int) -> None:
    ack_ids = [one(partition, offset, "8-3") for offset in range(start, start + count)]
    assert in_ranges(ack_ids) == [shown(partition, start, start + count, "8-3")]


@pytest.mark.parametrize("text", ["", ":", "5:", ":5", "5:5", "6:5", "-1", "a", "1:2:3", "1:b"])
def test_no_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"range of|invalid literal"):
        span_of(text)


@given(
    st.sets(st.integers(0, 60), min_size=1).map(sorted),
    st.dictionaries(st.integers(0, 60), st.integers(2, 4)),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1),
)
def test_headers_tell_all_of_it(
    offsets: list[int], counts: dict[int, int], entries: list[tuple[int, int]]
) -> None:
    leased = Leased(3, "8-1", runs_of(offsets, counts), entries)
    found = Leased.of(leased.headers())
    assert found == leased
    told = {offset: times for start, end, times in found.runs for offset in range(start, end)}
    assert told == {offset: counts.get(offset, 1) for offset in offsets}


def test_runs_end_where_counts_change() -> None:
    assert runs_of([4, 5, 6, 9], {5: 2, 6: 2}) == [Run(4, 5, 1), Run(5, 7, 2), Run(9, 10, 1)]


def test_an_answer_without_them_is_refused() -> None:
    headers = Leased(0, "8-1", [Run(0, 1, 1)], [(1, 0)]).headers()
    del headers["Octavo-Entries"]
    with pytest.raises(ValueError, match="no header Octavo-Entries"):
        Leased.of(headers)


@pytest.mark.parametrize("epoch", [0, 2**32, 10**19 - 1, 10**19, 2**64 - 1])
def test_every_epoch_of_a_lease_is_read(epoch: int) -> None:
    """Epochs have 64 bits. Those of 20 digits were refused, so half of all subscriptions could
    ack nothing."""
    text = one(3, 41, f"{epoch}-7")
    assert parts_of(text) == ("3", "41", str(epoch), "7")
    assert AckId.parse(text) == AckId(3, 41, epoch, 7)
