"""What brokers talk about: names, offsets, message ids, ack ids, what a call gives back.

Plain values without behaviour beyond parsing and printing. Offsets count messages of a partition
from 0, without gaps. A name that parses is safe in a URL path and in a metadata path.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from octavo.broker.errors import InvalidAckId, InvalidMessageId, InvalidSettings
from octavo.metadata.topic_records import ForkRecord
from octavo.metadata.topic_settings import BOOKIES_MAX as BOOKIES_MAX
from octavo.metadata.topic_settings import PARTITIONS_MAX as PARTITIONS_MAX
from octavo.metadata.topic_settings import TopicSettings as TopicSettings
from octavo.metadata.topic_settings import Unit, declared, setting
from octavo.protocol.ack_ids import parts_of, span_of
from octavo.protocol.batch import BatchHeader
from octavo.protocol.names import checked_name as checked_name
from octavo.protocol.numbers import whole
from octavo.protocol.records import Record

DEFAULT_NAMESPACE = "public"
_NAME_SHOWN_CHARS = 60
ACK_TIMEOUT_MS_MAX = 24 * 3_600_000
DELIVERIES_MAX = 1_000
RETRY_MS_MAX = 24 * 3_600_000
BACKOFF_FACTOR_MAX = 100
PRIORITY_MAX = 100
"""Of a consumer; 0 is served first."""
UNACKED_MAX = 10_000_000
"""What a subscription may set as its own bound."""
FILTER_HEADERS_MAX = 16
FILTER_VALUES_MAX = 64
FILTER_CHARS_MAX = 256
"""Of a header's name, of a value, of a key's beginning."""

SUBSCRIPTION_TYPES = ("exclusive", "shared", "failover", "key_shared")
SubscriptionType = Literal["exclusive", "shared", "failover", "key_shared"]
StartPosition = Literal["earliest", "latest"]


class TopicName(NamedTuple):
    """A topic: `namespace/topic`."""

    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}"

    @classmethod
    def of(cls, namespace: str, topic: str) -> TopicName:
        """The checked name. Raises `InvalidName`."""
        return cls(checked_name("namespace", namespace), checked_name("topic", topic))

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """`namespace/topic`, or `topic` in the namespace `public`. Raises `InvalidName`."""
        namespace, slash, topic = text.partition("/")
        return cls.of(namespace, topic) if slash else cls.of(DEFAULT_NAMESPACE, text)

    def partition(self, number: int) -> PartitionName:
        """The name of one of its partitions."""
        return PartitionName(self.namespace, self.topic, number)


class PartitionName(NamedTuple):
    """A partition of a topic: `namespace/topic/0`."""

    namespace: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}/{self.partition}"

    @property
    def topic_name(self) -> TopicName:
        """The topic that it belongs to."""
        return TopicName(self.namespace, self.topic)


class MessageId(NamedTuple):
    """Where a message is stored: the `index`-th record of one entry of one ledger."""

    ledger_id: int
    entry_id: int
    index: int  # type: ignore[assignment]  # the field's word; tuple.index is not used here

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """`ledger:entry:index`. Raises `InvalidMessageId`."""
        numbers = [whole(part) for part in text.split(":", 3)]
        found = [number for number in numbers if number is not None]
        if len(numbers) != 3 or len(found) != 3:
            raise InvalidMessageId(
                f"message id {text[:_NAME_SHOWN_CHARS]!r} is not of the form ledger:entry:index, "
                "each a number without a zero in front"
            )
        return cls(*found)


class AckId(NamedTuple):
    """The claim check of one delivery: `partition-offset-epoch-lease`.

    It says itself which partition it belongs to, so any broker can route it. `epoch` counts the
    take-overs of the partition and `lease` the dispatched batches within one epoch: an ack id whose
    lease has ended, or whose owner has changed, can be told from a living one.
    """

    partition: int
    offset: int
    epoch: int
    lease: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}-{self.epoch}-{self.lease}"

    @classmethod
    def parse(cls, text: str) -> AckId:
        """The fields of an ack id. Raises `InvalidAckId`."""
        try:
            partition, offsets, epoch, lease = parts_of(text)
            start, _ = span_of(offsets)
        except ValueError:
            raise cls.invalid(text) from None
        if ":" in offsets:
            raise cls.invalid(text)
        return cls(int(partition), start, int(epoch), int(lease))

    @staticmethod
    def invalid(text: str) -> InvalidAckId:
        """The error for text that is no ack id."""
        return InvalidAckId(
            f"ack id {text[:_NAME_SHOWN_CHARS]!r} is not one that receive has given out"
        )


class AckRange(NamedTuple):
    """What an ack id in a call names: offsets from `start` on, before `end`."""

    partition: int
    start: int
    end: int
    epoch: int
    lease: int

    @classmethod
    def parse(cls, text: str) -> AckRange:
        """Of one message or of many: see protocol/ack_ids.py. Raises `InvalidAckId`."""
        try:
            partition, offsets, epoch, lease = parts_of(text)
            return cls(int(partition), *span_of(offsets), int(epoch), int(lease))
        except ValueError:
            raise AckId.invalid(text) from None


class RetryBackoff(NamedTuple):
    """How long a message waits for its next delivery: longer each time it was not acked."""

    first_ms: int
    """After the first delivery …"""
    most_ms: int
    """… and never longer than this."""
    factor: float = 2.0
    """Each wait is so many times the one before."""

    def delay_ms(self, deliveries: int) -> int:
        """The wait after so many deliveries, at least one."""
        try:
            return int(min(self.most_ms, self.first_ms * self.factor ** (deliveries - 1)))
        except OverflowError:
            return self.most_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSettings:
    """What the creator of a subscription chooses.

    A message not acked within `ack_timeout_ms` is delivered again. `start` says where the cursor
    begins in each partition.
    """

    type: SubscriptionType = "exclusive"
    start: StartPosition = "earliest"
    ack_timeout_ms: int = setting(30_000, "ack_timeout", Unit.TIME, most=ACK_TIMEOUT_MS_MAX)
    retry_backoff: RetryBackoff | None = None
    """Before a redelivery for which no nack names a delay; None: at once."""
    max_deliveries: int | None = setting(None, "max_deliveries", Unit.NUMBER, most=DELIVERIES_MAX)
    """A message that was delivered so often without an ack goes to the dead-letter topic; None: it
    is delivered for ever."""
    dead_letter_topic: str = ""
    """`namespace/topic`; made with the subscription, if it is not there."""
    dead_letter_subscription: str = ""
    """Of that topic, made with it, so that nothing in it is removed before somebody had it."""
    retry_topic: str = ""
    """`namespace/topic`, made with the subscription: what was not acked goes on there …"""
    retry_deliveries: int | None = setting(
        None, "retry_deliveries", Unit.NUMBER, most=DELIVERIES_MAX
    )
    """… after so many deliveries here; None: all of them are here."""
    retry_subscription: str = ""
    """Of the retry topic, made with it: a shared one with the other deliveries."""
    consumer_timeout_ms: int = setting(
        2_000, "consumer_timeout", Unit.TIME, most=ACK_TIMEOUT_MS_MAX
    )
    """So long after its last call a consumer keeps its keys, or stays the active one, without
    holding messages. Of key-shared and failover subscriptions."""
    max_unacked: int | None = setting(None, "max_unacked", Unit.NUMBER, most=UNACKED_MAX)
    """Messages out in one partition. None: what the broker allows; it never allows more."""
    max_unacked_per_consumer: int | None = setting(
        None, "max_unacked_per_consumer", Unit.NUMBER, most=UNACKED_MAX
    )
    """Messages of one partition out at one consumer."""
    filter_headers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """By name the values that a message's header may have; `*` alone: any. Others are acked."""
    filter_key_prefix: str | None = None
    """What keys begin with; others, and messages without a key, are acked."""
    durable: bool = True
    """Else the cursor is in the owner's memory only, and begins at `start` with each owner; it goes
    when nobody has used it for `non_durable_expiry_ms`."""

    def __post_init__(self) -> None:
        if self.type not in SUBSCRIPTION_TYPES:
            raise InvalidSettings(
                f"type is {self.type!r}; it must be one of "
                + ", ".join(map(repr, SUBSCRIPTION_TYPES))
            )
        if self.start not in ("earliest", "latest"):
            raise InvalidSettings(f"start is {self.start!r}; it must be 'earliest' or 'latest'")
        _check_backoff(self.retry_backoff)
        for name, one in SUBSCRIPTION_SETTINGS.items():
            if (value := getattr(self, name)) is not None:
                one.check(value, ", or null" if one.unit is Unit.NUMBER else "")
        self._check_letters()
        self._check_filter()

    def _check_letters(self) -> None:
        """Where messages go that are not acked."""
        for topic in (self.dead_letter_topic, self.retry_topic):
            if topic and "/" in topic:
                TopicName.parse(topic)
            elif topic:
                checked_name("topic", topic)
        for name in (self.dead_letter_subscription, self.retry_subscription):
            if name:
                checked_name("subscription", name)
        before, most = self.retry_deliveries, self.max_deliveries
        if before is None:
            return
        if most is not None and before >= most:
            raise InvalidSettings(
                f"retry_deliveries is {before} and max_deliveries {most}; max_deliveries counts "
                "those in the retry topic too, so it must be higher"
            )

    def _check_filter(self) -> None:
        texts = [self.filter_key_prefix or "*"]
        for name, values in self.filter_headers:
            texts += [name, *values]
            if not name or not 1 <= len(values) <= FILTER_VALUES_MAX:
                raise InvalidSettings(
                    f"filter: header {name[:_NAME_SHOWN_CHARS]!r} has {len(values)} values; a "
                    f"header has a name, and 1 to {FILTER_VALUES_MAX} values, or '*' for any"
                )
        names = [name for name, _ in self.filter_headers]
        if len(names) > FILTER_HEADERS_MAX or len(dict.fromkeys(names)) < len(names):
            raise InvalidSettings(
                f"filter has {len(names)} headers; at most {FILTER_HEADERS_MAX} are allowed, each "
                "once"
            )
        if any(len(text) > FILTER_CHARS_MAX for text in texts):
            raise InvalidSettings(
                f"filter: a name, a value and the beginning of a key have at most "
                f"{FILTER_CHARS_MAX} characters"
            )


SUBSCRIPTION_SETTINGS = declared(SubscriptionSettings)
"""The settings of a subscription that have bounds, by field."""


def _check_backoff(backoff: RetryBackoff | None) -> None:
    if backoff is None:
        return
    if not 1 <= backoff.first_ms <= backoff.most_ms <= RETRY_MS_MAX:
        raise InvalidSettings(
            f"retry_backoff is first {backoff.first_ms} ms, most {backoff.most_ms} ms; it must be "
            f"1 <= first <= most <= {RETRY_MS_MAX}"
        )
    if not 1 <= backoff.factor <= BACKOFF_FACTOR_MAX:
        raise InvalidSettings(
            f"retry_backoff's factor is {backoff.factor}; it must be between 1 and "
            f"{BACKOFF_FACTOR_MAX}"
        )


class TopicInfo(NamedTuple):
    """A topic as it stands. `created_ms` since the epoch; `incarnation` tells it from namesakes."""

    name: TopicName
    settings: TopicSettings
    created_ms: int
    incarnation: str = ""
    fork: ForkRecord | None = None
    """Of which topic it is a fork, and where."""
    for_stream: bool = False
    """It was made to be a durable stream: its maker may make it one."""
    has_letters: bool = False
    """Subscriptions send dead letters or retries there, so no pattern means it."""


class SubscriptionInfo(NamedTuple):
    """A subscription of a topic as it stands. `created_ms`, since the epoch, tells it from an
    earlier one of the same name.
    """

    name: str
    settings: SubscriptionSettings
    created_ms: int
    partitions: int = 0
    """How many the topic had then: in later ones even `latest` begins at their first message."""
    has_letters: bool = False
    """It was made for another one's dead letters or retries."""


class Published(NamedTuple):
    """Where a batch was stored, once it is durable on an ack quorum of bookies.

    For a duplicate these are the places of the first copy. When a duplicate is older than what
    is remembered of its producer, its offsets, ledger and entry are -1: stored, place unknown.
    """

    first_offset: int
    last_offset: int
    ledger_id: int
    entry_id: int
    count: int  # type: ignore[assignment]  # the API's word; tuple.count is not used here
    duplicate: bool


class Work(NamedTuple):
    """What was published into and read from a partition since it was opened."""

    messages: int
    payload_bytes: int


class Publishing(NamedTuple):
    """How a partition's publishers fare."""

    pending_bytes: int
    pending_bytes_max: int
    producer: str | None
    """Who alone may publish."""
    held_back: tuple[str, ...]
    """What holds them back, in words."""
    backlog: tuple[str, str] | None = None
    """A subscription that is over its quota, and what that means for them."""


class SlowedBy(NamedTuple):
    """The exceeded rates of a topic, in words."""

    into: tuple[str, ...]
    out_of: tuple[str, ...]


class StoredBatch(NamedTuple):
    """One entry as it is served: `data` is the batch with its absolute base offset filled in."""

    base_offset: int
    ledger_id: int
    entry_id: int
    header: BatchHeader
    data: bytes

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return self.base_offset + self.header.record_count


class Delivery(NamedTuple):
    """One message handed to a consumer; `delivery_count` is 1 the first time."""

    ack_id: str
    offset: int
    message_id: MessageId
    record: Record
    delivery_count: int


class Nack(NamedTuple):
    """A message to deliver again, not before `delay_ms` from now.

    None: after as long as the subscription's `retry_backoff` says, or at once.
    """

    ack_id: str
    delay_ms: int | None = None


class Owner(NamedTuple):
    """The broker that serves a partition. `local`: it is this one.

    `incarnation`: which topic of that name the answer is about.
    """

    broker_id: str
    url: str
    local: bool
    incarnation: str = ""


class BrokerInfo(NamedTuple):
    """A live broker."""

    broker_id: str
    url: str


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A consumer of a subscription, as far as leases tell. `idle_ms` since its last call.

    `active`: of a failover subscription, whether it is the one. `slots`: of a key-shared one, how
    many it has, and `slot_ranges` which: `0-511,2048-4095`.
    """

    name: str
    leased: int
    idle_ms: int
    priority: int = 0
    active: bool | None = None
    slots: int | None = None
    slot_ranges: str | None = None


class DeadLetters(NamedTuple):
    """Of a subscription in one partition: what becomes of messages delivered too often.

    `waiting` for their copy to be stored, `sent` since the partition was opened here; `problem`:
    why copies are not stored at present, or not in the topic that was named.
    """

    waiting: int = 0
    sent: int = 0
    problem: str | None = None


NO_DEAD_LETTERS = DeadLetters()


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """A subscription in one partition. `unacked_ranges` counts the holes behind the last ack.

    `redelivering`: given back or over their lease, and ready; `delayed`: given back with a delay.
    `held_back`: why receive hands nothing out though there are messages.
    """

    name: str
    type: str
    committed_offset: int
    next_offset: int
    backlog: int
    unacked_ranges: int
    leased: int
    redelivering: int
    delayed: int
    held_back: str | None
    consumers: tuple[ConsumerStats, ...]
    dead_letters: DeadLetters = NO_DEAD_LETTERS
    retries: DeadLetters = NO_DEAD_LETTERS
    """The same of copies into the retry topic."""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One owned partition. `ledgers`: (ledger id, base offset), oldest first."""

    name: PartitionName
    broker_id: str
    epoch: int
    earliest_offset: int
    next_offset: int
    stored_bytes: int
    pending_bytes: int
    ledgers: tuple[tuple[int, int], ...]
    last_add_confirmed: int
    producers: int
    subscriptions: Mapping[str, SubscriptionStats]
    kept_because: str = ""
    """Why retention leaves the oldest ledger."""
    compacted: tuple[int, int, int] | None = None
    """Of its compacted view, if it has one: horizon, messages, bytes."""
    uncompacted: tuple[int, bool] | None = None
    """Of a topic that brokers compact: bytes of closed ledgers that are in no view yet; whether a
    run is due."""
    stream: bool = False
    """Whether it is a durable stream."""


class PartitionState(enum.Enum):
    """Of a partition that is owned here: see the first lines of broker/partition/partition.py."""

    OPEN = "open"
    REOPENING = "reopening"
    CLOSED = "closed"
