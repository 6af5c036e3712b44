"""Decompress request bodies, and say in plain words why JSON does not fit. Pure.

Decompression takes bounded steps. A body that breaks off is an error, and a body that grows too
much is refused: it must not be expensive to receive.

The decoder's errors name Python's types; `in_words` says `retention must be an object, not text`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from octavo.broker.http.problems import Problem

ENCODINGS = frozenset(("gzip", "x-gzip", "deflate"))
PIECE_BYTES = 256 * 1024
"""Bytes decompressed in one step: a millisecond or less."""
GROWTH_MAX = 100
"""Growth of a body; logs and JSON grow by 10 to 40. Short bodies may grow by 1,000 …"""
GROWTH_FREE_BYTES = 1024 * 1024
"""… and every body to this size."""
MEMBERS_FREE = 64
"""Any body may have this many gzip members (parallel tools make many) …"""
MEMBER_BYTES_MIN = 1024
"""… and a longer body may have a member for each of this many bytes: 4 MB of empty members took 11
s.
"""
_GZIP_BITS = 31
_ZLIB_BITS = 15
_RAW_BITS = -15
_DEFLATE_METHOD = 8


class Decompressor:
    def __init__(self, encoding: str) -> None:
        assert encoding in ENCODINGS
        self._encoding = encoding
        self._unpacker: zlib._Decompress | None = None
        self._fed = 0
        self._given = 0
        self._members = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
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
        if self._unpacker is not None and not self._unpacker.eof:
            raise self._broken(f"it breaks off after {self._fed} bytes")

    def _new_unpacker(self, first: int) -> zlib._Decompress:
        if self._encoding != "deflate":
            return zlib.decompressobj(_GZIP_BITS)
        # HTTP's deflate is zlib's format, but some clients send raw deflate.
        return zlib.decompressobj(_ZLIB_BITS if first & 15 == _DEFLATE_METHOD else _RAW_BITS)

    def _broken(self, why: str) -> Problem:
        return Problem(
            400,
            "broken-content-encoding",
            f"the body is not {self._encoding} as its Content-Encoding says: {why}",
            headers={"Connection": "close"},
        )


_EXPECTED = re.compile(
    r"Expected `(?P<wanted>[^`]*)`(?P<bound>[^,]*?)(, got `(?P<got>[^`]*)`)?"
    r"( - at `(?P<path>[^`]*)`)?"
)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`( - at `(?P<path>[^`]*)`)?")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`( - at `(?P<path>[^`]*)`)?")
_KINDS = {
    "object": "an object",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
}


def in_words(error: str) -> str:
    if found := _EXPECTED.fullmatch(error):
        wanted = " or ".join(_kind(one) for one in found["wanted"].split(" | "))
        bound = found["bound"].strip().replace("of length", "of a length")
        got = f", not {_kind(found['got'])}" if found["got"] else ""
        return f"{_place(found['path'])} must be {wanted}{' ' + bound if bound else ''}{got}"
    if found := _MISSING.fullmatch(error):
        return f"{_place(found['path'])} lacks `{found['name']}`"
    if found := _UNKNOWN.fullmatch(error):
        return f"{_place(found['path'])} has a field `{found['name']}`, which is not known"
    return error


def _kind(name: str) -> str:
    return _KINDS.get(name, name)


def _place(path: str | None) -> str:
    inner = (path or "").removeprefix("$").removeprefix(".")
    return inner or "the body"
