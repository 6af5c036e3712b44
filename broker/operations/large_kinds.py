"""The operations on large messages, whose bodies go between brokers piece by piece. Pure.

To the owner: `BeginUpload` or `BeginLargeCopy`, an `AddPiece` for each piece, then `EndBody`
(bodies.py). From the owner: `OpenBody` returns the first piece of a body, `ReadBody` any other. The
next piece is requested or sent when the last one has been answered, so neither side holds more than
a few pieces, and a slow reader slows the owner down.
"""

from __future__ import annotations

import msgspec

from octavo.broker.types import PartitionName, Published
from octavo.protocol.large import LargeBody

GIVEN_UP = -1


class BeginUpload(msgspec.Struct, frozen=True, array_like=True, tag="upload"):
    """Begin to store a client's large message, whose body follows in pieces."""

    name: PartitionName
    body: str
    """The asking broker's name for the body; it uses no name twice."""
    upload: str
    """The client's name for the message, which is stored once even if it is sent again; or
    empty."""
    head: bytes
    """A record batch with only the message, without its value."""
    access: int | None = None
    """The epoch of exclusive access."""


class BeginLargeCopy(msgspec.Struct, frozen=True, array_like=True, tag="large_copy"):
    """Begin to store a dead letter or a retry of a large message, whose body follows in pieces."""

    name: PartitionName
    body: str
    """As in `BeginUpload`."""
    upload: str
    """The name of the copy: a copy that is stored already is not stored again."""
    head: bytes
    """A record batch with only the message."""


class AddPiece(msgspec.Struct, frozen=True, array_like=True, tag="piece"):
    """Add the next piece of a body; it may be empty."""

    name: PartitionName
    body: str
    number: int
    data: bytes


class EndBody(msgspec.Struct, frozen=True, array_like=True, tag="end_body"):
    """Return when all of a body is stored."""

    name: PartitionName
    body: str
    pieces: int
    """How many pieces the body has; `GIVEN_UP`: store nothing of it."""


class OpenBody(msgspec.Struct, frozen=True, array_like=True, tag="open_body"):
    """Return the size of a message's body, and its first piece."""

    name: PartitionName
    at: str | int | list[int]
    """The place of the message, as in `Read`."""
    size_only: bool = False
    """Return no piece."""


class ReadBody(msgspec.Struct, frozen=True, array_like=True, tag="read_body"):
    """Return another piece of a large message's body."""

    name: PartitionName
    offset: int
    """The offset of the message."""
    piece: int
    """From 1 on."""


class PieceTaken(msgspec.Struct, frozen=True, array_like=True):
    wants_more: bool
    """False: the whole message is stored already."""


class LargeStored(msgspec.Struct, frozen=True, array_like=True):
    """The place of a message that came as an upload."""

    published: Published
    size: int
    """The length of its body."""
    large: LargeBody | None
    """None: the body was stored as the value of the message."""


class BodyStored(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `EndBody`. None: the message is a copy."""

    stored: LargeStored | None


class BodyPiece(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    size: int
    """The length of the whole body."""
    large: LargeBody | None
    """None: the body is the value of the message, and comes as a single piece."""
    data: bytes = b""
    upload: str = ""
    """The upload to which the piece says it belongs; `number`: its number there."""
    number: int = 0


BeginBody = BeginUpload | BeginLargeCopy
BodyOperation = BeginBody | AddPiece | EndBody
"""Operations on a body that comes from another broker piece by piece (bodies.py)."""
LargeRead = OpenBody | ReadBody
