"""Tables of a topic: which offsets they get next, and their schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.pipeline.json_schema import BadSchema
from octavo.pipeline.table_columns import columns_of_schema
from octavo.pipeline.table_infer import FIELDS_MAX, inferred, json_of, widened
from octavo.pipeline.table_rules import (
    TOPIC,
    DataFile,
    Position,
    Snapshot,
    TableUnusable,
    TopicReplaced,
    Upkeep,
    check_topic,
    next_ranges,
    position_in,
    resumed,
    to_expire,
    to_join,
)
from octavo.spark.splits import DataLost, Span, View

pytest.importorskip("pyarrow", reason="needs octavo[tables]")

AT = Position("public/t", "i1", {0: 10, 2: 7})
OURS = {TOPIC: "public/t", "octavo.incarnation": "i1"}


def view(partition: int, end: int, trimmed: int = 0) -> View:
    return View("public/t", partition, (Span(partition, 0, end, end * 100, 5),), trimmed)


def snapshots(*summaries: dict[str, str]) -> list[Snapshot]:
    return [Snapshot(n, n - 1 or None, n * 1000, one) for n, one in enumerate(summaries, 1)]


def test_a_position_survives_its_summary() -> None:
    assert position_in(AT.summary()) == AT
    assert AT.at({2: 9, 3: 1}).offsets == {0: 10, 2: 9, 3: 1}
    assert position_in({}) is None


@pytest.mark.parametrize("text", ["", "[]", '{"0": -1}', '{"0": 1.5}', '{"x": 1}', '{"0": true}'])
def test_offsets_changed_by_hand_are_refused(text: str) -> None:
    with pytest.raises(TableUnusable, match="changed by hand"):
        position_in({"octavo.offsets": text})


def test_the_position_is_that_of_the_newest_snapshot_which_has_one() -> None:
    """A snapshot of another program has none; a rolled-back table continues where it was."""
    later = AT.at({0: 20})
    every = snapshots(AT.summary(), {}, later.summary(), {})
    assert resumed(4, every, OURS) == later
    assert resumed(2, every, OURS) == AT
    assert resumed(None, every, OURS).offsets == {}
    kept = {**OURS, **later.summary()}
    assert resumed(4, every[3:], kept) == later, "its ancestors were expired"
    with pytest.raises(TableUnusable, match="expired"):
        resumed(4, every[3:], OURS)
    with pytest.raises(TableUnusable, match="made by another program than octavo"):
        resumed(None, [], {})


def test_a_table_of_another_topic_or_of_an_earlier_topic_is_refused() -> None:
    check_topic(AT, "public/t", "i1")
    with pytest.raises(TopicReplaced, match="deleted and created again"):
        check_topic(AT, "public/t", "i2")
    with pytest.raises(TopicReplaced, match="was deleted since"):
        check_topic(AT, "public/t", "")
    with pytest.raises(TableUnusable, match="holds topic public/t, not public/u"):
        check_topic(AT, "public/u", "i1")


def test_a_commit_is_bounded_and_begins_new_partitions() -> None:
    views = [view(0, 1_000), view(1, 50), view(2, 7)]
    plan = next_ranges(AT, views, rows_max=104, bytes_max=10**9, fail=True)
    assert sum(one.end - one.start for one in plan.ranges) == 104
    assert [(one.view.partition, one.start) for one in plan.ranges] == [(0, 10), (1, 0)]
    assert (plan.behind, plan.is_full) == (1_040, True)
    plan = next_ranges(AT, views, rows_max=10**6, bytes_max=10_400, fail=True)
    assert 100 <= sum(one.end - one.start for one in plan.ranges) <= 104
    whole = next_ranges(AT, views, rows_max=10**6, bytes_max=10**9, fail=True)
    assert not whole.is_full
    assert not next_ranges(
        AT.at({0: 1_000, 1: 50}), views, rows_max=1, bytes_max=1, fail=True
    ).ranges


def test_messages_that_retention_removed_are_said() -> None:
    with pytest.raises(DataLost, match="offsets 10 to 19 were trimmed"):
        next_ranges(AT, [view(0, 30, 20)], rows_max=9, bytes_max=9999, fail=True)
    plan = next_ranges(AT, [view(0, 30, 20)], rows_max=99, bytes_max=9999, fail=False)
    assert [(one.start, one.end) for one in plan.ranges] == [(20, 30)]
    new = Position("public/t", "i1")
    plan = next_ranges(new, [view(0, 30, 20)], rows_max=99, bytes_max=9999, fail=True)
    assert [(one.start, one.end) for one in plan.ranges] == [(20, 30)], "a table begins there"


def test_small_files_of_a_day_are_joined_with_files_of_their_size() -> None:
    keep = Upkeep(merge_files_min=3, merge_bytes_max=1_000_000, merge_rows_max=100)
    small = [DataFile(f"s{n}", 1, 5_000, 10) for n in range(4)]
    other_day = [DataFile(f"o{n}", 2, 5_000, 10) for n in range(2)]
    larger = [DataFile(f"l{n}", 1, 400_000, 10) for n in range(2)]
    done = [DataFile("done", 1, 1_000_000, 10), DataFile("many", 1, 5_000, 100)]
    assert to_join([*small, *other_day, *larger, *done], keep) == [small]
    many = [DataFile(f"m{n:03}", 1, 5_000, 10) for n in range(25)]
    groups = to_join(many, keep)
    assert [len(one) for one in groups] == [10, 10, 5]


def test_old_ancestors_are_expired_up_to_the_first_that_is_kept() -> None:
    every = snapshots(*({} for _ in range(8)))
    keep = Upkeep(keep_ms=3_000, keep_min=2)
    assert [one.id for one in to_expire(8, every, [], 8_000, keep)] == [1, 2, 3, 4, 5]
    assert [one.id for one in to_expire(8, every, [3], 8_000, keep)] == [1, 2]
    assert [one.id for one in to_expire(8, every, [], 80_000, keep)] == [1, 2, 3, 4, 5, 6]
    assert to_expire(None, every, [], 80_000, keep) == []


# A schema from values, and its growth: fields are added, and no type changes.
pytest.importorskip("pyarrow", reason="needs octavo[tables]")


def types(schema: dict[str, Any]) -> dict[str, str]:
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
