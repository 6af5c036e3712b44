"""What may be set on topics and producers, as keywords: for type checkers and those who read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Required, TypedDict

Time = int | float | str
"""Seconds, or text with a unit: `500ms`, `30s`, `2m`, `1.5h`, `7d`."""
Size = int | str
"""Bytes, or text with a unit: `256MiB`, `10GB`."""


class Retention(TypedDict, total=False):
    """How long messages are kept that every subscription has acked; the others are kept anyway.

    They go a closed ledger at a time. None, or left away: no bound. Of two bounds the first that
    is reached counts.
    """

    time: Time | None
    """A ledger goes when its newest message is older."""
    size: Size | None
    """The oldest ledgers go while a partition has more."""


class Rollover(TypedDict, total=False):
    """When a partition's ledger is closed and a new one begun: whichever comes first."""

    time: Time
    size: Size
    entries: int


class BacklogQuota(TypedDict, total=False):
    """What a subscription may have unacked in a partition, and what happens beyond it."""

    size: Size | None
    time: Time | None
    """Since its oldest unacked message was stored."""
    policy: Literal["hold", "reject", "evict"] | None
    """`hold`: publishes wait, and get 429 after that; `reject`: they get it at once; `evict`: the
    oldest messages count as acked for the subscription."""


class Rates(TypedDict, total=False):
    """Into a topic and out of it a second, counted at each broker that owns partitions of it."""

    publish_bytes: Size | None
    publish_messages: int | Literal["off"] | None
    dispatch_bytes: Size | None
    dispatch_messages: int | Literal["off"] | None


class Compaction(TypedDict, total=False):
    """When brokers compact the topic by themselves: docs/compaction.md."""

    after_size: Size
    """So much of closed ledgers is new, 64 MiB if not set …"""
    dirty_ratio: float
    """… and such a share of the messages that a run reads, 0.5 if not set."""
    tombstones: Time
    """A tombstone stays in the view until it is so old, a day if not set."""
    delete_raw: bool
    """Ledgers go once the view covers them and every subscription has acked them."""


class Policies(TypedDict, total=False):
    """What a topic says, or a namespace for topics that say nothing.

    None: say nothing (any more). The text `off` in place of a time, size or rate: none, whatever
    the namespace says.
    """

    retention: Retention | None
    """Nothing said anywhere: everything is kept for ever."""
    ttl: Time | None
    """A message stored for longer counts as acked, for every subscription."""
    backlog_quota: BacklogQuota | None
    delete_when_inactive: Time | None
    subscription_expiry: Time | None
    """A topic that nobody used for so long is deleted."""
    message_bytes_max: Size | None
    """Key, value and headers of one message."""
    rates: Rates | None
    message_time: Literal["create", "append"] | None
    """A message's timestamp: `create`, what its producer says; `append`, when it was stored."""
    durability: Literal["sync", "deferred"] | None
    """`deferred`: a publish is answered when an ack quorum has written it, and synced later."""


class AutoCreate(TypedDict, total=False):
    """How a topic is made that is published to and not there."""

    partitions: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int


class NamespaceSettings(Policies, total=False):
    """What a namespace says for its topics."""

    auto_create: AutoCreate | None
    """None: nothing is made by itself."""


class Quota(TypedDict, total=False):
    """What a user or a namespace may do. None, or left away: the default of its kind; −1: without a
    bound."""

    requests: int | None
    """Calls a second. All of a second are counted at each broker for itself."""
    publish_bytes: int | None
    publish_messages: int | None
    read_bytes: int | None
    read_messages: int | None
    connections: int | None
    """Open at once at one broker; of a user."""
    streams: int | None
    """The same."""
    topics: int | None
    """Of a namespace."""


class Rule(TypedDict):
    """What one principal may or must not do, in the words of `octavo acl`."""

    effect: Literal["allow", "deny"]
    principal: str
    """`user:NAME`, `group:NAME`, `role:NAME`, `user:*` (all who are known) or `*` (anybody)."""
    operations: str
    """With commas, or `all`."""
    resource: str
    """`topic:payments/*`, `cluster`, …"""


class Role(TypedDict):
    """A user or group has a role."""

    principal: str
    role: str


class Schema(TypedDict, total=False):
    """By which schema messages are."""

    subject: Required[str]
    """Of the topic's namespace."""
    validate: bool
    """What does not fit is not stored; true where left away."""


class TopicSettings(Policies, total=False):
    """Settings of a topic beside its partitions and quorums. A broker refuses any other by name."""

    rollover: Rollover
    compaction: Compaction | None
    """None: brokers do not compact it by themselves."""
    schema: Schema | None
    """By which schema its messages are."""


class TopicChanges(TopicSettings, total=False):
    """What may be changed of a topic that is there. Quorums count for ledgers made from now on."""

    partitions: int
    """More than before: partitions are never taken away."""
    ensemble_size: int
    write_quorum: int
    ack_quorum: int


class Backoff(TypedDict, total=False):
    """How long a message that was not acked waits for its next delivery."""

    first: Required[Time]
    """After the first delivery."""
    most: Time
    """The longest wait; ten minutes where left away."""
    factor: float
    """Each wait is so many times the one before; 2 where left away."""


class Filter(TypedDict, total=False):
    """Which messages are a subscription's; others are acked and not delivered."""

    headers: Mapping[str, str | Sequence[str]]
    """By name one value, or several, of which a message's header has one; `*` is any."""
    key_prefix: str | None
    """What keys begin with."""


class SubscriptionSettings(TypedDict, total=False):
    """Settings of a subscription beside its type, start and leases."""

    ack_timeout: Time
    """How long a message is leased, as `ack_timeout_s` says it, with a unit."""
    retry_backoff: Backoff | None
    """Before a redelivery for which no nack names a delay; None: at once."""
    max_deliveries: int | None
    """A message delivered so often without an ack goes to the dead-letter topic; None: never."""
    dead_letter_topic: str | None
    """`topic` or `namespace/topic`; `{topic}-{subscription}-dlq` where left away."""
    dead_letter_subscription: str | None
    """Of the dead-letter topic; of this one's name where left away."""
    retry_topic: str | None
    """What was not acked goes on in this topic, when it is due again: `topic` or
    `namespace/topic`; `{topic}-{subscription}-retry` where only `retry_deliveries` is given."""
    retry_deliveries: int | None
    """So many deliveries are in this topic, at least one; None: all, or one with a retry topic."""
    retry_subscription: str | None
    """Of the retry topic; of this one's name where left away."""
    consumer_timeout: Time
    """So long after its last call a consumer keeps keys, or a partition, of which it holds no
    message; 5 s where left away."""
    max_unacked: int | None
    """Messages of one partition that may be out, unacked; None: what the broker allows."""
    max_unacked_per_consumer: int | None
    """The same at one consumer."""
    filter: Filter | None
    durable: bool
    """False: nothing is written of what is acked; it begins at its start again when a partition
    changes its owner, and goes when nobody has received, acked or held a message for the broker's
    `non_durable_expiry_ms`, a minute: `SubscriptionNotFound` then; `subscribe` makes it anew."""


class ProducerSettings(TypedDict, total=False):
    """How a producer works; defaults are those of `octavo.client.producer.ProducerOptions`."""

    epoch: int
    """0 to 32,767, of a named producer: a higher one puts an end to those before it."""
    linger_ms: float
    """A batch that is not full waits this long for more; 0 sends at the next loop turn."""
    batch_bytes: int
    """A batch that holds so much goes out at once; at most 2 MiB. After an interruption those that
    wait go out together, up to 256 KiB."""
    window: int
    """Batches of one partition on the way at once."""
    pending_bytes_max: int
    """Unanswered bytes of all partitions; above it `send` waits."""
    delivery_timeout_ms: int
    """How long a batch is sent again before its outcome is given up as unknown."""
