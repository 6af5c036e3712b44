"""What goes into the client and what comes out: plain typed values."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

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
    return msgspec.json.encode(value)


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
        try:
            return msgspec.json.decode(self.value or b"null")
        except msgspec.DecodeError as error:
            raise ValueError(f"the value is not JSON: {error}") from error


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


class _DeliveryIn(msgspec.Struct, gc=False):
    """A delivery as the API writes it."""

    partition: int
    offset: int
    id: str
    ack_id: str
    timestamp: int = 0
    delivery_count: int = 1
    key: str | None = None
    key_base64: bytes | None = None
    value: msgspec.Raw = msgspec.Raw(b"null")
    value_base64: bytes | None = None
    headers: dict[str, Any] | None = None


class _DeliveriesIn(msgspec.Struct):
    messages: list[_DeliveryIn] = []


_decoder = msgspec.json.Decoder(_DeliveriesIn)


def decode_deliveries(body: bytes) -> list[Delivery]:
    """The deliveries in an answer to `receive`.

    A JSON value comes as the bytes that were published, text as its UTF-8 bytes.
    """
    return [
        Delivery(
            one.partition,
            one.offset,
            one.id,
            one.key.encode() if one.key is not None else one.key_base64,
            one.value_base64 if one.value_base64 is not None else _value_bytes(bytes(one.value)),
            tuple(_headers(one.headers)) if one.headers else (),
            one.timestamp,
            one.ack_id,
            one.delivery_count,
        )
        for one in _decoder.decode(body).messages
    ]


def _value_bytes(raw: bytes) -> bytes | None:
    if raw[:1] == b'"':
        text: str = msgspec.json.decode(raw)
        return text.encode()
    return None if raw == b"null" else raw


def _headers(found: Mapping[str, Any]) -> Iterator[tuple[str, bytes | None]]:
    for name, values in found.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, Mapping):
                yield name, base64.b64decode(value["base64"])
            else:
                yield name, to_bytes(value)
