"""Read a bookie's index without touching it, even while the bookie runs.

RocksDB opens a folder of links to the index's files, because even a read-only opening writes files.
Records that a running bookie has not flushed are missing.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from rocksdict import AccessType, Rdict

from octavo.bookie.disk.damage import Damage, DamageKind
from octavo.bookie.index.index import COVERED, COVERED_KEY, KEY, VALUE, link_files, rocks_options
from octavo.inspect.line import Line, Wish
from octavo.protocol.codes import BookieIOError

_ATTEMPTS = 5
_PAUSE_S = 0.2


class Covered(NamedTuple):
    """How far into the entry logs the index is complete."""

    log_id: int
    offset: int


class Stored(NamedTuple):
    """Entries `first` to `last` are in `length` bytes at `offset` of a log."""

    ledger_id: int
    first: int
    last: int
    log_id: int
    offset: int
    length: int


class Unknown(NamedTuple):
    key: bytes
    value: bytes


class IndexReader:
    def __init__(self, path: str) -> None:
        self.path = path
        if not os.path.exists(f"{path}/CURRENT"):
            raise BookieIOError(f"{path} is not an index: it lacks the file CURRENT")

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with tempfile.TemporaryDirectory(prefix="octavo-index-") as folder:
            link_files(self.path, folder)
            options = rocks_options()
            options.set_max_open_files(-1)  # open all now: a running bookie may remove files later
            try:
                database = Rdict(folder, options, access_type=AccessType.read_only())
            except Exception as error:
                raise BookieIOError(
                    f"index {self.path} cannot be opened: {_first_line(error, folder, self.path)}. "
                    "`octavo bookie rebuild-index` makes a new index from the entry logs"
                ) from error
            try:
                yield database
            finally:
                database.close()

    def records(self, ledger_id: int | None = None) -> Iterator[Covered | Stored | Unknown]:
        with ExitStack() as opened:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    database = opened.enter_context(self._opened())
                    break
                except BookieIOError:
                    if attempt == _ATTEMPTS:
                        raise
                    time.sleep(_PAUSE_S)  # a running bookie removed a file meanwhile
            yield from self._iterate(database, ledger_id)

    def _iterate(
        self, database: Any, ledger_id: int | None
    ) -> Iterator[Covered | Stored | Unknown]:
        cursor = database.iter()
        cursor.seek(KEY.pack(max(ledger_id or 0, 0), 0))
        try:
            while cursor.valid():
                found = decode(cursor.key(), cursor.value())
                if isinstance(found, Stored) and ledger_id not in (None, found.ledger_id):
                    return
                yield found
                cursor.next()
            cursor.status()  # raises if a damaged block ended the iteration
        except BookieIOError:
            raise
        except Exception as error:
            raise IndexDamaged(f"index {self.path}: {error}") from error


class IndexDamaged(BookieIOError):
    """RocksDB found a damaged block. Records read before it are right, the rest is missing."""


def decode(key: bytes, value: bytes) -> Covered | Stored | Unknown:
    try:
        if key == COVERED_KEY:
            return Covered(*COVERED.unpack(value))
        ledger_id, first = KEY.unpack(key)
        return Stored(ledger_id, first, *VALUE.unpack(value))
    except struct.error:
        return Unknown(key, value)


def walk_index(reader: IndexReader, wish: Wish) -> Iterator[Line]:
    before: Stored | None = None
    try:
        for found in reader.records(wish.ledger):
            if isinstance(found, Covered):
                fields = {"log_id": found.log_id, "log_offset": found.offset}
                note = f"complete up to byte {found.offset:,} of entry log {found.log_id}"
                yield Line("covered", 0, 0, fields, note)
            elif isinstance(found, Unknown):
                line = Line("damage", 0, len(found.key) + len(found.value))
                line.note = f"key {found.key[:24].hex()} is none of this index"
                line.damage = [Damage(DamageKind.INDEX, reader.path, 0, 0)]
                yield line
            else:
                line = _record_line(found, before, reader.path)
                before = found
                if line.damage or wish.wants(found.ledger_id, found.first, found.last):
                    yield line
    except IndexDamaged as error:
        line = Line("damage", 0, 0, note=str(error))
        line.damage = [Damage(DamageKind.INDEX, reader.path, 0, 0)]
        yield line


def _record_line(found: Stored, before: Stored | None, path: str) -> Line:
    line = Line("extent", found.offset, found.length)
    line.fields = {"ledger": found.ledger_id, "first": found.first, "last": found.last}
    line.fields["log_id"] = found.log_id
    line.note = f"entry log {found.log_id}"
    what = ""
    if found.last < found.first:
        what = "its last entry is before its first"
    elif before is not None and before.ledger_id == found.ledger_id and before.last >= found.first:
        what = f"overlaps the record before, {before.first}–{before.last}"
    if what:
        ids = (found.ledger_id, found.first, found.last)
        line.damage = [Damage(DamageKind.INDEX, path, 0, 0, *ids)]
        line.note += f"; {what}"
    return line


class LogLookup:
    """Finds what the index has in a range of an entry log. Reads the index at the first call."""

    def __init__(self, reader: IndexReader | None, log_id: int) -> None:
        self._reader = reader
        self._log_id = log_id
        self._found: list[tuple[int, int, int, int, int]] | None = None

    def __call__(self, start: int, end: int) -> list[tuple[int, int, int]]:
        if self._found is None:
            self._found = self._load()
        found: list[tuple[int, int, int]] = []
        at = max(0, bisect_left(self._found, (start,)) - 1)
        for offset, length, *ids in self._found[at:]:
            if offset >= end:
                break
            if offset + length > start:
                found.append((ids[0], ids[1], ids[2]))
        return found

    def _load(self) -> list[tuple[int, int, int, int, int]]:
        if self._reader is None:
            return []
        try:
            return sorted(
                (one.offset, one.length, one.ledger_id, one.first, one.last)
                for one in self._reader.records()
                if isinstance(one, Stored) and one.log_id == self._log_id
            )
        except BookieIOError:
            return []


def _first_line(error: Exception, folder: str, path: str) -> str:
    return str(error).splitlines()[0].replace(folder, path) if str(error) else repr(error)
