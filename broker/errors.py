"""What a broker refuses, and why. Each message names what was wrong and what would be right.

The HTTP layer maps classes to status codes; the status in each docstring is the one intended.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.ledger.errors import TooFewBookies
from octavo.metadata.topic_settings import InvalidSettings as InvalidSettings
from octavo.protocol.codes import OctavoError, Scope
from octavo.protocol.names import InvalidName as InvalidName

_STALE_SHOWN = 10
"""Ack ids that a message names."""


class BrokerError(OctavoError):
    """The root of what the broker core raises."""

    name = "broker-error"


class InvalidMessageId(BrokerError):
    """Text that is no message id (400)."""

    name = "invalid-message-id"


class InvalidAckId(BrokerError):
    """Text that no receive ever gave out (400)."""

    name = "invalid-ack-id"


class NamespaceNotFound(BrokerError):
    """No such namespace (404)."""

    name = "namespace-not-found"


class NamespaceNotEmpty(BrokerError):
    """A namespace with topics is not deleted (409)."""

    name = "namespace-not-empty"


class TopicNotFound(BrokerError):
    """No such topic (404)."""

    name = "topic-not-found"


class TopicDeleting(BrokerError):
    """The topic is being deleted, which goes on by itself; ask again (503)."""

    name = "topic-deleting"
    retryable = True


class TopicChanged(BrokerError):
    """This broker, or the one that asked it, believed in an earlier topic of that name (503)."""

    name = "topic-changed"
    retryable = True

    def __init__(self, message: str, *, looked: bool = False) -> None:
        super().__init__(message)
        self.looked = looked
        """This broker has looked in the store; another look will find nothing else."""


class TopicReplaced(BrokerError):
    """The caller's topic was deleted; the one of that name was made after it (409)."""

    name = "topic-replaced"


class BrokerIdTaken(BrokerError):
    """Another living broker has this broker's id; this one must end (503)."""

    name = "broker-id-taken"
    scope = Scope.PROCESS


class BrokerNotFound(BrokerError):
    """No live broker has this id (404)."""

    name = "broker-not-found"


class NoOtherBroker(BrokerError):
    """There is nobody to whom a broker could give what it serves (409)."""

    name = "no-other-broker"


class BrokerDraining(BrokerError):
    """A broker that gives everything away is to be given something (409)."""

    name = "broker-draining"


class PartitionNotFound(BrokerError):
    """The topic has fewer partitions than that (404)."""

    name = "partition-not-found"


class SubscriptionNotFound(BrokerError):
    """No such subscription (404)."""

    name = "subscription-not-found"


class SettingsConflict(BrokerError):
    """It exists with other settings (409): those `found`, and not those `wanted`."""

    name = "settings-conflict"

    def __init__(self, message: str, found: object = None, wanted: object = None) -> None:
        super().__init__(message)
        self.found = found
        self.wanted = wanted


class StaleProducerEpoch(BrokerError):
    """A newer instance of the producer has published: this one is a zombie (403)."""

    name = "stale-producer-epoch"


class SequenceGap(BrokerError):
    """The sequence is not the next one; `expected` is (409)."""

    name = "sequence-gap"

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(message)
        self.expected = expected


class OffsetMismatch(BrokerError):
    """Somebody published first: `next_offset` is not the one that was expected (412)."""

    name = "offset-mismatch"

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class OffsetTrimmed(BrokerError):
    """Retention has removed the offset; `earliest` is the first one left (410)."""

    name = "offset-trimmed"

    def __init__(self, message: str, earliest: int) -> None:
        super().__init__(message)
        self.earliest = earliest


class OffsetBeyondEnd(BrokerError):
    """The offset is not written yet; `next_offset` will be the next one (416)."""

    name = "offset-beyond-end"

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class MessageNotFound(BrokerError):
    """No message has this id in this partition (404)."""

    name = "message-not-found"


class CompactedViewUnreadable(BrokerError):
    """A compacted view whose ledgers are gone or damaged; though the record names it (503).

    What it holds is unknown, never nothing.
    """

    name = "compacted-view-unreadable"
    retryable = True


class BatchTooLong(BrokerError):
    """A batch that does not fit an entry (413)."""

    name = "batch-too-long"


class UnsupportedBatch(BrokerError):
    """A record batch uses what this version does not support (422)."""

    name = "not-supported-yet"


class InvalidTimestamp(BrokerError):
    """A record batch has a time outside the calendar (422)."""

    name = "invalid-timestamp"


class MessageTooLong(BrokerError):
    """A message is longer than its topic or this broker takes (413)."""

    name = "message-too-long"

    def __init__(self, size: int, bytes_max: int, what: str = "this one") -> None:
        super().__init__(
            f"a message may have {bytes_max} bytes of key, value and headers, {what} has {size}; a "
            "longer one goes by PUT …/large (octavo publish --large), where the topic takes it"
        )
        self.bytes_max = bytes_max


class QuotaExceeded(BrokerError):
    """A quota, or a rate of a topic, is used up: the caller has to wait (429)."""

    name = "quota-exceeded"
    retryable = True

    def __init__(self, detail: str, *, subject: str, quota: str, limit: int, wait_s: float) -> None:
        super().__init__(detail)
        self.subject = subject
        self.quota = quota
        self.limit = limit
        self.wait_s = wait_s


class QuotaFull(BrokerError):
    """A quota of things that stay is full: waiting would not help (422)."""

    name = "quota-exceeded"

    def __init__(self, detail: str, *, subject: str, quota: str, limit: int) -> None:
        super().__init__(detail)
        self.subject = subject
        self.quota = quota
        self.limit = limit


class Overloaded(BrokerError):
    """Bounded queues are full and stayed so (429)."""

    name = "overloaded"
    retryable = True


class NotOwner(BrokerError):
    """Another broker serves the partition now; nothing of the call took effect (503)."""

    name = "not-owner"
    retryable = True
    scope = Scope.LEDGER


class PartitionMoving(BrokerError):
    """The partition has no owner at this moment, or its owner is still opening it (503)."""

    name = "partition-moving"
    retryable = True


class OwnerUnreachable(BrokerError):
    """The owner did not accept a connection; nothing was sent (503)."""

    name = "owner-unreachable"
    retryable = True


class OwnerNotRegistered(OwnerUnreachable):
    """The owner's record names an address at which no live broker is registered (503)."""

    name = "owner-not-registered"


class PartitionUnavailable(BrokerError):
    """The owner cannot write at present; the message says which bookies are up (503)."""

    name = "partition-unavailable"
    retryable = True


class PartitionDamaged(PartitionUnavailable):
    """What is stored has a gap, or is forged, in all its copies; nothing is passed over (503).

    The message names partition, ledger, entry, and the offsets that were expected and found.
    """

    name = "partition-damaged"
    retryable = False

    def __init__(self, message: str, entry_id: int) -> None:
        super().__init__(message)
        self.entry_id = entry_id


class PartitionUnopenable(PartitionUnavailable):
    """Its topic asks for more bookies than the cluster has, up or down (503, for good)."""

    name = "too-few-bookies"
    retryable = False


def unavailable(message: str, cause: Exception) -> PartitionUnavailable:
    """What callers are told of a partition: whether it is worth their while to ask again."""
    hopeless = isinstance(cause, TooFewBookies)
    return PartitionUnopenable(message) if hopeless else PartitionUnavailable(message)


class PublishOutcomeUnknown(BrokerError):
    """The batch may or may not be stored: repeat it with the same producer sequence (504)."""

    name = "outcome-unknown"
    retryable = True


class AckOutcomeUnknown(BrokerError):
    """The acks may or may not be durable: repeat them, that is harmless (504)."""

    name = "ack-outcome-unknown"
    retryable = True


class SubscriptionBusy(BrokerError):
    """An exclusive subscription has another living consumer (409)."""

    name = "subscription-busy"
    retryable = True


class CumulativeAckNotAllowed(BrokerError):
    """On a shared subscription `up_to` would ack what other consumers hold (422)."""

    name = "cumulative-ack-not-allowed"


class StaleLease(BrokerError):
    """Leases have ended: these messages were or will be delivered again (409).

    The other acks of the same call are durable; `stale` are the ack ids that are not.
    """

    name = "stale-lease"

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


class AuditTopicClosed(BrokerError):
    """A client would write to the audit log (403)."""

    name = "audit-topic"


class TooManyDelayed(BrokerError):
    """So many messages wait for their delay that no more are taken back with one (429).

    Everything else of the same call took effect, and is durable.
    """

    name = "too-many-delayed"


class InvalidBulkLoad(BrokerError):
    """Parts that cannot be: an open or foreign ledger, wrong counts, one ledger twice (422)."""

    name = "invalid-bulk-load"


class BulkLoadNotFound(BrokerError):
    """No batch, or not this one, was committed under the id (404)."""

    name = "bulk-load-not-found"


class BulkLoadAborted(BrokerError):
    """Some of its ledgers were given up: the batch has to be written again (409)."""

    name = "bulk-load-aborted"


class BatchBegun(BrokerError):
    """A batch whose writer publishes it by itself was begun otherwise, or not at all (409)."""

    name = "batch-begun"


class BatchOutOfOrder(BrokerError):
    """Not the batch that follows the newest committed one, which would be `expected` (409)."""

    name = "batch-out-of-order"

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(message)
        self.expected = expected


class ForeignBulkLoad(BrokerError):
    """The id is bound to a token that the caller has not given (403)."""

    name = "foreign-bulk-load"


class LargeNotTaken(BrokerError):
    """A large message, for a topic whose settings do not go with any (422)."""

    name = "large-not-taken"


class NotEncrypted(BrokerError):
    """A copy of an encrypted message would be stored in clear text (422)."""

    name = "not-encrypted"


class DueAfterExpiry(BrokerError):
    """A message would be older than its topic's `ttl` before it is due (422); none was stored."""

    name = "due-after-expiry"


class TooManyLedgers(BrokerError):
    """A partition's record, or a bulk load's, would grow too long (409)."""

    name = "too-many-ledgers"


class TopicExists(BrokerError):
    """A fork gets a name that no topic has (409)."""

    name = "topic-exists"


class LedgerGoing(BrokerError):
    """Nobody refers to the ledger any more, so nobody may: it is being deleted (409)."""

    name = "ledger-going"
    retryable = True


class TooManySubscriptions(BrokerError):
    """A topic has as many subscriptions as it may (409)."""

    name = "too-many-subscriptions"


class TooManyForks(BrokerError):
    """A ledger would be part of too many partitions (409)."""

    name = "too-many-forks"


class ForkDisturbed(BrokerError):
    """The topic lost ledgers, or lay elsewhere, while it was being forked; ask again (503)."""

    name = "fork-disturbed"
    retryable = True


class LedgerInUse(BrokerError):
    """A living broker writes the ledger (409): recovering it would stop a topic. `owner` does."""

    name = "ledger-in-use"

    def __init__(self, message: str, owner: str) -> None:
        super().__init__(message)
        self.owner = owner


class TooManyRecoveries(BrokerError):
    """More recoveries for callers than a broker makes (429): come back in `retry_after_s`."""

    name = "too-many-recoveries"
    retryable = True

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BulkLoadUnfinished(BrokerError):
    """Committed, but not yet visible in every partition: the same call again waits for it (503)."""

    name = "bulk-load-unfinished"
    retryable = True


class BacklogQuotaExceeded(BrokerError):
    """A subscription is too far behind, and nothing was stored for as long as publishes are held
    (429); the message names it, and the figures.
    """

    name = "backlog-quota-exceeded"
    retryable = True

    def __init__(self, message: str, subscription: str) -> None:
        super().__init__(message)
        self.subscription = subscription


class BacklogQuotaRejected(BacklogQuotaExceeded):
    """The same, where the topic's policy is to reject at once (409)."""

    retryable = False


class StaleGeneration(BrokerError):
    """A member of a consumer group was away, and the partition is another one's (409)."""

    name = "stale-generation"

    def __init__(self, message: str, generation: int) -> None:
        super().__init__(message)
        self.generation = generation


class GroupNotAllowed(BrokerError):
    """Members of a group share a subscription, and this one is exclusive (422)."""

    name = "group-not-allowed"


class GroupFull(BrokerError):
    """A consumer group with so many members, or partitions, that no more come in (409)."""

    name = "group-full"


class ForeignMember(BrokerError):
    """Somebody speaks for a member of a consumer group that is another one's (403)."""

    name = "foreign-member"


class InvalidSchema(BrokerError):
    """No schema, a type or compatibility that there is not (422)."""

    name = "invalid-schema"


class SchemaNotFound(BrokerError):
    """No such subject, or version of it (404)."""

    name = "schema-not-found"


class IncompatibleSchema(BrokerError):
    """The schema may not follow the versions of its subject; `problems` say why (409)."""

    name = "incompatible-schema"

    def __init__(self, message: str, problems: Sequence[str]) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class SchemaCheckUnavailable(BrokerError):
    """What checks by a topic's schema, or reads one, gives no answer now (503)."""

    name = "schema-check-unavailable"
    retryable = True


class SchemaMismatch(BrokerError):
    """A message that does not fit its topic's schema; nothing of its batch was stored (422).

    `index` is its number in that batch, None when no message could fit.
    """

    name = "schema-mismatch"

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index

    def without_reason(self) -> SchemaMismatch:
        """The same for a caller that may not see the schema: the reason would quote the schema."""
        which = "the message" if self.index is None else f"message {self.index} of its batch"
        return SchemaMismatch(
            f"{which} was not stored: it does not fit the schema of the topic (who may describe "
            "the schema is told why)",
            self.index,
        )


class ExclusiveProducer(BrokerError):
    """One producer alone may publish, and the batch came with no epoch of its access (409)."""

    name = "exclusive-producer"


class StaleProducerAccess(BrokerError):
    """The exclusive access of that epoch has ended: the producer was fenced, or let it go (403)."""

    name = "stale-producer-access"


class ProducerBusy(BrokerError):
    """Another producer has exclusive access, for `left_ms` more at most if it is gone (409)."""

    name = "producer-busy"

    def __init__(self, message: str, left_ms: int) -> None:
        super().__init__(message)
        self.left_ms = left_ms


class StreamNotFound(BrokerError):
    """There is no such stream (404)."""

    name = "stream-not-found"


class TopicIsNoStream(StreamNotFound):
    """There is a topic of the name, which was not made as a stream (404)."""

    name = "topic-is-no-stream"


class StreamGone(BrokerError):
    """The stream was deleted, and is kept for the forks that it still has (410)."""

    name = "stream-gone"


class StreamConflict(BrokerError):
    """The stream is there, and is another one than was asked for (409)."""

    name = "stream-conflict"


class StreamClosed(BrokerError):
    """The stream has ended before `next_offset`: nothing is appended any more (409)."""

    name = "stream-closed"

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class StreamSequence(BrokerError):
    """A `Stream-Seq` that is not behind the last one (409)."""

    name = "stream-sequence"


class StreamSequenceGap(SequenceGap):
    """Of a stream's producer: the sequence `received` is not the `expected` one (409)."""

    name = "sequence-gap"

    def __init__(self, message: str, expected: int, received: int) -> None:
        super().__init__(message, expected)
        self.received = received


class StaleStreamEpoch(StaleProducerEpoch):
    """Of a stream's producer: a newer instance, of `epoch`, has appended (403)."""

    name = "stale-producer-epoch"

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


class EpochBegun(BrokerError):
    """A producer's new epoch does not begin at 0 (400)."""

    name = "epoch-begins-at-0"


class TopicIsStream(BrokerError):
    """The topic is a durable stream: it is written as one, and in no other way (409)."""

    name = "topic-is-stream"
