"""Encode Python's values as JSON, and refuse values that would be read back differently.

Encoders silently turn NaN into null, and tuples into lists. So each value is encoded, decoded and
compared, in C; only a difference is searched in Python.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import reprlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import msgspec

from octavo.client.errors import NotJson

_DEPTH_MAX = 200
_PLACE_CHARACTERS_MAX = 160


def json_bytes(value: Any, what: str = "value") -> bytes:
    """Encode a value as compact JSON; a `msgspec.Raw` in it is copied unchanged.

    Raises `NotJson`, which names the place in the value: `value['when'][2]`.
    """
    try:
        data = msgspec.json.encode(value, enc_hook=_plain)
    except (TypeError, ValueError, RecursionError, OverflowError):
        raise not_json(value, what) from None
    if _is_same(data, value) or next(_faults(value, what, 0), None) is None:
        return data
    raise not_json(value, what)


def _is_same(data: bytes, value: Any) -> bool:
    try:
        return bool(msgspec.json.decode(data) == value)
    except (ValueError, RecursionError):
        return False


def api_json(value: Any, what: str) -> bytes:
    """Encode the body of a call, in which a tuple may stand for a list. Raises `NotJson`."""
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        raise not_json(value, what) from None


def text_bytes(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise NotJson(f"{what}: {_lone_surrogate(text, error)}") from None


def not_json(value: Any, what: str) -> NotJson:
    place, why = next(_faults(value, what, 0), (what, "JSON cannot hold this value unchanged"))
    if len(place) > _PLACE_CHARACTERS_MAX:
        half = _PLACE_CHARACTERS_MAX // 2
        place = f"{place[:half]} … {place[-half:]}"
    return NotJson(f"{place}: {why}")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, list | dict):
        return [*value] if isinstance(value, list) else {**value}
    raise TypeError(type(value).__name__)


def _faults(value: Any, place: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > _DEPTH_MAX:
        yield place, f"it nests more than {_DEPTH_MAX} deep, or contains itself"
    elif isinstance(value, dict):
        for key, inner in value.items():
            if why := _why_no_name(key):
                yield place, why
            yield from _faults(inner, f"{place}[{reprlib.repr(key)}]", depth + 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _faults(inner, f"{place}[{index}]", depth + 1)
    elif why := _why_no_leaf(value):
        yield place, why


def _why_no_name(key: object) -> str:
    if not isinstance(key, str):
        return (
            f"the key {reprlib.repr(key)} is {_kind(key)}, and keys of JSON are text: "
            f"use {{str(key): …}}, or a list of pairs"
        )
    return _why_no_leaf(key)


def _why_no_leaf(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, str) and (
        not isinstance(value, enum.Enum) or isinstance(value.value, str)
    ):
        return _why_no_text(value)
    if isinstance(value, int):
        return _why_no_number(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return ""
        return f"JSON has no {value}: use None (null), or text"
    if isinstance(value, msgspec.Raw):
        return _why_no_raw(value)
    for kinds, remedy in _REMEDIES:
        if isinstance(value, kinds):
            return f"JSON has no {_kind(value)}: {remedy(value)}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"JSON has no {_kind(value)}: dataclasses.asdict(…) makes a dict of it"
    return f"JSON has no {_kind(value)}: dict, list, str, int, float, bool and None are JSON"


def _why_no_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return _lone_surrogate(text, error)
    return ""


def _lone_surrogate(text: str, error: UnicodeEncodeError) -> str:
    return (
        f"the text has half of a surrogate pair ({text[error.start]!r} at {error.start}), which is "
        "no Unicode: publish bytes, or text.encode(errors='replace').decode()"
    )


def _why_no_number(value: int) -> str:
    try:
        if msgspec.json.decode(msgspec.json.encode(int(value))) == value:
            return ""
    except (ValueError, OverflowError):
        pass
    return "the number has more digits than readers of JSON accept: to keep them all, use text"


def _why_no_raw(value: msgspec.Raw) -> str:
    try:
        msgspec.json.decode(value, type=msgspec.Raw)
    except (ValueError, RecursionError) as error:
        return f"this msgspec.Raw is no JSON: {error}"
    return ""


def _kind(value: object) -> str:
    return type(value).__name__


_Remedy = Callable[[Any], str]
_REMEDIES: tuple[tuple[tuple[type, ...], _Remedy], ...] = (
    ((enum.Enum,), lambda _: "its .value may be JSON"),
    (
        (tuple, Set, range),
        lambda found: (
            "list(…) makes a list of it"
            + (", ._asdict() a dict" if hasattr(found, "_asdict") else "")
            + (", sorted(…) one with an order" if isinstance(found, Set) else "")
        ),
    ),
    (
        (bytes, bytearray, memoryview),
        lambda _: (
            "base64.b64encode(…).decode() is text; a value that is bytes as a whole goes as it is"
        ),
    ),
    (
        (datetime.datetime, datetime.date, datetime.time),
        lambda _: "text, by .isoformat(), or a number of milliseconds",
    ),
    ((datetime.timedelta,), lambda _: ".total_seconds() is a number"),
    ((decimal.Decimal,), lambda _: "str(…) keeps its digits, float(…) is a number"),
    ((uuid.UUID,), lambda _: "str(…) is text"),
    ((msgspec.Struct,), lambda _: "msgspec.to_builtins(…) makes a dict of it"),
    ((Mapping,), lambda _: "dict(…) makes a dict of it"),
)
