"""Hand-outs, leases and redelivery, by example and against random histories."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.broker.errors import InvalidSettings, NotOwner, SubscriptionBusy
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
from octavo.broker.subscriptions.delays import Delays
from octavo.broker.subscriptions.dispatch import Dispatcher
from octavo.broker.types import RetryBackoff, SubscriptionSettings
from tests.support.kit.examples import examples
from tests.support.kit.quiescence import in_use
from tests.unit.broker.test_keys import Log, keyed, made

TIMEOUT = 100


def make(
    *,
    exclusive: bool = False,
    leased_max: int = 1000,
    delayed_max: int = 1000,
    floor: int = 0,
    in_order: bool = False,
) -> Dispatcher:
    return Dispatcher(
        Cursor(floor),
        exclusive=exclusive,
        in_order=in_order,
        ack_timeout_ms=TIMEOUT,
        leased_max=leased_max,
        delayed_max=delayed_max,
    )


def take(dispatcher: Dispatcher, now: int, end: int, most: int, name: str = "a") -> list[int]:
    dispatcher.enter(name, now)
    found = dispatcher.dispatch(name, now, end, most)
    return found.offsets if found else []


def ack(dispatcher: Dispatcher, *offsets: int) -> None:
    for offset in offsets:
        dispatcher.cursor.ack(offset, offset + 1)
    dispatcher.acked(offsets)


def test_nobody_gets_a_message_that_another_holds() -> None:
    dispatcher = make()
    assert take(dispatcher, 0, 10, 4, "a") == [0, 1, 2, 3]
    assert take(dispatcher, 0, 10, 4, "b") == [4, 5, 6, 7]
    assert take(dispatcher, 0, 10, 4, "a") == [8, 9]
    assert take(dispatcher, 0, 10, 4, "b") == []
    assert (dispatcher.consumers["a"].leased, dispatcher.consumers["b"].leased) == (6, 4)


def test_a_hand_out_given_again_is_no_new_delivery() -> None:
    dispatcher = make()
    dispatcher.enter("a", 0)
    found = dispatcher.dispatch("a", 0, 10, 4)
    assert found is not None
    ack(dispatcher, 1)
    again = dispatcher.again(found, TIMEOUT - 1)
    assert again is not None
    assert (again.number, again.offsets, dispatcher.leased) == (found.number, [0, 2, 3], 3)
    dispatcher.expire(2 * TIMEOUT - 2)
    assert dispatcher.holds(0, found.number), "its lease began anew"
    assert dispatcher.again(found, 3 * TIMEOUT) is None, "it is over"
    dispatcher.enter("a", 3 * TIMEOUT)
    late = dispatcher.dispatch("a", 3 * TIMEOUT, 10, 4)
    assert late is not None
    assert late.offsets == [0, 2, 3, 4]
    assert late.counts == {0: 2, 2: 2, 3: 2}


def test_what_is_acked_already_is_not_handed_out() -> None:
    dispatcher = make(floor=2)
    dispatcher.cursor.ack(4, 6)
    assert take(dispatcher, 0, 10, 10) == [2, 3, 6, 7, 8, 9]


def test_an_ended_lease_is_delivered_again_first_and_counted() -> None:
    dispatcher = make()
    take(dispatcher, 0, 3, 3)
    ack(dispatcher, 1)
    assert dispatcher.next_event_ms() == TIMEOUT
    dispatcher.enter("b", TIMEOUT)
    again = dispatcher.dispatch("b", TIMEOUT, 5, 10)
    assert again is not None
    assert again.offsets == [0, 2, 3, 4]
    assert again.counts == {0: 2, 2: 2}
    assert dispatcher.holds(0, again.number)
    assert not dispatcher.holds(0, 1), "the first lease is stale"


def test_a_nack_with_delay_waits() -> None:
    dispatcher = make()
    take(dispatcher, 0, 3, 3)
    dispatcher.nack(1, 0, 50)
    dispatcher.nack(2, 0, 0)
    assert take(dispatcher, 10, 3, 9) == [2]
    assert dispatcher.next_event_ms() == 50
    assert take(dispatcher, 49, 3, 9) == []
    assert take(dispatcher, 50, 3, 9) == [1]


def test_extend_keeps_only_what_was_named() -> None:
    dispatcher = make()
    take(dispatcher, 0, 3, 3)
    dispatcher.extend([0, 0, 2], 60)
    assert take(dispatcher, TIMEOUT, 3, 9, "b") == [1]
    assert dispatcher.holds(0, 1)
    assert dispatcher.holds(2, 1)
    assert dispatcher.consumers["a"].leased == 2
    assert take(dispatcher, 60 + TIMEOUT, 3, 9, "b") == [0, 2]


def test_an_exclusive_subscription_has_one_consumer_until_its_lease_ends() -> None:
    dispatcher = make(exclusive=True)
    take(dispatcher, 0, 10, 1, "a")
    dispatcher.heard_of(0, 50)
    with pytest.raises(SubscriptionBusy, match="'a' holds it for another 51 ms"):
        dispatcher.enter("b", 99)
    dispatcher.enter("b", 150)
    with pytest.raises(SubscriptionBusy, match="'b'"):
        dispatcher.enter("a", 151)


def test_an_extended_lease_keeps_the_exclusive_subscription_too() -> None:
    dispatcher = make(exclusive=True)
    take(dispatcher, 0, 10, 1, "a")
    dispatcher.extend([0], 90)
    with pytest.raises(SubscriptionBusy):
        dispatcher.enter("b", 150)


def test_what_is_out_is_bounded_and_what_is_delayed_apart() -> None:
    dispatcher = make(leased_max=5, delayed_max=6)
    assert dispatcher.held_back(100) is None
    assert take(dispatcher, 0, 100, 50) == [0, 1, 2, 3, 4]
    assert take(dispatcher, 0, 100, 50) == []
    assert dispatcher.held_back(5) is None, "there is nothing to hold back"
    assert "5 messages are out at 1 consumers" in (dispatcher.held_back(100) or "")
    for offset in range(5):
        assert dispatcher.nack(offset, 0, 10)
    assert dispatcher.held_back(100) is None
    assert take(dispatcher, 0, 100, 50) == [5, 6, 7, 8, 9]
    assert dispatcher.nack(5, 0, 10)
    assert not dispatcher.nack(6, 0, 10), "it stays leased"
    assert (dispatcher.leased, dispatcher.delayed) == (4, 6)
    assert dispatcher.nack(6, 0, 0)
    assert take(dispatcher, 0, 100, 1) == [6]
    ack(dispatcher, 6, 7, 8, 9)
    assert take(dispatcher, 10, 100, 50) == [0, 1, 2, 3, 4, 5]
    assert "6 messages are out" in (dispatcher.held_back(100) or "")


def test_cumulative_ack_ends_leases_and_moves_on() -> None:
    dispatcher = make()
    take(dispatcher, 0, 100, 10)
    dispatcher.cursor.ack(0, 21)
    dispatcher.acked_up_to(20)
    assert dispatcher.leased == 0
    assert take(dispatcher, 0, 100, 2) == [21, 22]


def test_a_seek_voids_every_lease() -> None:
    dispatcher = make()
    dispatcher.enter("a", 0)
    first = dispatcher.dispatch("a", 0, 10, 5)
    assert first is not None
    dispatcher.nack(3, 0, 50)
    dispatcher.cursor.reset(2)
    dispatcher.reset()
    assert dispatcher.leased == dispatcher.ready == dispatcher.delayed == 0
    dispatcher.enter("a", 1)
    again = dispatcher.dispatch("a", 1, 10, 5)
    assert again is not None
    assert (again.offsets, again.counts) == ([2, 3, 4, 5, 6], {})
    assert not dispatcher.holds(2, first.number)


def test_acked_leases_leave_nothing_behind() -> None:
    dispatcher = make(leased_max=10)
    for i in range(1000):
        ack(dispatcher, *take(dispatcher, 0, 10_000, 10))
        assert dispatcher.next_event_ms() is None, i
    assert dispatcher.cursor.committed_offset == 10_000


def test_idle_consumers_are_forgotten_before_new_ones_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("octavo.broker.subscriptions.dispatch.CONSUMERS_MAX", 2)
    dispatcher = make()
    take(dispatcher, 0, 10, 1, "a")
    dispatcher.enter("b", 1)
    take(dispatcher, 2, 10, 1, "c")
    assert sorted(dispatcher.consumers) == ["a", "c"]
    with pytest.raises(SubscriptionBusy, match="already has 2 consumers"):
        dispatcher.enter("d", 3)


@dataclass
class Held:
    number: int
    deadline: int
    name: str


@dataclass
class Model:
    acked: set[int] = field(default_factory=set)
    held: dict[int, Held] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    hidden: dict[int, int] = field(default_factory=dict)  # nacked until

    def free(self, offset: int, now: int) -> bool:
        held = self.held.get(offset)
        return (
            offset not in self.acked
            and (held is None or held.deadline <= now)
            and self.hidden.get(offset, 0) <= now
        )


def test_what_is_revoked_comes_again_and_has_not_failed() -> None:
    dispatcher = make()
    assert take(dispatcher, 0, 10, 3, "a") == [0, 1, 2]
    dispatcher.nack(0, 0, 0)
    dispatcher.nack(1, 0, 50)
    assert take(dispatcher, 0, 10, 3, "a") == [0, 3, 4]
    assert take(dispatcher, 0, 10, 1, "b") == [5]
    assert dispatcher.revoke("b")
    assert dispatcher.leased == 1
    assert dispatcher.consumers["a"].leased == 0
    dispatcher.enter("b", 10)
    found = dispatcher.dispatch("b", 10, 10, 100)
    assert found is not None
    assert found.offsets == [0, 2, 3, 4, 6, 7, 8, 9], "in order; one waits for its delay"
    assert found.counts == {0: 2}, "as often as it was before, and no more"
    assert take(dispatcher, 50, 10, 100, "b") == [1]
    assert not dispatcher.revoke("b"), "nobody else has anything"


class Dispatching(RuleBasedStateMachine):
    """Random consumers, acks, nacks, expiry: every message is leased once, free, or acked."""

    in_order = False

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher = make(leased_max=10**6, in_order=self.in_order)
        self.model = Model()
        self.now = 0
        self.end = 0

    @rule(count=st.integers(1, 20))
    def publish(self, count: int) -> None:
        self.end += count

    @rule(ms=st.integers(1, 80))
    def pass_time(self, ms: int) -> None:
        self.now += ms

    @rule(most=st.integers(1, 30), name=st.sampled_from("abc"))
    def receive(self, most: int, name: str) -> None:
        model = self.model
        self.dispatcher.enter(name, self.now)
        found = self.dispatcher.dispatch(name, self.now, self.end, most)
        free = [o for o in range(self.end) if model.free(o, self.now)]
        if self.in_order:
            asleep = [o for o, until in model.hidden.items() if until > self.now]
            free = [o for o in free if o < min(asleep, default=self.end)]
        again = [o for o in free if o in model.attempts]
        expected = sorted((again + [o for o in free if o not in model.attempts])[:most])
        assert (found.offsets if found else []) == expected
        for offset in expected:
            assert found is not None
            assert found.counts.get(offset, 1) == model.attempts.get(offset, 0) + 1
            model.attempts[offset] = model.attempts.get(offset, 0) + 1
            model.held[offset] = Held(found.number, self.now + TIMEOUT, name)
            model.hidden.pop(offset, None)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        model = self.model
        offset = data.draw(st.sampled_from(sorted(model.held)))
        held = model.held[offset]
        self.dispatcher.expire(self.now)
        alive = held.deadline > self.now and offset not in model.acked
        assert self.dispatcher.holds(offset, held.number) == alive
        if not alive:
            return
        what = data.draw(st.sampled_from(["ack", "nack", "extend"]))
        if what == "ack":
            ack(self.dispatcher, offset)
            model.acked.add(offset)
        elif what == "nack":
            delay = data.draw(st.integers(0, 150))
            self.dispatcher.nack(offset, self.now, delay)
            model.hidden[offset] = self.now + delay
        else:
            self.dispatcher.extend([offset], self.now)
            held.deadline = self.now + TIMEOUT
        if what != "extend":
            del model.held[offset]

    @rule(name=st.sampled_from("abc"))
    def revoke(self, name: str) -> None:
        model = self.model
        for offset, held in tuple(model.held.items()):
            if held.deadline > self.now and held.name != name:
                del model.held[offset]
                model.attempts[offset] -= 1
        self.dispatcher.revoke(name)

    @invariant()
    def leases_are_counted(self) -> None:
        self.dispatcher.expire(self.now)
        alive = [o for o, held in self.model.held.items() if held.deadline > self.now]
        assert self.dispatcher.leased == len(alive)
        assert sum(c.leased for c in self.dispatcher.consumers.values()) == len(alive)


class DispatchingInOrder(Dispatching):
    """In a subscription with one order, nothing overtakes a message that waits for its delay."""

    in_order = True


TestDispatching = Dispatching.TestCase
TestDispatching.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestDispatchingInOrder = DispatchingInOrder.TestCase
TestDispatchingInOrder.settings = TestDispatching.settings


def test_the_second_nack_of_a_message_changes_nothing() -> None:
    """A call that gave the same message back twice failed half-way, and its acks were not taken:
    the second nack found no lease to end (`KeyError`, a 500). Found by reading."""
    dispatcher = Dispatcher(
        Cursor(), exclusive=False, ack_timeout_ms=1_000, leased_max=10, delayed_max=10
    )
    dispatcher.enter("c", 0)
    assert dispatcher.dispatch("c", 0, 1, 10) is not None
    dispatcher.nack(0, 0, 0)
    dispatcher.nack(0, 0, 0)
    again = dispatcher.dispatch("c", 1, 1, 10)
    assert again is not None
    assert (again.offsets, again.counts) == ([0], {0: 2})
    assert dispatcher.ready == 0


# Delayed messages that were expired, skipped or trimmed still counted as pending. A subscription
# with as many of them as it remembers delivered nothing until the last would have been due, up to a
# year later. Found by reading.

_YEAR_MS = 31_536_000_000


def _dispatcher(pending_max: int) -> Dispatcher:
    one = Dispatcher(
        Cursor(), ack_timeout_ms=1_000, leased_max=50, delayed_max=50, pending_max=pending_max
    )
    one.enter("c", 0)
    return one


def _acked_up_to(one: Dispatcher, offset: int) -> None:
    one.cursor.ack(0, offset + 1)
    one.acked_up_to(offset)


def test_what_follows_expired_ones_is_handed_out() -> None:
    one = _dispatcher(pending_max=3)
    found = one.dispatch("c", 0, 8, 3)
    assert found is not None
    one.reading(found)
    one.begin(one.withhold(found, dict.fromkeys(range(3), _YEAR_MS)), 0)
    assert one.held_back(8) is not None
    _acked_up_to(one, 2)
    assert one.held_back(8) is None
    found = one.dispatch("c", 1, 8, 3)
    assert found is not None
    assert found.offsets == [3, 4, 5]


def test_those_that_are_left_come_when_they_are_due() -> None:
    delays = Delays(100)
    for offset in range(50):
        delays.add(1_000 + offset * 2_000, offset)
    assert delays.take(1_000, 1, lambda _: True) == [0]
    delays.passed(48)
    assert len(delays) == 2
    delays.passed(49)
    assert len(delays) == 1
    assert delays.take(98_999, 9, lambda _: True) == []
    assert delays.take(99_000, 9, lambda _: True) == [49]
    assert delays.next_ms() is None


def test_going_over_them_is_paid_by_what_was_acked() -> None:
    """A time to live acks a few at a time: a million pending messages are not visited for each."""
    many = 4_096
    delays = Delays(many)
    for offset in range(many):
        delays.add(_YEAR_MS + offset, offset)
    for floor in range(1, many):
        delays.passed(floor)
        assert 0 <= len(delays) - (many - floor) <= many // 16
    delays.passed(many)
    assert len(delays) == 0


def make_delivery_counts(backoff: RetryBackoff | None = None, **more: object) -> Dispatcher:
    return Dispatcher(
        Cursor(),
        exclusive=False,
        ack_timeout_ms=TIMEOUT,
        leased_max=1000,
        delayed_max=2,
        retry_backoff=backoff,
        **more,  # type: ignore[arg-type]
    )


def take_delivery_counts(
    dispatcher: Dispatcher, now: int, end: int = 3, most: int = 10
) -> dict[int, int]:
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
    dispatcher = make_delivery_counts(RetryBackoff(10, 1000, 3.0))
    assert take_delivery_counts(dispatcher, 0) == {0: 1, 1: 1, 2: 1}
    dispatcher.nack(0, 0, None)
    dispatcher.nack(1, 0, 0)  # named: at once
    assert take_delivery_counts(dispatcher, 9) == {1: 2}
    assert take_delivery_counts(dispatcher, 10) == {0: 2}
    dispatcher.nack(0, 10, None)
    assert take_delivery_counts(dispatcher, 39) == {}
    assert take_delivery_counts(dispatcher, 40) == {0: 3}


def test_a_lease_that_ends_waits_too_as_far_as_there_is_room() -> None:
    dispatcher = make_delivery_counts(RetryBackoff(50, 50))
    assert take_delivery_counts(dispatcher, 0) == {0: 1, 1: 1, 2: 1}
    assert take_delivery_counts(dispatcher, TIMEOUT) == {2: 2}, "two wait, the most there may be"
    assert dispatcher.delayed == 2
    assert take_delivery_counts(dispatcher, TIMEOUT + 50) == {0: 2, 1: 2}


def test_what_nobody_looked_at_is_no_delivery() -> None:
    dispatcher = make_delivery_counts(RetryBackoff(50, 50))
    take_delivery_counts(dispatcher, 0, end=2)
    dispatcher.give_up(0)
    dispatcher.give_up(0)  # named twice in a call
    assert take_delivery_counts(dispatcher, 0, end=2) == {0: 1}, (
        "at once, and as if it had not been"
    )
    dispatcher.nack(0, 0, 0)
    assert take_delivery_counts(dispatcher, 0, end=2) == {0: 2}
    dispatcher.give_up(0)
    assert take_delivery_counts(dispatcher, 0, end=2) == {0: 2}


def test_a_successor_goes_on_counting() -> None:
    dispatcher = make_delivery_counts(attempts={1: 4})
    assert take_delivery_counts(dispatcher, 0) == {0: 1, 1: 5, 2: 1}


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


def dispatcher() -> Dispatcher:
    return Dispatcher(
        Cursor(0), exclusive=True, in_order=False, ack_timeout_ms=TIMEOUT, leased_max=100,
        delayed_max=100,
    )  # fmt: skip


@pytest.mark.parametrize("ends", ["given", "given back"])
def test_a_hand_out_that_was_read_holds_no_subscription(ends: str) -> None:
    """A consumer that was gone kept an exclusive subscription for ever."""
    one = dispatcher()
    for _ in range(3):  # read, and read again
        one.enter("a", 0)
        found = one.dispatch("a", 0, 10, 4)
        assert found is not None
        one.reading(found)
        assert in_use(one)["reads"] == 1
        with pytest.raises(SubscriptionBusy):
            one.enter("b", 10 * TIMEOUT)
        if ends == "given":
            one.begin(found, 0)
            for offset in found.offsets:
                one.cursor.ack(offset, offset + 1)
            one.acked(found.offsets)
        else:
            one.give_back(found)
        assert in_use(one) == {}
    one.enter("b", 10 * TIMEOUT)


@pytest.mark.parametrize("type_", ["exclusive", "shared", "key_shared"])
async def test_a_call_that_ended_is_counted_no_more(type_: Any) -> None:
    """Whether it got a message, none in time, was given up, or met the end of the partition. Calls
    that are counted for ever shrink the share of each later call."""
    log = Log([])
    one = made(log, type_, consumer_timeout_ms=600_000)
    for _ in range(2):
        assert await one.receive("a", messages_max=10, wait_s=0) == []
        assert await one.receive("a", messages_max=10, wait_s=0.01) == []
        given_up = asyncio.ensure_future(one.receive("a", messages_max=10, wait_s=600))
        await asyncio.sleep(0.01)
        assert in_use(one) == {"waiters": 1, "receiving": 1}
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert in_use(one) == {}
    waits = asyncio.ensure_future(one.receive("a", messages_max=10, wait_s=600))
    await asyncio.sleep(0.01)
    for _ in range(3):  # woken, with nothing there
        one.wake()
        await asyncio.sleep(0.01)
        assert in_use(one) == {"waiters": 1, "receiving": 1}
    log.records += keyed("k", "k", "k")
    one.wake()
    assert [message.offset for message in await waits] == [0, 1, 2]
    assert in_use(one) == {}
    waits = asyncio.ensure_future(one.receive("a", messages_max=10, wait_s=600))
    await asyncio.sleep(0.01)
    one.close(NotOwner("public/t/0 is served by another broker now"))
    with pytest.raises(NotOwner):
        await waits
    assert in_use(one) == {}
