"""A consumer group: its members, and the partitions of each. Pure.

`TABLE` is the rule of the group's states: an event without a row cannot happen.

    a new group            EMPTY ── JOIN ─▶ RECONCILING ── RECONCILED ─▶ STABLE
    kept elsewhere before  EMPTY ── ADOPT ─▶ GATHERING ── GATHERED ─▶ RECONCILING
    something changes      STABLE ── JOIN, CHANGE, RELEASE, GO ─▶ RECONCILING
    the last member goes   GATHERING, RECONCILING, STABLE ── LAST_GOES ─▶ EMPTY ── FORGET ─▶ DEAD

A new member gets a partition once the member before has released it, or was silent for a session
timeout. `generation` grows with every change of members or wishes; a partition's owner refuses
older generations (subscriptions/member_fence.py). If two brokers keep the group, each learns the
other's generation from the members, and uses a higher.

`assigned` depends on the wishes alone. With equal wishes, counts differ by at most one; within
that, rendezvous hashing decides, so that few partitions move.

Times are milliseconds of any steady clock.
"""

from __future__ import annotations

import enum
import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from octavo.broker.errors import FOREIGN_MEMBER, GROUP_FULL
from octavo.broker.types import PartitionName

_ODD = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: spreads numbers (TAOCP 3, 6.4)."""
_64_BITS = 2**64 - 1
ASSIGNED_AT_ONCE = 3_000
"""Pairs of member and partition in one turn of the loop: some 3 ms."""
WISHES_MAX = 65_536
"""Partitions in a group's wishes; equal wishes count once."""
HELD_MAX = 65_536


def assigned(wants: Mapping[str, Collection[PartitionName]]) -> dict[PartitionName, str]:
    assigning = Assigning(wants)
    while (found := assigning.step(ASSIGNED_AT_ONCE)) is None:
        pass
    return found


class Assigning:
    """An assignment in steps: 256 members may want 4,096 partitions each."""

    def __init__(self, wants: Mapping[str, Collection[PartitionName]]) -> None:
        self._found: dict[PartitionName, str] = {}
        self._work = _assign(wants, self._found)
        self._is_done = False

    def step(self, cost: int) -> dict[PartitionName, str] | None:
        while cost > 0 and not self._is_done:
            done = next(self._work, None)
            self._is_done = done is None
            cost -= done or 0
        return self._found if self._is_done else None


def _assign(
    wants: Mapping[str, Collection[PartitionName]], found: dict[PartitionName, str]
) -> Iterator[int]:
    """Fill `found`; yield how many pairs were examined."""
    candidates: dict[PartitionName, list[str]] = defaultdict(list)
    for member in sorted(wants):
        for partition in wants[member]:
            candidates[partition].append(member)
        yield 1 + len(wants[member])
    if not candidates:
        return
    seeds = {member: _seed(member) for member in wants}
    full, fuller = divmod(len(candidates), len(wants))
    most = full + 1 if fuller else full
    load = dict.fromkeys(wants, 0)
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
        yield 1 + len(among)


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _weight(member: int, partition: int) -> int:
    mixed = ((member ^ partition) * _ODD) & _64_BITS
    return ((mixed ^ (mixed >> 32)) * _ODD) & _64_BITS


class State(enum.Enum):
    EMPTY = "empty"
    GATHERING = "gathering"
    """Another broker kept it before: members may hold partitions and not have called yet, so no
    partitions are given out.
    """
    RECONCILING = "reconciling"
    """A member holds others' partitions, or lacks its own."""
    STABLE = "stable"
    """Each member holds exactly its partitions."""
    DEAD = "dead"


class Event(enum.Enum):
    JOIN = "a member joins"
    ADOPT = "the first member joins, and others may hold partitions from another coordinator"
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
"""In these states a member gets partitions that it does not hold."""


def after(state: State, event: Event) -> State:
    try:
        return TABLE[state, event]
    except KeyError:
        raise AssertionError(f"a group that is {state.value}: {event.value}") from None


class Member:
    __slots__ = ("holds", "principal", "until_ms", "wants")

    def __init__(self, principal: str) -> None:
        self.principal = principal
        """Calls of other users for this member are refused."""
        self.wants: frozenset[PartitionName] = frozenset()
        self.holds: frozenset[PartitionName] = frozenset()
        """Said to be held, or given since."""
        self.until_ms = 0


class Membership(NamedTuple):
    generation: int
    partitions: list[PartitionName]
    members: int


class MemberNow(NamedTuple):
    name: str
    holds: list[PartitionName]
    expires_in_ms: int


class GroupNow(NamedTuple):
    state: State
    generation: int
    members: list[MemberNow]


class Group:
    def __init__(self, members_max: int) -> None:
        self.state = State.EMPTY
        self.members: dict[str, Member] = {}
        self.generation = 0
        self._members_max = members_max
        self._targets: dict[PartitionName, str] = {}
        self._targets_of: dict[str, list[PartitionName]] = {}
        self._holders: dict[PartitionName, str] = {}
        self._assigning: Assigning | None = None
        self._gathered_ms = 0
        """Until this time members may exist that have not called this broker."""

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
    ) -> bool:
        """Return whether something changed for the members."""
        ticked = self.tick(now_ms)
        held = frozenset(holds)
        member, event = self.members.get(name), None
        wanted = self._shared(name, frozenset(wants))
        if member is None:
            if len(self.members) >= self._members_max:
                raise GROUP_FULL(
                    f"the group has {len(self.members)} members already, which is the limit"
                )
            if len(self._holders) + len(held) > HELD_MAX:
                raise GROUP_FULL(
                    f"the members of the group say that they hold more than {HELD_MAX} partitions, "
                    "which is the limit: release some, and call again"
                )
            event = self._arrival(generation, session_ms, now_ms)
            member = Member(principal)
            self.members[name] = member
            # It was away, or called another broker: others hold its partitions now.
            self._hold(name, [one for one in held if one not in self._holders])
        elif member.principal != principal:
            raise FOREIGN_MEMBER(
                f"member {name!r} of the group belongs to another user; choose another name"
            )
        elif wanted != member.wants or generation > self.generation:
            event = Event.CHANGE
        elif not member.holds <= held:
            event = Event.RELEASE
        member.wants = wanted
        self._let_go(member, member.holds - held)  # ignore partitions that it was not given
        member.until_ms = now_ms + session_ms
        if event is not None:
            self.generation = max(self.generation, generation)
            self._happens(event)
        return ticked or event is not None

    def given(self, name: str, now_ms: int) -> list[PartitionName]:
        """Return the member's partitions from now on; it must release all others."""
        self.tick(now_ms)
        member = self.members.get(name)
        if member is None:
            return []
        if self._assigning is not None:
            return sorted(member.holds)  # the new assignment is not complete
        if self.state in GIVES:
            mine = self._targets_of.get(name, ())
            self._hold(name, [one for one in mine if one not in self._holders])
            if self._holders == self._targets:
                self._happens(Event.RECONCILED)
        return sorted(one for one in member.holds if self._targets.get(one) == name)

    def leave(self, name: str, principal: str) -> bool:
        member = self.members.get(name)
        if member is None:
            return False
        if member.principal != principal:
            raise FOREIGN_MEMBER(f"member {name!r} of the group belongs to another user")
        self._remove(name)
        self._happens(self._departure())
        return True

    def tick(self, now_ms: int) -> bool:
        """Return whether members expired or gathering ended."""
        before = self.state, self.generation
        gone = [name for name, one in self.members.items() if one.until_ms <= now_ms]
        for name in gone:
            self._remove(name)
        if gone:
            self._happens(self._departure())
        if self.state is State.GATHERING and now_ms >= self._gathered_ms:
            self._happens(Event.GATHERED)
        return before != (self.state, self.generation)

    def forget(self) -> None:
        self._happens(Event.FORGET)

    def now(self, now_ms: int) -> GroupNow:
        members = [
            MemberNow(name, sorted(member.holds), member.until_ms - now_ms)
            for name, member in sorted(self.members.items())
        ]
        return GroupNow(self.state, self.generation, members)

    def next_event_ms(self) -> int | None:
        """Return when time alone changes something; None: never."""
        times = [one.until_ms for one in self.members.values()]
        if self.state is State.GATHERING:
            times.append(self._gathered_ms)
        return min(times, default=None)

    def _arrival(self, generation: int, session_ms: int, now_ms: int) -> Event:
        if self.members:
            return Event.JOIN
        if generation > self.generation:
            # The group lived elsewhere: members that hold partitions will call soon.
            self._gathered_ms = now_ms + session_ms
        return Event.ADOPT if now_ms < self._gathered_ms else Event.JOIN

    def _departure(self) -> Event:
        return Event.GO if self.members else Event.LAST_GOES

    def _happens(self, event: Event) -> None:
        self.state = after(self.state, event)
        if event in REASSIGNS:
            self.generation += 1
            wants = {name: one.wants for name, one in self.members.items()}
            self._assigning = Assigning(wants)
            self.assign()

    def assign(self) -> bool:
        """Compute the next part of the assignment; return whether there is more.

        Until then, members keep what they hold and get nothing else.
        """
        if self._assigning is None:
            return False
        found = self._assigning.step(ASSIGNED_AT_ONCE)
        if found is None:
            return True
        self._assigning, self._targets = None, found
        self._targets_of = defaultdict(list)
        for partition, member in found.items():
            self._targets_of[member].append(partition)
        return False

    @property
    def is_assigning(self) -> bool:
        return self._assigning is not None

    def _shared(self, name: str, wanted: frozenset[PartitionName]) -> frozenset[PartitionName]:
        """Return another member's equal wish, to store it once.

        Raises `GROUP_FULL` if the wishes have too many partitions.
        """
        others = [one.wants for other, one in self.members.items() if other != name]
        for one in others:
            if one == wanted:
                return one
        different = {id(one): len(one) for one in others}
        if sum(different.values()) + len(wanted) > WISHES_MAX:
            raise GROUP_FULL(
                f"the different wishes of the group's members have more than {WISHES_MAX} "
                "partitions, which is the limit: have all members name the same topics, or use "
                "several groups"
            )
        member = self.members.get(name)
        return wanted if member is None or member.wants != wanted else member.wants

    def _hold(self, name: str, partitions: Collection[PartitionName]) -> None:
        self._holders.update(dict.fromkeys(partitions, name))
        self.members[name].holds |= frozenset(partitions)

    def _let_go(self, member: Member, partitions: Collection[PartitionName]) -> None:
        for one in partitions:
            del self._holders[one]
        member.holds -= frozenset(partitions)

    def _remove(self, name: str) -> None:
        member = self.members.pop(name)
        self._let_go(member, member.holds)
