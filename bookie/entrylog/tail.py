"""The end of an entry log's file: its ledgers map and footer, or nothing but reserved space."""

from __future__ import annotations

from crc32c import crc32c

from octavo.bookie.disk.files import File
from octavo.bookie.entrylog.format import (
    FOOTER,
    MAP_FRONT,
    MAP_ITEM,
    MAP_MAGIC,
    decode_footer,
    encode_map,
)
from octavo.bookie.entrylog.handle import LogHandle

_BLANK_BYTES = 1024 * 1024


def write_tail(file: File, bytes_of: dict[int, int], end: int) -> None:
    """Put map and footer at `end`, cut what follows, sync."""
    tail = encode_map(bytes_of, end)
    file.preallocate(end + len(tail))
    file.pwritev([tail], end)
    file.truncate(end + len(tail))
    file.datasync()


def ends_at(file: File | LogHandle, offset: int) -> bool:
    """Whether a good map and footer stand at `offset`, whatever the file's length."""
    front = file.pread(MAP_FRONT.size, offset)
    if len(front) < MAP_FRONT.size:
        return False
    magic, count = MAP_FRONT.unpack(front)
    if magic != MAP_MAGIC or count * MAP_ITEM.size > file.size():
        return False
    body_bytes = MAP_FRONT.size + count * MAP_ITEM.size
    tail = file.pread(body_bytes + FOOTER.size, offset)
    footer = decode_footer(tail)
    return footer is not None and footer[0] == offset and footer[1] == crc32c(tail[:body_bytes])


def is_blank(file: File, offset: int) -> bool:
    """Whether there is nothing but zeros from `offset` on."""
    while data := file.pread(_BLANK_BYTES, offset):
        if data.strip(b"\0"):
            return False
        offset += len(data)
    return True
