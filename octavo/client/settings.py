"""Type the settings of topics, subscriptions and producers, which calls take as keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Required, TypedDict

Time = int | float | str
"""Seconds, or text with a unit: `500ms`, `30s`, `2m`, `1.5h`, `7d`."""
Size = int | str
"""Bytes, or text with a unit: `256MiB`, `10GB`."""


class Retention(TypedDict, total=False):
    """How long messages are kept that every subscription has acked; the others are kept anyway.

    A broker removes whole closed ledgers. None: no bound. The first bound that is reached counts.
    """

    time: Time | None
    """A ledger goes when its newest message is older."""
    size: Size | None
    """While a partition has more bytes, its oldest ledger goes."""


class Rollover(TypedDict, total=False):
    """When a partition begins a new ledger: at the first of these bounds."""

    time: Time
    size: Size
    entries: int


class BacklogQuota(TypedDict, total=False):
    """How much a subscription may leave unacked in a partition, and what happens beyond that."""

    size: Size | None
    time: Time | None
    """The age of its oldest unacked message, since it was stored."""
    policy: Literal["hold", "reject", "evict"] | None
    """`hold`: publishes wait, then fail with 429; `reject`: they fail with 409; `evict`: the oldest
    messages count as acked.
    """


class Rates(TypedDict, total=False):
    """Bounds of publishing and reading each second, for each broker that owns partitions of the
    topic.
    """

    publish_bytes: Size | None
    publish_messages: int | Literal["off"] | None
    dispatch_bytes: Size | None
    dispatch_messages: int | Literal["off"] | None


class Compaction(TypedDict, total=False):
    """When brokers compact the topic by themselves: docs/compaction.md."""

    after_size: Size
    """Compact when closed ledgers have this many new bytes (default 64 MiB) and `dirty_ratio` is
    reached.
    """
    dirty_ratio: float
    """Compact when this share of the messages is new (default 0.5) and `after_size` is reached."""
    tombstones: Time
    """The view drops a tombstone of this age, a day if not set."""
    delete_raw: bool
    """Remove ledgers once the view covers them and every subscription has acked them."""


class Policies(TypedDict, total=False):
    """Policies of a topic, or of a namespace for its topics that have none of their own.

    None removes the topic's own value. `off` in place of a time, size or rate means no bound, even
    where the namespace has one.
    """

    retention: Retention | None
    """Without a value in topic and namespace, everything is kept for ever."""
    ttl: Time | None
    """A message stored for longer counts as acked, for every subscription."""
    backlog_quota: BacklogQuota | None
    delete_when_inactive: Time | None
    subscription_expiry: Time | None
    """Brokers delete a subscription that no consumer has used for this long."""
    message_bytes_max: Size | None
    """The most bytes of a message: key, value and headers together."""
    rates: Rates | None
    message_time: Literal["create", "append"] | None
    """A message's timestamp: `create`, what its producer says; `append`, when it was stored."""
    durability: Literal["sync", "deferred"] | None
    """`deferred`: a publish is answered when an ack quorum has written it, and synced later."""


class AutoCreate(TypedDict, total=False):
    """How a broker creates a topic when a client publishes to a name without one."""

    partitions: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int


class NamespaceSettings(Policies, total=False):
    """Policies that a namespace sets for its topics, and how it creates topics."""

    auto_create: AutoCreate | None
    """None: publishing creates no topic."""


class Quota(TypedDict, total=False):
    """Bounds of a user or namespace, at each broker. None: the default of its kind; −1: no
    bound.
    """

    requests: int | None
    """Calls in a second."""
    publish_bytes: int | None
    publish_messages: int | None
    read_bytes: int | None
    read_messages: int | None
    connections: int | None
    """Open connections of a user."""
    streams: int | None
    """Open streams of a user."""
    topics: int | None


class Rule(TypedDict):
    """Allow or deny a principal an operation, in the words of `octavo acl`."""

    effect: Literal["allow", "deny"]
    principal: str
    """`user:NAME`, `group:NAME`, `role:NAME`, `user:*` (each known user) or `*` (every caller)."""
    operations: str
    """Operations, separated by commas, or `all`."""
    resource: str
    """`topic:payments/*`, `cluster`, …"""


class Role(TypedDict):
    """A user or group has a role."""

    principal: str
    role: str


class Schema(TypedDict, total=False):
    """The schema that a topic's messages follow."""

    subject: Required[str]
    """A subject in the topic's namespace."""
    validate: bool
    """Refuse messages that do not fit the schema; true if left out."""


class TopicSettings(Policies, total=False):
    """Settings of a topic, except partitions and quorums. A broker refuses an unknown one by
    name.
    """

    rollover: Rollover
    compaction: Compaction | None
    """None: brokers do not compact the topic on their own."""
    schema: Schema | None


class TopicChanges(TopicSettings, total=False):
    """Changes to an existing topic. New quorums hold for ledgers that begin later."""

    partitions: int
    """A higher number than now: a topic never loses partitions."""
    ensemble_size: int
    write_quorum: int
    ack_quorum: int


class Backoff(TypedDict, total=False):
    """How long an unacked message waits for its next delivery."""

    first: Required[Time]
    """The wait after the first delivery."""
    most: Time
    """The longest wait; ten minutes if left out."""
    factor: float
    """Each wait is the wait before times this factor; 2 if left out."""


class Filter(TypedDict, total=False):
    """Select a subscription's messages; the owner acks all others without delivering them."""

    headers: Mapping[str, str | Sequence[str]]
    """For each header, the value or values that it may have; `*` is any."""
    key_prefix: str | None
    """Deliver only messages whose key begins with this text."""


class SubscriptionSettings(TypedDict, total=False):
    """Settings of a subscription, except its type, start and leases."""

    ack_timeout: Time
    """How long a message is leased: `ack_timeout_s` with a unit."""
    retry_backoff: Backoff | None
    """The wait before a redelivery, unless a nack names a delay; None: no wait."""
    max_deliveries: int | None
    """After these deliveries without an ack, a message goes to the dead-letter topic; None:
    never.
    """
    dead_letter_topic: str | None
    """`topic` or `namespace/topic`; `{topic}-{subscription}-dlq` if left out."""
    dead_letter_subscription: str | None
    """The subscription to create on the dead-letter topic; by default of the same name."""
    retry_topic: str | None
    """Unacked messages move to this topic and are delivered from there when due;
    `{topic}-{subscription}-retry` if only `retry_deliveries` is given.
    """
    retry_deliveries: int | None
    """Deliveries from this topic before a message moves to the retry topic; None: all, or one with
    a retry topic.
    """
    retry_subscription: str | None
    """The subscription to create on the retry topic; by default of the same name."""
    consumer_timeout: Time
    """How long an idle consumer keeps a key or partition of which it holds no message; 2 s if left
    out.
    """
    max_unacked: int | None
    """Unacked messages of a partition at all consumers together; None: the broker's bound."""
    max_unacked_per_consumer: int | None
    """Unacked messages of a partition at a single consumer."""
    filter: Filter | None
    durable: bool
    """False: acks are not written down. The subscription starts over when a partition changes its
    owner, and is removed after `non_durable_expiry_ms` (a minute) without use.
    """


class ProducerSettings(TypedDict, total=False):
    """Settings of a producer; `octavo.client.producer.ProducerOptions` has the defaults."""

    epoch: int
    """0 to 32,767, for a named producer: a higher epoch shuts out producers with a lower one."""
    linger_ms: float
    """How long a batch waits for more messages; 0 sends it at the next turn of the loop."""
    batch_bytes: int
    """A batch of this size is sent at once; at most 2 MiB."""
    window: int
    """Batches of a partition that may be under way at once."""
    pending_bytes_max: int
    """`send` waits while more bytes than this, in all partitions, are unanswered."""
    delivery_timeout_ms: int
    """How long a batch is sent again before its outcome counts as unknown."""
