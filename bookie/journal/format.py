"""The bytes of a journal: file header, blocks, meta records. Pure: no I/O.

    file   := header block* END-block?  (then preallocated space of any content)
    header := "OctvJrnl" version:u32 file_id:u64 crc32c:u32
    block  := "JBLK" kind:u8 zero:3 bytes body_bytes:u32 file_id:u64 offset:u64 synced:u64
              body_crc32c:u32 header_crc32c:u32 body
    body   := frame*                    add frames as they arrived, meta records among them
    meta   := length:u32 header:u32 ledger_id:i64 key:20 [value:i64]   header's version is 0x4A

A block is a group commit. By `offset`, a stale block of a recycled file is not accepted. `synced`
says how far the file was durable before: a damaged block below a later block's `synced` was
acknowledged (corruption), any other was not (a torn tail). Spec: docs/formats/journal.md.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from octavo.bookie.disk.files import number_in, numbered_name
from octavo.protocol.codes import OctavoError, Scope
from octavo.protocol.entry import Buffer

MAGIC = b"OctvJrnl"
VERSION = 1
FILE_HEADER = struct.Struct(">8sIQI")
FILE_HEADER_BYTES = FILE_HEADER.size
BLOCK_MAGIC = b"JBLK"
BLOCK_HEADER = struct.Struct(">4sB3xIQQQII")
BLOCK_HEADER_BYTES = BLOCK_HEADER.size
_CRC = struct.Struct(">I")
META = struct.Struct(">IIq20s")
META_VALUE = struct.Struct(">IIq20sq")
META_VERSION = 0x4A
"""'J' differs from 2, the version of an add frame."""
SUFFIX = ".journal"


class JournalDamaged(OctavoError):
    """Acknowledged data is lost: the bookie must not start as if nothing happened."""

    name = "journal-damaged"
    scope = Scope.PROCESS


class JournalVersionUnknown(JournalDamaged):
    """A newer program wrote the file: nothing is damaged, and nothing may be skipped."""

    name = "journal-version-unknown"


class BlockKind(enum.IntEnum):
    GROUP = 1
    END = 2
    """The file ends here on purpose; the next continues."""


class MetaOp(enum.IntEnum):
    """Changes other than entries that must be as durable as entries."""

    FENCE = 1
    EXPLICIT_LAC = 2
    DELETE = 3


class Block(NamedTuple):
    kind: BlockKind
    body_bytes: int
    file_id: int
    offset: int
    synced: int
    body_crc: int


class Meta(NamedTuple):
    """`value` is −1 if the record has none."""

    op: MetaOp
    ledger_id: int
    key: bytes
    value: int


def file_name(file_id: int) -> str:
    return numbered_name(file_id, SUFFIX)


def file_id_of(name: str) -> int | None:
    return number_in(name, SUFFIX)


def encode_file_header(file_id: int) -> bytes:
    front = FILE_HEADER.pack(MAGIC, VERSION, file_id, 0)[: -_CRC.size]
    return front + _CRC.pack(crc32c(front))


def decode_file_header(data: Buffer) -> tuple[int, int]:
    """Return (version, file id). Raises `JournalDamaged`, without the file's name."""
    if len(data) < FILE_HEADER_BYTES:
        raise JournalDamaged(f"header has {len(data)} bytes of {FILE_HEADER_BYTES}")
    magic, version, file_id, crc = FILE_HEADER.unpack_from(data)
    if magic != MAGIC:
        raise JournalDamaged(f"header begins with {magic!r}, not {MAGIC!r}")
    if crc != crc32c(bytes(data[: FILE_HEADER_BYTES - _CRC.size])):
        raise JournalDamaged("header checksum does not match")
    if version != VERSION:
        raise JournalVersionUnknown(
            f"journal version {version} is unknown; this program reads {VERSION}"
        )
    return version, file_id


def encode_block_header(
    kind: BlockKind, file_id: int, offset: int, synced: int, buffers: Sequence[Buffer]
) -> bytes:
    crc = body_bytes = 0
    for buffer in buffers:
        crc = crc32c(buffer, crc)
        body_bytes += len(buffer)
    front = BLOCK_HEADER.pack(BLOCK_MAGIC, kind, body_bytes, file_id, offset, synced, crc, 0)
    front = front[: -_CRC.size]
    return front + _CRC.pack(crc32c(front))


def decode_block_header(data: Buffer, start: int, file_id: int, offset: int) -> Block | None:
    """Decode a header; None if it is damaged, or written for another place.

    `offset` is where `data[start]` lies in the file. The body is not checked.
    """
    end = start + BLOCK_HEADER_BYTES
    if len(data) < end:
        return None
    magic, kind, length, its_file, its_offset, synced, crc, header_crc = BLOCK_HEADER.unpack_from(
        data, start
    )
    if magic != BLOCK_MAGIC or its_file != file_id or its_offset != offset:
        return None
    if header_crc != crc32c(bytes(data[start : end - _CRC.size])):
        return None
    if kind not in (BlockKind.GROUP, BlockKind.END):
        return None
    return Block(BlockKind(kind), length, its_file, its_offset, synced, crc)


def body_is_good(block: Block, body: Buffer) -> bool:
    return len(body) == block.body_bytes and crc32c(body) == block.body_crc


def encode_meta(op: MetaOp, ledger_id: int, key: bytes, value: int | None = None) -> bytes:
    head = META_VERSION << 24 | op << 16
    if value is None:
        return META.pack(META.size - 4, head, ledger_id, key)
    return META_VALUE.pack(META_VALUE.size - 4, head, ledger_id, key, value)


def decode_meta(body: Buffer, start: int) -> Meta:
    """Decode a meta record. Raises `JournalDamaged`."""
    length, head, ledger_id, key = META.unpack_from(body, start)
    try:
        op = MetaOp(head >> 16 & 0xFF)
    except ValueError as error:
        raise JournalDamaged(f"unknown meta record {head:#010x}") from error
    value = -1
    if length == META_VALUE.size - 4:
        value = META_VALUE.unpack_from(body, start)[4]
    return Meta(op, ledger_id, key, value)
