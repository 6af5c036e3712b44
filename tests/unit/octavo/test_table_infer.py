"""A schema from values, and its growth: fields are added, and no type changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs octavo[tables]")

from octavo.pipeline.json_schema import BadSchema
from octavo.pipeline.table_columns import columns_of_schema
from octavo.pipeline.table_infer import FIELDS_MAX, inferred, json_of, widened


def types(schema: dict[str, Any]) -> dict[str, str]:
    """Return the columns' types after those of every message."""
    columns = columns_of_schema(schema).arrow
    return {one.name: str(one.type) for one in columns}


def test_first_messages_become_columns() -> None:
    found = inferred(
        [
            {"n": 1, "x": 1, "ok": True, "nothing": None, "none": [], "s": "a"},
            {"n": 2, "x": 1.5, "in": {"q": "z"}, "many": [1, 2], "mixed": 1},
            {"big": 2**70, "mixed": "1", "many": [None]},
            17,
        ]
    )
    assert found is not None
    got = types(found)
    assert got["n"] == "int64"
    assert got["x"] == "double"
    assert got["ok"] == "bool"
    assert got["in"] == "struct<q: string>"
    assert got["many"] == "list<item: int64>"
    assert got["mixed"] == got["big"] == got["s"] == "string"
    assert "nothing" not in got
    assert "none" not in got


def test_there_must_be_an_object_with_fields() -> None:
    assert inferred([]) is None
    assert inferred([1, "a", None, {}, []]) is None


def test_new_fields_are_added_and_types_stay() -> None:
    schema = inferred([{"n": 1, "later": None, "in": {"q": 1}}])
    assert schema is not None
    assert widened(schema, {"n": 2}) is schema
    assert widened(schema, {"n": "text"}) is schema, "the value does not fit"
    wider = widened(schema, {"later": "x", "new": [{"a": 1}], "in": {"r": True}})
    got = types(wider)
    assert (got["n"], got["later"]) == ("int64", "string")
    assert got["in"] == "struct<q: int64, r: bool>"
    assert got["new"] == "list<item: struct<a: int64>>"
    assert types(widened(wider, {"new": [{"b": 1}]}))["new"] == (
        "list<item: struct<a: int64, b: int64>>"
    )


def test_fields_that_differ_only_in_case_and_endless_fields_are_refused() -> None:
    schema = inferred([{"n": 1}])
    assert schema is not None
    with pytest.raises(BadSchema, match="n and N differ only in case"):
        widened(schema, {"N": 1})
    with pytest.raises(BadSchema, match=f"more than {FIELDS_MAX} fields"):
        widened(schema, {f"k{number}": 1 for number in range(FIELDS_MAX + 1)})
    map_like = inferred([{"by": {f"k{number}": 1 for number in range(FIELDS_MAX + 1)}}])
    assert map_like is not None
    assert types(map_like)["by"] == "string"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text("abAB.", max_size=2), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
OBJECTS = st.lists(st.dictionaries(st.sampled_from("abcdef"), JSON, max_size=4), max_size=4)


@given(OBJECTS, OBJECTS)
def test_values_fit_the_schema_that_was_made_of_them(
    first: list[dict[str, Any]], later: list[dict[str, Any]]
) -> None:
    """Each later message fits once the schema is widened by it, unless a field's type has
    changed; and widening takes nothing away."""
    schema = inferred(first)
    if schema is None:
        return
    try:
        columns = columns_of_schema(schema)
    except BadSchema:  # no field with a type, or two names that would be the same column
        return
    for value in first:
        assert columns.fits(json.dumps(value).encode()), (schema, value)
    for value in later:
        try:
            wider = widened(schema, value)
            wide = columns_of_schema(wider)
        except BadSchema:
            continue
        for known in first:
            assert wide.fits(json.dumps(known).encode()), (wider, known)
        assert widened(wider, value) == wider


def test_what_is_not_json_is_nothing() -> None:
    assert json_of(b"{") is json_of(None) is json_of(b"\xff") is None
    assert json_of(b'{"a": 1}') == {"a": 1}
