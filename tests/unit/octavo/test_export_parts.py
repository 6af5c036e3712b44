"""A JSON Schema as columns, and values as rows, without Spark."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyarrow", reason="needs octavo[spark]")

from octavo.pipeline.json_schema import BadSchema, columns_of, decoder_of

SCHEMA = {
    "type": "object",
    "required": ["a"],
    "properties": {
        "a": {"type": "integer", "minimum": 0},
        "b b": {"type": ["string", "null"], "pattern": "^x"},
        "at": {"type": "string", "format": "date-time"},
        "in": {"type": "object", "properties": {"q": {"type": "boolean"}}},
        "many": {"type": "array", "items": {"type": "number", "maximum": 5}},
        "kind": {"type": "string", "enum": ["p", "q"]},
    },
}


def test_a_schema_becomes_columns() -> None:
    assert str(columns_of(SCHEMA)) == (
        "struct<a: int64, b b: string, at: timestamp[us, tz=UTC], in: struct<q: bool>, "
        "many: list<item: double>, kind: string>"
    )


def test_a_value_becomes_a_row() -> None:
    decode = decoder_of(json.dumps(SCHEMA))
    row, reason = decode(
        b'{"a": 1, "b b": null, "in": {"q": true}, "many": [1, 2.5], "kind": "p", "more": 1}'
    )
    assert reason is None
    assert row == {
        "a": 1,
        "b b": None,
        "at": None,
        "in": {"q": True},
        "many": [1.0, 2.5],
        "kind": "p",
    }


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b'{"a": "1"}', "Expected `int`, got `str` - at `$.a`"),
        (b'{"a": -1}', "Expected `int` >= 0 - at `$.a`"),
        (b'{"a": 9223372036854775808}', "- at `$.a`"),
        (b"{}", "missing required field `a`"),
        (b'{"a": 1, "b b": "y"}', "matching regex '^x'"),
        (b'{"a": 1, "at": "2024-01-01T00:00:00"}', "timezone"),
        (b'{"a": 1, "at": null}', "got `null` - at `$.at`"),
        (b'{"a": 1, "many": [9]}', "<= 5"),
        (b'{"a": 1, "kind": "r"}', "Invalid enum value 'r'"),
        (b"\xff", "malformed"),
        (b"", "truncated"),
        (None, "no value"),
    ],
)
def test_what_is_wrong_with_a_value(value: bytes | None, said: str) -> None:
    row, reason = decoder_of(json.dumps(SCHEMA))(value)
    assert row is None
    assert said in (reason or "")


def test_properties_that_are_not_named_may_be_shut_out() -> None:
    shut = {**SCHEMA, "additionalProperties": False}
    _, reason = decoder_of(json.dumps(shut))(b'{"a": 1, "more": 1}')
    assert "unknown field `more`" in (reason or "")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array"}, "a message schema must be"),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, r"\$.a: unknown type 'text'"),
        ({"type": "object", "properties": {"a": {"allOf": []}}}, r'\$.a: "type" must be'),
        ({"type": "object", "properties": {"a": {"type": "string", "minimum": 1}}}, "minimum"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, "pattern"),
        ({"type": "object", "properties": {"a": {"type": "string", "format": "ip"}}}, "format"),
        ({"type": "object", "properties": {"a": {"type": "integer", "enum": ["1"]}}}, "enum"),
        ({"type": "object", "properties": {"a": {"type": "integer", "minimum": "1"}}}, r"\$.a: "),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, r"\$.a\[\]: a schema is"),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, r"\$.a: an object needs"),
        (
            {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["b"]},
            "required names b",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "null"}}},
            "no property of the message schema has a type",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string"}, "A": {"type": "string"}}},
            "differ only in case",
        ),
    ],
)
def test_a_schema_that_cannot_be_columns(schema: dict[str, object], said: str) -> None:
    with pytest.raises(BadSchema, match=said):
        columns_of(schema)
