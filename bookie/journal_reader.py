"""Reads a journal back after a crash: good blocks in order, a torn tail cut, damage refused.

Relies on journal_format.py. Three outcomes and no fourth: a block is good; or the journal ends
there (nothing that follows had been acknowledged); or something acknowledged is lost, and
`JournalDamaged` names file and range. Nothing is ever skipped in silence (BookKeeper #4659: its
journal has no checksum and takes damage for the end).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from bookie.disk import Disk, File
from bookie.journal_format import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    FILE_HEADER_BYTES,
    BlockKind,
    JournalDamaged,
    body_is_good,
    decode_block_header,
    decode_file_header,
    encode_block_header,
    encode_file_header,
    file_id_of,
    file_name,
)
from bookie.mark import NAME as MARK_NAME
from bookie.mark import NOWHERE, Position

_SCAN_BYTES = 4 * 1024 * 1024
_FIRST_FILE = 1


class JournalEnd(NamedTuple):
    """Where a journal file's last good block ends: there its END block stands, or will."""

    file_id: int
    offset: int


class GoodBlock(NamedTuple):
    """A checked group commit."""

    file_id: int
    end: int
    body: bytes


class JournalReader:
    """One pass over the journal files of `directory`, from `mark` on. Blocking calls.

    `mark` is None when there is no readable mark at all.
    """

    def __init__(self, disk: Disk, directory: str, mark: Position | None) -> None:
        self._disk = disk
        self.directory = directory
        self.mark = mark
        self.files = journal_files(disk, directory)
        self.end: JournalEnd | None = None
        """Set after the last block: None when there is no file at all."""

    def is_whole(self) -> bool:
        """Whether the files hold all that no mark vouches for. Raises `JournalDamaged`.

        Not when the mark was lost, and files before it had gone.
        """
        self._files_to_read()
        return self.mark is not None or self.files[:1] == [_FIRST_FILE]

    def begins(self) -> Position:
        """Where the first of `blocks` may stand: the mark, or before all files there are."""
        if self.mark is not None:
            return self.mark
        return Position(self.files[0], 0) if self.files else NOWHERE

    def blocks(self) -> Iterator[GoodBlock]:
        """Every good block after the mark, in order. Raises `JournalDamaged`, `SyncFailed`."""
        for file_id in self._files_to_read():
            path = f"{self.directory}/{file_name(file_id)}"
            last = file_id == self.files[-1]
            file = self._disk.open(path, write=last)
            try:
                if last:
                    file.datasync()  # its writer may have been killed before it could do so
                yield from self._blocks_of(file, file_id, last=last)
            finally:
                file.close()

    def seal(self) -> int:
        """End the last file where it is good, so that a newer one may follow; return its id.

        Only after `blocks` has come to its end. 0 when there is no file. An END block that stands
        there already is written once more: the process before this one may have died between
        writing it and its sync, or in a sync that failed, so that only the page cache has it.
        """
        if self.end is None:
            return 0
        file_id, offset = self.end
        file = self._disk.open(f"{self.directory}/{file_name(file_id)}", write=True)
        try:
            header = encode_file_header(file_id)
            if file.pread(FILE_HEADER_BYTES, 0) != header:
                file.pwritev([header], 0)  # never over a good one: the power may fail now
            seal_file(file, file_id, offset)
        finally:
            file.close()
        return file_id

    def _files_to_read(self) -> list[int]:
        mark = self.mark
        first = mark.file_id if mark is not None else (self.files[0] if self.files else 0)
        wanted = [file_id for file_id in self.files if file_id >= first]
        if mark == NOWHERE:  # marked before its first file was begun
            mark = Position(_FIRST_FILE, 0) if wanted else None
        if mark is not None and (not wanted or wanted[0] != mark.file_id):
            raise JournalDamaged(
                f"journal file {file_name(mark.file_id)} is missing from {self.directory}: the "
                f"mark says that entries from its byte {mark.offset} on are nowhere else. Bring "
                "the file back, or take this bookie out and have its ledgers re-replicated"
            )
        for before, after in pairwise(wanted):
            if after != before + 1:
                unsure = (
                    "" if mark is not None else f" (no readable {MARK_NAME} says if they count)"
                )
                raise JournalDamaged(
                    f"journal files {file_name(before + 1)} to {file_name(after - 1)} are missing "
                    f"from {self.directory}{unsure}. Bring them back, or take this bookie out and "
                    "have its ledgers re-replicated"
                )
        return wanted

    def _blocks_of(self, file: File, file_id: int, *, last: bool) -> Iterator[GoodBlock]:
        self._check_header(file, file_id, last=last)
        size = file.size()
        offset = FILE_HEADER_BYTES
        if self.mark is not None and self.mark.file_id == file_id:
            offset = max(offset, self.mark.offset)
        while True:
            front = file.pread(BLOCK_HEADER_BYTES, offset)
            block = decode_block_header(front, 0, file_id, offset)
            body = b""
            if block is not None:
                body = file.pread(block.body_bytes, offset + BLOCK_HEADER_BYTES)
            if block is None or not body_is_good(block, body):
                self._refuse_if_acknowledged(file, file_id, offset, size, last=last)
                self.end = JournalEnd(file_id, offset)
                return
            if block.kind is BlockKind.END:
                self.end = JournalEnd(file_id, offset)
                return
            offset += BLOCK_HEADER_BYTES + block.body_bytes
            yield GoodBlock(file_id, offset, body)

    def _check_header(self, file: File, file_id: int, *, last: bool) -> None:
        front = file.pread(FILE_HEADER_BYTES, 0)
        if last and not front.strip(b"\0"):
            return  # made, never used: the header is synced before the first block is written
        try:
            _, its_id = decode_file_header(front)
        except JournalDamaged as error:
            raise JournalDamaged(
                f"journal file {file.path}: {error}. It cannot be told what it held: restore it, "
                "or take this bookie out and have its ledgers re-replicated"
            ) from error
        if its_id != file_id:
            raise JournalDamaged(
                f"journal file {file.path} says that it is {file_name(its_id)}: give it its name"
            )

    def _refuse_if_acknowledged(
        self, file: File, file_id: int, bad: int, size: int, *, last: bool
    ) -> None:
        """Whether anything after the bad block proves that it had been acknowledged."""
        good = _later_block(file, file_id, bad, size)
        if good is None and last:
            return
        until = f"byte {good}" if good is not None else "its end"
        follows = "good blocks" if good is not None else "newer journal files"
        raise JournalDamaged(
            f"journal file {file.path} is damaged from byte {bad} to {until}, and {follows} "
            "follow: acknowledged entries are lost. This bookie does not start, for it would "
            "answer 'no such entry' for them. Restore the file, or take this bookie out (remove "
            "its folders and its cookie) and have its ledgers re-replicated"
        )


def _later_block(file: File, file_id: int, bad: int, size: int) -> int | None:
    """Where a block begins that was written after the one at `bad` was durable, if any is left."""
    keep = BLOCK_HEADER_BYTES - 1
    position = bad + 1
    while position < size:
        data = file.pread(_SCAN_BYTES + keep, position)
        found = data.find(BLOCK_MAGIC)
        while found >= 0:
            block = decode_block_header(data, found, file_id, position + found)
            if block is not None and block.synced > bad:
                return position + found
            found = data.find(BLOCK_MAGIC, found + 1)
        if len(data) <= _SCAN_BYTES:
            return None
        position += _SCAN_BYTES
    return None


def seal_file(file: File, file_id: int, offset: int) -> None:
    """Write and sync an END block at `offset`: what follows is no part of the journal."""
    file.pwritev([encode_block_header(BlockKind.END, file_id, offset, offset, ())], offset)
    file.datasync()


def journal_files(disk: Disk, directory: str) -> list[int]:
    """The ids of the journal files in `directory`, ascending."""
    found = map(file_id_of, disk.list_directory(directory))
    return sorted(file_id for file_id in found if file_id is not None)
