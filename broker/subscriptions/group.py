"""A consumer group: who its members are, and which partitions each has. Pure.

One broker keeps it in memory (http/groups.py says which), and loses nothing that matters when it
goes: members show themselves again and again (`beat`), say what they hold, and assignment.py comes
to the same answer from the same members. So nothing of it is durable, and nothing has to be.

    a partition is wanted → assigned → held by its member → let go by it → held by the next

A partition is given to its new member only once the one before has let it go, or is gone for a
session timeout. `generation` grows with every change of the members or of what they want; it is
what fences: the partition's owner refuses a member whose generation is older than the one that last
received there (hold.py). That also holds when two brokers keep the same group for a while: each of
them hears of the other's generation from the members, and goes beyond it.

Times are milliseconds of any steady clock, handed in by the caller.
"""

from __future__ import annotations

from collections.abc import Collection

from octavo.broker.errors import ForeignMember, GroupFull
from octavo.broker.subscriptions.assignment import assigned
from octavo.broker.types import PartitionName


class Member:
    """A consumer of the group."""

    __slots__ = ("holds", "principal", "until_ms", "wants")

    def __init__(self, principal: str) -> None:
        self.principal = principal
        """Who it is: nobody else speaks for it."""
        self.wants: frozenset[PartitionName] = frozenset()
        self.holds: frozenset[PartitionName] = frozenset()
        """What it has, by its own word, and what it was given since."""
        self.until_ms = 0
        """Gone, if it has not shown itself by then."""


class Group:
    """The members of one group."""

    def __init__(self, members_max: int) -> None:
        self.members: dict[str, Member] = {}
        self.generation = 0
        self._members_max = members_max
        self._targets: dict[PartitionName, str] = {}
        self._settled_ms = 0
        """Until then others may be there that have not shown themselves to us yet."""

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
        """A member shows itself, and says what it wants, what it holds, what it was told last.

        `generation`: the highest that it has heard of, 0 if none. Raises `GroupFull`,
        `ForeignMember`.
        """
        self.expire(now_ms)
        member = self.members.get(name)
        changed = False
        if member is None:
            if len(self.members) >= self._members_max:
                raise GroupFull(
                    f"the group has {len(self.members)} members already, the most there may be"
                )
            if not self.members and generation > self.generation:
                # The group lived at another broker: those who hold the rest are about to come.
                self._settled_ms = now_ms + session_ms
            member = Member(principal)
            # One that was away, or another keeper's: what is another one's by now it has lost.
            member.holds = frozenset(holds) - self._held_by_others(name)
            self.members[name] = member
            changed = True
        elif member.principal != principal:
            raise ForeignMember(
                f"member {name!r} of the group is somebody else's; choose another name"
            )
        wanted = frozenset(wants)
        changed = changed or wanted != member.wants or generation > self.generation
        member.wants = wanted
        member.holds &= frozenset(holds)  # nobody has what they were not given
        member.until_ms = now_ms + session_ms
        if changed:
            self.generation = max(self.generation, generation)
            self._assign()

    def given(self, name: str, now_ms: int) -> list[PartitionName]:
        """What the member has from now on; the rest of what it holds it has to let go.

        Sorted. Empty for one that is no member (any more).
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
        """A member goes, and lets go what it had; whether it was one. Raises `ForeignMember`."""
        member = self.members.get(name)
        if member is None:
            return False
        if member.principal != principal:
            raise ForeignMember(f"member {name!r} of the group is somebody else's")
        del self.members[name]
        self._assign()
        return True

    def expire(self, now_ms: int) -> bool:
        """Those that have not shown themselves in time are gone. Whether there were any."""
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
