"""The values of the broker's core: names, message ids, ack ids, settings, results of calls.

They only parse and print. Offsets count messages of a partition from 0, without gaps. A name that
parses is safe in a URL path and in a metadata path.
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
"""The highest priority number of a consumer; 0 is served first."""
UNACKED_MAX = 10_000_000
"""The highest bound of unacked messages that a subscription may set."""
FILTER_HEADERS_MAX = 16
FILTER_VALUES_MAX = 64
FILTER_CHARS_MAX = 256
"""Characters of a header's name, of a value, and of a key's prefix."""

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
        """Make a checked name. Raises `InvalidName`."""
        return cls(checked_name("namespace", namespace), checked_name("topic", topic))

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Parse `namespace/topic`, or `topic` in namespace `public`. Raises `InvalidName`."""
        namespace, slash, topic = text.partition("/")
        return cls.of(namespace, topic) if slash else cls.of(DEFAULT_NAMESPACE, text)

    def partition(self, number: int) -> PartitionName:
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
        return TopicName(self.namespace, self.topic)


class GroupName(NamedTuple):
    """A consumer group: `namespace/group`. The group is also the name of its subscriptions."""

    namespace: str
    group: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.group}"


class MessageId(NamedTuple):
    """The place of a message: record number `index` of an entry of a ledger."""

    ledger_id: int
    entry_id: int
    index: int  # type: ignore[assignment]  # the field's word; tuple.index is not used here

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Parse `ledger:entry:index`. Raises `INVALID_MESSAGE_ID`."""
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

    It names its partition, so that any broker can route it. `epoch` counts the partition's
    take-overs, and `lease` the dispatched batches of an epoch. So the owner recognises an ack id
    whose lease has ended, or which an earlier owner gave out.
    """

    partition: int
    offset: int
    epoch: int
    lease: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}-{self.epoch}-{self.lease}"

    @classmethod
    def parse(cls, text: str) -> AckId:
        """Parse the ack id of a single message. Raises `INVALID_ACK_ID`."""
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
        """Make the error for text that is not an ack id."""
        return INVALID_ACK_ID(
            f"ack id {text[:_NAME_SHOWN_CHARS]!r} is malformed: use an ack id from a receive"
        )


class AckRange(NamedTuple):
    """The messages that an ack id in a call names: offsets from `start` on, before `end`."""

    partition: int
    start: int
    end: int
    epoch: int
    lease: int

    @classmethod
    def parse(cls, text: str) -> AckRange:
        """Parse an ack id of a message or a range: protocol/ack_ids.py. Raises `INVALID_ACK_ID`."""
        try:
            partition, offsets, epoch, lease = parts_of(text)
            return cls(int(partition), *span_of(offsets), int(epoch), int(lease))
        except ValueError:
            raise AckId.invalid(text) from None


class RetryBackoff(NamedTuple):
    """The growing wait of an unacked message for its next delivery."""

    first_ms: int
    """The wait after the first delivery."""
    most_ms: int
    """The longest wait."""
    factor: float = 2.0
    """Each wait is the wait before times this factor."""

    def delay_ms(self, deliveries: int) -> int:
        """Return the wait after this many deliveries (at least one)."""
        try:
            return int(min(self.most_ms, self.first_ms * self.factor ** (deliveries - 1)))
        except OverflowError:
            return self.most_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSettings:
    """Settings of a subscription.

    A message that is not acked within `ack_timeout_ms` is delivered again. `start` is the cursor's
    first position in each partition.
    """

    type: SubscriptionType = "exclusive"
    start: StartPosition = "earliest"
    ack_timeout_ms: int = setting(30_000, "ack_timeout", Unit.TIME, most=ACK_TIMEOUT_MS_MAX)
    retry_backoff: RetryBackoff | None = None
    """The wait before a redelivery, unless a nack names a delay; None: no wait."""
    max_deliveries: int | None = setting(None, "max_deliveries", Unit.NUMBER, most=DELIVERIES_MAX)
    """After this many deliveries without an ack, a message goes to the dead-letter topic; None:
    never."""
    dead_letter_topic: str = ""
    """`namespace/topic`; created with the subscription, unless it exists."""
    dead_letter_subscription: str = ""
    """Created on the dead-letter topic, so that retention keeps letters until they are acked."""
    retry_topic: str = ""
    """`namespace/topic`, created with the subscription. Unacked messages move there …"""
    retry_deliveries: int | None = setting(
        None, "retry_deliveries", Unit.NUMBER, most=DELIVERIES_MAX
    )
    """… after this many deliveries here; None: all deliveries are here."""
    retry_subscription: str = ""
    """A shared subscription, created on the retry topic, for the other deliveries."""
    consumer_timeout_ms: int = setting(
        2_000, "consumer_timeout", Unit.TIME, most=ACK_TIMEOUT_MS_MAX
    )
    """For key-shared and failover subscriptions: how long after its last call a consumer without
    leased messages keeps its keys, or stays active."""
    max_unacked: int | None = setting(None, "max_unacked", Unit.NUMBER, most=UNACKED_MAX)
    """Leased messages in a partition. None: the broker's bound, which always holds too."""
    max_unacked_per_consumer: int | None = setting(
        None, "max_unacked_per_consumer", Unit.NUMBER, most=UNACKED_MAX
    )
    """Leased messages of a partition at a consumer."""
    filter_headers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The values that a message's headers may have, by name; `*` alone: any. The owner acks other
    messages without delivering them."""
    filter_key_prefix: str | None = None
    """The beginning of keys. The owner acks messages with other keys, or without a key."""
    durable: bool = True
    """False: the cursor is only in the owner's memory, and begins at `start` with each owner. The
    subscription is deleted when unused for `non_durable_expiry_ms`."""

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
    """A topic. `created_ms` since 1970; `incarnation` distinguishes topics of the same name."""

    name: TopicName
    settings: TopicSettings
    created_ms: int
    incarnation: str = ""
    fork: ForkRecord | None = None
    """If it is a fork: of which topic, and where."""
    for_stream: bool = False
    """Whether it was created to become a durable stream, which its creator may complete."""
    has_letters: bool = False
    """Whether it gets dead letters or retries: then no pattern of topics matches it."""


class SubscriptionInfo(NamedTuple):
    """A subscription of a topic. `created_ms` (since 1970) distinguishes it from earlier
    subscriptions of its name.
    """

    name: str
    settings: SubscriptionSettings
    created_ms: int
    partitions: int = 0
    """The topic's partitions at its creation. In later partitions even `latest` begins at the
    first message."""
    has_letters: bool = False
    """Whether it was created for another subscription's dead letters or retries."""


class Published(NamedTuple):
    """The place of a batch that is durable on an ack quorum of bookies.

    For a duplicate it is the place of the first copy. If the broker no longer remembers the place,
    offsets, ledger and entry are -1.
    """

    first_offset: int
    last_offset: int
    ledger_id: int
    entry_id: int
    count: int  # type: ignore[assignment]  # the API's word; tuple.count is not used here
    duplicate: bool


class Work(NamedTuple):
    """Messages and bytes published to and read from a partition since it was opened."""

    messages: int
    payload_bytes: int


class Publishing(NamedTuple):
    """The state of publishing to a partition."""

    pending_bytes: int
    pending_bytes_max: int
    producer: str | None
    """The producer with exclusive access."""
    held_back: tuple[str, ...]
    """Texts about what holds publishers back."""
    backlog: tuple[str, str] | None = None
    """A subscription over its quota, and the consequence for publishers."""


class SlowedBy(NamedTuple):
    into: tuple[str, ...]
    out_of: tuple[str, ...]


class StoredBatch(NamedTuple):
    """An entry for readers: `data` is the batch with its absolute base offset filled in."""

    base_offset: int
    ledger_id: int
    entry_id: int
    header: BatchHeader
    data: bytes

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.header.record_count


class Delivery(NamedTuple):
    """A message for a consumer; `delivery_count` is 1 the first time."""

    ack_id: str
    offset: int
    message_id: MessageId
    record: Record
    delivery_count: int


class Nack(NamedTuple):
    """A message to deliver again, no earlier than `delay_ms` from now.

    None: after the wait of the subscription's `retry_backoff`, or at once.
    """

    ack_id: str
    delay_ms: int | None = None


class Owner(NamedTuple):
    """The broker that serves a partition. `local`: whether it is this broker.

    `incarnation`: the topic that the answer is about, among topics of that name.
    """

    broker_id: str
    url: str
    local: bool
    incarnation: str = ""


class BrokerInfo(NamedTuple):
    broker_id: str
    url: str


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A consumer of a subscription that has called or holds leases. `idle_ms` since its last call.

    `active`: whether it is the active consumer of a failover subscription. `slots` and
    `slot_ranges`: in a key-shared subscription, the number of its slots, and which (`0-511,2048`).
    """

    name: str
    leased: int
    idle_ms: int
    priority: int = 0
    active: bool | None = None
    slots: int | None = None
    slot_ranges: str | None = None


class DeadLetters(NamedTuple):
    """A subscription's dead letters, or retries, in a partition.

    `waiting`: messages whose copy is not stored yet; `sent`: copies stored since the partition was
    opened here; `problem`: why copies are not stored now, or not in the named topic.
    """

    waiting: int = 0
    sent: int = 0
    problem: str | None = None


NO_DEAD_LETTERS = DeadLetters()


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """A subscription in a partition. `unacked_ranges` counts ranges of unacked messages.

    `redelivering`: messages that were given back or whose lease ended, ready for delivery;
    `delayed`: messages that wait for their delay. `held_back`: why a receive gives no messages
    although there are some.
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
    """The same for copies into the retry topic."""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """A partition that is owned here. `ledgers`: (ledger id, base offset), oldest first."""

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
    """Why retention keeps the oldest ledger."""
    compacted: tuple[int, int, int] | None = None
    """Horizon, messages and bytes of its compacted view, if it has one."""
    uncompacted: tuple[int, bool] | None = None
    """If brokers compact the topic: bytes of closed ledgers that are in no view yet, and whether a
    run is due."""
    stream: bool = False
    """Whether it is a durable stream."""


class PartitionState(enum.Enum):
    """The states of a partition that is owned here: see broker/partition/partition.py."""

    OPEN = "open"
    REOPENING = "reopening"
    CLOSED = "closed"
