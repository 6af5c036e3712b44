"""The errors of a broker's core; each message names what was wrong and what would be right.

An error that is caught by its type, or has attributes, is a class, else an `ErrorCode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.ledger.errors import TooFewBookies
from octavo.metadata.topic_settings import InvalidSettings as InvalidSettings
from octavo.protocol.codes import KafkaCode, OctavoError, Scope
from octavo.protocol.names import InvalidName as InvalidName

_STALE_SHOWN = 10


class BrokerError(OctavoError):
    name = "broker-error"


@dataclass(frozen=True, slots=True)
class ErrorCode:
    name: str
    http_status: int
    kafka: KafkaCode | None = None
    retryable: bool = False
    of: type[BrokerError] = BrokerError

    def __call__(self, message: str, **members: object) -> BrokerError:
        error = self.of(message)
        error.name, error.http_status, error.kafka = self.name, self.http_status, self.kafka
        error.retryable = self.retryable
        error.members = members
        return error


INVALID_MESSAGE_ID = ErrorCode("invalid-message-id", 400)

INVALID_ACK_ID = ErrorCode("invalid-ack-id", 400)


class NamespaceNotFound(BrokerError):
    name = "namespace-not-found"
    http_status = 404
    kafka = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION


NAMESPACE_NOT_EMPTY = ErrorCode("namespace-not-empty", 409)


class TopicNotFound(BrokerError):
    name = "topic-not-found"
    http_status = 404
    kafka = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION


class TopicDeleting(BrokerError):
    name = "topic-deleting"
    http_status = 503
    kafka = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    retryable = True


class TopicChanged(BrokerError):
    """A broker knew an earlier topic of that name."""

    name = "topic-changed"
    http_status = 503
    kafka = KafkaCode.NOT_LEADER_OR_FOLLOWER
    retryable = True

    def __init__(self, message: str, *, looked: bool = False) -> None:
        super().__init__(message)
        self.looked = looked
        """Whether this broker has read the store: then another look finds the same."""


class TopicReplaced(BrokerError):
    """The caller's topic was deleted and made again."""

    name = "topic-replaced"
    http_status = 409


class BrokerIdTaken(BrokerError):
    """Another live broker has our id; this broker must stop."""

    name = "broker-id-taken"
    http_status = 503
    scope = Scope.PROCESS


BROKER_NOT_FOUND = ErrorCode("broker-not-found", 404)


class NoOtherBroker(BrokerError):
    name = "no-other-broker"
    http_status = 409


BROKER_DRAINING = ErrorCode("broker-draining", 409)


class PartitionNotFound(BrokerError):
    name = "partition-not-found"
    http_status = 404
    kafka = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION


class SubscriptionNotFound(BrokerError):
    name = "subscription-not-found"
    http_status = 404
    kafka = KafkaCode.GROUP_ID_NOT_FOUND


class SettingsConflict(BrokerError):
    """The topic or subscription exists with the settings `found`, not `wanted`."""

    name = "settings-conflict"
    http_status = 409
    kafka = KafkaCode.TOPIC_ALREADY_EXISTS

    def __init__(self, message: str, found: object = None, wanted: object = None) -> None:
        super().__init__(message)
        self.found = found
        self.wanted = wanted


class StaleProducerEpoch(BrokerError):
    """A newer instance of the producer has published."""

    name = "stale-producer-epoch"
    http_status = 403
    kafka = KafkaCode.INVALID_PRODUCER_EPOCH


class SequenceGap(BrokerError):
    name = "sequence-gap"
    http_status = 409
    kafka = KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    problem_members = (("expected_sequence", "expected"),)
    problem_headers: tuple[tuple[str, str], ...] = (("Producer-Expected-Seq", "expected"),)

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(message)
        self.expected = expected


class OffsetMismatch(BrokerError):
    """Another publish came first."""

    name = "offset-mismatch"
    http_status = 412
    problem_members = (("next_offset", "next_offset"),)
    problem_headers = (("Next-Offset", "next_offset"),)

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class OffsetTrimmed(BrokerError):
    name = "offset-trimmed"
    http_status = 410
    kafka = KafkaCode.OFFSET_OUT_OF_RANGE
    problem_members = (("earliest_offset", "earliest"),)
    problem_headers = (("Earliest-Offset", "earliest"),)

    def __init__(self, message: str, earliest: int) -> None:
        super().__init__(message)
        self.earliest = earliest


class OffsetBeyondEnd(BrokerError):
    name = "offset-beyond-end"
    http_status = 416
    kafka = KafkaCode.OFFSET_OUT_OF_RANGE
    problem_members = (("next_offset", "next_offset"),)
    problem_headers = (("Next-Offset", "next_offset"),)

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class MessageNotFound(BrokerError):
    name = "message-not-found"
    http_status = 404


COMPACTED_VIEW_UNREADABLE = ErrorCode("compacted-view-unreadable", 503, retryable=True)
"""The record names a view whose ledgers are gone or damaged.

A read must fail: the view must not look empty.
"""

BATCH_TOO_LONG = ErrorCode("batch-too-long", 413, KafkaCode.MESSAGE_TOO_LARGE)


class UnsupportedBatch(BrokerError):
    name = "not-supported-yet"
    http_status = 422
    kafka = KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class InvalidTimestamp(BrokerError):
    name = "invalid-timestamp"
    http_status = 422
    kafka = KafkaCode.INVALID_TIMESTAMP


class MessageTooLong(BrokerError):
    """The message is longer than its topic or this broker allows."""

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
    """A quota or rate is used up: the caller has to wait."""

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
"""A quota of lasting things, such as topics: waiting would not help."""


class Overloaded(BrokerError):
    """A bounded queue is full, and stayed full."""

    name = "overloaded"
    http_status = 429
    kafka = KafkaCode.NOT_ENOUGH_REPLICAS
    retryable = True


class NotOwner(BrokerError):
    """Another broker serves the partition; nothing took effect."""

    name = "not-owner"
    http_status = 503
    kafka = KafkaCode.NOT_LEADER_OR_FOLLOWER
    retryable = True
    scope = Scope.LEDGER


class PartitionMoving(BrokerError):
    """The partition has no owner now, or its owner is opening it."""

    name = "partition-moving"
    http_status = 503
    kafka = KafkaCode.NOT_LEADER_OR_FOLLOWER
    retryable = True


class OwnerUnreachable(BrokerError):
    """The owner accepts no connection: nothing was sent."""

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
"""The owner's record names an address without a live broker."""


class PartitionUnavailable(BrokerError):
    """The owner cannot write now; the message says which bookies are up."""

    name = "partition-unavailable"
    http_status = 503
    kafka = KafkaCode.NOT_ENOUGH_REPLICAS
    retryable = True


class PartitionDamaged(PartitionUnavailable):
    """All copies of an entry are missing or forged; no message is skipped."""

    name = "partition-damaged"
    kafka = KafkaCode.UNKNOWN_SERVER_ERROR
    retryable = False

    def __init__(self, message: str, entry_id: int) -> None:
        super().__init__(message)
        self.entry_id = entry_id


PARTITION_UNOPENABLE = ErrorCode(
    "too-few-bookies", 503, KafkaCode.INVALID_REPLICATION_FACTOR, of=PartitionUnavailable
)
"""The partition's topic asks for more bookies than the cluster has."""


def unavailable(message: str, cause: Exception) -> BrokerError:
    hopeless = isinstance(cause, TooFewBookies)
    return PARTITION_UNOPENABLE(message) if hopeless else PartitionUnavailable(message)


class PublishOutcomeUnknown(BrokerError):
    """The batch may be stored: repeat it with the same producer sequence."""

    name = "outcome-unknown"
    http_status = 504
    kafka = KafkaCode.REQUEST_TIMED_OUT
    retryable = True


class AckOutcomeUnknown(BrokerError):
    name = "ack-outcome-unknown"
    http_status = 504
    kafka = KafkaCode.REQUEST_TIMED_OUT
    retryable = True


class SubscriptionBusy(BrokerError):
    """Another live consumer has the exclusive subscription."""

    name = "subscription-busy"
    http_status = 409
    retryable = True


CUMULATIVE_ACK_NOT_ALLOWED = ErrorCode("cumulative-ack-not-allowed", 422)
"""A cumulative ack would ack other consumers' messages."""


class StaleLease(BrokerError):
    """The leases of `stale` have ended; the call's other acks are durable."""

    name = "stale-lease"
    http_status = 409
    problem_members = (("stale", "stale"),)

    def __init__(self, message: str, stale: Sequence[str]) -> None:
        super().__init__(message)
        self.stale = tuple(stale)

    @classmethod
    def of(cls, stale: Sequence[str]) -> StaleLease:
        some = ", ".join(stale[:_STALE_SHOWN]) + (", …" if len(stale) > _STALE_SHOWN else "")
        return cls(
            f"{len(stale)} ack ids have no lease any more ({some}): those messages were or "
            "will be delivered again, or are copied to the dead-letter or the retry topic; "
            "everything else of the call took effect",
            stale,
        )


AUDIT_TOPIC_CLOSED = ErrorCode("audit-topic", 403, KafkaCode.TOPIC_AUTHORIZATION_FAILED)


class TooManyDelayed(BrokerError):
    """A nack with a delay was refused; the rest of the call is durable."""

    name = "too-many-delayed"
    http_status = 429


INVALID_BULK_LOAD = ErrorCode("invalid-bulk-load", 422)
"""An open or foreign ledger, wrong counts, or a ledger twice."""

BULK_LOAD_NOT_FOUND = ErrorCode("bulk-load-not-found", 404)
"""No batch, or another batch, was committed under the id."""

BULK_LOAD_ABORTED = ErrorCode("bulk-load-aborted", 409)
"""Some ledgers were given up: write the batch again."""

BATCH_BEGUN = ErrorCode("batch-begun", 409)
"""The batch was not begun, or was begun with other content."""


class BatchOutOfOrder(BrokerError):
    """`expected` follows the newest committed batch."""

    name = "batch-out-of-order"
    http_status = 409
    problem_members = (("expected_batch", "expected"),)

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(message)
        self.expected = expected


FOREIGN_BULK_LOAD = ErrorCode("foreign-bulk-load", 403)
OTHER_CLUSTER = ErrorCode("other-cluster", 409)
"""The writer of a bulk load made its token for another cluster."""


class LargeNotTaken(BrokerError):
    name = "large-not-taken"
    http_status = 422


NOT_ENCRYPTED = ErrorCode("not-encrypted", 422)
"""A copy of an encrypted message would be stored in clear text."""


class DueAfterExpiry(BrokerError):
    """A message would expire before it is due; nothing was stored."""

    name = "due-after-expiry"
    http_status = 422
    kafka = KafkaCode.INVALID_RECORD


class TooManyLedgers(BrokerError):
    name = "too-many-ledgers"
    http_status = 409


class TopicExists(BrokerError):
    name = "topic-exists"
    http_status = 409
    kafka = KafkaCode.TOPIC_ALREADY_EXISTS


LEDGER_GOING = ErrorCode("ledger-going", 409, retryable=True)

TOO_MANY_SUBSCRIPTIONS = ErrorCode("too-many-subscriptions", 409, KafkaCode.POLICY_VIOLATION)

TOO_MANY_FORKS = ErrorCode("too-many-forks", 409)


class ForkDisturbed(BrokerError):
    """The topic or fork changed while the fork was made; ask again."""

    name = "fork-disturbed"
    http_status = 503
    retryable = True


LEDGER_IN_USE = ErrorCode("ledger-in-use", 409)
"""The live broker `owner` writes the ledger: a recovery would interrupt a topic."""


class TooManyRecoveries(BrokerError):
    name = "too-many-recoveries"
    http_status = 429
    problem_headers = (("Retry-After", "retry_after_s"),)
    retryable = True

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


BULK_LOAD_UNFINISHED = ErrorCode("bulk-load-unfinished", 503, retryable=True)
"""Committed, but not visible everywhere: repeat the call to wait."""


class BacklogQuotaExceeded(BrokerError):
    """The publish waited in vain; nothing was stored."""

    name = "backlog-quota-exceeded"
    http_status = 429
    kafka = KafkaCode.NOT_ENOUGH_REPLICAS
    problem_members = (("subscription", "subscription"),)
    retryable = True

    def __init__(self, message: str, subscription: str) -> None:
        super().__init__(message)
        self.subscription = subscription


class BacklogQuotaRejected(BacklogQuotaExceeded):
    """The topic's policy is to reject at once."""

    http_status = 409
    kafka = KafkaCode.POLICY_VIOLATION

    retryable = False


class StaleGeneration(BrokerError):
    """A member was away, and another member has the partition."""

    name = "stale-generation"
    http_status = 409
    kafka = KafkaCode.ILLEGAL_GENERATION
    problem_members = (("generation", "generation"),)

    def __init__(self, message: str, generation: int) -> None:
        super().__init__(message)
        self.generation = generation


GROUP_NOT_ALLOWED = ErrorCode("group-not-allowed", 422, KafkaCode.POLICY_VIOLATION)
"""Members share a subscription; an exclusive subscription has one consumer."""

GROUP_FULL = ErrorCode("group-full", 409, KafkaCode.GROUP_MAX_SIZE_REACHED)

FOREIGN_MEMBER = ErrorCode("foreign-member", 403, KafkaCode.GROUP_AUTHORIZATION_FAILED)
"""The member belongs to another principal."""


class InvalidSchema(BrokerError):
    name = "invalid-schema"
    http_status = 422


class SchemaNotFound(BrokerError):
    name = "schema-not-found"
    http_status = 404


INCOMPATIBLE_SCHEMA = ErrorCode("incompatible-schema", 409)


class SchemaCheckUnavailable(BrokerError):
    name = "schema-check-unavailable"
    http_status = 503
    kafka = KafkaCode.NOT_ENOUGH_REPLICAS
    retryable = True


class SchemaMismatch(BrokerError):
    """A message does not match the schema; its batch was refused.

    `index`: its number; None if no message can match.
    """

    name = "schema-mismatch"
    http_status = 422
    kafka = KafkaCode.INVALID_RECORD
    problem_members = (("message_in_batch", "index"),)

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index

    def without_reason(self) -> SchemaMismatch:
        """Make the error for a caller that may not see the schema."""
        which = "the message" if self.index is None else f"message {self.index} of its batch"
        return SchemaMismatch(
            f"{which} was not stored: it does not fit the schema of the topic (callers who may "
            "describe the schema are told why)",
            self.index,
        )


class ExclusiveProducer(BrokerError):
    """Another producer has exclusive access."""

    name = "exclusive-producer"
    http_status = 409
    kafka = KafkaCode.PRODUCER_FENCED


class StaleProducerAccess(BrokerError):
    name = "stale-producer-access"
    http_status = 403
    kafka = KafkaCode.PRODUCER_FENCED


class ProducerBusy(BrokerError):
    name = "producer-busy"
    http_status = 409

    def __init__(self, message: str, left_ms: int) -> None:
        super().__init__(message)
        self.left_ms = left_ms


class StreamNotFound(BrokerError):
    name = "stream-not-found"
    http_status = 404


TOPIC_IS_NO_STREAM = ErrorCode("topic-is-no-stream", 404, of=StreamNotFound)


class StreamGone(BrokerError):
    name = "stream-gone"
    http_status = 410


STREAM_CONFLICT = ErrorCode("stream-conflict", 409)
"""The stream exists with other properties."""


class StreamClosed(BrokerError):
    """The stream ended before `next_offset`."""

    name = "stream-closed"
    http_status = 409

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class StreamSequence(BrokerError):
    """The `Stream-Seq` does not sort after the last."""

    name = "stream-sequence"
    http_status = 409


class StreamSequenceGap(SequenceGap):
    """The producer sent `received` in place of `expected`."""

    name = "sequence-gap"
    problem_headers = (
        ("Producer-Expected-Seq", "expected"),
        ("Producer-Received-Seq", "received"),
    )

    def __init__(self, message: str, expected: int, received: int) -> None:
        super().__init__(message, expected)
        self.received = received


class StaleStreamEpoch(StaleProducerEpoch):
    """A newer instance of the producer, with `epoch`, has appended."""

    name = "stale-producer-epoch"
    problem_headers = (("Producer-Epoch", "epoch"),)

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


class EpochBegun(BrokerError):
    name = "epoch-begins-at-0"
    http_status = 400


EMPTY_APPEND = ErrorCode("body-missing", 400)

NOTHING_TO_APPEND = ErrorCode("nothing-to-append", 400)

CONTENT_TYPE_MISSING = ErrorCode("content-type-missing", 400)

INVALID_STREAM_JSON = ErrorCode("invalid-json", 400)

TOO_MANY_MESSAGES = ErrorCode("too-many-messages", 413)
"""One append may not have this many."""

STREAM_MESSAGE_TOO_LONG = ErrorCode(MessageTooLong.name, 413)


class TopicIsStream(BrokerError):
    name = "topic-is-stream"
    http_status = 409
    kafka = KafkaCode.POLICY_VIOLATION
