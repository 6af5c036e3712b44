"""What brokers talk about: names, offsets, message ids, ack ids, what a call gives back.

Plain values without behaviour beyond parsing and printing. Offsets count messages of a partition
from 0, without gaps. A name that parses is safe in a URL path and in a metadata path.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from octavo.broker.errors import InvalidAckId, InvalidMessageId, InvalidName, InvalidSettings
from octavo.protocol.ack_ids import span_of
from octavo.protocol.batch import BatchHeader
from octavo.protocol.names import NAME_RULE, is_name
from octavo.protocol.records import Record

DEFAULT_NAMESPACE = "public"
_SETTING_MAX = 2**63 - 1
"""What the metadata store's records hold; above it a number has no place to be kept."""
_NAME_SHOWN_CHARS = 60
PARTITIONS_MAX = 10_000
BOOKIES_MAX = 64
ACK_TIMEOUT_MS_MAX = 24 * 3_600_000

SubscriptionType = Literal["exclusive", "shared"]
StartPosition = Literal["earliest", "latest"]


def checked_name(what: str, text: str) -> str:
    """`text` if it may name a namespace, topic or subscription. Raises `InvalidName`."""
    if is_name(text):
        return text
    shown = text if len(text) <= _NAME_SHOWN_CHARS else text[:_NAME_SHOWN_CHARS] + "…"
    raise InvalidName(f"{what} name {shown!r} ({len(text)} characters) is not allowed: {NAME_RULE}")


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
        parts = text.split(":")
        if len(parts) != 3 or not all(p.isascii() and p.isdigit() and len(p) < 20 for p in parts):
            raise InvalidMessageId(
                f"message id {text[:_NAME_SHOWN_CHARS]!r} is not of the form ledger:entry:index"
            )
        return cls(int(parts[0]), int(parts[1]), int(parts[2]))


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
            partition, offset, epoch, lease = text.split("-")
            return cls(int(partition), int(offset), int(epoch), int(lease))
        except ValueError:
            raise cls.invalid(text) from None

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
            partition, offsets, epoch, lease = text.split("-")
            return cls(int(partition), *span_of(offsets), int(epoch), int(lease))
        except ValueError:
            raise AckId.invalid(text) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What the creator of a topic chooses. `None` means without limit.

    Two creations with equal settings are the same topic; `partitions` may grow later.
    """

    partitions: int = 1
    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    retention_ms: int | None = None
    """Closed ledgers whose newest message is older are removed."""
    retention_bytes: int | None = None
    """The oldest closed ledgers of a partition are removed while it holds more than this."""
    rollover_bytes: int = 256 * 1024 * 1024
    rollover_entries: int = 50_000
    rollover_age_ms: int = 4 * 3_600_000
    """A ledger longer or older than any of the three is closed and a new one begun."""

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise InvalidSettings(
                f"partitions is {self.partitions}; it must be between 1 and {PARTITIONS_MAX}"
            )
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble_size <= BOOKIES_MAX:
            raise InvalidSettings(
                f"ensemble_size {self.ensemble_size}, write_quorum {self.write_quorum}, ack_quorum "
                f"{self.ack_quorum}: must be {BOOKIES_MAX} >= ensemble >= write >= ack >= 1"
            )
        for name in ("retention_ms", "retention_bytes"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= _SETTING_MAX:
                raise InvalidSettings(
                    f"{name} is {value}; it must be between 0 and {_SETTING_MAX}, or null"
                )
        for name in ("rollover_bytes", "rollover_entries", "rollover_age_ms"):
            if not 1 <= getattr(self, name) <= _SETTING_MAX:
                raise InvalidSettings(
                    f"{name} is {getattr(self, name)}; it must be between 1 and {_SETTING_MAX}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSettings:
    """What the creator of a subscription chooses.

    A message not acked within `ack_timeout_ms` is delivered again. `start` says where the cursor
    begins in each partition.
    """

    type: SubscriptionType = "exclusive"
    start: StartPosition = "earliest"
    ack_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        if self.type not in ("exclusive", "shared"):
            raise InvalidSettings(f"type is {self.type!r}; it must be 'exclusive' or 'shared'")
        if self.start not in ("earliest", "latest"):
            raise InvalidSettings(f"start is {self.start!r}; it must be 'earliest' or 'latest'")
        if not 1 <= self.ack_timeout_ms <= ACK_TIMEOUT_MS_MAX:
            raise InvalidSettings(
                f"ack_timeout_ms is {self.ack_timeout_ms}; it must be between 1 and "
                f"{ACK_TIMEOUT_MS_MAX}"
            )


class TopicInfo(NamedTuple):
    """A topic as it stands. `created_ms` since the epoch; `incarnation` tells it from namesakes."""

    name: TopicName
    settings: TopicSettings
    created_ms: int
    incarnation: str = ""


class SubscriptionInfo(NamedTuple):
    """A subscription of a topic as it stands. `created_ms`, since the epoch, tells it from an
    earlier one of the same name.
    """

    name: str
    settings: SubscriptionSettings
    created_ms: int
    partitions: int = 0
    """How many the topic had then: in later ones even `latest` begins at their first message."""


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
    """A message to deliver again, not before `delay_ms` from now."""

    ack_id: str
    delay_ms: int = 0


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
    """A consumer of a subscription, as far as leases tell. `idle_ms` since its last call."""

    name: str
    leased: int
    idle_ms: int


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


class PartitionState(enum.Enum):
    """Of a partition that is owned here: see the first lines of broker/partition/partition.py."""

    OPEN = "open"
    REOPENING = "reopening"
    CLOSED = "closed"
