"""The metadata store: small versioned records in a tree, sessions, watches.

Octavo's safety needs only this from outside: compare-and-set on a record's version,
create-if-absent, and records that vanish with their session. Implementations: `zookeeper.py` (a
cluster), `embedded.py` (a single machine). Both pass tests/conformance/test_metadata_store.py; only
this package knows which implementation is in use.

The store never guesses about a lost reply: a call that may or may not have taken effect raises
`MetadataUnavailable`, and the caller reads again before it decides.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, Protocol

from octavo.protocol.codes import OctavoError, Scope

ANY_VERSION = -1

RECORD_BYTES_MAX = 1_000_000
"""The longest value of a record: ZooKeeper's servers close the connection on 1 MiB requests."""


class MetadataError(OctavoError):
    """The root of the errors of a metadata store."""

    name = "metadata-error"


class RecordNotFound(MetadataError):
    """There is no record at the path."""

    name = "record-not-found"
    http_status = 404


class RecordExists(MetadataError):
    """A record already exists at the path, or a record to delete still has children."""

    name = "record-exists"
    http_status = 409


class VersionConflict(MetadataError):
    """The record changed since it was read: read again, decide again."""

    name = "version-conflict"
    http_status = 409


class MetadataUnavailable(MetadataError):
    """The store did not answer in time. A write may or may not have taken effect."""

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
    """The value is longer than `RECORD_BYTES_MAX`."""

    name = "record-too-long"
    http_status = 503


class MetadataUnusable(MetadataError):
    """The store can be reached but cannot be used: wrong file, wrong rights, newer format."""

    name = "metadata-unusable"
    http_status = 503
    scope = Scope.PROCESS


class BadMetadataUrl(MetadataError):
    """The URL does not name a metadata store."""

    name = "bad-metadata-url"


class BadMetadataCredentials(MetadataError):
    """The file of credentials for the metadata store cannot be read, or has a wrong form."""

    name = "bad-metadata-credentials"


class BadRecord(MetadataError):
    """A record's bytes are not in the format of its path."""

    name = "bad-metadata-record"


class Record(NamedTuple):
    """A record's bytes and its version; the first version is 0, each put adds one."""

    value: bytes
    version: int


class SessionState(enum.Enum):
    """The state of a store's session.

    SUSPENDED: no contact; ephemeral records may vanish any moment. EXPIRED: they are gone. The
    store then opens a new session by itself and says CONNECTED again; owners must create their
    records again.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


class Watch(Protocol):
    def cancel(self) -> None:
        """End the watch: no callback comes after this. May be called twice."""


class MetadataStore(Protocol):
    """Paths are absolute, `/a/b`; parents are created as needed and need no value.

    All callbacks run on the event loop that called `start`, one at a time, and must not block. The
    store checks what a call needs of its session: a call that finds the session over raises
    `SessionExpired`, after the session listeners have got EXPIRED. Any call raises
    `MetadataUnavailable` when there is no answer in time, and after `close`.
    """

    @property
    def url(self) -> str:
        """The URL that opened the store, for messages."""

    @property
    def session_state(self) -> SessionState:
        """The state last reported.

        It is never CONNECTED when, by our own clock, a session timeout has passed since the store
        last confirmed the session (a process that was stopped).
        """

    @property
    def session_timeout_ms(self) -> int:
        """How long a silent process keeps its ephemeral records."""

    async def start(self) -> None:
        """Connect and open a session.

        Raises `MetadataUnavailable` with the reason, `MetadataUnusable` when waiting will not help.
        """

    async def close(self) -> None:
        """End the session at once: its ephemeral records vanish now, not after the timeout.

        Listeners are not called. May be called twice. Raises `MetadataUnavailable` when the session
        could not be ended and is left to time out.
        """

    async def get(self, path: str) -> Record:
        """Return the record. Raises `RecordNotFound`."""

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

        `ephemeral` records vanish with the session and can have no children. When the session ends
        meanwhile, the call raises `SessionExpired`. If the record was made all the same, it belongs
        to the next session: a caller that later finds its own value at the path must not trust it.
        `sequence` appends a ten-digit number that ascends and never repeats as long as the parent
        exists.
        `beside`: an empty record created in the same step, with a name that is never used again. It
        identifies this record where versions cannot, because they start at 0 again when a record is
        deleted and created again.
        """

    async def put(self, path: str, value: bytes, version: int, *, beside: str | None = None) -> int:
        """Compare-and-set; return the new version.

        Raises `VersionConflict`, `RecordNotFound`, `RecordTooLong`. `ANY_VERSION` always matches.
        With `beside`, raises `RecordNotFound` unless that record exists, checked in the same step.
        """

    async def changed_at(self, path: str) -> int | None:
        """Return when the record was last changed, by the store's clock, in ms since 1970.

        None when the store has only its callers' clock. Raises `RecordNotFound`.
        """

    async def delete(
        self, path: str, version: int = ANY_VERSION, *, beside: str | None = None
    ) -> None:
        """Delete. Raises `VersionConflict`, `RecordNotFound`, and `RecordExists` if it has
        children.

        `beside` is deleted in the same step, and must exist.
        """

    async def children(self, path: str) -> list[str]:
        """Return the names (not paths) below `path`, sorted; empty when `path` does not exist."""

    async def sync(self) -> None:
        """Let later reads see every write that any process was told of before.

        Reads alone promise less: the reads of a process never go back and see its own writes, but a
        server of a cluster may be behind the others. After a failed or lost write the store syncs
        reads by itself; call this before a decision that rests on something being absent.
        """

    def watch(self, path: str, on_change: Callable[[], None]) -> Watch:
        """Call `on_change` after the record at `path` is created, changed or deleted.

        The watch stays until it is cancelled. Changes may be merged, and there may be false alarms
        (always one after a reconnect or a lost session, perhaps one at the beginning): the callback
        only says "read again". A read begun in it, or after it, sees the change that caused it. No
        change is ever missed: watch first, then read.
        """

    def watch_children(self, path: str, on_change: Callable[[], None]) -> Watch:
        """Call `on_change` after the set of names below `path`, which may be `/`, changes."""

    def on_session(self, listener: Callable[[SessionState], None]) -> None:
        """Call `listener` at every change of `session_state`, for as long as the store lives."""


def check_value(path: str, value: bytes) -> bytes:
    """Return `value`. Raises `RecordTooLong`."""
    if len(value) > RECORD_BYTES_MAX:
        raise RecordTooLong(
            f"{path}: a value of {len(value)} bytes; a record holds at most {RECORD_BYTES_MAX}"
        )
    return value
