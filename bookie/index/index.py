"""The index: which extent of which entry log holds an entry. Sparse: a record per extent.

    key   := ledger_id:u64 first:u64               big-endian, so that RocksDB sorts by entry
    value := last:u64 log_id:u64 offset:u64 length:u32

A lookup seeks to the last record at or before the entry. A later extent cuts earlier extents, so
the newest copy is found; a cut record still names its whole extent. RocksDB's WAL is off: `flush`
makes it durable. Spec: docs/formats/index.md.

RocksDB writes even into a folder opened read-only, so `IndexView` opens symbolic links.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from octavo.bookie.disk.damage import Damage, DamagedRead, DamageKind
from octavo.bookie.disk.files import DiskFull
from octavo.bookie.entrylog.format import Location
from octavo.protocol.codes import BookieIOError

KEY = struct.Struct(">QQ")
VALUE = struct.Struct(">QQQI")
COVERED_KEY = b"\xff" * 8 + b"covered\0"
COVERED = struct.Struct(">QQ")
ENTRY_MAX = 2**63 - 1
INDEX_FOLDER = "index"
_NOT_LINKED = ("LOCK", "LOG", "IDENTITY", "rocksdict-config")


class IndexedExtent(NamedTuple):
    ledger_id: int
    first: int
    last: int
    location: Location


class LedgerIndex(Protocol):
    """Writes come from one thread at a time; reads from any thread."""

    @property
    def covered(self) -> tuple[int, int] | None: ...

    def put(self, runs: Iterable[IndexedExtent], covered: tuple[int, int]) -> None:
        """Put all or none; later extents replace earlier extents."""

    def find(self, ledger_id: int, entry_id: int) -> IndexedExtent | None: ...

    def runs(self, ledger_id: int, first: int = 0, last: int = ENTRY_MAX) -> list[IndexedExtent]:
        """Return extents that hold any of the entries, ascending."""

    def all_runs(self) -> Iterator[IndexedExtent]:
        """Yield all extents; extents that are put meanwhile may be missing."""

    def delete_ledger(self, ledger_id: int) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def cut(old: IndexedExtent, new: IndexedExtent) -> list[IndexedExtent]:
    """Return the parts that are left when `new` takes its entries."""
    left: list[IndexedExtent] = []
    if old.first < new.first:
        left.append(old._replace(last=min(old.last, new.first - 1)))
    if old.last > new.last:
        left.append(old._replace(first=max(old.first, new.last + 1)))
    return left


def rocks_options() -> Options:
    """Return options for little memory: three bookies may share a laptop."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(2 * 1024 * 1024)
    options.set_max_write_buffer_number(2)
    options.set_max_background_jobs(2)
    options.set_max_open_files(64)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1024 * 1024)
    options.set_stats_dump_period_sec(0)
    options.set_compression_type(DBCompressionType.zstd())
    # The index block must fit into one of eight parts of the cache. Otherwise each lookup would
    # unpack it again.
    options.set_target_file_size_base(4 * 1024 * 1024)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(4 * 1024 * 1024))
    table.set_cache_index_and_filter_blocks(True)
    options.set_block_based_table_factory(table)
    return options


class RocksIndex:
    def __init__(self, path: str, access: AccessType | None = None) -> None:
        self._path = path
        with self._translated("open"):
            self._db = Rdict(path, rocks_options(), access_type=access or AccessType.read_write())
        self._write_options = WriteOptions()
        # Its type stub says that it is a method; it is a property.
        setattr(self._write_options, "disable_wal", True)  # noqa: B010
        self._last: dict[int, int] = {}
        """Saves a seek for extents that only append."""

    @contextmanager
    def _translated(self, call: str) -> Iterator[None]:
        try:
            yield
        except BookieIOError:
            raise
        except Exception as error:
            if "No space left" in str(error):
                raise DiskFull(f"index {self._path}: {call}: {error}; free some space") from error
            message = (
                f"index {self._path}: {call}: {error}. The index is derived: stop the bookie and "
                "remove the folder, and it is rebuilt from the entry logs"
            )
            if "Corruption" in str(error):
                raise DamagedRead(message, Damage(DamageKind.INDEX, self._path, 0, 0)) from error
            raise BookieIOError(message) from error

    @property
    def covered(self) -> tuple[int, int] | None:
        with self._translated("read"):
            value = self._db.get(COVERED_KEY)
            log_id, offset = COVERED.unpack(value) if value is not None else (0, 0)
        return (log_id, offset) if value is not None else None

    def put(self, runs: Iterable[IndexedExtent], covered: tuple[int, int]) -> None:
        with self._translated("write"):
            self._put(runs, covered)

    def _put(self, runs: Iterable[IndexedExtent], covered: tuple[int, int]) -> None:
        batch = WriteBatch(raw_mode=True)
        for run in runs:
            last = self._last.get(run.ledger_id)
            if last is None:
                last = self._last_of(run.ledger_id)
            if run.first <= last:
                # The search for overlaps must see the pending extents.
                self._db.write(batch, self._write_options)
                batch = WriteBatch(raw_mode=True)
                self._cut_overlapped(run, batch)
            batch.put(KEY.pack(run.ledger_id, run.first), VALUE.pack(run.last, *run.location))
            self._last[run.ledger_id] = max(last, run.last)
        batch.put(COVERED_KEY, COVERED.pack(*covered))
        self._db.write(batch, self._write_options)
        if len(self._last) > 100_000:
            self._last.clear()

    def _cut_overlapped(self, new: IndexedExtent, batch: WriteBatch) -> None:
        for old in self._overlapping(new.ledger_id, new.first, new.last):
            batch.delete(KEY.pack(old.ledger_id, old.first))
            for part in cut(old, new):
                batch.put(KEY.pack(part.ledger_id, part.first), VALUE.pack(part.last, *part[3]))

    def _overlapping(self, ledger_id: int, first: int, last: int) -> list[IndexedExtent]:
        found: list[IndexedExtent] = []
        cursor = self._db.iter()
        cursor.seek_for_prev(KEY.pack(ledger_id, first))
        if not cursor.valid():
            cursor.status()  # raises for a damaged block; the next seek would forget it
        if not cursor.valid() or self._decode(cursor).ledger_id != ledger_id:
            cursor.seek(KEY.pack(ledger_id, first))
        while cursor.valid():
            run = self._decode(cursor)
            if run.ledger_id != ledger_id or run.first > last:
                break
            if run.last >= first:
                found.append(run)
            cursor.next()
        cursor.status()  # raises when a damaged block ended the iteration: never "absent"
        return found

    @staticmethod
    def _decode(cursor: object) -> IndexedExtent:
        key = cursor.key()  # type: ignore[attr-defined]
        if key == COVERED_KEY:
            return IndexedExtent(-1, -1, -1, Location(0, 0, 0))
        ledger_id, first = KEY.unpack(key)
        last, log_id, offset, length = VALUE.unpack(cursor.value())  # type: ignore[attr-defined]
        return IndexedExtent(ledger_id, first, last, Location(log_id, offset, length))

    def _last_of(self, ledger_id: int) -> int:
        cursor = self._db.iter()
        cursor.seek_for_prev(KEY.pack(ledger_id, 2**64 - 1))
        if not cursor.valid():
            cursor.status()
            return -1
        run = self._decode(cursor)
        return run.last if run.ledger_id == ledger_id else -1

    def find(self, ledger_id: int, entry_id: int) -> IndexedExtent | None:
        with self._translated("read"):
            cursor = self._db.iter()
            cursor.seek_for_prev(KEY.pack(ledger_id, entry_id))
            if not cursor.valid():
                cursor.status()  # raises when a damaged block hides the entry: never "absent"
                return None
            run = self._decode(cursor)
        return run if run.ledger_id == ledger_id and run.last >= entry_id else None

    def runs(self, ledger_id: int, first: int = 0, last: int = ENTRY_MAX) -> list[IndexedExtent]:
        with self._translated("read"):
            return self._overlapping(ledger_id, first, last)

    def all_runs(self) -> Iterator[IndexedExtent]:
        with self._translated("read"):
            cursor = self._db.iter()
            cursor.seek_to_first()
            while cursor.valid():
                run = self._decode(cursor)
                if run.ledger_id >= 0:
                    yield run
                cursor.next()
            cursor.status()  # raises when a damaged block ended the iteration

    def delete_ledger(self, ledger_id: int) -> None:
        with self._translated("delete"):
            self._db.delete_range(
                KEY.pack(ledger_id, 0), KEY.pack(ledger_id, 2**64 - 1), self._write_options
            )
        self._last.pop(ledger_id, None)

    def flush(self) -> None:
        with self._translated("flush"):
            self._db.flush(True)

    def close(self) -> None:
        with self._translated("close"):
            self._db.close()


def link_files(path: str, folder: str) -> None:
    for name in sorted(os.listdir(path)):
        if not name.startswith(_NOT_LINKED):
            os.symlink(os.path.abspath(f"{path}/{name}"), f"{folder}/{name}")


class IndexView(RocksIndex):
    """An index for reading only. Raises `BookieIOError` without a good index."""

    def __init__(self, path: str) -> None:
        if not os.path.exists(f"{path}/CURRENT"):
            raise BookieIOError(f"{path} holds no index: there is no file CURRENT in it")
        self._links = tempfile.TemporaryDirectory(prefix="octavo-index-")
        try:
            link_files(path, self._links.name)
            super().__init__(self._links.name, AccessType.read_only())
        except BaseException as error:
            links = self._links.name
            self._links.cleanup()
            if isinstance(error, DamagedRead):
                message = str(error).replace(links, path)
                raise DamagedRead(message, error.damage._replace(path=path)) from error
            raise
        self._path = path

    def put(self, runs: Iterable[IndexedExtent], covered: tuple[int, int]) -> None:  # noqa: ARG002
        raise BookieIOError(f"index {self._path} is opened for reading only")

    def delete_ledger(self, ledger_id: int) -> None:  # noqa: ARG002
        raise BookieIOError(f"index {self._path} is opened for reading only")

    def flush(self) -> None: ...

    def close(self) -> None:
        super().close()
        self._links.cleanup()
