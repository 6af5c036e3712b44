"""A message of 20 KB killed the broker that checked it, and the next owner, and the next.

Values of an Avro schema that contains itself, a list or a tree, may nest as deeply as they have
bytes, and the library reads them by calls of its own in C: a segmentation fault. So did any value
of a record that contains itself without a way out. And a list of nulls of five bytes took a
minute, and gigabytes. Found by trying hostile values.
"""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.broker.errors import InvalidSchema
from octavo.broker.schemas.avro_shape import DEPTH_MAX, Shape
from octavo.broker.schemas.kinds import parsed


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    parts = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": parts}


LIST = record("List", next=["null", "List"])
TREE = record(
    "n.Tree",
    name="string",
    of={"type": "array", "items": "n.Tree"},
    by={"type": "map", "values": ["null", "n.Tree", "double"]},
    size={"type": "fixed", "name": "Five", "size": 5},
    kind={"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
    much=["null", "long", "bytes", "boolean", "float"],
)


@pytest.mark.parametrize("deep", [DEPTH_MAX + 1, 20_000, 3_000_000])
def test_what_nests_too_deeply_does_not_fit(deep: int) -> None:
    why = parsed("avro", LIST).misfit(b"\x02" * deep + b"\x00")
    assert why is not None
    assert f"more than {DEPTH_MAX} deep" in why


def test_what_nests_fits() -> None:
    assert parsed("avro", LIST).misfit(b"\x02" * (DEPTH_MAX - 1) + b"\x00") is None


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (record("A", a="A"), "A contains itself, always"),
        (record("A", b=record("B", a="A")), "contains itself, always"),
        ({"type": "array", "items": "null"}, "any number of elements"),
        ({"type": "array", "items": record("E", n="null")}, "any number of elements"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "any number"),
        (["null", {"type": "array", "items": {"type": "null"}}], "any number of elements"),
        (
            record("A", b=record("B", c=record("C", **dict.fromkeys("abcdefgh", "null")), d="C",
                                 e="C", f="C"), g="B"),
            "parts, and its values have no byte",
        ),
    ],
)  # fmt: skip
def test_a_schema_of_endless_values_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(InvalidSchema, match=said):
        parsed("avro", schema)


def _tree(of: st.SearchStrategy[Any], by: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = {
        "name": st.text(),
        "of": of,
        "by": by,
        "size": st.binary(min_size=5, max_size=5),
        "kind": st.sampled_from("AB"),
        "much": st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary() | st.booleans(),
    }
    return st.fixed_dictionaries(parts)


TREES = st.recursive(
    _tree(st.just([]), st.just({})),
    lambda inner: _tree(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(), st.none() | inner | st.just(0.5), max_size=3),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(value=TREES, cut=st.integers(0, 200), change=st.binary(max_size=3))
def test_what_the_library_reads_is_gone_over_alike(
    value: dict[str, Any], cut: int, change: bytes
) -> None:
    stream = io.BytesIO()
    schema = fastavro.parse_schema(TREE)
    fastavro.schemaless_writer(stream, schema, value)
    whole = stream.getvalue()
    shape = Shape(schema)
    assert shape.nests
    assert shape.misfit(whole) is None
    assert cut >= len(whole) or shape.misfit(whole[:cut]) is not None
    changed = whole[:cut] + change + whole[cut + len(change) :]
    if shape.misfit(changed) is not None:
        return
    source = io.BytesIO(changed)
    try:
        fastavro.schemaless_reader(source, schema, None)
    except EOFError:  # it goes no further than was gone over
        pytest.fail("the library reads on")
    except (UnicodeDecodeError, IndexError):
        pass
