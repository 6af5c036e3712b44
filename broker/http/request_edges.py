"""Find where plain requests begin and end in the bytes of a connection. Pure.

This is read from the head alone, and only in clear cases: one `Content-Length` or none, and no
other framing. After an unclear request, a connection is not followed any further. The parser gets
all bytes in either case, and decides what they are.
"""

from __future__ import annotations

import re
from functools import lru_cache

HEAD_BYTES_KEPT = 2048
"""A longer head is unlikely to be repeated, so it is not kept."""
_HEADS_KEPT = 1024
_LOST = -1
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*(?=\r\n)")
_OTHER_FRAMING = re.compile(rb"\r\n(transfer-encoding|upgrade|expect|content-length\s)|^connect ")


class RequestEdges:
    """Follow the requests of a connection; `follow` gets all its bytes, in order."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = 0
        """Bytes of the present request that are still missing."""

    def follow(self, data: bytes) -> bytes:
        """Return the head if `data` is exactly one whole request; else empty bytes."""
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
    """Return the body's length by this head, which ends in an empty line; −1 if it is unclear."""
    lower = head.lower()
    lengths = _LENGTH.findall(lower)
    if len(lengths) > 1 or _OTHER_FRAMING.search(lower):
        return -1
    if lower.count(b"\n") != lower.count(b"\r\n") or lower.count(b"content-length") != len(lengths):
        return -1
    return int(lengths[0]) if lengths else 0


body_bytes_of = lru_cache(_HEADS_KEPT)(_body_bytes_of)
