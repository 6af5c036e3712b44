"""The bytes of an entry log: file header, extents, ledgers map. Pure: no I/O.

    file   := header record* [map footer]
    header := "OctvELog" version:u32 log_id:u64 crc32c:u32
    record := "ERUN" ledger_id:i64 first:i64 count:u32 frames_bytes:u32 frames_crc32c:u32
              header_crc32c:u32 frames
    map    := "EMAP" count:u32 (ledger_id:i64 bytes:u64)*
    footer := map_offset:u64 map_crc32c:u32 "ELogDone"

An extent has a checksum, so that a scrubber need not know the ledger's digest. Only a sealed log
ends with a map. Spec: docs/formats/entry_log.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from crc32c import crc32c

from octavo.bookie.disk.files import number_in, numbered_name
from octavo.protocol.entry import Buffer

MAGIC = b"OctvELog"
VERSION = 1
FILE_HEADER = struct.Struct(">8sIQI")
FILE_HEADER_BYTES = FILE_HEADER.size
RECORD_MAGIC = b"ERUN"
RECORD = struct.Struct(">4sqqIIII")
RECORD_BYTES = RECORD.size
MAP_MAGIC = b"EMAP"
MAP_FRONT = struct.Struct(">4sI")
MAP_ITEM = struct.Struct(">qQ")
FOOTER = struct.Struct(">QI8s")
FOOTER_MAGIC = b"ELogDone"
_CRC = struct.Struct(">I")
SUFFIX = ".log"


class Record(NamedTuple):
    ledger_id: int
    first_entry: int
    entries: int
    frames_bytes: int
    frames_crc: int

    @property
    def last_entry(self) -> int:
        return self.first_entry + self.entries - 1

    @property
    def total_bytes(self) -> int:
        return RECORD_BYTES + self.frames_bytes


class Location(NamedTuple):
    log_id: int
    offset: int
    length: int


class Extent(NamedTuple):
    ledger_id: int
    first_entry: int
    entries: int
    frames: list[bytes]
    frames_bytes: int


def file_name(log_id: int) -> str:
    return numbered_name(log_id, SUFFIX)


def log_id_of(name: str) -> int | None:
    return number_in(name, SUFFIX)


def encode_file_header(log_id: int) -> bytes:
    front = FILE_HEADER.pack(MAGIC, VERSION, log_id, 0)[: -_CRC.size]
    return front + _CRC.pack(crc32c(front))


def decode_file_header(data: Buffer) -> int | str:
    """Return the id, or a text that says what is wrong."""
    if len(data) < FILE_HEADER_BYTES:
        return f"header has {len(data)} bytes of {FILE_HEADER_BYTES}"
    magic, version, log_id, crc = FILE_HEADER.unpack_from(data)
    if magic != MAGIC:
        return f"header begins with {magic!r}, not {MAGIC!r}"
    if crc != crc32c(bytes(data[: FILE_HEADER_BYTES - _CRC.size])):
        return "header checksum does not match"
    if version != VERSION:
        return f"entry log version {version} is unknown; this program reads {VERSION}"
    return int(log_id)


def encode_record(ledger_id: int, first_entry: int, count: int, frames: Sequence[bytes]) -> bytes:
    crc = length = 0
    for part in frames:
        crc = crc32c(part, crc)
        length += len(part)
    front = RECORD.pack(RECORD_MAGIC, ledger_id, first_entry, count, length, crc, 0)[: -_CRC.size]
    return front + _CRC.pack(crc32c(front))


def decode_record(data: Buffer, start: int = 0) -> Record | None:
    """Return None when the header is not good."""
    end = start + RECORD_BYTES
    if len(data) < end:
        return None
    magic, ledger_id, first, count, length, crc, header_crc = RECORD.unpack_from(data, start)
    if magic != RECORD_MAGIC or header_crc != crc32c(bytes(data[start : end - _CRC.size])):
        return None
    return Record(ledger_id, first, count, length, crc)


def encode_map(bytes_of: Mapping[int, int], offset: int) -> bytes:
    parts = [MAP_FRONT.pack(MAP_MAGIC, len(bytes_of))]
    parts += [MAP_ITEM.pack(ledger_id, bytes_of[ledger_id]) for ledger_id in sorted(bytes_of)]
    body = b"".join(parts)
    return body + FOOTER.pack(offset, crc32c(body), FOOTER_MAGIC)


def decode_footer(data: Buffer) -> tuple[int, int] | None:
    """Return (map offset, map checksum); None if the log is not sealed."""
    if len(data) < FOOTER.size:
        return None
    offset, crc, magic = FOOTER.unpack_from(data, len(data) - FOOTER.size)
    return (offset, crc) if magic == FOOTER_MAGIC else None


def decode_map(body: bytes, crc: int) -> dict[int, int] | None:
    """Return bytes by ledger; None if the map is damaged."""
    if len(body) < MAP_FRONT.size or crc32c(body) != crc:
        return None
    magic, count = MAP_FRONT.unpack_from(body)
    if magic != MAP_MAGIC or len(body) != MAP_FRONT.size + count * MAP_ITEM.size:
        return None
    return dict(MAP_ITEM.iter_unpack(body[MAP_FRONT.size :]))
