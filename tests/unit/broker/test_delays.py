"""Messages that are not due, against a sorted list; and the dispatcher that keeps them back."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.delays import Delays
from octavo.broker.subscriptions.dispatch import Dispatcher

MINUTE = 65_536
dues = st.integers(0, 5 * MINUTE) | st.sampled_from([0, MINUTE - 1, MINUTE, 2 * MINUTE])
steps = st.lists(st.tuples(st.just("add"), dues) | st.tuples(st.just("pass"), dues), max_size=40)


@given(steps, st.integers(1, 4))
def test_they_come_when_due_in_order(steps: list[tuple[str, int]], most: int) -> None:
    delays, model, now = Delays(100), [], 0
    for number, (what, value) in enumerate(steps):
        if what == "add":
            delays.add(value, number)
            model.append((value, number))
            continue
        now = max(now, value)
        model.sort()
        due = [one for one in model if one[0] <= now][:most]
        model = [one for one in model if one not in due]
        assert delays.take(now, most, lambda _: True) == [offset for _, offset in due]
        assert len(delays) == len(model)
        if model:
            look = delays.next_ms(now)
            assert look is not None
            first = min(model)[0]
            assert look <= first, "nobody sleeps through it"
            assert look > now or look == first, "nobody looks in vain again and again"
        else:
            assert delays.next_ms(now) is None


def test_those_that_are_not_wanted_are_dropped() -> None:
    delays = Delays(10)
    for offset in range(6):
        delays.add(100, offset)
    assert delays.take(100, 2, lambda offset: offset % 2 == 1) == [1, 3]
    assert delays.take(100, 2, lambda offset: offset % 2 == 1) == [5]
    assert len(delays) == 0


@pytest.mark.parametrize("many", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_many_in_bounded_memory(many: int) -> None:
    tracemalloc.start()
    try:
        delays = Delays(many)
        for offset in range(many):
            delays.add(1_700_000_000_000 + offset * 7_919 % 86_400_000, 10**9 + offset)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert delays.is_full
    assert used < 12 * many


def dispatcher(pending_max: int = 100) -> Dispatcher:
    found = Dispatcher(
        Cursor(0), exclusive=False, ack_timeout_ms=1_000, leased_max=50, delayed_max=50,
        pending_max=pending_max,
    )  # fmt: skip
    found.enter("c", 0)
    return found


def test_what_is_withheld_was_never_given() -> None:
    one = dispatcher()
    found = one.dispatch("c", 0, 8, 4)
    assert found is not None
    one.reading(found)
    # 1 and 3 are not due; nor are 4 and 5, which follow in the same batch; 7 is not next.
    left = one.withhold(found, {1: 500, 3: 400, 4: 600, 5: 400, 7: 100})
    assert left.offsets == [0, 2]
    one.begin(left, 0)
    assert (one.leased, len(one.delays)) == (2, 4)
    assert one.next_event_ms() == 400
    found = one.dispatch("c", 1, 8, 9)
    assert found is not None
    assert found.offsets == [6, 7]
    one.acked([0, 2, 6, 7])
    assert one.dispatch("c", 399, 8, 9) is None
    assert one.next_event_ms() == 400
    found = one.dispatch("c", 400, 8, 9)
    assert found is not None
    assert (found.offsets, found.counts, found.was_pending) == ([3, 5], {}, True)
    one.cursor.ack(1, 2)
    found = one.dispatch("c", 600, 8, 9)
    assert found is not None
    assert found.offsets == [4], "1 was acked meanwhile"
    found = one.dispatch("c", 2_000, 8, 9)
    assert found is not None
    assert (found.offsets, found.counts) == ([3, 4, 5], {3: 2, 4: 2, 5: 2}), "their leases ended"


def test_when_it_is_full_nothing_behind_is_looked_for() -> None:
    one = dispatcher(pending_max=2)
    found = one.dispatch("c", 0, 8, 2)
    assert found is not None
    one.reading(found)
    one.begin(one.withhold(found, {0: 50, 1: 60}), 0)
    assert one.dispatch("c", 1, 8, 2) is None
    assert "2 messages are not due yet" in (one.held_back(8) or "")
    found = one.dispatch("c", 50, 8, 2)
    assert found is not None
    assert found.offsets == [0]
    found = one.dispatch("c", 51, 8, 2)
    assert found is not None
    assert found.offsets == [2, 3]


def test_a_seek_finds_them_anew() -> None:
    one = dispatcher()
    found = one.dispatch("c", 0, 3, 3)
    assert found is not None
    one.reading(found)
    one.begin(one.withhold(found, {0: 50, 1: 60, 2: 70}), 0)
    one.cursor.reset(1)
    one.reset()
    assert len(one.delays) == 0
    found = one.dispatch("c", 1, 3, 3)
    assert found is not None
    assert found.offsets == [1, 2]
