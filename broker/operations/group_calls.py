"""Run the calls of consumer groups' members at the group's coordinator.

A member gets only partitions of topics that it may consume. A call that names other topics is
refused; patterns skip other topics.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from octavo.broker.errors import GROUP_FULL, TopicNotFound
from octavo.broker.operations.kinds import (
    AnyAnswer,
    DescribeGroup,
    Done,
    GroupOperation,
    Heartbeat,
    LeaveGroup,
)
from octavo.broker.operations.quotas import share_of
from octavo.broker.types import GroupName, PartitionName, TopicName

if TYPE_CHECKING:
    from octavo.broker.broker import Broker
    from octavo.broker.groups.coordinator import Groups
    from octavo.broker.groups.group import Membership
    from octavo.broker.types import TopicInfo
    from octavo.security.principal import Identity

CHARS_A_RECORD = 20
"""Comparing this many characters with patterns costs as much as a message."""


class GroupRules(Protocol):
    def may_consume(self, identity: Identity, topic: TopicName, subscription: str) -> bool: ...

    def may_found_group(self, identity: Identity, name: GroupName, groups: Groups) -> None: ...


async def run(
    broker: Broker,
    groups: Groups,
    operation: GroupOperation,
    identity: Identity,
    rules: GroupRules,
) -> AnyAnswer:
    if isinstance(operation, DescribeGroup):
        return groups.describe_group(operation.group)
    if isinstance(operation, LeaveGroup):
        groups.leave(operation.group, operation.member, identity.name)
        return Done()
    return await _heartbeat(broker, groups, operation, identity, rules)


async def _heartbeat(
    broker: Broker, groups: Groups, operation: Heartbeat, identity: Identity, rules: GroupRules
) -> Membership:
    wants = await _wanted(broker, operation, identity, rules, groups.limits.group_partitions_max)
    holds = await _held(broker, operation, identity, rules)
    if groups.find(operation.group) is None:
        rules.may_found_group(identity, operation.group, groups)
    return await groups.heartbeat(
        operation.group,
        operation.member,
        identity.name,
        wants,
        holds,
        generation=operation.generation,
        session_ms=operation.session_ms,
        wait_ms=operation.wait_ms,
        founder=share_of(identity),
    )


async def _held(
    broker: Broker, operation: Heartbeat, identity: Identity, rules: GroupRules
) -> frozenset[PartitionName]:
    turns = broker.open_batches.turns
    may: dict[TopicName, bool] = {}
    found: dict[PartitionName, None] = {}
    for one in operation.holds:
        await turns.take(1)
        topic = one.topic_name
        if topic not in may:
            may[topic] = rules.may_consume(identity, topic, operation.group.group)
        if may[topic]:
            found[one] = None
    return frozenset(found)


async def _wanted(
    broker: Broker, operation: Heartbeat, identity: Identity, rules: GroupRules, most: int
) -> list[PartitionName]:
    """Return the wanted partitions. Raises `TopicNotFound` for a topic by name."""
    topics, name = broker.topics, operation.group
    wanted: dict[PartitionName, None] = {}

    def want(topic: TopicName, info: TopicInfo) -> None:
        wanted.update(dict.fromkeys(map(topic.partition, range(info.settings.partitions))))
        if len(wanted) > most:  # now, and not after another thousand topics
            raise GROUP_FULL(
                f"those topics have more than {most} partitions, the most that a group may have "
                "(group_partitions_max): name fewer topics, or use several groups"
            )

    for pattern in operation.topics:
        if not pattern.is_wild:
            one = TopicName(*pattern)
            want(one, await topics.get(one))
    wild = [pattern for pattern in operation.topics if pattern.is_wild]
    if wild:
        turns = broker.open_batches.turns
        for topic in await topics.names_in(name.namespace):
            await turns.take(1 + len(wild) * len(topic) // CHARS_A_RECORD)
            meant = [pattern for pattern in wild if pattern.matches(topic)]
            one = TopicName(name.namespace, topic)
            if meant and rules.may_consume(identity, one, name.group):
                with contextlib.suppress(TopicNotFound):  # deleted meanwhile
                    info = await topics.get(one)
                    if any(
                        pattern.matches(topic, has_letters=info.has_letters) for pattern in meant
                    ):
                        want(one, info)
    return list(wanted)
