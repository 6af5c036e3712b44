"""The driver of one owned partition: publish, read, subscriptions.

Promises: a publish that returned is durable on an ack quorum and has its offset for ever; offsets
have no gaps; a repeated producer sequence is stored once. Relies on fencing: after a take-over the
old owner's ledger takes no more adds. On a crash the next owner recovers the last ledger and
replays the state ledger; nothing here is needed.
"""

from __future__ import annotations

from broker.subscription import Subscription
from broker.types import (
    MessageId,
    PartitionName,
    PartitionStats,
    Published,
    StoredBatch,
    SubscriptionInfo,
)


class Partition:
    """One partition that this broker owns and has open."""

    name: PartitionName

    @property
    def earliest_offset(self) -> int:
        """The first offset that retention has left."""
        raise NotImplementedError

    @property
    def next_offset(self) -> int:
        """The end: one past the last durable message."""
        raise NotImplementedError

    async def publish(
        self, batch: bytes, *, expected_offset: int | None = None, checked: bool = False
    ) -> Published:
        """Store one RecordBatch v2 as it is and return its place once it is durable.

        Producer id, epoch and base sequence are read from its header (-1: not idempotent).
        `expected_offset`: store only at this offset. `checked`: the caller has passed the batch
        through `protocol.batch.check_batch` already. Calls take effect in the order in which they
        were made. Raises `InvalidBatch`, `BatchTooLong`, `StaleProducerEpoch`, `SequenceGap`,
        `OffsetMismatch`, `Overloaded`; `NotOwner` and `PartitionUnavailable` (nothing was stored);
        `PublishOutcomeUnknown` (it may have been).
        """
        raise NotImplementedError

    async def read(
        self, offset: int, *, bytes_max: int, count_max: int, wait_s: float = 0.0
    ) -> list[StoredBatch]:
        """Whole batches from the one that contains `offset`; the caller skips its first records.

        At least one batch if there is any, then no more than `bytes_max` bytes and `count_max`
        messages. At the end: waits up to `wait_s` for something new, then returns []. Raises
        `OffsetTrimmed`, `OffsetBeyondEnd`, `NotOwner`.
        """
        raise NotImplementedError

    async def offset_at(self, time_ms: int) -> int:
        """The first offset whose batch has a message as new as `time_ms`; the end if there is none.

        Precise to a batch, as in Kafka's time index; within it the record timestamps decide.
        """
        raise NotImplementedError

    async def position(self, message_id: MessageId) -> int:
        """The offset of a message id. Raises `MessageNotFound`, `OffsetTrimmed`."""
        raise NotImplementedError

    async def resolve(
        self, *, at: MessageId | int | str | None = None, time_ms: int | None = None
    ) -> int:
        """The offset meant by `earliest`, `latest`, an offset, a message id, or a time (one of)."""
        raise NotImplementedError

    async def subscribe(self, info: SubscriptionInfo) -> Subscription:
        """Make the cursor durable at the subscription's start, if it is not there yet."""
        raise NotImplementedError

    async def subscription(self, name: str) -> Subscription:
        """The subscription's part in this partition. Raises `SubscriptionNotFound`."""
        raise NotImplementedError

    def stats(self) -> PartitionStats:
        """Live figures; costs nothing."""
        raise NotImplementedError
