"""The typed operations that brokers run for any caller, and their answers. Pure.

The owner of a partition runs the operations on it; the coordinator of a consumer group runs the
calls of its members.

`RULES` has a row for each operation: which rights its caller needs, how urgent it is, whether it
may be repeated when its outcome is unknown, and the type of its answer. An operation without a row
cannot be sent.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from octavo.broker.errors import BrokerError, StaleLease, TooManyDelayed
from octavo.broker.groups.group import GroupNow, Membership
from octavo.broker.operations.channel import Priority
from octavo.broker.operations.given import GivenBatch as GivenBatch
from octavo.broker.operations.large_kinds import (
    AddPiece,
    BeginLargeCopy,
    BeginUpload,
    BodyOperation,
    BodyPiece,
    BodyStored,
    EndBody,
    LargeRead,
    OpenBody,
    PieceTaken,
    ReadBody,
)
from octavo.broker.operations.stream_kinds import (
    AppendToStream,
    AwaitStream,
    DeleteStream,
    DescribeStream,
    MakeStream,
    ReadStream,
    StreamAppended,
    StreamMade,
    StreamNow,
    StreamOperation,
    StreamPage,
)
from octavo.broker.partition.handover_messages import Handover, HandoverNotice
from octavo.broker.types import (
    Delivery,
    GroupName,
    MessageId,
    Nack,
    PartitionName,
    PartitionStats,
    Published,
    Publishing,
    SubscriptionStats,
    TopicName,
)
from octavo.protocol.ack_ids import shown
from octavo.protocol.codes import KafkaCode
from octavo.protocol.large import PIECE_BYTES
from octavo.protocol.leased import Leased
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.topic_patterns import TopicPattern
from octavo.security.principal import Identity, Standing
from octavo.security.rules import Operation

REFUSAL_BYTES_MAX = 2 * 1024
"""A longer refusal is cut."""
WAITING_BYTES = 2 * 1024
"""Room reserved for the answer to a receive, which may wait long for messages."""
PAGE_BYTES_MAX = 8 * 1024 * 1024
"""The most bytes of batches in an answer, unless the first batch alone is longer."""
_DETAIL_CHARS_MAX = 900

Position = str | int | MessageId | tuple[int]
"""`earliest` or `latest`, an offset, a message id, or a time as `(milliseconds,)`."""


At = str | int | list[int]
"""A position in an operation: a message id is a list of three numbers, a time a list of one."""


def at_of(position: Position) -> At:
    return list(position) if isinstance(position, tuple) else position


def position_of(at: At) -> Position:
    if not isinstance(at, list):
        return at
    return MessageId(*at) if len(at) == 3 else (at[0],)


class Publish(msgspec.Struct, frozen=True, array_like=True, tag="publish"):
    """Store record batches, one after another."""

    name: PartitionName
    batches: list[bytes]
    expected_offset: int | None = None
    """The offset that the first batch must get; the other batches follow it."""
    access: int | None = None
    """The epoch of exclusive access."""
    is_single: bool = False
    """Whether there is one batch with one message, without a producer: then the message may be
    stored in a batch with others."""


class Read(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Return batches from a place on, without waiting for new ones."""

    name: PartitionName
    at: At
    bytes_max: int
    count_max: int
    compacted: bool = False

    @classmethod
    def of(
        cls, name: PartitionName, at: Position, bytes_max: int, count_max: int, *, compacted: bool
    ) -> Read:
        return cls(name, at_of(at), bytes_max, count_max, compacted)

    @property
    def page_bytes(self) -> int:
        """The most bytes of batches in the answer, unless the first batch has more."""
        return min(self.bytes_max, PAGE_BYTES_MAX)

    @property
    def place(self) -> Position:
        """The place as it was given to `of`."""
        return position_of(self.at)


class Await(msgspec.Struct, frozen=True, array_like=True, tag="await"):
    """Wait until a message is at this offset. The answer says only whether there is one."""

    name: PartitionName
    offset: int
    wait_ms: int
    compacted: bool = False


class Receive(msgspec.Struct, frozen=True, array_like=True, tag="receive"):
    """Lease messages of a subscription to a consumer; wait for the first one."""

    name: PartitionName
    subscription: str
    consumer: str
    most: int
    """The most messages."""
    wait_ms: int = 0
    request: str = ""
    """If the consumer's last call had the same request, it gets the same messages again."""
    out_max: int | None = None
    """The most unacked messages of the partition at this consumer."""
    generation: int | None = None
    """The generation of the consumer group, if a member asks."""
    priority: int = 0
    as_stored: bool = False
    """Return whole stored batches, if these are not much longer than the messages."""


class Settle(msgspec.Struct, frozen=True, array_like=True, tag="settle"):
    """Acknowledge messages, give them back, or keep them longer."""

    name: PartitionName
    subscription: str
    acks: list[str] = []
    nacks: list[Nack] = []
    extend: list[str] = []
    release: list[str] = []
    """The consumer has not seen these messages: deliver them again, without counting the
    delivery."""
    unread: list[str] = []
    """Like `release`, for an answer that was not delivered, except messages that were leased again
    since."""
    up_to: int | list[int] | None = None
    """An offset, or the three numbers of a message id: ack all messages up to and including it."""


class FindOffset(msgspec.Struct, frozen=True, array_like=True, tag="find"):
    """Find the offset at a place, and the bounds of the partition."""

    name: PartitionName
    at: At
    compacted: bool = False


class Truncate(msgspec.Struct, frozen=True, array_like=True, tag="truncate"):
    """Remove the messages before a place."""

    name: PartitionName
    at: At


class Peek(msgspec.Struct, frozen=True, array_like=True, tag="peek"):
    """Show the first unacked messages, without leases."""

    name: PartitionName
    subscription: str
    most: int


class Seek(msgspec.Struct, frozen=True, array_like=True, tag="seek"):
    """Set the cursor of a subscription to a place. If it is an offset, that must exist."""

    name: PartitionName
    subscription: str
    at: At


class Skip(msgspec.Struct, frozen=True, array_like=True, tag="skip"):
    """Ack the first unacked messages."""

    name: PartitionName
    subscription: str
    messages: int


class Expire(msgspec.Struct, frozen=True, array_like=True, tag="expire"):
    """Ack all messages that are older than an age."""

    name: PartitionName
    subscription: str
    age_ms: int


class Subscribe(msgspec.Struct, frozen=True, array_like=True, tag="subscribe"):
    """Make the cursor in the partition of a subscription that the metadata has."""

    name: PartitionName
    subscription: str


class DescribeSubscription(msgspec.Struct, frozen=True, array_like=True, tag="describe_sub"):
    """Return the live figures of a subscription in the partition."""

    name: PartitionName
    subscription: str


class DescribePartition(msgspec.Struct, frozen=True, array_like=True, tag="describe"):
    """Return the live figures of the partition."""

    name: PartitionName


class Explain(msgspec.Struct, frozen=True, array_like=True, tag="explain"):
    """Explain why the partition is served where it is, and what holds its clients back."""

    name: PartitionName
    subscription: str = ""
    """A subscription to explain as well, if any."""


class Unload(msgspec.Struct, frozen=True, array_like=True, tag="unload"):
    """Hand the partition over to another broker."""

    name: PartitionName
    to: str = ""
    """The id of that broker; empty: the preferred broker."""


class AcquireAccess(msgspec.Struct, frozen=True, array_like=True, tag="acquire"):
    """Give a producer exclusive access to the partition."""

    name: PartitionName
    producer: str
    session_ms: int
    fencing: bool
    wait_ms: int = 0
    """How long to wait until the present holder goes."""


class ReleaseAccess(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """Let others publish again."""

    name: PartitionName
    epoch: int


class DescribeAccess(msgspec.Struct, frozen=True, array_like=True, tag="describe_access"):
    """Return which producer has exclusive access."""

    name: PartitionName


class FindForkPoint(msgspec.Struct, frozen=True, array_like=True, tag="fork_point"):
    """Find the place in the ledgers at which a fork would end its share of them."""

    name: PartitionName
    at: At


class LoadPart(msgspec.Struct, frozen=True, array_like=True, tag="load_part"):
    """Insert the partition's part of a committed bulk load; a repeat changes nothing."""

    name: PartitionName
    bulk_load: str
    batch: int


class StoreCopy(msgspec.Struct, frozen=True, array_like=True, tag="copy"):
    """Store a dead letter or a retry. A repeat with the same batch stores it once."""

    name: PartitionName
    batch: bytes


class WriteAudit(msgspec.Struct, frozen=True, array_like=True, tag="audit"):
    """Store audit events. A repeat with the same batch stores them once."""

    name: PartitionName
    batch: bytes


class FindUnused(msgspec.Struct, frozen=True, array_like=True, tag="unused"):
    """Return whether no client has used the partition, or a subscription in it, for this long."""

    name: PartitionName
    for_ms: int
    retire_ms: int
    """If it is unused, refuse calls for this long."""
    subscription: str = ""


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """Prepare for a partition that the asking broker will hand over."""

    name: PartitionName
    foretold: HandoverNotice


class Take(msgspec.Struct, frozen=True, array_like=True, tag="take"):
    """Claim and open a partition that the asking broker has released."""

    name: PartitionName
    handed: Handover


class LetGo(msgspec.Struct, frozen=True, array_like=True, tag="let_go"):
    """Stop serving this incarnation of a topic, which is being deleted."""

    topic: TopicName
    incarnation: str


class Drain(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """Make a broker hand over all its partitions, or take partitions again."""

    broker: str
    """The id of the broker."""
    draining: bool


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="heartbeat"):
    """Be a member of a consumer group; wait until the member should hold other partitions than it
    does.

    As in Kafka's `ConsumerGroupHeartbeat` (KIP-848), one call joins, keeps the session, says which
    partitions the member holds, and returns which it has.
    """

    group: GroupName
    member: str
    topics: list[TopicPattern]
    """The topics that the member would consume, all in the group's namespace."""
    holds: list[PartitionName]
    """The partitions that the member has and has not released."""
    generation: int
    """The highest generation that the member knows; 0: none."""
    session_ms: int
    """How long the member may be silent."""
    wait_ms: int = 0


class LeaveGroup(msgspec.Struct, frozen=True, array_like=True, tag="leave_group"):
    """Leave a consumer group: other members get the partitions at once."""

    group: GroupName
    member: str


class DescribeGroup(msgspec.Struct, frozen=True, array_like=True, tag="describe_group"):
    """Return the members of a consumer group, and the partitions of each."""

    group: GroupName


def numbered(operation: Receive, draw: Callable[[], str]) -> Receive:
    """Return the receive with a request number, which `draw` makes if the consumer gave none.

    If the answer is lost between brokers, the operation is repeated under this number, so that the
    consumer gets the same messages, and no gap.
    """
    return operation if operation.request else msgspec.structs.replace(operation, request=draw())


ControlOperation = (
    FindOffset
    | Truncate
    | Peek
    | Seek
    | Skip
    | Expire
    | Subscribe
    | DescribeSubscription
    | DescribePartition
    | Explain
    | Unload
    | AcquireAccess
    | ReleaseAccess
    | DescribeAccess
    | FindForkPoint
    | LoadPart
    | FindUnused
)
StoringOperation = StoreCopy | WriteAudit
"""Stores messages that no client sent: dead letters and audit events."""
LocalOperation = (
    Publish
    | Read
    | Await
    | Receive
    | Settle
    | ControlOperation
    | StoringOperation
    | StreamOperation
    | LargeRead
)
"""Operations that the owner's own clients may ask for, too."""
PartitionOperation = LocalOperation | BodyOperation
"""Operations that the partition's owner runs."""
BrokerOperation = Prepare | Take | LetGo | Drain
"""Operations on one broker, whichever partitions it owns."""
GroupOperation = Heartbeat | LeaveGroup | DescribeGroup
"""Operations that the coordinator of the consumer group runs."""
AnyOperation = PartitionOperation | BrokerOperation | GroupOperation


def subscription_of(operation: AnyOperation) -> str:
    name: str = getattr(operation, "subscription")  # noqa: B009
    return name


def brings_messages(operation: AnyOperation) -> bool:
    """Whether an operation that may store messages brings any."""
    if isinstance(operation, MakeStream):
        return bool(operation.body or (operation.plan is not None and operation.plan.part))
    return bool(getattr(operation, "body"))  # noqa: B009


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """Why an operation, or one batch of it, was refused: a problem of the API."""

    status: int
    code: str
    detail: str
    retryable: bool = False
    headers: dict[str, str] = {}
    extra: dict[str, Any] = {}

    def cut(self) -> Refusal:
        if len(msgspec.msgpack.encode(self)) <= REFUSAL_BYTES_MAX:
            return self
        short = msgspec.structs.replace(self, detail=self.detail[:_DETAIL_CHARS_MAX])
        if len(msgspec.msgpack.encode(short)) <= REFUSAL_BYTES_MAX:
            return short
        return Refusal(self.status, self.code[:100], short.detail[:300], self.retryable)


class Fate(msgspec.Struct, frozen=True, array_like=True):
    """The fate of a batch: it was published or refused."""

    published: Published | None
    refusal: Refusal | None = None
    number: int = 0
    """The number of a single message in the stored batch."""


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `Publish`: the fate of each batch, in order. `epoch`: the partition's."""

    fates: list[Fate]
    epoch: int


class Given(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `Read`. `offset`: of the requested place."""

    batches: list[GivenBatch]
    offset: int
    following: int
    """The offset to continue at."""
    epoch: int


class Awaited(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `Await`: whether a message came in time."""

    is_there: bool


class Leases(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `Receive`: messages, or batches as stored with what is leased of them."""

    deliveries: list[Delivery]
    leased: Leased | None
    batches: list[bytes]
    held_back: str | None
    """Why there are no messages in the answer though the subscription has some."""
    epoch: int

    @property
    def count(self) -> int:
        if self.leased is None:
            return len(self.deliveries)
        return sum(run.end - run.start for run in self.leased.runs)

    @property
    def ack_ids(self) -> list[str]:
        """The ack ids of all leased messages; batches have ranges."""
        if self.leased is None:
            return [one.ack_id for one in self.deliveries]
        return ids_of(self.leased)


def ids_of(leased: Leased) -> list[str]:
    """Return the ack ids of all leased messages, as ranges."""
    return [shown(leased.partition, run.start, run.end, leased.lease) for run in leased.runs]


class Settled(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `Settle`. Everything that was not refused took effect, and is durable."""

    acked: int
    stale: list[str]
    """Ack ids whose lease is over."""
    too_many_delayed: str
    """Why messages were not given back with their delay; empty if all were."""
    epoch: int

    @property
    def problem(self) -> StaleLease | TooManyDelayed | None:
        if self.stale:
            return StaleLease.of(self.stale)
        return TooManyDelayed(self.too_many_delayed) if self.too_many_delayed else None


class Found(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    earliest: int
    following: int
    """The offset that the next message gets."""


class Truncated(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `Truncate`: the first offset that is left."""

    first: int


class Peeked(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `Peek`; no message has an ack id."""

    deliveries: list[Delivery]


class Moved(msgspec.Struct, frozen=True, array_like=True):
    """The answer to operations that move a cursor: how many messages became acked, and the new
    place."""

    acked: int
    offset: int


class ExplainedSubscription(msgspec.Struct, frozen=True, array_like=True):
    """Why consumers of a subscription get no messages."""

    stats: SubscriptionStats
    unacked_max: int
    unacked_of_consumer_max: int | None
    held_back: list[str]
    """Reasons why all consumers wait, in words."""
    consumers_held_back: list[str | None]
    """For each consumer of `stats`, why it gets nothing."""
    waiting: list[str]


class Explanation(msgspec.Struct, frozen=True, array_like=True):
    stats: PartitionStats
    why: str
    """Why this broker serves the partition, in words."""
    preferred: str
    """The broker that should have it by the even spread."""
    placed: bool
    served_s: float
    load: float
    publishing: Publishing
    over_rates: list[str]
    """Rates of the topic that refuse publishes now, in words."""
    subscription: ExplainedSubscription | None = None


class Unloaded(msgspec.Struct, frozen=True, array_like=True):
    from_broker: str
    to_broker: str


class AccessNow(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `AcquireAccess` and `DescribeAccess`. No `producer`: any producer may
    publish."""

    epoch: int
    producer: str
    next_offset: int


class Done(msgspec.Struct, frozen=True, array_like=True):
    """The answer to operations that return nothing."""


class ForkPlace(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `FindForkPoint`, valid while the partition's record has this epoch."""

    epoch: int
    offset: int
    """The fork has the messages before this offset."""
    cut: tuple[int, int, int, int] | None
    """The ledger that is cut, the last entry of it that the fork has, about how many bytes that is,
    and the timestamp of a message there, or -1. None: no ledger is cut."""


class Loaded(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `LoadPart`: where the part begins; None if it was inserted before."""

    offset: int | None


class Unused(msgspec.Struct, frozen=True, array_like=True):
    is_unused: bool


class Released(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `LetGo`: the numbers of the partitions that this broker served until now."""

    partitions: list[int]


class Drained(msgspec.Struct, frozen=True, array_like=True):
    draining: bool
    partitions: int
    """How many partitions the broker still has."""


AnyAnswer = (
    Stored
    | Given
    | Awaited
    | Leases
    | Settled
    | Found
    | Truncated
    | Peeked
    | Moved
    | SubscriptionStats
    | PartitionStats
    | Explanation
    | Unloaded
    | AccessNow
    | Done
    | ForkPlace
    | Loaded
    | Unused
    | PieceTaken
    | BodyStored
    | BodyPiece
    | Released
    | Drained
    | Membership
    | GroupNow
    | StreamMade
    | StreamAppended
    | StreamPage
    | StreamNow
)


class Caller(msgspec.Struct, frozen=True, array_like=True):
    """The client for which a broker asks: its `Identity`, without its `Standing`."""

    name: str
    groups: list[str]
    source: str
    expires_at_s: float | None

    @classmethod
    def of(cls, identity: Identity) -> Caller:
        return cls(identity.name, sorted(identity.groups), identity.source, identity.expires_at_s)

    @property
    def identity(self) -> Identity:
        return Identity(
            self.name, frozenset(self.groups), self.source, self.expires_at_s, Standing()
        )


class Request(msgspec.Struct, frozen=True, array_like=True):
    """The content of a request. `incarnation`: the topic's incarnation that the caller means."""

    caller: Caller
    incarnation: str
    operation: AnyOperation


class On(enum.Enum):
    """The resource that a right is about."""

    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    """Needed only if the operation names a subscription."""
    GROUP = "group"
    """A consumer group is a subscription of several topics."""
    TOPICS = "topics"
    """Each topic that the member of a group names without a pattern."""
    SUBSCRIPTIONS = "subscriptions"
    """The group's subscription of each topic in `TOPICS`."""
    CLUSTER = "cluster"
    NEW_TOPIC = "new topic"
    """The topic, or its namespace: a right on either is enough."""
    BROUGHT_TO = "brought to"
    """The topic, if the operation brings messages."""
    CONVERTED = "converted"
    """The topic, if it may be turned into a durable stream."""
    EXPIRING = "expiring"
    """The topic, if it may be turned into a durable stream that expires."""


class Rate(enum.Enum):
    """How an operation counts in the topic's rates and the namespace's quotas."""

    INTO = "into"
    """It stores messages."""
    INTO_IF_ANY = "into, if any"
    """It stores messages, if it brings any."""
    OUT_OF = "out of"
    """It gives messages."""
    NO_MESSAGES = "no messages"
    """Only the request and its processor time count."""


class Rule(NamedTuple):
    """The rights, the rates, the priority and the answer of an operation."""

    needs: tuple[tuple[Operation, On], ...]
    """Each right is decided and audited at the owner."""
    rate: Rate
    priority: Priority
    may_repeat: bool
    """Whether a broker may repeat it after an unknown outcome, and the owner may cancel it: it
    changes nothing, or only something that ends by itself."""
    answer: type[AnyAnswer]
    is_inner: bool = False
    """Only brokers may ask for it, on their own behalf. It counts in no quota."""
    continues: bool = False
    """It continues an operation that was charged to the namespace, and is not charged again."""


def _of_brokers(
    answer: type[AnyAnswer], priority: Priority = Priority.LATER, *, may_repeat: bool = False
) -> Rule:
    """Return the rule of an operation that brokers ask on their own behalf."""
    return Rule((), Rate.NO_MESSAGES, priority, may_repeat, answer, is_inner=True)


_PRODUCE = ((Operation.PRODUCE, On.TOPIC),)
_DESCRIBE = ((Operation.DESCRIBE, On.TOPIC),)
_CONSUME = ((Operation.CONSUME, On.TOPIC),)
_CONSUME_SUB = ((Operation.CONSUME, On.SUBSCRIPTION), *_CONSUME)
_CONSUME_GROUP = ((Operation.CONSUME, On.GROUP),)
RULES: dict[type[AnyOperation], Rule] = {
    Publish: Rule(_PRODUCE, Rate.INTO, Priority.URGENT, False, Stored),
    Read: Rule(_CONSUME, Rate.OUT_OF, Priority.LATER, True, Given),
    Await: Rule(_CONSUME, Rate.NO_MESSAGES, Priority.LATER, True, Awaited),
    Receive: Rule(_CONSUME_SUB, Rate.OUT_OF, Priority.LATER, True, Leases),
    Settle: Rule(_CONSUME_SUB, Rate.NO_MESSAGES, Priority.URGENT, False, Settled),
    FindOffset: Rule(_CONSUME, Rate.NO_MESSAGES, Priority.URGENT, True, Found),
    Truncate: Rule(
        ((Operation.DELETE, On.TOPIC),), Rate.NO_MESSAGES, Priority.URGENT, False, Truncated
    ),
    Peek: Rule(_CONSUME_SUB, Rate.OUT_OF, Priority.LATER, True, Peeked),
    Seek: Rule(_CONSUME_SUB, Rate.NO_MESSAGES, Priority.URGENT, False, Moved),
    Skip: Rule(_CONSUME_SUB, Rate.NO_MESSAGES, Priority.URGENT, False, Moved),
    Expire: Rule(_CONSUME_SUB, Rate.NO_MESSAGES, Priority.URGENT, False, Moved),
    Subscribe: Rule(
        ((Operation.CREATE, On.SUBSCRIPTION), (Operation.CONSUME, On.TOPIC)),
        Rate.NO_MESSAGES,
        Priority.LATER,
        True,
        SubscriptionStats,
    ),
    DescribeSubscription: Rule(
        ((Operation.DESCRIBE, On.SUBSCRIPTION),),
        Rate.NO_MESSAGES,
        Priority.LATER,
        True,
        SubscriptionStats,
    ),
    DescribePartition: Rule(_DESCRIBE, Rate.NO_MESSAGES, Priority.LATER, True, PartitionStats),
    Explain: Rule(
        (*_DESCRIBE, (Operation.DESCRIBE, On.SUBSCRIPTION)),
        Rate.NO_MESSAGES,
        Priority.LATER,
        True,
        Explanation,
    ),
    Unload: Rule(
        ((Operation.ADMIN, On.CLUSTER), *_DESCRIBE),
        Rate.NO_MESSAGES,
        Priority.LATER,
        False,
        Unloaded,
    ),
    # A repeat is safe: access ends with its session, and a repeat gets another epoch.
    AcquireAccess: Rule(_PRODUCE, Rate.NO_MESSAGES, Priority.LATER, True, AccessNow),
    ReleaseAccess: Rule(_PRODUCE, Rate.NO_MESSAGES, Priority.URGENT, False, Done),
    DescribeAccess: Rule(_DESCRIBE, Rate.NO_MESSAGES, Priority.LATER, True, AccessNow),
    FindForkPoint: Rule(_CONSUME, Rate.NO_MESSAGES, Priority.LATER, True, ForkPlace),
    # The broker that commits the batch has charged it, and checked the writer's rights.
    LoadPart: _of_brokers(Loaded),
    # The message was charged when the subscription delivered it.
    StoreCopy: _of_brokers(Done),
    BeginLargeCopy: _of_brokers(PieceTaken),
    # The broker that began the body sends the rest; the client is charged for the work.
    BeginUpload: Rule(_PRODUCE, Rate.INTO, Priority.LATER, False, PieceTaken),
    AddPiece: _of_brokers(PieceTaken),
    EndBody: _of_brokers(BodyStored),
    OpenBody: Rule(_CONSUME, Rate.OUT_OF, Priority.LATER, True, BodyPiece),
    ReadBody: Rule(_CONSUME, Rate.NO_MESSAGES, Priority.LATER, True, BodyPiece, continues=True),
    WriteAudit: _of_brokers(Done),
    # A partition that is retired serves again by itself.
    FindUnused: _of_brokers(Unused, may_repeat=True),
    # Clients of the partition wait for these.
    Prepare: _of_brokers(Done, Priority.URGENT),
    Take: _of_brokers(Done, Priority.URGENT),
    LetGo: _of_brokers(Released, Priority.URGENT),
    Drain: Rule(
        ((Operation.ADMIN, On.CLUSTER),), Rate.NO_MESSAGES, Priority.URGENT, False, Drained
    ),
    # A repeat is safe: the member holds the same partitions. Topics of patterns, and partitions
    # that it says it holds, are left out unless the member may consume them.
    Heartbeat: Rule(
        (*_CONSUME_GROUP, (Operation.CONSUME, On.TOPICS), (Operation.CONSUME, On.SUBSCRIPTIONS)),
        Rate.NO_MESSAGES,
        Priority.URGENT,
        True,
        Membership,
    ),
    LeaveGroup: Rule(_CONSUME_GROUP, Rate.NO_MESSAGES, Priority.URGENT, False, Done),
    DescribeGroup: Rule(_CONSUME_GROUP, Rate.NO_MESSAGES, Priority.LATER, True, GroupNow),
    MakeStream: Rule(
        (
            (Operation.CREATE, On.NEW_TOPIC),
            (Operation.PRODUCE, On.BROUGHT_TO),
            (Operation.ALTER, On.CONVERTED),
            (Operation.DELETE, On.EXPIRING),
        ),
        Rate.INTO_IF_ANY,
        Priority.URGENT,
        False,
        StreamMade,
    ),
    AppendToStream: Rule(_PRODUCE, Rate.INTO_IF_ANY, Priority.URGENT, False, StreamAppended),
    DeleteStream: Rule(
        ((Operation.DELETE, On.TOPIC),), Rate.NO_MESSAGES, Priority.URGENT, False, Done
    ),
    ReadStream: Rule(_CONSUME, Rate.OUT_OF, Priority.LATER, True, StreamPage),
    AwaitStream: Rule(_CONSUME, Rate.NO_MESSAGES, Priority.LATER, True, Awaited),
    DescribeStream: Rule(_CONSUME, Rate.NO_MESSAGES, Priority.LATER, True, StreamNow),
}


def reserve_of(operation: AnyOperation) -> int:
    """Return how many bytes to reserve for the answer; a longer answer is offered (channel.py)."""
    if isinstance(operation, Publish):
        return REFUSAL_BYTES_MAX * (1 + len(operation.batches))
    if isinstance(operation, Read):
        return REFUSAL_BYTES_MAX + operation.page_bytes + _BATCH_BYTES_MAX
    if isinstance(operation, ReadStream) and operation.count_max:
        page_bytes = min(operation.bytes_max, PAGE_BYTES_MAX)
        return REFUSAL_BYTES_MAX + page_bytes + _BATCH_BYTES_MAX
    if isinstance(operation, OpenBody) and not operation.size_only:
        return REFUSAL_BYTES_MAX + _BATCH_BYTES_MAX
    if isinstance(operation, ReadBody):
        return REFUSAL_BYTES_MAX + PIECE_BYTES
    if isinstance(operation, Receive):
        return WAITING_BYTES
    return REFUSAL_BYTES_MAX


_BATCH_BYTES_MAX = ENTRY_PAYLOAD_BYTES_MAX + 64 * 1024
"""A read always returns a batch, however long; the rest is for the answer's other fields."""


class Refused(BrokerError):
    """The owner refused an operation. `refusal`: the problem for the caller."""

    name = "refused"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal

    @property
    def code(self) -> str:
        return self.refusal.code


class OperationOutcomeUnknown(BrokerError):
    """The connection ended before the owner answered: the operation may or may not have
    happened."""

    name = "outcome-unknown"
    http_status = 504
    kafka = KafkaCode.REQUEST_TIMED_OUT
    retryable = True


class OtherProtocol(BrokerError):
    """Another broker speaks another version of the operations, or does not know them."""

    name = "other-protocol"
    http_status = 503


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(Request)
_answer_decoders = {rule.answer: msgspec.msgpack.Decoder(rule.answer) for rule in RULES.values()}
_refusal_decoder = msgspec.msgpack.Decoder(Refusal)


def encode_request(identity: Identity, incarnation: str, operation: AnyOperation) -> bytes:
    return _encoder.encode(Request(Caller.of(identity), incarnation, operation))


def decode_request(payload: bytes) -> Request:
    """Decode a request. Raises `msgspec.DecodeError`."""
    return _request_decoder.decode(payload)


def encode_answer(answer: AnyAnswer | Refusal) -> bytes:
    return _encoder.encode(answer)


def decode_answer(operation: AnyOperation, payload: bytes) -> AnyAnswer:
    """Decode the answer to this operation. Raises `msgspec.DecodeError`."""
    return _answer_decoders[RULES[type(operation)].answer].decode(payload)


def decode_refusal(payload: bytes) -> Refusal:
    """Decode a refusal. Raises `msgspec.DecodeError`."""
    return _refusal_decoder.decode(payload)
