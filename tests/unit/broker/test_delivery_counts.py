"""Delivery counts: the back-off that follows from them, and that a take-over keeps them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.errors import InvalidSettings
from octavo.broker.state.cursor import Cursor
from octavo.broker.state.format import (
    SNAPSHOT_ENTRY_BYTES,
    BadStateLedger,
    State,
    ack_op,
    cursor_op,
    deliveries_op,
    encode,
    snapshot,
    sought_op,
)
from octavo.broker.subscriptions.dispatch import Dispatcher
from octavo.broker.types import RetryBackoff, SubscriptionSettings

TIMEOUT = 100


def make(backoff: RetryBackoff | None = None, **more: object) -> Dispatcher:
    return Dispatcher(
        Cursor(),
        exclusive=False,
        ack_timeout_ms=TIMEOUT,
        leased_max=1000,
        delayed_max=2,
        retry_backoff=backoff,
        **more,  # type: ignore[arg-type]
    )


def take(dispatcher: Dispatcher, now: int, end: int = 3, most: int = 10) -> dict[int, int]:
    """Return the delivered offsets, each with its delivery count."""
    dispatcher.enter("a", now)
    found = dispatcher.dispatch("a", now, end, most)
    return {} if found is None else {one: found.counts.get(one, 1) for one in found.offsets}


@pytest.mark.parametrize(
    ("deliveries", "delay_ms"), [(1, 100), (2, 200), (3, 400), (4, 500), (5_000, 500)]
)
def test_each_wait_is_longer_up_to_the_most(deliveries: int, delay_ms: int) -> None:
    assert RetryBackoff(100, 500).delay_ms(deliveries) == delay_ms


@pytest.mark.parametrize(
    "backoff",
    [RetryBackoff(0, 5), RetryBackoff(6, 5), RetryBackoff(1, 86_400_001), RetryBackoff(1, 5, 0.5)],
)
def test_a_back_off_that_makes_no_sense_is_refused(backoff: RetryBackoff) -> None:
    with pytest.raises(InvalidSettings, match="retry_backoff"):
        SubscriptionSettings(retry_backoff=backoff)


def test_a_nack_without_a_delay_waits_as_the_subscription_says() -> None:
    dispatcher = make(RetryBackoff(10, 1000, 3.0))
    assert take(dispatcher, 0) == {0: 1, 1: 1, 2: 1}
    dispatcher.nack(0, 0, None)
    dispatcher.nack(1, 0, 0)  # named: at once
    assert take(dispatcher, 9) == {1: 2}
    assert take(dispatcher, 10) == {0: 2}
    dispatcher.nack(0, 10, None)
    assert take(dispatcher, 39) == {}
    assert take(dispatcher, 40) == {0: 3}


def test_a_lease_that_ends_waits_too_as_far_as_there_is_room() -> None:
    dispatcher = make(RetryBackoff(50, 50))
    assert take(dispatcher, 0) == {0: 1, 1: 1, 2: 1}
    assert take(dispatcher, TIMEOUT) == {2: 2}, "two wait, the most there may be"
    assert dispatcher.delayed == 2
    assert take(dispatcher, TIMEOUT + 50) == {0: 2, 1: 2}


def test_what_nobody_looked_at_is_no_delivery() -> None:
    dispatcher = make(RetryBackoff(50, 50))
    take(dispatcher, 0, end=2)
    dispatcher.give_up(0)
    dispatcher.give_up(0)  # named twice in a call
    assert take(dispatcher, 0, end=2) == {0: 1}, "at once, and as if it had not been"
    dispatcher.nack(0, 0, 0)
    assert take(dispatcher, 0, end=2) == {0: 2}
    dispatcher.give_up(0)
    assert take(dispatcher, 0, end=2) == {0: 2}


def test_a_successor_goes_on_counting() -> None:
    dispatcher = make(attempts={1: 4})
    assert take(dispatcher, 0) == {0: 1, 1: 5, 2: 1}


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(2, 9)), max_size=30),
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=5),
)
def test_deltas_and_snapshots_tell_the_same_counts(
    told: list[tuple[int, int]], acked: list[tuple[int, int]]
) -> None:
    cursor, counts, by_deltas = Cursor(), dict[int, int](), State()
    by_deltas.apply(encode([cursor_op("s", 1, 0)]))
    for offset, count in told:
        counts[offset] = max(count, counts.get(offset, 0))
        by_deltas.apply(encode([deliveries_op("s", {offset: count})]))
    for start, length in acked:
        cursor.ack(start, start + length)
        by_deltas.apply(encode([ack_op("s", [(start, start + length)])]))
    by_snapshot = State()
    for entry in snapshot([("s", 1, cursor)], [], 0, deliveries=[("s", counts)]):
        by_snapshot.apply(entry)
    left = {offset: count for offset, count in counts.items() if not cursor.is_acked(offset)}
    for state in (by_deltas, by_snapshot):
        state.cursors["s"].forget_acked()
        assert state.cursors["s"].deliveries == left


def test_a_seek_begins_to_count_anew() -> None:
    state = State()
    for op in (cursor_op("s", 1, 0), deliveries_op("s", {3: 4}), cursor_op("s", 1, 0)):
        state.apply(encode([op]))
    assert state.cursors["s"].deliveries == {}


def test_counted_seeks_are_kept_by_snapshots() -> None:
    state = State()
    for op in (cursor_op("s", 1, 0), deliveries_op("s", {3: 4}), sought_op("s", 1, 2, 5)):
        state.apply(encode([op]))
    held = state.cursors["s"]
    assert (held.seeks, held.deliveries, held.cursor.committed_offset) == (5, {}, 2)
    held.cursor.ack(4, 6)
    again = State()
    for entry in snapshot([("s", 1, held.cursor), ("t", 1, Cursor())], [], 0, (), (), {"s": 5}):
        again.apply(entry)
    assert again.cursors["s"].seeks == 5
    assert list(again.cursors["s"].cursor.ranges()) == [(4, 6)]
    assert again.cursors["t"].seeks == 0


def test_counts_of_very_many_messages_are_cut_into_entries() -> None:
    counts = dict.fromkeys(range(0, 1_000_000, 3), 2)
    entries = list(snapshot([("s", 1, Cursor())], [], 0, deliveries=[("s", counts)]))
    assert len(entries) > 1
    assert max(map(len, entries)) < 2 * SNAPSHOT_ENTRY_BYTES
    state = State()
    for entry in entries:
        state.apply(entry)
    assert state.cursors["s"].deliveries == counts


@pytest.mark.parametrize("packed", [[1], [-1, 2], [1, 1], ["x", 2]])
def test_counts_that_cannot_be_are_refused(packed: list[object]) -> None:
    with pytest.raises(BadStateLedger):
        State().apply(encode([["c", "s", 1, 0], [20, "s", packed]]))
