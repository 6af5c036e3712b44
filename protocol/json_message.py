"""Convert the parts of a stored message to JSON and back, byte for byte. Pure.

The rules for all readers (docs/http.md, "What is stored, as JSON"):

- Value: `value_base64` or `value_text`, else the compact form of `value`; null is no value. `value`
  stands alone only if every JSON library repeats it byte for byte. A value that takes long to parse
  is text alone; a long value of mostly control characters is base64, because encoding it blocks a
  broker.
- Key: `key`, text or null for none, or `key_base64`.
- Header: text, null or `{"base64": …}`.

`has_more_parts` estimates, by marks that begin or divide parts, how long reading JSON blocks the
loop: a nanosecond for a character of text, a hundred for an empty list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

_STARTS = frozenset(b'{["-0123456789tf \t\r\n')
"""No `n`: `"value": null` means no value, so a stored `null` is text."""
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 16
"""Beyond 2^53 many languages lose digits. A match inside a string only adds the text."""
_PLAIN_FRACTION = re.compile(r"-?(?!0\.0000)(?=[\d.]{3,16}$)(0|[1-9]\d*)\.\d*[1-9]")
"""Numbers with at most 15 digits and no exponent: every language writes them alike."""
_NESTED_MAX = 100
"""Other readers follow brackets only to some depth."""
_DEEPER = b"[" * 400, b"]" * 400
_OTHERWISE = Raw(b"?")
_COSTS_NS = {b",": 25, b":": 200, b"[": 300, b"{": 300}
"""The decoder's approximate time for the value after such a mark."""
COST_NS_MAX = 20_000_000
"""How long decoding may hold a loop: 100,000 members, or 2 MB of usual JSON."""
FRACTIONS_MAX = 30_000
"""The decoder makes a call for each fraction."""
_FRACTION_BYTES = 3
"""The shortest is `0.5`, or `1e5`."""
CONTROLS_FROM_BYTES = 65_536
"""A shorter value is shown as text, whatever it contains."""
_CONTROLS = bytes(range(32))


class _Costly(ValueError):
    """Deciding whether all libraries write this JSON alike takes too long."""


def _fraction(text: str) -> float | Raw:
    return float(text) if _PLAIN_FRACTION.fullmatch(text) else _OTHERWISE


class _Fractions:
    def __init__(self) -> None:
        self._left = FRACTIONS_MAX

    def read(self, text: str) -> float | Raw:
        self._left -= 1
        if self._left < 0:
            raise _Costly
        return _fraction(text)


_decoder = msgspec.json.Decoder(Any, float_hook=_fraction)
_encode = msgspec.json.Encoder().encode


def _is_costly(stored: bytes) -> bool:
    if len(stored) * max(_COSTS_NS.values()) <= COST_NS_MAX:
        return False
    cost_ns = sum(stored.count(mark) * cost for mark, cost in _COSTS_NS.items())
    return cost_ns > COST_NS_MAX


def _decode(stored: bytes) -> Any:
    if _is_costly(stored):
        raise _Costly
    if len(stored) < FRACTIONS_MAX * _FRACTION_BYTES:
        return _decoder.decode(stored)
    return msgspec.json.Decoder(Any, float_hook=_Fractions().read).decode(stored)


def _is_mostly_controls(stored: bytes) -> bool:
    """Whether JSON text would take six bytes for many of its bytes."""
    size = len(stored)
    return size >= CONTROLS_FROM_BYTES and size - len(stored.translate(None, _CONTROLS)) > size // 4


class Base64(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Bytes that are not text, in a place for text."""

    base64: bytes


HeaderValue = str | Base64 | None
HeadersByName = dict[str, HeaderValue | list[HeaderValue]]
HeaderPairs = list[tuple[str, HeaderValue]]
JsonHeaders = HeadersByName | HeaderPairs
"""Pairs keep the order when a name repeats after another."""


class Shown(NamedTuple):
    value: Raw | UnsetType | None = UNSET
    text: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET


def show_value(stored: bytes | None) -> Shown:
    if stored is None:
        return Shown(None)
    try:
        text = stored.decode()
    except UnicodeDecodeError:
        return Shown(base64=stored)
    if _is_mostly_controls(stored):
        return Shown(base64=stored)
    if not stored or stored[0] not in _STARTS:
        return Shown(text=text)
    try:
        found = _decode(stored)
        if stored.count(b"[") + stored.count(b"{") > _NESTED_MAX:
            msgspec.json.decode(stored.join(_DEEPER), type=Raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return Shown(text=text)
    if found is None:
        return Shown(text=text)
    if _encode(found) == stored and _LONG_NUMBER not in stored.translate(_DIGITS):
        return Shown(Raw(stored))
    line = stored
    if b"\n" in stored or b"\r" in stored:  # a line of NDJSON must stay one line
        line = msgspec.json.format(stored, indent=-1)
    return Shown(Raw(line.strip(b" \t")), text)


def stored_value(
    value: Raw | UnsetType = UNSET,
    text: str | UnsetType | None = UNSET,
    base64: bytes | UnsetType | None = UNSET,
) -> bytes | None:
    if isinstance(base64, bytes):
        return base64
    if isinstance(text, str):
        return text.encode()
    raw = b"null" if value is UNSET else bytes(value)
    return None if raw == b"null" else raw


def show_key(stored: bytes | None) -> tuple[str | UnsetType | None, bytes | UnsetType]:
    try:
        return None if stored is None else stored.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, stored or UNSET


def stored_key(text: str | UnsetType | None, base64: bytes | UnsetType | None) -> bytes | None:
    if isinstance(base64, bytes):
        return base64
    return text.encode() if isinstance(text, str) else None


def show_headers(headers: Sequence[tuple[str, bytes | None]]) -> JsonHeaders:
    found: HeadersByName = {}
    last = None
    for name, value in headers:
        shown = _show_header(value)
        if name not in found:
            found[name] = shown
        elif name != last:
            return [(one, _show_header(content)) for one, content in headers]
        elif isinstance(values := found[name], list):
            values.append(shown)
        else:
            found[name] = [values, shown]
        last = name
    return found


def stored_headers(headers: JsonHeaders) -> list[tuple[str, bytes | None]]:
    pairs: Iterable[tuple[str, HeaderValue]]
    if isinstance(headers, list):
        pairs = headers
    else:
        pairs = (
            (name, value)
            for name, values in headers.items()
            for value in (values if isinstance(values, list) else (values,))
        )
    return [
        (name, value.base64 if isinstance(value, Base64) else _encoded(value))
        for name, value in pairs
    ]


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _show_header(value: bytes | None) -> HeaderValue:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Base64(value)


MESSAGE_PARTS_MAX = 500_000
"""Reading them takes about 25 ms."""
BODY_PARTS_MAX = 300_000
"""Bodies of several messages are first only separated."""
_MARKS = (b",", b"[", b"{")


def has_more_parts(text: bytes, most: int) -> bool:
    """Count commas, opening brackets and opening braces."""
    return len(text) > most and sum(map(text.count, _MARKS)) > most
