"""The texts of the Durable Streams protocol: offsets, times to live, cursors, events. Pure.

An offset of a stream is its partition's offset in sixteen digits, after a reserved part that is
always 0; texts sort like offsets. A text that cannot be read is None here, and a 400 in the calls
(api/durable_streams.py). The protocol: docs/durable_streams.md.
"""

from __future__ import annotations

import re
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Sequence
from datetime import datetime

import msgspec

from octavo.protocol.numbers import whole

OFFSET_HEADER = "Stream-Next-Offset"
CLOSED_HEADER = "Stream-Closed"
UP_TO_DATE_HEADER = "Stream-Up-To-Date"
CURSOR_HEADER = "Stream-Cursor"
TTL_HEADER = "Stream-TTL"
EXPIRES_HEADER = "Stream-Expires-At"
SEQ_HEADER = "Stream-Seq"
ENCODING_HEADER = "Stream-SSE-Data-Encoding"
FORKED_FROM_HEADER = "Stream-Forked-From"
FORK_OFFSET_HEADER = "Stream-Fork-Offset"
FORK_SUB_OFFSET_HEADER = "Stream-Fork-Sub-Offset"

PATH = "/v1/durable-streams/"
FIRST_UNSHOWN = 10**16
"""Offsets from here on do not fit into sixteen digits."""
HIGHEST_NUMBER = 2**53 - 1
"""The highest whole number that JavaScript represents exactly."""
CURSOR_INTERVAL_S = 20
CURSOR_EPOCH_S = 1_728_432_000
"""2024-10-09, as the protocol proposes."""
CURSOR_JITTER_S = 3600

_OFFSET = re.compile(r"0{16}_([0-9]{16})")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_LINE_ENDS = re.compile(rb"\r\n|\r|\n")


def offset_text(offset: int) -> str:
    assert 0 <= offset < FIRST_UNSHOWN
    return f"{0:016d}_{offset:016d}"


def offset_of(text: str) -> int | None:
    """Read the text of an offset; None if it is malformed."""
    found = _OFFSET.fullmatch(text)
    return int(found[1]) if found else None


def number_of(text: str) -> int | None:
    """Read a whole number from 0 to 2⁵³−1, without a sign or a leading 0."""
    return whole(text, HIGHEST_NUMBER)


def time_ms_of(text: str) -> int | None:
    """Read an RFC 3339 time, in milliseconds since 1970."""
    if _TIME.fullmatch(text) is None:
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def source_of(path: str) -> tuple[str, str] | None:
    """Return the namespace and topic of a stream's path."""
    steps = path.removeprefix(PATH).split("/")
    if not path.startswith(PATH) or len(steps) != 2:
        return None
    return steps[0], steps[1]


def says_true(value: str | None) -> bool:
    """Whether a header is `true`; any other value counts as absent."""
    return value is not None and value.lower() == "true"


def cursor(now_ms: int, given: str | None, jitter_s: int) -> str:
    """Return the number of this interval of time, or a higher one if the client has it already.

    A client that repeats its request then gets a different page of a cache. `jitter_s`: random,
    from 1 to `CURSOR_JITTER_S`.
    """
    number = (now_ms // 1000 - CURSOR_EPOCH_S) // CURSOR_INTERVAL_S
    has = number_of(given) if given is not None else None
    if has is None or has < number:
        return str(number)
    return str(has + max(1, jitter_s // CURSOR_INTERVAL_S))


def etag(stream: str, start: int, end: int, *, closed: bool) -> str:
    """Return the tag of the messages between two offsets, and of whether the stream ends there."""
    return f'"{stream}:{start}:{end}{":c" if closed else ""}"'


def matches(if_none_match: str | None, tag: str) -> bool:
    """Whether the client's tags include this tag."""
    if if_none_match is None:
        return False
    asked = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return tag in asked or "*" in asked


def joined(values: Sequence[bytes], *, is_json: bool) -> bytes:
    return b"[" + b",".join(values) + b"]" if is_json else b"".join(values)


def is_text(content_type: str) -> bool:
    """Whether events carry the data as text; otherwise in base64.

    Events are UTF-8, so text in another charset goes in base64.
    """
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [part.partition("=")[2].strip() for part in parameters if part[:7] == "charset"]
    if any(one.strip('"') not in ("utf-8", "utf8", "us-ascii") for one in charsets):
        return False
    return kind.startswith("text/") or kind == "application/json"


LOOK_BACK_BYTES = 3
"""An unfinished character of UTF-8 has at most this many bytes."""


class EventText:
    """Decodes the text of a stream for its events, although appends may cut it anywhere.

    A character whose bytes are in two appends is sent with the second. If `\r` and `\n` are in two
    appends, only the first ends a line. Bytes that are not UTF-8 become U+FFFD, as a reader would
    decode them.
    """

    def __init__(self, before: bytes = b"") -> None:
        """`before`: bytes just before the text; `LOOK_BACK_BYTES` of them are enough."""
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(before)
        self._ended_with_return = before[-1:] == b"\r"

    def feed(self, data: bytes, *, is_last: bool = False) -> bytes:
        """Return the text that can be sent now, as UTF-8. `is_last`: nothing follows."""
        text = self._decoder.decode(data, is_last)
        if not text:
            return b""
        found = text[1:] if self._ended_with_return and text[0] == "\n" else text
        self._ended_with_return = text[-1] == "\r"
        return found.encode()


def data_event(data: bytes, content_type: str) -> bytes:
    """Make an event with these bytes.

    Each line of the data gets a separate `data:`, so that data cannot look like another event.
    """
    if not is_text(content_type):
        return b"event: data\ndata:" + b64encode(data) + b"\n\n"
    lines = _LINE_ENDS.split(data)
    return b"event: data\n" + b"".join(map(_line, lines)) + b"\n"


def _line(text: bytes) -> bytes:
    # Readers drop one space after the colon.
    return (b"data: " if text[:1] == b" " else b"data:") + text + b"\n"


def control_event(
    next_offset: int, *, cursor: str, up_to_date: bool = False, closed: bool = False
) -> bytes:
    """Make the control event that follows each data event."""
    members: dict[str, str | bool] = {"streamNextOffset": offset_text(next_offset)}
    if not closed:
        members["streamCursor"] = cursor
    if up_to_date:
        members["upToDate"] = True
    if closed:
        members["streamClosed"] = True
    return b"event: control\ndata:" + msgspec.json.encode(members) + b"\n\n"
