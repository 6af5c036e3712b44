"""The typed operations that brokers run for any caller, and their answers. Pure.

`RULES` has a row for each operation: rights, urgency, answer, and whether it may be repeated. An
operation without a row cannot be sent.
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
WAITING_BYTES = 2 * 1024
"""Reserved for a receive, which may wait long."""
PAGE_BYTES_MAX = 8 * 1024 * 1024
_DETAIL_CHARS_MAX = 900

Position = str | int | MessageId | tuple[int]
"""`earliest` or `latest`, an offset, a message id, or `(milliseconds,)`."""


At = str | int | list[int]
"""A position; a message id is a list of three numbers, a time has a single number."""


def at_of(position: Position) -> At:
    return list(position) if isinstance(position, tuple) else position


def position_of(at: At) -> Position:
    if not isinstance(at, list):
        return at
    return MessageId(*at) if len(at) == 3 else (at[0],)


class Publish(msgspec.Struct, frozen=True, array_like=True, tag="publish"):
    name: PartitionName
    batches: list[bytes]
    expected_offset: int | None = None
    """The offset that the first batch must get."""
    access: int | None = None
    is_single: bool = False
    """One message without a producer: it may share a batch."""


class Read(msgspec.Struct, frozen=True, array_like=True, tag="read"):
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
        return min(self.bytes_max, PAGE_BYTES_MAX)

    @property
    def place(self) -> Position:
        return position_of(self.at)


class Await(msgspec.Struct, frozen=True, array_like=True, tag="await"):
    name: PartitionName
    offset: int
    wait_ms: int
    compacted: bool = False


class Receive(msgspec.Struct, frozen=True, array_like=True, tag="receive"):
    name: PartitionName
    subscription: str
    consumer: str
    most: int
    wait_ms: int = 0
    request: str = ""
    """Names the request: a consumer that repeats its last request gets the same messages."""
    out_max: int | None = None
    generation: int | None = None
    priority: int = 0
    as_stored: bool = False
    """Return whole stored batches, if these are not much longer."""


class Settle(msgspec.Struct, frozen=True, array_like=True, tag="settle"):
    name: PartitionName
    subscription: str
    acks: list[str] = []
    nacks: list[Nack] = []
    extend: list[str] = []
    release: list[str] = []
    """The consumer has not seen these: deliver again, uncounted."""
    unread: list[str] = []
    """Like `release`, for an undelivered answer, except messages leased again since."""
    up_to: int | list[int] | None = None
    """Ack up to and including this offset, or message id (three numbers)."""


class FindOffset(msgspec.Struct, frozen=True, array_like=True, tag="find"):
    name: PartitionName
    at: At
    compacted: bool = False


class Truncate(msgspec.Struct, frozen=True, array_like=True, tag="truncate"):
    name: PartitionName
    at: At


class Peek(msgspec.Struct, frozen=True, array_like=True, tag="peek"):
    name: PartitionName
    subscription: str
    most: int


class Seek(msgspec.Struct, frozen=True, array_like=True, tag="seek"):
    name: PartitionName
    subscription: str
    at: At


class Skip(msgspec.Struct, frozen=True, array_like=True, tag="skip"):
    name: PartitionName
    subscription: str
    messages: int


class Expire(msgspec.Struct, frozen=True, array_like=True, tag="expire"):
    name: PartitionName
    subscription: str
    age_ms: int


class Subscribe(msgspec.Struct, frozen=True, array_like=True, tag="subscribe"):
    name: PartitionName
    subscription: str


class DescribeSubscription(msgspec.Struct, frozen=True, array_like=True, tag="describe_sub"):
    name: PartitionName
    subscription: str


class DescribePartition(msgspec.Struct, frozen=True, array_like=True, tag="describe"):
    name: PartitionName


class Explain(msgspec.Struct, frozen=True, array_like=True, tag="explain"):
    name: PartitionName
    subscription: str = ""


class Unload(msgspec.Struct, frozen=True, array_like=True, tag="unload"):
    name: PartitionName
    to: str = ""


class AcquireAccess(msgspec.Struct, frozen=True, array_like=True, tag="acquire"):
    name: PartitionName
    producer: str
    session_ms: int
    fencing: bool
    wait_ms: int = 0


class ReleaseAccess(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    name: PartitionName
    epoch: int


class DescribeAccess(msgspec.Struct, frozen=True, array_like=True, tag="describe_access"):
    name: PartitionName


class FindForkPoint(msgspec.Struct, frozen=True, array_like=True, tag="fork_point"):
    name: PartitionName
    at: At


class LoadPart(msgspec.Struct, frozen=True, array_like=True, tag="load_part"):
    """Insert a committed bulk load's part; a repeat changes nothing."""

    name: PartitionName
    bulk_load: str
    batch: int


class StoreCopy(msgspec.Struct, frozen=True, array_like=True, tag="copy"):
    """A repeat with the same batch stores it once."""

    name: PartitionName
    batch: bytes


class WriteAudit(msgspec.Struct, frozen=True, array_like=True, tag="audit"):
    name: PartitionName
    batch: bytes


class FindUnused(msgspec.Struct, frozen=True, array_like=True, tag="unused"):
    name: PartitionName
    for_ms: int
    retire_ms: int
    subscription: str = ""


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    name: PartitionName
    foretold: HandoverNotice


class Take(msgspec.Struct, frozen=True, array_like=True, tag="take"):
    name: PartitionName
    handed: Handover


class LetGo(msgspec.Struct, frozen=True, array_like=True, tag="let_go"):
    topic: TopicName
    incarnation: str


class Drain(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    broker: str
    draining: bool


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="heartbeat"):
    """A member's heartbeat, as in Kafka's `ConsumerGroupHeartbeat` (KIP-848).

    One call joins, keeps the session, says which partitions the member holds, and returns those it
    should have; it waits for a change.
    """

    group: GroupName
    member: str
    topics: list[TopicPattern]
    holds: list[PartitionName]
    generation: int
    session_ms: int
    wait_ms: int = 0


class LeaveGroup(msgspec.Struct, frozen=True, array_like=True, tag="leave_group"):
    group: GroupName
    member: str


class DescribeGroup(msgspec.Struct, frozen=True, array_like=True, tag="describe_group"):
    group: GroupName


def numbered(operation: Receive, draw: Callable[[], str]) -> Receive:
    """Return the receive with a request number.

    A repeat after a lost answer then gets the same messages.
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
PartitionOperation = LocalOperation | BodyOperation
BrokerOperation = Prepare | Take | LetGo | Drain
GroupOperation = Heartbeat | LeaveGroup | DescribeGroup
AnyOperation = PartitionOperation | BrokerOperation | GroupOperation


def subscription_of(operation: AnyOperation) -> str:
    name: str = getattr(operation, "subscription")  # noqa: B009
    return name


def brings_messages(operation: AnyOperation) -> bool:
    if isinstance(operation, MakeStream):
        return bool(operation.body or (operation.plan is not None and operation.plan.part))
    return bool(getattr(operation, "body"))  # noqa: B009


class Refusal(msgspec.Struct, frozen=True, array_like=True):
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
    published: Published | None
    refusal: Refusal | None = None
    number: int = 0


class Stored(msgspec.Struct, frozen=True, array_like=True):
    fates: list[Fate]
    epoch: int


class Given(msgspec.Struct, frozen=True, array_like=True):
    batches: list[GivenBatch]
    offset: int
    following: int
    epoch: int


class Awaited(msgspec.Struct, frozen=True, array_like=True):
    is_there: bool


class Leases(msgspec.Struct, frozen=True, array_like=True):
    deliveries: list[Delivery]
    leased: Leased | None
    batches: list[bytes]
    held_back: str | None
    """Why there are no messages though the subscription has some."""
    epoch: int

    @property
    def count(self) -> int:
        if self.leased is None:
            return len(self.deliveries)
        return sum(run.end - run.start for run in self.leased.runs)

    @property
    def ack_ids(self) -> list[str]:
        if self.leased is None:
            return [one.ack_id for one in self.deliveries]
        return ids_of(self.leased)


def ids_of(leased: Leased) -> list[str]:
    return [shown(leased.partition, run.start, run.end, leased.lease) for run in leased.runs]


class Settled(msgspec.Struct, frozen=True, array_like=True):
    """Everything that was not refused took effect, and is durable."""

    acked: int
    stale: list[str]
    too_many_delayed: str
    """Why messages were not given back with their delay."""
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


class Truncated(msgspec.Struct, frozen=True, array_like=True):
    first: int


class Peeked(msgspec.Struct, frozen=True, array_like=True):
    deliveries: list[Delivery]


class Moved(msgspec.Struct, frozen=True, array_like=True):
    """How many messages became acked, and the new place."""

    acked: int
    offset: int


class ExplainedSubscription(msgspec.Struct, frozen=True, array_like=True):
    stats: SubscriptionStats
    unacked_max: int
    unacked_of_consumer_max: int | None
    held_back: list[str]
    consumers_held_back: list[str | None]
    waiting: list[str]


class Explanation(msgspec.Struct, frozen=True, array_like=True):
    stats: PartitionStats
    why: str
    preferred: str
    placed: bool
    served_s: float
    load: float
    publishing: Publishing
    over_rates: list[str]
    subscription: ExplainedSubscription | None = None


class Unloaded(msgspec.Struct, frozen=True, array_like=True):
    from_broker: str
    to_broker: str


class AccessNow(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    producer: str
    next_offset: int


class Done(msgspec.Struct, frozen=True, array_like=True):
    pass


class ForkPlace(msgspec.Struct, frozen=True, array_like=True):
    """A place to fork, valid while the partition's record has this epoch."""

    epoch: int
    offset: int
    cut: tuple[int, int, int, int] | None
    """The ledger that is cut, its last entry in the fork, the bytes up to there, and a timestamp
    there or -1.
    """


class Loaded(msgspec.Struct, frozen=True, array_like=True):
    """Where the part begins; None if it was inserted before."""

    offset: int | None


class Unused(msgspec.Struct, frozen=True, array_like=True):
    is_unused: bool


class Released(msgspec.Struct, frozen=True, array_like=True):
    partitions: list[int]


class Drained(msgspec.Struct, frozen=True, array_like=True):
    draining: bool
    partitions: int


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
    caller: Caller
    incarnation: str
    operation: AnyOperation


class On(enum.Enum):
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    GROUP = "group"
    TOPICS = "topics"
    """Each topic that the member names without a pattern."""
    SUBSCRIPTIONS = "subscriptions"
    CLUSTER = "cluster"
    NEW_TOPIC = "new topic"
    """A right on the topic or its namespace is enough."""
    BROUGHT_TO = "brought to"
    """The topic, if the operation brings messages."""
    CONVERTED = "converted"
    """The topic, if it may become a durable stream …"""
    EXPIRING = "expiring"
    """… or a durable stream that expires."""


class Rate(enum.Enum):
    INTO = "into"
    INTO_IF_ANY = "into, if any"
    OUT_OF = "out of"
    NO_MESSAGES = "no messages"
    """Charge only the request and its processor time."""


class Rule(NamedTuple):
    needs: tuple[tuple[Operation, On], ...]
    rate: Rate
    priority: Priority
    may_repeat: bool
    """A broker may repeat it, and the owner cancel it: it changes nothing for good."""
    answer: type[AnyAnswer]
    is_inner: bool = False
    """Whether a broker reads on its own behalf: no quota counts that."""
    continues: bool = False
    """Part of an operation that was charged already."""


def _of_brokers(
    answer: type[AnyAnswer], priority: Priority = Priority.LATER, *, may_repeat: bool = False
) -> Rule:
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
    # Charged and checked by the broker that commits the batch.
    LoadPart: _of_brokers(Loaded),
    # Charged when the subscription delivered the message.
    StoreCopy: _of_brokers(Done),
    BeginLargeCopy: _of_brokers(PieceTaken),
    # The broker that began the body sends the rest; the client pays.
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
    # A repeat is safe: the member holds the same partitions.
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
"""A read always returns a batch, however long."""


class Refused(BrokerError):
    name = "refused"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal

    @property
    def code(self) -> str:
        return self.refusal.code


class OperationOutcomeUnknown(BrokerError):
    name = "outcome-unknown"
    http_status = 504
    kafka = KafkaCode.REQUEST_TIMED_OUT
    retryable = True


class OtherProtocol(BrokerError):
    name = "other-protocol"
    http_status = 503


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(Request)
_answer_decoders = {rule.answer: msgspec.msgpack.Decoder(rule.answer) for rule in RULES.values()}
_refusal_decoder = msgspec.msgpack.Decoder(Refusal)


def encode_request(identity: Identity, incarnation: str, operation: AnyOperation) -> bytes:
    return _encoder.encode(Request(Caller.of(identity), incarnation, operation))


def decode_request(payload: bytes) -> Request:
    return _request_decoder.decode(payload)


def encode_answer(answer: AnyAnswer | Refusal) -> bytes:
    return _encoder.encode(answer)


def decode_answer(operation: AnyOperation, payload: bytes) -> AnyAnswer:
    return _answer_decoders[RULES[type(operation)].answer].decode(payload)


def decode_refusal(payload: bytes) -> Refusal:
    return _refusal_decoder.decode(payload)
