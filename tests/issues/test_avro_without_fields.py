"""A record of Avro without fields was registered, and then every message was refused.

The library takes it, two fields of one name and two types of a kind in a union as well, which no
Avro schema has. Found as a user, with curl.
"""

from __future__ import annotations

from typing import Any

import pytest

from octavo.broker.errors import InvalidSchema
from octavo.broker.schemas.kinds import parsed

INT = {"name": "a", "type": "int"}
RECORD = {"type": "record", "name": "x", "fields": [INT]}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"type": "record", "name": "x"}, "record 'x' has no fields"),
        ({**RECORD, "fields": [INT, INT]}, "record 'x' has the field 'a' twice"),
        (["null", "int", {"type": "int"}], "a union has the type 'int' twice"),
        ({"type": "array", "items": {"type": "record", "name": "y"}}, "record 'y' has no fields"),
        (
            {**RECORD, "fields": [{"name": "b", "type": {"type": "record", "name": "z"}}]},
            "'z' has no",
        ),
        ({"type": "enum", "name": "e"}, "'symbols' is missing"),
    ],
)
def test_it_is_refused_with_what_is_wrong(given: Any, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why):
        parsed("avro", given)


@pytest.mark.parametrize(
    "given",
    [
        RECORD,
        {**RECORD, "fields": []},
        ["null", RECORD, {**RECORD, "name": "y"}, {"type": "array", "items": "int"}],
        {**RECORD, "fields": [{"name": "fields", "type": ["null", "int"], "default": None}]},
    ],
)
def test_what_is_avro_is_taken(given: Any) -> None:
    parsed("avro", given)
