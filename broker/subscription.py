"""The driver of one subscription in one partition: receive, acknowledge, seek.

Promises: an ack that returned is durable, in whatever order acks come and however many holes they
leave; a message whose lease ended is delivered again, so delivery is at least once. Leases are
memory only: after a take-over they are void and unacked messages are delivered again.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.types import Delivery, Nack, SubscriptionInfo, SubscriptionStats


class Subscription:
    """One subscription in one owned partition."""

    info: SubscriptionInfo

    async def receive(
        self, consumer: str, *, messages_max: int, wait_s: float = 0.0
    ) -> list[Delivery]:
        """Up to `messages_max` messages, leased to `consumer` for the subscription's ack timeout.

        Waits up to `wait_s` for the first one; [] when none came, or when the consumer holds too
        many unacked ones already. Redeliveries come first. Raises `SubscriptionBusy` when the
        subscription is exclusive and another consumer holds it, `NotOwner`.
        """
        raise NotImplementedError

    async def acknowledge(
        self,
        ack_ids: Sequence[str] = (),
        *,
        up_to: int | None = None,
        nacks: Sequence[Nack] = (),
        extend: Sequence[str] = (),
    ) -> int:
        """Acknowledge, give back, or keep longer; return how many messages became acked.

        `up_to`: every offset up to and including this one (exclusive subscriptions only).
        `nacks`: deliver again, each after its delay. `extend`: begin the ack timeout anew.
        Acking what is acked already is no error. Returns when the acks are durable. Raises
        `InvalidAckId` (nothing took effect), `StaleLease` (the others took effect, and are
        durable), `CumulativeAckNotAllowed`, `OffsetBeyondEnd`, `AckOutcomeUnknown`, `NotOwner`.
        """
        raise NotImplementedError

    async def seek(self, offset: int) -> int:
        """Set the cursor to `offset` (clamped to what is there) and return it; ends all leases.

        Everything before it counts as acked, nothing from it on. See `Partition.resolve`.
        """
        raise NotImplementedError

    def stats(self) -> SubscriptionStats:
        """Live figures."""
        raise NotImplementedError
