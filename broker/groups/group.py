"""A consumer group: its members, and the partitions of each. Pure.

One broker, the group's coordinator, keeps it in memory (coordinator.py). Losing it is harmless:
members call again and again (`beat`) and say what they hold, and `assigned` computes the same
result from the same members. So nothing here is durable.

`TABLE` is the whole rule of the group's states: if it has no row for a state and an event, the
event cannot happen then.

    a new group            EMPTY ── JOIN ─▶ RECONCILING ── RECONCILED ─▶ STABLE
    kept elsewhere before  EMPTY ── ADOPT ─▶ GATHERING ── GATHERED ─▶ RECONCILING
    something changes      STABLE ── JOIN, CHANGE, RELEASE, GO ─▶ RECONCILING
    the last member goes   GATHERING, RECONCILING, STABLE ── LAST_GOES ─▶ EMPTY ── FORGET ─▶ DEAD

And each partition:

    wanted → assigned → held by its member → released by it → held by the next

A partition is given to its new member only once the member before has released it, or has been
silent for a session timeout. `generation` grows with every change of the members or their wishes.
It fences: the partition's owner refuses a member whose generation is older than the last generation
that received there (subscriptions/member_fence.py). This also works when two brokers keep the same
group for a while: each learns the other's generation from the members, and uses a higher one.

Times are milliseconds of any steady clock, passed by the caller.

`assigned` says which member gets which partition, from the members' wishes alone. Every broker that
knows the same members computes the same result. If all members want the same partitions, their
counts differ by at most one. Within that bound the highest random weight decides (rendezvous
hashing), so that few partitions move when a member comes or goes. A partition that few members want
goes to one of these, whatever else they have.
"""

from __future__ import annotations

import enum
import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

from octavo.broker.errors import FOREIGN_MEMBER, GROUP_FULL
from octavo.broker.types import PartitionName

_ODD = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: spreads numbers that differ in few bits (TAOCP 3, 6.4)."""
_64_BITS = 2**64 - 1


def assigned(wants: Mapping[str, Collection[PartitionName]]) -> dict[PartitionName, str]:
    """Assign each partition to a member. `wants`: the partitions that each member would take."""
    candidates: dict[PartitionName, list[str]] = defaultdict(list)
    for member in sorted(wants):
        for partition in wants[member]:
            candidates[partition].append(member)
    if not candidates:
        return {}
    seeds = {member: _seed(member) for member in wants}
    full, fuller = divmod(len(candidates), len(wants))
    most = full + 1 if fuller else full
    load = dict.fromkeys(wants, 0)
    found: dict[PartitionName, str] = {}
    for partition in sorted(candidates):
        seed = _seed(str(partition))
        among = candidates[partition]
        with_room = [member for member in among if load[member] < most]
        if not with_room:
            least = min(load[member] for member in among)
            with_room = [member for member in among if load[member] == least]
        best = max(with_room, key=lambda member: (_weight(seeds[member], seed), member))
        load[best] += 1
        found[partition] = best
        if fuller and load[best] == full + 1:
            fuller -= 1
            if not fuller:  # the remaining members get the lower count
                most = max(1, full)
    return found


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _weight(member: int, partition: int) -> int:
    mixed = ((member ^ partition) * _ODD) & _64_BITS
    return ((mixed ^ (mixed >> 32)) * _ODD) & _64_BITS


class State(enum.Enum):
    """The state of a group at its coordinator."""

    EMPTY = "empty"
    """It has no members."""
    GATHERING = "gathering"
    """Another broker kept it before. Members that hold partitions may not have called here yet, so
    a member is given only partitions that it holds."""
    RECONCILING = "reconciling"
    """A member holds partitions of other members, or has not been given all of its partitions."""
    STABLE = "stable"
    """Each member holds the partitions that are assigned to it, and no others."""
    DEAD = "dead"
    """Its coordinator has forgotten it."""


class Event(enum.Enum):
    """What happens to a group."""

    JOIN = "a member comes"
    ADOPT = "the first member comes, and others may hold partitions from another coordinator"
    CHANGE = "a member wants other partitions, or knows of a higher generation"
    RELEASE = "a member holds less than it was given"
    GO = "a member leaves or expires, and others stay"
    LAST_GOES = "the last member leaves or expires"
    GATHERED = "all members that hold partitions have called, or have expired"
    RECONCILED = "each member holds the partitions that are assigned to it"
    FORGET = "the coordinator needs the room"


S, E = State, Event
TABLE: Mapping[tuple[State, Event], State] = {
    (S.EMPTY, E.JOIN): S.RECONCILING,
    (S.EMPTY, E.ADOPT): S.GATHERING,
    (S.EMPTY, E.FORGET): S.DEAD,
    (S.GATHERING, E.JOIN): S.GATHERING,
    (S.GATHERING, E.CHANGE): S.GATHERING,
    (S.GATHERING, E.RELEASE): S.GATHERING,
    (S.GATHERING, E.GO): S.GATHERING,
    (S.GATHERING, E.LAST_GOES): S.EMPTY,
    (S.GATHERING, E.GATHERED): S.RECONCILING,
    (S.RECONCILING, E.JOIN): S.RECONCILING,
    (S.RECONCILING, E.CHANGE): S.RECONCILING,
    (S.RECONCILING, E.RELEASE): S.RECONCILING,
    (S.RECONCILING, E.GO): S.RECONCILING,
    (S.RECONCILING, E.LAST_GOES): S.EMPTY,
    (S.RECONCILING, E.RECONCILED): S.STABLE,
    (S.STABLE, E.JOIN): S.RECONCILING,
    (S.STABLE, E.CHANGE): S.RECONCILING,
    (S.STABLE, E.RELEASE): S.RECONCILING,
    (S.STABLE, E.GO): S.RECONCILING,
    (S.STABLE, E.LAST_GOES): S.EMPTY,
}
REASSIGNS = frozenset((E.JOIN, E.ADOPT, E.CHANGE, E.GO, E.LAST_GOES))
"""After these the partitions are assigned again, under a new generation."""
GIVES = frozenset((S.RECONCILING,))
"""In these states a member is given partitions that it does not hold."""


def after(state: State, event: Event) -> State:
    """Return the next state. Raises `AssertionError` if the event cannot happen in this state."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise AssertionError(f"a group that is {state.value}: {event.value}") from None


class Member:
    """A consumer in the group."""

    __slots__ = ("holds", "principal", "until_ms", "wants")

    def __init__(self, principal: str) -> None:
        self.principal = principal
        """Its user. Calls of other users for this member are refused."""
        self.wants: frozenset[PartitionName] = frozenset()
        self.holds: frozenset[PartitionName] = frozenset()
        """The partitions it said it holds, and those it was given since."""
        self.until_ms = 0
        """When it expires, unless it calls again."""


class Membership(NamedTuple):
    """The partitions of a member from now on."""

    generation: int
    partitions: list[PartitionName]
    members: int
    """How many members the group has, as far as they are known now."""


class MemberNow(NamedTuple):
    """A member as others see it."""

    name: str
    holds: list[PartitionName]
    expires_in_ms: int


class GroupNow(NamedTuple):
    """A group as its coordinator knows it."""

    state: State
    generation: int
    members: list[MemberNow]


class Group:
    """A group and its members."""

    def __init__(self, members_max: int) -> None:
        self.state = State.EMPTY
        self.members: dict[str, Member] = {}
        self.generation = 0
        self._members_max = members_max
        self._targets: dict[PartitionName, str] = {}
        self._gathered_ms = 0
        """Until this time members may exist that have not called this broker yet."""

    def beat(
        self,
        name: str,
        principal: str,
        wants: Collection[PartitionName],
        holds: Collection[PartitionName],
        *,
        generation: int,
        session_ms: int,
        now_ms: int,
    ) -> None:
        """Take a member's call: what it wants, what it holds, and the generation it knows.

        `generation`: the highest that it has heard of, 0 if none. Raises `GROUP_FULL`,
        `FOREIGN_MEMBER`.
        """
        self.tick(now_ms)
        wanted, held = frozenset(wants), frozenset(holds)
        member, event = self.members.get(name), None
        if member is None:
            if len(self.members) >= self._members_max:
                raise GROUP_FULL(
                    f"the group has {len(self.members)} members already, which is the limit"
                )
            event = self._arrival(generation, session_ms, now_ms)
            member = Member(principal)
            # It was away, or called another broker: it has lost partitions that others hold by now.
            member.holds = held - self._held_by_others(name)
            self.members[name] = member
        elif member.principal != principal:
            raise FOREIGN_MEMBER(
                f"member {name!r} of the group belongs to another user; choose another name"
            )
        elif wanted != member.wants or generation > self.generation:
            event = Event.CHANGE
        elif not member.holds <= held:
            event = Event.RELEASE
        member.wants = wanted
        member.holds &= held  # ignore partitions that it was not given
        member.until_ms = now_ms + session_ms
        if event is not None:
            self.generation = max(self.generation, generation)
            self._happens(event)

    def given(self, name: str, now_ms: int) -> list[PartitionName]:
        """Return the partitions that the member has from now on; it must release the others.

        Sorted. Empty for a consumer that is no member (any more).
        """
        self.tick(now_ms)
        member = self.members.get(name)
        if member is None:
            return []
        if self.state in GIVES:
            elsewhere = self._held_by_others(name)
            member.holds |= {
                partition
                for partition, target in self._targets.items()
                if target == name and partition not in elsewhere
            }
            if self._is_reconciled():
                self._happens(Event.RECONCILED)
        return sorted(one for one in member.holds if self._targets.get(one) == name)

    def leave(self, name: str, principal: str) -> bool:
        """Remove a member and release its partitions; return whether it was a member. Raises
        `FOREIGN_MEMBER`."""
        member = self.members.get(name)
        if member is None:
            return False
        if member.principal != principal:
            raise FOREIGN_MEMBER(f"member {name!r} of the group belongs to another user")
        del self.members[name]
        self._happens(self._departure())
        return True

    def tick(self, now_ms: int) -> bool:
        """Let time pass: members expire that have not called in time, and gathering ends.

        Return whether it changed something.
        """
        before = self.state, self.generation
        gone = [name for name, one in self.members.items() if one.until_ms <= now_ms]
        for name in gone:
            del self.members[name]
        if gone:
            self._happens(self._departure())
        if self.state is State.GATHERING and now_ms >= self._gathered_ms:
            self._happens(Event.GATHERED)
        return before != (self.state, self.generation)

    def forget(self) -> None:
        """End the group, which has no members."""
        self._happens(Event.FORGET)

    def now(self, now_ms: int) -> GroupNow:
        """Return the group as others see it."""
        members = [
            MemberNow(name, sorted(member.holds), member.until_ms - now_ms)
            for name, member in sorted(self.members.items())
        ]
        return GroupNow(self.state, self.generation, members)

    def next_event_ms(self) -> int | None:
        """When time alone changes something; None: never."""
        times = [one.until_ms for one in self.members.values()]
        if self.state is State.GATHERING:
            times.append(self._gathered_ms)
        return min(times, default=None)

    def _arrival(self, generation: int, session_ms: int, now_ms: int) -> Event:
        """Return the event of a member that comes and knows of this generation."""
        if self.members:
            return Event.JOIN
        if generation > self.generation:
            # The group lived at another broker: members that hold partitions will call soon.
            self._gathered_ms = now_ms + session_ms
        return Event.ADOPT if now_ms < self._gathered_ms else Event.JOIN

    def _departure(self) -> Event:
        return Event.GO if self.members else Event.LAST_GOES

    def _happens(self, event: Event) -> None:
        self.state = after(self.state, event)
        if event in REASSIGNS:
            self.generation += 1
            self._targets = assigned({name: one.wants for name, one in self.members.items()})

    def _held_by_others(self, name: str) -> set[PartitionName]:
        return {
            partition
            for other, one in self.members.items()
            if other != name
            for partition in one.holds
        }

    def _is_reconciled(self) -> bool:
        holders = {held: name for name, one in self.members.items() for held in one.holds}
        return holders == self._targets
