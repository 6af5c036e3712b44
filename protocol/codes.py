"""Every answer of a bookie in one table: BookKeeper's v2 code, name, scope, whether to try again.

Only this module translates between codes and exceptions.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar


class Code(enum.IntEnum):
    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_STATE = 107
    """Apache's v2 client fails on 107: answer v2 requests with `IO` instead."""


class KafkaCode(enum.IntEnum):
    UNKNOWN_SERVER_ERROR = -1
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    """The client asks for new metadata and tries again at once."""
    REQUEST_TIMED_OUT = 7
    """The outcome is unknown: an idempotent producer repeats the batch."""
    MESSAGE_TOO_LARGE = 10
    INVALID_TOPIC = 17
    NOT_ENOUGH_REPLICAS = 19
    """Nothing was stored: a producer repeats the batch after a pause."""
    ILLEGAL_GENERATION = 22
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    INVALID_TIMESTAMP = 32
    TOPIC_ALREADY_EXISTS = 36
    INVALID_REPLICATION_FACTOR = 38
    INVALID_CONFIG = 40
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    SASL_AUTHENTICATION_FAILED = 58
    GROUP_ID_NOT_FOUND = 69
    UNSUPPORTED_COMPRESSION_TYPE = 76
    GROUP_MAX_SIZE_REACHED = 81
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90

    @property
    def is_retried(self) -> bool:
        """Whether Kafka's clients repeat the request by themselves."""
        return self in _RETRIED


_RETRIED = (
    KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
    KafkaCode.NOT_LEADER_OR_FOLLOWER,
    KafkaCode.REQUEST_TIMED_OUT,
    KafkaCode.NOT_ENOUGH_REPLICAS,
    KafkaCode.THROTTLING_QUOTA_EXCEEDED,
)


class Scope(enum.Enum):
    REQUEST = "request"
    CONNECTION = "connection"
    LEDGER = "ledger"
    PROCESS = "process"


class OctavoError(Exception):
    """The root of every error that Octavo raises on purpose.

    `name` is the stable word in logs, `--json` output and problem+json; `retryable`: the same call
    may succeed later. A class, or an `ErrorCode` of broker/errors.py, is the whole declaration of
    an error.
    """

    name: str = "error"
    retryable: bool = False
    scope: ClassVar[Scope] = Scope.REQUEST
    http_status: int | None = None
    """None: no request causes the error."""
    kafka: KafkaCode | None = None
    """None: no request of Kafka's clients causes the error."""
    problem_members: tuple[tuple[str, str], ...] = ()
    problem_headers: tuple[tuple[str, str], ...] = ()
    members: Mapping[str, object] = MappingProxyType({})


class ProtocolError(OctavoError):
    """Close the connection that carried these bytes."""

    name = "protocol-error"
    scope = Scope.CONNECTION


class FrameTooLong(ProtocolError):
    """The frame is refused before it is read."""

    name = "frame-too-long"


class DigestMismatch(OctavoError):
    """The bytes do not match their digest, or name another ledger or entry."""

    name = "digest-mismatch"
    http_status = 503


class BookieError(OctavoError):
    code: ClassVar[Code] = Code.BAD_REQUEST


class NoSuchLedger(BookieError):
    """Other replicas may know the ledger."""

    name = "no-such-ledger"
    http_status = 404
    code = Code.NO_LEDGER


class NoSuchEntry(BookieError):
    """The bookie vouches that it does not hold the entry; others may."""

    name = "no-such-entry"
    http_status = 404
    code = Code.NO_ENTRY


class BadRequest(BookieError):
    name = "bad-request"
    code = Code.BAD_REQUEST


class BookieIOError(BookieError):
    """The bookie could not use its disk: the entry may exist."""

    name = "io-error"
    http_status = 503
    retryable = True
    code = Code.IO


class Unauthorized(BookieError):
    """The caller has the wrong key and can neither write nor fence."""

    name = "unauthorized"
    http_status = 403
    scope = Scope.LEDGER
    code = Code.UNAUTHORIZED


class BadVersion(BookieError):
    name = "bad-version"
    scope = Scope.CONNECTION
    code = Code.BAD_VERSION


class Fenced(BookieError):
    """Recovery has fenced the ledger: its old writer never gets an ack again."""

    name = "fenced"
    http_status = 409
    scope = Scope.LEDGER
    code = Code.FENCED


class ReadOnly(BookieError):
    name = "read-only"
    http_status = 503
    retryable = True
    code = Code.READ_ONLY


class TooManyRequests(BookieError):
    """Back-pressure: slow down and send again."""

    name = "too-many-requests"
    http_status = 429
    retryable = True
    code = Code.TOO_MANY_REQUESTS


class UnknownState(BookieError):
    """The bookie may have lost data and refuses to answer "absent"."""

    name = "unknown-state"
    http_status = 503
    retryable = True
    code = Code.UNKNOWN_STATE


ERROR_OF: dict[Code, type[BookieError]] = {
    cls.code: cls
    for cls in (
        NoSuchLedger,
        NoSuchEntry,
        BadRequest,
        BookieIOError,
        Unauthorized,
        BadVersion,
        Fenced,
        ReadOnly,
        TooManyRequests,
        UnknownState,
    )
}
assert set(ERROR_OF) == set(Code) - {Code.OK}


def error_for(code: int, what: str) -> OctavoError:
    """Make the error for a code; `what` names the request. An unknown code: `ProtocolError`."""
    try:
        return ERROR_OF[Code(code)](what)
    except (ValueError, KeyError):
        return ProtocolError(f"{what}: answered with unknown code {code}")
