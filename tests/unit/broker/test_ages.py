"""How long messages have been stored: never more than the truth, whatever is forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.policies import MARKS_MAX, Ages
from octavo.broker.state.cursor import Cursor
from octavo.broker.state.format import State, ages_op, encode, snapshot

steps = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 1000), st.booleans(), st.integers(0, 3)),
    max_size=300,
)


@given(steps=steps, ttl_ms=st.integers(0, 500))
def test_nothing_counts_as_older_than_it_is(
    steps: list[tuple[int, int, bool, int]], ttl_ms: int
) -> None:
    """Messages come, time passes, a mark is made, a new owner replays, in any order."""
    stored_at: list[int] = []
    ages, now_ms, first = Ages(), 10_000, 0
    for messages, passes_ms, marks, event in steps:
        stored_at += [now_ms] * messages
        now_ms += passes_ms
        if marks:
            ages.note(len(stored_at), now_ms)
        if event == 1:
            ages = Ages(ages.marks)
        elif event == 2 and ages.marks:
            first = max(first, ages.marks[0].offset)
            ages.forget_before(first)
        old = ages.stored_before(now_ms - ttl_ms)
        assert all(now_ms - at >= ttl_ms for at in stored_at[:old])
        for offset in range(first, len(stored_at)):
            assert ages.age_of(offset, now_ms) <= now_ms - stored_at[offset]
        assert len(ages.marks) <= MARKS_MAX
        assert list(ages.marks) == sorted(ages.marks)


def test_what_is_between_two_marks_ages_from_the_later() -> None:
    ages = Ages([(10, 100), (20, 200)])
    assert [ages.stored_before(at) for at in (99, 100, 199, 200, 10**6)] == [0, 10, 10, 20, 20]
    assert [ages.age_of(offset, 250) for offset in (0, 9, 10, 19, 20)] == [150, 150, 50, 50, 0]
    assert not ages.note(20, 300), "nothing came since"
    assert not ages.is_due(20, 10**6, 1)
    assert not ages.is_due(21, 209, 10)
    assert ages.is_due(21, 210, 10)
    assert Ages().is_due(1, 0, 10)
    assert not Ages().is_due(0, 0, 10)


def test_marks_are_thinned_out_and_the_newest_stays() -> None:
    ages = Ages()
    for number in range(1, 10_000):
        ages.note(number, number)
        assert ages.marks[-1] == (number, number)
        assert len(ages.marks) <= MARKS_MAX
    assert ages.stored_before(10_000) == 9_999
    for at in range(1_000, 10_000, 1_000):
        assert at - 1_000 < ages.stored_before(at) <= at


def test_a_time_that_was_set_back() -> None:
    ages = Ages([(10, 1_000)])
    ages.note(20, 500)
    assert ages.marks == ((20, 500),)
    assert ages.stored_before(499) == 0


def test_the_state_ledger_has_them() -> None:
    ages = Ages([(10, 100), (20, 200)])
    state = State()
    for entry in snapshot([("s", 1, Cursor(5))], [], 20, ages.marks):
        state.apply(entry)
    assert state.ages.marks == ages.marks
    state.apply(encode([ages_op(ages.marks[0])]))
    assert state.ages.marks == ages.marks, "a snapshot may be ahead of what comes after it"
    state.apply(encode([[50, 30, 300]]))
    assert state.ages.marks[-1] == (30, 300)
