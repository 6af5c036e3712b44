"""The words of the Durable Streams protocol: offsets, times to live, cursors, events. Pure.

An offset of a stream is its partition's, sixteen digits behind a part that is always 0 and kept for
later, so that texts sort as offsets do. What cannot be read is None here, and a 400 in the calls
(api/durable_streams.py). The protocol: docs/durable_streams.md.
"""

from __future__ import annotations

import re
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Sequence
from datetime import datetime

import msgspec

from octavo.broker.http.json_parts import MESSAGE_PARTS_MAX, has_more_parts
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
"""Offsets from here on have no text of sixteen digits."""
HIGHEST_NUMBER = 2**53 - 1
"""The highest number that JavaScript counts up to."""
CURSOR_INTERVAL_S = 20
CURSOR_EPOCH_S = 1_728_432_000
"""2024-10-09, as the protocol proposes."""
CURSOR_JITTER_S = 3600

_OFFSET = re.compile(r"0{16}_([0-9]{16})")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_LINE_ENDS = re.compile(rb"\r\n|\r|\n")


def offset_text(offset: int) -> str:
    """An offset as it is told."""
    assert 0 <= offset < FIRST_UNSHOWN
    return f"{0:016d}_{offset:016d}"


def offset_of(text: str) -> int | None:
    """What `offset_text` has made."""
    found = _OFFSET.fullmatch(text)
    return int(found[1]) if found else None


def number_of(text: str) -> int | None:
    """A whole number from 0 to 2⁵³−1, without a sign or a leading 0."""
    return whole(text, HIGHEST_NUMBER)


def time_ms_of(text: str) -> int | None:
    """An RFC 3339 time in milliseconds since 1970."""
    if _TIME.fullmatch(text) is None:
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def source_of(path: str) -> tuple[str, str] | None:
    """Namespace and topic of a stream's path."""
    steps = path.removeprefix(PATH).split("/")
    if not path.startswith(PATH) or len(steps) != 2:
        return None
    return steps[0], steps[1]


def says_true(value: str | None) -> bool:
    """Whether a header says so: every other value is as if it were not there."""
    return value is not None and value.lower() == "true"


def cursor(now_ms: int, given: str | None, jitter_s: int) -> str:
    """The number of this interval of time; behind that of a client who has it already.

    So who asks again asks for another page of a cache. `jitter_s`: 1 to `CURSOR_JITTER_S`, by
    chance.
    """
    number = (now_ms // 1000 - CURSOR_EPOCH_S) // CURSOR_INTERVAL_S
    has = number_of(given) if given is not None else None
    if has is None or has < number:
        return str(number)
    return str(has + max(1, jitter_s // CURSOR_INTERVAL_S))


def etag(stream: str, start: int, end: int, *, closed: bool) -> str:
    """Of what lies between, and whether that is all there will be."""
    return f'"{stream}:{start}:{end}{":c" if closed else ""}"'


def matches(if_none_match: str | None, tag: str) -> bool:
    """Whether the client has just that."""
    if if_none_match is None:
        return False
    asked = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return tag in asked or "*" in asked


ELEMENTS_MAX = 20_000
"""Messages that one append to a stream of JSON brings: they are one batch, made in one turn."""


class TooManyParts(ValueError):
    """A body that is long to read as JSON. The message says what the most is."""


def json_values(body: bytes) -> list[bytes] | None:
    """The messages of a body: the elements of an array, else itself; None when it is no JSON.

    Raises `TooManyParts`.
    """
    if has_more_parts(body, MESSAGE_PARTS_MAX):
        raise TooManyParts(
            f"the body has more than {MESSAGE_PARTS_MAX} commas, brackets and braces"
        )
    try:
        body.decode()
        if body.lstrip()[:1] == b"[":
            found = msgspec.json.decode(body, type=list[msgspec.Raw])
            if len(found) > ELEMENTS_MAX:
                raise TooManyParts(
                    f"the array has {len(found)} elements; the most are {ELEMENTS_MAX}"
                )
            return [bytes(one) for one in found]
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return [body.strip()]


def joined(values: Sequence[bytes], *, is_json: bool) -> bytes:
    """Messages as the body of an answer."""
    return b"[" + b",".join(values) + b"]" if is_json else b"".join(values)


def is_text(content_type: str) -> bool:
    """Whether events carry the data as they are; otherwise in base64.

    Events are UTF-8, so text in another charset goes in base64.
    """
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [part.partition("=")[2].strip() for part in parameters if part[:7] == "charset"]
    if any(one.strip('"') not in ("utf-8", "utf8", "us-ascii") for one in charsets):
        return False
    return kind.startswith("text/") or kind == "application/json"


LOOK_BACK_BYTES = 3
"""An unfinished character of UTF-8 has no more bytes."""


class EventText:
    """The text of a stream for its events, though appends cut it anywhere.

    A character whose bytes are in two appends goes with the second one; of `\r` and `\n` in two
    appends only the first ends a line. What is no UTF-8 is U+FFFD, as a reader would have it.
    """

    def __init__(self, before: bytes = b"") -> None:
        """`before`: the last bytes in front of the first one, `LOOK_BACK_BYTES` are enough."""
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(before)
        self._ended_with_return = before[-1:] == b"\r"

    def feed(self, data: bytes, *, is_last: bool = False) -> bytes:
        """What can be sent now, as UTF-8. `is_last`: nothing follows, ever."""
        text = self._decoder.decode(data, is_last)
        if not text:
            return b""
        found = text[1:] if self._ended_with_return and text[0] == "\n" else text
        self._ended_with_return = text[-1] == "\r"
        return found.encode()


def data_event(data: bytes, content_type: str) -> bytes:
    """An event with these bytes. Whatever ends a line begins another `data:`, so nothing in it can
    pass for an event of its own."""
    if not is_text(content_type):
        return b"event: data\ndata:" + b64encode(data) + b"\n\n"
    lines = _LINE_ENDS.split(data)
    return b"event: data\n" + b"".join(map(_line, lines)) + b"\n"


def _line(text: bytes) -> bytes:
    # Readers take one space behind the colon for none of the data.
    return (b"data: " if text[:1] == b" " else b"data:") + text + b"\n"


def control_event(
    next_offset: int, *, cursor: str, up_to_date: bool = False, closed: bool = False
) -> bytes:
    """What follows each event with data."""
    members: dict[str, str | bool] = {"streamNextOffset": offset_text(next_offset)}
    if not closed:
        members["streamCursor"] = cursor
    if up_to_date:
        members["upToDate"] = True
    if closed:
        members["streamClosed"] = True
    return b"event: control\ndata:" + msgspec.json.encode(members) + b"\n\n"
