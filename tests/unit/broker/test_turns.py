"""Failover subscriptions: one consumer at a time, in any order of calls, leases and silence."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.consumer_selection import ConsumerSelection
from octavo.broker.subscriptions.dispatch import Dispatcher
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
