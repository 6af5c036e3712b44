"""A consumer group: its members, and the partitions of each. Pure.

One broker keeps it in memory (see http/groups.py). Losing it is harmless: members call again and
again (`beat`) and say what they hold, and assignment.py computes the same result from the same
members. So nothing here is durable.

    a partition is wanted → assigned → held by its member → released by it → held by the next

A partition is given to its new member only once the member before has released it, or has been
silent for a session timeout. `generation` grows with every change of the members or their wishes.
It fences: the partition's owner refuses a member whose generation is older than the last generation
that received there (hold.py). This also works when two brokers keep the same group for a while:
each learns the other's generation from the members, and uses a higher one.

Times are milliseconds of any steady clock, passed by the caller.
"""

from __future__ import annotations

from collections.abc import Collection

from octavo.broker.errors import ForeignMember, GroupFull
from octavo.broker.subscriptions.assignment import assigned
from octavo.broker.types import PartitionName


class Member:
    """A consumer in the group."""

    __slots__ = ("holds", "principal", "until_ms", "wants")

    def __init__(self, principal: str) -> None:
        self.principal = principal
        """Its user: no other user may call for it."""
        self.wants: frozenset[PartitionName] = frozenset()
        self.holds: frozenset[PartitionName] = frozenset()
        """The partitions it said it holds, and those it was given since."""
        self.until_ms = 0
        """When it expires, unless it calls again."""


class Group:
    """The members of one group."""

    def __init__(self, members_max: int) -> None:
        self.members: dict[str, Member] = {}
        self.generation = 0
        self._members_max = members_max
        self._targets: dict[PartitionName, str] = {}
        self._settled_ms = 0
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

        `generation`: the highest that it has heard of, 0 if none. Raises `GroupFull`,
        `ForeignMember`.
        """
        self.expire(now_ms)
        member = self.members.get(name)
        changed = False
        if member is None:
            if len(self.members) >= self._members_max:
                raise GroupFull(
                    f"the group has {len(self.members)} members already, which is the limit"
                )
            if not self.members and generation > self.generation:
                # The group lived at another broker: members that hold partitions will call soon.
                self._settled_ms = now_ms + session_ms
            member = Member(principal)
            # It was away, or called another broker: it has lost partitions that others hold by now.
            member.holds = frozenset(holds) - self._held_by_others(name)
            self.members[name] = member
            changed = True
        elif member.principal != principal:
            raise ForeignMember(
                f"member {name!r} of the group belongs to another user; choose another name"
            )
        wanted = frozenset(wants)
        changed = changed or wanted != member.wants or generation > self.generation
        member.wants = wanted
        member.holds &= frozenset(holds)  # ignore partitions that it was not given
        member.until_ms = now_ms + session_ms
        if changed:
            self.generation = max(self.generation, generation)
            self._assign()

    def given(self, name: str, now_ms: int) -> list[PartitionName]:
        """Return the partitions that the member has from now on; it must release the others.

        Sorted. Empty for a consumer that is no member (any more).
        """
        self.expire(now_ms)
        member = self.members.get(name)
        if member is None:
            return []
        elsewhere = self._held_by_others(name)
        is_settled = now_ms >= self._settled_ms
        found = [
            partition
            for partition, target in self._targets.items()
            if target == name
            and (partition in member.holds or (is_settled and partition not in elsewhere))
        ]
        member.holds |= frozenset(found)
        return sorted(found)

    def leave(self, name: str, principal: str) -> bool:
        """Remove a member and release its partitions; return whether it was a member. Raises
        `ForeignMember`."""
        member = self.members.get(name)
        if member is None:
            return False
        if member.principal != principal:
            raise ForeignMember(f"member {name!r} of the group belongs to another user")
        del self.members[name]
        self._assign()
        return True

    def expire(self, now_ms: int) -> bool:
        """Remove members that have not called in time; return whether there were any."""
        gone = [name for name, one in self.members.items() if one.until_ms <= now_ms]
        for name in gone:
            del self.members[name]
        if gone:
            self._assign()
        return bool(gone)

    def next_event_ms(self) -> int | None:
        """When time alone changes something; None: never."""
        times = [one.until_ms for one in self.members.values()]
        if times and self._settled_ms:
            times.append(self._settled_ms)
        return min(times, default=None)

    def _held_by_others(self, name: str) -> set[PartitionName]:
        return {
            partition
            for other, one in self.members.items()
            if other != name
            for partition in one.holds
        }

    def _assign(self) -> None:
        self.generation += 1
        self._targets = assigned({name: one.wants for name, one in self.members.items()})
