"""A JSON Schema inferred from messages, and widened by new fields. Pure.

Types never change: a value of another type does not fit. In the first messages alone, integers and
fractions together are `number`, and values of different kinds are `{}` (JSON text).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from octavo.pipeline.json_schema import BadSchema

Schema = dict[str, Any]
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_DEPTH_MAX = 8
"""Objects that are nested deeper are kept as JSON text."""
FIELDS_MAX = 300
"""An object with more fields is a map whose keys are data, kept as JSON text."""
_NULL: Schema = {"type": "null"}


def inferred(values: Iterable[Any]) -> Schema | None:
    """Return the schema of these values; None if none of them is an object with a field."""
    found: Schema | None = None
    for value in values:
        if isinstance(value, dict):
            seen = _of(value, 0)
            found = seen if found is None else _merged(found, seen)
    return found if found is not None and found.get("properties") else None


def widened(schema: Schema, value: Any) -> Schema:
    """Add the fields of `value`. Raises `BadSchema` if two differ only in case, or there are too
    many.
    """
    return _widened(schema, value, "$", 0)


def json_of(value: bytes | None) -> Any:
    try:
        return msgspec.json.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _of(value: Any, depth: int) -> Schema:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return {"type": ["boolean", "null"]}
    if isinstance(value, int):
        good = _LONG_MIN <= value <= _LONG_MAX
        return {"type": ["integer", "null"]} if good else {}
    if isinstance(value, float):
        return {"type": ["number", "null"]}
    if isinstance(value, str):
        return {"type": ["string", "null"]}
    if depth >= _DEPTH_MAX:
        return {}
    if isinstance(value, list):
        items = _NULL
        for one in value:
            items = _merged(items, _of(one, depth + 1))
        return {"type": ["array", "null"], "items": items}
    folded = {name.casefold() for name in value}
    if len(value) > FIELDS_MAX or len(folded) < len(value):
        return {}
    properties = {name: _of(one, depth + 1) for name, one in value.items()}
    return _object(properties, depth)


def _object(properties: Mapping[str, Schema], depth: int) -> Schema:
    kind: Any = ["object", "null"] if depth else "object"
    return {"type": kind, "properties": dict(properties), "additionalProperties": False}


def _kind(schema: Schema) -> str:
    names = schema.get("type", "any")
    return names if isinstance(names, str) else str(names[0])


def _merged(one: Schema, other: Schema) -> Schema:
    kinds = (_kind(one), _kind(other))
    if one == other or kinds[1] == "null":
        return one
    if kinds[0] == "null":
        return other
    if set(kinds) == {"integer", "number"}:
        return {"type": ["number", "null"]}
    if kinds == ("array", "array"):
        return {**one, "items": _merged(one["items"], other["items"])}
    if kinds == ("object", "object"):
        return _both(one, other)
    return {}


def _both(one: Schema, other: Schema) -> Schema:
    properties = dict(one["properties"])
    for name, inner in other["properties"].items():
        properties[name] = _merged(properties[name], inner) if name in properties else inner
    depth = 0 if one["type"] == "object" else 1
    if len(properties) > FIELDS_MAX and depth:
        return {}
    if len({name.casefold() for name in properties}) < len(properties):
        if depth:
            return {}
        folded: dict[str, str] = {}
        for name in properties:
            if (before := folded.setdefault(name.casefold(), name)) != name:
                raise _twins(before, name)
    return _object(properties, depth)


def _twins(one: str, other: str) -> BadSchema:
    return BadSchema(
        f"the fields {one} and {other} differ only in case, which most engines ignore: give the "
        "fields that become columns with --schema FILE"
    )


def _widened(schema: Schema, value: Any, where: str, depth: int) -> Schema:
    kind = _kind(schema)
    if kind == "null":
        return schema if value is None else _of(value, depth)
    if kind == "array" and isinstance(value, list):
        items = schema["items"]
        for one in value:
            items = _widened(items, one, f"{where}[]", depth + 1)
        return schema if items is schema["items"] else {**schema, "items": items}
    if kind != "object" or not isinstance(value, dict):
        return schema
    properties = schema["properties"]
    changed: dict[str, Schema] = {}
    for name, one in value.items():
        if name not in properties:
            changed[name] = _of(one, depth + 1)
        elif (inner := _widened(properties[name], one, f"{where}.{name}", depth + 1)) is not (
            properties[name]
        ):
            changed[name] = inner
    if not changed:
        return schema
    every = {**properties, **changed}
    if len(every) > FIELDS_MAX:
        raise BadSchema(f"{where}: more than {FIELDS_MAX} fields")
    folded = {name.casefold(): name for name in properties}
    for name in changed:
        if (before := folded.setdefault(name.casefold(), name)) != name:
            raise _twins(before, name)
    return {**schema, "properties": every}
