"""The operations on large messages, whose bodies go between brokers piece by piece. Pure.

To the owner: `BeginUpload` or `BeginLargeCopy`, `AddPiece` for each piece, then `EndBody`. From the
owner: `OpenBody` returns the first piece, `ReadBody` the others. Each piece waits for the answer to
the last, so neither side holds more than a few.
"""

from __future__ import annotations

import msgspec

from octavo.broker.types import PartitionName, Published
from octavo.protocol.large import LargeBody

GIVEN_UP = -1


class BeginUpload(msgspec.Struct, frozen=True, array_like=True, tag="upload"):
    name: PartitionName
    body: str
    upload: str
    """The client's name for the message, which makes a repeat safe; or empty."""
    head: bytes
    access: int | None = None


class BeginLargeCopy(msgspec.Struct, frozen=True, array_like=True, tag="large_copy"):
    name: PartitionName
    body: str
    upload: str
    """The upload's name: of several copies with this name, one is stored."""
    head: bytes


class AddPiece(msgspec.Struct, frozen=True, array_like=True, tag="piece"):
    name: PartitionName
    body: str
    number: int
    data: bytes


class EndBody(msgspec.Struct, frozen=True, array_like=True, tag="end_body"):
    name: PartitionName
    body: str
    pieces: int
    """`GIVEN_UP`: store nothing of the body."""


class OpenBody(msgspec.Struct, frozen=True, array_like=True, tag="open_body"):
    name: PartitionName
    at: str | int | list[int]
    size_only: bool = False


class ReadBody(msgspec.Struct, frozen=True, array_like=True, tag="read_body"):
    name: PartitionName
    offset: int
    piece: int


class PieceTaken(msgspec.Struct, frozen=True, array_like=True):
    wants_more: bool
    """False: the whole message is stored already."""


class LargeStored(msgspec.Struct, frozen=True, array_like=True):
    published: Published
    size: int
    large: LargeBody | None
    """None: the body is stored as the message's value."""


class BodyStored(msgspec.Struct, frozen=True, array_like=True):
    """None: the message is a copy."""

    stored: LargeStored | None


class BodyPiece(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    size: int
    large: LargeBody | None
    data: bytes = b""
    upload: str = ""
    number: int = 0


BeginBody = BeginUpload | BeginLargeCopy
BodyOperation = BeginBody | AddPiece | EndBody
LargeRead = OpenBody | ReadBody
