"""Make request bodies of a producer's messages: a record batch, or NDJSON.

A repeated batch has the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
from msgspec import UNSET

from octavo.client.errors import MessageTooLong
from octavo.client.transport import BATCH_TYPE, NDJSON_TYPE
from octavo.client.types import Value, time_ms, to_bytes
from octavo.protocol.json_message import show_headers, show_key, show_value
from octavo.protocol.limits import (
    JSON_HEADERS_MAX,
    MESSAGE_BYTES_MAX,
    RECORD_HEADERS_MAX,
    json_line_bytes_max,
)
from octavo.protocol.records import RECORD_OVERHEAD_BYTES, Record, build_batch, record_bytes

Headers = Sequence[tuple[str, bytes | None]]
LINE_BYTES_MAX = json_line_bytes_max(MESSAGE_BYTES_MAX)


def _size_of(
    key: bytes | None, value: bytes | None, headers: Headers, headers_max: int = RECORD_HEADERS_MAX
) -> int:
    if len(headers) > headers_max:
        raise MessageTooLong(len(headers), headers_max, "headers")
    size = record_bytes(key, value, headers)
    if size > MESSAGE_BYTES_MAX:
        raise MessageTooLong(size, MESSAGE_BYTES_MAX, "bytes of key, value and headers")
    return size + RECORD_OVERHEAD_BYTES


class Identity(NamedTuple):
    producer_id: int
    epoch: int
    sequence: int


class Body(NamedTuple):
    data: bytes
    headers: dict[str, str]


class Encoding(Protocol):
    @property
    def whole(self) -> bool:
        """Whether a body is stored as one entry, its messages at adjoining offsets."""

    def item(
        self, key: bytes | None, value: Value, headers: Headers, timestamp_ms: int
    ) -> tuple[Record | bytes, int]: ...

    def body(self, items: Sequence[Record | bytes], who: Identity) -> Body: ...


class BatchEncoding:
    whole = True

    def __init__(self, compression: int = 0) -> None:
        self._compression = compression

    def item(
        self, key: bytes | None, value: Value, headers: Headers, timestamp_ms: int
    ) -> tuple[Record | bytes, int]:
        data = value if type(value) is bytes else to_bytes(value)
        return Record(key, data, headers, timestamp_ms), _size_of(key, data, headers)

    def body(self, items: Sequence[Record | bytes], who: Identity) -> Body:
        data = build_batch(
            [item for item in items if isinstance(item, Record)],
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            base_sequence=who.sequence,
            compression=self._compression,
        )
        return Body(data, {"Content-Type": BATCH_TYPE})


class NdjsonEncoding:
    whole = False

    def item(
        self, key: bytes | None, value: Value, headers: Headers, timestamp_ms: int
    ) -> tuple[Record | bytes, int]:
        line: dict[str, object] = {"timestamp": timestamp_ms}
        if key is not None:
            text, base64 = show_key(key)
            line |= {"key": text} if base64 is UNSET else {"key_base64": base64}
        data = to_bytes(value)
        _size_of(key, data, headers, JSON_HEADERS_MAX)
        time_ms(timestamp_ms, first=0)
        shown = show_value(data)
        # The broker stores the JSON as it is written here; other values are sent as bytes.
        alone = shown.text is UNSET and shown.base64 is UNSET
        line |= {"value": shown.value} if alone else {"value_base64": data}
        if headers:
            line["headers"] = show_headers(headers)
        item = msgspec.json.encode(line) + b"\n"
        if len(item) > LINE_BYTES_MAX:
            raise MessageTooLong(len(item), LINE_BYTES_MAX, "bytes as a line of JSON")
        return item, len(item)

    def body(self, items: Sequence[Record | bytes], who: Identity) -> Body:
        headers = {
            "Content-Type": NDJSON_TYPE,
            "Producer-Id": str(who.producer_id),
            "Producer-Epoch": str(who.epoch),
            "Producer-Seq": str(who.sequence),
        }
        return Body(b"".join(item for item in items if isinstance(item, bytes)), headers)
