"""Failover subscriptions: one consumer at a time, in any order of calls, leases and silence."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.broker.partition import compactor as module
from octavo.broker.partition.compactor import Pace
from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.consumer_selection import ConsumerSelection
from octavo.broker.subscriptions.dispatch import Dispatcher
from octavo.broker.subscriptions.waits import CONSUMERS_TOLD_MAX, Leased, Waits, told_of
from tests.support.kit.examples import examples

LEASE = 100
GONE = 30


@dataclass
class Held:
    consumer: str
    number: int
    until: int


@dataclass
class Model:
    held: dict[int, Held] = field(default_factory=dict)
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)  # priority, when


class Failover(RuleBasedStateMachine):
    """All leased messages are at one consumer, and the next consumer gets its turn in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor(0)
        self.dispatcher = Dispatcher(
            self.cursor,
            ack_timeout_ms=LEASE,
            leased_max=50,
            delayed_max=50,
            turns=ConsumerSelection("failover", GONE, 0),
        )
        self.model = Model()
        self.now = 0
        self.end = 0

    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        self.end += count

    @rule(ms=st.integers(1, 50))
    def pass_time(self, ms: int) -> None:
        self.now += ms

    def expire(self) -> None:
        held = self.model.held
        for offset in [o for o, one in held.items() if one.until <= self.now]:
            del held[offset]

    @rule(name=st.sampled_from("abc"), priority=st.integers(0, 1), most=st.integers(1, 4))
    def receive(self, name: str, priority: int, most: int) -> None:
        self.expire()
        model, dispatcher = self.model, self.dispatcher
        dispatcher.enter(name, self.now, priority)
        model.seen[name] = (priority, self.now)
        found = dispatcher.dispatch(name, self.now, self.end, most)
        there = [
            one
            for one, (_, seen) in model.seen.items()
            if seen > self.now - GONE or one in {held.consumer for held in model.held.values()}
        ]
        first = min(there, key=lambda one: (model.seen[one][0], one))
        others = {held.consumer for held in model.held.values()} - {name}
        if found is not None:
            assert name == first, f"{first} is the one"
            assert not others, "nobody else holds anything"
            for offset in found.offsets:
                assert offset not in model.held
                model.held[offset] = Held(name, found.number, self.now + LEASE)
        elif name == first and not others and len(model.held) < 50:
            free = [o for o in range(self.end) if not self.cursor.is_acked(o)]
            assert all(o in model.held for o in free), "it was its turn"
        else:
            left = self.cursor.next_unacked(0) < self.end
            why = dispatcher.held_back(self.end, name)
            assert why is not None or not left or len(model.held) == self.cursor.backlog(self.end)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self.dispatcher.expire(self.now)
        offset = data.draw(st.sampled_from(sorted(self.model.held)))
        held = self.model.held[offset]
        assert self.dispatcher.holds(offset, held.number) == (held.until > self.now)
        if held.until <= self.now:
            return
        if data.draw(st.booleans()):
            self.cursor.ack(offset, offset + 1)
            self.dispatcher.acked([offset])
        else:
            self.dispatcher.nack(offset, self.now, 0)
        del self.model.held[offset]

    @invariant()
    def one_at_a_time(self) -> None:
        assert len({one.consumer for one in self.model.held.values()}) <= 1


TestFailover = Failover.TestCase
TestFailover.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


class Clock:
    """The clock of an otherwise idle loop: it moves by work and by sleeping."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s = 0.0
        self.turns = 0

    def time(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.turns += 1
        self.slept_s += max(0.0, seconds)
        self.now_s += max(0.0, seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module.asyncio, "sleep", found.sleep)  # type: ignore[attr-defined]
    return found


def pace_of(clock: Clock, bytes_per_s: float, share: float) -> Pace:
    return Pace(cast(asyncio.AbstractEventLoop, cast(Any, clock)), bytes_per_s, share)


async def work(clock: Clock, pace: Pace, steps: int, step_s: float, read: int = 0) -> None:
    for _ in range(steps):
        clock.now_s += step_s
        await pace.step(read)


async def test_it_reads_no_faster_than_it_is_told_and_faster_when_it_is_urgent(
    clock: Clock,
) -> None:
    pace = pace_of(clock, 1_000, 1.0)
    await work(clock, pace, 100, 0.001, read=100)
    assert clock.now_s - 100 == pytest.approx(10, rel=0.02)
    pace.urgency = 10.0
    began_s = clock.now_s
    await work(clock, pace, 100, 0.001, read=100)
    assert clock.now_s - began_s == pytest.approx(1, rel=0.1)


async def test_it_works_for_its_share_at_most(clock: Clock) -> None:
    pace = pace_of(clock, 1e12, 0.25)
    await work(clock, pace, 1_000, 0.0001)
    assert clock.slept_s == pytest.approx(0.3, rel=0.02)
    assert clock.turns == pytest.approx(100, abs=5), "a turn every millisecond"


async def test_a_late_turn_is_made_up_for_and_a_long_wait_is_not(clock: Clock) -> None:
    pace = pace_of(clock, 1e12, 0.25)
    clock.now_s += 10.0  # for a read
    pace.resume()
    await work(clock, pace, 1_000, 0.0001)
    assert clock.slept_s == pytest.approx(0.3 - module._LATE_S_MAX, rel=0.02)


async def test_others_get_their_turn_where_the_clock_stands(clock: Clock) -> None:
    pace = pace_of(clock, 1e12, 0.25)
    await work(clock, pace, 3 * module._TURN_STEPS, 0)
    assert clock.turns == 3


AHEAD_MS = 1_700_000_000_000


def test_nothing_that_waits_is_told_as_nothing() -> None:
    assert told_of(Waits(), 0, 5_000, AHEAD_MS) == []


def test_each_reason_has_its_count_and_its_time() -> None:
    waits = Waits(
        (Leased("quiet", 5, 3, 9, 8_000, 1_000), Leased("b", 1, 12, 12, 6_000, 5_000)),
        2,
        (7_500, 20),
        3,
        AHEAD_MS + 65_000,
        4,
    )
    quiet, b, back, later, moving, refused = told_of(waits, 1, 5_000, AHEAD_MS)
    assert "5 messages are leased to consumer 'quiet' (offsets 3 to 9)" in quiet
    assert "last call was 4.0 s ago: the first of its leases ends in 3.0 s, at 2023-" in quiet
    assert "1 message is leased to consumer 'b' (offset 12)" in b
    assert "its lease ends in 1.0 s" in b
    assert "2 messages are to be delivered again after a delay: offset 20 first, in 2.5 s" in back
    assert "3 messages are not due yet: the first is due in 60.0 s" in later
    assert "4 messages are on the way to the dead-letter or the retry topic" in moving
    assert "the filter does not pass 1 message:" in refused


def test_what_is_due_and_what_no_calendar_has() -> None:
    (due,) = told_of(Waits(not_due=1, not_due_first_ms=AHEAD_MS), 0, 5_000, AHEAD_MS)
    assert "the first is due and waits for a consumer" in due
    (far,) = told_of(Waits(not_due=1, not_due_first_ms=1 << 60), 0, 5_000, AHEAD_MS)
    assert ", at " not in far


def test_consumers_are_bounded() -> None:
    many = tuple(Leased(f"c{n:03}", n + 1, 0, n, 9_000, 0) for n in range(100))
    told = told_of(Waits(many), 0, 5_000, 0)
    assert len(told) == CONSUMERS_TOLD_MAX + 1
    assert "'c099'" in told[0]
    assert told[-1] == "3,240 messages are leased to 80 more consumers"
