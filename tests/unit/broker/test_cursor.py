"""The cursor against the simplest model: a set of acked offsets."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.state.cursor import Cursor, pack_ranges, ranges_of, unpack_ranges

SPAN = 20_000  # several chunks of the bitmap
offsets = st.integers(0, SPAN)
near_edges = st.sampled_from([4095, 4096, 4097, 8191, 8192, 8193])
acks = st.lists(
    st.tuples(offsets | near_edges, st.integers(1, 50) | st.integers(4000, 9000)), max_size=30
)


def first_missing(model: set[int], start: int) -> int:
    while start in model:
        start += 1
    return start


@given(floor=st.integers(0, 9000), acked=acks)
def test_acks_against_a_set(floor: int, acked: list[tuple[int, int]]) -> None:
    cursor = Cursor(floor)
    model = set(range(floor))
    for start, length in acked:
        new = set(range(start, start + length)) - model
        model |= new
        assert cursor.ack(start, start + length) == len(new)
    mark = first_missing(model, 0)
    assert cursor.committed_offset == mark
    assert cursor.acked_beyond == len([o for o in model if o > mark])
    beyond = ranges_of(sorted(o for o in model if o >= mark))
    assert list(cursor.ranges()) == beyond
    assert cursor.hole_count() == len(beyond)
    end = SPAN + 20_000
    assert cursor.backlog(end) == end - len(model)
    for probe in {0, mark, *(s for s, _ in acked), *(s + n for s, n in acked)}:
        assert cursor.is_acked(probe) == (probe in model)
        assert cursor.next_unacked(probe) == first_missing(model, max(probe, mark))
        limit = probe + 5000
        later = [o for o in model if o >= probe]
        assert cursor.next_acked(probe, limit) == min([*later, limit])


@given(acked=acks, split=st.integers(0, 5))
def test_dump_and_load(acked: list[tuple[int, int]], split: int) -> None:
    cursor = Cursor(100)
    for start, length in acked:
        cursor.ack(start, start + length)
    again = Cursor(cursor.committed_offset)
    dump = cursor.dump()
    again.load(dump[:split])
    again.load(dump[split:])
    again.load(dump)
    assert again.committed_offset == cursor.committed_offset
    assert list(again.ranges()) == list(cursor.ranges())
    assert again.acked_beyond == cursor.acked_beyond


def test_load_below_the_floor_is_not_counted() -> None:
    cursor = Cursor(10)
    cursor.load([(0, b"\xff\xff\xff")])
    assert (cursor.committed_offset, cursor.acked_beyond) == (24, 0)
    cursor.load([(0, b"\xff\xff\xff\x02")])
    assert list(cursor.ranges()) == [(25, 26)]


@given(st.sets(st.integers(0, 300)))
def test_ranges_pack(model: set[int]) -> None:
    ranges = ranges_of(sorted(model))
    assert {o for start, end in ranges for o in range(start, end)} == model
    assert unpack_ranges(pack_ranges(ranges)) == ranges


@pytest.mark.parametrize("packed", [[1], [1, 0], [-1, 2]])
def test_senseless_ranges_are_refused(packed: list[int]) -> None:
    with pytest.raises(ValueError, match="pairs of a gap and a length"):
        unpack_ranges(packed)


def test_reset_forgets_what_was_beyond() -> None:
    cursor = Cursor()
    cursor.ack(5, 9000)
    cursor.reset(3)
    assert (cursor.committed_offset, cursor.acked_beyond, list(cursor.ranges())) == (3, 0, [])


@pytest.mark.parametrize("holes", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_many_holes_stay_cheap_and_small(holes: int) -> None:
    cursor = Cursor()
    started = time.process_time()
    for offset in range(1, 2 * holes, 2):
        cursor.ack(offset, offset + 1)
    seconds = time.process_time() - started
    assert cursor.acked_beyond == cursor.hole_count() == holes
    assert sum(len(raw) for _, raw in cursor.dump()) <= 2 * holes // 8 + 512
    assert seconds < holes / 50_000, "an ack must not cost more the more holes there are"
    assert cursor.ack(0, 2 * holes) == holes
    assert cursor.committed_offset == 2 * holes


@given(
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 9_000), st.integers(1, 5_000)), max_size=6),
    st.integers(1, 12_000),
    st.integers(0, 14_000),
)
def test_the_first_so_many_unacked(
    floor: int, acked: list[tuple[int, int]], count: int, end: int
) -> None:
    cursor = Cursor(floor)
    for start, length in acked:
        cursor.ack(start, start + length)
    unacked = [offset for offset in range(end) if not cursor.is_acked(offset)]
    assert cursor.first_unacked(count, end) == unacked[:count]
    behind = cursor.after_unacked(count, end)
    if len(unacked) >= count:
        assert behind == unacked[count - 1] + 1
    else:
        assert behind == end
