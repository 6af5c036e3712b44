"""The state of each ledger besides its entries: key, fence, LAC, last entry, deletion.

On disk it is a log of changed records, one block for each checkpoint, rewritten when most are
stale. The mark says how much of it is valid; if anything before is missing, the bookie does not
start, because it may have lost fences. Spec: docs/formats/ledger_state.md.

    file   := "OctvLdSt" version:u32 file_id:u64 crc32c:u32 block*
    block  := "LSTA" count:u32 offset:u64 body_crc32c:u32 header_crc32c:u32 record*
    record := ledger_id:i64 flags:u8 key:20 explicit_lac:i64 lac:i64 last_entry:i64
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from crc32c import crc32c

from octavo.bookie.disk.files import Disk, File, number_in, numbered_name
from octavo.protocol.codes import OctavoError, Scope
from octavo.protocol.entry import INVALID_ENTRY_ID

MAGIC = b"OctvLdSt"
VERSION = 1
FILE_HEADER = struct.Struct(">8sIQI")
FILE_HEADER_BYTES = FILE_HEADER.size
BLOCK_MAGIC = b"LSTA"
BLOCK = struct.Struct(">4sIQII")
BLOCK_BYTES = BLOCK.size
RECORD = struct.Struct(">qB20sqqq")
_CRC = struct.Struct(">I")
_FENCED, _DELETED = 1, 2
SUFFIX = ".state"
_REWRITE_ABOVE_BYTES = 1024 * 1024


class LedgerStateDamaged(OctavoError):
    """The ledger state that the mark vouches for cannot be read."""

    name = "ledger-state-damaged"
    scope = Scope.PROCESS


class LedgerState:
    __slots__ = (
        "deleted",
        "explicit_lac",
        "fenced",
        "key",
        "lac",
        "lac_body",
        "last_entry",
        "reached",
    )

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.fenced = False
        self.deleted = False
        self.explicit_lac = INVALID_ENTRY_ID
        self.lac_body: bytes | None = None
        """The LAC as its writer signed it, if it is signed. Not on the disk."""
        self.lac = INVALID_ENTRY_ID
        self.last_entry = INVALID_ENTRY_ID
        self.reached = INVALID_ENTRY_ID
        """The highest entry ever admitted, durable or not; not on the disk."""

    def delete(self, now_ms: int) -> None:
        """Keep only that the ledger is deleted, and since when (wall clock)."""
        self.deleted = True
        self.lac_body = None
        self.explicit_lac = self.lac = INVALID_ENTRY_ID
        self.last_entry = now_ms

    @property
    def deleted_ms(self) -> int:
        """Return when the ledger was deleted, which is stored in the field of the last entry."""
        return self.last_entry if self.deleted else INVALID_ENTRY_ID

    @property
    def last_add_confirmed(self) -> int:
        """Return the highest LAC seen, in an entry or explicit."""
        return max(self.lac, self.explicit_lac)


def encode_record(ledger_id: int, state: LedgerState) -> bytes:
    flags = (_FENCED if state.fenced else 0) | (_DELETED if state.deleted else 0)
    return RECORD.pack(ledger_id, flags, state.key, state.explicit_lac, state.lac, state.last_entry)


def decode_record(data: bytes, start: int) -> tuple[int, LedgerState]:
    """Return (ledger id, state). Unknown flags are ignored, for upgrades."""
    ledger_id, flags, key, explicit_lac, lac, last_entry = RECORD.unpack_from(data, start)
    state = LedgerState(key)
    state.fenced = bool(flags & _FENCED)
    state.deleted = bool(flags & _DELETED)
    state.explicit_lac, state.lac, state.last_entry = explicit_lac, lac, last_entry
    state.reached = last_entry
    return ledger_id, state


def encode_file_header(file_id: int) -> bytes:
    front = FILE_HEADER.pack(MAGIC, VERSION, file_id, 0)[: -_CRC.size]
    return front + _CRC.pack(crc32c(front))


def encode_block(records: list[bytes], offset: int) -> bytes:
    body = b"".join(records)
    front = BLOCK.pack(BLOCK_MAGIC, len(records), offset, crc32c(body), 0)[: -_CRC.size]
    return front + _CRC.pack(crc32c(front)) + body


def file_name(file_id: int) -> str:
    return numbered_name(file_id, SUFFIX)


def file_id_of(name: str) -> int | None:
    return number_in(name, SUFFIX)


class LedgerStates:
    def __init__(self) -> None:
        self._all: dict[int, LedgerState] = {}
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        return len(self._all)

    def get(self, ledger_id: int) -> LedgerState | None:
        """Return the state, also of a deleted ledger."""
        return self._all.get(ledger_id)

    def create(self, ledger_id: int, key: bytes) -> LedgerState:
        assert ledger_id not in self._all
        state = self._all[ledger_id] = LedgerState(key)
        self._dirty.add(ledger_id)
        return state

    def restore(self, ledger_id: int, state: LedgerState) -> None:
        self._all[ledger_id] = state

    def touch(self, ledger_id: int) -> None:
        self._dirty.add(ledger_id)

    def ids(self) -> list[int]:
        """Return the ledgers that are not deleted, ascending."""
        return sorted(found for found, state in self._all.items() if not state.deleted)

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty)

    def is_changed(self, ledger_id: int) -> bool:
        return ledger_id in self._dirty

    def take_dirty(self) -> list[int]:
        """Return the changed ledgers, which count as clean from now on; see `put_back`."""
        found = sorted(self._dirty)
        self._dirty = set()
        return found

    def put_back(self, ledger_ids: Iterable[int]) -> None:
        self._dirty.update(ledger_ids)

    def encode(self, ledger_ids: Iterable[int]) -> list[bytes]:
        return [encode_record(found, self._all[found]) for found in ledger_ids]

    def deleted_ids(self, before_ms: int) -> list[int]:
        """Return ledgers deleted before `before_ms`, ascending."""
        return sorted(
            found
            for found, state in self._all.items()
            if state.deleted and state.deleted_ms < before_ms
        )

    def drop(self, ledger_id: int) -> None:
        """Forget that a ledger was deleted.

        A restart before the file's next rewrite remembers it again, which does no harm.
        """
        assert self._all[ledger_id].deleted
        del self._all[ledger_id]

    def all_ids(self) -> list[int]:
        return list(self._all)


class StateFile:
    """The files of ledger state. Blocking; one caller at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._file: File | None = None
        self.file_id = 0
        self.offset = 0

    def load(self, position: tuple[int, int] | None) -> Iterator[tuple[int, LedgerState]]:
        """Yield records up to `position` (file id, offset), in order; later records win.

        Without a position all files are read, each up to its first bad block. Raises
        `LedgerStateDamaged`.
        """
        names = self._disk.list_directory(self._directory)
        ids = sorted(found for name in names if (found := file_id_of(name)) is not None)
        if position is None:
            for file_id in ids:
                yield from self._load(file_id, None)
            self.file_id = ids[-1] if ids else 0
            return
        file_id, end = position
        self.file_id = max(ids, default=file_id)
        if file_id:
            yield from self._load(file_id, end)

    def _load(self, file_id: int, end: int | None) -> Iterator[tuple[int, LedgerState]]:
        path = f"{self._directory}/{file_name(file_id)}"
        if not self._disk.exists(path):
            raise _damaged(path, "is missing")
        file = self._disk.open(path)
        try:
            front = file.pread(FILE_HEADER_BYTES, 0)
            if front != encode_file_header(file_id):
                _refuse_other_version(path, front)
                if end is None:
                    return
                raise _damaged(path, "has no good header of version 1")
            offset = FILE_HEADER_BYTES
            while end is None or offset < end:
                body = _read_block(file, offset)
                if body is None:
                    if end is None:
                        return
                    raise _damaged(path, f"is damaged at byte {offset}")
                for start in range(0, len(body), RECORD.size):
                    yield decode_record(body, start)
                offset += BLOCK_BYTES + len(body)
        finally:
            file.close()

    def append(self, records: list[bytes]) -> None:
        """Append records, durable on return. Raises `DiskFull`: then nothing was added."""
        assert self._file is not None
        block = encode_block(records, self.offset)
        self._file.preallocate(self.offset + len(block))
        self._file.pwritev([block], self.offset)
        self._file.datasync()
        self.offset += len(block)

    def rewrite(self, records: list[bytes]) -> None:
        """Begin a new file with all ledgers' records; durable on return."""
        file_id = self.file_id + 1
        path = f"{self._directory}/{file_name(file_id)}"
        if self._disk.exists(path):
            self._disk.unlink(path)
        file = self._disk.open(path, create=True)
        try:
            block = encode_block(records, FILE_HEADER_BYTES) if records else b""
            end = FILE_HEADER_BYTES + len(block)
            file.preallocate(end)
            file.pwritev([encode_file_header(file_id), block], 0)
            file.datasync()
            self._disk.sync_directory(self._directory)
        except BaseException:
            file.close()
            raise
        self.close()
        self._file, self.file_id, self.offset = file, file_id, end

    def wants_rewrite(self, ledgers: int) -> bool:
        """Whether there is no file yet, or most records are stale."""
        live = ledgers * RECORD.size
        return self._file is None or self.offset > 2 * live + _REWRITE_ABOVE_BYTES

    def remove_old(self) -> None:
        removed = False
        for name in self._disk.list_directory(self._directory):
            found = file_id_of(name)
            if found is not None and found < self.file_id:
                self._disk.unlink(f"{self._directory}/{name}")
                removed = True
        if removed:
            self._disk.sync_directory(self._directory)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def state_files(disk: Disk, directory: str) -> list[int]:
    found = map(file_id_of, disk.list_directory(directory))
    return sorted(file_id for file_id in found if file_id is not None)


def good_blocks(disk: Disk, directory: str, file_id: int) -> Iterator[tuple[int, LedgerState]]:
    """Yield the states of all good blocks, whatever is damaged in between.

    Raises `LedgerStateDamaged` for an unknown version.
    """
    file = disk.open(f"{directory}/{file_name(file_id)}")
    try:
        front = file.pread(FILE_HEADER_BYTES, 0)
        if len(front) == FILE_HEADER_BYTES:
            magic, version, _, crc = FILE_HEADER.unpack(front)
            whole = magic == MAGIC and crc == crc32c(front[: -_CRC.size])
            if whole and version != VERSION:
                raise _damaged(file.path, f"is of version {version}, which is not known")
        data, offset = file.pread(file.size(), 0), FILE_HEADER_BYTES
        while offset >= 0:
            body = _read_block(file, offset)
            if body is None:
                offset = data.find(BLOCK_MAGIC, offset + 1)
                continue
            for start in range(0, len(body), RECORD.size):
                yield decode_record(body, start)
            offset += BLOCK_BYTES + len(body)
    finally:
        file.close()


def _read_block(file: File, offset: int) -> bytes | None:
    front = file.pread(BLOCK_BYTES, offset)
    if len(front) < BLOCK_BYTES:
        return None
    magic, count, its_offset, crc, header_crc = BLOCK.unpack(front)
    if magic != BLOCK_MAGIC or its_offset != offset or header_crc != crc32c(front[: -_CRC.size]):
        return None
    body = file.pread(count * RECORD.size, offset + BLOCK_BYTES)
    if len(body) != count * RECORD.size or crc32c(body) != crc:
        return None
    return body


def _refuse_other_version(path: str, front: bytes) -> None:
    """Refuse a good header of an unknown version: the file may hold fences."""
    if len(front) < FILE_HEADER_BYTES or front[: len(MAGIC)] != MAGIC:
        return
    _, version, _, crc = FILE_HEADER.unpack(front)
    if version != VERSION and crc == crc32c(front[: -_CRC.size]):
        raise LedgerStateDamaged(
            f"ledger state {path} is of version {version}; this program reads {VERSION}. Use the "
            "program that wrote it"
        )


def _damaged(path: str, what: str) -> LedgerStateDamaged:
    return LedgerStateDamaged(
        f"ledger state {path} {what}: fences and keys of ledgers would be lost, so this bookie "
        "does not start. Restore the file. If it is gone for good, start once with --accept-loss: "
        "what this bookie still has is served, what it may have lost is answered as unknown until "
        "it is re-replicated"
    )
