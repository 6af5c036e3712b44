"""Every answer a bookie can give, once: wire number, name, whom it concerns, whether to try again.

The numbers are BookKeeper's v2 codes, so a foreign client reads ours and we read a foreign
bookie's. The exceptions are what the rest of the code raises and catches; the translation
between the two happens here and nowhere else.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class Code(enum.IntEnum):
    """The 32-bit error code of a v2 or extension answer."""

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
    """Apache's v2 client knows no 107 and breaks on it: answer v2 requests with `IO` instead."""


class Scope(enum.Enum):
    """What an error makes unusable."""

    REQUEST = "request"
    CONNECTION = "connection"
    LEDGER = "ledger"
    PROCESS = "process"


class OctavoError(Exception):
    """The root of every error that Octavo raises on purpose.

    `name` is the stable word that logs, `--json` output and problem+json carry; `retryable`
    says whether the same call may succeed later; `scope` says what is unusable after it.
    """

    name: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    scope: ClassVar[Scope] = Scope.REQUEST


class ProtocolError(OctavoError):
    """Bytes that break the format. The connection that carried them cannot be trusted further."""

    name = "protocol-error"
    scope = Scope.CONNECTION


class FrameTooLong(ProtocolError):
    """A frame announces more bytes than the bound allows; it is refused before it is read."""

    name = "frame-too-long"


class DigestMismatch(OctavoError):
    """An entry's bytes do not match their digest, or name another ledger or entry."""

    name = "digest-mismatch"


class BookieError(OctavoError):
    """A bookie's answer other than OK. One subclass for each wire code."""

    code: ClassVar[Code] = Code.BAD_REQUEST


class NoSuchLedger(BookieError):
    """The bookie never heard of the ledger. Says nothing about other replicas."""

    name = "no-such-ledger"
    code = Code.NO_LEDGER


class NoSuchEntry(BookieError):
    """The bookie vouches that it does not hold the entry. Says nothing about other replicas."""

    name = "no-such-entry"
    code = Code.NO_ENTRY


class BadRequest(BookieError):
    """The bookie understood the frame but not the wish."""

    name = "bad-request"
    code = Code.BAD_REQUEST


class BookieIOError(BookieError):
    """The bookie could not read or write its disk. The entry may exist: unknown, never absent."""

    name = "io-error"
    retryable = True
    code = Code.IO


class Unauthorized(BookieError):
    """Wrong master key: it can neither write nor fence."""

    name = "unauthorized"
    scope = Scope.LEDGER
    code = Code.UNAUTHORIZED


class BadVersion(BookieError):
    """The bookie does not speak this protocol version."""

    name = "bad-version"
    scope = Scope.CONNECTION
    code = Code.BAD_VERSION


class Fenced(BookieError):
    """Recovery has fenced the ledger: its old writer gets no further ack, ever."""

    name = "fenced"
    scope = Scope.LEDGER
    code = Code.FENCED


class ReadOnly(BookieError):
    """The bookie takes no ordinary adds at present (told so, or its disks are full)."""

    name = "read-only"
    retryable = True
    code = Code.READ_ONLY


class TooManyRequests(BookieError):
    """Back-pressure, never a failure: slow down and send again."""

    name = "too-many-requests"
    retryable = True
    code = Code.TOO_MANY_REQUESTS


class UnknownState(BookieError):
    """The bookie may have lost data and refuses to answer "absent"."""

    name = "unknown-state"
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
    """The exception for a wire `code`; `what` says which request it answers.

    A number that no table knows is a broken peer, hence `ProtocolError`.
    """
    try:
        return ERROR_OF[Code(code)](what)
    except (ValueError, KeyError):
        return ProtocolError(f"{what}: answered with unknown code {code}")
