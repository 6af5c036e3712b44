"""The rights that a call needs: operations on resources that its path names. Pure.

Every route states them (`Route.needs`), and gate.py checks them before any work is done:

    of_topic(PRODUCE)  `produce` on the topic of the path
    OPEN               no identity is needed: health, the API's description
    INNER              other brokers, by their proof
    in_body            the handler checks more, for topics that only the body names

Consuming needs `consume` on the subscription and on its topic, as Kafka needs READ on group and
topic: the right to a subscription's name does not give access to a topic, and a reader of a topic
cannot move other clients' cursors. Creating a subscription gives access to messages, so it needs
`consume` on the topic besides `create`. A ledger may have entries of any topic, so reading entries
needs `admin` on the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from octavo.broker.types import checked_name
from octavo.security.rules import Kind, Operation, Resource

_WORDS = {"bulk_load": "bulk load"}
"""Names of the path's variables in errors, if they differ."""


class Right(NamedTuple):
    """An operation on the resource that variables of the path name."""

    operation: Operation
    kind: Kind
    names: tuple[str, ...] = ()
    """Variables of the path, in the order of the resource's name."""
    some: bool = False
    """A right on any resource below is enough; lists show only what the caller may see."""
    instead: Right | None = None
    """Another right that is enough instead."""

    def __str__(self) -> str:
        names = [f"{{{name}}}" for name in self.names] + (["…"] if self.some else [])
        return f"{self.operation} {Resource(self.kind, '/'.join(names))}"

    def resource(self, variables: Mapping[str, str]) -> Resource:
        """Return the resource of the path, or its beginning for `some`. Raises `InvalidName`."""
        named = [checked_name(_WORDS.get(one, one), variables[one]) for one in self.names]
        if self.some:
            named.append("")
        return Resource(self.kind, "/".join(named))


class Needs(NamedTuple):
    rights: tuple[Right, ...] = ()
    is_open: bool = False
    """Whether no identity is needed."""
    is_inner: bool = False
    """Whether only brokers may call."""
    in_body: bool = False
    """Whether the handler checks rights on topics that the body names, before it does any work."""


OPEN = Needs(is_open=True)
INNER = Needs(is_inner=True)

_TOPIC = ("namespace", "topic")
_SUBSCRIPTION = (*_TOPIC, "subscription")
_CONSUME_TOPIC = Right(Operation.CONSUME, Kind.TOPIC, _TOPIC)
_SOME_TOPIC = Right(Operation.DESCRIBE, Kind.TOPIC, ("namespace",), some=True)


def of_topic(operation: Operation) -> Needs:
    """Need this operation on the topic in the path."""
    return Needs((Right(operation, Kind.TOPIC, _TOPIC),))


def of_namespace(operation: Operation) -> Needs:
    """Need this operation on the namespace in the path."""
    return Needs((Right(operation, Kind.NAMESPACE, ("namespace",)),))


def of_cluster(operation: Operation) -> Needs:
    return Needs((Right(operation, Kind.CLUSTER),))


def of_subscription(operation: Operation) -> Needs:
    """Need this operation on the subscription in the path, and `consume` on its topic."""
    return Needs((Right(operation, Kind.SUBSCRIPTION, _SUBSCRIPTION), _CONSUME_TOPIC))


def of_bulk_load(operation: Operation, *, in_body: bool = False) -> Needs:
    """Need this operation on the bulk load in the path; with `in_body`, `produce` on the topics."""
    return Needs((Right(operation, Kind.TRANSACTION, ("bulk_load",)),), in_body=in_body)


UNLOAD = Needs(
    (Right(Operation.ADMIN, Kind.CLUSTER), Right(Operation.DESCRIBE, Kind.TOPIC, _TOPIC))
)


def of_schemas(operation: Operation) -> Needs:
    """Need this operation on the topic that has the name of the subject in the path."""
    return Needs((Right(operation, Kind.TOPIC, ("namespace", "schema_subject")),))


IN_GROUP = Needs(
    (Right(Operation.CONSUME, Kind.SUBSCRIPTION, ("namespace", "group")),), in_body=True
)
"""A member needs `consume` on the group, which is a subscription of several topics, and on each
topic that the body names and its subscription. If the body has a pattern, the member gets only
topics that it may consume."""
FORK_TOPIC = Needs((_CONSUME_TOPIC,), in_body=True)
"""The topic that the body names also needs `create`, like any new topic."""
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
