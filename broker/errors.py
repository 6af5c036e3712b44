"""The errors of a broker's core. Each message names what was wrong and what would be right.

An error is declared once: its code (`name`), the HTTP status, Kafka's code, what the answer shows
of it, and whether the same call may succeed later. If something catches it by its type, or it has
attributes, the declaration is a class, else an `ErrorCode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.ledger.errors import TooFewBookies
from octavo.metadata.topic_settings import InvalidSettings as InvalidSettings
from octavo.protocol.codes import KafkaCode, OctavoError, Scope
from octavo.protocol.names import InvalidName as InvalidName

_STALE_SHOWN = 10
"""Ack ids that a message names."""


class BrokerError(OctavoError):
    """The base class of the core's errors."""

    name = "broker-error"


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """The declaration of an error that nothing catches by its type. Call it to make the error."""

    name: str
    http_status: int
    kafka: KafkaCode | None = None
    retryable: bool = False
    of: type[BrokerError] = BrokerError
    """The class by which callers may catch the error."""

    def __call__(self, message: str, **members: object) -> BrokerError:
        """Make the error. Its answer shows `members`."""
        error = self.of(message)
        error.name, error.http_status, error.kafka = self.name, self.http_status, self.kafka
        error.retryable = self.retryable
        error.members = members
        return error


INVALID_MESSAGE_ID = ErrorCode("invalid-message-id", 400)
"""A message id is malformed."""

INVALID_ACK_ID = ErrorCode("invalid-ack-id", 400)
"""An ack id is malformed."""


class NamespaceNotFound(BrokerError):
    """There is no such namespace."""

    name = "namespace-not-found"
    http_status = 404
    kafka = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION


NAMESPACE_NOT_EMPTY = ErrorCode("namespace-not-empty", 409)
"""A namespace with topics cannot be deleted."""


class TopicNotFound(BrokerError):
    """There is no such topic."""

    name = "topic-not-found"
    http_status = 404
    kafka = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION


class TopicDeleting(BrokerError):
    """The topic is being deleted, in the background. Ask again."""

    name = "topic-deleting"
    http_status = 503
    kafka = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    retryable = True


class TopicChanged(BrokerError):
    """This broker, or the broker that asked it, knew an earlier topic of that name."""

    name = "topic-changed"
    http_status = 503
    kafka = KafkaCode.NOT_LEADER_OR_FOLLOWER
    retryable = True

    def __init__(self, message: str, *, looked: bool = False) -> None:
        super().__init__(message)
        self.looked = looked
        """Whether this broker has read the store: then another look finds the same."""


class TopicReplaced(BrokerError):
    """The caller's topic was deleted, and another topic was made under its name."""

    name = "topic-replaced"
    http_status = 409


class BrokerIdTaken(BrokerError):
    """Another live broker has this broker's id; this broker must stop."""

    name = "broker-id-taken"
    http_status = 503
    scope = Scope.PROCESS


BROKER_NOT_FOUND = ErrorCode("broker-not-found", 404)
"""No live broker has this id."""


class NoOtherBroker(BrokerError):
    """No other broker could serve the partitions of this broker."""

    name = "no-other-broker"
    http_status = 409


BROKER_DRAINING = ErrorCode("broker-draining", 409)
"""A draining broker takes no partitions."""


class PartitionNotFound(BrokerError):
    """The topic has no partition with this number."""

    name = "partition-not-found"
    http_status = 404
    kafka = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION


class SubscriptionNotFound(BrokerError):
    """There is no such subscription."""

    name = "subscription-not-found"
    http_status = 404
    kafka = KafkaCode.GROUP_ID_NOT_FOUND


class SettingsConflict(BrokerError):
    """The topic or subscription exists with the settings `found` instead of `wanted`."""

    name = "settings-conflict"
    http_status = 409
    kafka = KafkaCode.TOPIC_ALREADY_EXISTS

    def __init__(self, message: str, found: object = None, wanted: object = None) -> None:
        super().__init__(message)
        self.found = found
        self.wanted = wanted


class StaleProducerEpoch(BrokerError):
    """A newer instance of the producer has published, so this instance is refused."""

    name = "stale-producer-epoch"
    http_status = 403
    kafka = KafkaCode.INVALID_PRODUCER_EPOCH


class SequenceGap(BrokerError):
    """The sequence is not the next, which is `expected`."""

    name = "sequence-gap"
    http_status = 409
    kafka = KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    problem_members = (("expected_sequence", "expected"),)
    problem_headers: tuple[tuple[str, str], ...] = (("Producer-Expected-Seq", "expected"),)

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(message)
        self.expected = expected


class OffsetMismatch(BrokerError):
    """Another publish came first: `next_offset` is not the expected offset."""

    name = "offset-mismatch"
    http_status = 412
    problem_members = (("next_offset", "next_offset"),)
    problem_headers = (("Next-Offset", "next_offset"),)

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class OffsetTrimmed(BrokerError):
    """Retention has removed the offset; `earliest` is the first offset that is left."""

    name = "offset-trimmed"
    http_status = 410
    kafka = KafkaCode.OFFSET_OUT_OF_RANGE
    problem_members = (("earliest_offset", "earliest"),)
    problem_headers = (("Earliest-Offset", "earliest"),)

    def __init__(self, message: str, earliest: int) -> None:
        super().__init__(message)
        self.earliest = earliest


class OffsetBeyondEnd(BrokerError):
    """The offset is not written yet; the next message gets `next_offset`."""

    name = "offset-beyond-end"
    http_status = 416
    kafka = KafkaCode.OFFSET_OUT_OF_RANGE
    problem_members = (("next_offset", "next_offset"),)
    problem_headers = (("Next-Offset", "next_offset"),)

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class MessageNotFound(BrokerError):
    """No message has this id in this partition."""

    name = "message-not-found"
    http_status = 404


COMPACTED_VIEW_UNREADABLE = ErrorCode("compacted-view-unreadable", 503, retryable=True)
"""The ledgers of a compacted view are gone or damaged, although the record names the view.

A read must fail: its messages are unknown, and the view must not look empty.
"""

BATCH_TOO_LONG = ErrorCode("batch-too-long", 413, KafkaCode.MESSAGE_TOO_LARGE)
"""A batch is too long for an entry."""


class UnsupportedBatch(BrokerError):
    """A record batch uses what this version does not support."""

    name = "not-supported-yet"
    http_status = 422
    kafka = KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class InvalidTimestamp(BrokerError):
    """A record batch has a time outside the calendar."""

    name = "invalid-timestamp"
    http_status = 422
    kafka = KafkaCode.INVALID_TIMESTAMP


class MessageTooLong(BrokerError):
    """A message is longer than its topic or this broker allows."""

    name = "message-too-long"
    http_status = 413
    kafka = KafkaCode.MESSAGE_TOO_LARGE
    problem_members = (("bytes_max", "bytes_max"),)

    def __init__(self, size: int, bytes_max: int, what: str = "this one") -> None:
        super().__init__(
            f"a message may have {bytes_max} bytes of key, value and headers, {what} has {size}; "
            "send longer messages by PUT …/large (octavo publish --large), if the topic takes them"
        )
        self.bytes_max = bytes_max


class QuotaExceeded(BrokerError):
    """A quota, or a rate of a topic, is used up: the caller has to wait."""

    name = "quota-exceeded"
    http_status = 429
    kafka = KafkaCode.THROTTLING_QUOTA_EXCEEDED
    problem_members = (("subject", "subject"), ("quota", "quota"), ("limit", "limit"))
    retryable = True

    def __init__(self, detail: str, *, subject: str, quota: str, limit: int, wait_s: float) -> None:
        super().__init__(detail)
        self.subject = subject
        self.quota = quota
        self.limit = limit
        self.wait_s = wait_s


QUOTA_FULL = ErrorCode("quota-exceeded", 422, KafkaCode.POLICY_VIOLATION)
"""A quota of lasting things, such as topics, is full: waiting would not help."""


class Overloaded(BrokerError):
    """A bounded queue is full, and stayed full."""

    name = "overloaded"
    http_status = 429
    kafka = KafkaCode.NOT_ENOUGH_REPLICAS
    retryable = True


class NotOwner(BrokerError):
    """Another broker serves the partition now; nothing of the call took effect."""

    name = "not-owner"
    http_status = 503
    kafka = KafkaCode.NOT_LEADER_OR_FOLLOWER
    retryable = True
    scope = Scope.LEDGER


class PartitionMoving(BrokerError):
    """The partition has no owner at this moment, or its owner is still opening it."""

    name = "partition-moving"
    http_status = 503
    kafka = KafkaCode.NOT_LEADER_OR_FOLLOWER
    retryable = True


class OwnerUnreachable(BrokerError):
    """The owner did not accept a connection; nothing was sent."""

    name = "owner-unreachable"
    http_status = 503
    kafka = KafkaCode.NOT_LEADER_OR_FOLLOWER
    retryable = True


OWNER_NOT_REGISTERED = ErrorCode(
    "owner-not-registered",
    503,
    KafkaCode.NOT_LEADER_OR_FOLLOWER,
    retryable=True,
    of=OwnerUnreachable,
)
"""The owner's record names an address at which no live broker is registered."""


class PartitionUnavailable(BrokerError):
    """The owner cannot write at present; the message says which bookies are up."""

    name = "partition-unavailable"
    http_status = 503
    kafka = KafkaCode.NOT_ENOUGH_REPLICAS
    retryable = True


class PartitionDamaged(PartitionUnavailable):
    """All copies of an entry are missing or forged; no message is skipped.

    The message names partition, ledger, entry, and the offsets that were expected and found.
    """

    name = "partition-damaged"
    kafka = KafkaCode.UNKNOWN_SERVER_ERROR
    retryable = False

    def __init__(self, message: str, entry_id: int) -> None:
        super().__init__(message)
        self.entry_id = entry_id


PARTITION_UNOPENABLE = ErrorCode(
    "too-few-bookies", 503, KafkaCode.INVALID_REPLICATION_FACTOR, of=PartitionUnavailable
)
"""Its topic asks for more bookies than the cluster has, up or down."""


def unavailable(message: str, cause: Exception) -> BrokerError:
    """Make the error for callers, by whether a retry can help."""
    hopeless = isinstance(cause, TooFewBookies)
    return PARTITION_UNOPENABLE(message) if hopeless else PartitionUnavailable(message)


class PublishOutcomeUnknown(BrokerError):
    """The batch may or may not be stored: repeat it with the same producer sequence."""

    name = "outcome-unknown"
    http_status = 504
    kafka = KafkaCode.REQUEST_TIMED_OUT
    retryable = True


class AckOutcomeUnknown(BrokerError):
    """The acks may or may not be durable. Repeating them is harmless."""

    name = "ack-outcome-unknown"
    http_status = 504
    kafka = KafkaCode.REQUEST_TIMED_OUT
    retryable = True


class SubscriptionBusy(BrokerError):
    """An exclusive subscription has another live consumer."""

    name = "subscription-busy"
    http_status = 409
    retryable = True


CUMULATIVE_ACK_NOT_ALLOWED = ErrorCode("cumulative-ack-not-allowed", 422)
"""On a shared subscription `up_to` would ack other consumers' messages."""


class StaleLease(BrokerError):
    """Leases have ended: these messages were or will be delivered again.

    The other acks of the same call are durable; `stale` are the ack ids that are not.
    """

    name = "stale-lease"
    http_status = 409
    problem_members = (("stale", "stale"),)

    def __init__(self, message: str, stale: Sequence[str]) -> None:
        super().__init__(message)
        self.stale = tuple(stale)

    @classmethod
    def of(cls, stale: Sequence[str]) -> StaleLease:
        """Make the error that names these ack ids."""
        some = ", ".join(stale[:_STALE_SHOWN]) + (", …" if len(stale) > _STALE_SHOWN else "")
        return cls(
            f"{len(stale)} ack ids have no lease any more ({some}): those messages were or "
            "will be delivered again, or are copied to the dead-letter or the retry topic; "
            "everything else of the call took effect",
            stale,
        )


AUDIT_TOPIC_CLOSED = ErrorCode("audit-topic", 403, KafkaCode.TOPIC_AUTHORIZATION_FAILED)
"""Clients may not write to the audit log."""


class TooManyDelayed(BrokerError):
    """Too many messages wait for their delay: a nack with a delay was refused.

    The rest of the same call took effect, and is durable.
    """

    name = "too-many-delayed"
    http_status = 429


INVALID_BULK_LOAD = ErrorCode("invalid-bulk-load", 422)
"""The parts are wrong: an open or foreign ledger, wrong counts, or a ledger twice."""

BULK_LOAD_NOT_FOUND = ErrorCode("bulk-load-not-found", 404)
"""No batch, or another batch, was committed under the id."""

BULK_LOAD_ABORTED = ErrorCode("bulk-load-aborted", 409)
"""Some ledgers of the batch were given up: write the batch again."""

BATCH_BEGUN = ErrorCode("batch-begun", 409)
"""A batch that its writer publishes itself was not begun, or was begun in another way."""


class BatchOutOfOrder(BrokerError):
    """The batch does not follow the newest committed batch; `expected` does."""

    name = "batch-out-of-order"
    http_status = 409
    problem_members = (("expected_batch", "expected"),)

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(message)
        self.expected = expected


FOREIGN_BULK_LOAD = ErrorCode("foreign-bulk-load", 403)
"""The id belongs to a token, which the caller did not send."""
OTHER_CLUSTER = ErrorCode("other-cluster", 409)
"""The writer of a bulk load made its token for another cluster."""


class LargeNotTaken(BrokerError):
    """The topic's settings exclude large messages."""

    name = "large-not-taken"
    http_status = 422


NOT_ENCRYPTED = ErrorCode("not-encrypted", 422)
"""A copy of an encrypted message would be stored in clear text."""


class DueAfterExpiry(BrokerError):
    """A message would be older than its topic's `ttl` before it is due; none was stored."""

    name = "due-after-expiry"
    http_status = 422
    kafka = KafkaCode.INVALID_RECORD


class TooManyLedgers(BrokerError):
    """A partition's record, or a bulk load's, would grow too long."""

    name = "too-many-ledgers"
    http_status = 409


class TopicExists(BrokerError):
    """A fork's name is taken by a topic."""

    name = "topic-exists"
    http_status = 409
    kafka = KafkaCode.TOPIC_ALREADY_EXISTS


LEDGER_GOING = ErrorCode("ledger-going", 409, retryable=True)
"""The ledger is being deleted, because partitions no longer refer to it."""

TOO_MANY_SUBSCRIPTIONS = ErrorCode("too-many-subscriptions", 409, KafkaCode.POLICY_VIOLATION)
"""A topic has its maximum of subscriptions."""

TOO_MANY_FORKS = ErrorCode("too-many-forks", 409)
"""A ledger would be part of too many partitions."""


class ForkDisturbed(BrokerError):
    """The topic, or the fork, changed or was deleted while the fork was being made; ask again."""

    name = "fork-disturbed"
    http_status = 503
    retryable = True


LEDGER_IN_USE = ErrorCode("ledger-in-use", 409)
"""The live broker `owner` writes the ledger: recovering it would interrupt a topic."""


class TooManyRecoveries(BrokerError):
    """The broker runs its maximum of recoveries for callers: retry in `retry_after_s`."""

    name = "too-many-recoveries"
    http_status = 429
    problem_headers = (("Retry-After", "retry_after_s"),)
    retryable = True

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


BULK_LOAD_UNFINISHED = ErrorCode("bulk-load-unfinished", 503, retryable=True)
"""Committed, but not yet visible in every partition: repeat the call to wait for it."""


class BacklogQuotaExceeded(BrokerError):
    """A subscription's backlog is over its quota, and the publish waited in vain; not stored.

    The message names the subscription, and the figures.
    """

    name = "backlog-quota-exceeded"
    http_status = 429
    kafka = KafkaCode.NOT_ENOUGH_REPLICAS
    problem_members = (("subscription", "subscription"),)
    retryable = True

    def __init__(self, message: str, subscription: str) -> None:
        super().__init__(message)
        self.subscription = subscription


class BacklogQuotaRejected(BacklogQuotaExceeded):
    """A backlog is over its quota, and the topic's policy is to reject at once."""

    http_status = 409
    kafka = KafkaCode.POLICY_VIOLATION

    retryable = False


class StaleGeneration(BrokerError):
    """A member of a consumer group was away, and another member has the partition now."""

    name = "stale-generation"
    http_status = 409
    kafka = KafkaCode.ILLEGAL_GENERATION
    problem_members = (("generation", "generation"),)

    def __init__(self, message: str, generation: int) -> None:
        super().__init__(message)
        self.generation = generation


GROUP_NOT_ALLOWED = ErrorCode("group-not-allowed", 422, KafkaCode.POLICY_VIOLATION)
"""Members of a group share a subscription, and an exclusive subscription has one consumer."""

GROUP_FULL = ErrorCode("group-full", 409, KafkaCode.GROUP_MAX_SIZE_REACHED)
"""A consumer group has its maximum of members or partitions."""

FOREIGN_MEMBER = ErrorCode("foreign-member", 403, KafkaCode.GROUP_AUTHORIZATION_FAILED)
"""The member of the consumer group belongs to another principal."""


class InvalidSchema(BrokerError):
    """A schema is invalid, or its type or compatibility is unknown."""

    name = "invalid-schema"
    http_status = 422


class SchemaNotFound(BrokerError):
    """There is no such subject, or no such version."""

    name = "schema-not-found"
    http_status = 404


INCOMPATIBLE_SCHEMA = ErrorCode("incompatible-schema", 409)
"""The schema is incompatible with its subject's versions; `problems` say why."""


class SchemaCheckUnavailable(BrokerError):
    """The process that checks schemas gives no answer now."""

    name = "schema-check-unavailable"
    http_status = 503
    kafka = KafkaCode.NOT_ENOUGH_REPLICAS
    retryable = True


class SchemaMismatch(BrokerError):
    """A message does not match its topic's schema; its whole batch was refused.

    `index` is its number in that batch, None if no message can match.
    """

    name = "schema-mismatch"
    http_status = 422
    kafka = KafkaCode.INVALID_RECORD
    problem_members = (("message_in_batch", "index"),)

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index

    def without_reason(self) -> SchemaMismatch:
        """Make the error for a caller that may not see the schema, which the reason quotes."""
        which = "the message" if self.index is None else f"message {self.index} of its batch"
        return SchemaMismatch(
            f"{which} was not stored: it does not fit the schema of the topic (callers who may "
            "describe the schema are told why)",
            self.index,
        )


class ExclusiveProducer(BrokerError):
    """A producer has exclusive access, and the batch lacks the epoch of that access."""

    name = "exclusive-producer"
    http_status = 409
    kafka = KafkaCode.PRODUCER_FENCED


class StaleProducerAccess(BrokerError):
    """The exclusive access of that epoch has ended: the producer was fenced, or gave it up."""

    name = "stale-producer-access"
    http_status = 403
    kafka = KafkaCode.PRODUCER_FENCED


class ProducerBusy(BrokerError):
    """Another producer has exclusive access, for at most `left_ms` more if it is gone."""

    name = "producer-busy"
    http_status = 409

    def __init__(self, message: str, left_ms: int) -> None:
        super().__init__(message)
        self.left_ms = left_ms


class StreamNotFound(BrokerError):
    """There is no such stream."""

    name = "stream-not-found"
    http_status = 404


TOPIC_IS_NO_STREAM = ErrorCode("topic-is-no-stream", 404, of=StreamNotFound)
"""The name is a topic that is not a stream."""


class StreamGone(BrokerError):
    """The stream was deleted, and is kept for its forks."""

    name = "stream-gone"
    http_status = 410


STREAM_CONFLICT = ErrorCode("stream-conflict", 409)
"""The stream exists with other properties than requested."""


class StreamClosed(BrokerError):
    """The stream has ended before `next_offset`, and takes no appends."""

    name = "stream-closed"
    http_status = 409

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class StreamSequence(BrokerError):
    """A `Stream-Seq` does not sort after the last."""

    name = "stream-sequence"
    http_status = 409


class StreamSequenceGap(SequenceGap):
    """A stream's producer sent the sequence `received` in place of `expected`."""

    name = "sequence-gap"
    problem_headers = (
        ("Producer-Expected-Seq", "expected"),
        ("Producer-Received-Seq", "received"),
    )

    def __init__(self, message: str, expected: int, received: int) -> None:
        super().__init__(message, expected)
        self.received = received


class StaleStreamEpoch(StaleProducerEpoch):
    """A newer instance of a stream's producer, with `epoch`, has appended."""

    name = "stale-producer-epoch"
    problem_headers = (("Producer-Epoch", "epoch"),)

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


class EpochBegun(BrokerError):
    """A producer's new epoch does not begin at 0."""

    name = "epoch-begins-at-0"
    http_status = 400


EMPTY_APPEND = ErrorCode("body-missing", 400)
"""An append without a body, which does not close the stream."""

NOTHING_TO_APPEND = ErrorCode("nothing-to-append", 400)
"""A body of JSON without a message: an empty array."""

CONTENT_TYPE_MISSING = ErrorCode("content-type-missing", 400)
"""An append that does not say of what kind its data is."""

INVALID_STREAM_JSON = ErrorCode("invalid-json", 400)
"""The body is not JSON, and the stream is of JSON."""

TOO_MANY_MESSAGES = ErrorCode("too-many-messages", 413)
"""A body of JSON with more messages or parts than one append may have."""

STREAM_MESSAGE_TOO_LONG = ErrorCode(MessageTooLong.name, 413)
"""A message of a stream is longer than its topic takes."""


class TopicIsStream(BrokerError):
    """The topic is a durable stream: write it by the stream's protocol."""

    name = "topic-is-stream"
    http_status = 409
    kafka = KafkaCode.POLICY_VIOLATION
