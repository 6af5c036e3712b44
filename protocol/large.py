"""Cut a large message into pieces, and put it together again. Pure.

    piece 0 · piece 1 · … · piece n-1 · the message

Each is a record in a separate batch. A piece has `PIECE_BYTES` of the body and a header
`octavo-piece`. The message has its publisher's key and headers, an empty value, and a header
`octavo-large` with the body's length, number of pieces and CRC-32C. The headers prove that the body
is complete; the partition's record says which records are pieces (broker/log/ledger_list.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from octavo.protocol.checksum import crc32c
from octavo.protocol.codes import OctavoError
from octavo.protocol.records import Record

LARGE_HEADER = "octavo-large"
PIECE_HEADER = "octavo-piece"
PIECE_BYTES = 1024 * 1024
"""Readers and writers hold only a few pieces."""


class BodyTooLong(OctavoError):
    name = "body-too-long"
    http_status = 413


class BrokenBody(OctavoError):
    """The pieces are not those of the message, complete and in order."""

    name = "broken-body"
    http_status = 503


class LargeBody(msgspec.Struct, frozen=True):
    """`crc32c` has eight hex digits."""

    size: int
    pieces: int
    crc32c: str
    upload: str

    def header(self) -> tuple[str, bytes]:
        return LARGE_HEADER, msgspec.json.encode(self)


def large_body_of(headers: Iterable[tuple[str, bytes | None]]) -> LargeBody | None:
    """Return a large message's description, from the last header that has one."""
    text = next((text for name, text in reversed([*headers]) if name == LARGE_HEADER), None)
    try:
        return None if text is None else msgspec.json.decode(text, type=LargeBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def piece_record(upload: str, index: int, data: bytes, timestamp_ms: int) -> Record:
    return Record(None, data, [(PIECE_HEADER, f"{upload}:{index}".encode())], timestamp_ms)


class Piece(NamedTuple):
    upload: str
    number: int
    data: bytes


def piece_of(record: Record) -> Piece:
    """Decode a piece. Raises `BrokenBody` if the record is not a piece."""
    text = next((text for name, text in record.headers if name == PIECE_HEADER), None) or b""
    upload, _, index = text.decode("utf-8", "replace").rpartition(":")
    if not (index.isascii() and index.isdigit() and len(index) < 10) or record.value is None:
        raise BrokenBody("a record among the pieces of a large message is not a piece")
    return Piece(upload, int(index), record.value)


class Cutter:
    """Holds less than a piece and the last part."""

    def __init__(self, upload: str, bytes_max: int, piece_bytes: int = PIECE_BYTES) -> None:
        self._upload = upload
        self._bytes_max = bytes_max
        self._piece_bytes = piece_bytes
        self._rest = bytearray()
        self._crc = 0
        self.size = 0
        self.pieces = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises `BodyTooLong`."""
        self.size += len(data)
        if self.size > self._bytes_max:
            raise BodyTooLong(f"it has more than {self._bytes_max} bytes")
        self._crc = crc32c(data, self._crc)
        self._rest += data
        while len(self._rest) >= self._piece_bytes:
            piece = bytes(memoryview(self._rest)[: self._piece_bytes])
            del self._rest[: self._piece_bytes]
            self.pieces += 1
            yield piece

    def rest(self) -> bytes:
        """Return the last piece, if any, when all bytes have arrived."""
        rest, self._rest = bytes(self._rest), bytearray()
        self.pieces += bool(rest)
        return rest

    def body(self) -> LargeBody:
        assert not self._rest
        return LargeBody(self.size, self.pieces, f"{self._crc:08x}", self._upload)


class Assembler:
    """Puts a body together and checks everything. Holds no piece."""

    def __init__(self, body: LargeBody) -> None:
        self._body = body
        self._next = self._size = self._crc = 0

    def take(self, piece: Piece) -> bytes:
        """Raises `BrokenBody`."""
        body = self._body
        if piece.upload != body.upload:
            raise BrokenBody(
                f"piece {self._next} is of upload {piece.upload[:60]!r}, not {body.upload[:60]!r}"
            )
        if piece.number != self._next or piece.number >= body.pieces:
            raise BrokenBody(
                f"piece {piece.number} of {body.pieces} stands where piece {self._next} belongs"
            )
        self._next += 1
        self._size += len(piece.data)
        self._crc = crc32c(piece.data, self._crc)
        if self._next == body.pieces:
            self._check_whole()
        return piece.data

    def _check_whole(self) -> None:
        """Check the body before the last piece is returned: a broken body stays incomplete."""
        found = (self._size, f"{self._crc:08x}")
        if found != (self._body.size, self._body.crc32c):
            raise BrokenBody(
                f"its pieces have {found[0]} bytes with checksum {found[1]}, the message says "
                f"{self._body.size} with {self._body.crc32c}"
            )

    @property
    def is_whole(self) -> bool:
        return self._next == self._body.pieces
