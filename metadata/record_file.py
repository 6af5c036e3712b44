"""The embedded store's file: records, sessions and a change log in SQLite.

For a single thread of each process. Every change is a transaction, which first checks its session
inside the write lock, so no write happens in the name of a session that is over. A session ends
together with its ephemeral records. Rows of `changes` trigger other processes' watches.

Sessions are measured by CLOCK_BOOTTIME, which all processes share and nothing can set; the boot id
ends those from before a reboot.

This module never waits for the write lock, which a stopped process may keep: `FileLocked` says that
nothing was begun. After a crash SQLite's log has exactly the committed transactions (FULL sync).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from octavo.metadata.paths import check_folder, check_path, parent_of, parents_of
from octavo.metadata.record_schema import ENDS_IN_BEATS, is_locked, open_database
from octavo.metadata.session_heartbeat import Lease, SessionHeartbeats
from octavo.metadata.store import (
    ANY_VERSION,
    MetadataError,
    MetadataUnavailable,
    MetadataUnusable,
    Record,
    RecordExists,
    RecordNotFound,
    SessionExpired,
    VersionConflict,
)
from octavo.metadata.watching import WatchKey

T = TypeVar("T")
CHANGES_KEPT = 10_000
"""A watcher that falls further behind gets a false alarm for all paths."""
SWEEP_INTERVAL_MS = 50
BUSY_TIMEOUT_MS = 10
"""SQLite waits for a lock this long, and delays this process's reads."""


def boot_clock_ms() -> int:
    """Return a clock that is the same for every process, and never set back."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


def read_boot_id() -> str:
    """Empty when the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Changes(NamedTuple):
    keys: list[WatchKey]
    gap: bool
    """The log was trimmed past our place: anything may have changed."""


class FileLocked(MetadataUnavailable):
    pass


class RecordFile:
    """A single thread uses it, except `beat`."""

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], int] = boot_clock_ms,
        boot_id: str | None = None,
    ) -> None:
        self._path = path
        self._clock = clock
        self._boot_id = read_boot_id() if boot_id is None else boot_id
        self._lease: Lease | None = None
        self._former_session = 0
        """Found to be over; it is ended when the next session opens."""
        self._seen_seq = 0
        self._identity: tuple[int, int] | None = None
        self._seen_state = (-1, -1)
        self._next_sweep_ms = 0
        self._shared: Lease | None = None

    def open(self) -> None:
        """Open the file. Raises `MetadataUnusable`, or `sqlite3.OperationalError`."""
        self._db = open_database(self._path, BUSY_TIMEOUT_MS)
        try:
            self._beats = SessionHeartbeats(f"{self._path}-beats")
        except OSError as error:
            self._db.close()
            raise MetadataUnusable(f"metadata file {self._path}: {error}") from error
        self._identity = self._identity_on_disk()
        self._seen_seq = self._last_seq()

    def _identity_on_disk(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def check_place(self) -> None:
        """Raise `MetadataUnusable` if the file was removed or replaced while open.

        Two groups of processes would work with different data.
        """
        gone = self._path if self._identity_on_disk() != self._identity else ""
        if not gone and not self._beats.is_in_place():
            gone = self._beats.path
        if gone:
            raise MetadataUnusable(
                f"metadata file {gone} was removed or replaced while in use; "
                "stop every process that uses it before it is moved"
            )

    def signature(self) -> tuple[int, ...]:
        """Return what differs after another process has written. For any thread; cheap.

        A time stamp has a resolution of milliseconds: after each difference, look twice.
        """
        try:
            found = os.stat(f"{self._path}-wal")
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def end_session(self) -> None:
        with contextlib.suppress(MetadataUnusable):
            if self._lease is not None:
                with self._transaction():
                    self._end_sessions([self._lease.session_id])
        self._lease = None

    def close(self) -> None:
        """Close the file; a session that was not ended times out."""
        self._lease = None
        self._beats.close()
        self._db.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Hold the write lock from the first statement on, so that reads stay valid."""
        self.check_place()
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if is_locked(error):
                raise FileLocked(f"metadata file {self._path} is locked") from error
            raise
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    # -- sessions

    @property
    def has_session(self) -> bool:
        return self._lease is not None

    @property
    def is_leased(self) -> bool:
        """Whether, by the clock, no process can have ended our session. For any thread."""
        lease = self._lease
        return lease is not None and not lease.is_over

    def open_session(self, timeout_ms: int) -> None:
        assert self._lease is None
        with self._transaction():
            self._end_sessions([self._former_session])
            self._end_sessions(self._sessions_over())
            session_id = self._db.execute(
                "INSERT INTO sessions (boot_id, deadline_ms) VALUES (?, ?)",
                (self._boot_id, ENDS_IN_BEATS),
            ).lastrowid
            assert session_id is not None
            lease = Lease(self._beats, session_id, timeout_ms, self._clock)
        self._lease = lease

    def forget_session(self) -> None:
        if self._lease is not None:
            self._former_session = self._lease.session_id
        self._lease = None

    def beat(self) -> None:
        """Renew the session unless it is over. For any single thread. Raises `OSError`."""
        lease = self._lease
        if lease is not None:
            lease.beat()

    def sweep_if_due(self) -> None:
        """End other sessions whose time is up, at most every `SWEEP_INTERVAL_MS`."""
        now_ms = self._clock()
        if now_ms < self._next_sweep_ms:
            return
        self._next_sweep_ms = now_ms + SWEEP_INTERVAL_MS
        if self._sessions_over():
            with contextlib.suppress(FileLocked), self._transaction():
                self._end_sessions(self._sessions_over())

    def _sessions_over(self) -> list[int]:
        own = self._lease.session_id if self._lease is not None else None
        found = self._db.execute("SELECT id, boot_id, deadline_ms FROM sessions").fetchall()
        now_ms = self._clock()  # before the beats are read: see `Lease.beat`
        return [
            session_id
            for session_id, boot_id, deadline_ms in found
            if session_id != own
            and (boot_id != self._boot_id or self._session_end(session_id, deadline_ms) <= now_ms)
        ]

    def _session_end(self, session_id: int, deadline_ms: int) -> int:
        # A process of an older version keeps its deadline in the table.
        return self._beats.read(session_id) if deadline_ms == ENDS_IN_BEATS else deadline_ms

    def _end_sessions(self, ids: list[int]) -> None:
        for session_id in ids:
            for (path,) in self._db.execute(
                "SELECT path FROM records WHERE owner = ?", (session_id,)
            ).fetchall():
                self._db.execute("DELETE FROM records WHERE path = ?", (path,))
                self._log(path, names_changed=True)
            self._db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

    def together(self, writes: Iterable[Callable[[], T]]) -> list[T | Exception]:
        """Make several writes in a transaction; return each result or error, as if alone.

        Raises `FileLocked` and `SessionExpired` if none was begun, `sqlite3.Error` if none took
        effect for certain.
        """
        with self._session_transaction() as self._shared:
            try:
                return [self._one_of_several(write) for write in writes]
            finally:
                self._shared = None

    def _one_of_several(self, write: Callable[[], T]) -> T | Exception:
        try:
            return write()
        except sqlite3.Error:
            raise  # SQLite may have ended the transaction with all its writes
        except Exception as error:
            return error

    @contextlib.contextmanager
    def _session_transaction(self) -> Iterator[Lease]:
        """Check the session inside the write lock: no process can end it before the commit."""
        if self._shared is not None:
            self._db.execute("SAVEPOINT one")
            try:
                yield self._shared
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK TO one")
                raise
            finally:
                if self._db.in_transaction:
                    self._db.execute("RELEASE one")
            return
        with self._transaction():
            lease = self.check_lease()
            if not self._db.execute(
                "SELECT 1 FROM sessions WHERE id = ?", (lease.session_id,)
            ).fetchone():
                raise self._expired(lease)
            yield lease

    def check_lease(self) -> Lease:
        """Raise `SessionExpired` if by the clock the session may be over.

        Call it after a read: the process may be stopped between.
        """
        assert self._lease is not None
        if self._lease.is_over:
            raise self._expired(self._lease)
        return self._lease

    def _expired(self, lease: Lease) -> SessionExpired:
        return SessionExpired(f"metadata session {lease.session_id} in {self._path} is over")

    # -- records

    def get(self, path: str) -> Record:
        row = self._db.execute(
            "SELECT value, version FROM records WHERE path = ?", (check_path(path),)
        ).fetchone()
        self.check_lease()
        if row is None:
            raise RecordNotFound(f"no record at {path}")
        return Record(row[0], row[1])

    def children(self, path: str) -> list[str]:
        rows = self._db.execute(
            "SELECT path FROM records WHERE parent = ?", (check_folder(path),)
        ).fetchall()
        self.check_lease()
        return sorted(row[0].rpartition("/")[2] for row in rows)

    def create(
        self,
        path: str,
        value: bytes,
        ephemeral: bool,
        sequence: bool,
        beside: str | None = None,
    ) -> str:
        check_path(path + "0" if sequence else path)
        with self._session_transaction() as lease:
            for above in parents_of(path):
                self._make_parent(above)
            if sequence:
                number = self._db.execute(
                    "UPDATE records SET next_sequence = next_sequence + 1 WHERE path = ?"
                    " RETURNING next_sequence - 1",
                    (parent_of(path),),
                ).fetchall()[0][0]
                path = f"{path}{number:010d}"
            self._insert(path, value, lease.session_id if ephemeral else None)
            if beside is not None:
                for above in parents_of(check_path(beside)):
                    self._make_parent(above)
                self._insert(beside, b"", None)
        return path

    def _insert(self, path: str, value: bytes, owner: int | None) -> None:
        made = self._db.execute(
            "INSERT OR IGNORE INTO records (path, parent, value, version, owner)"
            " VALUES (?, ?, ?, 0, ?)",
            (path, parent_of(path), value, owner),
        ).rowcount
        if not made:
            raise RecordExists(f"a record already stands at {path}")
        self._log(path, names_changed=True)

    def _make_parent(self, path: str) -> None:
        row = self._db.execute("SELECT owner FROM records WHERE path = ?", (path,)).fetchone()
        if row is None:
            self._db.execute(
                "INSERT INTO records (path, parent, value, version) VALUES (?, ?, x'', 0)",
                (path, parent_of(path)),
            )
            self._log(path, names_changed=True)
        elif row[0] is not None:
            raise MetadataError(f"{path} is ephemeral: no record can be made below it")

    def put(self, path: str, value: bytes, version: int, beside: str | None = None) -> int:
        with self._session_transaction():
            if beside is not None:
                self._version(beside, ANY_VERSION)
            found = self._version(path, version)
            self._db.execute(
                "UPDATE records SET value = ?, version = ? WHERE path = ?",
                (value, found + 1, path),
            )
            self._log(path, names_changed=False)
        return found + 1

    def delete(self, path: str, version: int, beside: str | None = None) -> None:
        with self._session_transaction():
            self._remove(path, version)
            if beside is not None:
                self._remove(beside, ANY_VERSION)

    def _remove(self, path: str, version: int) -> None:
        self._version(path, version)
        if self._db.execute("SELECT 1 FROM records WHERE parent = ? LIMIT 1", (path,)).fetchone():
            raise RecordExists(f"{path} cannot be deleted: there are records below it")
        self._db.execute("DELETE FROM records WHERE path = ?", (path,))
        self._log(path, names_changed=True)

    def _version(self, path: str, expected: int) -> int:
        row = self._db.execute(
            "SELECT version FROM records WHERE path = ?", (check_path(path),)
        ).fetchone()
        if row is None:
            raise RecordNotFound(f"no record at {path}")
        if expected not in (ANY_VERSION, row[0]):
            raise VersionConflict(f"{path} has version {row[0]}, not the expected {expected}")
        return int(row[0])

    # -- changes

    def _log(self, path: str, *, names_changed: bool) -> None:
        rows = [(path, 0)]
        if names_changed:
            rows.append((parent_of(path), 1))
        for row in rows:
            seq = self._db.execute(
                "INSERT INTO changes (path, of_children) VALUES (?, ?)", row
            ).lastrowid
            if seq is not None and seq % 1000 == 0:
                self._db.execute("DELETE FROM changes WHERE seq <= ?", (seq - CHANGES_KEPT,))

    def _last_seq(self) -> int:
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'changes'").fetchone()
        return 0 if row is None else int(row[0])

    def has_changes(self) -> bool:
        """Changes by any connection since the last call. Very cheap."""
        data_version = self._db.execute("PRAGMA data_version").fetchone()[0]
        state = (data_version, self._db.total_changes)
        changed = state != self._seen_state
        self._seen_state = state
        return changed

    def take_changes(self) -> Changes:
        rows = self._db.execute(
            "SELECT seq, path, of_children FROM changes WHERE seq > ? ORDER BY seq",
            (self._seen_seq,),
        ).fetchall()
        if not rows:
            return Changes([], gap=False)
        gap = rows[0][0] != self._seen_seq + 1
        self._seen_seq = rows[-1][0]
        return Changes(list(dict.fromkeys(WatchKey(row[1], bool(row[2])) for row in rows)), gap)
