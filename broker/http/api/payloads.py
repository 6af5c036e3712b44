"""Messages as JSON, in and out.

In: `{"key", "value" | "value_text" | "value_base64", "headers", "timestamp"}`. The bytes of a JSON
value are stored as written, so no number loses a digit. A message without a value member or with an
unknown field is refused, so that a typo does not become data; a shown message, with `value` and
`value_text`, can be published again.

Out: the members that protocol/json_message.py chooses, from which every stored byte can be
restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, ClassVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from octavo.broker.http.call import parse_duration_ms, parse_time_ms, time_hint
from octavo.broker.http.problems import Problem
from octavo.broker.http.request_body import in_words
from octavo.broker.types import MessageId
from octavo.protocol.due import due_header
from octavo.protocol.json_message import (
    BODY_PARTS_MAX,
    MESSAGE_PARTS_MAX,
    JsonHeaders,
    has_more_parts,
    show_headers,
    show_key,
    show_value,
    stored_headers,
    stored_key,
    stored_value,
)
from octavo.protocol.large import large_body_of
from octavo.protocol.limits import JSON_HEADERS_MAX, TIMESTAMP_MS_MAX
from octavo.protocol.numbers import whole
from octavo.protocol.records import Record

DELAY_MS_MAX = 366 * 24 * 3_600_000
"""A later time is probably in a wrong unit."""


Key = Annotated[str | None, Meta(description="picks the partition")]
Value = Annotated[
    Raw,
    Meta(description="any JSON, stored byte for byte; null is a message without value"),
]
ValueText = Annotated[str | None, Meta(description="text, stored as UTF-8")]
Timestamp = Annotated[
    int | datetime | None,
    Meta(description="milliseconds since the epoch, or RFC 3339; now by default"),
]
DeliverAt = Annotated[
    int | datetime | None,
    Meta(description="shared subscriptions deliver it no earlier: milliseconds, or RFC 3339"),
]
DeliverAfter = Annotated[
    int | float | str | None,
    Meta(description="like deliver_at, from now: seconds, or text with a unit: 500ms, 30s, 2h"),
]
Headers = Annotated[
    JsonHeaders,
    Meta(
        description='text; other bytes as {"base64": …}; a list if a name repeats. '
        "A list of [name, value] if a name repeats after another name"
    ),
]


class MessageIn(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message as a publisher writes it: with one value."""

    value: Value | UnsetType = UNSET
    key: Key = None
    timestamp: Timestamp = None
    headers: Headers | None = None
    value_text: ValueText = None
    value_base64: bytes | None = None
    key_base64: bytes | None = None
    deliver_at: DeliverAt = None
    deliver_after: DeliverAfter = None


class MessagesIn(msgspec.Struct, forbid_unknown_fields=True):
    """A body with several messages."""

    messages: Annotated[list[MessageIn], Meta(extra_json_schema={"minItems": 1})]


class _UnreadMessages(msgspec.Struct, forbid_unknown_fields=True):
    """A body with several messages, not decoded yet."""

    messages: list[Raw]


Stored = Annotated[str, Meta(description="the exact stored text")]
StoredBytes = Annotated[bytes, Meta(description="the stored bytes, if they are not text")]
Shown = Annotated[
    Raw,
    Meta(
        description="JSON; null: no value. Its compact form is stored, unless value_text or "
        "value_base64 is given"
    ),
]


class Large(msgspec.Struct, gc=False):
    """Size and checksum of a large message, in place of its value."""

    size: Annotated[int, Meta(ge=0, description="bytes of its body")]
    crc32c: Annotated[str, Meta(description="of its body, in hex")]


class MessageOut(msgspec.Struct, gc=False):
    """A message for a reader. `timestamp`: milliseconds since the epoch."""

    schema_name: ClassVar = "Message"

    partition: Annotated[int, Meta(ge=0)]
    offset: Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})]
    id: Annotated[str, Meta(pattern="^[0-9]+:[0-9]+:[0-9]+$")]
    timestamp: Annotated[int, Meta(description="milliseconds since the epoch")]
    key: str | UnsetType | None = UNSET
    key_base64: bytes | UnsetType = UNSET
    value: Shown | UnsetType | None = UNSET
    value_text: Stored | UnsetType = UNSET
    value_base64: StoredBytes | UnsetType = UNSET
    headers: Headers | UnsetType = UNSET
    large: (
        Annotated[
            Large,
            Meta(description="for a large message: read its body at …/messages/{offset}/body"),
        ]
        | UnsetType
    ) = UNSET
    ack_id: Annotated[str, Meta(description="if a subscription delivered it")] | UnsetType = UNSET
    delivery_count: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


_line_decoder = msgspec.json.Decoder(MessageIn)
_encoder = msgspec.json.Encoder()
encode = _encoder.encode


def decode_message(text: bytes) -> MessageIn:
    try:
        if has_more_parts(text, MESSAGE_PARTS_MAX):
            raise _invalid(
                f"its JSON has more than {MESSAGE_PARTS_MAX} commas, brackets and braces: send it "
                "as text/plain, which is stored as it is"
            )
        if not text.isascii():
            text.decode()  # the decoder does not check raw values
        return _line_decoder.decode(text)
    except msgspec.ValidationError as error:
        raise Problem(422, "invalid-message", f"{in_words(str(error))}; {_SHAPE}") from None
    except UnicodeDecodeError as error:
        raise Problem(400, "invalid-json", f"not UTF-8: {error.reason} at {error.start}") from None
    except msgspec.DecodeError as error:
        raise Problem(400, "invalid-json", f"not JSON: {error}") from None
    except RecursionError:
        raise Problem(400, "invalid-json", "JSON nested too deeply") from None


_SHAPE = 'a message is {"key", "value" or "value_text" or "value_base64", "headers", "timestamp"}'


def has_several(body: bytes) -> bool:
    start = body[:256].lstrip()[:12]
    return start.startswith(b"{") and start[1:].lstrip().startswith(b'"messages"')


def messages_in(body: bytes) -> Iterator[MessageIn]:
    """Decode each message when it is requested; raise a 400 or 422 with its place."""
    if not has_several(body):
        try:
            yield decode_message(body)
            return
        except Problem as problem:
            if problem.status != 422 or b'"messages"' not in body:
                raise
    yield from _several(body)


def decode_messages(body: bytes) -> list[MessageIn]:
    return list(messages_in(body))


def _several(body: bytes) -> Iterator[MessageIn]:
    if has_more_parts(body, BODY_PARTS_MAX):
        raise Problem(
            413,
            "too-many-messages",
            f"the body has more than {BODY_PARTS_MAX} commas, brackets and braces: send "
            "application/x-ndjson, a message a line, which is read as it comes",
        )
    try:
        body.decode()
        found = msgspec.json.decode(body, type=_UnreadMessages).messages
    except msgspec.ValidationError as error:
        raise Problem(422, "invalid-message", f"{in_words(str(error))}; {_SHAPE}") from None
    except UnicodeDecodeError as error:
        raise Problem(400, "invalid-json", f"not UTF-8: {error.reason} at {error.start}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem(400, "invalid-json", f"the body is not JSON: {error}") from None
    if not found:
        raise Problem(422, "no-messages", "messages is empty: there is nothing to publish")
    for index, text in enumerate(found):
        try:
            yield _line_decoder.decode(text)
        except msgspec.ValidationError as error:
            said = in_words(_within(str(error), f"messages[{index}]"))
            raise Problem(422, "invalid-message", f"{said}; {_SHAPE}") from None
        except RecursionError as error:
            raise Problem(400, "invalid-json", f"the body is not JSON: {error}") from None


def _within(error: str, place: str) -> str:
    """Name `place` in the decoder's error."""
    said, found, path = error.partition(" - at `$")
    return f"{said} - at `$.{place}{path if found else '`'}"


def record_of(message: MessageIn, now_ms: int) -> Record:
    text, data = message.value_text, message.value_base64
    given = message.value is not UNSET or text is not None
    if given and data is not None:
        raise _invalid("it has value_base64 and another value: give one of them")
    if not given and data is None:
        raise _invalid(
            "it has neither value nor value_text nor value_base64; a message without a value is "
            '"value": null'
        )
    value = stored_value(message.value, text, data)
    if message.key is not None and message.key_base64 is not None:
        raise _invalid("it has both key and key_base64: give one of them")
    key = stored_key(message.key, message.key_base64)
    stamp = message.timestamp
    if stamp is None:
        stamp = now_ms
    elif not isinstance(stamp, int):
        stamp = _time_ms(stamp)
    if not 0 <= stamp <= TIMESTAMP_MS_MAX:
        raise _invalid(f"timestamp {stamp} is not in milliseconds from 1970 to 9999")
    headers = stored_headers(message.headers) if message.headers else ()
    if len(headers) > JSON_HEADERS_MAX:
        raise _invalid(f"it has {len(headers)} headers; at most {JSON_HEADERS_MAX}")
    if message.deliver_at is not None or message.deliver_after is not None:
        headers = [*headers, _due_header(message.deliver_at, message.deliver_after, now_ms)]
    return Record(key, value, headers, stamp)


def _due_header(
    at: int | datetime | None, after: int | float | str | None, now_ms: int
) -> tuple[str, bytes]:
    if at is not None and after is not None:
        raise _invalid("it has both deliver_at and deliver_after: give one of them")
    if after is not None:
        if isinstance(after, str):
            after_ms = parse_duration_ms(after)
        else:
            after_ms = int(after * 1000) if 0 <= after < 1e12 else None
        if after_ms is None:
            raise _invalid(
                f"deliver_after is {after!r}; it must be a number of seconds, or text such as "
                "'500ms', '30s' or '2h'"
            )
        due_ms = now_ms + after_ms
    else:
        assert at is not None
        due_ms = at if isinstance(at, int) else _time_ms(at, "deliver_at")
    return _checked_due(due_ms, now_ms)


def _checked_due(due_ms: int, now_ms: int) -> tuple[str, bytes]:
    if due_ms < 0 or due_ms - now_ms > DELAY_MS_MAX:
        raise _invalid(
            f"it is to be delivered at {due_ms} ms, which is {(due_ms - now_ms) // 86_400_000} "
            f"days from now; the most is {DELAY_MS_MAX // 86_400_000} days"
        )
    return due_header(due_ms)


def _time_ms(time: datetime, what: str = "timestamp") -> int:
    if time.tzinfo is None:
        raise _invalid(f"{what} {time.isoformat()} has no time zone: add Z or +hh:mm")
    return int(time.timestamp() * 1000)


def _invalid(what: str) -> Problem:
    return Problem(422, "invalid-message", what)


def raw_record(body: bytes, headers: Mapping[str, str], now_ms: int) -> Record:
    key = headers.get("Octavo-Key")
    stamp = headers.get("Octavo-Timestamp")
    stamp_ms: int | None = now_ms
    if stamp is not None:
        stamp_ms = _millis_of(stamp)
        if stamp_ms is None or not 0 <= stamp_ms <= TIMESTAMP_MS_MAX:
            raise Problem(
                400,
                "invalid-header",
                f"Octavo-Timestamp {stamp[:40]!r} is neither milliseconds since the epoch nor an "
                f"RFC 3339 time{time_hint(stamp)}",
            )
    prefix = "octavo-header-"
    found = [
        (name[len(prefix) :].lower(), _header_bytes(value))
        for name, value in headers.items()
        if name.lower().startswith(prefix)
    ]
    found += _due_of_head(headers, now_ms)
    assert stamp_ms is not None
    return Record(None if key is None else _header_bytes(key), body, found, stamp_ms)


def _millis_of(text: str) -> int | None:
    millis = whole(text, 10**15 - 1)
    return parse_time_ms(text) if millis is None else millis


def _due_of_head(headers: Mapping[str, str], now_ms: int) -> list[tuple[str, bytes]]:
    at, after = headers.get("Octavo-Deliver-At"), headers.get("Octavo-Deliver-After")
    if at is None and after is None:
        return []
    if at is not None and after is not None:
        raise Problem(
            400, "invalid-header", "Octavo-Deliver-At and Octavo-Deliver-After: give one of them"
        )
    if after is not None:
        after_ms = parse_duration_ms(after)
        due_ms = None if after_ms is None else now_ms + after_ms
        wanted = "a time such as 500ms, 30s or 2h"
    else:
        assert at is not None
        due_ms = _millis_of(at)
        wanted = f"milliseconds since the epoch or an RFC 3339 time{time_hint(at)}"
    if due_ms is None:
        name = "Octavo-Deliver-At" if after is None else "Octavo-Deliver-After"
        raise Problem(400, "invalid-header", f"{name} {(at or after or '')[:40]!r} is not {wanted}")
    return [_checked_due(due_ms, now_ms)]


def _header_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def message_out(partition: int, offset: int, message_id: MessageId, record: Record) -> MessageOut:
    found = MessageOut(partition, offset, str(message_id), record.timestamp_ms)
    found.key, found.key_base64 = show_key(record.key)
    found.value, found.value_text, found.value_base64 = show_value(record.value)
    if record.headers:
        found.headers = show_headers(record.headers)
        if not record.value and (body := large_body_of(record.headers)) is not None:
            found.large = Large(body.size, body.crc32c)
    return found
