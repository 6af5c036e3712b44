"""The metadata store: small versioned records in a tree, sessions, watches.

Octavo's safety needs only this from outside: compare-and-set on a record's version,
create-if-absent, and records that vanish with their session. `zookeeper.py` (a cluster) and
`embedded.py` (a single machine) implement it and pass tests/conformance/test_metadata_store.py.

The store never guesses about a lost reply: a call that may have taken effect raises
`MetadataUnavailable`, and the caller reads again before it decides.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, Protocol

from octavo.protocol.codes import OctavoError, Scope

ANY_VERSION = -1

RECORD_BYTES_MAX = 1_000_000
"""ZooKeeper's servers close the connection on requests of 1 MiB."""


class MetadataError(OctavoError):
    name = "metadata-error"


class RecordNotFound(MetadataError):
    name = "record-not-found"
    http_status = 404


class RecordExists(MetadataError):
    """A record exists at the path, or a record to delete has children."""

    name = "record-exists"
    http_status = 409


class VersionConflict(MetadataError):
    """The record changed since it was read: read and decide again."""

    name = "version-conflict"
    http_status = 409


class MetadataUnavailable(MetadataError):
    """No answer in time. A write may or may not have taken effect."""

    name = "metadata-unavailable"
    http_status = 503
    retryable = True


class SessionExpired(MetadataError):
    """The session is gone, and with it all its ephemeral records."""

    name = "session-expired"
    http_status = 503
    retryable = True
    scope = Scope.PROCESS


class RecordTooLong(MetadataError):
    name = "record-too-long"
    http_status = 503


class MetadataUnusable(MetadataError):
    """The store cannot be used: wrong file, wrong rights, newer format."""

    name = "metadata-unusable"
    http_status = 503
    scope = Scope.PROCESS


class BadMetadataUrl(MetadataError):
    name = "bad-metadata-url"


class BadMetadataCredentials(MetadataError):
    name = "bad-metadata-credentials"


class BadRecord(MetadataError):
    """The bytes are not in the format of the path."""

    name = "bad-metadata-record"


class Record(NamedTuple):
    """The first version is 0, each put adds 1."""

    value: bytes
    version: int


class SessionState(enum.Enum):
    """SUSPENDED: no contact; ephemeral records may vanish any moment. EXPIRED: they are gone.

    The store then opens a new session and says CONNECTED; owners must create their records again.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


class Watch(Protocol):
    def cancel(self) -> None:
        """No callback comes after this. May be called twice."""


class MetadataStore(Protocol):
    """Paths are absolute; parents are created as needed and need no value.

    Callbacks run on the loop that called `start`, one at a time, and must not block. A call that
    finds the session over raises `SessionExpired`, after the listeners have got EXPIRED. Any call
    raises `MetadataUnavailable` without an answer in time, and after `close`.
    """

    @property
    def url(self) -> str: ...

    @property
    def session_state(self) -> SessionState:
        """Never CONNECTED when, by our own clock, the last confirmation is a session timeout old."""

    @property
    def session_timeout_ms(self) -> int:
        """How long a silent process keeps its ephemeral records."""

    async def start(self) -> None:
        """Connect and open a session.

        Raises `MetadataUnavailable` with the reason, `MetadataUnusable` if waiting will not help.
        """

    async def close(self) -> None:
        """End the session: its ephemeral records vanish now, not after the timeout.

        Listeners are not called. May be called twice. Raises `MetadataUnavailable` if the session
        is left to time out.
        """

    async def get(self, path: str) -> Record:
        """Raises `RecordNotFound`."""

    async def create(
        self,
        path: str,
        value: bytes,
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        beside: str | None = None,
    ) -> str:
        """Create if absent and return the path made. Raises `RecordExists`, `RecordTooLong`.

        `ephemeral` records vanish with the session and have no children. If the session ends
        meanwhile, the call raises `SessionExpired`; a record that was made all the same belongs to
        the next session, so a caller that later finds its own value must not trust it.

        `sequence` appends a ten-digit number that ascends and never repeats as long as the parent
        exists.

        `beside`: an empty record created in the same step, under a name that is never used again.
        It identifies this record where versions cannot: they start at 0 again after a deletion.
        """

    async def put(self, path: str, value: bytes, version: int, *, beside: str | None = None) -> int:
        """Compare-and-set; return the new version.

        Raises `VersionConflict`, `RecordNotFound`, `RecordTooLong`. `ANY_VERSION` always matches.
        With `beside`, raises `RecordNotFound` unless that record exists, in the same step.
        """

    async def changed_at(self, path: str) -> int | None:
        """Return when the record last changed, by the store's clock, in ms since 1970.

        None if the store has only its callers' clock. Raises `RecordNotFound`.
        """

    async def delete(
        self, path: str, version: int = ANY_VERSION, *, beside: str | None = None
    ) -> None:
        """Raises `VersionConflict`, `RecordNotFound`, and `RecordExists` if it has children.

        `beside` must exist, and is deleted in the same step.
        """

    async def children(self, path: str) -> list[str]:
        """Return the names below `path`, sorted; empty if `path` does not exist."""

    async def sync(self) -> None:
        """Let later reads see every write that any process was told of before.

        Without it, a process sees its own writes and never goes back, but a server may be behind
        the others. After a failed or lost write the store syncs by itself; call this before a
        decision that rests on an absence.
        """

    def watch(self, path: str, on_change: Callable[[], None]) -> Watch:
        """Call `on_change` after the record is created, changed or deleted, until cancelled.

        Changes may be merged, and there may be false alarms (always one after a reconnect): the
        callback only says "read again". A read begun in it or later sees the change. To miss no
        change, watch first, then read.
        """

    def watch_children(self, path: str, on_change: Callable[[], None]) -> Watch:
        """Call `on_change` after the set of names below `path`, which may be `/`, changes."""

    def on_session(self, listener: Callable[[SessionState], None]) -> None:
        """Call `listener` at every change of `session_state`, for as long as the store lives."""


def check_value(path: str, value: bytes) -> bytes:
    """Raises `RecordTooLong`."""
    if len(value) > RECORD_BYTES_MAX:
        raise RecordTooLong(
            f"{path}: a value of {len(value)} bytes; a record holds at most {RECORD_BYTES_MAX}"
        )
    return value
