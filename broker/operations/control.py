"""Run the operations that move or show cursors, find offsets, or truncate."""

from __future__ import annotations

from typing import Protocol

from octavo.broker.operations.kinds import (
    AnyAnswer,
    At,
    ControlOperation,
    DescribePartition,
    DescribeSubscription,
    Expire,
    FindOffset,
    Found,
    Moved,
    Peek,
    Peeked,
    Position,
    Seek,
    Skip,
    Subscribe,
    Truncate,
    Truncated,
    position_of,
)
from octavo.broker.partition.compacted import CompactedLog
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Delivery, MessageId, TopicName


class Charges(Protocol):
    """The part of `octavo.broker.operations.local.Rules` that is needed here."""

    def shown(self, topic: TopicName, messages: list[Delivery]) -> None:
        """Charge messages that are shown to a client, and not leased."""


async def resolve(partition: Partition | CompactedLog, at: At | Position) -> int:
    """Return the offset that `at` means in this partition, or in its compacted view."""
    position = at if isinstance(at, tuple) else position_of(at)
    if isinstance(position, tuple) and not isinstance(position, MessageId):
        return await partition.resolve(time_ms=position[0])
    return await partition.resolve(at=position)


async def run(partition: Partition, operation: ControlOperation, rules: Charges) -> AnyAnswer:
    """Run an operation, and return its answer. Raises the error that refuses it."""
    if isinstance(operation, FindOffset):
        log = partition.compacted if operation.compacted else partition
        offset = await resolve(log, operation.at)
        return Found(offset, partition.earliest_offset, partition.next_offset)
    if isinstance(operation, Truncate):
        return Truncated(await partition.truncate(await resolve(partition, operation.at)))
    if isinstance(operation, DescribePartition):
        return partition.stats()
    if isinstance(operation, Subscribe | DescribeSubscription):
        subscription = await partition.subscription(operation.subscription)
        if isinstance(operation, Subscribe):
            subscription.use()
        return subscription.stats()
    if isinstance(operation, Peek):
        return await _peek(partition, operation, rules)
    return await _move(partition, operation)


async def _move(partition: Partition, operation: Seek | Skip | Expire) -> Moved:
    """Move the cursor of a subscription."""
    subscription = await partition.subscription(operation.subscription)
    if isinstance(operation, Seek):
        offset = await resolve(partition, operation.at)
        return Moved(0, await subscription.seek(offset, exactly=isinstance(operation.at, int)))
    if isinstance(operation, Skip):
        acked = await subscription.skip(operation.messages)
    else:
        until_ms = max(0, partition.wall_ms() - operation.age_ms)
        acked = await subscription.ack_before(await partition.resolve(time_ms=until_ms))
    return Moved(acked, subscription.committed_offset)


async def _peek(partition: Partition, operation: Peek, rules: Charges) -> Peeked:
    subscription = await partition.subscription(operation.subscription)
    found = await subscription.peek(operation.most)
    rules.shown(operation.name.topic_name, found)
    return Peeked(found)
