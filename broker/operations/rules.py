"""The rules for every operation: rights, audit, quotas, rates, sizes, sound batches.

`begin` and `end` are for this broker's clients; `admit` checks other brokers' clients again at the
owner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from octavo.broker.errors import InvalidTimestamp, UnsupportedBatch
from octavo.broker.operations.batch_proofs import BatchProofs
from octavo.broker.operations.kinds import (
    RULES,
    AnyAnswer,
    AnyOperation,
    BrokerOperation,
    Given,
    GroupOperation,
    Heartbeat,
    Leases,
    On,
    Peeked,
    Publish,
    brings_messages,
    subscription_of,
)
from octavo.broker.operations.large import Room
from octavo.broker.operations.large_kinds import BodyPiece, OpenBody
from octavo.broker.operations.stream_kinds import (
    AppendToStream,
    MakeStream,
    StreamAppended,
    StreamMade,
    StreamPage,
)
from octavo.broker.types import Delivery, GroupName, SlowedBy, StoredBatch, TopicName, TopicSettings
from octavo.protocol.batch import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BatchHeader,
    InvalidBatch,
    check_batch,
)
from octavo.protocol.calendar import NO_TIME_MS, in_calendar, unit_hint
from octavo.protocol.compression import compression_of
from octavo.protocol.records import record_bytes
from octavo.security.principal import Forbidden
from octavo.security.rules import CLUSTER, Kind, Operation, Resource

if TYPE_CHECKING:
    from octavo.broker.broker import Broker
    from octavo.broker.groups.coordinator import Groups
    from octavo.broker.metrics import Metrics
    from octavo.broker.operations.authorizer import Authorizer
    from octavo.broker.operations.large import Memory
    from octavo.broker.operations.producer_ids import ProducerIds
    from octavo.broker.operations.quotas import OperationQuotas
    from octavo.security.principal import Identity

CALL = "operation"
_SILENT = TopicSettings()
_WITH_BODY = AppendToStream | MakeStream
Value = TypeVar("Value")


class BrokerRules:
    def __init__(
        self,
        broker: Broker,
        authorizer: Authorizer,
        quotas: OperationQuotas,
        producer_ids: ProducerIds,
        metrics: Metrics,
        message_bytes_max: int,
        large_message_bytes_max: int,
        memory: Memory,
    ) -> None:
        self._broker = broker
        self._authorizer = authorizer
        self._quotas = quotas
        self.producer_ids = producer_ids
        self._metrics = metrics
        self._message_bytes_max = message_bytes_max
        self._large_message_bytes_max = large_message_bytes_max
        self._memory = memory
        self.proofs = BatchProofs()

    async def begin(self, identity: Identity, operation: AnyOperation, peer: str) -> None:
        _check_inner(identity, operation)
        for right, resource in self._needed(identity, operation):
            self._authorizer.check(identity, right, resource, peer, CALL)
        rate = RULES[type(operation)].rate
        if not isinstance(operation, Publish):
            size = len(operation.body) if isinstance(operation, _WITH_BODY) else 0
            self._quotas.begin(identity, rate, size)
            return
        headers = [check_whole(batch) for batch in operation.batches]
        messages = sum(header.record_count for header in headers)
        self._quotas.begin(identity, rate, sum(map(len, operation.batches)), messages)
        topic, is_single = operation.name.topic_name, operation.is_single
        for header, batch in zip(headers, operation.batches, strict=True):
            await self.check_batch(topic, header, batch, peer, _hold_nothing, is_single=is_single)

    async def check_batch(
        self,
        topic: TopicName,
        header: BatchHeader,
        batch: bytes,
        peer: str,
        hold: Callable[[int], Awaitable[None]],
        *,
        is_single: bool = False,
    ) -> None:
        """Check a batch; `hold` counts the memory to unpack it."""
        check_supported(header)
        most = self.single_bytes_max(topic) if is_single else self.message_bytes_max(topic)
        await self.proofs.prove(header, batch, peer, hold, most)

    def check_topics(self, identity: Identity, operation: Heartbeat, peer: str) -> None:
        for right, on in RULES[Heartbeat].needs:
            if on is not On.GROUP:
                for resource in _resources(operation, on):
                    self._authorizer.check(identity, right, resource, peer, CALL)

    def end(self, identity: Identity, operation: AnyOperation, answer: AnyAnswer) -> None:
        if not self._quotas.on:
            return
        if isinstance(answer, Given):
            messages = sum(batch.header.record_count for batch in answer.batches)
            most = getattr(operation, "count_max", messages)
            size = sum(len(batch.data) for batch in answer.batches)
            self._quotas.took(identity, size, min(messages, most))
        elif isinstance(answer, StreamPage):
            size = sum(len(batch.data) for batch in answer.batches)
            self._quotas.took(identity, size, answer.following - answer.start)
        elif isinstance(answer, StreamMade | StreamAppended):
            self._quotas.brought(identity, answer.messages)
        elif isinstance(answer, Leases):
            self._quotas.took(identity, _size_of_leases(answer), answer.count)
        elif isinstance(answer, BodyPiece):
            self._quotas.took(identity, len(answer.data), isinstance(operation, OpenBody))
        elif isinstance(answer, Peeked):
            self._quotas.took(identity, _size_of(answer.deliveries), len(answer.deliveries))

    def message_bytes_max(self, topic: TopicName) -> int | None:
        most = self._broker.topics.settings_of(topic, _SILENT).policies.message_bytes_max
        return None if most is None or most >= self._message_bytes_max else most

    def single_bytes_max(self, topic: TopicName) -> int:
        return self.message_bytes_max(topic) or self._message_bytes_max

    def large_bytes_max(self, topic: TopicName) -> int:
        most = self._broker.topics.settings_of(topic, _SILENT).policies.message_bytes_max
        return min(most or self._large_message_bytes_max, self._large_message_bytes_max)

    def hides_schema(self, identity: Identity, topic: TopicName) -> bool:
        if not self._authorizer.secured:
            return False
        subject = self._broker.topics.settings_of(topic, _SILENT).schema_subject
        if subject is None:
            return True
        resource = Resource(Kind.TOPIC, f"{topic.namespace}/{subject}")
        return not self._authorizer.may(identity, Operation.DESCRIBE, resource)

    def admit(self, identity: Identity, operation: AnyOperation, peer: str) -> None:
        _check_inner(identity, operation)
        for right, resource in self._needed(identity, operation):
            self._authorizer.check_at_owner(identity, right, resource, peer, CALL)
        if not RULES[type(operation)].is_inner:
            self._quotas.admit_at_owner(identity)

    async def measured(self, identity: Identity, namespace: str, work: Awaitable[Value]) -> Value:
        return await self._quotas.measured_for(identity, namespace, work)

    def owned(self, namespace: str) -> None:
        self._quotas.owned_here(namespace)

    def may_publish(self, topic: TopicName) -> None:
        self._quotas.may_publish(topic)

    def stored(self, topic: TopicName, size: int, messages: int) -> None:
        self._quotas.stored(topic, size, messages)

    def not_stored(self, topic: TopicName, size: int, messages: int) -> None:
        self._quotas.not_stored(topic, size, messages)

    def published(self, size: int, messages: int) -> None:
        self._metrics.messages_published.inc(messages)
        self._metrics.bytes_published.inc(size)

    def may_read(self, topic: TopicName) -> None:
        self._quotas.may_read(topic)

    def given(self, topic: TopicName, batches: list[StoredBatch], messages: int) -> None:
        self._metrics.messages_read.inc(messages)
        self._quotas.given(topic, batches, messages)

    def delivered(self, topic: TopicName, leases: Leases) -> None:
        self._metrics.messages_delivered.inc(leases.count)
        if self._quotas.counts(topic):
            self._quotas.gave(topic, _size_of_leases(leases), leases.count)

    def shown(self, topic: TopicName, messages: list[Delivery]) -> None:
        if self._quotas.counts(topic):
            self._quotas.gave(topic, _size_of(messages), len(messages))

    def gave(self, topic: TopicName, size: int, messages: int) -> None:
        self._quotas.gave(topic, size, messages)

    def room(self, identity: Identity, namespace: str, broker_id: str) -> Room:
        return Room(self._memory, broker_id, self._quotas.sharers(identity, namespace))

    def rates_of(self, topic: TopicName) -> SlowedBy:
        return self._quotas.rates_of(topic)

    def may_consume(self, identity: Identity, topic: TopicName, subscription: str) -> bool:
        may = self._authorizer.may
        return not self._authorizer.secured or (
            may(identity, Operation.CONSUME, Resource(Kind.TOPIC, str(topic)))
            and may(identity, Operation.CONSUME, _subscription(topic, subscription))
        )

    def may_found_group(self, identity: Identity, name: GroupName, groups: Groups) -> None:
        self._quotas.check_groups(identity, name.namespace, groups)

    def bound(self, identity: Identity, batch: bytes) -> bytes:
        return self.producer_ids.bound(identity, batch)

    def bound_name(self, identity: Identity, producer: str) -> str:
        return self.producer_ids.bound_name(identity, producer)

    def _needed(
        self, identity: Identity, operation: AnyOperation
    ) -> Iterator[tuple[Operation, Resource]]:
        for right, on in RULES[type(operation)].needs:
            for resource in _resources(operation, on):
                if on is On.NEW_TOPIC:
                    namespace = Resource(Kind.NAMESPACE, resource.name.partition("/")[0])
                    is_instead = not self._authorizer.may(identity, right, resource)
                    is_instead = is_instead and self._authorizer.may(identity, right, namespace)
                    yield right, namespace if is_instead else resource
                else:
                    yield right, resource


def _resources(operation: AnyOperation, on: On) -> Iterator[Resource]:
    if on is On.CLUSTER:
        yield CLUSTER
    elif isinstance(operation, GroupOperation):
        if on is On.GROUP:
            yield Resource(Kind.SUBSCRIPTION, str(operation.group))
        elif isinstance(operation, Heartbeat):
            yield from _of_named_topics(operation, on)
    elif isinstance(operation, BrokerOperation):
        raise AssertionError("these are about the cluster")
    elif on is On.SUBSCRIPTION:
        if subscription := subscription_of(operation):
            yield _subscription(operation.name.topic_name, subscription)
    elif on in (On.TOPIC, On.NEW_TOPIC) or _concerns(on, operation):
        yield Resource(Kind.TOPIC, str(operation.name.topic_name))


def _of_named_topics(operation: Heartbeat, on: On) -> Iterator[Resource]:
    for pattern in operation.topics:
        if not pattern.is_wild:
            topic = TopicName(*pattern)
            if on is On.TOPICS:
                yield Resource(Kind.TOPIC, str(topic))
            else:
                yield _subscription(topic, operation.group.group)


def _subscription(topic: TopicName, name: str) -> Resource:
    return Resource(Kind.SUBSCRIPTION, f"{topic}/{name}")


def _concerns(on: On, operation: AnyOperation) -> bool:
    if on is On.BROUGHT_TO:
        return brings_messages(operation)
    assert isinstance(operation, MakeStream)
    return operation.may_convert and (on is On.CONVERTED or operation.expires)


def _check_inner(identity: Identity, operation: AnyOperation) -> None:
    if RULES[type(operation)].is_inner and not identity.is_node:
        raise Forbidden(
            f"{type(operation).__name__} is for brokers alone, and {identity.name} is a client"
        )


def check_whole(batch: bytes) -> BatchHeader:
    header = check_batch(batch)
    if header.total_bytes != len(batch):
        raise InvalidBatch(
            f"the record batch has {header.total_bytes} bytes by its header, and {len(batch)} came"
        )
    return header


def check_supported(header: BatchHeader) -> None:
    """Refuse unsupported features of a batch, and impossible times."""
    compression_of(header.attributes & ATTRIBUTE_COMPRESSION)
    if header.attributes & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL):
        raise UnsupportedBatch("transactional and control batches are not supported yet")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise InvalidBatch(
            f"record batch names producer {header.producer_id} but epoch {header.producer_epoch} "
            f"and sequence {header.base_sequence}: all three are 0 or more, or all three are -1"
        )
    for time_ms in (header.first_timestamp, header.max_timestamp):
        if time_ms != NO_TIME_MS and not in_calendar(time_ms):
            raise InvalidTimestamp(
                f"record batch has timestamp {time_ms}, which is not in milliseconds from 1970 to "
                f"9999: {unit_hint(time_ms)}"
            )


def _size_of_leases(leases: Leases) -> int:
    return sum(map(len, leases.batches)) + _size_of(leases.deliveries)


def _size_of(messages: list[Delivery]) -> int:
    records = (one.record for one in messages)
    return sum(record_bytes(one.key, one.value, one.headers) for one in records)


async def _hold_nothing(size: int) -> None:
    """Do nothing: large batches are unpacked one at a time, so their memory is bounded."""
