"""Read a journal back after a crash: good blocks in order, a torn tail cut, damage refused.

A bad block is either the end, and nothing later was acknowledged; or acknowledged data is lost, and
`JournalDamaged` names the range (BookKeeper #4659: a journal without checksums takes damage for the
end). When the operator has accepted losses, each is noted in `lost`, and the good blocks around it
are read.
"""

from __future__ import annotations

import functools
import struct
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from octavo.bookie.adds import AddBatch
from octavo.bookie.disk.damage import REMEDY, DamageKind, Loss
from octavo.bookie.disk.files import Disk, File
from octavo.bookie.journal.format import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    FILE_HEADER_BYTES,
    META_VERSION,
    Block,
    BlockKind,
    JournalDamaged,
    JournalVersionUnknown,
    Meta,
    body_is_good,
    decode_block_header,
    decode_file_header,
    decode_meta,
    encode_block_header,
    encode_file_header,
    file_id_of,
    file_name,
)
from octavo.bookie.journal.mark import NAME as MARK_NAME
from octavo.bookie.journal.mark import NOWHERE, Position
from octavo.protocol.frames import ADD_HEADER, ADD_IDS, LENGTH, PREFIX, Flag

_SCAN_BYTES = 4 * 1024 * 1024
_FIRST_FILE = 1
_ADD = ADD_HEADER >> 16
_RECOVERY = int(Flag.RECOVERY_ADD)
_SAME_BYTES = ADD_IDS.size - 8
"""Everything before the entry id is the same in a whole batch."""


class JournalEnd(NamedTuple):
    """The end of a file's last good block: the place of the END block."""

    file_id: int
    offset: int


class GoodBlock(NamedTuple):
    file_id: int
    end: int
    body: bytes


class JournalReader:
    """Reads the journal files from `mark` on. Blocking.

    `mark` is None when there is no readable mark.
    """

    def __init__(
        self, disk: Disk, directory: str, mark: Position | None, *, accept_loss: bool = False
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.mark = mark
        self._accept_loss = accept_loss
        self.files = journal_files(disk, directory)
        self.end: JournalEnd | None = None
        """Set after the last block; None when there is no file."""
        self.lost: dict[tuple[str, int], Loss] = {}
        """The accepted losses by path and offset; only with `accept_loss`."""

    def is_whole(self) -> bool:
        """Whether the files hold everything that is not before the mark. Raises `JournalDamaged`.

        False when the mark is lost and the first file is gone, or when a loss was accepted.
        """
        self._files_to_read()
        return not self.lost and (self.mark is not None or self.files[:1] == [_FIRST_FILE])

    def begins(self) -> Position:
        if self.mark is not None:
            return self.mark
        return Position(self.files[0], 0) if self.files else NOWHERE

    def survey(self) -> list[Loss]:
        """Find all accepted losses before anything is changed."""
        if self._accept_loss:
            for _ in self.blocks():
                pass
        return list(self.lost.values())

    def prove(self) -> None:
        for _ in self.blocks():
            pass

    def _lose(self, path: str, offset: int, length: int, why: str) -> None:
        """Note a loss if losses are accepted, otherwise raise `JournalDamaged`."""
        if not self._accept_loss:
            raise JournalDamaged(f"{why}. {REMEDY}")
        loss = Loss(DamageKind.JOURNAL, path, offset, length, why)
        self.lost.setdefault((path, offset), loss)

    def blocks(self) -> Iterator[GoodBlock]:
        """Yield every good block after the mark. Raises `JournalDamaged`, `SyncFailed`."""
        for file_id in self._files_to_read():
            path = f"{self.directory}/{file_name(file_id)}"
            last = file_id == self.files[-1]
            file = self._disk.open(path, write=last)
            try:
                if last:
                    file.datasync()  # the previous process may have died between write and sync
                yield from self._blocks_of(file, file_id, last=last)
            finally:
                file.close()

    def seal(self) -> int:
        """End the last file after its last good block; return its id.

        Only after `blocks` has ended. Without a file, return the mark's file id, or 0. An END block
        that is there is written again: it may be only in the page cache.
        """
        if self.end is None:
            return self.mark.file_id if self.mark is not None else 0
        file_id, offset = self.end
        file = self._disk.open(f"{self.directory}/{file_name(file_id)}", write=True)
        try:
            header = encode_file_header(file_id)
            if file.pread(FILE_HEADER_BYTES, 0) != header:
                file.pwritev([header], 0)  # never over a good header: the power may fail now
            seal_file(file, file_id, offset)
        finally:
            file.close()
        return file_id

    def _files_to_read(self) -> list[int]:
        mark = self.mark
        first = mark.file_id if mark is not None else (self.files[0] if self.files else 0)
        wanted = [file_id for file_id in self.files if file_id >= first]
        if mark == NOWHERE:  # the mark was written before the first file was begun
            mark = Position(_FIRST_FILE, 0) if wanted else None
        if mark is not None and (not wanted or wanted[0] != mark.file_id):
            self._lose(
                f"{self.directory}/{file_name(mark.file_id)}",
                mark.offset,
                0,
                f"journal file {file_name(mark.file_id)} is missing from {self.directory}: the "
                f"mark says that entries from its byte {mark.offset} on are nowhere else",
            )
        for before, after in pairwise(wanted):
            if after != before + 1:
                unsure = (
                    "" if mark is not None else f"; without {MARK_NAME} they may hold acked entries"
                )
                self._lose(
                    f"{self.directory}/{file_name(before + 1)}",
                    0,
                    0,
                    f"journal files {file_name(before + 1)} to {file_name(after - 1)} are missing "
                    f"from {self.directory}{unsure}",
                )
        return wanted

    def _blocks_of(self, file: File, file_id: int, *, last: bool) -> Iterator[GoodBlock]:
        self._check_header(file, file_id, last=last)
        size = file.size()
        offset = FILE_HEADER_BYTES
        if self.mark is not None and self.mark.file_id == file_id:
            offset = max(offset, self.mark.offset)
        while True:
            block, body = block_at(file, file_id, offset)
            if block is None or not body_is_good(block, body):
                later = self._pass_over(file, file_id, offset, size, last=last)
                if later is not None:
                    offset = later
                    continue
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
            return  # a new file without blocks: the header is synced before the first block
        try:
            _, its_id = decode_file_header(front)
        except JournalVersionUnknown as error:
            raise JournalVersionUnknown(f"journal file {file.path}: {error}") from error
        except JournalDamaged as error:
            why = f"journal file {file.path}: {error}. What it held is unknown"
            self._lose(file.path, 0, FILE_HEADER_BYTES, why)
            return  # the blocks can still be read: each names its file
        if its_id != file_id:
            raise JournalDamaged(
                f"journal file {file.path} says that it is {file_name(its_id)}: rename it to that"
            )

    def _pass_over(
        self, file: File, file_id: int, bad: int, size: int, *, last: bool
    ) -> int | None:
        """Note the loss of a bad block that was acknowledged, by later blocks or files; return
        where good blocks continue.

        None: the journal's end, or no good block follows in this file. Raises `JournalDamaged`.
        """
        good = _later_block(file, file_id, bad, size)
        if good is None and last:
            return None
        until = f"byte {good}" if good is not None else "its end"
        follows = "good blocks" if good is not None else "newer journal files"
        self._lose(
            file.path,
            bad,
            (good if good is not None else size) - bad,
            f"journal file {file.path} is damaged from byte {bad} to {until}, and {follows} "
            "follow: acknowledged entries are lost",
        )
        return good


def block_at(
    file: File, file_id: int, offset: int, body_bytes_max: int = sys.maxsize
) -> tuple[Block | None, bytes]:
    """Read a block; the header is None when it is damaged.

    The caller checks the body by `body_is_good`. A body longer than `body_bytes_max` is not read.
    """
    block = decode_block_header(file.pread(BLOCK_HEADER_BYTES, offset), 0, file_id, offset)
    if block is None or block.body_bytes > body_bytes_max:
        return block, b""
    return block, file.pread(block.body_bytes, offset + BLOCK_HEADER_BYTES)


def blocks_behind(file: File, file_id: int, start: int, size: int) -> Iterator[Block]:
    """Yield blocks after `start` that have a good header, whatever lies in between."""
    keep = BLOCK_HEADER_BYTES - 1
    position = start + 1
    while position < size:
        data = file.pread(_SCAN_BYTES + keep, position)
        found = data.find(BLOCK_MAGIC)
        while 0 <= found < _SCAN_BYTES:
            block = decode_block_header(data, found, file_id, position + found)
            if block is not None:
                yield block
            found = data.find(BLOCK_MAGIC, found + 1)
        if len(data) <= _SCAN_BYTES:
            return
        position += _SCAN_BYTES


def _later_block(file: File, file_id: int, bad: int, size: int) -> int | None:
    """Return the first block that was written after the bad block was durable."""
    later = blocks_behind(file, file_id, bad, size)
    return next((block.offset for block in later if block.synced > bad), None)


def seal_file(file: File, file_id: int, offset: int) -> None:
    """Write an END block; bytes after it do not belong to the journal."""
    file.pwritev([encode_block_header(BlockKind.END, file_id, offset, offset, ())], offset)
    file.datasync()


def journal_files(disk: Disk, directory: str) -> list[int]:
    found = map(file_id_of, disk.list_directory(directory))
    return sorted(file_id for file_id in found if file_id is not None)


def records_of(body: bytes) -> Iterator[AddBatch | Meta]:
    position, end = 0, len(body)
    while position < end:
        try:
            record, position = _next_record(body, position)
        except struct.error as error:
            raise JournalDamaged(f"a record does not fit into its good block: {error}") from error
        if position > end:
            raise JournalDamaged(f"a record ends {position - end} bytes after its good block")
        yield record


def _next_record(body: bytes, start: int) -> tuple[AddBatch | Meta, int]:
    """Decode a record; also return its end. Raises `JournalDamaged`, `struct.error`."""
    length, head = PREFIX.unpack_from(body, start)
    if head >> 16 == _ADD:
        return _next_batch(body, start)
    if head >> 24 == META_VERSION:
        return decode_meta(body, start), start + LENGTH.size + length
    raise JournalDamaged(f"unknown record {head:#010x} in a block whose checksum is good")


def _next_batch(body: bytes, start: int) -> tuple[AddBatch, int]:
    """Return the longest batch of consecutive adds, and its end."""
    length, head, key, ledger_id, first = ADD_IDS.unpack_from(body, start)
    same_length, end = True, len(body)
    count = _alike(body, start, 4 + length)
    position = start + count * (4 + length)
    offsets = list(range(0, position - start, 4 + length))
    while end - position >= ADD_IDS.size:
        its_length, its_head, its_key, its_ledger, entry_id = ADD_IDS.unpack_from(body, position)
        if (
            its_head != head
            or its_ledger != ledger_id
            or entry_id != first + len(offsets)
            or its_key != key
        ):
            break
        same_length = same_length and its_length == length
        offsets.append(position - start)
        position += 4 + its_length
    frames = body[start:position]
    found = range(0, len(frames), 4 + length) if same_length else offsets
    recovery = bool(head & _RECOVERY)
    return AddBatch(ledger_id, first, len(offsets), key, recovery, frames, found), position


def _alike(body: bytes, start: int, frame_bytes: int) -> int:
    """Count the frames that differ only in ascending entry ids.

    A start after a crash reads many, so this must be fast.
    """
    room = (len(body) - start) // frame_bytes
    if room < 2 or frame_bytes < ADD_IDS.size:
        return 1
    front, first = body[start : start + _SAME_BYTES], 0
    count = 0
    rows = _rows_of(frame_bytes).iter_unpack(memoryview(body)[start : start + room * frame_bytes])
    for its_front, entry_id in rows:
        if its_front != front:
            break
        if count == 0:
            first = entry_id
        elif entry_id != first + count:
            break
        count += 1
    return max(1, count)


@functools.lru_cache(maxsize=64)
def _rows_of(frame_bytes: int) -> struct.Struct:
    return struct.Struct(f">{_SAME_BYTES}sq{frame_bytes - ADD_IDS.size}x")
