"""Follow a client's WebSocket frames from head to head: each must be masked (RFC 6455, 5.1). Pure.

A page can choose the bytes of a frame. The mask keeps it from choosing the bytes on the wire, which
a proxy on the way might take for a separate request. So a server must fail a connection whose
client does not mask, and aiohttp does not check that.

aiohttp also handles any number of frames at once: a chunk of 256 KiB can hold 40,000 pings. So
frames are passed on in steps, and a message may have a limited number of fragments.
"""

from __future__ import annotations

REFUSED_HEAD = b"\xf0\x80"
"""A frame head that every reader refuses: its reserved bits are set."""
FRAMES_A_STEP = 100
FRAGMENTS_MAX = 1_000
"""Limit of a message's fragments; empty fragments count. A message has at most 1 MiB."""
_MASK = 0x80
_OP = 0x0F
_DATA_OP_MAX = 2
_LENGTH_BYTES = {126: 2, 127: 8}


class Masks:
    """Check that a client's frames are masked. `feed` returns bytes to read; after `failed`, none.

    While `held` is not empty, call `feed` again, without more data, in a later turn of the loop.
    """

    def __init__(self) -> None:
        self.failed = False
        self.held = b""
        """Bytes that follow the frames of this step."""
        self._fragments = 0
        """How many fragments of the current message have come."""
        self._head = b""
        """The part of the next frame's head that has come."""
        self._left = 0
        """Bytes of the current payload that are still missing."""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of a step's masked frames.

        An unmasked frame, a fragment beyond the limit, and all that follows are held back.
        """
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
        """Count the frame with this first byte; False for a fragment beyond the limit."""
        if first & _OP <= _DATA_OP_MAX:
            self._fragments = self._fragments + 1 if not first & _OP else 1
        return self._fragments <= FRAGMENTS_MAX


def _head_bytes(data: bytes, at: int) -> int:
    """Return the length of the head at `at`, as far as known; −1 when it has no mask."""
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
