"""Messages whose bytes must come back exactly: values that JSON would change, no value, any bytes.

A header has the name of such a message, because values may be anything and may repeat. Readers ask
here for a message's name; a changed byte fails the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from octavo.protocol.records import Record

_NAME = "sim-name"
_TEXTS = (
    b"null", b"", b'"hello"', b"hello", b"1\n", b'{"a": 1}\n', b'{"a": 1}', b'{"a":1}', b" 2",
    b"12345678901234567890123", b"1.0", b"1e5", b'{"a":1,"a":2}', b'"\\u00e9"', b"-0",
    b"\xef\xbb\xbf1", b"[1,\r\n2]", b"\xff\x00", b"NaN", b'"\\ud800"', None,
)  # fmt: skip

Content = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def name_header(name: str) -> tuple[str, bytes | None]:
    return _NAME, name.encode()


class OddValues:
    def __init__(self, fail: Callable[[str], None]) -> None:
        self._sent: dict[str, Content] = {}
        self._fail = fail

    def make(self, rng: random.Random, name: str, key: bytes | None) -> Content:
        value = rng.choice(_TEXTS) if rng.random() < 0.8 else rng.randbytes(rng.randrange(9))
        odd = rng.choice((None, b"", b"\xff", b"x"))
        headers: list[tuple[str, bytes | None]] = [(_NAME, name.encode()), ("h", odd), ("g", b"1")]
        if rng.random() < 0.2:
            headers.append(("h", b"again"))
        self._sent[name] = content = (key, value, tuple(headers))
        return content

    def name_of(self, record: Record, who: str) -> str:
        """Return a message's name; for an ordinary message, its value."""
        for header, name in record.headers:
            if header == _NAME and name is not None:
                self.look(name.decode(), (record.key, record.value, tuple(record.headers)), who)
                return name.decode()
        try:
            return (record.value or b"").decode()
        except UnicodeDecodeError:
            return repr(record.value)

    def look(self, name: str, found: Content, who: str) -> None:
        sent = self._sent.get(name)
        if sent is not None and sent != found:
            self._fail(f"X11 {name!r} was sent as {sent}, and {who} was given {found}")
