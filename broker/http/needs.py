"""What a call needs of its caller: operations on resources that its path names. Pure.

Every route says it (`Route.needs`), and gate.py asks the policy before anything else is done:

    PRODUCE_TO_TOPIC   produce on the topic of the path
    OPEN               anybody, without a word of who they are: health, the API's description
    INNER              other brokers, by their proof
    …and_in_body       the handler asks for more, of topics that only the body names

To consume one needs `consume` on the subscription and on its topic, as Kafka asks for READ on group
and topic: who may use a subscription's name gets no topic by it, and who may read a topic does not
move other people's cursors. Making a subscription gives its messages away, so it needs `consume` on
the topic besides `create`. What a ledger holds may be of any topic: entries are the cluster's
administrator's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from octavo.broker.types import checked_name
from octavo.security.rules import Kind, Operation, Resource

_WORDS = {"bulk_load": "bulk load"}
"""What the variables of a path are called, where it is not their name."""


class Right(NamedTuple):
    """An operation on the resource that variables of the path name."""

    operation: Operation
    kind: Kind
    names: tuple[str, ...] = ()
    """Variables of the path, in their order in the resource's name."""
    some: bool = False
    """It need not be all that the path names: something below it will do, of which lists show as
    much as their reader may see."""
    instead: Right | None = None
    """One that is as good."""

    def __str__(self) -> str:
        names = [f"{{{name}}}" for name in self.names] + (["…"] if self.some else [])
        return f"{self.operation} {Resource(self.kind, '/'.join(names))}"

    def resource(self, variables: Mapping[str, str]) -> Resource:
        """The one that this path names; of `some`, how their names begin. Raises `InvalidName`."""
        named = [checked_name(_WORDS.get(one, one), variables[one]) for one in self.names]
        if self.some:
            named.append("")
        return Resource(self.kind, "/".join(named))


class Needs(NamedTuple):
    """All that a call needs."""

    rights: tuple[Right, ...] = ()
    is_open: bool = False
    """Nobody is asked who they are."""
    is_inner: bool = False
    """Of brokers only."""
    in_body: bool = False
    """The handler asks for the topics that the body names, before it does anything."""


OPEN = Needs(is_open=True)
INNER = Needs(is_inner=True)

_TOPIC = ("namespace", "topic")
_SUBSCRIPTION = (*_TOPIC, "subscription")
_CONSUME_TOPIC = Right(Operation.CONSUME, Kind.TOPIC, _TOPIC)
_SOME_TOPIC = Right(Operation.DESCRIBE, Kind.TOPIC, ("namespace",), some=True)


def of_topic(operation: Operation) -> Needs:
    """That operation on the topic in the path."""
    return Needs((Right(operation, Kind.TOPIC, _TOPIC),))


def of_namespace(operation: Operation) -> Needs:
    """That operation on the namespace in the path."""
    return Needs((Right(operation, Kind.NAMESPACE, ("namespace",)),))


def of_cluster(operation: Operation) -> Needs:
    """That operation on the cluster."""
    return Needs((Right(operation, Kind.CLUSTER),))


def of_subscription(operation: Operation) -> Needs:
    """That operation on the subscription in the path, and `consume` on its topic."""
    return Needs((Right(operation, Kind.SUBSCRIPTION, _SUBSCRIPTION), _CONSUME_TOPIC))


def of_bulk_load(operation: Operation, *, in_body: bool = False) -> Needs:
    """That operation on the bulk load in the path; with `in_body` also on the body's topics."""
    return Needs((Right(operation, Kind.TRANSACTION, ("bulk_load",)),), in_body=in_body)


UNLOAD = Needs(
    (Right(Operation.ADMIN, Kind.CLUSTER), Right(Operation.DESCRIBE, Kind.TOPIC, _TOPIC))
)


def of_schemas(operation: Operation) -> Needs:
    """That operation on the topic that has the name of the subject in the path."""
    return Needs((Right(operation, Kind.TOPIC, ("namespace", "schema_subject")),))


IN_GROUP = Needs(
    (Right(Operation.CONSUME, Kind.SUBSCRIPTION, ("namespace", "group")),), in_body=True
)
"""To be a member of a consumer group: `consume` on the group, which is a subscription of several
topics, and on each topic that the body names, and its subscription; of a pattern's topics a member
gets those that it may consume."""
FORK_TOPIC = Needs((_CONSUME_TOPIC,), in_body=True)
"""Besides `create` of the topic that the body names, as for any topic that is made."""
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
