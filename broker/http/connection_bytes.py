"""Follow the bytes of a connection: WebSocket frames, and the edges of plain requests. Pure.

`Masks` checks that a client masks its frames (RFC 6455, 5.1), which aiohttp does not: else a page
could choose bytes that a proxy takes for a request. It passes frames on in steps, because aiohttp
handles any number at once: 256 KiB can hold 40,000 pings.

`RequestEdges` finds plain requests for the fast publish path, only in clear cases: one
`Content-Length` or none. The parser gets all bytes in any case.
"""

from __future__ import annotations

import re
from functools import lru_cache

REFUSED_HEAD = b"\xf0\x80"
FRAMES_A_STEP = 100
FRAGMENTS_MAX = 1_000
"""A message has at most 1 MiB, but its fragments may be empty."""
_MASK = 0x80
_OP = 0x0F
_DATA_OP_MAX = 2
_LENGTH_BYTES = {126: 2, 127: 8}


class Masks:
    """Checks that a client masks its frames; after `failed`, `feed` returns no more bytes.

    While `held` is not empty, call `feed` again in a later turn of the loop.
    """

    def __init__(self) -> None:
        self.failed = False
        self.held = b""
        self._fragments = 0
        self._head = b""
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        if self.failed:
            return b""
        data, self._head, self.held = self._head + self.held + data, b"", b""
        frames = 0
        at = min(self._left, len(data))
        self._left -= at
        while at < len(data):
            if frames == FRAMES_A_STEP:
                self.held = data[at:]
                return data[:at]
            size = _head_bytes(data, at)
            if size >= 0 and len(data) - at >= size and not self._counts(data[at]):
                size = -1
            if size < 0:
                self.failed = True
                return data[:at]
            if len(data) - at < size:
                self._head = data[at:]
                return data[:at]
            frames += 1
            payload = _payload_bytes(data, at)
            following = min(at + size + payload, len(data))
            self._left = at + size + payload - following
            at = following
        return data

    def _counts(self, first: int) -> bool:
        if first & _OP <= _DATA_OP_MAX:
            self._fragments = self._fragments + 1 if not first & _OP else 1
        return self._fragments <= FRAGMENTS_MAX


def _head_bytes(data: bytes, at: int) -> int:
    """Return the length of the head; −1 when it has no mask."""
    if len(data) - at < 2:
        return 2
    second = data[at + 1]
    if not second & _MASK:
        return -1
    return 2 + _LENGTH_BYTES.get(second & ~_MASK, 0) + 4


def _payload_bytes(data: bytes, at: int) -> int:
    short = data[at + 1] & ~_MASK
    more = _LENGTH_BYTES.get(short)
    return short if more is None else int.from_bytes(data[at + 2 : at + 2 + more], "big")


HEAD_BYTES_KEPT = 2048
_HEADS_KEPT = 1024
_LOST = -1
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*(?=\r\n)")
_OTHER_FRAMING = re.compile(rb"\r\n(transfer-encoding|upgrade|expect|content-length\s)|^connect ")


class RequestEdges:
    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = 0

    def follow(self, data: bytes) -> bytes:
        """Return the head if `data` is exactly one whole request, else nothing."""
        if self._left:
            if self._left != _LOST:
                self._left = max(self._left - len(data), _LOST)
            return b""
        head_bytes = data.find(b"\r\n\r\n", 0, HEAD_BYTES_KEPT) + 4
        if head_bytes < 4:
            self._left = _LOST
            return b""
        head = data[:head_bytes]
        body_bytes = body_bytes_of(head)
        self._left = max(head_bytes + body_bytes - len(data), _LOST) if body_bytes >= 0 else _LOST
        return b"" if self._left else head


def _body_bytes_of(head: bytes) -> int:
    """Return the body's length; −1 if the head is unclear."""
    lower = head.lower()
    lengths = _LENGTH.findall(lower)
    if len(lengths) > 1 or _OTHER_FRAMING.search(lower):
        return -1
    if lower.count(b"\n") != lower.count(b"\r\n") or lower.count(b"content-length") != len(lengths):
        return -1
    return int(lengths[0]) if lengths else 0


body_bytes_of = lru_cache(_HEADS_KEPT)(_body_bytes_of)
