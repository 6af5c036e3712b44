"""Which member of a consumer group receives from a partition: the fence of a group. Pure.

The partition's owner keeps one of these for each subscription, in memory. What fences is the
group's generation (group.py): whoever comes with a higher one has the partition from then on, and
what others have of it is void, so that they cannot ack it; whoever comes with a lower one was away,
and is told so. Consumers of no group wait while a member has the partition. After a change of the
owner the first member to come has it, until one with a higher generation comes: after a crash
leases of the owner before are void anyway, and in a planned hand-over this is handed on with them.
"""

from __future__ import annotations

from octavo.broker.errors import StaleGeneration, SubscriptionBusy
from octavo.broker.state.leases import LeftHold


class Hold:
    """Of one subscription in one partition. Times in milliseconds of any steady clock."""

    __slots__ = ("generation", "member", "until_ms")

    def __init__(self) -> None:
        self.generation = 0
        """The highest that has received here."""
        self.member: str | None = None
        self.until_ms = 0
        """So long consumers of no group are kept out."""

    def leave(self, now_ms: int) -> LeftHold | None:
        """Return the fence for a successor; None if no member of a group has received here."""
        if not self.generation and self.member is None:
            return None
        return LeftHold(self.member or "", max(0, self.until_ms - now_ms), self.generation)

    def resume(self, left: LeftHold, now_ms: int) -> None:
        """Continue with the fence of the last owner."""
        self.generation, self.member = left.generation, left.name or None
        self.until_ms = now_ms + left.left_ms

    def enter(self, consumer: str, generation: int | None, now_ms: int, hold_ms: int) -> bool:
        """A consumer asks for messages; `generation` is None when it is no member of a group.

        True: the partition is another one's than before, and what the others hold of it is void.
        Raises `StaleGeneration`, and `SubscriptionBusy` when another one has it.
        """
        if generation is None:
            if now_ms < self.until_ms:
                raise SubscriptionBusy(
                    f"member {self.member!r} of a consumer group has this partition for another "
                    f"{self.until_ms - now_ms} ms; join the group, or wait until its members leave"
                )
            self.member = None
            return False
        if generation < self.generation:
            raise StaleGeneration(
                f"consumer {consumer!r} comes with generation {generation} of its group, and "
                f"generation {self.generation} has received here: ask the group what you have now",
                self.generation,
            )
        same = generation == self.generation and self.member not in (None, consumer)
        if same and now_ms < self.until_ms:
            raise SubscriptionBusy(
                f"member {self.member!r} has this partition in the same generation {generation} of "
                "the group; ask the group what you have now"
            )
        changed = self.member != consumer
        self.generation, self.member = generation, consumer
        self.until_ms = now_ms + hold_ms
        return changed
