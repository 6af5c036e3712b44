"""Follow a client's WebSocket frames from head to head: each must be masked (RFC 6455, 5.1). Pure.

A page can choose the bytes of a frame. The mask keeps it from choosing what goes over the wire,
which a proxy on the way might take for a request of its own. So a server fails a connection whose
client does not mask, and aiohttp does not look.
"""

from __future__ import annotations

REFUSED_HEAD = b"\xf0\x80"
"""A head that every reader refuses: its reserved bits are set."""
_MASK = 0x80
_LENGTH_BYTES = {126: 2, 127: 8}


class Masks:
    """`feed` gives what may be read on; after `failed` nothing may."""

    def __init__(self) -> None:
        self.failed = False
        self._head = b""
        """The part of the next frame's head that has come."""
        self._left = 0
        """Bytes of the current payload that are still to come."""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of masked frames; hold back an unmasked one and all that follows."""
        if self.failed:
            return b""
        data, self._head = self._head + data, b""
        at = min(self._left, len(data))
        self._left -= at
        while at < len(data):
            size = _head_bytes(data, at)
            if size < 0:
                self.failed = True
                return data[:at]
            if len(data) - at < size:
                self._head = data[at:]
                return data[:at]
            payload = _payload_bytes(data, at)
            following = min(at + size + payload, len(data))
            self._left = at + size + payload - following
            at = following
        return data


def _head_bytes(data: bytes, at: int) -> int:
    """How long the head at `at` is, as far as that is known; −1 when it has no mask."""
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
