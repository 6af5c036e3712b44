"""Delayed messages against a sorted list; and the dispatcher that holds them back."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.delays import _RUN_MESSAGES, _STEP_MESSAGES, Delays
from octavo.broker.subscriptions.dispatch import Dispatcher
from octavo.protocol.due import due_header
from octavo.protocol.records import Record
from tests.unit.broker.test_subscription_types import Log, made, offsets

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
            look = delays.next_ms()
            assert look is not None
            first = min(model)[0]
            assert look <= first, "nobody sleeps through it"
            assert look > now or look == first, "nobody looks in vain again and again"
        else:
            assert delays.next_ms() is None


def test_those_that_are_not_wanted_are_dropped() -> None:
    delays = Delays(10)
    for offset in range(6):
        delays.add(100, offset)
    assert delays.take(100, 2, lambda offset: offset % 2 == 1) == [1, 3]
    assert delays.take(100, 2, lambda offset: offset % 2 == 1) == [5]
    assert len(delays) == 0


def different_minutes(number: int) -> int:
    return number * 60_000


def any_time_of_a_year(number: int) -> int:
    return number * 7_919_000_003 % (366 * 86_400_000)


_MILLION = pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])


@pytest.mark.parametrize("many", [10_000, _MILLION])
@pytest.mark.parametrize(
    "due", [lambda n: n * 7_919 % 86_400_000, different_minutes, any_time_of_a_year]
)
def test_many_in_bounded_memory(many: int, due: Callable[[int], int]) -> None:
    """An array per minute cost 105 bytes for a message that was alone in its minute."""
    tracemalloc.start()
    try:
        delays = Delays(many)
        for offset in range(many):
            delays.add(1_700_000_000_000 + due(offset), 10**9 + offset)
        used = tracemalloc.get_traced_memory()[0]
        assert delays.is_full
        assert used < 9 * many + 500_000
        # Half of them go, from the middle: the rest stays compact.
        now = 1_700_000_000_000 + sorted(map(due, range(many)))[many // 2]
        taken = delays.take(now, many, lambda _: True)
        assert len(taken) >= many // 2
        del taken
        assert tracemalloc.get_traced_memory()[0] < 9 * many + 600_000
    finally:
        tracemalloc.stop()


moves = st.lists(
    st.tuples(st.just("add"), st.integers(0, 2**41 - 1) | st.integers(0, 50))
    | st.tuples(st.just("take"), st.integers(0, 60) | st.just(2**41))
    | st.tuples(st.just("ack up to"), st.integers(0, 60)),
    max_size=60,
)


@given(moves, st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_runs_of_any_length_give_the_same(
    moves: list[tuple[str, int]], run: int, step: int, cut: int
) -> None:
    """Against a list, with offsets and times of any size, in tiny steps."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("RUN", run), ("STEP", step), ("CUT", cut)):
            patch.setattr(f"octavo.broker.subscriptions.delays._{name}_MESSAGES", value)
        delays, model, floor, number = Delays(100), list[tuple[int, int]](), 0, 0

        def is_left(offset: int) -> bool:
            return offset >= floor

        for what, value in moves:
            if what == "add":
                offset = number * 2**40 if number % 3 == 0 else number
                number += 1
                if offset >= floor:
                    delays.add(value, offset)
                    model.append((value, offset))
            elif what == "ack up to":
                floor = max(floor, value)
                delays.passed(floor)
                model = [one for one in model if one[1] >= floor]
            else:
                model.sort()
                due = [one for one in model if one[0] <= value][:3]
                found: list[int] = []
                while len(found) < 3:
                    found += delays.take(value, 3 - len(found), is_left)
                    if not delays.is_behind:
                        break
                if len(found) < 3:
                    found += delays.take(value, 3 - len(found), is_left)
                assert found == [offset for _, offset in due]
                model = [one for one in model if one not in due]
            assert len(delays) >= len(model)
        while delays.is_behind:
            delays.take(-1, 1, lambda _: True)
        left = delays.take(2**42, 1_000, is_left)
        while delays.is_behind:
            left += delays.take(2**42, 1_000, is_left)
        assert left == [offset for _, offset in sorted(model)]
        assert len(delays) == 0
        assert not delays._runs


def test_what_was_acked_is_dropped_in_bounded_steps() -> None:
    """A million of them at once would keep the broker from all other work."""
    many, looked = 40_000, 0
    delays = Delays(many)
    for offset in range(many):
        delays.add(1_000 + offset % 7, offset)

    def wanted(offset: int) -> bool:
        nonlocal looked
        looked += 1
        return False

    assert delays.take(2_000, 1, wanted) == []
    assert looked <= _STEP_MESSAGES
    assert delays.is_behind
    calls = 1
    while delays.is_behind:
        assert delays.take(2_000, 1, wanted) == []
        calls += 1
    assert calls <= many // _STEP_MESSAGES + 2
    assert len(delays) == 0

    for offset in range(many):
        delays.add(1_000_000 - offset, offset)
    before = len(delays)
    delays.passed(many - 1)
    assert before - len(delays) <= many
    while delays.is_behind:
        before = len(delays)
        delays.take(0, 1, wanted)
    assert len(delays) == 1


@pytest.mark.parametrize("runs", [1, 3])
def test_the_first_unacked_message_stays_also_as_the_last_of_its_run(runs: int) -> None:
    """An off-by-one there would hide it from every consumer until the next owner finds it."""
    many = runs * _RUN_MESSAGES
    delays = Delays(many)
    for offset in range(many):
        delays.add(1_000_000 - offset, offset)
    delays.passed(many - 1)
    found: list[int] = []
    for _ in range(many // _STEP_MESSAGES + 2):
        found += delays.take(2_000_000, 10, lambda offset: offset >= many - 1)
    assert found == [many - 1]
    assert (len(delays), delays.is_behind) == (0, False)


async def test_a_new_owner_goes_over_pending_messages_in_bounded_steps() -> None:
    """Between two turns of the loop no more than some thousand are looked at."""
    records = [Record(None, b"v", (due_header(10**12 + n * 60_000),)) for n in range(3_000)]
    log = Log(records)
    subscription = made(log, "shared")
    most = since = 0

    def counted(due_ms: int, offset: int) -> None:
        nonlocal since
        since += 1
        added(due_ms, offset)

    delays = subscription._dispatcher.delays
    added = delays.add
    delays.add = counted  # type: ignore[method-assign]
    over = False

    async def turns() -> None:
        nonlocal most, since
        while not over:
            most, since = max(most, since), 0
            await asyncio.sleep(0)

    turning = asyncio.ensure_future(turns())
    while len(delays) < len(records):
        assert await offsets(subscription, "a", messages_max=10_000) == []
    over = True
    await turning
    assert most <= 1_000


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
