"""The journal mark: everything before it is safe in entry log, index and ledger state.

One small file in every ledger folder, replaced atomically. The highest of the readable copies
counts (BookKeeper #3329: a mark written to one folder only lost entries), and it never moves
back (#4105). A copy that cannot be read is passed over: an older mark only means more replay, and
replay is idempotent.

    file := "OctvMark" version:u32 file_id:u64 offset:u64 log_id:u64 log_offset:u64
            state_id:u64 state_offset:u64 crc32c:u32
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from bookie.disk import Disk

NAME = "journal.mark"
_MAGIC = b"OctvMark"
_VERSION = 1
_LAYOUT = struct.Struct(">8sIQQQQQQI")
_CRC = struct.Struct(">I")


class Mark(NamedTuple):
    """A position in the journal, and what holds everything before it.

    The index covers the entry logs up to (`log_id`, `log_offset`); the ledger state counts up to
    (`state_id`, `state_offset`).
    """

    file_id: int
    offset: int
    log_id: int = 0
    log_offset: int = 0
    state_id: int = 0
    state_offset: int = 0


def encode_mark(mark: Mark) -> bytes:
    """The whole file."""
    front = _LAYOUT.pack(_MAGIC, _VERSION, *mark, 0)[: -_CRC.size]
    return front + _CRC.pack(crc32c(front))


def decode_mark(data: bytes) -> Mark | None:
    """The mark, or None when the bytes are no good copy of version 1."""
    if len(data) != _LAYOUT.size:
        return None
    magic, version, *fields, crc = _LAYOUT.unpack(data)
    if magic != _MAGIC or version != _VERSION or crc != crc32c(data[: -_CRC.size]):
        return None
    return Mark(*fields)


def read_mark(disk: Disk, directories: Sequence[str]) -> Mark | None:
    """The highest readable copy; None when there is none."""
    found: list[Mark] = []
    for directory in directories:
        path = f"{directory}/{NAME}"
        if not disk.exists(path):
            continue
        file = disk.open(path)
        try:
            mark = decode_mark(file.pread(_LAYOUT.size + 1, 0))
        finally:
            file.close()
        if mark is not None:
            found.append(mark)
    return max(found, default=None)


def write_mark(disk: Disk, directories: Sequence[str], mark: Mark) -> None:
    """Replace the copy in every folder; durable on return."""
    for directory in directories:
        new = f"{directory}/{NAME}.new"
        if disk.exists(new):
            disk.unlink(new)
        file = disk.open(new, create=True)
        try:
            file.pwritev([encode_mark(mark)], 0)
            file.datasync()
        finally:
            file.close()
        disk.rename(new, f"{directory}/{NAME}")
        disk.sync_directory(directory)
