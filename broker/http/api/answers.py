"""The structs of answers, which /openapi.json describes (http/schemas.py).

`UNSET` members are left out. Limits and descriptions are for readers: they are not checked.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from octavo.broker.http.api.payloads import MessageOut
from octavo.broker.http.api.topic_body import Holds, NamespaceBody, SubscriptionBody, TopicBody
from octavo.protocol.names import NAME_PATTERN, NOT_NAMES

Name = Annotated[
    str,
    Meta(extra_json_schema={"pattern": f"^{NAME_PATTERN}$", "not": {"enum": list(NOT_NAMES)}}),
]
Count = Annotated[int, Meta(ge=0)]
Offset = Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})]
IdText = Annotated[str, Meta(pattern="^[0-9]+:[0-9]+:[0-9]+$")]
Ms = Annotated[int, Meta(description="milliseconds since the epoch")]
HeldBack = Annotated[
    str | None, Meta(description="why receive returns no messages though there are some")
]
Delayed = Annotated[int, Meta(ge=0, description="messages given back with a delay, or not due yet")]


class ProblemBody(msgspec.Struct):
    """RFC 9457; may have more members, which depend on `code` (docs/http.md)."""

    schema_name: ClassVar = "Problem"

    type: Annotated[str, Meta(extra_json_schema={"format": "uri"})]
    title: str
    status: int
    detail: Annotated[str, Meta(description="the cause, and what would help")]
    code: Annotated[str, Meta(description="a stable word for programs")]
    retryable: Annotated[bool, Meta(description="whether the same call may succeed later")]
    instance: str | UnsetType = UNSET


# Topics


class Topics(msgspec.Struct):
    """The topics of a namespace, by name."""

    namespace: Name
    topics: list[str]
    next: Annotated[str | None, Meta(description="`after` of the next page; null: there is none")]
    letters: (
        Annotated[
            list[str], Meta(description="topics that get dead letters or retries, on request")
        ]
        | UnsetType
    ) = UNSET


class Drained(msgspec.Struct):
    """A broker that hands its partitions over, or takes partitions again."""

    id: str
    draining: bool
    partitions: Annotated[int, Meta(description="how many it still serves")]


class Unloaded(msgspec.Struct):
    """A partition that was handed over."""

    partition: int
    from_broker: str
    to_broker: Annotated[str, Meta(description="the broker that serves it now")]


class UnloadedAll(msgspec.Struct):
    """The result for each partition."""

    schema_name: ClassVar = "UnloadedTopic"

    partitions: list[Unloaded]


class ForkedFrom(msgspec.Struct):
    """The topic of which this topic is a fork."""

    topic: str
    incarnation: str
    offsets: Annotated[
        dict[str, Offset],
        Meta(description="by partition: the first offset that is not the source's"),
    ]


class Beginning(msgspec.Struct):
    """Where a partition begins."""

    partition: Count
    earliest_offset: Offset


class Truncated(msgspec.Struct):
    """Where partitions begin now."""

    partitions: list[Beginning]


class PartLedger(msgspec.Struct):
    """A ledger of a partition."""

    id: Offset
    base_offset: Offset


class Consumer(msgspec.Struct):
    """A consumer of a subscription."""

    name: str
    leased: Count
    idle: Annotated[float, Meta(description="seconds since its last call")]
    priority: Count = 0
    active: (
        Annotated[bool, Meta(description="whether it has its turn, in a failover subscription")]
        | UnsetType
    ) = UNSET
    slots: (
        Annotated[int, Meta(description="of 65536, in a key-shared subscription")] | UnsetType
    ) = UNSET
    slot_ranges: Annotated[str, Meta(description="which: 0-511,2048-4095")] | UnsetType = UNSET
    held_back: (
        Annotated[str | None, Meta(description="why it gets no messages, in an explanation")]
        | UnsetType
    ) = UNSET


class DeadLetters(msgspec.Struct):
    """Messages that were delivered `max_deliveries` or `retry_deliveries` times."""

    waiting: Annotated[int, Meta(ge=0, description="messages whose copy is not stored yet")]
    sent: Annotated[
        int, Meta(ge=0, description="copies since the partition was opened at its broker")
    ]
    problem: Annotated[
        str | None,
        Meta(description="why copies are not stored now, or not in the named topic"),
    ]


class SubscriptionFigures(msgspec.Struct, kw_only=True):
    """A subscription in one partition."""

    partition: Count | UnsetType = UNSET
    committed_offset: Annotated[int, Meta(description="the first unacked offset")]
    mark_delete_offset: Annotated[
        int,
        Meta(
            description="committed_offset by its former name, until 0.3",
            extra_json_schema={"deprecated": True},
        ),
    ]
    next_offset: Offset
    backlog: Count
    unacked_ranges: Count
    leased: Count
    redelivering: Count
    delayed: Delayed
    held_back: HeldBack
    consumers: list[Consumer]
    dead_letters: DeadLetters
    retries: DeadLetters


class CompactedFigures(msgspec.Struct):
    """A partition's compacted view: up to its horizon it has each key's newest message."""

    horizon: Offset
    messages: Count
    bytes: Count


class UncompactedFigures(msgspec.Struct):
    """The messages that are in no compacted view yet, of a partition with `compaction`."""

    bytes: Annotated[int, Meta(ge=0, description="in closed ledgers")]
    due: Annotated[bool, Meta(description="the broker compacts it, or will soon")]


class PartitionFigures(msgspec.Struct):
    """A partition's figures from its owner, or the `problem` of asking the owner."""

    schema_name: ClassVar = "Partition"

    partition: Count
    owner: str | UnsetType = UNSET
    epoch: Count | UnsetType = UNSET
    earliest_offset: Offset | UnsetType = UNSET
    next_offset: Offset | UnsetType = UNSET
    messages: Count | UnsetType = UNSET
    stored_bytes: Count | UnsetType = UNSET
    pending_bytes: Count | UnsetType = UNSET
    last_add_confirmed: int | UnsetType = UNSET
    producers: Count | UnsetType = UNSET
    ledgers: list[PartLedger] | UnsetType = UNSET
    subscriptions: dict[str, SubscriptionFigures] | UnsetType = UNSET
    problem: ProblemBody | UnsetType = UNSET
    kept_because: (
        Annotated[str, Meta(description="why retention keeps the oldest ledger")] | UnsetType
    ) = UNSET
    compacted: CompactedFigures | UnsetType = UNSET
    uncompacted: UncompactedFigures | UnsetType = UNSET
    stream: (
        Annotated[bool, Meta(description="true: it is a durable stream; else absent")] | UnsetType
    ) = UNSET


class ExplainedPublishing(msgspec.Struct):
    """Limits and reasons that delay a partition's publishers."""

    pending_bytes: Annotated[int, Meta(ge=0, description="on their way to the ack quorum")]
    pending_bytes_max: Annotated[int, Meta(ge=0, description="beyond it publishers wait")]
    producer: Annotated[str | None, Meta(description="the only producer that may publish, if any")]
    held_back: Annotated[list[str], Meta(description="each limit that is reached, in words")]


class ExplainedSubscription(msgspec.Struct):
    """Limits and reasons that delay a subscription's consumers in a partition."""

    figures: SubscriptionFigures
    unacked_max: Annotated[
        int, Meta(ge=0, description="the most leased messages, of all consumers")
    ]
    held_back: Annotated[list[str], Meta(description="each limit that is reached, in words")]
    waiting: Annotated[
        list[str],
        Meta(description="messages that are leased, delayed, or refused by the filter, in words"),
    ]
    unacked_of_consumer_max: Count | UnsetType = UNSET


class Explained(msgspec.Struct):
    """A partition: which broker serves it and why, and what delays its clients."""

    partition: Count
    owner: str
    why: Annotated[str, Meta(description="why it is served there, in words")]
    preferred: Annotated[str, Meta(description="the broker that should have it by the even spread")]
    placed: Annotated[bool, Meta(description="it was placed there for its load, or by an operator")]
    served: Annotated[float, Meta(description="seconds since it was opened there")]
    load: Annotated[int, Meta(description="messages and KiB a second, published and read")]
    epoch: Count
    earliest_offset: Offset
    next_offset: Offset
    ledgers: list[PartLedger]
    last_add_confirmed: int
    kept_because: str
    publishing: ExplainedPublishing
    subscription: ExplainedSubscription | UnsetType = UNSET


class Topic(msgspec.Struct):
    """Settings, and live figures on request."""

    name: str
    settings: TopicBody
    created: Ms
    incarnation: Annotated[str, Meta(description="distinguishes it from other topics of its name")]
    messages: Count | UnsetType = UNSET
    stored_bytes: Count | UnsetType = UNSET
    backlog: dict[str, Count] | UnsetType = UNSET
    partitions: list[PartitionFigures] | UnsetType = UNSET
    forked_from: ForkedFrom | UnsetType = UNSET
    letters: (
        Annotated[bool, Meta(description="subscriptions send dead letters or retries there")]
        | UnsetType
    ) = UNSET
    effective: (
        Annotated[dict[str, Holds], Meta(description="the policies in force, and whose they are")]
        | UnsetType
    ) = UNSET
    warning: (
        Annotated[str, Meta(description="why publishes fail now, or what the topic risks")]
        | UnsetType
    ) = UNSET


class Namespace(msgspec.Struct):
    """A namespace, and the defaults of its topics."""

    name: Name
    topics: Count
    policies: NamespaceBody


# Messages


class Place(msgspec.Struct):
    """The place of a message. For a repeat that is too old to be remembered, only the partition."""

    partition: Count
    offset: Offset | UnsetType = UNSET
    id: IdText | UnsetType = UNSET


class Share(msgspec.Struct):
    """The part of a request in one partition."""

    partition: Count
    count: Count
    first: Place
    last: Place


class Result(msgspec.Struct):
    """The result of a message of a request: its place, or a problem."""

    status: int
    partition: Count
    offset: Offset | UnsetType = UNSET
    id: IdText | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET


class StoredBatchAt(msgspec.Struct):
    """The place of a batch."""

    count: Count
    offset: Annotated[int, Meta(description="-1: stored too long ago to be remembered")]
    id: str
    duplicate: bool = False


class PartError(ProblemBody, kw_only=True):
    """Why messages of one partition were not stored, and how many."""

    partition: Count
    count: Count


Duplicates = Annotated[int, Meta(ge=0, description="those stored by an earlier request")]
Results = Annotated[list[Result], Meta(description="with results=all: one for each message")]
Batches = Annotated[list[StoredBatchAt], Meta(description="with results=batches")]
NotConfirmed = Annotated[int, Meta(ge=0, description="in a 207: see errors")]
Errors = Annotated[list[PartError], Meta(description="in a 207: why, by partition")]


class Published(msgspec.Struct):
    """The messages that a publish stored, and those that it did not store."""

    count: Annotated[int, Meta(ge=0, description="messages stored, duplicates included")]
    first: Place | UnsetType = UNSET
    last: Place | UnsetType = UNSET
    duplicates: Duplicates | UnsetType = UNSET
    partitions: list[Share] | UnsetType = UNSET
    results: Results | UnsetType = UNSET
    batches: Batches | UnsetType = UNSET
    not_confirmed: NotConfirmed | UnsetType = UNSET
    errors: Errors | UnsetType = UNSET


class LargePublished(msgspec.Struct):
    """The place of a large message. `pieces` is 0 if it was stored as an ordinary message."""

    partition: Count
    offset: Offset
    id: IdText
    size: Annotated[int, Meta(ge=0, description="bytes of its body")]
    pieces: Annotated[int, Meta(ge=0)]
    crc32c: Annotated[str, Meta(description="of the body, in hex")] | UnsetType = UNSET
    duplicate: Annotated[bool, Meta(description="it was stored before")] | UnsetType = UNSET


class Messages(msgspec.Struct):
    """The messages of a read."""

    messages: list[MessageOut]
    next_offset: Offset | UnsetType = UNSET


class OffsetsOf(msgspec.Struct):
    """A place in a partition, and the partition's ends."""

    partition: Count
    offset: Offset
    earliest: Offset
    latest: Annotated[
        int,
        Meta(
            ge=0,
            description="one past the last message",
            extra_json_schema={"format": "int64"},
        ),
    ]


class Offsets(msgspec.Struct):
    """The offsets of each partition."""

    offsets: list[OffsetsOf]


# Subscriptions


class Subscription(msgspec.Struct):
    """Settings, and live figures on request."""

    name: str
    topic: str
    settings: SubscriptionBody
    created: Ms
    backlog: Count | UnsetType = UNSET
    unacked_ranges: Count | UnsetType = UNSET
    leased: Count | UnsetType = UNSET
    redelivering: Count | UnsetType = UNSET
    delayed: Delayed | UnsetType = UNSET
    held_back: HeldBack | UnsetType = UNSET
    partitions: list[SubscriptionFigures] | UnsetType = UNSET
    dead_letters: DeadLetters | UnsetType = UNSET
    retries: DeadLetters | UnsetType = UNSET


class Received(msgspec.Struct):
    """The messages of a receive."""

    messages: list[MessageOut]
    held_back: Annotated[str, Meta(description="why there are none")] | UnsetType = UNSET


class MovedIn(msgspec.Struct):
    """A subscription's cursor in one partition after a call."""

    partition: Count
    acked: Annotated[int, Meta(ge=0, description="messages that this call acked")]
    committed_offset: Annotated[int, Meta(description="the first unacked offset")]


class Moved(msgspec.Struct):
    """How far a subscription's cursors moved."""

    acked: Count
    partitions: list[MovedIn]


class Acked(msgspec.Struct):
    """How many messages became acked."""

    acked: Count


# Bulk loads


class BulkLoadShare(msgspec.Struct):
    """The part of a batch in one partition."""

    topic: str
    partition: Count
    messages: Count
    offset: Annotated[int | None, Meta(description="its first offset")]
    ledgers: list[Offset]


class BulkLoad(msgspec.Struct):
    """The newest committed batch."""

    bulk_load: str
    batch: Annotated[int, Meta(description="the newest committed batch")]
    complete: Annotated[bool, Meta(description="every partition has its part")]
    published: Annotated[bool, Meta(description="its writer published it, without ledgers")]
    parts: list[BulkLoadShare]
    repeated: Annotated[bool, Meta(description="the batch was committed before")] | UnsetType = (
        UNSET
    )


class BulkLoadTurn(msgspec.Struct):
    """Whether the caller should publish the batch now."""

    bulk_load: str
    batch: Count
    repeated: bool


class LedgerFragment(msgspec.Struct):
    """The bookies that have the entries from `first_entry` on."""

    first_entry: Count
    bookies: list[str]


class Ledger(msgspec.Struct):
    """A ledger's metadata; its password never leaves the cluster."""

    id: Offset
    state: Annotated[str, Meta(extra_json_schema={"enum": ["OPEN", "IN_RECOVERY", "CLOSED"]})]
    ensemble_size: Count
    write_quorum: Count
    ack_quorum: Count
    digest_type: str
    created: int
    last_entry: int | None
    length: int | None
    fragments: list[LedgerFragment]
    custom: dict[str, str]
    steps: list[dict[str, Any]] | UnsetType = UNSET
