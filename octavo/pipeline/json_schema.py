"""A JSON Schema as typed columns: check a message's value and turn it into a row.

Any keyword that does not fit a table is refused. Values are checked strictly: "7" is no integer.

    string            string; format date-time: timestamp, date: date
    integer, number   long, double
    boolean           boolean
    object            struct of its properties; one that is not required may be absent: null
    array             array
    ["T", "null"]     the same as T, and null
    {}                any value, as its JSON text
    null              no column: always null
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pyarrow as pa

from octavo.protocol.codes import OctavoError

_NOTES = {
    *("$schema", "$id", "$comment", "title", "description", "default", "examples"),
    *("deprecated", "readOnly", "writeOnly"),
}
"""Keywords without influence on what is valid."""
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_LIMITS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
}
_DEPTH_MAX = 32


class BadSchema(OctavoError):
    name = "bad-schema"


class Kind(NamedTuple):
    checked: Any
    column: pa.DataType | None
    """None: the value is always null or empty, so that it has no type yet."""


Decode = Callable[[bytes | None], tuple[dict[str, Any] | None, str | None]]
"""Turns a value into (row, None), or into (None, the error)."""


def columns_of(schema: Mapping[str, Any]) -> pa.StructType:
    if schema.get("type") != "object" or not schema.get("properties"):
        raise BadSchema('a message schema must be {"type": "object", "properties": {…}}')
    column = kind_of(schema).column
    if column is None:
        raise BadSchema("no property of the message schema has a type that becomes a column")
    return column


def kind_of(schema: Mapping[str, Any]) -> Kind:
    return _kind(schema, "$", 0)


@functools.lru_cache(maxsize=8)
def decoder_of(schema_json: str) -> Decode:
    decoder = msgspec.json.Decoder(kind_of(json.loads(schema_json)).checked)

    def decode(value: bytes | None) -> tuple[dict[str, Any] | None, str | None]:
        if value is None:
            return None, "there is no value (a tombstone)"
        try:
            return plain(decoder.decode(value)), None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return None, str(error)

    return decode


def plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {name: plain(getattr(value, held)) for name, held in names}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return text_of(value) if isinstance(value, msgspec.Raw) else value


def text_of(value: msgspec.Raw) -> str | None:
    text = bytes(value)
    return None if text == b"null" else text.decode("utf-8", "backslashreplace")


def _kind(schema: Any, where: str, depth: int) -> Kind:
    if not isinstance(schema, Mapping):
        raise BadSchema(f"{where}: a schema is a JSON object, got {schema!r:.60}")
    if depth > _DEPTH_MAX:
        raise BadSchema(f"{where}: nested deeper than {_DEPTH_MAX}")
    if not schema:
        return Kind(msgspec.Raw, pa.string())
    names = schema.get("type")
    if names == "null":
        return Kind(None, None)
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, list) or not listed or len(set(listed) - {"null"}) != 1:
        raise BadSchema(
            f'{where}: "type" must be {", ".join(_KINDS)}, or a list of a type and "null"; '
            f"got {names!r:.60}"
        )
    (name,) = set(listed) - {"null"}
    if name not in _KINDS:
        raise BadSchema(f"{where}: unknown type {name!r}; the types are {', '.join(_KINDS)}")
    make, keywords = _KINDS[name]
    strange = sorted(set(schema) - _NOTES - {"type"} - set(keywords))
    if strange:
        raise BadSchema(
            f"{where}: keyword {', '.join(strange)} is not supported for type {name}; "
            f"supported are {', '.join(keywords) or 'none'}"
        )
    try:
        checked, column = make(schema, where, depth)
    except (TypeError, ValueError) as error:  # such as a bound that is not a number
        raise BadSchema(f"{where}: {error}") from error
    return Kind(checked | None if "null" in listed else checked, column)


def _string(schema: Mapping[str, Any], where: str, _: int) -> Kind:
    form = schema.get("format")
    if form in ("date-time", "date"):
        other = sorted(set(schema) & {"minLength", "maxLength", "pattern", "enum"})
        if other:
            raise BadSchema(f"{where}: {', '.join(other)} cannot be used with format {form}")
        if form == "date":
            return Kind(datetime.date, pa.date32())
        return Kind(
            Annotated[datetime.datetime, msgspec.Meta(tz=True)], pa.timestamp("us", tz="UTC")
        )
    if form is not None:
        raise BadSchema(f"{where}: unknown format {form!r}; supported are date-time and date")
    if "enum" in schema:
        return Kind(_one_of(schema["enum"], str, where), pa.string())
    pattern = schema.get("pattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadSchema(f"{where}: pattern {pattern!r}: {error}") from error
    meta = msgspec.Meta(
        min_length=schema.get("minLength"), max_length=schema.get("maxLength"), pattern=pattern
    )
    return Kind(Annotated[str, meta], pa.string())


def _integer(schema: Mapping[str, Any], where: str, _: int) -> Kind:
    if "enum" in schema:
        return Kind(_one_of(schema["enum"], int, where), pa.int64())
    limits = {ours: schema[name] for name, ours in _LIMITS.items() if name in schema}
    if not limits.keys() & {"ge", "gt"}:
        limits["ge"] = _LONG_MIN
    if not limits.keys() & {"le", "lt"}:
        limits["le"] = _LONG_MAX
    return Kind(Annotated[int, msgspec.Meta(**limits)], pa.int64())


def _number(schema: Mapping[str, Any], _: str, __: int) -> Kind:
    limits = {ours: schema[name] for name, ours in _LIMITS.items() if name in schema}
    return Kind(Annotated[float, msgspec.Meta(**limits)] if limits else float, pa.float64())


def _boolean(_: Mapping[str, Any], __: str, ___: int) -> Kind:
    return Kind(bool, pa.bool_())


def _array(schema: Mapping[str, Any], where: str, depth: int) -> Kind:
    inner = _kind(schema.get("items"), f"{where}[]", depth + 1)
    meta = msgspec.Meta(min_length=schema.get("minItems"), max_length=schema.get("maxItems"))
    column = None if inner.column is None else pa.list_(inner.column)
    return Kind(Annotated[list[inner.checked], meta], column)  # type: ignore[name-defined]


def _object(schema: Mapping[str, Any], where: str, depth: int) -> Kind:
    properties: Any = schema.get("properties")
    more = schema.get("additionalProperties", True)
    is_empty = properties == {} and more is False
    if not (is_empty or (isinstance(properties, Mapping) and properties)):
        raise BadSchema(f"{where}: an object needs properties, which become its columns")
    required = schema.get("required", [])
    unknown = [name for name in required if name not in properties]
    if unknown:
        raise BadSchema(f"{where}: required names {', '.join(unknown)}, which is not a property")
    folded = [name.lower() for name in properties]
    if len(set(folded)) < len(folded):
        raise BadSchema(f"{where}: two properties differ only in case, which Spark ignores")
    if not isinstance(more, bool):
        raise BadSchema(f"{where}: additionalProperties must be true or false")
    fields: list[Any] = []
    columns = []
    held = {name: f"f{number}" for number, name in enumerate(properties)}
    for name, inner in properties.items():
        checked, column = _kind(inner, f"{where}.{name}", depth + 1)
        if name in required:
            fields.append((held[name], checked))
        else:
            # msgspec does not check defaults: an absent value is None, and null is still refused.
            fields.append((held[name], checked, None))
        if column is not None:
            columns.append(pa.field(name, column))
    made = msgspec.defstruct(
        "Row",
        fields,
        rename={ours: name for name, ours in held.items()},
        forbid_unknown_fields=not more,
        kw_only=True,
    )
    return Kind(made, pa.struct(columns) if columns else None)


def _one_of(values: Any, kind: type, where: str) -> Any:
    good = isinstance(values, list) and values and all(type(one) is kind for one in values)
    if not good:
        raise BadSchema(f"{where}: enum must be a list of values of the schema's type")
    return Literal[tuple(values)]


_KINDS: dict[str, tuple[Callable[[Mapping[str, Any], str, int], Kind], tuple[str, ...]]] = {
    "string": (_string, ("format", "minLength", "maxLength", "pattern", "enum")),
    "integer": (_integer, (*_LIMITS, "enum")),
    "number": (_number, tuple(_LIMITS)),
    "boolean": (_boolean, ()),
    "array": (_array, ("items", "minItems", "maxItems")),
    "object": (_object, ("properties", "required", "additionalProperties")),
}
