"""The values of the broker's core: names, ids, settings, results of calls.

Offsets count a partition's messages from 0, without gaps. A name that parses is safe in a URL path
and in a metadata path.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from octavo.broker.errors import INVALID_ACK_ID, INVALID_MESSAGE_ID, BrokerError, InvalidSettings
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
UNACKED_MAX = 10_000_000
FILTER_HEADERS_MAX = 16
FILTER_VALUES_MAX = 64
FILTER_CHARS_MAX = 256

SUBSCRIPTION_TYPES = ("exclusive", "shared", "failover", "key_shared")
SubscriptionType = Literal["exclusive", "shared", "failover", "key_shared"]
StartPosition = Literal["earliest", "latest"]


class TopicName(NamedTuple):
    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}"

    @classmethod
    def of(cls, namespace: str, topic: str) -> TopicName:
        return cls(checked_name("namespace", namespace), checked_name("topic", topic))

    @classmethod
    def parse(cls, text: str) -> TopicName:
        namespace, slash, topic = text.partition("/")
        return cls.of(namespace, topic) if slash else cls.of(DEFAULT_NAMESPACE, text)

    def partition(self, number: int) -> PartitionName:
        return PartitionName(self.namespace, self.topic, number)


class PartitionName(NamedTuple):
    namespace: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}/{self.partition}"

    @property
    def topic_name(self) -> TopicName:
        return TopicName(self.namespace, self.topic)


class GroupName(NamedTuple):
    namespace: str
    group: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.group}"


class MessageId(NamedTuple):
    """Record number `index` of a ledger's entry."""

    ledger_id: int
    entry_id: int
    index: int  # type: ignore[assignment]  # the field's word; tuple.index is not used here

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        numbers = [whole(part) for part in text.split(":", 3)]
        found = [number for number in numbers if number is not None]
        if len(numbers) != 3 or len(found) != 3:
            raise INVALID_MESSAGE_ID(
                f"message id {text[:_NAME_SHOWN_CHARS]!r} is not of the form ledger:entry:index, "
                "each a number without leading zeros"
            )
        return cls(*found)


class AckId(NamedTuple):
    """The id of a delivery: `partition-offset-epoch-lease`.

    Any broker can route it. `epoch` counts take-overs, and `lease` the dispatched batches of an
    epoch, so the owner recognises an old id.
    """

    partition: int
    offset: int
    epoch: int
    lease: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}-{self.epoch}-{self.lease}"

    @classmethod
    def parse(cls, text: str) -> AckId:
        try:
            partition, offsets, epoch, lease = parts_of(text)
            start, _ = span_of(offsets)
        except ValueError:
            raise cls.invalid(text) from None
        if ":" in offsets:
            raise cls.invalid(text)
        return cls(int(partition), start, int(epoch), int(lease))

    @staticmethod
    def invalid(text: str) -> BrokerError:
        return INVALID_ACK_ID(
            f"ack id {text[:_NAME_SHOWN_CHARS]!r} is malformed: use an ack id from a receive"
        )


class AckRange(NamedTuple):
    """Offsets from `start` up to `end` (excluded)."""

    partition: int
    start: int
    end: int
    epoch: int
    lease: int

    @classmethod
    def parse(cls, text: str) -> AckRange:
        try:
            partition, offsets, epoch, lease = parts_of(text)
            return cls(int(partition), *span_of(offsets), int(epoch), int(lease))
        except ValueError:
            raise AckId.invalid(text) from None


class RetryBackoff(NamedTuple):
    first_ms: int
    most_ms: int
    factor: float = 2.0

    def delay_ms(self, deliveries: int) -> int:
        try:
            return int(min(self.most_ms, self.first_ms * self.factor ** (deliveries - 1)))
        except OverflowError:
            return self.most_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSettings:
    """`start`: the cursor's first position in each partition."""

    type: SubscriptionType = "exclusive"
    start: StartPosition = "earliest"
    ack_timeout_ms: int = setting(30_000, "ack_timeout", Unit.TIME, most=ACK_TIMEOUT_MS_MAX)
    retry_backoff: RetryBackoff | None = None
    """The wait before a redelivery, unless a nack names a delay."""
    max_deliveries: int | None = setting(None, "max_deliveries", Unit.NUMBER, most=DELIVERIES_MAX)
    """After this many deliveries a message goes to the dead-letter topic; None: never."""
    dead_letter_topic: str = ""
    """`namespace/topic`, created with the subscription."""
    dead_letter_subscription: str = ""
    retry_topic: str = ""
    """Unacked messages move there …"""
    retry_deliveries: int | None = setting(
        None, "retry_deliveries", Unit.NUMBER, most=DELIVERIES_MAX
    )
    """… after this many deliveries; None: all deliveries are here."""
    retry_subscription: str = ""
    consumer_timeout_ms: int = setting(
        2_000, "consumer_timeout", Unit.TIME, most=ACK_TIMEOUT_MS_MAX
    )
    """For key-shared and failover subscriptions: how long a silent consumer without messages keeps
    its keys or turn.
    """
    max_unacked: int | None = setting(None, "max_unacked", Unit.NUMBER, most=UNACKED_MAX)
    """Leased messages in a partition, besides the broker's bound."""
    max_unacked_per_consumer: int | None = setting(
        None, "max_unacked_per_consumer", Unit.NUMBER, most=UNACKED_MAX
    )
    """Leased messages of a partition at a consumer."""
    filter_headers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Header values by name; `*` alone: any. The owner acks other messages undelivered."""
    filter_key_prefix: str | None = None
    """Messages with other keys, or without a key, are acked undelivered."""
    durable: bool = True
    """False: each owner begins at `start`; deleted when unused for `non_durable_expiry_ms`."""

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
                f"retry_deliveries is {before} and max_deliveries {most}; max_deliveries also "
                "counts deliveries in the retry topic, so it must be higher"
            )

    def _check_filter(self) -> None:
        texts = [self.filter_key_prefix or "*"]
        for name, values in self.filter_headers:
            texts += [name, *values]
            if not name or not 1 <= len(values) <= FILTER_VALUES_MAX:
                raise InvalidSettings(
                    f"filter: header {name[:_NAME_SHOWN_CHARS]!r} has {len(values)} values; a "
                    f"header needs a name and 1 to {FILTER_VALUES_MAX} values, or '*' for any"
                )
        names = [name for name, _ in self.filter_headers]
        if len(names) > FILTER_HEADERS_MAX or len(dict.fromkeys(names)) < len(names):
            raise InvalidSettings(
                f"filter has {len(names)} headers; at most {FILTER_HEADERS_MAX} are allowed, each "
                "once"
            )
        if any(len(text) > FILTER_CHARS_MAX for text in texts):
            raise InvalidSettings(
                f"filter: a name, a value and a key prefix must have at most "
                f"{FILTER_CHARS_MAX} characters"
            )


SUBSCRIPTION_SETTINGS = declared(SubscriptionSettings)


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
    """`incarnation` distinguishes topics of the same name."""

    name: TopicName
    settings: TopicSettings
    created_ms: int
    incarnation: str = ""
    fork: ForkRecord | None = None
    for_stream: bool = False
    """Created to become a durable stream."""
    has_letters: bool = False
    """Gets dead letters or retries: no pattern of topics matches it."""


class SubscriptionInfo(NamedTuple):
    """`created_ms` distinguishes it from earlier subscriptions of its name."""

    name: str
    settings: SubscriptionSettings
    created_ms: int
    partitions: int = 0
    """The topic's partitions when the subscription was created. In partitions that were added later
    even `latest` begins at the start."""
    has_letters: bool = False
    """For another subscription's dead letters or retries."""


class Published(NamedTuple):
    first_offset: int
    last_offset: int
    ledger_id: int
    entry_id: int
    count: int  # type: ignore[assignment]  # the API's word; tuple.count is not used here
    duplicate: bool


class Work(NamedTuple):
    messages: int
    payload_bytes: int


class Publishing(NamedTuple):
    pending_bytes: int
    pending_bytes_max: int
    producer: str | None
    held_back: tuple[str, ...]
    backlog: tuple[str, str] | None = None
    """A subscription over its quota, and the consequence."""


class SlowedBy(NamedTuple):
    into: tuple[str, ...]
    out_of: tuple[str, ...]


class StoredBatch(NamedTuple):
    base_offset: int
    ledger_id: int
    entry_id: int
    header: BatchHeader
    data: bytes

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.header.record_count


class Delivery(NamedTuple):
    """`delivery_count` is 1 the first time."""

    ack_id: str
    offset: int
    message_id: MessageId
    record: Record
    delivery_count: int


class Nack(NamedTuple):
    """Deliver again after `delay_ms`; None: after the `retry_backoff`, or at once."""

    ack_id: str
    delay_ms: int | None = None


class Owner(NamedTuple):
    """`local`: this broker. `incarnation`: of the topic that the answer is about."""

    broker_id: str
    url: str
    local: bool
    incarnation: str = ""


class BrokerInfo(NamedTuple):
    broker_id: str
    url: str


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A consumer that has called or holds leases.

    `active`: in a failover subscription. `slots`, `slot_ranges` (`0-511,2048`): in a key-shared
    subscription.
    """

    name: str
    leased: int
    idle_ms: int
    priority: int = 0
    active: bool | None = None
    slots: int | None = None
    slot_ranges: str | None = None


class DeadLetters(NamedTuple):
    """Dead letters, or retries, in a partition.

    `waiting`: copies not stored yet; `sent`: stored since the opening; `problem`: why not now, or
    not in the named topic.
    """

    waiting: int = 0
    sent: int = 0
    problem: str | None = None


NO_DEAD_LETTERS = DeadLetters()


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """A subscription's figures; `unacked_ranges` counts ranges.

    `redelivering`: returned messages, ready; `delayed`: returned messages that wait. `held_back`:
    why a receive gives nothing.
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


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """`ledgers`: (ledger id, base offset), oldest first."""

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
    compacted: tuple[int, int, int] | None = None
    """Horizon, messages and bytes of the compacted view."""
    uncompacted: tuple[int, bool] | None = None
    """Bytes of closed ledgers in no view yet, and whether a run is due."""
    stream: bool = False


class PartitionState(enum.Enum):
    OPEN = "open"
    REOPENING = "reopening"
    CLOSED = "closed"
