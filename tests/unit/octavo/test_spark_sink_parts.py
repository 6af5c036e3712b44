"""The Spark sink's decisions before any write: options, columns, partitions, batches."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType

from octavo.protocol.batch import check_batch, read_header
from octavo.protocol.records import partition_for, read_records
from octavo.spark import sink_producer as producing
from octavo.spark.commit import parts_of
from octavo.spark.options import InvalidOption
from octavo.spark.sink_message import Written
from octavo.spark.sink_options import SinkOptions, checked_columns, sink_options
from octavo.spark.sink_rows import BadRow, RowRouter, Rows, Target, batches_of

NOW_MS = 1_700_000_000_000
PARTITIONS = {"public/a": 3, "public/b": 1, "lab/c": 5}


def router(turn: int = 0, **options: str) -> RowRouter:
    given = {"service": "http://x", **options}
    return RowRouter(sink_options(given, streaming=False), PARTITIONS.__getitem__, turn, NOW_MS)


def told(found: list[tuple[Target, bytes]]) -> dict[Target, list[tuple[bytes | None, ...]]]:
    """Return target → key and value of each row, in order; check that every batch is whole."""
    rows: dict[Target, list[tuple[bytes | None, ...]]] = {}
    for target, batch in found:
        assert check_batch(batch).total_bytes == len(batch)
        rows.setdefault(target, []).extend((one.key, one.value) for one in read_records(batch))
    return rows


rows = st.lists(
    st.tuples(st.none() | st.binary(max_size=4), st.none() | st.binary(max_size=60)), max_size=60
)


@given(st.lists(rows, max_size=4), st.integers(0, 9), st.sampled_from(["64", "200", "1m"]))
def test_every_row_once_in_order_where_its_key_belongs(
    given: list[list[tuple[bytes | None, bytes | None]]], turn: int, batch_bytes: str
) -> None:
    one = router(turn, topic="a", batchBytes=batch_bytes)
    found: list[Any] = []
    for part in given:
        keys, values = [key for key, _ in part], [value for _, value in part]
        arrays = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
        found += one.add(pa.RecordBatch.from_arrays(arrays, names=["key", "value"]))
    found += one.rest()
    expected: dict[Target, list[tuple[bytes | None, ...]]] = {}
    for key, value in (row for part in given for row in part):
        number = turn % 3 if key is None else partition_for(key, 3)
        expected.setdefault(Target("public/a", number), []).append((key, value))
    assert told(found) == expected
    limit = int(batch_bytes) if batch_bytes.isdigit() else 2**20
    for _, batch in found:
        records = list(read_records(batch))
        size = sum(16 + len(r.key or b"") + len(r.value or b"") for r in records)
        assert len(records) == 1 or size <= limit


def table(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_columns_name_topic_partition_time_and_headers() -> None:
    one = router()
    when = datetime(2023, 1, 1, tzinfo=UTC)
    headers = pa.array(
        [[{"key": "h", "value": b"1"}], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["x", "y"]), pa.array(["b", "lab/c"]), pa.array([None, 4], pa.int32()),
            pa.array([when, None], pa.timestamp("us", tz="UTC")), headers,
        ],
        names=["value", "topic", "partition", "timestamp", "headers"],
    )  # fmt: skip
    assert one.add(batch) == []
    found = dict(one.rest())
    (first,) = read_records(found[Target("public/b", 0)])
    assert (first.value, first.timestamp_ms) == (b"x", int(when.timestamp() * 1000))
    assert list(first.headers) == [("h", b"1")]
    (second,) = read_records(found[Target("lab/c", 4)])
    assert (second.timestamp_ms, list(second.headers)) == (NOW_MS, [])


def test_a_row_without_a_date_keeps_the_number_that_was_stored() -> None:
    """Decision 63. The date wins over the number, since a query may have changed it."""
    numbers = [-1, NOW_MS * 1_000, -5, NOW_MS * 10**6, 7, None]
    when = datetime(2023, 1, 1, tzinfo=UTC)
    arrays = [
        pa.array([b"x"] * 6), pa.array([None] * 4 + [when, None], pa.timestamp("us", tz="UTC")),
        pa.array(numbers, pa.int64()),
    ]  # fmt: skip
    wanted = [*numbers[:4], int(when.timestamp() * 1000), NOW_MS]
    for names in (["value", "timestamp", "timestampMillis"], ["value", "timestampMillis"]):
        one = router(topic="a", partition="0")
        one.add(pa.RecordBatch.from_arrays([arrays[0], *arrays[4 - len(names) :]], names=names))
        ((_, batch),) = one.rest()
        found = [row.timestamp_ms for row in read_records(batch)]
        assert found == (wanted if len(names) == 3 else [*numbers[:5], NOW_MS])


def test_rows_that_brokers_refuse_are_not_published() -> None:
    one = router(topic="a", partition="0")
    one.add(table(value=[b"x", b"y"], timestampMillis=[-1, NOW_MS]))
    assert producing.odd_time(one.take()) is None
    one.add(table(value=[b"x", b"y"], timestampMillis=[-1, NOW_MS * 1_000]))
    assert producing.odd_time(one.take()) == NOW_MS * 1_000
    assert "microseconds" in str(producing.refused(NOW_MS * 1_000))


def test_the_option_goes_before_the_column() -> None:
    one = router(topic="a", partition="2")
    one.add(table(value=[b"x"], topic=["b"], key=[b"k"], partition=[0]))
    assert [target for target, _ in one.rest()] == [Target("public/a", 2)]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"value": [b"x"], "topic": pa.array([None], pa.string())}, "topic is null"),
        ({"value": [b"x"], "topic": ["a/b/c"]}, "column topic"),
        ({"value": [b"x"], "topic": ["a"], "partition": [3]}, "partitions 0 to 2, not 3"),
    ],
)
def test_a_row_that_cannot_be_is_told_apart(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRow, match=why):
        router().add(table(**columns))


@pytest.mark.parametrize("name", ["none", "gzip", "zstd"])
def test_batches_are_packed_as_asked(name: str) -> None:
    one = router(topic="b", compression=name)
    one.add(table(value=[b"x" * 2000] * 20))
    ((_, batch),) = one.rest()
    assert [row.value for row in read_records(batch)] == [b"x" * 2000] * 20
    assert (len(batch) < 5_000) == (name != "none")


@pytest.mark.parametrize(
    ("given", "streaming", "why"),
    [
        ({"topic": "a"}, False, "service is missing"),
        ({"service": "http://x", "subscribe": "a"}, False, "unknown option subscribe"),
        ({"service": "http://x", "topic": "a/b/c"}, False, "option topic"),
        ({"service": "http://x", "bulkLoadBatch": "1"}, False, "give bulkLoadId too"),
        ({"service": "http://x", "bulkLoadId": "a"}, True, "a stream has its query id"),
        ({"service": "http://x", "bulkLoadId": "a/b"}, False, "letters, digits"),
        ({"service": "http://x", "partition": "-1"}, False, "whole number, 0 or more"),
        ({"service": "http://x", "compression": "rar"}, False, "one of none, gzip"),
        ({"service": "http://x", "commit": "kafka"}, False, "one of bulk-load, producer, auto"),
    ],
)
def test_options_that_cannot_be(given: Mapping[str, str], streaming: bool, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        sink_options(given, streaming=streaming)


FORMER = {"txnId": "n", "txnVersion": "3", "commit": "splice"}
NOW = {"bulkLoadId": "n", "bulkLoadBatch": "3", "commit": "bulk-load"}


@pytest.mark.parametrize("of_table", ["", "option."])
def test_options_of_0_1_mean_what_todays_mean_and_warn(of_table: str) -> None:
    def options(given: Mapping[str, str]) -> SinkOptions:
        all_of = {"service": "http://x", **given}
        return sink_options({of_table + name: all_of[name] for name in all_of}, streaming=False)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        now = options(NOW)
    assert (now.bulk_load, now.batch, now.commit) == ("n", 3, "bulk-load")
    with pytest.warns(FutureWarning) as told:
        assert options(FORMER) == now
    assert len(told) == len(FORMER), [str(one.message) for one in told]
    for was, today in {"txnId": "bulkLoadId", "txnVersion": "bulkLoadBatch"}.items():
        with pytest.raises(InvalidOption, match="give only"):
            options({**NOW, was: "1", today: "1"})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"key": StringType()}, "no column value"),
        ({"value": LongType()}, "it must be binary or string"),
        ({"value": BinaryType(), "other": StringType()}, "unknown column other"),
        ({"value": BinaryType(), "headers": ArrayType(StringType())}, "array<struct<key"),
    ],
)
def test_columns_that_cannot_be(fields: dict[str, Any], why: str) -> None:
    options = sink_options({"service": "http://x", "topic": "a"}, streaming=False)
    with pytest.raises(InvalidOption, match=why):
        checked_columns(StructType([StructField(*one) for one in fields.items()]), options)


@given(st.lists(rows, max_size=3), st.randoms(use_true_random=False))
def test_rows_have_one_fingerprint_in_any_order_and_any_share_of_tasks(
    tasks: list[list[tuple[bytes | None, bytes | None]]], rng: Random
) -> None:
    target = Target("public/a", 0)

    def merged(tasks: list[list[tuple[bytes | None, bytes | None]]], time_ms: int) -> Rows:
        found = []
        for task in tasks:
            one = Rows()
            one.rows = [(*row, (), time_ms, 0) for row in task]
            found.append({target: one})
        return producing.together(found).get(target, Rows())

    everything = [row for task in tasks for row in task]
    first = merged(tasks, 1)
    assert [row[:2] for row in first.rows] == everything
    rng.shuffle(everything)
    cut = len(everything) // 2
    second = merged([everything[:cut], everything[cut:]], 2)
    assert producing.fingerprint(first.rows) == producing.fingerprint(second.rows)
    assert len(producing.fingerprint(first.rows)) <= 100
    if everything:
        less = producing.fingerprint(second.rows[1:])
        assert less != producing.fingerprint(first.rows)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((b"a", b"b"), (b"ab", b"")),
        ((b"a", None), (b"a", b"")),
        ((None, b"a"), (b"a", None)),
        ((b"1 a", b""), (b"1", b"a")),
    ],
)
def test_rows_that_differ_have_other_fingerprints(
    one: tuple[bytes | None, bytes | None], other: tuple[bytes | None, bytes | None]
) -> None:
    found = [producing.fingerprint([(*row, (), 1, 0)]) for row in (one, other)]
    assert found[0] != found[1]
    with_header = producing.fingerprint([(*one, [("h", b"x")], 1, 0)])
    assert with_header not in found
    assert producing.fingerprint([(*one, [("hx", b"")], 1, 0)]) != with_header


def test_a_producer_is_of_an_id_and_its_epochs_are_batches() -> None:
    first = producing.producer_of("q", 0)
    assert producing.producer_of("q", 0) == first
    assert producing.producer_of("q", 1) == (first.producer_id, 1)
    later = producing.producer_of("q", 2**15)
    assert (later.producer_id != first.producer_id, later.epoch) == (True, 0)
    assert producing.producer_of("p", 0).producer_id != first.producer_id


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=40), st.sampled_from(["64", "200"]))
def test_rows_of_the_driver_are_cut_as_those_of_a_task(values: list[bytes], size: str) -> None:
    one = router(topic="b", batchBytes=size)
    full = one.add(table(value=values)) + one.rest()
    two = router(topic="b")
    assert two.add(table(value=values)) == []
    ((target, share),) = two.take().items()
    assert two.rest() == []
    options = sink_options({"service": "x", "topic": "b", "batchBytes": size}, streaming=True)
    assert [(target, batch) for batch in batches_of(share, options)] == full
    header = read_header(producing.record_batch(share, producing.producer_of("q", 3), options))
    assert (header.producer_epoch, header.base_sequence) == (3, 0)
    assert header.record_count == len(values)


def test_parts_keep_the_order_of_the_tasks() -> None:
    written = [Written("public/a", n % 2, n, 1, 10, 5, 6, 1) for n in range(4)]
    assert [
        (one["topic"], one["partition"], [ledger["id"] for ledger in one["ledgers"]])
        for one in parts_of(written)
    ] == [("public/a", 0, [0, 2]), ("public/a", 1, [1, 3])]
