"""Frames of the connection between two brokers, and the proof that they come from a broker. Pure.

    length  kind  id   fields of the kind   data        seal
    4       1     4    0 to 13              to 64 KiB   16, where the connection is sealed

    HELLO     version and broker, as msgpack; the first frame of each side
    ASK       size of the request, bytes reserved for its answer, milliseconds left, priority
    MORE      the next piece of a request or an answer
    ANSWER    size of the answer, as does REFUSED
    ENDED     there is no answer: the request was cancelled
    CANCEL    the asking side wants no answer any more
    OFFER     size of an answer that is longer than the room reserved for it
    TAKE      the asking side has reserved room for the offer: send the answer

Each side gives a nonce in the HTTP request or answer that begins the connection. The seals' keys,
one for each direction, are derived from both nonces, both brokers' names and the cluster's secret,
and a seal covers the number of its frame. So a recorded connection is no proof later, and frames
cannot be changed, left out or sent twice unnoticed.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
from typing import NamedTuple

from octavo.broker.errors import BrokerError

VERSION = 5
DATA_BYTES_MAX = 64 * 1024
SEAL_BYTES = 16
_SMALL_BYTES = 8 * 1024
"""BLAKE2 is faster below, SHA-256 above."""
_HEAD = struct.Struct(">IBI")
_ASK = struct.Struct(">IIIB")
_ANSWER = struct.Struct(">I")
_FRAME_BYTES_MAX = _HEAD.size - 4 + _ASK.size + DATA_BYTES_MAX + SEAL_BYTES
_USE = b"octavo operations 1"


class BrokenChannel(BrokerError):
    name = "broken-channel"


class Kind(enum.IntEnum):
    HELLO = 1
    ASK = 2
    MORE = 3
    ANSWER = 4
    REFUSED = 5
    ENDED = 6
    CANCEL = 7
    OFFER = 8
    TAKE = 9


_WITH_SIZE = (Kind.ANSWER, Kind.REFUSED, Kind.OFFER)


class Frame(NamedTuple):
    """Each kind has only some of `size`, `reserve`, `left_ms` and `priority`."""

    kind: Kind
    number: int
    data: bytes | memoryview = b""
    size: int = 0
    reserve: int = 0
    left_ms: int = 0
    priority: int = 0


class Keys(NamedTuple):
    asking: bytes
    answering: bytes


def keys_of(secret: bytes, asking: str, answering: str, nonces: tuple[str, str]) -> Keys:
    fields = "\0".join((asking, answering, *nonces)).encode()  # no field holds a zero byte

    def key(direction: bytes) -> bytes:
        return hmac.digest(secret, _USE + b"\0" + direction + b"\0" + fields, hashlib.sha256)

    return Keys(key(b"asking"), key(b"answering"))


class Seals:
    def __init__(self, key: bytes, *, first_only: bool) -> None:
        self._key = key
        self._first_only = first_only
        self._number = 0
        self._blake = hashlib.blake2b(key=key, digest_size=SEAL_BYTES)

    @property
    def next_bytes(self) -> int:
        return 0 if self._first_only and self._number else SEAL_BYTES

    def next(self, *parts: bytes | memoryview) -> bytes:
        if not self.next_bytes:
            return b""
        number = self._number.to_bytes(8, "big")
        self._number += 1
        if sum(map(len, parts)) <= _SMALL_BYTES:
            small = self._blake.copy()
            small.update(number)
            for part in parts:
                small.update(part)
            return small.digest()
        long = hmac.new(self._key, number, hashlib.sha256)
        for part in parts:
            long.update(part)
        return long.digest()[:SEAL_BYTES]


def encode(frame: Frame, seals: Seals) -> bytes:
    if frame.kind is Kind.ASK:
        fields = _ASK.pack(frame.size, frame.reserve, frame.left_ms, frame.priority)
    elif frame.kind in _WITH_SIZE:
        fields = _ANSWER.pack(frame.size)
    else:
        fields = b""
    length = _HEAD.size - 4 + len(fields) + len(frame.data) + seals.next_bytes
    head = _HEAD.pack(length, frame.kind, frame.number) + fields
    return b"".join((head, frame.data, seals.next(head, frame.data)))


class Receiver:
    def __init__(self, seals: Seals) -> None:
        self._seals = seals
        self._rest = bytearray()
        self._greeted = False

    def describe(self) -> dict[str, int]:
        return {"unread_bytes": len(self._rest)}

    def feed(self, data: bytes) -> list[Frame]:
        rest = self._rest
        rest += data
        frames: list[Frame] = []
        at = 0
        while len(rest) - at >= _HEAD.size:
            length = int.from_bytes(rest[at : at + 4], "big")
            if not _HEAD.size - 4 + self._seals.next_bytes <= length <= _FRAME_BYTES_MAX:
                raise BrokenChannel(
                    f"a frame of {length} bytes came; the longest has {_FRAME_BYTES_MAX}"
                )
            if len(rest) - at < 4 + length:
                break
            frames.append(self._frame(bytes(memoryview(rest)[at : at + 4 + length])))
            at += 4 + length
        del rest[:at]
        return frames

    def _frame(self, whole: bytes) -> Frame:
        view = memoryview(whole)
        if found := self._seals.next_bytes:
            seal, view = bytes(view[-found:]), view[:-found]
            if not hmac.compare_digest(seal, self._seals.next(view)):
                raise BrokenChannel("a frame's seal does not fit: it does not come from a broker")
        else:
            self._seals.next()
        _, kind, number = _HEAD.unpack_from(view)
        body = view[_HEAD.size :]
        if (kind == Kind.HELLO) is self._greeted:
            raise BrokenChannel("the first frame is HELLO, and no other")
        self._greeted = True
        try:
            if kind == Kind.ASK:
                fields, body = _ASK.unpack_from(body), body[_ASK.size :]
                return Frame(Kind.ASK, number, body, *fields)
            if kind in _WITH_SIZE:
                (size,), body = _ANSWER.unpack_from(body), body[_ANSWER.size :]
                return Frame(Kind(kind), number, body, size)
            return Frame(Kind(kind), number, body)
        except (struct.error, ValueError):
            raise BrokenChannel(f"a frame of kind {kind} with {len(body)} bytes came") from None
