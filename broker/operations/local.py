"""Run an operation on the open partition of this broker.

The broker that the client called has checked the length of each message, and each record of a
batch; the owner relies on that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from octavo.broker.errors import PublishOutcomeUnknown, StaleLease, TooManyDelayed
from octavo.broker.log.open_batches import Turns
from octavo.broker.operations import control, large, settling, streams
from octavo.broker.operations.control import resolve
from octavo.broker.operations.given import given_of, stored_of
from octavo.broker.operations.kinds import (
    RULES,
    AnyAnswer,
    AnyOperation,
    Await,
    Awaited,
    Done,
    Fate,
    Given,
    Leases,
    LocalOperation,
    Publish,
    Rate,
    Read,
    Receive,
    Refusal,
    Settle,
    Settled,
    StoreCopy,
    Stored,
    WriteAudit,
    brings_messages,
)
from octavo.broker.operations.large_kinds import LargeRead
from octavo.broker.operations.stream_kinds import StreamOperation
from octavo.broker.partition.message_batcher import Placed
from octavo.broker.partition.partition import Partition
from octavo.broker.subscriptions.subscription import LeasedBatches
from octavo.broker.types import Delivery, GroupName, Published, SlowedBy, StoredBatch, TopicName
from octavo.protocol.batch import check_batch, read_header
from octavo.protocol.records import Record, read_records
from octavo.security.principal import Identity

if TYPE_CHECKING:
    from octavo.broker.broker import Broker
    from octavo.broker.groups.coordinator import Groups
    from octavo.broker.operations.large import Room

Value = TypeVar("Value")


class Rules(Protocol):
    def admit(self, identity: Identity, operation: AnyOperation, peer: str) -> None: ...

    async def measured(
        self, identity: Identity, namespace: str, work: Awaitable[Value]
    ) -> Value: ...

    def owned(self, namespace: str) -> None: ...

    def may_publish(self, topic: TopicName) -> None: ...

    def stored(self, topic: TopicName, size: int, messages: int) -> None: ...

    def not_stored(self, topic: TopicName, size: int, messages: int) -> None: ...

    def published(self, size: int, messages: int) -> None: ...

    def may_read(self, topic: TopicName) -> None: ...

    def given(self, topic: TopicName, batches: list[StoredBatch], messages: int) -> None: ...

    def delivered(self, topic: TopicName, leases: Leases) -> None: ...

    def shown(self, topic: TopicName, messages: list[Delivery]) -> None: ...

    def gave(self, topic: TopicName, size: int, messages: int) -> None: ...

    def rates_of(self, topic: TopicName) -> SlowedBy: ...

    def bound(self, identity: Identity, batch: bytes) -> bytes: ...

    def may_consume(self, identity: Identity, topic: TopicName, subscription: str) -> bool: ...

    def may_found_group(self, identity: Identity, name: GroupName, groups: Groups) -> None: ...

    def bound_name(self, identity: Identity, producer: str) -> str: ...

    def message_bytes_max(self, topic: TopicName) -> int | None: ...

    def large_bytes_max(self, topic: TopicName) -> int: ...

    def room(self, identity: Identity, namespace: str, broker_id: str) -> Room: ...


async def publish_all(
    partition: Partition,
    topic: TopicName,
    batches: Sequence[bytes],
    counts: Sequence[int],
    expected: Sequence[int | None],
    access: int | None,
    identity: Identity,
    rules: Rules,
    *,
    checked: bool,
) -> list[Published | BaseException]:
    """Publish batches; charge all at the beginning, and give back what is not stored."""
    rules.may_publish(topic)
    rules.stored(topic, sum(map(len, batches)), sum(counts))
    work = [
        partition.publish(
            rules.bound(identity, batch), expected_offset=at, checked=checked, access=access
        )
        for batch, at in zip(batches, expected, strict=True)
    ]
    found = await asyncio.gather(*work, return_exceptions=True)
    for batch, count, one in zip(batches, counts, found, strict=True):
        if isinstance(one, Published) and not one.duplicate:
            rules.published(len(batch), count)
        elif not isinstance(one, PublishOutcomeUnknown):
            rules.not_stored(topic, len(batch), count)
    return found


async def publish_single(
    partition: Partition, topic: TopicName, record: Record, rules: Rules
) -> Placed:
    rules.may_publish(topic)
    placed = await partition.publish_single(record)
    count_single(placed, topic, rules)
    return placed


def count_single(placed: Placed, topic: TopicName, rules: Rules) -> None:
    size = 0 if placed.number else placed.batch_bytes
    rules.stored(topic, size, 1)
    rules.published(size, 1)


async def run(
    broker: Broker,
    partition: Partition,
    operation: LocalOperation,
    identity: Identity,
    rules: Rules,
    refusal_of: Callable[[BaseException], Refusal],
) -> AnyAnswer:
    if isinstance(operation, Publish):
        return await _publish(partition, operation, identity, rules, refusal_of)
    rate = RULES[type(operation)].rate
    if rate is Rate.INTO:
        rules.may_publish(operation.name.topic_name)
    elif rate is Rate.OUT_OF:
        rules.may_read(operation.name.topic_name)
    elif rate is Rate.INTO_IF_ANY and brings_messages(operation):
        rules.may_publish(operation.name.topic_name)
    if isinstance(operation, Read):
        return await _read(partition, operation, rules)
    if isinstance(operation, Await):
        return await _await(partition, operation)
    if isinstance(operation, Receive):
        return await _receive(partition, operation, rules)
    if isinstance(operation, Settle):
        return await _settle(partition, operation, broker.open_batches.turns)
    if isinstance(operation, StoreCopy):
        await partition.store_copy(operation.batch)
        return Done()
    if isinstance(operation, WriteAudit):
        await partition.publish(operation.batch, own=True)
        return Done()
    if isinstance(operation, LargeRead):
        return await large.read(partition, operation, rules)
    if isinstance(operation, StreamOperation):
        return await streams.run(broker, partition, operation, identity, rules)
    return await control.run(broker, partition, operation, rules)


async def _publish(
    partition: Partition,
    operation: Publish,
    identity: Identity,
    rules: Rules,
    refusal_of: Callable[[BaseException], Refusal],
) -> Stored:
    batches = operation.batches
    if operation.is_single:
        return await _publish_single(partition, operation, rules)
    counts = [read_header(batch).record_count for batch in batches]
    found = await publish_all(
        partition,
        operation.name.topic_name,
        batches,
        counts,
        _expected(operation.expected_offset, counts),
        operation.access,
        identity,
        rules,
        checked=False,  # the batches came over a network
    )
    if len(found) == 1 and isinstance(error := found[0], BaseException):
        raise error  # the whole operation is refused
    fates = [
        Fate(one) if isinstance(one, Published) else Fate(None, refusal_of(one).cut())
        for one in found
    ]
    return Stored(fates, partition.epoch)


async def _publish_single(partition: Partition, operation: Publish, rules: Rules) -> Stored:
    topic = operation.name.topic_name
    (batch,) = operation.batches
    check_batch(batch)
    (record,) = read_records(batch)
    placed = await publish_single(partition, topic, record, rules)
    return Stored([Fate(placed.published, None, placed.number)], partition.epoch)


def _expected(first: int | None, counts: list[int]) -> list[int | None]:
    if first is None:
        return [None] * len(counts)
    return [first + sum(counts[:index]) for index in range(len(counts))]


async def _read(partition: Partition, operation: Read, rules: Rules) -> Given:
    topic = operation.name.topic_name
    place = operation.at
    bytes_max = operation.page_bytes
    if operation.compacted:
        view = partition.compacted
        start = await resolve(view, place)
        batches, start, following = await view.read(
            start, bytes_max=bytes_max, count_max=operation.count_max
        )
    else:
        start = await resolve(partition, place)
        batches = await partition.read(start, bytes_max=bytes_max, count_max=operation.count_max)
        following = batches[-1].next_offset if batches else start
    if batches:
        messages = sum(batch.header.record_count for batch in batches)
        rules.given(topic, batches, min(messages, operation.count_max))
    return Given(given_of(batches), start, following, partition.epoch)


async def _await(partition: Partition, operation: Await) -> Awaited:
    log = partition.compacted if operation.compacted else partition
    wait_s = operation.wait_ms / 1000
    found = await log.read(operation.offset, bytes_max=1, count_max=1, wait_s=wait_s)
    return Awaited(bool(found[0] if operation.compacted else found))


async def _receive(partition: Partition, operation: Receive, rules: Rules) -> Leases:
    topic = operation.name.topic_name
    subscription = await partition.subscription(operation.subscription)
    receive = subscription.receive_batches if operation.as_stored else subscription.receive
    found = await receive(
        operation.consumer,
        messages_max=operation.most,
        wait_s=operation.wait_ms / 1000,
        request=operation.request,
        out_max=operation.out_max,
        generation=operation.generation,
        priority=operation.priority,
    )
    epoch = partition.epoch
    if isinstance(found, LeasedBatches):
        leases = Leases([], found.leased, [one.data for one in found.batches], None, epoch)
    elif found:
        leases = Leases(found, None, [], None, epoch)
    else:
        subscription = await partition.subscription(operation.subscription)
        return Leases([], None, [], subscription.held_back(operation.consumer), epoch)
    rules.delivered(topic, leases)
    return leases


async def _settle(partition: Partition, operation: Settle, turns: Turns) -> Settled:
    subscription = await partition.subscription(operation.subscription)
    to = None if operation.up_to is None else await resolve(partition, operation.up_to)
    acked = 0
    stale: list[str] = []
    refused = ""
    async with aclosing(settling.parts_of(operation, turns)) as parts:
        async for part in parts:
            try:
                acked += await subscription.acknowledge(up_to=to, **part)
            except StaleLease as error:
                stale += error.stale
            except TooManyDelayed as error:
                refused = str(error)
            to = None
    if operation.unread:
        with suppress(StaleLease):  # messages whose lease is over need no release
            await subscription.take_back(operation.unread)
    return Settled(acked, stale, refused, partition.epoch)


def batches_of(given: Given) -> list[StoredBatch]:
    return stored_of(given.batches)
