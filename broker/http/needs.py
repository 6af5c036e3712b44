"""The rights that a call needs, on resources of its path. Pure.

Every route states them (`Route.needs`); gate.py checks them first.

Consuming needs `consume` on the subscription and on its topic, as Kafka's READ on group and topic:
so a reader cannot move other clients' cursors. Creating a subscription also needs `consume` on the
topic. A ledger may have entries of any topic, so reading entries needs `admin` on the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from octavo.broker.types import checked_name
from octavo.security.rules import Kind, Operation, Resource

_WORDS = {"bulk_load": "bulk load"}


class Right(NamedTuple):
    operation: Operation
    kind: Kind
    names: tuple[str, ...] = ()
    some: bool = False
    """A right on any resource below is enough."""
    instead: Right | None = None
    """Another right that is enough."""

    def __str__(self) -> str:
        names = [f"{{{name}}}" for name in self.names] + (["…"] if self.some else [])
        return f"{self.operation} {Resource(self.kind, '/'.join(names))}"

    def resource(self, variables: Mapping[str, str]) -> Resource:
        named = [checked_name(_WORDS.get(one, one), variables[one]) for one in self.names]
        if self.some:
            named.append("")
        return Resource(self.kind, "/".join(named))


class Needs(NamedTuple):
    rights: tuple[Right, ...] = ()
    is_open: bool = False
    is_inner: bool = False
    in_body: bool = False
    """The handler first checks topics that the body names."""


OPEN = Needs(is_open=True)
INNER = Needs(is_inner=True)

_TOPIC = ("namespace", "topic")
_SUBSCRIPTION = (*_TOPIC, "subscription")
_CONSUME_TOPIC = Right(Operation.CONSUME, Kind.TOPIC, _TOPIC)
_SOME_TOPIC = Right(Operation.DESCRIBE, Kind.TOPIC, ("namespace",), some=True)


def of_topic(operation: Operation) -> Needs:
    return Needs((Right(operation, Kind.TOPIC, _TOPIC),))


def of_namespace(operation: Operation) -> Needs:
    return Needs((Right(operation, Kind.NAMESPACE, ("namespace",)),))


def of_cluster(operation: Operation) -> Needs:
    return Needs((Right(operation, Kind.CLUSTER),))


def of_subscription(operation: Operation) -> Needs:
    return Needs((Right(operation, Kind.SUBSCRIPTION, _SUBSCRIPTION), _CONSUME_TOPIC))


def of_bulk_load(operation: Operation, *, in_body: bool = False) -> Needs:
    """Need the operation on the bulk load; with `in_body`, also `produce` on the topics."""
    return Needs((Right(operation, Kind.TRANSACTION, ("bulk_load",)),), in_body=in_body)


UNLOAD = Needs(
    (Right(Operation.ADMIN, Kind.CLUSTER), Right(Operation.DESCRIBE, Kind.TOPIC, _TOPIC))
)


def of_schemas(operation: Operation) -> Needs:
    """Need the operation on the topic that has the subject's name."""
    return Needs((Right(operation, Kind.TOPIC, ("namespace", "schema_subject")),))


IN_GROUP = Needs(
    (Right(Operation.CONSUME, Kind.SUBSCRIPTION, ("namespace", "group")),), in_body=True
)
"""A member also needs `consume` on each named topic and its subscription; of a pattern it gets only
topics that it may consume.
"""
FORK_TOPIC = Needs((_CONSUME_TOPIC,), in_body=True)
"""The topic that the body names needs `create`."""
SEE_SUBSCRIPTION = Needs((Right(Operation.DESCRIBE, Kind.SUBSCRIPTION, _SUBSCRIPTION),))
CREATE_TOPIC = Needs(
    (
        Right(
            Operation.CREATE,
            Kind.TOPIC,
            _TOPIC,
            instead=Right(Operation.CREATE, Kind.NAMESPACE, ("namespace",)),
        ),
    )
)
LIST_NAMESPACES = Needs(
    (
        Right(
            Operation.DESCRIBE,
            Kind.NAMESPACE,
            some=True,
            instead=Right(Operation.DESCRIBE, Kind.TOPIC, some=True),
        ),
    )
)
LIST_TOPICS = Needs(
    (Right(Operation.DESCRIBE, Kind.NAMESPACE, ("namespace",), instead=_SOME_TOPIC),)
)
