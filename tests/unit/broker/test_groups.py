"""Consumer groups: which member gets, holds and is refused each partition. Pure."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.errors import FOREIGN_MEMBER, GROUP_FULL, StaleGeneration, SubscriptionBusy
from octavo.broker.groups import group as group_module
from octavo.broker.groups.coordinator import Groups
from octavo.broker.groups.group import (
    HELD_MAX,
    TABLE,
    WISHES_MAX,
    Event,
    Group,
    State,
    after,
    assigned,
)
from octavo.broker.subscriptions.member_fence import MemberFence
from octavo.broker.types import GroupName, PartitionName
from tests.support.kit.refusals import raises_code
from tests.support.loop_time import LoopTime, slowness

SESSION_MS = 1_000
MEMBERS = 64


def parts(topic: str, count: int) -> list[PartitionName]:
    return [PartitionName("public", topic, number) for number in range(count)]


ALL = [*parts("a", 3), *parts("b", 1), *parts("c", 6)]


# ---- assignment


@given(st.integers(1, 12), st.integers(0, 40))
def test_all_that_want_the_same_get_as_many_or_one_fewer(members: int, partitions: int) -> None:
    wants = {f"m{n}": parts("t", partitions) for n in range(members)}
    found = assigned(wants)
    assert sorted(found) == parts("t", partitions)
    counts = Counter(dict.fromkeys(wants, 0))
    counts.update(found.values())
    assert max(counts.values()) - min(counts.values()) <= 1


def test_few_move_when_a_member_comes_or_goes() -> None:
    wanted = parts("t", 60)
    before = assigned({f"m{n}": wanted for n in range(5)})
    after = assigned({f"m{n}": wanted for n in range(4)})
    moved = [one for one in wanted if before[one] != after[one]]
    assert len(moved) <= 12 + 12, "its share, and about as many for the balance"


def test_topics_of_one_partition_are_spread_evenly_too() -> None:
    wanted = [PartitionName("public", f"t{n}", 0) for n in range(9)]
    found = assigned({"a": wanted, "b": wanted, "c": wanted})
    assert sorted(Counter(found.values()).values()) == [3, 3, 3]


@given(st.dictionaries(st.sampled_from("abcd"), st.frozensets(st.sampled_from(ALL)), max_size=4))
def test_each_partition_goes_to_one_that_wants_it(
    wants: dict[str, frozenset[PartitionName]],
) -> None:
    found = assigned(wants)
    assert set(found) == set().union(*wants.values())
    assert all(one in wants[member] for one, member in found.items())


# ---- the group


class World:
    """Members that follow the group's answers, and a clock."""

    def __init__(self, members_max: int = 9) -> None:
        self.group = Group(members_max)
        self.now_ms = 0
        self.has: dict[str, list[PartitionName]] = {}
        self.generation: dict[str, int] = {}

    def beat(self, name: str, wants: list[PartitionName] = ALL, *, who: str = "alice") -> None:
        """Send a beat with its partitions; then release those that it was not given."""
        self.group.beat(
            name, who, wants, self.has.get(name, []), generation=self.generation.get(name, 0),
            session_ms=SESSION_MS, now_ms=self.now_ms,
        )  # fmt: skip
        self.has[name] = self.group.given(name, self.now_ms)
        self.generation[name] = self.group.generation


def test_a_partition_is_given_on_once_it_was_let_go() -> None:
    world = World()
    world.beat("a")
    assert world.has["a"] == sorted(ALL)
    world.beat("b")
    assert world.has["b"] == [], "a has all of it, and does not know yet"
    world.beat("a")
    assert len(world.has["a"]) == 5
    world.beat("b")
    assert world.has["b"] == [], "a was told, and has not said yet that it did"
    world.beat("a")
    world.beat("b")
    assert sorted(world.has["a"] + world.has["b"]) == sorted(ALL)


def test_who_vanishes_is_replaced_within_a_session_timeout() -> None:
    world = World()
    for name in "abab":
        world.beat(name)
    world.now_ms = SESSION_MS - 1
    world.beat("b")
    held = world.has["b"]
    world.now_ms = SESSION_MS + 1
    assert world.group.next_event_ms() == SESSION_MS
    generation = world.group.generation
    world.beat("b")
    assert world.has["b"] == sorted(ALL) != held
    assert world.group.generation > generation
    world.beat("a")
    assert world.has["a"] == [], "what it had is another one's now: it comes like a new one"


def test_who_leaves_is_replaced_at_once() -> None:
    world = World()
    for name in "abaabb":
        world.beat(name)
    assert world.group.leave("a", "alice")
    assert not world.group.leave("a", "alice")
    world.beat("b")
    assert world.has["b"] == sorted(ALL)


def test_at_a_new_keeper_all_keep_what_they_have() -> None:
    world = World()
    for name in "abaabb":
        world.beat(name)
    before = {name: list(has) for name, has in world.has.items()}
    generation = world.group.generation
    world.group = Group(9)  # another broker keeps it now, and knows nothing
    world.beat("a")
    assert world.has["a"] == before["a"], "b is about to show itself"
    world.beat("b")
    assert world.has == before
    assert world.group.generation > generation
    world.group = Group(9)
    world.beat("a")
    world.now_ms += SESSION_MS - 1
    world.beat("a")
    assert world.has["a"] == before["a"]
    world.now_ms += 1
    world.beat("a")
    assert world.has["a"] == sorted(ALL), "b did not come: it is gone"


def test_a_generation_heard_of_elsewhere_is_gone_beyond() -> None:
    world = World()
    world.beat("a")
    world.generation["a"] = 70
    world.beat("a")
    assert world.group.generation > 70
    world.beat("a")
    assert world.generation["a"] == world.group.generation, "and that was that"


def test_a_name_is_of_who_came_with_it() -> None:
    world = World(members_max=2)
    world.beat("a")
    with raises_code(FOREIGN_MEMBER, match="belongs to another user"):
        world.beat("a", who="mallory")
    with raises_code(FOREIGN_MEMBER):
        world.group.leave("a", "mallory")
    world.beat("b")
    with raises_code(GROUP_FULL, match="2 members"):
        world.beat("c")


# ---- its states


EVERY = [(state, event) for state in State for event in Event]


@pytest.mark.parametrize(("state", "event"), EVERY, ids=str)
def test_a_state_without_a_row_refuses_the_event(state: State, event: Event) -> None:
    if (state, event) in TABLE:
        assert after(state, event) is TABLE[state, event]
    else:
        with pytest.raises(AssertionError, match=f"a group that is {state.value}: "):
            after(state, event)


def test_each_state_is_reached_and_only_the_dead_stay() -> None:
    assert {State.EMPTY, *TABLE.values()} == set(State)
    assert {state for state, _ in TABLE} == set(State) - {State.DEAD}
    assert {event for _, event in TABLE} == set(Event)
    with_members = {State.GATHERING, State.RECONCILING, State.STABLE}
    for event in (Event.JOIN, Event.CHANGE, Event.RELEASE, Event.GO, Event.LAST_GOES):
        assert with_members <= {state for state, one in TABLE if one is event}, event


def test_a_group_has_the_states_of_its_story() -> None:
    world = World()
    assert world.group.state is State.EMPTY
    world.beat("a")
    assert world.group.state is State.STABLE, "it has all there is"
    world.beat("b")
    assert world.group.state is State.RECONCILING
    for name in "aabb":
        world.beat(name)
    assert world.group.state is State.STABLE
    world.has["a"] = []
    world.group.beat(
        "a", "alice", ALL, [], generation=world.generation["a"], session_ms=SESSION_MS,
        now_ms=world.now_ms,
    )  # fmt: skip
    assert world.group.state is State.RECONCILING, "its answer was lost, so it is told again"
    world.beat("a")
    world.beat("b", parts("a", 1))
    assert world.group.state is State.RECONCILING
    world.group.leave("a", "alice")
    world.group.leave("b", "alice")
    assert (world.group.state, world.group.now(0).members) == (State.EMPTY, [])
    world.group.forget()
    assert world.group.state is State.DEAD


def test_a_group_that_comes_from_another_broker_gathers_its_members() -> None:
    world = World()
    world.generation["a"] = 5
    world.beat("a")
    assert (world.group.state, world.has["a"]) == (State.GATHERING, [])
    assert world.group.next_event_ms() == SESSION_MS
    world.group.leave("a", "alice")
    world.now_ms = 10
    world.beat("b")
    assert (world.group.state, world.has["b"]) == (State.GATHERING, []), "others may still come"
    world.now_ms = SESSION_MS
    assert world.group.tick(world.now_ms)
    assert world.group.state is State.RECONCILING
    world.beat("b")
    assert (world.group.state, world.has["b"]) == (State.STABLE, sorted(ALL))


def test_a_member_that_vanishes_after_the_gathering_is_an_event_in_time() -> None:
    """The end of the gathering stayed the next event for ever, and hid that a member expires."""
    world = World()
    world.generation["a"] = 5
    world.beat("a")
    world.now_ms = SESSION_MS - 1
    world.beat("a")
    world.beat("b")
    world.now_ms = SESSION_MS + 500
    world.beat("a")
    assert world.group.next_event_ms() == 2 * SESSION_MS - 1, "b expires then"


Step = tuple[str, str]
STEPS = st.lists(
    st.tuples(st.sampled_from(["beat", "beat", "beat", "leave", "late", "keeper"]),
              st.sampled_from("abc")),
    max_size=60,
)  # fmt: skip


@given(STEPS)
def test_nobody_is_given_what_another_living_member_has(steps: list[Step]) -> None:
    world = World()
    for what, name in steps:
        world.now_ms += 1
        if what == "beat":
            world.beat(name)
        elif what == "leave":
            world.group.leave(name, "alice")
            world.has.pop(name, None)
        elif what == "late":
            world.now_ms += SESSION_MS
            world.has.clear()  # they have not called in time: all are replaced
        elif all(one in world.group.members for one in world.has):
            # The present members have a generation, so the next keeper waits for the others.
            world.group = Group(9)
            if not world.has:
                world.generation.clear()
            else:
                world.beat(min(world.has))
        held = [one for has in world.has.values() for one in has]
        assert len(held) == len(set(held)), (what, name, world.has)


@given(STEPS)
def test_a_state_is_what_it_says(steps: list[Step]) -> None:
    """The table's states agree with the members, whatever happens."""
    world = World()
    for what, name in steps:
        world.now_ms += 1
        said = set(world.has.get(name, []))
        if what == "beat":
            world.beat(name)
        elif what == "leave":
            world.group.leave(name, "alice")
            world.has.pop(name, None)
        elif what == "late":
            world.now_ms += SESSION_MS // 2
            world.group.tick(world.now_ms)
        else:
            world.group = Group(9)
        group = world.group
        assert (group.state is State.EMPTY) == (not group.members)
        held = {one: name for name, member in group.members.items() for one in member.holds}
        if group.state is State.STABLE:
            assert sorted(held) == sorted(ALL)
            assert held == assigned(dict.fromkeys(group.members, ALL))
        if group.state is State.GATHERING and what == "beat":
            assert set(world.has[name]) <= said, "nothing that it did not hold"


UNRULY = st.lists(
    st.tuples(
        st.sampled_from(["beat", "beat", "lost", "less", "leave", "late", "keeper", "assign"]),
        st.sampled_from("abc"),
    ),
    max_size=40,
)


@pytest.mark.parametrize("at_once", [3, 10_000])
@given(UNRULY)
def test_it_becomes_stable_once_its_members_are_heard(at_once: int, steps: list[Step]) -> None:
    """Answers are lost, members let go of partitions by themselves, coordinators change, and an
    assignment is interrupted by the next change."""
    with mock.patch.object(group_module, "ASSIGNED_AT_ONCE", at_once):
        _becomes_stable(steps)


def _becomes_stable(steps: list[Step]) -> None:
    world = World()
    for what, name in steps:
        world.now_ms += 1
        if what == "beat":
            world.beat(name)
        elif what == "lost":
            before = list(world.has.get(name, []))
            world.beat(name)
            world.has[name] = [one for one in before if one in world.has[name]]
        elif what == "less":
            world.has[name] = world.has.get(name, [])[1:]
        elif what == "leave":
            world.group.leave(name, "alice")
            world.has.pop(name, None)
        elif what == "late":
            world.now_ms += SESSION_MS // 2
            world.group.tick(world.now_ms)
        elif what == "assign":
            world.group.assign()
        else:
            world.group = Group(9)
        held = [one for member in world.group.members.values() for one in member.holds]
        assert len(held) == len(set(held)), "a partition has one holder"
    for _ in range(8):  # a gathering lasts a session, then partitions change hands
        world.now_ms += SESSION_MS // 4
        for name in "abc":
            world.beat(name)
            while world.group.assign():
                pass
    assert world.group.state is State.STABLE
    assert sorted(one for has in world.has.values() for one in has) == sorted(ALL)


# ---- as large as it may be


def test_members_keep_what_they_hold_while_it_is_computed_who_gets_what(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.beat("a")
    monkeypatch.setattr(group_module, "ASSIGNED_AT_ONCE", 5)
    world.beat("b")
    assert world.group.is_assigning
    assert (world.has["a"], world.has["b"]) == (sorted(ALL), [])
    world.beat("a")
    assert world.has["a"] == sorted(ALL)
    while world.group.assign():
        pass
    world.beat("a")
    assert len(world.has["a"]) == 5


def test_a_call_that_changes_nothing_says_so() -> None:
    """Every call woke all waiting members, each of which looked at all partitions."""
    group, now = Group(9), 0

    def beat(name: str, holds: list[PartitionName]) -> bool:
        return group.beat(
            name,
            "alice",
            ALL,
            holds,
            generation=group.generation,
            session_ms=SESSION_MS,
            now_ms=now,
        )

    assert beat("a", [])
    held = group.given("a", now)
    assert not beat("a", held)
    assert beat("b", [])
    assert not beat("b", [])
    assert beat("a", held[:5]), "it let some go"
    now = SESSION_MS
    assert beat("b", []), "the other one has expired"


def test_members_that_want_the_same_share_one_wish() -> None:
    """256 members that want 4,096 partitions each took 130 MB."""
    group = Group(300)
    for number in range(200):
        group.beat(f"m{number}", "alice", parts("t", 9), [], generation=0,
                   session_ms=SESSION_MS, now_ms=0)  # fmt: skip
    assert len({id(one.wants) for one in group.members.values()}) == 1


def test_members_that_want_too_many_different_things_are_refused() -> None:
    group, each = Group(300), WISHES_MAX // 8

    def join(number: int) -> None:
        group.beat(f"m{number}", "alice", parts(f"t{number}", each), [], generation=0,
                   session_ms=SESSION_MS, now_ms=0)  # fmt: skip

    for number in range(8):
        join(number)
    with raises_code(GROUP_FULL, match="name the same topics"):
        join(8)
    join(7)  # it is a member already
    group.leave("m0", "alice")
    join(8)


def test_members_that_claim_to_hold_too_much_are_refused() -> None:
    group, each = Group(300), HELD_MAX // 4

    def join(number: int) -> None:
        group.beat(f"m{number}", "alice", ALL, parts(f"t{number}", each), generation=0,
                   session_ms=SESSION_MS, now_ms=0)  # fmt: skip

    for number in range(4):
        join(number)
    with raises_code(GROUP_FULL, match="release some, and call again"):
        join(4)
    group.leave("m0", "alice")
    join(4)


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Run the test without garbage collections, which would visit other tests' objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.timeout(120)
async def test_the_largest_group_does_not_stop_the_loop(no_collections: None) -> None:
    """A join of 256 members that want 4,096 partitions took more than a second in one turn."""
    limits: Any = SimpleNamespace(groups_max=9, group_members_max=256, group_partitions_max=4_096)
    groups, name, wanted = Groups(limits), GroupName("public", "g"), parts("t", 4_096)
    holds: dict[str, frozenset[PartitionName]] = {}

    async def beat(member: str, wait_ms: int) -> None:
        held = holds.get(member, frozenset())
        found = await groups.heartbeat(
            name, member, "alice", wanted, held, generation=0, session_ms=60_000, wait_ms=wait_ms
        )
        holds[member] = frozenset(found.partitions)

    slow = slowness()
    async with LoopTime() as time:
        for number in range(MEMBERS):
            await beat(f"m{number}", 0)
            await asyncio.sleep(0)  # each call comes by itself
        waiting = []
        for number in range(1, MEMBERS):
            waiting.append(asyncio.ensure_future(beat(f"m{number}", 60_000)))
            await asyncio.sleep(0)
        while not all(one.done() for one in waiting):
            await beat("m0", 0)
            await asyncio.sleep(0.01)
    assert sorted(len(one) for one in holds.values())[1:] == [4_096 // MEMBERS] * (MEMBERS - 1)
    assert time.longest_s <= 0.05 * max(slow, slowness())
    kept = groups.find(name)
    assert kept is not None
    assert kept.describe() == {"assigning": 0}


# ---- the fence


def test_a_later_generation_takes_the_partition_and_fences_the_one_before() -> None:
    hold = MemberFence()
    assert hold.enter("a", 3, 0, 1_000)
    assert not hold.enter("a", 3, 10, 1_000)
    assert not hold.enter("a", 4, 20, 1_000), "the same member, told anew"
    assert hold.enter("b", 5, 30, 1_000)
    with pytest.raises(StaleGeneration, match=r"generation 4 .* generation 5") as raised:
        hold.enter("a", 4, 40, 1_000)
    assert raised.value.generation == 5
    assert hold.member == "b"


def test_two_of_one_generation_do_not_take_it_from_each_other() -> None:
    hold = MemberFence()
    hold.enter("a", 3, 0, 1_000)
    with pytest.raises(SubscriptionBusy, match="'a'"):
        hold.enter("b", 3, 999, 1_000)
    assert hold.enter("b", 3, 1_000, 1_000), "it was not heard of for so long"


def test_consumers_of_no_group_wait_for_its_members_to_go() -> None:
    hold = MemberFence()
    assert not hold.enter("plain", None, 0, 1_000)
    assert hold.enter("a", 1, 0, 1_000), "what the other one has is void"
    with pytest.raises(SubscriptionBusy, match="for another 1000 ms"):
        hold.enter("plain", None, 0, 1_000)
    assert not hold.enter("plain", None, 1_000, 1_000)
    with pytest.raises(StaleGeneration):
        hold.enter("old", 0, 1_000, 1_000)
