"""The journal mark: up to where the journals are also in the entry logs and the ledger state.

It is a small file in every ledger folder. Entries before its journal positions are in the entry
logs before (`log_id`, `log_offset`); fences, keys and LACs in the ledger state before (`state_id`,
`state_offset`). The index may be behind it; a start completes it from the logs.

No component ever moves back. Two marks of which neither covers the other have no order: an invented
order would skip a flush (BookKeeper #4844) or go back (#4105). The highest readable copy counts
(#3329: a mark in a single folder lost entries); an older mark only means more replay. Copies that
contradict each other are refused. Spec: docs/formats/mark.md.

    file     := "OctvMark" version:u32 journals:u32 log_id:u64 log_offset:u64 state_id:u64
                state_offset:u64 position{journals} crc32c:u32
    position := file_id:u64 offset:u64 folder_bytes:u16 folder:utf-8
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from octavo.bookie.disk.files import Disk, replace_file
from octavo.protocol.codes import OctavoError, Scope

NAME = "journal.mark"
_MAGIC = b"OctvMark"
VERSION = 2
_FRONT = struct.Struct(">8sI")
_HEAD = struct.Struct(">8sIIQQQQ")
_POSITION = struct.Struct(">QQH")
_VERSION_1 = struct.Struct(">8sIQQQQQQI")
_CRC = struct.Struct(">I")
_BYTES_MAX = 1024 * 1024


class MarkRefused(OctavoError):
    """A readable mark that this bookie must not use."""

    name = "mark-refused"
    scope = Scope.PROCESS


class Position(NamedTuple):
    """(0, 0) is before the journal's first file."""

    file_id: int
    offset: int


NOWHERE = Position(0, 0)


@dataclass(frozen=True, slots=True)
class Mark:
    journals: tuple[Position, ...]
    log_id: int = 0
    log_offset: int = 0
    state_id: int = 0
    state_offset: int = 0
    folders: tuple[str, ...] = ()
    """The journal folders; empty in version 1, which does not name them."""

    @property
    def log_position(self) -> tuple[int, int]:
        """Return up to where the mark vouches for the entry logs."""
        return self.log_id, self.log_offset

    @property
    def state_position(self) -> tuple[int, int]:
        """Return up to where the mark vouches for the ledger state."""
        return self.state_id, self.state_offset

    def covers(self, other: Mark) -> bool:
        """Whether this mark is at or after `other` in every component, for the same journals."""
        return (
            len(self.journals) == len(other.journals)
            and all(mine >= its for mine, its in zip(self.journals, other.journals, strict=True))
            and self.log_position >= other.log_position
            and self.state_position >= other.state_position
        )


def encode_mark(mark: Mark) -> bytes:
    assert len(mark.folders) == len(mark.journals) > 0
    front = _HEAD.pack(
        _MAGIC, VERSION, len(mark.journals), *mark.log_position, *mark.state_position
    )
    for position, folder in zip(mark.journals, mark.folders, strict=True):
        name = folder.encode()
        front += _POSITION.pack(*position, len(name)) + name
    return front + _CRC.pack(crc32c(front))


def decode_mark(data: bytes) -> Mark | None:
    """Decode a copy of the mark; None when it is not a good copy.

    Raises `MarkRefused` for a good copy of an unknown version.
    """
    if len(data) < _FRONT.size + _CRC.size:
        return None
    magic, version = _FRONT.unpack_from(data)
    crc = _CRC.unpack_from(data, len(data) - _CRC.size)[0]
    if magic != _MAGIC or crc != crc32c(data[: -_CRC.size]):
        return None
    if version == 1:
        return _decode_version_1(data)
    if version != VERSION:
        raise MarkRefused(
            f"mark of version {version}; this program reads 1 and {VERSION}. Use the program that "
            "wrote it"
        )
    return _decode_version_2(data[: -_CRC.size])


def _decode_version_1(data: bytes) -> Mark | None:
    if len(data) != _VERSION_1.size:
        return None
    file_id, offset, log_id, log_offset, state_id, state_offset = _VERSION_1.unpack(data)[2:-1]
    return Mark((Position(file_id, offset),), log_id, log_offset, state_id, state_offset)


def _decode_version_2(data: bytes) -> Mark | None:
    if len(data) < _HEAD.size:
        return None
    count, log_id, log_offset, state_id, state_offset = _HEAD.unpack_from(data)[2:]
    positions: list[Position] = []
    folders: list[str] = []
    at = _HEAD.size
    for _ in range(count):
        if len(data) < at + _POSITION.size:
            return None
        file_id, offset, length = _POSITION.unpack_from(data, at)
        at += _POSITION.size
        positions.append(Position(file_id, offset))
        folders.append(data[at : at + length].decode(errors="replace"))
        at += length
    if at != len(data):
        return None
    return Mark(tuple(positions), log_id, log_offset, state_id, state_offset, tuple(folders))


def read_mark(disk: Disk, directories: Sequence[str]) -> Mark | None:
    """Return the highest readable copy, if any. Raises `MarkRefused`."""
    highest: tuple[str, Mark] | None = None
    for directory in directories:
        path = f"{directory}/{NAME}"
        if not disk.exists(path):
            continue
        mark = _read_copy(disk, path)
        if mark is None:
            continue
        if highest is None or mark.covers(highest[1]):
            highest = path, mark
        elif not highest[1].covers(mark):
            raise MarkRefused(
                f"the marks {highest[0]} and {path} contradict each other: {highest[1]}, {mark}. "
                "A copy from another time was restored in one of these folders. Restore folders "
                "that belong together, or take this bookie out (remove its folders and its cookie) "
                "and have its ledgers re-replicated"
            )
    return highest[1] if highest is not None else None


def _read_copy(disk: Disk, path: str) -> Mark | None:
    file = disk.open(path)
    try:
        return decode_mark(file.pread(_BYTES_MAX, 0))
    except MarkRefused as error:
        raise MarkRefused(f"{path}: {error}") from error
    finally:
        file.close()


def check_journals(mark: Mark | None, folders: Sequence[str]) -> None:
    """Raise `MarkRefused` when the mark belongs to other journals.

    A ledger's journal follows from the number of journals: with another list a start would look in
    the wrong journal. New names in the same order pass: the cookie decides whether a bookie may
    move.
    """
    if mark is None:
        return
    moved_within = any(
        name in folders and list(folders[index : index + 1]) != [name]
        for index, name in enumerate(mark.folders)
    )
    if len(folders) == len(mark.journals) and not moved_within:
        return
    was = ", ".join(mark.folders) if mark.folders else "one folder"
    raise MarkRefused(
        f"this bookie's journals are {', '.join(folders)}, its mark names {was}. The journal "
        "folders cannot be changed once a bookie has begun: each ledger's journal follows "
        "from their number and order. Configure them as they were. To use other folders, set up "
        "another bookie and have this bookie's ledgers re-replicated"
    )


def write_mark(disk: Disk, directories: Sequence[str], mark: Mark) -> None:
    """Write the mark into every folder; durable on return."""
    for directory in directories:
        replace_file(disk, f"{directory}/{NAME}", encode_mark(mark))
