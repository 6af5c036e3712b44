"""Decisions of the pipeline's jobs, without Spark."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.examples.checking import FlightCheck
from octavo.examples.flights import Flights, load_flights
from octavo.examples.following import LogFollower
from octavo.log_messages import in_words, recovery_step_in_words
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.offloads import COPYING, DROPPED, OFFLOADED
from octavo.metadata.store import RECORD_BYTES_MAX
from octavo.metadata.topic_records import encode_record
from octavo.metadata.topics import (
    CompactedLedger,
    CompactionRecord,
    OffloadIntent,
    OffloadRecord,
    PartitionLedger,
    PartitionRecord,
    TopicSettings,
)
from octavo.pipeline.audit import Held, copies_findings, metadata_findings, wanted_runs
from octavo.pipeline.compact_rules import Chunks, CompactPolicy, chunks_of, is_due, lost_before
from octavo.pipeline.json_schema import BadSchema, columns_of, decoder_of
from octavo.pipeline.offload_rules import (
    OFFLOADS_MAX,
    OffloadPolicy,
    is_forgotten,
    orphans,
    pause_s,
    planned,
    waves,
)
from octavo.pipeline.outcome import SHOWN_MAX
from octavo.pipeline.report import expired_links, stored_of
from octavo.pipeline.report_page import by_topic, page
from octavo.pipeline.runs import count_of, has, numbers_in, runs_in, without
from octavo.pipeline.scrub import ABSENT, DAMAGED, UNKNOWN, Copy, ScrubOptions, chosen, judge
from octavo.pipeline.spread import Findings, Part, dealt, parts_of
from octavo.pipeline.streams import Progress
from octavo.protocol.batch import InvalidBatch, check_batch, read_header, with_base_offset
from octavo.protocol.compression import Compression
from octavo.protocol.records import Record, build_batch, build_gapped_batch
from octavo.spark.arrow import ArrowBuilder
from octavo.spark.batches import StoredBatch
from octavo.spark.options import InvalidOption, source_options
from octavo.spark.planning import compacted_at_once
from octavo.spark.splits import Span, View

pytest.importorskip("pyarrow", reason="needs octavo[spark]")
pytest.importorskip("pyspark", reason="needs octavo[spark]")

DAY_MS = 24 * 3_600_000
PLAIN = View("public/t", 0, (Span(1, 0, 100, 1000, 5), Span(2, 100, 140, 0, -1)))
OLD = CompactionRecord(
    60, (CompactedLedger(7, 3, 30, 4, 400), CompactedLedger(8, 33, 59, 5, 300, 1, 1_000)), 5
)
VIEWED = replace(PLAIN, compacted=OLD)


def test_a_run_reads_the_old_view_and_what_is_behind_it() -> None:
    (chunk,) = chunks_of(2, VIEWED, CompactPolicy())
    found = [(one.ledger_id, one.base, one.start, one.end, one.compacted) for one in chunk.parts]
    assert found == [
        (7, 3, 3, 31, True),
        (8, 33, 33, 60, True),
        (1, 0, 60, 100, False),
        (2, 100, 100, 140, False),
    ]
    assert (chunk.place, chunk.start, chunk.end) == (2, 3, 140)
    trimmed = replace(VIEWED, spans=VIEWED.spans[1:])
    assert [one.ledger_id for one in chunks_of(0, trimmed, CompactPolicy())[0].parts] == [7, 8, 2]
    assert lost_before(trimmed) == (60, 99)
    assert lost_before(VIEWED) is None
    assert lost_before(replace(trimmed, compacted=None)) is None, "nobody had promised them"


@given(st.integers(1, 2000), st.integers(3, 139))
def test_each_offset_lies_in_the_chunk_that_is_found(size: int, offset: int) -> None:
    every = [
        chunk
        for place, view in enumerate((VIEWED, PLAIN))
        for chunk in chunks_of(place, view, CompactPolicy(split_bytes=size))
    ]
    found = Chunks(every)
    for place in (0, 1):
        chunk = every[found.number_of(place, offset)]
        assert chunk.place == place
        there = [one for one in every if one.place == place and one.start <= offset < one.end]
        assert there in ([chunk], []), "in a gap of the old view is no message"


def test_a_view_is_due_for_new_messages_or_old_tombstones() -> None:
    policy = CompactPolicy(tombstones_ms=DAY_MS)
    assert is_due(PLAIN, policy, 0)
    assert is_due(VIEWED, policy, 0)
    whole = replace(VIEWED, spans=(Span(1, 0, 60, 1000, 5),))
    assert not is_due(whole, policy, 999 + DAY_MS)
    assert is_due(whole, policy, 1_000 + DAY_MS)


def test_the_first_micro_batch_has_the_whole_view() -> None:
    name = VIEWED.name
    assert compacted_at_once({name: 0}, {name: 140}, [VIEWED]) == {name: 60}
    assert compacted_at_once({}, {name: 50}, [VIEWED]) == {name: 50}
    assert compacted_at_once({name: 1}, {name: 140}, [VIEWED]) == {name: 0}


@pytest.mark.parametrize(
    ("options", "streaming", "said"),
    [
        ({"startingOffsets": "latest"}, False, "from its beginning"),
        ({"startingTimestamp": "1"}, False, "from its beginning"),
        ({}, True, "from its beginning"),
        ({"readFrom": "broker"}, False, "from the bookies"),
        ({"readCompacted": "maybe"}, False, "one of true, false"),
    ],
)
def test_a_view_is_read_from_its_beginning(
    options: dict[str, str], streaming: bool, said: str
) -> None:
    given_ = {"service": "http://b", "subscribe": "t", "readCompacted": "true", **options}
    with pytest.raises(InvalidOption, match=said):
        source_options(given_, streaming=streaming)


@given(
    st.sets(st.integers(0, 60), min_size=1), st.integers(0, 5), st.integers(0, 90),
    st.integers(0, 90), st.sampled_from([Compression.NONE, Compression.ZSTD]),
)  # fmt: skip
def test_messages_with_gaps_keep_their_offsets(
    deltas: set[int], base: int, start: int, end: int, compression: Compression
) -> None:
    records = [Record(b"k%d" % one, b"v%d" % one, (), one, one) for one in sorted(deltas)]
    batch = build_gapped_batch(records, base, compression=compression)
    header = check_batch(batch, gaps=True)
    if not header.is_dense:
        with pytest.raises(InvalidBatch, match="must be count - 1"):
            check_batch(batch)
    assert header.next_offset == base + max(deltas) + 1
    builder = ArrowBuilder(("offset", "value"))
    builder.add(StoredBatch("t", 0, 1, 0, 10 + base, header, batch), start, end)
    wanted = [one for one in sorted(deltas) if start <= 10 + base + one < end]
    rows = builder.take()
    assert rows.column("offset").to_pylist() == [10 + base + one for one in wanted]
    assert rows.column("value").to_pylist() == [b"v%d" % one for one in wanted]


def test_a_dense_batch_is_read_as_ever() -> None:
    batch = with_base_offset(build_batch([Record(b"k", b"%d" % one) for one in range(9)]), 4)
    builder = ArrowBuilder(("offset", "index"))
    builder.add(StoredBatch("t", 0, 1, 0, 104, read_header(batch), batch), 106, 110)
    rows = builder.take()
    assert rows.column("offset").to_pylist() == [106, 107, 108, 109]
    assert rows.column("index").to_pylist() == [2, 3, 4, 5]


# Which ledgers an offload copies, drops and cleans up.
NAME = ("public", "t", 0)
HOUR = 3_600_000
URL = f"s3://archive/octavo/public/flights/0/ledger-4294967296-{'a' * 32}-12345678.parquet"
PLACE = OffloadRecord("a" * 32, OFFLOADED, URL, 2**41, 10**6, 2**30, 2**32 - 1, 2**32 - 1)


def link(
    ledger_id: int, closed_ms: int | None, size: int = 100, **offload: object
) -> PartitionLedger:
    place = OffloadRecord(**{"url": "x", **offload}) if offload else None  # type: ignore[arg-type]
    return PartitionLedger(ledger_id, 0, 5, size, 1, 2, closed_ms, offload=place)


def test_what_is_due_is_copied_and_what_is_old_is_dropped() -> None:
    record = PartitionRecord(
        (
            link(1, 0),
            link(2, 10 * HOUR),
            link(3, 0, size=9),
            link(4, 0, uuid="dead", state=COPYING),
            link(5, 0, uuid="new", state=OFFLOADED, since_ms=10 * HOUR),
            link(6, 0, uuid="old", state=OFFLOADED, since_ms=HOUR),
            link(7, 0, uuid="gone", state=DROPPED, since_ms=9 * HOUR),
            PartitionLedger(8, 0),
        )
    )
    policy = OffloadPolicy(age_ms=4 * HOUR, bytes_min=10, drop_lag_ms=2 * HOUR)
    plan = planned({NAME: record}, policy, 11 * HOUR)
    assert [(job.link.ledger_id, job.before) for job in plan.copies] == [(1, None), (4, "dead")]
    assert [(drop.ledger_id, drop.uuid) for drop in plan.drops] == [(6, "old"), (7, "gone")]
    assert (plan.kept, plan.offloaded) == (2, 3)
    without_lag = planned({NAME: record}, OffloadPolicy(), 11 * HOUR)
    assert [drop.ledger_id for drop in without_lag.drops] == [7], "a drop that was begun goes on"


def test_a_copy_that_no_record_names_is_an_orphan_after_a_while() -> None:
    intents = {
        uuid: OffloadIntent("public", "t", 0, ledger, "folder", "stem", created)
        for uuid, ledger, created in (
            ("copying", 1, 0),
            ("whole", 2, 0),
            ("trimmed", 3, 0),
            ("young", 4, 10 * HOUR),
        )
    }
    record = PartitionRecord(
        (link(1, 0, uuid="copying", state=COPYING), link(2, 0, uuid="whole", state=DROPPED))
    )
    policy = OffloadPolicy(grace_ms=HOUR)
    assert orphans(intents, {NAME: record}, policy, 10 * HOUR) == ["trimmed"]
    gone = orphans(intents, {NAME: PartitionRecord()}, policy, 11 * HOUR)
    assert gone == ["copying", "trimmed", "whole", "young"], "the topic was deleted"


def test_an_intent_outlives_its_objects() -> None:
    """Its run may have been taken for dead, and write the object after the look for it."""
    intent = OffloadIntent("public", "t", 0, 1, "folder", "stem", 0)
    policy = OffloadPolicy(grace_ms=HOUR)
    assert orphans({"dead": intent}, {}, policy, HOUR) == ["dead"]
    assert not is_forgotten(intent, policy, HOUR)
    assert is_forgotten(intent, policy, 24 * HOUR)


def test_the_pace_and_the_waves() -> None:
    assert pause_s(1000, 0.0, None) == 0.0
    assert pause_s(1000, 0.5, 1000.0) == 0.5
    assert pause_s(1000, 2.0, 1000.0) == 0.0
    plan = planned({NAME: PartitionRecord(tuple(link(n, 0) for n in range(5)))}, OffloadPolicy(), 9)
    assert [len(wave) for wave in waves(plan.copies, 2)] == [2, 2, 1]


def test_a_partitions_record_is_not_filled_up() -> None:
    links = [link(n, 0, uuid=str(n), state=OFFLOADED) for n in range(OFFLOADS_MAX - 2)]
    links += [link(n, 0, uuid=str(n), state=COPYING) for n in range(9_000, 9_001)]
    links += [link(n, 0) for n in range(9_100, 9_103)]
    plan = planned({NAME: PartitionRecord(tuple(links))}, OffloadPolicy(), 1)
    assert [job.link.ledger_id for job in plan.copies] == [9_000, 9_100], "and the one begun before"
    assert (plan.full, plan.kept) == ((NAME,), 2)
    every = [replace(one, offload=PLACE) for one in [link(n, 0) for n in range(4_000)]]
    most = PartitionRecord((*every[:OFFLOADS_MAX], *(link(n, 0) for n in range(2_500))))
    assert len(encode_record(most)) < RECORD_BYTES_MAX


# How `audit` and `scrub` judge the bookies' answers, without Spark.
pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

runs_of_small = st.sets(st.integers(0, 30)).map(lambda numbers: runs_in(sorted(numbers)))


@given(runs_of_small, runs_of_small)
def test_runs_are_sets(wanted: list[tuple[int, int]], held: list[tuple[int, int]]) -> None:
    expected = set(numbers_in(wanted)) - set(numbers_in(held))
    assert without(wanted, held) == runs_in(sorted(expected))
    assert count_of(without(wanted, held)) == len(expected)
    assert {number for number in range(31) if has(held, number)} == set(numbers_in(held))


def metadata(**fields: Any) -> LedgerMetadata:
    fragments = (Fragment(0, ("a", "b", "c")), Fragment(6, ("a", "b", "d")))
    usual: dict[str, Any] = {
        "ledger_id": 7,
        "ensemble_size": 3,
        "write_quorum": 3,
        "ack_quorum": 2,
        "fragments": fragments,
        "state": LedgerState.CLOSED,
        "last_entry": 9,
    }
    return LedgerMetadata(**{**usual, **fields})


def held(**runs: list[tuple[int, int]] | None) -> Held:
    return Held(dict(runs), dict.fromkeys(runs, "no answer"))


def test_who_should_hold_what() -> None:
    everywhere = {"a": [(0, 5), (6, 9)], "b": [(0, 5), (6, 9)], "c": [(0, 5)], "d": [(6, 9)]}
    assert wanted_runs(metadata(), 9) == everywhere
    striped = wanted_runs(metadata(write_quorum=2), 9)
    assert striped["c"] == [(1, 2), (4, 5)]
    assert striped["d"] == [(7, 8)]
    copies = sum(count_of(runs) for runs in striped.values())
    assert copies == 2 * 10


def test_copies_missing_unknown_and_lost() -> None:
    findings = Findings()
    whole = held(a=[(0, 9)], b=[(0, 9)], c=[(0, 9)], d=[(6, 9)])
    assert copies_findings(metadata(), 9, whole, findings) == 30
    assert findings.counts == {}
    some = held(a=[(0, 4)], b=[(0, 3), (5, 9)], c=None, d=[(6, 7)])
    assert copies_findings(metadata(), 9, some, findings) == 5 + 9 + 2
    assert findings.counts == {"copy-missing": 5 + 1 + 2, "copies-unknown": 6}
    assert {what for _, _, what in findings.kept} == {
        "bookie a lacks entries 5, 6 to 9",
        "bookie b lacks entries 4",
        "bookie c could not say what it holds: no answer",
        "bookie d lacks entries 8 to 9",
    }
    lost = Findings()
    copies_findings(metadata(), 9, held(a=[(0, 8)], b=[(0, 8)], c=[(0, 5)], d=[(6, 8)]), lost)
    assert lost.counts == {"copy-missing": 3, "entry-lost": 1}
    assert lost.kept[-1].what == "no bookie of the write set has entries 9"


def test_a_striped_entry_is_lost_when_its_write_set_denies_it() -> None:
    findings = Findings()
    striped = metadata(write_quorum=2, fragments=(Fragment(0, ("a", "b", "c")),), last_entry=2)
    # Entry 0 is on a and b, 1 on b and c, 2 on c and a.
    copies_findings(striped, 2, held(a=[(2, 2)], b=[(1, 1)], c=[(1, 2)]), findings)
    assert findings.counts == {"copy-missing": 2, "entry-lost": 1}


def test_records_against_each_other() -> None:
    now_ms = 10**12
    orphan = metadata(ledger_id=8, custom={"octavo.partition": b"public/x/0"})
    young = metadata(
        ledger_id=9, custom={"octavo.partition": b"public/x/0"}, created_ms=now_ms - 1000
    )
    ledgers = {7: metadata(), 8: orphan, 9: young, 10: metadata(ledger_id=10)}
    found = metadata_findings(
        ledgers, {7: "public/a/0", 3: "public/a/1"}, {"a", "b", "c", "d"}, now_ms
    )
    assert [(one.kind, one.where) for one in found] == [
        ("ledger-missing", "public/a/1"),
        ("ledger-orphaned", "ledger 8"),
    ]
    gone = metadata_findings({7: metadata()}, {}, {"a", "b", "c"}, now_ms)
    assert [(one.kind, "bookie d" in one.what) for one in gone] == [("bookie-gone", True)]


def test_parts_are_dealt_evenly() -> None:
    opened = metadata(ledger_id=8, state=LedgerState.OPEN)
    empty = metadata(ledger_id=9, last_entry=-1)
    parts = parts_of([metadata(), opened, empty], entries_max=4)
    assert parts == [Part(7, 0, 3), Part(7, 4, 7), Part(7, 8, 9), Part(8, 0, 3), Part(8, 4, 5)]
    hands = dealt(parts, 3)
    assert [part for hand in hands for part in hand] == parts
    assert len(hands) == 3
    assert dealt([], 3) == []


@pytest.mark.parametrize(
    ("copies", "kinds"),
    [
        ({"a": b"1", "b": b"1"}, {}),
        ({"a": b"1", "b": b"2"}, {"copies-differ": 1}),
        ({"a": b"1", "b": ABSENT}, {ABSENT: 1}),
        ({"a": DAMAGED, "b": ABSENT}, {DAMAGED: 1, ABSENT: 1, "entry-lost": 1}),
        ({"a": DAMAGED, "b": UNKNOWN}, {DAMAGED: 1, UNKNOWN: 1}),
    ],
)
def test_what_copies_say_of_each_other(copies: dict[str, Copy], kinds: dict[str, int]) -> None:
    findings = Findings()
    judge(metadata(), {4: copies}, findings)
    assert findings.counts == kinds


def test_a_sample_is_the_same_each_time_and_about_so_large() -> None:
    tenth = ScrubOptions(sample=0.1, seed=3)
    first = [chosen(7, entry_id, tenth) for entry_id in range(5000)]
    assert first == [chosen(7, entry_id, tenth) for entry_id in range(5000)]
    assert 350 < sum(first) < 650
    other = ScrubOptions(sample=0.1, seed=4)
    assert first != [chosen(7, entry_id, other) for entry_id in range(5000)]
    assert chosen(7, 1, ScrubOptions())


def test_findings_of_several_tasks_are_counted_once() -> None:
    """Few are shown, all are counted."""
    together = Findings()
    for task in range(3):
        findings = Findings()
        for number in range(SHOWN_MAX):
            findings.add("lost", f"{task}", f"{number}", count=2)
        findings.add("odd", f"{task}", "once")
        together.take(findings)
    assert together.counts == {"lost": 6 * SHOWN_MAX, "odd": 3}
    assert [one.kind for one in together.kept].count("lost") == SHOWN_MAX
    assert [one.where for one in together.kept if one.kind == "odd"] == ["0", "1", "2"]


def test_each_batch_of_a_query_is_told_once() -> None:
    said: list[str] = []
    progress = Progress(said.append)
    batches = [{"batchId": 0, "numInputRows": 5}, {"batchId": 1, "numInputRows": 0}]
    for more in ([], [{"batchId": 1, "numInputRows": 2}], []):
        batches += more
        progress.look(SimpleNamespace(recentProgress=batches))
    assert progress.rows == 7
    assert said == ["batch 0: 5 rows", "batch 1: 7 rows"]


# A JSON Schema as columns, and values as rows, without Spark.
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

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


# The figures and the page of `report`, without Spark.
pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

pytest.importorskip("matplotlib", reason="needs octavo[spark]")


def test_what_retention_may_remove() -> None:
    links = tuple(
        PartitionLedger(number, 10 * number, 10, 100, 0, 1000 * number, disorder_ms=0)
        for number in range(3)
    )
    record = PartitionRecord(ledgers=(*links, PartitionLedger(3, 30)))
    for settings, count in (
        (TopicSettings(), 0),
        (TopicSettings(retention_ms=4000), 2),
        (TopicSettings(retention_bytes=150), 1),
    ):
        assert expired_links(record, settings, 5500) == list(links[:count])
    found = stored_of("t", [record], TopicSettings(retention_ms=4000, write_quorum=2), 5500)
    assert (found.bytes, found.bytes_all_copies) == (300, 600)
    assert (found.expired_ledgers, found.expired_bytes) == (2, 200)


def test_the_page_needs_nothing_else_and_escapes_names() -> None:
    whole = {
        "made_ms": 0,
        "messages": 3,
        "stored": [],
        "volume": [{"topic": "a<b>$x$", "day": "2024-01-01", "messages": 3, "bytes": 9}],
        "sizes": [{"topic": "a<b>$x$", "bytes_min": 2048, "messages": 3}],
        "hot_keys": [{"topic": "a<b>$x$", "key": "_<k>", "messages": 3, "bytes": 9, "rank": 1}],
    }
    text = page(whole)
    assert text.count("<svg") == 4
    seen = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)  # matplotlib notes what it draws
    assert "a<b>" not in seen
    assert "a&lt;b&gt;$x$" in text
    assert "<script" not in text


def test_small_topics_are_drawn_as_one() -> None:
    rows = [{"topic": f"t{n}", "day": n % 2, "messages": n} for n in range(1, 14)]
    places, found = by_topic(rows, "day", "messages")
    assert places == [0, 1]
    assert len(found) == 11
    assert found["all others"] == [2, 1 + 3]
    assert sum(map(sum, found.values())) == sum(range(14))


# The demonstrations' judgement finds every kind of mistake; and how logs are followed.
HEADER = "year,dep_time,tailnum,origin,time_hour"
LINES = [
    "2013,517,N1,EWR,2013-01-01T10:00:00Z",
    "2013,NA,N2,LGA,2013-01-01T10:00:00Z",
    "2013,533,N1,JFK,2013-01-01T11:00:00Z",
    "2013,NA,NA,EWR,2013-01-01T11:00:00Z",
    "2013,600,N1,EWR,2013-01-01T12:00:00Z",
]
Delivered = tuple[int, int, bytes | None, dict[str, Any]]


def flights() -> Flights:
    return Flights(HEADER, list(LINES))


def delivered() -> list[Delivered]:
    """Return all rows as they should come: N1 in partition 0, the others in partition 1."""
    table = flights()
    places = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    found: list[Delivered] = []
    for row, (partition, offset) in enumerate(places):
        key = table.key(row)
        found.append((partition, offset, key.encode() if key else None, table.value(row)))
    return found


def demo_judged(messages: list[Delivered]) -> Any:
    check = FlightCheck(flights())
    for message in messages:
        check.see(*message)
    return check.verdict()


def test_a_row_as_a_message() -> None:
    table = flights()
    assert table.value(1) == {
        "row": 1,
        "year": 2013,
        "dep_time": None,
        "tailnum": "N2",
        "origin": "LGA",
        "time_hour": "2013-01-01T10:00:00Z",
    }
    assert table.key(0) == "N1"
    assert table.key(3) is None
    assert table.timestamp_ms(0) == 1357034400000


def test_the_real_table() -> None:
    table = load_flights()
    assert len(table) == 336_776
    first = table.value(0)
    assert first["tailnum"] == "N14228"
    assert first["dep_time"] == 517
    assert sum(table.key(row) is None for row in range(len(table))) == 2_512


def test_all_is_well() -> None:
    found = demo_judged(delivered())
    assert found.good
    assert (found.expected, found.found, found.keys, found.redelivered) == (5, 5, 2, 0)


def test_a_redelivery_is_no_duplicate() -> None:
    messages = delivered()
    found = demo_judged([*messages, messages[0]])
    assert found.good
    assert found.redelivered == 1


def lose(messages: list[Delivered]) -> None:
    del messages[4]


def double(messages: list[Delivered]) -> None:
    messages.append((0, 3, *messages[4][2:]))


def alter(messages: list[Delivered]) -> None:
    messages[1] = (*messages[1][:3], {**messages[1][3], "origin": "XXX"})


def change_key(messages: list[Delivered]) -> None:
    messages[1] = (messages[1][0], messages[1][1], b"N3", messages[1][3])


def misplace(messages: list[Delivered]) -> None:
    messages[4] = (1, 2, *messages[4][2:])


def reorder(messages: list[Delivered]) -> None:
    messages[0], messages[2] = ((0, 0, *messages[2][2:]), (0, 1, *messages[0][2:]))


def invent(messages: list[Delivered]) -> None:
    messages.append((1, 2, None, {"row": 99}))


@pytest.mark.parametrize(
    ("mistake", "where"),
    [
        (lose, "lost"),
        (double, "doubled"),
        (alter, "altered"),
        (change_key, "altered"),
        (misplace, "misplaced"),
        (reorder, "unordered"),
        (invent, "altered"),
    ],
)
def test_each_mistake_is_found(mistake: Callable[[list[Delivered]], None], where: str) -> None:
    messages = delivered()
    mistake(messages)
    found = demo_judged(messages)
    assert not found.good
    assert getattr(found, where)


def test_a_hole_in_the_offsets_is_found() -> None:
    messages = delivered()
    messages[4] = (0, 7, *messages[4][2:])
    assert demo_judged(messages).gaps == ["partition 0: 3 messages, last offset 7"]


async def test_following_logs(tmp_path: Path) -> None:
    path = tmp_path / "broker-1.jsonl"
    path.write_text('not json\n{"event": "old", "ts": "1"}\n')
    follower = LogFollower(tmp_path)
    follower.skip()
    heard: list[str] = []
    follower.listeners.append(lambda event: heard.append(event.event))
    following = asyncio.create_task(follower.run())
    with path.open("a") as log:
        log.write('{"event": "a", "ts": "2", "x": 1}\nTraceback (most')
        log.flush()
        found = await follower.wait_for(lambda event: event.event == "a", 5)
        assert found is not None
        assert (found.node, found.fields) == ("broker-1", {"x": 1})
        log.write(' recent call last)\n{"event": "b", "ts": "3"}\n')
        log.flush()
        assert await follower.wait_for(lambda event: event.event == "b", 5)
    assert await follower.wait_for(lambda event: event.event == "c", 0.05) is None
    following.cancel()
    assert heard == ["a", "b"]


def test_recovery_in_words() -> None:
    said = recovery_step_in_words(
        json.loads(
            '{"step": 3, "what": "FenceAnswered", "bookie_id": "b1", "answer": "last entry 9", '
            '"last_add_confirmed": 8}'
        )
    )
    assert said == "step 3: fence b1: last entry 9, last confirmed 8"
    assert in_words("nothing_special", {}) is None
    assert in_words("bookie_lost", {"bookie": "b", "reason": "this client is closing"}) is None
