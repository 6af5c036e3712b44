"""The metadata store: small versioned records in a tree, sessions, watches. The only agreement.

Everything that Octavo's safety needs from outside is here: compare-and-set on a record's version,
create-if-absent, and records that vanish with their session. Implementations: `zookeeper.py`
(a cluster), `embedded.py` (one machine). Both pass tests/conformance/test_metadata_store.py;
nothing but this package knows which one is in use.

A lost reply is never guessed: a call that may or may not have taken effect raises
`MetadataUnavailable`, and the caller reads again before it decides.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, Protocol

from octavo.protocol.codes import OctavoError, Scope

ANY_VERSION = -1

RECORD_BYTES_MAX = 1_000_000
"""The longest value of a record: ZooKeeper's servers hang up on requests of 1 MiB."""


class MetadataError(OctavoError):
    """The root of what a metadata store raises."""

    name = "metadata-error"


class RecordNotFound(MetadataError):
    """No record stands at the path."""

    name = "record-not-found"


class RecordExists(MetadataError):
    """A record already stands at the path, or a record to delete still has children."""

    name = "record-exists"


class VersionConflict(MetadataError):
    """The record changed since it was read: read again, decide again."""

    name = "version-conflict"


class MetadataUnavailable(MetadataError):
    """The store did not answer in time. A write may or may not have taken effect."""

    name = "metadata-unavailable"
    retryable = True


class SessionExpired(MetadataError):
    """The session is gone, and with it every ephemeral record it owned."""

    name = "session-expired"
    retryable = True
    scope = Scope.PROCESS


class RecordTooLong(MetadataError):
    """The value is longer than `RECORD_BYTES_MAX`."""

    name = "record-too-long"


class MetadataUnusable(MetadataError):
    """The store can be reached but will never do: wrong file, wrong rights, newer format."""

    name = "metadata-unusable"
    scope = Scope.PROCESS


class BadMetadataUrl(MetadataError):
    """The URL names no metadata store."""

    name = "bad-metadata-url"


class BadMetadataCredentials(MetadataError):
    """The file of credentials for the metadata store cannot be read, or holds something else."""

    name = "bad-metadata-credentials"


class BadRecord(MetadataError):
    """A record's bytes are not what its path promises."""

    name = "bad-metadata-record"


class Record(NamedTuple):
    """A record's bytes and its version; the first version is 0, each put adds one."""

    value: bytes
    version: int


class SessionState(enum.Enum):
    """What a store says of its session.

    SUSPENDED: no contact; ephemeral records may be gone any moment. EXPIRED: they are gone; the
    store opens a new session by itself and says CONNECTED again; owners create theirs anew.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


class Watch(Protocol):
    """A standing watch."""

    def cancel(self) -> None:
        """No callback comes after this. May be called twice."""


class MetadataStore(Protocol):
    """Paths are absolute, `/a/b`; parents are made as needed and need no value.

    All callbacks run on the event loop that called `start`, one at a time, and must not block.
    Whatever a call needs of its session is checked by the store: a call that finds the session
    over raises `SessionExpired`, and the session listeners have heard EXPIRED before it does. Any
    call raises `MetadataUnavailable` when there is no answer in time, and after `close`.
    """

    @property
    def url(self) -> str:
        """The URL that opened the store, for messages."""

    @property
    def session_state(self) -> SessionState:
        """The state last reported, but never CONNECTED when by our own clock a session timeout
        has passed since the store last vouched for the session (a process that was stopped)."""

    @property
    def session_timeout_ms(self) -> int:
        """How long a silent process keeps its ephemeral records."""

    async def start(self) -> None:
        """Connect and open a session.

        Raises `MetadataUnavailable` with the reason, `MetadataUnusable` when waiting will not help.
        """

    async def close(self) -> None:
        """End the session at once: its ephemeral records vanish now, not after the timeout.

        Listeners are not told. May be called twice. Raises `MetadataUnavailable` when the session
        could not be ended and is left to time out.
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

        `ephemeral` records vanish with the session and can have no children. When the session ends
        meanwhile the call raises `SessionExpired`; a record made all the same is the next
        session's, so whoever finds its own value at the path afterwards must not trust it.
        `sequence` appends a ten-digit number that ascends and never repeats under this parent for
        as long as the parent stands.
        `beside`: an empty record made in the same step. It stands for this record where a version
        does not do, for versions begin anew when a record is deleted and made again: a name that
        never comes again.
        """

    async def put(self, path: str, value: bytes, version: int, *, beside: str | None = None) -> int:
        """Compare-and-set; return the new version.

        Raises `VersionConflict`, `RecordNotFound`, `RecordTooLong`. `ANY_VERSION` fits always.
        With `beside` only while that record stands, looked at in the same step: `RecordNotFound`.
        """

    async def changed_at(self, path: str) -> int | None:
        """When the record was changed last, by the store's clock, in ms since 1970.

        None when the store has no clock but its callers' own. Raises `RecordNotFound`.
        """

    async def delete(
        self, path: str, version: int = ANY_VERSION, *, beside: str | None = None
    ) -> None:
        """Raises `VersionConflict`, `RecordNotFound`, and `RecordExists` if it has children.

        `beside` goes in the same step, and must be there.
        """

    async def children(self, path: str) -> list[str]:
        """The names (not paths) below `path`, sorted; empty when `path` does not exist."""

    async def sync(self) -> None:
        """A read begun after this sees every write that anybody was told of before it.

        Reads alone promise less: one process's reads never go back and see its own writes, but a
        server of a cluster may be behind the others. Reads after a failed or lost write are synced
        by the store; call this before a decision that rests on something being absent.
        """

    def watch(self, path: str, on_change: Callable[[], None]) -> Watch:
        """Call `on_change` after the record at `path` is created, changed or deleted.

        Standing, not one-shot. Changes may be merged and false alarms may come (always one after
        a reconnect or a lost session, and perhaps one at the beginning): the callback says "read
        again", no more. A read begun in it, or after it, sees the change that it was called for.
        No change is ever missed: watch first, then read.
        """

    def watch_children(self, path: str, on_change: Callable[[], None]) -> Watch:
        """The same for the set of names below `path`, which may be `/`."""

    def on_session(self, listener: Callable[[SessionState], None]) -> None:
        """Call `listener` at every change of `session_state`, for as long as the store lives."""


def check_value(path: str, value: bytes) -> bytes:
    """Return `value`. Raises `RecordTooLong`."""
    if len(value) > RECORD_BYTES_MAX:
        raise RecordTooLong(
            f"{path}: a value of {len(value)} bytes; a record holds at most {RECORD_BYTES_MAX}"
        )
    return value
