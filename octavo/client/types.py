"""The client's arguments and results."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from octavo.client.errors import InvalidCall
from octavo.client.json_values import json_bytes, text_bytes
from octavo.protocol.append_time import Times, readable
from octavo.protocol.batch import InvalidBatch, split_batches
from octavo.protocol.entry import Buffer
from octavo.protocol.json_message import JsonHeaders, stored_headers, stored_key, stored_value
from octavo.protocol.large import LargeBody, large_body_of
from octavo.protocol.leased import LEASED_HEADER, Leased
from octavo.protocol.limits import TIMESTAMP_MS_MAX
from octavo.protocol.names import NAME_RULE, is_name
from octavo.protocol.records import not_records

SubscriptionType = Literal["exclusive", "failover", "shared", "key_shared"]

Json = dict[str, Any]
Item = TypeVar("Item")
Value = Any
"""Bytes as they are, text as UTF-8, None (a tombstone), or any JSON value."""


class TopicName(NamedTuple):
    """`namespace/topic`; without a slash the namespace is `public`."""

    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}"

    @classmethod
    def of(cls, text: str) -> TopicName:
        if not isinstance(text, str):
            raise InvalidCall(
                f"a topic's name must be text such as 'orders' or 'sales/orders', not {text!r:.60}"
            )
        parts = text.split("/")
        if len(parts) > 2 or not all(parts):
            raise InvalidCall(f"topic {text!r}: write topic or namespace/topic")
        for part in parts:
            if not is_name(part):
                raise InvalidCall(f"topic {text[:60]!r}: {NAME_RULE}")
        return cls("public", parts[0]) if len(parts) == 1 else cls(*parts)


def to_bytes(value: Value) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return text_bytes(value, "value")
    return json_bytes(value)


Headers = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]
"""A message's headers: by name, or pairs when a name repeats."""


def header_pairs(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return [(_header_name(name), _header_value(name, value)) for name, value in _paired(pairs)]


def _paired(pairs: Iterable[Any]) -> Iterable[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    try:
        for pair in pairs:
            if isinstance(pair, str | bytes):
                raise TypeError
            name, value = pair
            found.append((name, value))
    except (TypeError, ValueError):
        raise InvalidCall(
            f"headers must be a mapping, or pairs of name and value where a name repeats: "
            f"{{'kind': 'order'}} or [('kind', 'order')], not {reprlib.repr(pairs)}"
        ) from None
    return found


def _header_value(name: str, value: object) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return text_bytes(value, f"header {name!r:.60}")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidCall(
        f"header {name!r:.60} is {reprlib.repr(value)}: write text, bytes or None, "
        "for example str(…)"
    )


def _header_name(name: object) -> str:
    if not isinstance(name, str) or not _is_unicode(name):
        raise InvalidCall(f"a header's name must be text, not {name!r:.60}")
    return name


def _is_unicode(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def key_bytes(key: str | bytes | None) -> bytes | None:
    if key is None or type(key) is bytes:
        return key
    if isinstance(key, str):
        return text_bytes(key, "key")
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    raise InvalidCall(f"a key must be bytes or text, not {reprlib.repr(key)}")


def plain_text(given: str, what: str) -> str:
    if not isinstance(given, str):
        raise InvalidCall(f"{what} must be text, not {reprlib.repr(given)}")
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise InvalidCall(f"{what} {given!r:.60} has no UTF-8 form: {error}") from None
    return given


def path_part(text: str, what: str) -> str:
    return quote(plain_text(text, what), safe="")


def listed(given: Iterable[Item], what: str) -> list[Item]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidCall(f"{what} must be a list, not {reprlib.repr(given)}")
    return list(given)


def keyed_values(
    messages: Iterable[tuple[str | bytes | None, Value]],
) -> list[tuple[bytes | None, Value]]:
    found: list[tuple[bytes | None, Value]] = []
    for number, pair in enumerate(listed(messages, "messages"), 1):
        if isinstance(pair, str | bytes) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InvalidCall(
                f"message {number} is {reprlib.repr(pair)}: write (key, value), "
                "with None for no key"
            )
        try:
            found.append((key_bytes(pair[0]), pair[1]))
        except InvalidCall as error:
            raise type(error)(f"message {number}: {error}") from None
    return found


def keyed_messages(
    messages: Iterable[tuple[str | bytes | None, Value]],
) -> list[tuple[bytes | None, bytes | None]]:
    found: list[tuple[bytes | None, bytes | None]] = []
    for number, (key, value) in enumerate(keyed_values(messages), 1):
        try:
            found.append((key, to_bytes(value)))
        except InvalidCall as error:
            raise type(error)(f"message {number}: {error}") from None
    return found


def partition_number(given: int) -> int:
    try:
        found = -1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        found = -1
    if found < 0:
        raise InvalidCall(f"a partition must be a number from 0 on, not {reprlib.repr(given)}")
    return found


def whole_number(given: int, what: str, first: int = 0, last: int | None = None) -> int:
    try:
        found = first - 1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        found = first - 1
    if found < first or (last is not None and found > last):
        most = "on" if last is None else f"to {last}"
        raise InvalidCall(f"{what} must be a whole number from {first} {most}, not {given!r:.60}")
    return found


def amount(given: float, what: str, unit: str = "seconds") -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise InvalidCall(f"{what} must be a number of {unit} from 0 on, not {given!r:.60}")
    return given


def time_ms(given: int, what: str = "timestamp_ms", first: int = -1) -> int:
    try:
        found = operator.index(given)
    except TypeError:
        found = first - 1
    if not first <= found <= TIMESTAMP_MS_MAX:
        raise InvalidCall(
            f"{what} must be milliseconds since 1970 (at most {TIMESTAMP_MS_MAX}), "
            f"not {given!r:.60}"
        )
    return found


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message. `id` is `ledger:entry:index`; times are milliseconds since 1970."""

    partition: int
    offset: int
    id: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0

    @property
    def large(self) -> LargeBody | None:
        """Describe a large message's body, which `AsyncClient.body` reads; else None."""
        return None if self.value else large_body_of(self.headers)

    def text(self) -> str:
        """Return the value as UTF-8 text."""
        return (self.value or b"").decode()

    def json(self) -> Any:
        """Decode the value as JSON; None if there is no value. Raises `ValueError`."""
        try:
            return None if self.value is None else msgspec.json.decode(self.value)
        except msgspec.DecodeError as error:
            raise ValueError(f"the value is not JSON: {error}") from error


class Delivery(Message, frozen=True, gc=False):
    """A message that is leased to a consumer of a subscription."""

    ack_id: str = ""
    delivery_count: int = 1
    topic: str = ""
    """`namespace/topic`, for a consumer of several topics (`AsyncClient.consume`)."""


class Position(NamedTuple):
    """The place of a stored message. `duplicate`: an earlier attempt had stored it.

    `offset` is -1 and `id` empty when the broker no longer knows the place of an old duplicate.
    """

    partition: int
    offset: int
    id: str
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's settings, and its live figures (`stats`, as the API gives them)."""

    name: TopicName
    partitions: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)

    @property
    def incarnation(self) -> str:
        """Distinguishes the topic from earlier and later topics of its name; keep it with
        offsets.
        """
        return str(self.stats.get("incarnation", ""))


def partitions_in(found: Mapping[str, Any]) -> int:
    count = found.get("settings", found).get("partitions", found.get("partitions", 1))
    return len(count) if isinstance(count, list) else int(count)


class _DeliveryIn(msgspec.Struct, gc=False):
    partition: int
    offset: int
    id: str
    ack_id: str = ""
    timestamp: int = 0
    delivery_count: int = 1
    key: str | None = None
    key_base64: bytes | None = None
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    value_text: str | None = None
    value_base64: bytes | None = None
    headers: JsonHeaders | None = None


class _DeliveriesIn(msgspec.Struct):
    messages: list[_DeliveryIn] = []
    held_back: str | None = None


_decoder = msgspec.json.Decoder(_DeliveriesIn)


def decode_deliveries(headers: Mapping[str, str], body: bytes) -> tuple[list[Delivery], str | None]:
    """Decode an answer to `receive`: its deliveries, and why messages are held back, or None.

    Raises `InvalidBatch` (damaged on the way).
    """
    if LEASED_HEADER in headers:
        return _of_batches(Leased.of(headers), body), None
    if not body:
        return [], None
    found = _decoder.decode(body)
    deliveries = [
        Delivery(
            one.partition,
            one.offset,
            one.id,
            stored_key(one.key, one.key_base64),
            stored_value(one.value, one.value_text, one.value_base64),
            tuple(stored_headers(one.headers)) if one.headers else (),
            one.timestamp,
            one.ack_id,
            one.delivery_count,
        )
        for one in found.messages
    ]
    return deliveries, found.held_back


def _of_batches(leased: Leased, body: bytes) -> list[Delivery]:
    partition, lease, runs, entries, append_time = leased
    appended = Times(append_time)
    deliveries: list[Delivery] = []
    for (ledger_id, entry_id), (header, batch) in zip(entries, split_batches(body), strict=True):
        base, behind = header.base_offset, header.next_offset
        spans = [
            (max(start, base) - base, min(end, behind) - base, times)
            for start, end, times in runs
            if start < behind and end > base
        ]
        place = f"{ledger_id}:{entry_id}"
        records = records_of(base, readable(appended.shown(header), batch))
        for start, end, times in spans:
            deliveries += [
                Delivery(
                    partition,
                    base + index,
                    f"{place}:{index}",
                    record.key,
                    record.value,
                    tuple(headers) if (headers := record.headers) else (),
                    record.timestamp,
                    f"{partition}-{base + index}-{lease}",
                    times,
                )
                for index, record in enumerate(records[start:end], start)
            ]
    return deliveries


def records_of(base: int, batch: Buffer) -> list[Any]:
    from octavo.protocol.windows import all_records  # slow to import; some programs only publish

    try:
        return all_records(batch)
    except not_records() as error:
        raise InvalidBatch(f"the batch at offset {base}: {error}") from error
