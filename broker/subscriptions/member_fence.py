"""The fence of a consumer group: which member receives from a partition. Pure.

A member with a higher generation takes the partition, and all leases of other consumers there
become void, so that they cannot ack. A member with a lower generation was away, and gets an error.
Consumers outside a group wait while a member has the partition. A planned hand-over passes the
fence on with the leases; after a crash the leases are void, and the first member that calls takes
the partition.
"""

from __future__ import annotations

from octavo.broker.errors import StaleGeneration, SubscriptionBusy
from octavo.broker.state.leases import LeftHold


class MemberFence:
    """Times are milliseconds of any steady clock."""

    __slots__ = ("generation", "member", "until_ms")

    def __init__(self) -> None:
        self.generation = 0
        self.member: str | None = None
        self.until_ms = 0

    def leave(self, now_ms: int) -> LeftHold | None:
        if not self.generation and self.member is None:
            return None
        return LeftHold(self.member or "", max(0, self.until_ms - now_ms), self.generation)

    def resume(self, left: LeftHold, now_ms: int) -> None:
        self.generation, self.member = left.generation, left.name or None
        self.until_ms = now_ms + left.left_ms

    def enter(self, consumer: str, generation: int | None, now_ms: int, hold_ms: int) -> bool:
        """Admit a consumer that asks for messages; `generation` is None outside a group.

        True: the caller must revoke the leases of all other consumers.
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
