"""The texts of the Durable Streams protocol (docs/durable_streams.md): offsets, times, events.
Pure.

A stream's offset is its partition's in sixteen digits, after a reserved part of zeros; texts sort
like offsets.
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
    found = _OFFSET.fullmatch(text)
    return int(found[1]) if found else None


def number_of(text: str) -> int | None:
    return whole(text, HIGHEST_NUMBER)


def time_ms_of(text: str) -> int | None:
    if _TIME.fullmatch(text) is None:
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def source_of(path: str) -> tuple[str, str] | None:
    steps = path.removeprefix(PATH).split("/")
    if not path.startswith(PATH) or len(steps) != 2:
        return None
    return steps[0], steps[1]


def says_true(value: str | None) -> bool:
    return value is not None and value.lower() == "true"


def cursor(now_ms: int, given: str | None, jitter_s: int) -> str:
    """Return this interval's number, or a higher number than the client's.

    A repeated request then gets a different page of a cache. `jitter_s`: random.
    """
    number = (now_ms // 1000 - CURSOR_EPOCH_S) // CURSOR_INTERVAL_S
    has = number_of(given) if given is not None else None
    if has is None or has < number:
        return str(number)
    return str(has + max(1, jitter_s // CURSOR_INTERVAL_S))


def etag(stream: str, start: int, end: int, *, closed: bool) -> str:
    return f'"{stream}:{start}:{end}{":c" if closed else ""}"'


def matches(if_none_match: str | None, tag: str) -> bool:
    if if_none_match is None:
        return False
    asked = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return tag in asked or "*" in asked


def joined(values: Sequence[bytes], *, is_json: bool) -> bytes:
    return b"[" + b",".join(values) + b"]" if is_json else b"".join(values)


def is_text(content_type: str) -> bool:
    """Return whether events carry text; other charsets than UTF-8 go in base64."""
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [part.partition("=")[2].strip() for part in parameters if part[:7] == "charset"]
    if any(one.strip('"') not in ("utf-8", "utf8", "us-ascii") for one in charsets):
        return False
    return kind.startswith("text/") or kind == "application/json"


LOOK_BACK_BYTES = 3


class EventText:
    """Decodes a stream's text for events, although appends may cut it anywhere.

    A character in two appends is sent with the second; of a CR LF in two appends, only the CR ends
    a line. Bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self, before: bytes = b"") -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(before)
        self._ended_with_return = before[-1:] == b"\r"

    def feed(self, data: bytes, *, is_last: bool = False) -> bytes:
        text = self._decoder.decode(data, is_last)
        if not text:
            return b""
        found = text[1:] if self._ended_with_return and text[0] == "\n" else text
        self._ended_with_return = text[-1] == "\r"
        return found.encode()


def data_event(data: bytes, content_type: str) -> bytes:
    """Make an event; each line gets a `data:`, so that data cannot look like an event."""
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
    members: dict[str, str | bool] = {"streamNextOffset": offset_text(next_offset)}
    if not closed:
        members["streamCursor"] = cursor
    if up_to_date:
        members["upToDate"] = True
    if closed:
        members["streamClosed"] = True
    return b"event: control\ndata:" + msgspec.json.encode(members) + b"\n\n"
