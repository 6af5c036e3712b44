"""Bodies with a Content-Encoding, unpacked in bounded steps and held to their end. Pure.

A body that breaks off in the middle of its encoding is an error and never a shorter message. One
that grows without measure is refused: what is cheap to send must not be dear to receive.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from octavo.broker.http.problems import Problem

ENCODINGS = frozenset(("gzip", "x-gzip", "deflate"))
PIECE_BYTES = 256 * 1024
"""What is unpacked in one step: a millisecond or less."""
GROWTH_MAX = 100
"""Times its packed size; logs and JSON grow by 10 to 40. A few bytes may grow by 1,000 …"""
GROWTH_FREE_BYTES = 1024 * 1024
"""… and up to this size anything may."""
MEMBERS_FREE = 64
"""Of gzip, one behind the other. Tools that pack in parallel make one of 64 kB or more …"""
MEMBER_BYTES_MIN = 1024
"""… so of a longer body each may have this many packed bytes, on average. A member of nothing has
20: 4 MB of them took 11 s to go through."""
_GZIP_BITS = 31
_ZLIB_BITS = 15
_RAW_BITS = -15
_DEFLATE_METHOD = 8


class Inflater:
    """Unpacks one body: `feed` it as it comes, then `finish`. Both raise a `Problem`."""

    def __init__(self, encoding: str) -> None:
        assert encoding in ENCODINGS
        self._encoding = encoding
        self._unpacker: zlib._Decompress | None = None
        self._fed = 0
        self._given = 0
        self._members = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data` unpacks to, in pieces of at most `PIECE_BYTES`."""
        self._fed += len(data)
        while data:
            if self._unpacker is None or self._unpacker.eof:  # gzip: one member may follow another
                if self._unpacker is not None and self._encoding == "deflate":
                    raise self._broken("bytes follow its end")
                self._unpacker = self._new_unpacker(data[0])
                self._members += 1
                most = MEMBERS_FREE + self._fed // MEMBER_BYTES_MIN
                if self._members > most:
                    raise self._broken(f"its first {self._fed} bytes have more than {most} members")
            try:
                piece = self._unpacker.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise self._broken(str(error)) from None
            data = self._unpacker.unused_data or self._unpacker.unconsumed_tail
            self._given += len(piece)
            if self._given > max(GROWTH_FREE_BYTES, GROWTH_MAX * self._fed):
                raise Problem(
                    413,
                    "body-grows-too-much",
                    f"{self._fed} bytes of {self._encoding} have grown to {self._given}; a body "
                    f"may grow {GROWTH_MAX} times, or to {GROWTH_FREE_BYTES} bytes: send it "
                    "unpacked",
                    headers={"Connection": "close"},
                )
            if piece:
                yield piece

    def finish(self) -> None:
        """All of the body was fed. Raises a 400 when its encoding goes on."""
        if self._unpacker is not None and not self._unpacker.eof:
            raise self._broken(f"it breaks off after {self._fed} bytes")

    def _new_unpacker(self, first: int) -> zlib._Decompress:
        if self._encoding != "deflate":
            return zlib.decompressobj(_GZIP_BITS)
        # HTTP's deflate is zlib's format; some send the bare one.
        return zlib.decompressobj(_ZLIB_BITS if first & 15 == _DEFLATE_METHOD else _RAW_BITS)

    def _broken(self, why: str) -> Problem:
        return Problem(
            400,
            "broken-content-encoding",
            f"the body is not {self._encoding} as its Content-Encoding says: {why}",
            headers={"Connection": "close"},
        )
