"""The structs of answers, which handlers return and /openapi.json describes (http/schemas.py).

A member that is `UNSET` is left out. Limits and descriptions of numbers and texts are for readers
only: they are not checked when an answer is written.
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
    str | None, Meta(description="why receive hands nothing out though there are messages")
]
Delayed = Annotated[
    int, Meta(ge=0, description="given back with a delay, or not due yet: they wait for their time")
]


class ProblemBody(msgspec.Struct):
    """RFC 9457; may have further members that its `code` names (docs/http.md)."""

    schema_name: ClassVar = "Problem"

    type: Annotated[str, Meta(extra_json_schema={"format": "uri"})]
    title: str
    status: int
    detail: Annotated[str, Meta(description="the cause, and what would help")]
    code: Annotated[str, Meta(description="a stable word for programs")]
    retryable: Annotated[bool, Meta(description="whether the very same call may succeed later")]
    instance: str | UnsetType = UNSET


# ---- topics


class Topics(msgspec.Struct):
    """The topics of a namespace, by name."""

    namespace: Name
    topics: list[str]
    next: Annotated[str | None, Meta(description="go on `after` it; null: the end")]
    letters: (
        Annotated[list[str], Meta(description="those that get dead letters or retries, if asked")]
        | UnsetType
    ) = UNSET


class Drained(msgspec.Struct):
    """A broker that was told to give everything away, or not to any more."""

    id: str
    draining: bool
    partitions: Annotated[int, Meta(description="that it still serves")]


class Unloaded(msgspec.Struct):
    """A partition that was handed on."""

    partition: int
    from_broker: str
    to_broker: Annotated[str, Meta(description="who serves it now")]


class UnloadedAll(msgspec.Struct):
    """What became of each partition."""

    schema_name: ClassVar = "UnloadedTopic"

    partitions: list[Unloaded]


class ForkedFrom(msgspec.Struct):
    """Which topic this one began as a fork of."""

    topic: str
    incarnation: str
    offsets: Annotated[
        dict[str, Offset], Meta(description="by partition: the first offset that is its own")
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
    """Who receives from a subscription."""

    name: str
    leased: Count
    idle: Annotated[float, Meta(description="seconds since it was heard")]
    priority: Count = 0
    active: Annotated[bool, Meta(description="of a failover subscription")] | UnsetType = UNSET
    slots: Annotated[int, Meta(description="of 65536, in a key-shared one")] | UnsetType = UNSET
    slot_ranges: Annotated[str, Meta(description="which: 0-511,2048-4095")] | UnsetType = UNSET
    held_back: (
        Annotated[str | None, Meta(description="why it is given nothing, when it is explained")]
        | UnsetType
    ) = UNSET


class DeadLetters(msgspec.Struct):
    """Messages that were delivered `max_deliveries` times; or `retry_deliveries` times."""

    waiting: Annotated[
        int, Meta(ge=0, description="for their copy in the dead-letter, or the retry topic")
    ]
    sent: Annotated[int, Meta(ge=0, description="since the partition was opened where it is now")]
    problem: Annotated[
        str | None,
        Meta(
            description="why copies are not stored at present, or not in the topic that was named"
        ),
    ]


class SubscriptionFigures(msgspec.Struct, kw_only=True):
    """A subscription in one partition."""

    partition: Count | UnsetType = UNSET
    committed_offset: Annotated[
        int, Meta(description="the first offset that is not acked: all before it are")
    ]
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
    """Of a partition of a topic with `compaction`: what is in no compacted view yet."""

    bytes: Annotated[int, Meta(ge=0, description="of closed ledgers")]
    due: Annotated[bool, Meta(description="the broker compacts it, or is going to")]


class PartitionFigures(msgspec.Struct):
    """One partition, as its owner says; or the `problem` of asking it."""

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
        Annotated[str, Meta(description="why retention leaves the oldest ledger")] | UnsetType
    ) = UNSET
    compacted: CompactedFigures | UnsetType = UNSET
    uncompacted: UncompactedFigures | UnsetType = UNSET
    stream: (
        Annotated[bool, Meta(description="it is a durable stream; left away otherwise")] | UnsetType
    ) = UNSET


class ExplainedPublishing(msgspec.Struct):
    """What may hold a partition's publishers back, and what does."""

    pending_bytes: Annotated[int, Meta(ge=0, description="on their way to the ack quorum")]
    pending_bytes_max: Annotated[int, Meta(ge=0, description="beyond it publishers wait")]
    producer: Annotated[str | None, Meta(description="who alone may publish, if somebody")]
    held_back: Annotated[list[str], Meta(description="each limit that is reached, in words")]


class ExplainedSubscription(msgspec.Struct):
    """What may hold a subscription's consumers back in one partition, and what does."""

    figures: SubscriptionFigures
    unacked_max: Annotated[int, Meta(ge=0, description="messages out at all consumers")]
    held_back: Annotated[list[str], Meta(description="each limit that is reached, in words")]
    waiting: Annotated[
        list[str],
        Meta(description="messages at each consumer, delayed and kept out by the filter, in words"),
    ]
    unacked_of_consumer_max: Count | UnsetType = UNSET


class Explained(msgspec.Struct):
    """One partition: who serves it and why, and what is held back by what."""

    partition: Count
    owner: str
    why: Annotated[str, Meta(description="why it is served there, in words")]
    preferred: Annotated[str, Meta(description="who should have it by the even spread")]
    placed: Annotated[bool, Meta(description="it was put there for its load, or by hand")]
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
    """Settings, and live figures where they are asked for."""

    name: str
    settings: TopicBody
    created: Ms
    incarnation: Annotated[
        str, Meta(description="tells it from earlier and later topics of the same name")
    ]
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
        Annotated[dict[str, Holds], Meta(description="policies: what holds, and who says so")]
        | UnsetType
    ) = UNSET
    warning: (
        Annotated[str, Meta(description="why nothing can be published to it yet, or what it risks")]
        | UnsetType
    ) = UNSET


class Namespace(msgspec.Struct):
    """A namespace, and what it says for its topics."""

    name: Name
    topics: Count
    policies: NamespaceBody


# ---- messages


class Place(msgspec.Struct):
    """Where a message is. Of a repeat that is too old to be remembered only the partition."""

    partition: Count
    offset: Offset | UnsetType = UNSET
    id: IdText | UnsetType = UNSET


class Share(msgspec.Struct):
    """What one partition has of a request."""

    partition: Count
    count: Count
    first: Place
    last: Place


class Result(msgspec.Struct):
    """What became of one message of a request: its place, or why it has none."""

    status: int
    partition: Count
    offset: Offset | UnsetType = UNSET
    id: IdText | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET


class StoredBatchAt(msgspec.Struct):
    """Where one batch of several was stored."""

    count: Count
    offset: Annotated[int, Meta(description="-1: stored before, too long ago to be remembered")]
    id: str
    duplicate: bool = False


class PartError(ProblemBody, kw_only=True):
    """Why messages of one partition were not stored, and how many."""

    partition: Count
    count: Count


Duplicates = Annotated[int, Meta(ge=0, description="of these, stored by an earlier request")]
Results = Annotated[list[Result], Meta(description="with results=all: one a message")]
Batches = Annotated[list[StoredBatchAt], Meta(description="with results=batches")]
NotConfirmed = Annotated[int, Meta(ge=0, description="in a 207: see errors")]
Errors = Annotated[list[PartError], Meta(description="in a 207: why, by partition")]


class Published(msgspec.Struct):
    """What a publish stored, and what not."""

    count: Annotated[int, Meta(ge=0, description="messages stored, also those that were already")]
    first: Place | UnsetType = UNSET
    last: Place | UnsetType = UNSET
    duplicates: Duplicates | UnsetType = UNSET
    partitions: list[Share] | UnsetType = UNSET
    results: Results | UnsetType = UNSET
    batches: Batches | UnsetType = UNSET
    not_confirmed: NotConfirmed | UnsetType = UNSET
    errors: Errors | UnsetType = UNSET


class LargePublished(msgspec.Struct):
    """Where a large message is. `pieces` is 0 when it was stored as any other one."""

    partition: Count
    offset: Offset
    id: IdText
    size: Annotated[int, Meta(ge=0, description="bytes of its body")]
    pieces: Annotated[int, Meta(ge=0)]
    crc32c: Annotated[str, Meta(description="of the body, in hex")] | UnsetType = UNSET
    duplicate: Annotated[bool, Meta(description="it was there already")] | UnsetType = UNSET


class Messages(msgspec.Struct):
    """What a read gives."""

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
    """One for each partition."""

    offsets: list[OffsetsOf]


# ---- subscriptions


class Subscription(msgspec.Struct):
    """Settings, and live figures where they are asked for."""

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
    """What a receive gives."""

    messages: list[MessageOut]
    held_back: Annotated[str, Meta(description="why none is handed out now")] | UnsetType = UNSET


class MovedIn(msgspec.Struct):
    """What became of a subscription in one partition."""

    partition: Count
    acked: Annotated[int, Meta(ge=0, description="messages that were not before")]
    committed_offset: Annotated[
        int, Meta(description="the first offset that is not acked: all before it are")
    ]


class Moved(msgspec.Struct):
    """How far a subscription was moved on."""

    acked: Count
    partitions: list[MovedIn]


class Acked(msgspec.Struct):
    """How many are done."""

    acked: Count


# ---- bulk loads


class BulkLoadShare(msgspec.Struct):
    """What one partition has of a batch."""

    topic: str
    partition: Count
    messages: Count
    offset: Annotated[int | None, Meta(description="its first one")]
    ledgers: list[Offset]


class BulkLoad(msgspec.Struct):
    """The newest committed batch."""

    bulk_load: str
    batch: Annotated[int, Meta(description="the newest committed one")]
    complete: Annotated[bool, Meta(description="every partition has its part")]
    published: Annotated[bool, Meta(description="by its writer, without ledgers")]
    parts: list[BulkLoadShare]
    repeated: Annotated[bool, Meta(description="this call has added nothing")] | UnsetType = UNSET


class BulkLoadTurn(msgspec.Struct):
    """Whether the caller is to publish the batch now."""

    bulk_load: str
    batch: Count
    repeated: bool


class LedgerFragment(msgspec.Struct):
    """Which bookies hold the entries from `first_entry` on."""

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
