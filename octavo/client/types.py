"""What goes into the client and what comes out: plain typed values."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from octavo.client.errors import InvalidCall

Json = dict[str, Any]
Value = Any
"""A message value: bytes as they are, text as UTF-8, anything else as compact JSON."""


class TopicName(NamedTuple):
    """`namespace/topic`; without a slash the namespace is `public`. The broker checks the names."""

    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}"

    @classmethod
    def of(cls, text: str) -> TopicName:
        """Raises `InvalidCall` for more than one slash or an empty part."""
        parts = text.split("/")
        if len(parts) > 2 or not all(parts):
            raise InvalidCall(f"topic {text!r}: write topic or namespace/topic")
        return cls("public", parts[0]) if len(parts) == 1 else cls(*parts)


def to_bytes(value: Value) -> bytes | None:
    """The bytes of a message value; None stays None (a tombstone)."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def key_bytes(key: str | bytes | None) -> bytes | None:
    """The bytes of a key."""
    return key.encode() if isinstance(key, str) else key


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was read. `id` is `ledger:entry:index`; times are ms since the epoch."""

    partition: int
    offset: int
    id: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0

    def text(self) -> str:
        """The value as UTF-8 text."""
        return (self.value or b"").decode()

    def json(self) -> Any:
        """The value as JSON. Raises `ValueError` when it is not."""
        return json.loads(self.value or b"null")


@dataclass(frozen=True, slots=True)
class Delivery(Message):
    """A message handed to a consumer of a subscription, until its lease ends."""

    ack_id: str = ""
    delivery_count: int = 1


class Position(NamedTuple):
    """Where a message was stored. `duplicate`: it already was, by an earlier try.

    `offset` is -1 and `id` empty when the broker no longer knows the place of an old duplicate.
    """

    partition: int
    offset: int
    id: str
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's settings, and what the broker says of its life (`stats`, as the API gives it)."""

    name: TopicName
    partitions: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)


def decode_value(found: Mapping[str, Any], name: str = "value") -> bytes | None:
    """The bytes of `name` or `name_base64` in a message that came as JSON.

    Text comes back as its UTF-8 bytes, other JSON as compact JSON.
    """
    encoded = found.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded)
    return to_bytes(found.get(name))


def message_fields(found: Mapping[str, Any], partition: int) -> dict[str, Any]:
    """The fields of `Message` from a message that came as JSON."""
    headers = found.get("headers") or {}
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    stamp = found.get("timestamp_ms", found.get("timestamp", 0))
    return {
        "partition": int(found.get("partition", partition)),
        "offset": int(found["offset"]),
        "id": str(found.get("id", "")),
        "key": decode_value(found, "key"),
        "value": decode_value(found),
        "headers": tuple((str(name), to_bytes(text)) for name, text in pairs),
        "timestamp_ms": int(stamp) if isinstance(stamp, int | float) else 0,
    }
