"""The tables of the embedded store's file; opens such a file, or refuses it."""

from __future__ import annotations

import os
import sqlite3

from octavo.metadata.store import MetadataUnusable

SCHEMA_VERSION = 2
_OLD_VERSION = 1
"""Here the sessions' deadlines are in the tables. Processes of that version would keep our ended
sessions until the next boot, so they may not start.
"""
ENDS_IN_BEATS = 1 << 62
"""A `deadline_ms` that never comes: the real end is in the file of heartbeats."""
APPLICATION_ID = 0x4F435456  # "OCTV"

_SCHEMA = f"""
CREATE TABLE records (
    path TEXT PRIMARY KEY,
    parent TEXT NOT NULL,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    owner INTEGER,
    next_sequence INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX records_by_parent ON records (parent, path);
CREATE INDEX records_by_owner ON records (owner) WHERE owner IS NOT NULL;
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    boot_id TEXT NOT NULL,
    deadline_ms INTEGER NOT NULL
);
CREATE TABLE changes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL,
    of_children INTEGER NOT NULL
);
INSERT INTO records (path, parent, value, version) VALUES ('/', '', x'', 0);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


def open_database(path: str, busy_timeout_ms: int) -> sqlite3.Connection:
    """Open the database; every commit is on disk when it returns.

    Raises `MetadataUnusable` if waiting will not help, else `sqlite3.OperationalError`.
    """
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise MetadataUnusable(f"metadata file {path}: the folder {folder} does not exist")
    if os.path.isdir(path):
        raise MetadataUnusable(f"metadata file {path} is a folder; name a file in it")
    _make_private(path)
    try:
        db = sqlite3.connect(path, timeout=busy_timeout_ms / 1000, isolation_level=None)
    except sqlite3.DatabaseError as error:
        raise _unusable(path, error) from error
    try:
        _prepare(db, path)
    except sqlite3.DatabaseError as error:
        db.close()
        if is_transient(error):
            raise
        raise _unusable(path, error) from error
    except BaseException:
        db.close()
        raise
    return db


def _make_private(path: str) -> None:
    """Let only the owner read the file: it holds the cluster's secret.

    SQLite gives its other files the same rights.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        pass


def _prepare(db: sqlite3.Connection, path: str) -> None:
    # Check whose file it is before changing it. A process that creates the file commits tables and
    # id together, so read the tables first: visible tables imply a visible id.
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application = db.execute("PRAGMA application_id").fetchone()[0]
    if tables and application != APPLICATION_ID:
        raise MetadataUnusable(f"metadata file {path} is a SQLite database, but not Octavo's")
    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise MetadataUnusable(
            f"metadata file {path}: its file system cannot hold a write-ahead log "
            f"(SQLite chose {mode!r}); use a local disk"
        )
    db.execute("PRAGMA synchronous = FULL")
    if tables and db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION:
        return  # without the write lock, which a stopped process may hold
    db.execute("BEGIN IMMEDIATE")
    try:
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == _OLD_VERSION:
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif version != SCHEMA_VERSION:
            raise MetadataUnusable(
                f"metadata file {path} has schema version {version}; this Octavo reads "
                f"version {SCHEMA_VERSION}. Use the Octavo that wrote it, or a newer one"
            )
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _unusable(path: str, error: sqlite3.Error) -> MetadataUnusable:
    return MetadataUnusable(
        f"metadata file {path} cannot be used: {error}; it must be an Octavo metadata file, "
        "or absent in a folder where this user may write"
    )


def is_locked(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_transient(error: Exception) -> bool:
    """Whether the file is only locked, or has no room."""
    full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    return full or is_locked(error)
