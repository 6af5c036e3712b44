"""Key-shared subscriptions: the order of each key, and that no key waits for another."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import CUMULATIVE_ACK_NOT_ALLOWED, StaleLease, SubscriptionNotFound
from octavo.broker.log.open_batches import OpenBatches, ReadableBatch
from octavo.broker.state.cursor import Cursor, unpack_ranges
from octavo.broker.state.format import CursorState, Op, State, encode
from octavo.broker.state.leases import LeftLeases, left_ops
from octavo.broker.subscriptions.consumer_selection import ConsumerSelection
from octavo.broker.subscriptions.dispatch import DispatchedBatch, Dispatcher
from octavo.broker.subscriptions.key_shared import SLOTS, KeyOrder, Slots, hash_of, slot_of
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.subscriptions.subscriptions import SubscriptionSet
from octavo.broker.types import (
    Delivery,
    Nack,
    PartitionName,
    StoredBatch,
    SubscriptionInfo,
    SubscriptionSettings,
)
from octavo.protocol.batch import read_header, with_base_offset
from octavo.protocol.records import Record, build_batch
from tests.support.cluster import until
from tests.support.kit.examples import examples
from tests.support.kit.refusals import raises_code

LEASE = 100
GONE = 50
"""How long after its last call a consumer still has its share of the keys."""


class Topic:
    """Messages by their key, and a key-shared subscription to them."""

    def __init__(self, ahead: int = 1000, keys: list[str | None] | None = None) -> None:
        self.messages = keys or []
        self.late: dict[int, int] = {}
        """Messages that are not due before then."""
        self.cursor = Cursor(0)
        self.order = KeyOrder(self.cursor, ahead)
        self.looked = 0
        self.dispatcher = Dispatcher(
            self.cursor,
            ack_timeout_ms=LEASE,
            leased_max=10_000,
            delayed_max=10_000,
            turns=ConsumerSelection("key_shared", GONE, 0),
            keys=self.order,
        )

    def take(self, name: str, now: int, most: int = 100) -> list[int]:
        found = self.receive(name, now, most)
        return [] if found is None else found.offsets

    def receive(self, name: str, now: int, most: int = 100) -> DispatchedBatch | None:
        """Receive as the driver does."""
        end = len(self.messages)
        self.dispatcher.enter(name, now)
        while True:
            found = self.dispatcher.dispatch(name, now, end, most)
            if found is not None:
                self.dispatcher.reading(found)
                early = {
                    one: self.late[one] for one in found.offsets if self.late.get(one, 0) > now
                }
                found = self.dispatcher.withhold(found, early) if early else found
                self.dispatcher.begin(found, now)
                if found.offsets:
                    return found
                continue
            look = self.order.wanted(name, end)
            if look is None or not self.dispatcher.is_open_to(name):
                return None
            self.looked += look.stop - look.start
            known = [
                (offset, None if key is None else hash_of(key.encode()))
                for offset, key in enumerate(self.messages[look.start : look.stop], look.start)
            ]
            assert self.order.learn(look, known, look.stop)

    def handed_over(self, now: int, ahead: int = 1000) -> Topic:
        """Return the subscription at a new owner, which got the leases and has looked at
        nothing."""
        other = Topic(ahead, self.messages)
        left = LeftLeases(1, 1, 0)
        self.dispatcher.leave(left, now)
        state = State({"s": CursorState(7, Cursor(0))})
        state.apply(encode(left_ops("s", 7, left)))
        told = state.cursors["s"].left
        assert told is not None
        other.cursor.reset(self.cursor.committed_offset)
        for start, end in self.cursor.ranges():
            other.cursor.ack(start, end)
        other.order.reset()
        other.dispatcher.reset()
        other.dispatcher.resume(told, now)
        return other

    def ack(self, *offsets: int) -> None:
        for offset in offsets:
            self.cursor.ack(offset, offset + 1)
        self.dispatcher.acked(offsets)


def owned_by(name: str, *names: str, count: int = 1) -> list[str]:
    """Return which of these keys belong to the consumer."""
    slots = Slots(names)
    keys = (f"k{number}" for number in range(100_000))
    mine = (key for key in keys if slots.owner(slot_of(hash_of(key.encode()))) == name)
    return [next(mine) for _ in range(count)]


def test_slots_are_shared_about_evenly_and_whole() -> None:
    names = [f"consumer-{number}" for number in range(8)]
    slots = Slots(names)
    ranges = slots.ranges()
    every = sorted(one for mine in ranges.values() for one in mine)
    assert every[0][0] == 0
    assert every[-1][1] == SLOTS - 1
    assert all(before[1] + 1 == after[0] for before, after in pairwise(every))
    shares = [sum(last - first + 1 for first, last in mine) for mine in ranges.values()]
    assert min(shares) > SLOTS / 8 / 2
    assert max(shares) < SLOTS / 8 * 2
    for name, mine in ranges.items():
        assert all(slots.owner(first) == slots.owner(last) == name for first, last in mine)


def test_one_consumer_more_takes_slots_and_moves_no_others() -> None:
    before, after = Slots(["a", "b", "c"]), Slots(["a", "b", "c", "d"])
    for slot in range(0, SLOTS, 7):
        assert after.owner(slot) in (before.owner(slot), "d")
    assert Slots().owner(5) is None
    assert Slots().ranges() == {}


def test_each_key_goes_to_one_consumer_and_messages_without_one_to_anybody() -> None:
    mine, other = owned_by("a", "a", "b")[0], owned_by("b", "a", "b")[0]
    topic = Topic(keys=[mine, other, None, mine, other, None])
    topic.dispatcher.enter("b", 0)
    assert topic.take("b", 0, 1) == [0], "the only one that is there gets whatever comes first"
    assert topic.take("a", 0) == [2, 5], "its own key drains"
    topic.ack(0)
    assert topic.take("a", 0) == [3]
    assert topic.take("b", 0) == [1, 4]


def test_a_slow_consumer_keeps_its_keys_and_no_others() -> None:
    slow, fast = owned_by("slow", "slow", "fast")[0], owned_by("fast", "slow", "fast")[0]
    topic = Topic(ahead=64, keys=[slow, fast] * 5_000)
    topic.take("fast", 0, 1)
    topic.dispatcher.enter("slow", 0)
    topic.ack(0)
    assert topic.take("slow", 0, 1) == [2]
    got: list[int] = []
    while taken := topic.take("fast", 10, 100):
        got += taken
        topic.ack(*taken)
    assert got == list(range(1, 10_000, 2)), "all, however long the other waits"
    assert topic.order._waiting <= 64 + 1
    # The slow consumer continues, in order, and the repeated looks are bounded.
    topic.looked = 0
    topic.ack(2)
    rest: list[int] = []
    while taken := topic.take("slow", 20, 100):
        rest += taken
        topic.ack(*taken)
    assert rest == list(range(4, 10_000, 2))
    assert topic.looked < 5 * 10_000
    assert topic.cursor.backlog(10_000) == 0


def test_a_message_that_comes_back_takes_the_later_ones_of_its_key_along() -> None:
    topic = Topic(keys=["k", "k", "k", "other"])
    first = topic.receive("a", 0)
    assert first is not None
    assert first.offsets == [0, 1, 2, 3]
    topic.dispatcher.nack(1, 0, 30)
    assert [topic.dispatcher.holds(one, first.number) for one in range(4)] == [
        True, False, False, True,
    ]  # fmt: skip
    topic.ack(0)
    assert topic.take("a", 29) == [], "what is behind a delayed one waits with it"
    again = topic.receive("a", 30)
    assert again is not None
    assert (again.offsets, again.counts) == ([1, 2], {1: 2}), "the third was not given back"


def test_one_without_a_key_that_sleeps_comes_once() -> None:
    """No consumer asked while it waited."""
    topic = Topic(keys=[None, None])
    assert topic.take("a", 0, 1) == [0]
    topic.dispatcher.nack(0, 0, 30)
    assert topic.order.ready == 0
    assert topic.take("a", 30, 1) == [0]
    assert topic.take("a", 30) == [1]
    assert not topic.order.is_left(2)


def test_a_message_that_is_due_joins_its_key() -> None:
    """It went to any consumer: the key was at two, and a third message went before it."""
    mine = owned_by("a", "a", "b")[0]
    topic = Topic(keys=[mine, mine, mine, None])
    topic.late = {0: 20, 3: 20}
    topic.dispatcher.enter("b", 0)
    assert topic.take("a", 0, 2) == [1]
    assert topic.take("b", 10) == []
    assert topic.take("b", 20) == [3], "without a key it is anybody's"
    assert topic.take("a", 20) == [], "the second is out"
    topic.ack(1, 3)
    assert topic.take("b", 21) == [], "the key is not its own"
    assert topic.take("a", 21, 1) == [0]
    assert topic.take("a", 22) == [], "the third waits for it"
    topic.dispatcher.nack(0, 22, 30)
    assert topic.take("a", 40) == [], "and for its delay"
    assert topic.take("b", 40) == []
    assert topic.take("a", 52) == [0, 2]
    assert topic.take("b", 90) == []
    assert topic.take("a", 151) == []
    assert topic.take("a", 152) == [0, 2], "its lease is over: it comes again in its place"


def test_what_is_due_of_many_keys_is_looked_up_once_and_bounded() -> None:
    keys: list[str | None] = [f"k{number}" for number in range(3_000)]
    topic = Topic(keys=keys)
    topic.late = dict.fromkeys(range(3_000), 20)
    assert topic.take("a", 0) == []
    topic.looked = 0
    got: list[int] = []
    for _ in range(40):
        taken = topic.take("a", 20)
        got += taken
        topic.ack(*taken)
    assert got == list(range(3_000))
    assert topic.looked <= 3_000
    assert not topic.order.is_left(3_000)


def test_one_that_finds_no_room_comes_a_moment_later() -> None:
    topic = Topic(ahead=1, keys=["p", "q", "r"])
    topic.late = {1: 20, 2: 20}
    assert topic.take("a", 0) == [0]
    assert topic.take("a", 10) == [], "of so many keys that are out no other is looked up"
    topic.ack(0)
    got: list[int] = []
    for now in range(20, 5_000, 20):
        taken = topic.take("a", now)
        got += taken
        topic.ack(*taken)
    assert sorted(got) == [1, 2]


def test_a_key_drains_to_its_new_consumer() -> None:
    mine, other = owned_by("b", "a", "b")[0], owned_by("a", "a", "b")[0]
    topic = Topic(keys=[mine, mine, other, mine, other])
    assert topic.take("a", 0, 2) == [0, 1]
    assert topic.take("b", 0) == []
    assert topic.take("a", 0) == [2, 4], "nobody gets more of what is out"
    topic.ack(1)
    assert topic.take("b", 0) == []
    topic.ack(0)
    assert topic.take("b", 0) == [3]


def test_a_consumer_that_takes_nothing_any_more_gives_its_keys_up() -> None:
    mine = owned_by("b", "a", "b", count=2)
    topic = Topic(keys=[mine[0], mine[1], mine[0]])
    topic.dispatcher.enter("a", 0)
    assert topic.take("b", 0, 1) == [0]
    assert topic.take("a", GONE - 1) == []
    assert topic.dispatcher.turns is not None
    assert topic.dispatcher.turns.changes_ms == GONE
    assert topic.take("a", GONE) == [1], "what b does not hold"
    assert topic.take("a", LEASE) == [0, 2], "its lease is over"


def test_a_key_that_waits_names_the_message_and_the_consumer() -> None:
    topic = Topic(keys=["k", "k"])
    assert topic.take("a", 0, 1) == [0]
    assert topic.take("b", 10) == []
    why = topic.dispatcher.held_back(2, "b")
    assert why is not None
    assert "offset 0, at consumer 'a', whose lease ends in 90 ms" in why


def test_a_silent_consumer_holds_up_other_keys_for_its_timeout_alone() -> None:
    """For a subscription without a timeout: two seconds, as docs/http.md says."""
    timeout_ms = SubscriptionSettings(type="key_shared").consumer_timeout_ms
    assert timeout_ms == 2_000
    held, free = owned_by("silent", "silent", "b", count=2)
    topic = Topic(keys=[held, free])
    topic.dispatcher.turns = ConsumerSelection("key_shared", timeout_ms, 0)
    topic.dispatcher.enter("b", 0)
    assert topic.take("silent", 0, 1) == [0]
    topic.dispatcher.extend([0], 5_000)
    waited = next(ms for ms in range(0, 5_000, 10) if topic.take("b", ms))
    assert waited == timeout_ms, "the key of which it holds nothing"


def test_a_seek_begins_anew() -> None:
    topic = Topic(keys=["k", "k", "k"])
    assert topic.take("a", 0, 2) == [0, 1]
    look = topic.order.wanted("a", 3)
    topic.messages.append("k")
    look = topic.order.wanted("a", 4)
    assert look is not None
    topic.cursor.reset(1)
    topic.dispatcher.reset()
    assert not topic.order.learn(look, [(3, hash_of(b"k"))], 4), "it was before the seek"
    assert topic.take("a", 0) == [1, 2, 3]


def test_the_next_owner_keeps_each_key_where_it_is() -> None:
    topic = Topic(keys=["k", "k", "k", "other", None])
    first = topic.receive("a", 0, 2)
    assert first is not None
    assert first.offsets == [0, 1]
    topic = topic.handed_over(10)
    assert topic.take("b", 11) == [3, 4], "the third of the key waits for the two that are out"
    assert [topic.dispatcher.holds(one, first.number) for one in range(3)] == [True, True, False]
    topic.ack(0, 1)
    assert topic.take("a", 12) == [2]


def test_what_sleeps_at_one_owner_sleeps_on_at_the_next_in_its_place() -> None:
    topic = Topic(keys=["k", "k", "k", "k"])
    assert topic.take("a", 0, 3) == [0, 1, 2]
    topic.dispatcher.nack(2, 0, 50)
    topic.dispatcher.nack(0, 0, None)
    topic = topic.handed_over(10)
    assert topic.take("a", 59, 1) == [0], "it came back at once, and was not looked at here before"
    topic.ack(0)
    assert topic.take("a", 59) == [1, 2, 3], "the delay of the third was over at 50"


def test_what_woke_at_the_next_owner_does_not_overtake_what_was_not_looked_at() -> None:
    """The second of the key is further than one look from the first."""
    topic = Topic(keys=["k", *[None] * 1199, "k", *[None] * 299, "k"])
    while (look := topic.order.wanted("", 1_501)) is not None:
        known = [(one, hash_of(b"k") if one in (0, 1_200, 1_500) else None)
                 for one in range(look.start, look.stop)]  # fmt: skip
        topic.order.learn(look, known, look.stop)
    assert topic.take("a", 0, 2_000) == list(range(1_501))
    topic.ack(*range(1, 1_200), *range(1_201, 1_500))
    topic.dispatcher.nack(1_500, 0, 5)
    topic.dispatcher.nack(1_200, 0, None)
    topic.dispatcher.nack(0, 0, None)
    topic = topic.handed_over(2)
    assert topic.take("a", 20) == [0]
    topic.ack(0)
    assert topic.take("a", 20) == [1_200, 1_500]


def test_more_keys_than_are_looked_ahead_for_come_back_at_the_next_owner() -> None:
    """All leased messages come back, and no new ones may be looked at, so it would wait for
    ever."""
    keys: list[str | None] = [f"k{number}" for number in range(8)]
    topic = Topic(keys=keys * 2)
    assert topic.take("a", 0) == list(range(16))
    topic = topic.handed_over(10, ahead=4)
    assert topic.take("a", LEASE + 1) == list(range(16))


@dataclass
class Held:
    consumer: str
    number: int
    deadline: int


@dataclass
class Model:
    acked: set[int] = field(default_factory=set)
    held: dict[int, Held] = field(default_factory=dict)
    hidden: dict[int, int] = field(default_factory=dict)  # nacked until
    seen: dict[str, int] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)  # not due before, and not given yet


class KeyShared(RuleBasedStateMachine):
    """Consumers that come, stop, ack, give back and lose their leases, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.topic = Topic(ahead=8)
        self.model = Model()
        self.now = 0

    def of_key(self, offset: int) -> list[int]:
        """Return the unacked messages of the same key, in order."""
        key = self.topic.messages[offset]
        return [
            one
            for one, other in enumerate(self.topic.messages)
            if other == key and one not in self.model.acked
        ]

    def expire(self) -> None:
        """End a lease: later messages of the key come back too."""
        for offset in [o for o, held in self.model.held.items() if held.deadline <= self.now]:
            self.lost(offset)

    def lost(self, offset: int) -> None:
        keyed = self.topic.messages[offset] is not None
        for one in self.of_key(offset) if keyed else [offset]:
            if one >= offset:
                self.model.held.pop(one, None)

    @precondition(lambda self: len(self.topic.messages) < 120)  # each check looks at all of them
    @rule(keys=st.lists(st.sampled_from(["p", "q", "r", "s", "t", None]), min_size=1, max_size=20))
    def publish(self, keys: list[str | None]) -> None:
        self.topic.messages += keys

    @precondition(lambda self: len(self.topic.messages) < 120)
    @rule(key=st.sampled_from(["p", "q", None]), ms=st.integers(1, 80))
    def publish_for_later(self, key: str | None, ms: int) -> None:
        self.model.late[len(self.topic.messages)] = self.now + ms
        self.topic.late[len(self.topic.messages)] = self.now + ms
        self.topic.messages.append(key)

    @rule(ms=st.integers(1, 60))
    def pass_time(self, ms: int) -> None:
        self.now += ms
        self.expire()

    @rule(most=st.integers(1, 6), name=st.sampled_from("abc"))
    def receive(self, most: int, name: str) -> None:
        model, topic = self.model, self.topic
        found = topic.receive(name, self.now, most)
        model.seen[name] = self.now
        offsets = found.offsets if found is not None else []
        assert offsets == sorted(set(offsets))
        assert len(offsets) <= most
        for offset in offsets:
            assert found is not None
            assert offset not in model.held, "nobody has it"
            assert offset not in model.acked
            assert model.hidden.get(offset, 0) <= self.now, "its delay is over"
            assert model.late.get(offset, 0) <= self.now, "it is due"
            if topic.messages[offset] is not None:
                for one in self.of_key(offset):
                    holder = model.held.get(one)
                    assert holder is None or holder.number == found.number, "no more of it is out"
                    if one < offset and one not in model.late:
                        assert holder is not None, "in order"
            model.held[offset] = Held(name, found.number, self.now + LEASE)
            model.hidden.pop(offset, None)
            model.late.pop(offset, None)
        if not offsets:
            self.nothing_else_was_free(name)

    def nothing_else_was_free(self, name: str) -> None:
        """Check that each remaining message waits for another of its key, or belongs to another
        consumer."""
        topic, model = self.topic, self.model
        able = [one for one, seen in model.seen.items() if seen > self.now - GONE]
        slots = Slots(able)
        for offset, key in enumerate(topic.messages):
            if offset in model.acked or offset in model.held or offset in model.late:
                continue
            if model.hidden.get(offset, 0) > self.now:
                continue
            assert key is not None, f"{offset} is anybody's"
            before = [one for one in self.of_key(offset) if one < offset]
            waits = [one for one in before if one not in model.held]
            out = [one for one in self.of_key(offset) if one in model.held]
            owner = slots.owner(slot_of(hash_of(key.encode())))
            behind = any(model.hidden.get(one, 0) > self.now for one in waits)
            assert behind or out or owner != name, f"{offset} of {key} was {name}'s"

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        model, dispatcher = self.model, self.topic.dispatcher
        offset = data.draw(st.sampled_from(sorted(model.held)))
        held = model.held[offset]
        assert dispatcher.holds(offset, held.number)
        what = data.draw(st.sampled_from(["ack", "nack", "extend"]))
        if what == "ack":
            self.topic.ack(offset)
            model.acked.add(offset)
            del model.held[offset]
        elif what == "nack":
            delay = data.draw(st.integers(0, 80))
            assert dispatcher.nack(offset, self.now, delay)
            model.hidden[offset] = self.now + delay
            self.lost(offset)
        else:
            dispatcher.extend([offset], self.now)
            held.deadline = self.now + LEASE

    @rule(name=st.sampled_from("abc"))
    def revoke(self, name: str) -> None:
        others = [offset for offset, held in self.model.held.items() if held.consumer != name]
        assert self.topic.dispatcher.revoke(name) == bool(others)
        for offset in others:
            del self.model.held[offset]

    @rule()
    def hand_over(self) -> None:
        """Move to the next owner, which knows only the consumers that hold messages."""
        late = self.topic.late
        self.topic = self.topic.handed_over(self.now, ahead=8)
        self.topic.late = late
        holders = {held.consumer for held in self.model.held.values()}
        self.model.seen = {one: at for one, at in self.model.seen.items() if one in holders}

    @rule(back=st.integers(0, 10))
    def seek(self, back: int) -> None:
        to = max(0, len(self.topic.messages) - back)
        self.topic.cursor.reset(to)
        self.topic.dispatcher.reset()
        self.model.acked = set(range(to))
        self.model.held.clear()
        self.model.hidden.clear()
        self.model.late = {
            one: due for one, due in self.topic.late.items() if one >= to and due > self.now
        }

    @invariant()
    def leases_are_counted(self) -> None:
        dispatcher = self.topic.dispatcher
        dispatcher.expire(self.now)
        assert dispatcher.leased == len(self.model.held)
        for offset, held in self.model.held.items():
            assert dispatcher.holds(offset, held.number)
        assert sum(c.leased for c in dispatcher.consumers.values()) == dispatcher.leased
        assert self.topic.order._waiting <= 2 * 8 + len(self.topic.messages) // 2 + 20


TestKeyShared = KeyShared.TestCase
TestKeyShared.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(("has_due", "looks"), [(True, True), (False, False)])
async def test_keys_of_due_messages_are_looked_up_before_delays_catch_up(
    *, has_due: bool, looks: bool
) -> None:
    """A due message joins its key by a look. Delays with much to move would put it off."""
    looked = []

    def wanted(consumer: str, _: int) -> None:
        looked.append(consumer)

    delays = SimpleNamespace(is_behind=True, is_full=True)
    subscription: Any = SimpleNamespace(
        _keys=SimpleNamespace(has_due=has_due),
        _dispatcher=SimpleNamespace(delays=delays, is_open_to=lambda _: True),
        _keys_ahead=SimpleNamespace(wanted=wanted),
        _log=SimpleNamespace(next_offset=9),
    )
    goes_on = await Subscription._look_ahead(subscription, "c")
    assert (looked == ["c"]) == looks
    assert goes_on == (not looks), "there is nothing to look at, or the delays have a turn"


# Each consumer that joined a key-shared subscription of a thousand stopped its broker for 0.3 s.
# All slots and 10,000 keys were distributed again for each join or leave: 250 workers that started
# together took the loop for 19 s. Calls that each named another consumer found it. The bounds are
# far from the real cost; the test checks that the result is the same.


def test_a_change_comes_to_the_same_as_all_anew() -> None:
    rng = random.Random(1)
    names = [f"c{number}" for number in range(60)]
    slots = Slots()
    for _ in range(200):
        there = rng.sample(names, rng.randrange(len(names)))
        slots = Slots(there, slots)
        anew = Slots(there)
        assert slots.names == anew.names
        assert slots.ranges() == anew.ranges()
        for slot in rng.sample(range(65_536), 20):
            assert slots.owner(slot) == anew.owner(slot)


def test_each_gets_the_keys_of_its_slots_however_they_change() -> None:
    rng = random.Random(2)
    names = [f"c{number}" for number in range(20)]
    cursor, count = Cursor(), 300
    keys = KeyOrder(cursor, 10 * count)
    keys.belong_to(names[:1])
    hashes = [hash_of(b"%d" % (offset % 90)) for offset in range(count)]
    look = keys.wanted(names[0], count)
    assert look is not None
    keys.learn(look, enumerate(hashes), count)
    given: list[int] = []
    for _ in range(400):
        there = rng.sample(names, rng.randrange(1, len(names)))
        keys.belong_to(there)
        held = sum(map(len, keys._offers.values()))
        assert held <= 3 * 90, "what is over is let go"
        who = rng.choice(there)
        taken = keys.take(who, 2)
        for offset in taken:
            assert Slots(there).owner(slot_of(hashes[offset])) == who
            cursor.ack(offset, offset + 1)
        for offset in taken:
            keys.acked(offset)
        given += taken
    keys.belong_to(["last"])
    while taken := keys.take("last", 50):
        for offset in taken:
            cursor.ack(offset, offset + 1)
            keys.acked(offset)
        given += taken
    assert sorted(given) == [*range(count)]
    for one in set(hashes):
        of_key = [offset for offset in given if hashes[offset] == one]
        assert of_key == sorted(of_key)


def test_one_that_comes_moves_few() -> None:
    names = [f"c{number}" for number in range(300)]
    before = Slots(names)
    after = Slots([*names, "new"], before)
    moved = sum(before.owner(slot) != after.owner(slot) for slot in range(65_536))
    assert 0 < moved < 65_536 // 100


def test_nothing_is_left_of_what_is_acked() -> None:
    """A message without a key that was given back with a delay and then expired stayed in memory,
    because a key-shared subscription never woke it: with a time to live shorter than the delay, it
    was kept until a seek or a take-over. Found by reading."""
    cursor = Cursor()
    keys = KeyOrder(cursor, 100)
    keys.belong_to(["c"])
    look = keys.wanted("c", 3)
    assert look is not None
    keys.learn(look, [(0, None), (1, None), (2, 7)], 3)
    assert keys.take("c", 3) == [0, 1, 2]
    for offset in (2, 1, 0):
        keys.back(offset, asleep=True)
    cursor.ack(0, 3)
    keys.passed()
    assert (keys._known, keys._returned, keys._asleep_free, keys._asleep) == ({}, {}, {}, {})
    assert not keys.is_left(3)


GONE_MS = 60


class Log:
    """A partition of single messages, in memory."""

    name = PartitionName("public", "t", 0)
    lease_epoch = 1
    earliest_offset = kept_from = 0
    hidden = ()

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.written: list[Op] = []

    @property
    def next_offset(self) -> int:
        return len(self.records)

    async def read(self, offset: int, *, bytes_max: int, count_max: int) -> list[StoredBatch]:
        data = build_batch(self.records[offset : offset + min(count_max, 50)])
        data = with_base_offset(data, offset)
        return [StoredBatch(offset, 1, offset, read_header(data), bytes(data))]

    async def large_body(self, offset: int) -> None:
        return None

    def readable(self, batch: StoredBatch) -> AbstractAsyncContextManager[ReadableBatch]:
        return OpenBatches(0).readable(batch)

    async def persist(self, op: Op) -> None:
        self.written.append(op)

    def wall_ms(self) -> int:
        return 0


def keyed(*keys: str | None) -> list[Record]:
    return [Record(None if key is None else key.encode(), b"v") for key in keys]


def made(log: Log, type_: Any, **settings: Any) -> Subscription:
    settings.setdefault("consumer_timeout_ms", GONE_MS)
    info = SubscriptionInfo("s", SubscriptionSettings(type=type_, **settings), 1)
    return Subscription(log, info, Cursor(0), BrokerConfig())


async def offsets(subscription: Subscription, name: str, **asked: Any) -> list[int]:
    asked.setdefault("messages_max", 100)
    return [one.offset for one in await subscription.receive(name, **asked)]


def ids(deliveries: list[Delivery], *wanted: int) -> list[str]:
    return [one.ack_id for one in deliveries if one.offset in wanted]


async def test_the_keys_are_shared_by_those_who_wait() -> None:
    a, b = owned_by("a", "a", "b")[0], owned_by("b", "a", "b")[0]
    log = Log([])
    subscription = made(log, "key_shared")
    waiting = [
        asyncio.ensure_future(offsets(subscription, name, wait_s=5, messages_max=2))
        for name in "ab"
    ]
    await asyncio.sleep(0.01)
    log.records += keyed(a, b, b, a, b)
    subscription.wake()
    assert [await one for one in waiting] == [[0, 3], [1, 2]]
    stats = {one.name: one for one in subscription.stats().consumers}
    assert (stats["a"].slots or 0) + (stats["b"].slots or 0) == 65_536
    assert "-" in (stats["a"].slot_ranges or "")


async def test_who_is_silent_has_no_keys_whether_anybody_calls_or_not() -> None:
    a, b = owned_by("a", "a", "b")[0], owned_by("b", "a", "b")[0]
    log = Log([])
    subscription = made(log, "key_shared", consumer_timeout_ms=1_000, ack_timeout_ms=1_200)

    def slots() -> dict[str, int | None]:
        return {one.name: one.slots for one in subscription.stats().consumers}

    waits = [offsets(subscription, name, wait_s=wait_s) for name, wait_s in (("a", 0), ("b", 0.5))]
    assert await asyncio.gather(*waits) == [[], []]
    log.records += keyed(a, b, b)
    assert await offsets(subscription, "b", messages_max=1) == [1]
    assert 0 < (slots()["a"] or 0) < 65_536
    assert "1 are other consumers'" in (subscription.held_back("b") or "")
    await until(lambda: slots()["a"] == 0, "nobody waits for a")
    assert slots()["b"] == 65_536
    assert subscription.held_back("b") is None
    assert "'a' no longer asks for messages" in (subscription.held_back("a") or "")
    assert subscription.stats().leased == 1
    await until(lambda: slots()["b"] == 0, "nor for b")
    assert "'b' no longer asks for messages" in (subscription.held_back("b") or "")
    await until(lambda: subscription.stats().leased == 0, "what b had is back")
    assert subscription.stats().redelivering == 1


async def test_order_of_a_key_through_a_nack_with_its_stale_leases() -> None:
    log = Log(keyed("k", "k", "k", "x"))
    subscription = made(log, "key_shared")
    first = await subscription.receive("a", messages_max=9)
    assert await subscription.acknowledge(nacks=[Nack(ids(first, 0)[0], 40)]) == 0
    with pytest.raises(StaleLease):
        await subscription.acknowledge(ids(first, 1))
    assert await offsets(subscription, "a") == []
    assert "of 1 the first was given back with a delay" in (subscription.held_back("a") or "")
    again = await subscription.receive("a", messages_max=9, wait_s=2)
    assert [(one.offset, one.delivery_count) for one in again] == [(0, 2), (1, 1), (2, 1)]
    # Acks and a nack in one call: the consumer decided to ack later messages.
    both = ids(again, 1, 2)
    assert await subscription.acknowledge(both, nacks=[Nack(ids(again, 0)[0])]) == 2
    assert await offsets(subscription, "a") == [0]


async def test_several_nacks_in_one_call_count_each() -> None:
    log = Log(keyed("k", "k", "k"))
    subscription = made(log, "key_shared")
    first = await subscription.receive("a", messages_max=9)
    await subscription.acknowledge(nacks=[Nack(one) for one in ids(first, 0, 1)])
    again = await subscription.receive("a", messages_max=9)
    assert [(one.offset, one.delivery_count) for one in again] == [(0, 2), (1, 2), (2, 1)]


async def test_a_failover_subscription_has_one_at_a_time_and_the_next_stands_by() -> None:
    log = Log(keyed(*[None] * 6))
    subscription = made(log, "failover", ack_timeout_ms=200)
    assert await offsets(subscription, "b", messages_max=2) == [0, 1]
    assert await offsets(subscription, "c") == []
    assert "'b' is the active one; 'c' stands by" in (subscription.held_back("c") or "")
    # A consumer with an earlier name takes over, but not before leased messages are done.
    assert await offsets(subscription, "a") == []
    assert "takes over" in (subscription.held_back("a") or "")
    assert await offsets(subscription, "b") == []
    assert await subscription.acknowledge(up_to=1) == 2
    assert await offsets(subscription, "a", messages_max=1) == [2]
    stats = {one.name: one.active for one in subscription.stats().consumers}
    assert stats == {"a": True, "b": False, "c": False}
    # The active consumer vanishes: a waiting one gets its messages, and all later ones.
    assert await offsets(subscription, "c", wait_s=5) == [2, 3, 4, 5]


async def test_a_failover_consumer_that_stops_calling_is_replaced_in_time() -> None:
    log = Log(keyed(None))
    subscription = made(log, "failover")
    got = await subscription.receive("a", messages_max=9)
    await subscription.acknowledge(ids(got, 0))
    waiting = asyncio.ensure_future(offsets(subscription, "b", wait_s=5))
    await asyncio.sleep(0)
    log.records += keyed(None)
    subscription.wake()
    began = asyncio.get_running_loop().time()
    assert await waiting == [1]
    assert asyncio.get_running_loop().time() - began < 2


async def test_failover_by_priority_before_name_and_by_partition() -> None:
    log = Log(keyed(None, None))
    subscription = made(log, "failover")
    await offsets(subscription, "a", priority=1, messages_max=1)
    await subscription.acknowledge(up_to=0)
    assert await offsets(subscription, "z", priority=0) == [1]
    log = Log(keyed(None, None))
    log.name = PartitionName("public", "t", 1)
    second = made(log, "failover")
    await offsets(second, "a", messages_max=1)
    await second.acknowledge(up_to=0)
    assert await offsets(second, "b") == [1], "each partition takes the next one by name"


async def test_who_has_a_worse_priority_gets_what_is_left() -> None:
    log = Log([])
    subscription = made(log, "shared")
    low = asyncio.ensure_future(offsets(subscription, "low", wait_s=5, priority=2))
    await asyncio.sleep(0)
    high = asyncio.ensure_future(offsets(subscription, "high", wait_s=5, messages_max=1))
    await asyncio.sleep(0.01)
    log.records += keyed(None, None, None)
    subscription.wake()
    assert await high == [0]
    assert await low == [1, 2]


async def test_limits_pause_and_say_so() -> None:
    log = Log(keyed(*[None] * 20))
    subscription = made(log, "shared", max_unacked=5, max_unacked_per_consumer=3)
    first = await subscription.receive("a", messages_max=9)
    assert len(first) == 3
    assert await offsets(subscription, "a") == []
    assert "consumer has at most 3" in (subscription.held_back("a") or "")
    assert len(await offsets(subscription, "b")) == 2
    assert await offsets(subscription, "c") == []
    assert "at most 5 out" in (subscription.held_back("c") or "")
    await subscription.acknowledge([one.ack_id for one in first])
    assert len(await offsets(subscription, "a")) == 3


@pytest.mark.parametrize("type_", ["exclusive", "shared", "failover", "key_shared"])
async def test_what_a_filter_refuses_is_acked_and_written(type_: str) -> None:
    records = [
        Record(f"eu-{n}".encode() if n % 2 else b"us", b"v", (("kind", b"order"),))
        if n % 3
        else Record(b"eu-0", b"v", (("kind", b"other"),))
        for n in range(3_000)
    ]
    log = Log(records)
    settings = {"filter_headers": (("kind", ("order", "refund")),), "filter_key_prefix": "eu-"}
    subscription = made(log, type_, **settings)
    wanted = [n for n in range(3_000) if n % 2 and n % 3]
    got: list[int] = []
    while more := await subscription.receive("a", messages_max=700):
        got += [one.offset for one in more]
        await subscription.acknowledge([one.ack_id for one in more])
    assert got == wanted
    assert subscription.stats().backlog == 0
    acked = Cursor(0)
    for op in log.written:
        for start, end in op_ranges(op):
            acked.ack(start, end)
    assert acked.committed_offset == 3_000, "all of it was written"
    assert len(log.written) < 200, "in chunks"


def op_ranges(op: Op) -> list[tuple[int, int]]:
    return unpack_ranges(list(op[-1]))


async def test_a_filter_that_takes_little_does_not_keep_a_call_for_long() -> None:
    log = Log(keyed(*["no"] * 500))
    subscription = made(log, "shared", filter_key_prefix="yes")
    assert await offsets(subscription, "a") == []
    assert subscription.stats().committed_offset == 500
    log.records += keyed("yes", None)
    assert await offsets(subscription, "a") == [500]


async def test_a_seek_is_filtered_anew() -> None:
    log = Log(keyed("no", "yes", "no", "yes"))
    subscription = made(log, "exclusive", filter_key_prefix="yes")
    assert await offsets(subscription, "a") == [1, 3]
    await subscription.seek(0)
    assert await offsets(subscription, "a") == [1, 3]


async def test_cumulative_acks_are_for_one_consumer_at_a_time() -> None:
    log = Log(keyed(None))
    for type_ in ("shared", "key_shared"):
        with raises_code(CUMULATIVE_ACK_NOT_ALLOWED, match=type_):
            await made(log, type_).acknowledge(up_to=0)


async def test_nothing_is_written_of_a_subscription_that_is_not_durable() -> None:
    log = Log(keyed(*[None] * 4))
    infos = {"s": SubscriptionInfo("s", SubscriptionSettings(type="shared", durable=False), 1)}

    async def lookup(name: str) -> SubscriptionInfo:
        if name not in infos:
            raise SubscriptionNotFound(name)
        return infos[name]

    def owner() -> SubscriptionSet:
        return SubscriptionSet(log, BrokerConfig(), lookup, log.persist)

    first = owner()
    subscription = await first.get("s")
    got = await subscription.receive("a", messages_max=2)
    assert await subscription.acknowledge([one.ack_id for one in got]) == 2
    await subscription.seek(1)
    assert (log.written, first.cursors(), first.oldest_unacked()) == ([], [], None)
    await first.follow(["s"])
    assert await offsets(await first.get("s"), "a") == [1, 2, 3]
    await first.follow([])
    second = owner()
    assert await offsets(await second.get("s"), "a") == [0, 1, 2, 3], "it begins anew"
    infos["s"] = infos["s"]._replace(
        settings=SubscriptionSettings(type="shared", start="latest"), created_ms=2
    )
    await second.get("s")
    assert [name for name, _, _ in second.cursors()] == ["s"]
    assert len(log.written) == 1
