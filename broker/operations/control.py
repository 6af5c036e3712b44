"""Run the operations that neither store messages nor lease them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from octavo.broker.operations.kinds import (
    AccessNow,
    AcquireAccess,
    AnyAnswer,
    At,
    ControlOperation,
    DescribeAccess,
    DescribePartition,
    DescribeSubscription,
    Done,
    Expire,
    Explain,
    ExplainedSubscription,
    Explanation,
    FindForkPoint,
    FindOffset,
    FindUnused,
    ForkPlace,
    Found,
    Loaded,
    LoadPart,
    Moved,
    Peek,
    Peeked,
    Position,
    ReleaseAccess,
    Seek,
    Skip,
    Subscribe,
    Truncate,
    Truncated,
    Unload,
    Unloaded,
    Unused,
    position_of,
)
from octavo.broker.partition.compacted import CompactedLog
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Delivery, MessageId, SlowedBy, TopicName

if TYPE_CHECKING:
    from octavo.broker.broker import Broker


class Charges(Protocol):
    def shown(self, topic: TopicName, messages: list[Delivery]) -> None: ...

    def rates_of(self, topic: TopicName) -> SlowedBy: ...


async def resolve(partition: Partition | CompactedLog, at: At | Position) -> int:
    position = at if isinstance(at, tuple) else position_of(at)
    if isinstance(position, tuple) and not isinstance(position, MessageId):
        return await partition.resolve(time_ms=position[0])
    return await partition.resolve(at=position)


async def run(
    broker: Broker, partition: Partition, operation: ControlOperation, rules: Charges
) -> AnyAnswer:
    if isinstance(operation, AcquireAccess | ReleaseAccess | DescribeAccess):
        return await _access(partition, operation)
    if isinstance(operation, Explain):
        return await _explain(broker, partition, operation, rules)
    if isinstance(operation, Unload):
        successor = await broker.balance.unload(operation.name, operation.to)
        return Unloaded(broker.broker_id, successor.broker_id)
    if isinstance(operation, LoadPart):
        return Loaded(await partition.load_part(operation.bulk_load, operation.batch))
    if isinstance(operation, FindUnused):
        return _unused(partition, operation)
    if isinstance(operation, FindForkPoint):
        epoch = partition.epoch
        offset, cut = await partition.fork_point(await resolve(partition, operation.at))
        return ForkPlace(epoch, offset, cut)
    return await _on_cursors(partition, operation, rules)


async def _on_cursors(
    partition: Partition,
    operation: FindOffset
    | Truncate
    | Peek
    | Seek
    | Skip
    | Expire
    | Subscribe
    | DescribeSubscription
    | DescribePartition,
    rules: Charges,
) -> AnyAnswer:
    if isinstance(operation, FindOffset):
        log = partition.compacted if operation.compacted else partition
        offset = await resolve(log, operation.at)
        return Found(offset, partition.earliest_offset, partition.next_offset)
    if isinstance(operation, Truncate):
        return Truncated(await partition.truncate(await resolve(partition, operation.at)))
    if isinstance(operation, DescribePartition):
        return await partition.stats()
    if isinstance(operation, Subscribe | DescribeSubscription):
        subscription = await partition.subscription(operation.subscription)
        if isinstance(operation, Subscribe):
            subscription.use()
        return subscription.stats()
    if isinstance(operation, Peek):
        return await _peek(partition, operation, rules)
    return await _move(partition, operation)


async def _move(partition: Partition, operation: Seek | Skip | Expire) -> Moved:
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


def _unused(partition: Partition, operation: FindUnused) -> Unused:
    for_ms, retire_s, name = operation.for_ms, operation.retire_ms / 1000, operation.subscription
    if name:
        return Unused(partition.is_subscription_unused(name, for_ms, retire_s))
    return Unused(partition.is_unused(for_ms, retire_s))


async def _access(
    partition: Partition, operation: AcquireAccess | ReleaseAccess | DescribeAccess
) -> AccessNow | Done:
    if isinstance(operation, ReleaseAccess):
        await partition.release_access(operation.epoch)
        return Done()
    if isinstance(operation, DescribeAccess):
        await partition.prove()
        epoch, producer, _ = partition.access
        return AccessNow(epoch, producer, partition.next_offset)
    state, next_offset = await partition.acquire_access(
        operation.producer,
        session_ms=operation.session_ms,
        fencing=operation.fencing,
        wait_s=operation.wait_ms / 1000,
    )
    return AccessNow(state.epoch, state.producer, next_offset)


async def _explain(
    broker: Broker, partition: Partition, operation: Explain, rules: Charges
) -> Explanation:
    figures = await partition.stats()
    place = broker.balance.place_of(partition.name)
    rates = rules.rates_of(operation.name.topic_name)
    explained = None
    if operation.subscription:
        subscription = await partition.subscription(operation.subscription)
        stats = subscription.stats()
        most, of_one = subscription.unacked_limits()
        explained = ExplainedSubscription(
            stats,
            most,
            of_one,
            [one for one in (stats.held_back, *rates.out_of) if one is not None],
            [subscription.held_back(one.name) for one in stats.consumers],
            subscription.waiting(),
        )
    return Explanation(figures, *place, partition.publishing(), list(rates.into), explained)
