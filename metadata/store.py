"""The metadata store: small versioned records in a tree, sessions, watches.

Octavo's safety needs only compare-and-set on a record's version, create-if-absent, and records that
vanish with their session. `zookeeper.py` (a cluster) and `embedded.py` (a single machine) pass
tests/conformance/test_metadata_store.py.

A call that may have taken effect, because its reply was lost, raises `MetadataUnavailable`; the
caller reads again before it decides.
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
    """The record changed: read and decide again."""

    name = "version-conflict"
    http_status = 409


class MetadataUnavailable(MetadataError):
    """No answer in time. A write may have taken effect."""

    name = "metadata-unavailable"
    http_status = 503
    retryable = True


class SessionExpired(MetadataError):
    """The session has ended, and all its ephemeral records are gone."""

    name = "session-expired"
    http_status = 503
    retryable = True
    scope = Scope.PROCESS


class RecordTooLong(MetadataError):
    name = "record-too-long"
    http_status = 503


class MetadataUnusable(MetadataError):
    """The store has the wrong file, wrong rights, or a newer format."""

    name = "metadata-unusable"
    http_status = 503
    scope = Scope.PROCESS


class BadMetadataUrl(MetadataError):
    name = "bad-metadata-url"


class BadMetadataCredentials(MetadataError):
    name = "bad-metadata-credentials"


class BadRecord(MetadataError):
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
        """Stop the watch; no callback comes after this. A second call does nothing."""


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
        """Return the state; not CONNECTED when the last confirmation is a session timeout old."""

    @property
    def session_timeout_ms(self) -> int:
        """Return how long a silent process keeps its ephemeral records."""

    async def start(self) -> None:
        """Connect. Raises `MetadataUnavailable`; `MetadataUnusable` if waiting will not help."""

    async def close(self) -> None:
        """End the session: its ephemeral records vanish now. May be called twice.

        Raises `MetadataUnavailable` if the session is left to time out.
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

        `ephemeral` records vanish with the session and have no children. After `SessionExpired` the
        record may exist and belong to the next session: do not trust it. `sequence` appends a
        ten-digit number that ascends and never repeats while the parent exists.

        `beside`: an empty record, created in the same step under a name that is never used again.
        It identifies this record where versions, which start at 0 again after a deletion, cannot.
        """

    async def put(self, path: str, value: bytes, version: int, *, beside: str | None = None) -> int:
        """Compare and set; return the new version. `ANY_VERSION` always matches.

        Raises `VersionConflict`, `RecordNotFound` (also if `beside` does not exist in the same
        step), `RecordTooLong`.
        """

    async def changed_at(self, path: str) -> int | None:
        """Return when the record last changed, by the store's clock, in ms since 1970.

        None if the store has only its callers' clock.
        """

    async def delete(
        self, path: str, version: int = ANY_VERSION, *, beside: str | None = None
    ) -> None:
        """Delete a record and, in the same step, `beside`, which must exist.

        Raises `VersionConflict`, `RecordNotFound`, and `RecordExists` if it has children.
        """

    async def children(self, path: str) -> list[str]:
        """Return the names below `path`, sorted; empty if it does not exist."""

    async def sync(self) -> None:
        """Let later reads see every write that any process was told of before.

        Otherwise a process sees its own writes and never goes back, but a server may be behind.
        After a failed or lost write the store syncs by itself; call this before a decision that
        rests on an absence.
        """

    def watch(self, path: str, on_change: Callable[[], None]) -> Watch:
        """Call `on_change` after the record is created, changed or deleted, until cancelled.

        It only says "read again": changes may be merged, and there may be false alarms. To miss no
        change, watch first, then read.
        """

    def watch_children(self, path: str, on_change: Callable[[], None]) -> Watch:
        """Watch, as `watch`, the set of names below `path`, which may be `/`."""

    def on_session(self, listener: Callable[[SessionState], None]) -> None:
        """Call `listener` at every change of `session_state`, for as long as the store lives."""


def check_value(path: str, value: bytes) -> bytes:
    """Raises `RecordTooLong`."""
    if len(value) > RECORD_BYTES_MAX:
        raise RecordTooLong(
            f"{path}: a value of {len(value)} bytes; a record holds at most {RECORD_BYTES_MAX}"
        )
    return value
