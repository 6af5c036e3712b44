"""The topics that brokers write for themselves, and what clients may do to them. Pure.

    read, subscribe, describe     clients that a rule allows it
    alter, delete, truncate       administrators of the cluster: these remove messages
    produce, create               brokers alone: a client could forge or mute the topic

The gate applies this table to every call (http/gate.py); partitions and the catalogue of topics
check again (`check_not_internal`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from octavo.broker.errors import AUDIT_TOPIC_CLOSED, BrokerError
from octavo.broker.types import TopicName
from octavo.security.rules import Kind, Operation, Resource

AUDIT_TOPIC = TopicName("octavo", "audit")
AUDIT_PARTITION = AUDIT_TOPIC.partition(0)
INTERNAL_TOPICS = frozenset({AUDIT_TOPIC})
_NAMES = frozenset(map(str, INTERNAL_TOPICS))
INTERNAL_NAMESPACES = frozenset(topic.namespace for topic in INTERNAL_TOPICS)


class Door(enum.Enum):
    OPEN = "open"
    ADMINISTRATORS = "administrators"
    SHUT = "shut"


_DOORS: Mapping[Operation, Door] = {
    Operation.DESCRIBE: Door.OPEN,
    Operation.CONSUME: Door.OPEN,
    Operation.ALTER: Door.ADMINISTRATORS,
    Operation.DELETE: Door.ADMINISTRATORS,
}
_CHANGES = (Operation.CREATE, Operation.ALTER, Operation.DELETE)


def door_of(operation: Operation, resource: Resource) -> Door:
    """Return who may do this; `OPEN` for a resource that is not internal."""
    if resource.kind is Kind.TOPIC and resource.name in _NAMES:
        return _DOORS.get(operation, Door.SHUT)
    if resource.kind is Kind.NAMESPACE and resource.name in INTERNAL_NAMESPACES:
        return Door.ADMINISTRATORS if operation in _CHANGES else Door.OPEN
    return Door.OPEN


def shut(topic: object) -> BrokerError:
    return AUDIT_TOPIC_CLOSED(
        f"{topic} is made and written by the brokers alone, so that no client can forge or mute "
        "it; use another topic"
    )


def check_not_internal(name: TopicName) -> None:
    if name in INTERNAL_TOPICS:
        raise shut(name)
