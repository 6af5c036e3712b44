"""Answer errors as RFC 9457 `application/problem+json`, by a table of exceptions and statuses.

Every answer outside 2xx and 3xx is made here. A problem has the standard members (`type`, `title`,
`status`, `detail`, `instance`) and two more: `code`, a stable word for programs, and `retryable`,
whether the same call may succeed later. `detail` names the cause and what would help. An exception
that is not in the table is a bug: the answer is a 500, and its trace goes to the log, not to the
caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from aiohttp import web

from octavo.broker import errors as broker_errors
from octavo.broker.http import durable
from octavo.broker.operations import kinds
from octavo.ledger import errors as ledger_errors
from octavo.metadata import store as metadata_errors
from octavo.protocol import batch, codes, compression, large
from octavo.protocol.codes import OctavoError
from octavo.security import principal as callers
from octavo.security.identity.failed_logins import LoginsPaused
from octavo.security.keys.errors import KeyMissing, KeySourceUnavailable
from octavo.security.quotas import InvalidQuota
from octavo.security.rules import InvalidRule

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
"""Seconds a caller should wait after a 429 or 503: take-overs end within about a second."""
WAYS_TO_PROVE = 'Bearer realm="octavo", Basic realm="octavo", charset="UTF-8"'
"""Ways to prove an identity, besides a certificate."""

log = structlog.get_logger()


class Problem(OctavoError):
    """An error answer, raised where the error is found."""

    name = "problem"

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        retryable: bool = False,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.can_retry = retryable
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    def body(self, instance: str | None = None) -> dict[str, Any]:
        """Return the members of the problem+json object."""
        members: dict[str, Any] = {
            "type": f"urn:octavo:problem:{self.code}",
            "title": self.code.replace("-", " ").capitalize(),
            "status": self.status,
            "detail": _readable(self.detail),
            "code": self.code,
            "retryable": self.can_retry,
        }
        if instance is not None:
            members["instance"] = _readable(instance)
        members.update(self.extra)
        return members

    def response(self, instance: str | None = None) -> web.Response:
        """Make the answer. A 429 or 503 says when to come back."""
        answer = web.Response(
            status=self.status,
            body=msgspec.json.encode(self.body(instance)) + b"\n",
            content_type=PROBLEM_TYPE,
            headers=self.headers,
        )
        if self.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            answer.headers.setdefault("Retry-After", str(RETRY_AFTER_S))
        return answer


def _readable(text: str) -> str:
    """Return `text` with bytes that are not UTF-8 spelled out, so that JSON can hold it."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


STATUS_OF: dict[type[OctavoError], int] = {
    # The request is wrong
    broker_errors.InvalidName: 400,
    broker_errors.InvalidMessageId: 400,
    broker_errors.InvalidAckId: 400,
    broker_errors.InvalidSettings: 422,
    broker_errors.CumulativeAckNotAllowed: 422,
    broker_errors.GroupNotAllowed: 422,
    broker_errors.InvalidSchema: 422,
    broker_errors.SchemaMismatch: 422,
    broker_errors.InvalidBulkLoad: 422,
    broker_errors.LargeNotTaken: 422,
    broker_errors.DueAfterExpiry: 422,
    broker_errors.NotEncrypted: 422,
    broker_errors.QuotaFull: 422,
    broker_errors.UnsupportedBatch: 422,
    broker_errors.InvalidTimestamp: 422,
    InvalidQuota: 422,
    InvalidRule: 422,
    callers.InvalidPrincipal: 422,
    broker_errors.BatchTooLong: 413,
    broker_errors.MessageTooLong: 413,
    large.BodyTooLong: 413,
    ledger_errors.PayloadTooLong: 413,
    batch.InvalidBatch: 422,
    compression.UnsupportedCompression: 422,
    # The caller is not allowed
    LoginsPaused: 429,
    callers.Unauthenticated: 401,
    callers.Forbidden: 403,
    # The resource does not exist
    broker_errors.NamespaceNotFound: 404,
    broker_errors.TopicNotFound: 404,
    broker_errors.PartitionNotFound: 404,
    broker_errors.BrokerNotFound: 404,
    broker_errors.SubscriptionNotFound: 404,
    broker_errors.MessageNotFound: 404,
    broker_errors.BulkLoadNotFound: 404,
    broker_errors.SchemaNotFound: 404,
    broker_errors.StreamNotFound: 404,
    broker_errors.StreamGone: 410,
    broker_errors.OffsetTrimmed: 410,
    broker_errors.OffsetBeyondEnd: 416,
    codes.NoSuchLedger: 404,
    codes.NoSuchEntry: 404,
    ledger_errors.LedgerNotFound: 404,
    ledger_errors.BeyondLastConfirmed: 404,
    # The request conflicts with the present state
    broker_errors.NamespaceNotEmpty: 409,
    broker_errors.SettingsConflict: 409,
    broker_errors.TopicReplaced: 409,
    broker_errors.SequenceGap: 409,
    broker_errors.SubscriptionBusy: 409,
    broker_errors.StaleLease: 409,
    broker_errors.StaleGeneration: 409,
    broker_errors.ExclusiveProducer: 409,
    broker_errors.ProducerBusy: 409,
    broker_errors.IncompatibleSchema: 409,
    broker_errors.GroupFull: 409,
    broker_errors.BulkLoadAborted: 409,
    broker_errors.BatchBegun: 409,
    broker_errors.BatchOutOfOrder: 409,
    broker_errors.TooManyLedgers: 409,
    broker_errors.LedgerInUse: 409,
    broker_errors.BacklogQuotaRejected: 409,
    broker_errors.NoOtherBroker: 409,
    broker_errors.BrokerDraining: 409,
    broker_errors.TopicExists: 409,
    broker_errors.LedgerGoing: 409,
    broker_errors.TooManyForks: 409,
    broker_errors.TooManySubscriptions: 409,
    broker_errors.StreamConflict: 409,
    broker_errors.StreamClosed: 409,
    broker_errors.StreamSequence: 409,
    broker_errors.TopicIsStream: 409,
    broker_errors.EpochBegun: 400,
    broker_errors.StaleProducerEpoch: 403,
    broker_errors.ForeignBulkLoad: 403,
    broker_errors.AuditTopicClosed: 403,
    broker_errors.ForeignMember: 403,
    broker_errors.StaleProducerAccess: 403,
    broker_errors.OffsetMismatch: 412,
    codes.Unauthorized: 403,
    codes.Fenced: 409,
    ledger_errors.LedgerFenced: 409,
    ledger_errors.LedgerClosed: 409,
    ledger_errors.DuplicateEntryId: 409,
    metadata_errors.RecordNotFound: 404,
    metadata_errors.RecordExists: 409,
    metadata_errors.VersionConflict: 409,
    # Temporary: the client can retry
    broker_errors.Overloaded: 429,
    broker_errors.QuotaExceeded: 429,
    broker_errors.TooManyDelayed: 429,
    broker_errors.BacklogQuotaExceeded: 429,
    broker_errors.TooManyRecoveries: 429,
    codes.TooManyRequests: 429,
    ledger_errors.WriterBusy: 429,
    broker_errors.BrokerIdTaken: 503,
    broker_errors.TopicDeleting: 503,
    broker_errors.TopicChanged: 503,
    broker_errors.NotOwner: 503,
    broker_errors.PartitionMoving: 503,
    broker_errors.OwnerUnreachable: 503,
    broker_errors.OwnerNotRegistered: 503,
    kinds.OtherProtocol: 503,
    broker_errors.PartitionUnavailable: 503,
    broker_errors.CompactedViewUnreadable: 503,
    broker_errors.BulkLoadUnfinished: 503,
    broker_errors.SchemaCheckUnavailable: 503,
    broker_errors.ForkDisturbed: 503,
    metadata_errors.MetadataUnavailable: 503,
    metadata_errors.SessionExpired: 503,
    metadata_errors.MetadataUnusable: 503,
    metadata_errors.RecordTooLong: 503,
    codes.BookieIOError: 503,
    codes.ReadOnly: 503,
    codes.UnknownState: 503,
    codes.DigestMismatch: 503,
    ledger_errors.NotEnoughBookies: 503,
    ledger_errors.BookieUnavailable: 503,
    ledger_errors.RecoveryFailed: 503,
    ledger_errors.ReadFailed: 503,
    ledger_errors.WriteRefused: 503,
    ledger_errors.ClientClosed: 503,
    ledger_errors.OffloadUnavailable: 503,
    ledger_errors.OffloadDamaged: 503,
    ledger_errors.LedgerDamaged: 503,
    large.BrokenBody: 503,
    ledger_errors.EntryTampered: 503,
    KeyMissing: 503,
    KeySourceUnavailable: 503,
    # The outcome is unknown
    broker_errors.PublishOutcomeUnknown: 504,
    broker_errors.AckOutcomeUnknown: 504,
    kinds.OperationOutcomeUnknown: 504,
    ledger_errors.OutcomeUnknown: 504,
}


def problem_of(error: BaseException) -> Problem:
    """Return the problem for an exception. Logs the trace of an unforeseen exception."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, kinds.Refused):
        return problem_from(error.refusal)
    if isinstance(error, OctavoError):
        return _translate(error)
    if isinstance(error, web.RequestPayloadError):
        return Problem(400, "bad-body", f"the body could not be read: {error}")
    if isinstance(error, TimeoutError):
        return Problem(
            504,
            "deadline-exceeded",
            "a part of the cluster did not answer in time; what was asked for may or may not have "
            "happened: read before you repeat it",
            retryable=True,
        )
    log.error("request_failed_unexpectedly", exc_info=error)
    return Problem(
        500,
        "internal-error",
        "this broker met an error that it did not foresee; its log has the trace",
    )


def problem_from(refusal: kinds.Refusal) -> Problem:
    """Convert a refusal back to a problem, for the caller of the first broker."""
    status, code, detail, retryable, headers, extra = msgspec.structs.astuple(refusal)
    return Problem(status, code, detail, retryable=retryable, headers=headers, extra=extra)


def refusal_of(error: BaseException) -> kinds.Refusal:
    """Return the problem of an exception in the form that another broker understands."""
    problem = problem_of(error)
    extra = msgspec.to_builtins(problem.extra)
    return kinds.Refusal(
        problem.status, problem.code, problem.detail, problem.can_retry, problem.headers, extra
    )


def _translate(error: OctavoError) -> Problem:
    status = next((STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF), None)
    if status is None:
        status = 503 if error.retryable else 500
        log.error("request_failed_without_a_status", error=error.name, exc_info=error)
    headers: dict[str, str] = {}
    extra: dict[str, Any] = {}
    if isinstance(error, broker_errors.SequenceGap):
        headers["Producer-Expected-Seq"] = str(error.expected)
        extra["expected_sequence"] = error.expected
        if isinstance(error, broker_errors.StreamSequenceGap):
            headers["Producer-Received-Seq"] = str(error.received)
    elif isinstance(error, broker_errors.StaleStreamEpoch):
        headers["Producer-Epoch"] = str(error.epoch)
    elif isinstance(error, broker_errors.StreamClosed):
        headers[durable.CLOSED_HEADER] = "true"
        headers[durable.OFFSET_HEADER] = durable.offset_text(error.next_offset)
    elif isinstance(error, broker_errors.OffsetTrimmed):
        extra["earliest_offset"] = error.earliest
        headers["Earliest-Offset"] = str(error.earliest)
    elif isinstance(error, broker_errors.OffsetBeyondEnd | broker_errors.OffsetMismatch):
        extra["next_offset"] = error.next_offset
        headers["Next-Offset"] = str(error.next_offset)
    elif isinstance(error, broker_errors.StaleLease):
        extra["stale"] = list(error.stale)
    elif isinstance(error, broker_errors.IncompatibleSchema):
        extra["problems"] = list(error.problems)
    elif isinstance(error, broker_errors.SchemaMismatch):
        extra["message_in_batch"] = error.index
    elif isinstance(error, broker_errors.StaleGeneration):
        extra["generation"] = error.generation
    elif isinstance(error, broker_errors.BatchOutOfOrder):
        extra["expected_batch"] = error.expected
    elif isinstance(error, broker_errors.LedgerInUse):
        extra["owner"] = error.owner
    elif isinstance(error, broker_errors.BacklogQuotaExceeded):
        extra["subscription"] = error.subscription
    elif isinstance(error, broker_errors.MessageTooLong):
        extra["bytes_max"] = error.bytes_max
    elif isinstance(error, broker_errors.QuotaExceeded | broker_errors.QuotaFull):
        extra |= {"subject": error.subject, "quota": error.quota, "limit": error.limit}
        if isinstance(error, broker_errors.QuotaExceeded):
            extra["wait_s"] = round(error.wait_s, 3)
            headers["Retry-After"] = str(max(1, math.ceil(error.wait_s)))
            if error.quota == "connections":
                headers["Connection"] = "close"
    elif isinstance(error, LoginsPaused):
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    elif isinstance(error, callers.Unauthenticated):
        headers["WWW-Authenticate"] = WAYS_TO_PROVE
    elif isinstance(error, broker_errors.TooManyRecoveries):
        headers["Retry-After"] = str(error.retry_after_s)
    return Problem(
        status,
        error.name,
        str(error) or error.name,
        retryable=error.retryable,
        headers=headers,
        extra=extra,
    )
