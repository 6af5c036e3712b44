"""One large message in pieces: how it is cut, and how it is put together again. Pure.

    piece 0 · piece 1 · … · piece n-1 · the message

Each is a record of its own, in a batch of its own. A piece has `PIECE_BYTES` of the body, the last
one what is left, no key, and a header `octavo-piece` that says of which upload it is and the how
many-th. The message comes last: key and headers as its publisher gave them, an empty value, and a
header `octavo-large` that says how long the body is, in how many pieces, and its CRC-32C. Which
records are pieces is told by the partition's record, not by these headers (broker/log/
ledger_list.py): they only prove, when the body is read, that it is whole and the right one.
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
"""Of the body in one piece: a reader, and a writer, holds no more of it than a few of these."""


class BodyTooLong(OctavoError):
    """More has come than a message may have."""

    name = "body-too-long"


class BrokenBody(OctavoError):
    """Pieces that are not those of the message, all of them, once, in order."""

    name = "broken-body"


class LargeBody(msgspec.Struct, frozen=True):
    """What the message says of its body. `crc32c` in eight hex digits."""

    size: int
    pieces: int
    crc32c: str
    upload: str
    """Of which upload the pieces are."""

    def header(self) -> tuple[str, bytes]:
        """The header that says it."""
        return LARGE_HEADER, msgspec.json.encode(self)


def large_body_of(headers: Iterable[tuple[str, bytes | None]]) -> LargeBody | None:
    """What the last such header says; None where it is none of ours."""
    text = next((text for name, text in reversed([*headers]) if name == LARGE_HEADER), None)
    try:
        return None if text is None else msgspec.json.decode(text, type=LargeBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def piece_record(upload: str, index: int, data: bytes, timestamp_ms: int) -> Record:
    """The record of one piece."""
    return Record(None, data, [(PIECE_HEADER, f"{upload}:{index}".encode())], timestamp_ms)


class Piece(NamedTuple):
    """One piece as it is read back."""

    upload: str
    number: int
    data: bytes


def piece_of(record: Record) -> Piece:
    """What a record holds of a body. Raises `BrokenBody` when it is no piece."""
    text = next((text for name, text in record.headers if name == PIECE_HEADER), None) or b""
    upload, _, index = text.decode("utf-8", "replace").rpartition(":")
    if not (index.isascii() and index.isdigit() and len(index) < 10) or record.value is None:
        raise BrokenBody("a record among the pieces of a large message is none")
    return Piece(upload, int(index), record.value)


class Cutter:
    """Cuts a body that comes in parts of any length. Holds less than a piece and the last part."""

    def __init__(self, upload: str, bytes_max: int, piece_bytes: int = PIECE_BYTES) -> None:
        self._upload = upload
        self._bytes_max = bytes_max
        self._piece_bytes = piece_bytes
        self._rest = bytearray()
        self._crc = 0
        self.size = 0
        """Bytes that have come."""
        self.pieces = 0
        """That were cut."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces that are whole by now. Raises `BodyTooLong`."""
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
        """The last piece, once all has come; empty when there is none."""
        rest, self._rest = bytes(self._rest), bytearray()
        self.pieces += bool(rest)
        return rest

    def body(self) -> LargeBody:
        """What the message says of it, once its last piece is cut."""
        assert not self._rest
        return LargeBody(self.size, self.pieces, f"{self._crc:08x}", self._upload)


class Assembler:
    """Puts a body together again, and believes nothing. Holds no piece."""

    def __init__(self, body: LargeBody) -> None:
        self._body = body
        self._next = self._size = self._crc = 0

    def take(self, piece: Piece) -> bytes:
        """The bytes that come next. Raises `BrokenBody`."""
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
        """With the last piece, before it is given away: so nobody takes for whole what is not."""
        found = (self._size, f"{self._crc:08x}")
        if found != (self._body.size, self._body.crc32c):
            raise BrokenBody(
                f"its pieces have {found[0]} bytes with checksum {found[1]}, the message says "
                f"{self._body.size} with {self._body.crc32c}"
            )

    @property
    def is_whole(self) -> bool:
        """Whether all of it was taken."""
        return self._next == self._body.pieces
