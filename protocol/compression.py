"""Decompress within a bound: five megabytes may hide gigabytes.

gzip from the standard library; snappy (plain or in xerial's blocks), lz4 and zstd from `cramjam`,
if installed.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable
from enum import IntEnum

from octavo.protocol.batch import InvalidBatch
from octavo.protocol.codes import KafkaCode, OctavoError
from octavo.protocol.limits import RECORDS_BYTES_MAX

try:
    import cramjam
except ImportError:  # pragma: no cover - it is among the dependencies
    cramjam = None  # type: ignore[assignment]

_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEADER_BYTES = 16
_BLOCK_LENGTH = struct.Struct(">I")
_BLOCKS_MAX = 4_096
"""Writers make blocks of 32 kB. 50,000 empty blocks in 256 kB would stall a loop."""
_GZIP_WINDOW = 31
_LITTLE_BYTES = 1024 * 1024
_DAMAGED: tuple[type[Exception], ...] = (zlib.error, struct.error)
if cramjam is not None:
    _DAMAGED += (cramjam.DecompressionError,)


class Compression(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class UnsupportedCompression(OctavoError):
    """Kafka does not define this compression, or its library is not installed."""

    name = "unsupported-compression"
    http_status = 422
    kafka = KafkaCode.UNSUPPORTED_COMPRESSION_TYPE


def compression_of(number: int) -> Compression:
    """Raises `UnsupportedCompression`."""
    try:
        kind = Compression(number)
    except ValueError:
        known = ", ".join(f"{one.value} ({one.name.lower()})" for one in Compression)
        raise UnsupportedCompression(f"compression {number} is not one of {known}") from None
    if kind > Compression.GZIP and cramjam is None:
        raise UnsupportedCompression(
            f"{kind.name.lower()} compression needs the package cramjam, which is not installed"
        )
    return kind


def unpack(kind: Compression, data: bytes, bytes_max: int = RECORDS_BYTES_MAX) -> bytes:
    """Unpack records. Raises `InvalidBatch` for damage, or more than `bytes_max`."""
    try:
        match kind:
            case Compression.NONE:
                return data
            case Compression.GZIP:
                return _gunzip(data, bytes_max)
            case Compression.SNAPPY:
                return _unsnap(data, bytes_max)
            case Compression.LZ4:
                return _unpack_into(cramjam.lz4.decompress_into, data, bytes_max)
            case Compression.ZSTD:
                return _unpack_into(cramjam.zstd.decompress_into, data, bytes_max)
    except _DAMAGED as error:
        raise InvalidBatch(f"records cannot be unpacked by {kind.name.lower()}: {error}") from error


def _too_long(bytes_max: int) -> InvalidBatch:
    return InvalidBatch(f"records unpack to more than the limit of {bytes_max} bytes")


def _gunzip(data: bytes, bytes_max: int) -> bytes:
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    out = unpacker.decompress(data, bytes_max + 1)
    if len(out) > bytes_max:
        raise _too_long(bytes_max)
    if not unpacker.eof:
        raise InvalidBatch("records packed by gzip end too early")
    return out


def _unsnap(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _unsnap_block(data, bytes_max)
    parts: list[bytes] = []
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        start = position + _BLOCK_LENGTH.size
        position = start + _BLOCK_LENGTH.unpack_from(data, position)[0]
        if position > len(data):
            raise InvalidBatch("records packed by snappy end within a block")
        if len(parts) >= _BLOCKS_MAX:
            raise InvalidBatch(f"records packed by snappy have more than {_BLOCKS_MAX} blocks")
        parts.append(_unsnap_block(data[start:position], bytes_max))
        bytes_max -= len(parts[-1])
    return b"".join(parts)


def _unsnap_block(block: bytes, bytes_max: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > bytes_max:
        raise _too_long(bytes_max)
    return bytes(cramjam.snappy.decompress_raw(block))


def _unpack_into(
    decompress_into: Callable[[bytes, bytearray | mmap.mmap], int], data: bytes, bytes_max: int
) -> bytes:
    """Use a buffer of the maximal length: the formats need not state their length.

    Its unwritten part takes only address space.
    """
    try:
        if bytes_max <= _LITTLE_BYTES:  # fresh pages would cost more than unpacking
            room = bytearray(bytes_max)
            return bytes(memoryview(room)[: decompress_into(data, room)])
        with mmap.mmap(-1, bytes_max) as out:
            return out[: decompress_into(data, out)]
    except cramjam.DecompressionError as error:
        raise InvalidBatch(
            f"records are damaged or unpack to more than {bytes_max} bytes: {error}"
        ) from error
