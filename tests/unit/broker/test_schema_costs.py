"""The cost of schemas: bounded, known beforehand, and mostly off the loop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Hashable
from typing import Any

import pytest

from octavo.broker.cluster import schema_registry
from octavo.broker.cluster.schema_registry import MessageCheck, _Subject
from octavo.broker.errors import InvalidSchema
from octavo.broker.log.open_batches import Turns
from octavo.broker.schemas.avro import PAIRS_MAX
from octavo.broker.schemas.engine import Answer, Check, InProcess, Question
from octavo.broker.schemas.json_cost import PARTS_MAX, cost_of
from octavo.broker.schemas.kinds import SCHEMA_BYTES_MAX, parsed, quick
from octavo.metadata.schemas import SchemaVersion, SubjectRecord
from octavo.protocol.records import Record
from tests.support.loop_time import LoopTime
from tests.support.schemas import decimal_of, entangled, fanned_out
from tests.support.schemas import record_of as record

STALL_S_MAX = 0.05
WORK_S_MAX = 2.0
"""Processor time that a worker has to read or compare a schema."""

# ---- JSON Schema


@pytest.mark.parametrize(
    ("schema", "parts", "known"),
    [
        (True, 1, True),
        ({"type": "integer"}, 2, True),
        ({"enum": [1, [2, 3]]}, 6, True),
        ({"properties": {"a": {"type": "string"}, "b": {}}}, 5, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"minimum": 1}}}, 5, True),
        ({"$ref": "#"}, 3, False),
        ({"items": {"$ref": "#"}}, 4, False),
        ({"$ref": "other"}, 3, False),
        ({"pattern": "a*"}, 2, False),
        ({"format": "uuid"}, 2, True),
        ({"format": "regex"}, 2, False),
        ({"properties": {"pattern": {"type": "string"}}}, 4, True),
        ({"unevaluatedProperties": {"type": "string"}}, 3, False),
        ({"items": {"$id": "x"}}, 3, False),
    ],
)
def test_parts_of_a_schema(schema: Any, parts: int, known: bool) -> None:
    assert cost_of(schema) == (parts, known)


@pytest.mark.parametrize("levels", [16, 60, 1_000])
def test_references_filled_in_are_counted_in_few_steps(levels: int) -> None:
    began_s = time.thread_time()
    cost = cost_of(fanned_out(levels))
    assert time.thread_time() - began_s < WORK_S_MAX
    assert cost.parts > 2**16 or not cost.known
    assert cost.parts <= PARTS_MAX + 1


def test_what_is_not_known_to_be_short_is_not_checked_on_the_loop() -> None:
    for schema in (fanned_out(12), {"pattern": "^(a+)+$"}, {"enum": ["x"] * 3_000}):
        assert quick("json", json.dumps(schema)) is None
    nests = {
        "type": "record",
        "name": "l",
        "fields": [{"name": "next", "type": ["null", "l"]}],
    }
    assert quick("avro", json.dumps(nests)) is None
    assert quick("json", json.dumps(fanned_out(3))) is not None


# ---- Avro


def doubled(levels: int) -> dict[str, Any]:
    """Records that hold the previous one twice: a value has 2 ** levels parts."""
    found = record("r0", "int")
    for n in range(1, levels):
        found = record(f"r{n}", found, f"r{n - 1}")
    return found


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array", "items": record("r", "boolean", *["null"] * 2_000)}, "each of its byt"),
        ({"type": "map", "values": record("r", *["null"] * 30)}, ""),
        (record("r", ["null", "r"], *["null"] * 2_000), "each of its bytes"),
        (doubled(30), "the most are 100000"),
        (doubled(10), ""),
    ],
)
def test_avro_values_that_are_more_to_read_than_they_have_bytes(schema: Any, said: str) -> None:
    if not said:
        parsed("avro", schema)
        return
    with pytest.raises(InvalidSchema, match=said):
        parsed("avro", schema)


@pytest.mark.parametrize(("reader", "writer", "reads"), [("long", "int", True),
                                                        ("int", "string", False)])  # fmt: skip
def test_avro_schemas_are_compared_in_few_steps(reader: str, writer: str, reads: bool) -> None:
    """2 KB of Avro took exponential time, and the broker ended."""
    one, other = parsed("avro", entangled(25, reader)), parsed("avro", entangled(25, writer))
    began_s = time.thread_time()
    found = one.unreadable(other)
    assert time.thread_time() - began_s < WORK_S_MAX
    assert (not found) is reads


def test_two_schemas_of_very_many_types_are_not_compared() -> None:
    types = [record(f"r{n}", "int") for n in range(300)]
    schema = parsed("avro", types)
    assert PAIRS_MAX < 300**2
    [said] = parsed("avro", [*types, "null"]).unreadable(schema)
    assert "cannot be proved" in said


@pytest.mark.parametrize(
    "schema",
    [
        [record(f"r{n}") for n in range(1_000)],
        {"type": "enum", "name": "e", "symbols": [f"s{n}" for n in range(7_000)]},
        record("r", *["int"] * 2_000),
        record("top", *[record(f"r{n}", ["null", f"r{max(0, n - 1)}"]) for n in range(200)]),
    ],
)
def test_a_long_avro_schema_is_read_and_compared_in_few_steps(schema: Any) -> None:
    assert len(json.dumps(schema, separators=(",", ":"))) <= SCHEMA_BYTES_MAX
    began_s = time.thread_time()
    one = parsed("avro", schema)
    one.unreadable(parsed("avro", schema))
    assert time.thread_time() - began_s < 2 * WORK_S_MAX


def test_a_long_decimal_is_checked_as_bytes() -> None:
    """One of 150 KB took 8 s, because it was made into a number, digit by digit."""
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    began_s = time.thread_time()
    assert parsed("avro", schema).misfit(decimal_of(150_000)) is None
    assert time.thread_time() - began_s < STALL_S_MAX


# ---- messages


class Counting(InProcess):
    """An engine that notes its questions."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Check] = []

    async def ask(self, key: Hashable, question: Question) -> Answer:
        assert isinstance(question, Check)
        self.asked.append(question)
        return await super().ask(key, question)


def check_of(engine: Counting, *schemas: Any) -> MessageCheck:
    versions = [
        SchemaVersion(number, f"id{number}", "json", json.dumps(schema), 0)
        for number, schema in enumerate(schemas, 1)
    ]
    subject = _Subject(SubjectRecord(versions=tuple(versions)))
    return MessageCheck(("public", "s"), subject, engine, Turns())


def message(value: Any, version: str = "") -> Record:
    headers = [("octavo-schema", version.encode())] if version else []
    return Record(None, json.dumps(value).encode(), headers, 0)


async def test_the_first_misfit_is_told_whichever_way_it_is_checked() -> None:
    engine = Counting()
    check = check_of(engine, {"type": "integer"}, {"type": "string", "pattern": "^a"})
    assert await check.misfit([message(1, "1"), message(2, "1")]) is None
    assert not engine.asked
    assert await check.misfit([message("a"), message(1, "1"), message("ab", "id2")]) is None
    assert [len(one.values) for one in engine.asked] == [2]
    for messages, index, said in (
        ([message("a"), message("x", "1"), message("b")], 1, "not of type"),
        ([message(1, "1"), message("b"), message("x", "1")], 1, "does not match"),
        ([message("a"), message("a", "7"), message("b")], 1, "no version '7'"),
        ([message("b"), message("a", "7")], 0, "does not match"),
    ):
        found = await check.misfit(messages)
        assert found is not None
        assert found[0] == index, found
        assert said in found[1]


async def test_messages_checked_on_the_loop_leave_it_to_others() -> None:
    """Many publishers at once, each with the largest window of messages that is checked on the
    loop."""
    engine = Counting()
    check = check_of(engine, {"type": "array", "items": {"type": "integer", "minimum": 0}})
    quickly = check._subject.quick(check._subject.record.versions[0])
    assert quickly is not None
    size = schema_registry.QUICK_STEPS_MAX // quickly.steps(0) - 1
    value = [0] * (size // 3)
    messages = [message(value) for _ in range(20)]
    async with LoopTime() as loop:
        await asyncio.gather(*(check.misfit(messages) for _ in range(20)))
    assert not engine.asked
    assert loop.longest_s < STALL_S_MAX
    assert await check.misfit([message([0] * size)]) is None
    assert len(engine.asked) == 1, "more than that is checked elsewhere"
