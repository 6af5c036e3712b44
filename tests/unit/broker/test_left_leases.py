"""Leases that an owner leaves to its successor at a planned end, and their records."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from octavo.broker.errors import SubscriptionBusy
from octavo.broker.state.cursor import Cursor
from octavo.broker.state.format import BadStateLedger, CursorState, State, encode
from octavo.broker.state.leases import (
    ASLEEP,
    OUT,
    LeftLeases,
    LeftMessages,
    bounded,
    left_ops,
    messages_told,
)
from octavo.broker.subscriptions.consumer_selection import ConsumerSelection
from octavo.broker.subscriptions.dead_letters import SpentMessages
from octavo.broker.subscriptions.dispatch import DispatchedBatch, Dispatcher
from octavo.broker.subscriptions.member_fence import MemberFence

LEASE = 100
END = 60


def dispatcher(type_: Any, cursor: Cursor, told: dict[int, int] | None = None) -> Dispatcher:
    return Dispatcher(
        cursor,
        ack_timeout_ms=LEASE,
        leased_max=1_000,
        delayed_max=1_000,
        turns=ConsumerSelection(type_, 50, 0),
        exclusive=type_ == "exclusive",
        in_order=type_ in ("exclusive", "failover"),
        attempts=told,
    )


def told(state: CursorState) -> CursorState:
    """Return the same after writing and reading."""
    assert state.left is not None
    there = State({"s": CursorState(7, Cursor(0))})
    there.apply(encode(left_ops("s", 7, state.left)))
    found = there.cursors["s"].left
    assert found == state.left
    return CursorState(7, state.cursor, left=found)


def left_by(one: Dispatcher, now: int) -> LeftLeases:
    left = LeftLeases(1, 1, 0)
    one.leave(left, now)
    found = told(CursorState(7, one.cursor, left=left)).left
    assert found is not None
    return found


def take(one: Dispatcher, name: str, now: int, most: int = 100) -> DispatchedBatch | None:
    one.enter(name, now)
    found = one.dispatch(name, now, END, most)
    if found is not None:
        one.reading(found)
        one.begin(found, now)
    return found


def ack(one: Dispatcher, *offsets: int) -> None:
    for offset in offsets:
        one.cursor.ack(offset, offset + 1)
    one.acked(offsets)


def handed(type_: Any, one: Dispatcher, now: int, told: dict[int, int] | None = None) -> Dispatcher:
    left = left_by(one, now)
    other = dispatcher(type_, one.cursor, told)
    other.resume(left, now)
    return other


@dataclass
class Model:
    """A model of a shared subscription without keys, under any owner."""

    acked: set[int] = field(default_factory=set)
    out: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset → lease, deadline
    asleep: dict[int, int] = field(default_factory=dict)
    tried: dict[int, int] = field(default_factory=dict)

    def expire(self, now: int) -> None:
        for offset in [one for one, (_, until) in self.out.items() if until <= now]:
            del self.out[offset]
            self.tried[offset] = self.tried.get(offset, 0) + 1


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("type_", ["shared", "failover", "exclusive"])
def test_all_goes_on_at_the_next_owner_as_if_it_was_the_same(type_: str, seed: int) -> None:
    rng = random.Random(f"{type_} {seed}")
    one, model, now = dispatcher(type_, Cursor(0)), Model(), 0
    for _ in range(120):
        now += rng.randint(0, 30)
        model.expire(now)
        what = rng.choice(("take", "take", "ack", "nack", "extend", "hand over"))
        held = sorted(model.out)
        name = rng.choice("ab") if type_ == "shared" else "a"
        if what == "hand over":
            one = handed(type_, one, now)
        elif what == "take":
            waiting = sorted(set(range(END)) - model.acked - set(model.out))
            found = take(one, name, now, rng.randint(1, 7))
            if found is not None:
                assert found.offsets == sorted(found.offsets), "readers of the log go forward"
                if type_ != "shared":
                    assert found.offsets == waiting[: len(found.offsets)], "none overtakes another"
            for offset in [] if found is None else found.offsets:
                assert found is not None
                assert offset not in model.out, "nobody has it"
                assert offset not in model.acked
                assert model.asleep.pop(offset, 0) <= now, "its delay is over"
                assert found.counts.get(offset, 1) == model.tried.get(offset, 0) + 1
                if type_ != "shared":
                    assert all(offset < other for other, at in model.asleep.items() if at > now)
                model.out[offset] = found.number, now + LEASE
            if found is None:
                free = set(range(END)) - model.acked - set(model.out)
                asleep = [other for other in free if model.asleep.get(other, 0) > now]
                first = END if type_ == "shared" else min(asleep, default=END)
                assert all(other in asleep or other > first for other in free)
        elif held:
            some = rng.sample(held, rng.randint(1, len(held)))
            numbers = {one_: model.out[one_][0] for one_ in some}
            assert all(one.holds(offset, numbers[offset]) for offset in some)
            if what == "extend":
                one.extend(some, now)
                model.out |= {offset: (numbers[offset], now + LEASE) for offset in some}
            for offset in some:
                if what == "ack":
                    ack(one, offset)
                    model.acked.add(offset)
                elif what == "nack":
                    delay = rng.choice((0, 40, 200))
                    one.nack(offset, now, delay)
                    model.asleep[offset] = now + delay
                    model.tried[offset] = model.tried.get(offset, 0) + 1
                if what != "extend":
                    del model.out[offset]
        one.expire(now)
        assert one.leased == len(model.out) == sum(c.leased for c in one.consumers.values())
        assert all(one.holds(offset, number) for offset, (number, _) in model.out.items())


def test_what_no_consumer_was_given_is_not_left_leased() -> None:
    """It was being read from the bookies when the owner ended: the successor delivers it."""
    one = dispatcher("shared", Cursor(0))
    one.enter("a", 0)
    found = one.dispatch("a", 0, END, 2)
    assert found is not None
    one.reading(found)
    one = handed("shared", one, 1)
    again = take(one, "b", 2, 2)
    assert again is not None
    assert (again.offsets, again.counts) == ([0, 1], {})


def test_an_exclusive_subscription_stays_with_who_holds_it() -> None:
    one = dispatcher("exclusive", Cursor(0))
    take(one, "a", 0, 1)
    one = handed("exclusive", one, 40)
    with pytest.raises(SubscriptionBusy):
        one.enter("b", 99)
    one.enter("b", 101)


def test_the_active_consumer_stays_the_one_until_it_holds_nothing() -> None:
    one = dispatcher("failover", Cursor(0))
    first = take(one, "b", 0, 3)
    assert first is not None
    one = handed("failover", one, 10)
    assert take(one, "a", 20) is None, "b holds the first ones"
    ack(one, *first.offsets)
    second = take(one, "a", 30, 1)
    assert second is not None
    assert second.offsets == [3]
    assert second.number > first.number, "no lease number comes twice"


def test_a_group_keeps_its_generation() -> None:
    hold = MemberFence()
    hold.enter("m", 5, 0, 100)
    left = hold.leave(40)
    assert left is not None
    other = MemberFence()
    other.resume(left, 1_000)
    with pytest.raises(SubscriptionBusy):
        other.enter("n", 5, 1_059, 100)
    assert other.enter("n", 5, 1_061, 100)
    assert MemberFence().leave(0) is None


def test_what_is_spent_is_so_at_the_next_owner() -> None:
    def made() -> Dispatcher:
        spent = SpentMessages(1, 10)
        return Dispatcher(
            cursor, ack_timeout_ms=LEASE, leased_max=10, delayed_max=10, spent=spent
        )  # fmt: skip

    cursor = Cursor(0)
    one = made()
    take(one, "a", 0, 2)
    one.nack(0, 0, 500)
    one.nack(1, 0, None)
    left = left_by(one, 10)
    other = made()
    other.resume(left, 10)
    assert other._spent.offsets() == [0, 1]
    assert (other._spent.due_ms(0), other._spent.due_ms(1)) == (500, None)
    third = take(other, "a", 20, 1)
    assert third is not None
    assert third.offsets == [2]


def test_leases_run_on_while_nobody_uses_the_subscription() -> None:
    one = dispatcher("shared", Cursor(0))
    take(one, "a", 0, 2)
    left = left_by(one, 10).later(60)
    other = dispatcher("shared", one.cursor)
    other.resume(left, 1_000)
    other.expire(1_029)
    assert other.leased == 2
    other.expire(1_030)
    assert other.leased == 0


def test_a_delay_runs_on_while_nobody_uses_the_subscription() -> None:
    left = LeftLeases(1, 1, 1, messages=[LeftMessages(ASLEEP, 100, 0, "", [0], [1], [])])
    other = dispatcher("shared", Cursor(0))
    other.resume(left.later(60), 1_000)
    found = [take(other, "a", now, 1) for now in (1_039, 1_040)]
    assert [one and one.offsets for one in found] == [[1], [0]]


@pytest.mark.parametrize("count", [10_000, 10_001, 25_000])
def test_a_long_table_is_told_in_parts_that_say_the_same(count: int) -> None:
    """When cut badly, counts and keys of the second operation were those of the first."""
    offsets = list(range(7, 7 + 2 * count, 2))
    attempts = [1 + number // 6_000 for number in range(count)]
    keys: list[int | None] = [number % 9_973 for number in range(count)]
    told = LeftMessages(OUT, 500, 3, "a", offsets, attempts, keys)
    ops = left_ops("s", 7, LeftLeases(1, 1, 3, messages=[told]))
    assert len(ops) == 1 + -(-count // 10_000)
    found = LeftLeases(1, 1, 3)
    for op in ops[1:]:
        messages_told(found, op)
    assert [one for part in found.messages for one in part.offsets] == offsets
    assert [one for part in found.messages for one in part.attempts] == attempts
    assert [one for part in found.messages for one in part.keys] == keys


def test_leases_count_for_the_next_opening_alone() -> None:
    """From another epoch: their owner was not the last one."""
    state = State({"s": CursorState(7, Cursor(0), left=LeftLeases(3, 1, 9))})
    state.keep_leases_of(4)
    assert state.cursors["s"].left is None
    state.cursors["s"].left = LeftLeases(3, 1, 9)
    state.keep_leases_of(3)
    assert state.cursors["s"].left == LeftLeases(3, 1, 9)


def test_they_are_of_one_subscription_and_no_namesake() -> None:
    one = dispatcher("shared", Cursor(0))
    take(one, "a", 0, 2)
    ops = left_ops("s", 7, left_by(one, 10))
    state = State({"s": CursorState(8, Cursor(0))})
    state.apply(encode(ops))
    assert state.cursors["s"].left is None
    state = State({"s": CursorState(7, Cursor(0))})
    state.apply(encode([*ops, ["c", "s", 7, 1]]))
    assert state.cursors["s"].left is None, "a seek ends them"


def test_a_table_that_is_too_long_is_left_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.broker.state.leases.LEASES_BYTES_MAX", 40)
    long, short = [[22, "long" * 20]], [[22, "s"], [23, "s"]]
    assert bounded([long, short]) == short


@pytest.mark.parametrize(
    "op",
    [
        [22, "s", 7, 1],
        [22, "s", 7, 1, 1, -1, "", None, None, [], [], None],
        [22, "s", 7, 1, 1, 1, b"", None, None, [], [], None],
        [22, "s", 7, 1, 1, 1, "", None, None, [["a", 0, 0]], [], None],
        [23, "s", 4, 0, 0, "", [0, 1], [], []],
        [23, "s", 0, 0, 0, "", [0, 2**40], [], []],
        [23, "s", 0, 0, 0, "", [0, 2], [1, 3], []],
        [23, "s", 0, 0, 0, "", [0, 2], [], [1]],
        [23, "s", 0, "0", 0, "", [0, 2], [], []],
    ],
)
def test_what_cannot_be_is_refused(op: list[Any]) -> None:
    state = State({"s": CursorState(7, Cursor(0), left=LeftLeases(1, 1, 1))})
    with pytest.raises(BadStateLedger):
        state.apply(encode([op]))
