"""Options of the Spark source and sink, and the sink's decisions."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType

from octavo.broker.types import TopicName, TopicSettings
from octavo.client.types import TopicName as ColumnsTopicName
from octavo.pipeline.packages import KAFKA
from octavo.pipeline.replay import ReplayOptions, replay
from octavo.pipeline.runner import run_job
from octavo.protocol.batch import check_batch, read_header
from octavo.protocol.records import build_batch, partition_for, read_records
from octavo.spark import commit
from octavo.spark import sink_producer as producing
from octavo.spark.arrow import ArrowBuilder, shown
from octavo.spark.batches import StoredBatch
from octavo.spark.cluster import connected
from octavo.spark.columns import (
    EVERY,
    checked_schema,
    options_in,
    schema_of,
    with_options,
)
from octavo.spark.commit import parts_of
from octavo.spark.options import LIMITS_SINCE, InvalidOption, source_options, table_options
from octavo.spark.readers import OctavoStreamReader
from octavo.spark.reading import Split
from octavo.spark.sink_message import Written
from octavo.spark.sink_options import SinkOptions, checked_columns, sink_options
from octavo.spark.sink_rows import BadRow, RowRouter, Rows, Target, batches_of
from octavo.spark.source import OctavoDataSource
from octavo.spark.splits import DataLost, Minimum
from tests.spark.matrix import VERSIONS
from tests.support.cluster import TOPIC, make_topic, owned, running_cluster
from tests.support.cluster import batch as cluster_batch
from tests.support.published import seen_by_readers
from tests.support.spark_place import ROWS, WHOLE, Place, running_place, values_of
from tests.support.vanished_host import vanished_host

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

# As in Kafka's source: a micro-batch waits for `minOffsetsPerTrigger` rows, at most
# `maxTriggerDelay` after the one before. The first does not wait, nor do the rows that AvailableNow
# found when it began.

MORE = str(2 * len(WHOLE))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with running_place(tmp_path) as found:
        yield found


def stream_of(place: Place, **given: str) -> OctavoStreamReader:
    asked = {"service": place.service, "subscribe": "flights", "startingOffsets": "earliest"}
    options = source_options({**asked, **given}, streaming=True)
    return OctavoStreamReader(options, checked_schema(schema_of(options), options))


async def batches(stream: OctavoStreamReader, *, now: bool) -> list[int]:
    """Yield the sizes of the micro-batches, as Spark asks for them, until there is no new
    offset."""

    def all_of_them() -> list[int]:
        if now:
            stream.prepareForTriggerAvailableNow()
        begin = stream.initialOffset()
        sizes = []
        while (end := stream.latestOffset(begin, stream.getDefaultReadLimit())) != begin:
            sizes.append(sum_of(end) - sum_of(begin))
            begin = end
        return sizes

    try:
        return await asyncio.to_thread(all_of_them)
    finally:
        await asyncio.to_thread(stream.stop)


def sum_of(offsets: dict[str, Any]) -> int:
    (by_partition,) = offsets.values()
    return int(by_partition["0"])


@pytest.mark.timeout(600)
async def test_available_now_reads_to_its_end(place: Place) -> None:
    both = stream_of(place, minOffsetsPerTrigger="100", maxOffsetsPerTrigger="100")
    assert await batches(both, now=True) == [100, 100, len(WHOLE) - 200]
    alone = stream_of(place, minOffsetsPerTrigger=MORE)
    assert await batches(alone, now=True) == [len(WHOLE)]


@pytest.mark.timeout(600)
async def test_the_first_does_not_wait_and_the_next_does(place: Place) -> None:
    stream = stream_of(place, minOffsetsPerTrigger="15")

    def step(begin: dict[str, Any]) -> dict[str, Any]:
        return stream.latestOffset(begin, stream.getDefaultReadLimit())

    try:
        begin = await asyncio.to_thread(stream.initialOffset)
        end = await asyncio.to_thread(step, begin)
        assert sum_of(end) == len(WHOLE)
        for due in (False, True):
            seen = seen_by_readers(place.service, "flights", ROWS)
            await asyncio.to_thread(seen.__enter__)
            await place.publish(100, 1)
            await asyncio.to_thread(seen.__exit__, None, None, None)
            reached = await asyncio.to_thread(step, end)
            assert (reached != end) is due, "10 rows are too few, 20 are not"
            everything = await asyncio.to_thread(stream.latestOffset, end, ReadAllAvailable())
            assert sum_of(everything) > sum_of(end), "Trigger.Once takes what there is"
    finally:
        await asyncio.to_thread(stream.stop)


@pytest.mark.timeout(600)
async def test_a_bound_is_what_spark_is_told(place: Place) -> None:
    assert stream_of(place, minOffsetsPerTrigger="7").getDefaultReadLimit() == ReadMinRows(7)
    both = stream_of(place, minOffsetsPerTrigger="7", maxOffsetsPerTrigger="9")
    assert both.getDefaultReadLimit() == ReadMaxRows(9)
    with pytest.raises(InvalidOption, match=r"\(9\) is above maxOffsetsPerTrigger \(7\)"):
        stream_of(place, minOffsetsPerTrigger="9", maxOffsetsPerTrigger="7")


@pytest.mark.timeout(600)
def test_a_delay_counts_from_the_batch_before() -> None:
    minimum = Minimum(10, 1000)
    asked = [(0, 5), (100, 5), (999, 9), (1000, 1), (1500, 9), (1600, 10), (2599, 9), (2600, 9)]
    met = [now for now, rows in asked if minimum.is_met(rows, now)]
    assert met == [0, 1000, 1600, 2600]
    assert all(Minimum(None, 1000).is_met(0, now) for now in range(3)), "without one: always"


# For a table, Spark passes each option twice, once with `option.` before it, and the table's
# properties. A mistyped option is still named.

SEEN = {"provider": "octavo", "owner": "root", "team.name": "x", "location": "file:/w/t"}
"""Spark's additions to the options; seen with Spark 4.3."""


def table(**options: str) -> dict[str, str]:
    lower = {name.lower(): value for name, value in options.items()}
    return {**SEEN, **lower, **{f"option.{name}": value for name, value in lower.items()}}


def test_what_spark_adds_is_passed_over() -> None:
    given = table(service="http://x", subscribe="a", startingOffsets="latest")
    found = source_options(given, streaming=False)
    assert (found.selection.topics, found.starting.offset) == (("public/a",), -1)
    plain = {"service": "http://x", "subscribe": "a", "path": "/w", "serialization.format": "1"}
    assert source_options(plain, streaming=False).selection.topics == ("public/a",)


def test_a_table_is_read_and_written() -> None:
    given = table(service="http://x", subscribe="a", topic="b", startingOffsets="latest")
    assert source_options(given, streaming=False).selection.topics == ("public/a",)
    assert sink_options(given, streaming=False).topic == "public/b"
    for read in (source_options, sink_options):
        with pytest.raises(InvalidOption, match="unknown option"):
            read({"service": "http://x", "subscribe": "a", "topic": "b"}, streaming=False)


def test_one_query_goes_before_its_table() -> None:
    given = {**table(service="http://x", subscribe="a"), "subscribe": "b"}
    assert source_options(given, streaming=False).selection.topics == ("public/b",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (table(service="http://x", subscribe="a", startingOfsets="0"), "meant: startingOffsets?"),
        ({**table(service="http://x", subscribe="a"), "startingofsets": "0"}, "startingofsets"),
        ({"service": "http://x", "subscribe": "a", "owner": "me"}, "unknown option owner;"),
        ({"service": "http://x", "subscribe": "a", "option.": "1"}, "unknown option ;"),
        ({"service": "http://x", "kafka.bootstrap.servers": "h"}, "kafka.bootstrap.servers"),
        (SEEN | {"subscribe": "a"}, "unknown option location, owner, provider, team.name"),
        ({}, "use CREATE TEMPORARY VIEW"),
    ],
)
def test_what_is_not_ours_nor_sparks_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        source_options(given, streaming=False)
    assert said in str(refused.value)


# A batch that starts behind the end of its topic is lost data, as in Kafka's source: refused, or
# skipped with `failOnDataLoss=false`. It had no rows and no error.

END = len(WHOLE)
SAID = rf"public/flights partition 0: .* offset {END + 1}, but the partition ends at {END}"


def at(offset: int) -> str:
    return json.dumps({"flights": {"0": offset}})


@pytest.mark.timeout(600)
async def test_a_batch(place: Place) -> None:
    with pytest.raises(DataLost, match=SAID):
        await place.planned(startingOffsets=at(END + 1))
    for start, options in ((END, {}), (END + 1, {"failOnDataLoss": "false"})):
        _, splits = await place.planned(startingOffsets=at(start), **options)
        assert not any(split.parts for split in splits), "at the end there is nothing, and no error"


@pytest.mark.timeout(600)
async def test_a_stream(place: Place) -> None:
    def initial(**given: str) -> dict[str, object]:
        asked = {"service": place.service, "subscribe": "flights", **given}
        options = source_options(asked, streaming=True)
        stream = OctavoStreamReader(options, checked_schema(schema_of(options), options))
        try:
            return stream.initialOffset()
        finally:
            stream.stop()

    with pytest.raises(DataLost, match=SAID):
        await asyncio.to_thread(initial, startingOffsets=at(END + 1))
    given = {"startingOffsets": at(END + 1), "failOnDataLoss": "false"}
    begin = await asyncio.to_thread(partial(initial, **given))
    assert f'"0": {END}' in json.dumps(begin)


@pytest.mark.timeout(600)
async def test_bounds_that_are_the_wrong_way_round(place: Place) -> None:
    with pytest.raises(InvalidOption, match="starting offset 9 is after the ending offset 3"):
        await place.planned(startingOffsets=at(9), endingOffsets=at(3))
    with pytest.raises(
        InvalidOption, match=r"startingTimestamp \(9\) is after endingTimestamp \(3\)"
    ):
        await place.planned(startingTimestamp="9", endingTimestamp="3")
    _, splits = await place.planned(startingOffsets=at(9), endingOffsets=at(9))
    assert not any(split.parts for split in splits)


@pytest.mark.timeout(600)
async def test_a_replay(place: Place) -> None:
    await place.broker.topics.create(TopicName("public", "again"), TopicSettings(partitions=1))
    options = ReplayOptions("flights", "again", {"startingOffsets": at(END + 1)})
    work = partial(replay, options=options)
    with pytest.raises(DataLost, match=SAID):
        await asyncio.to_thread(run_job, "replay", work, service=place.service, say=print)


# The source's output can be written as with Kafka's; a missing target is one error of the driver.

ALL = StructType([StructField(*one) for one in EVERY.items()])
VALUE = StructType([StructField("value", BinaryType())])


def test_every_column_of_the_source_may_come() -> None:
    options = sink_options({"service": "http://x"}, streaming=False)
    checked_columns(ALL, options)
    with pytest.raises(InvalidOption, match=r"unknown column ofset: the sink knows"):
        checked_columns(StructType([*ALL.fields, StructField("ofset", LongType())]), options)


@pytest.mark.parametrize(("topic", "name"), [("public/mixed", "mixed"), ("lab/a", "lab/a")])
def test_a_message_comes_back_as_it_went(topic: str, name: str) -> None:
    records: list[Any] = [(b"k", b"v", [("h", b"1")], 7, 0), (b"", None, [], 8, 1)]
    data = build_batch(records)
    builder = ArrowBuilder(tuple(EVERY))
    builder.add(StoredBatch(topic, 2, 5, 0, 100, read_header(data), data), 100, 102)
    rows = builder.take()
    assert rows.column("topic").to_pylist() == [name, name] == 2 * [shown(topic)]
    assert str(ColumnsTopicName.of(name)) == topic, "the same topic to whoever writes it"
    assert rows.column("headers").to_pylist() == [[{"key": "h", "value": b"1"}], None]
    options = sink_options({"service": "http://x"}, streaming=False)
    router = RowRouter(options, lambda _: 3, 0, 0)
    router.add(rows)
    ((target, again),) = router.rest()
    assert target == Target(topic, 2)
    told = [
        (one.key, one.value, list(one.headers), one.timestamp_ms) for one in read_records(again)
    ]
    assert told == [tuple(one[:4]) for one in records]


async def test_a_missing_target_is_told_by_the_driver(place: Place) -> None:
    """Before any task runs, in a batch as in a stream."""

    async def made(topic: str, **options: str) -> None:
        sink = OctavoDataSource({"service": place.service, "topic": topic, **options})
        await asyncio.to_thread(sink.writer, VALUE, overwrite=False)
        await asyncio.to_thread(sink.streamWriter, VALUE, overwrite=False)

    await made("flights")
    await made("flights", partition="0")
    with pytest.raises(
        InvalidOption, match="no topic public/nix; PUT /v1/topics/public/nix creates"
    ):
        await made("nix")
    with pytest.raises(InvalidOption, match="topic public/flights has partitions 0 to 0"):
        await made("flights", partition="1")


def test_a_cluster_that_does_not_answer_is_not_one_without_the_topic() -> None:
    """The tasks ask again; the cluster may answer by then."""
    sink = OctavoDataSource({"service": "http://127.0.0.1:1", "topic": "flights"})
    sink.streamWriter(VALUE, overwrite=False)


# A stream at offset 20 of a deleted topic took the new topic of that name for its own. Offsets in
# checkpoints carry the topic's incarnation.


@pytest.fixture
async def renewed_place(tmp_path: Path) -> AsyncIterator[Place]:
    async with running_cluster(tmp_path, session_timeout_ms=60_000) as cluster:
        broker = await cluster.start("A")
        name = await make_topic(broker.broker)
        made = Place(cluster, broker, name)
        await publish(made, 20, "old")
        yield made


async def publish(place: Place, count: int, tag: str) -> None:
    partition = await owned(place.broker, place.name)
    await partition.publish(cluster_batch(count, tag=tag))
    async with asyncio.timeout(15), connected(place.service) as cluster:
        # Bookies learn the last add confirmed a moment later.
        while (await cluster.view(str(TOPIC), 0)).end < partition.next_offset:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def made_anew(place: Place, count: int) -> None:
    await place.broker.topics.delete(TOPIC)
    await place.broker.topics.create(TOPIC, TopicSettings())
    await publish(place, count, "new")


class Stream:
    def __init__(self, place: Place, **given: str) -> None:
        options = source_options(
            {
                "service": place.service, "subscribe": "flights", "columns": "value,offset",
                "startingOffsets": "earliest", **given,
            },
            streaming=True,
        )  # fmt: skip
        self.reader = OctavoStreamReader(options, checked_schema(schema_of(options), options))

    async def first(self) -> dict[str, Any]:
        return await asyncio.to_thread(self.reader.initialOffset)

    async def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        limit = self.reader.getDefaultReadLimit()
        found = await asyncio.to_thread(self.reader.latestOffset, start, limit)
        return json.loads(json.dumps(found))  # as a checkpoint keeps it

    async def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
        def read() -> list[str]:
            splits = self.reader.partitions(start, end)
            return [one for split in splits for one in values_of(list(self.reader.read(split)))]

        return await asyncio.to_thread(read)

    async def stop(self) -> None:
        await asyncio.to_thread(self.reader.stop)


@pytest.mark.parametrize("count", [12, 25])
async def test_it_fails_and_says_why(renewed_place: Place, count: int) -> None:
    stream = Stream(renewed_place)
    try:
        begin = await stream.first()
        seen = await stream.latest(begin)
        assert len(await stream.rows(begin, seen)) == 20
        await made_anew(renewed_place, count)
        with pytest.raises(DataLost, match="deleted and created again; it was at offset 20"):
            await stream.latest(seen)
        with pytest.raises(DataLost, match="deleted and created again"):
            await stream.rows(begin, seen)  # planned before and not committed
    finally:
        await stream.stop()


@pytest.mark.parametrize("count", [12, 25])
async def test_without_fail_on_data_loss_it_begins_anew(renewed_place: Place, count: int) -> None:
    stream = Stream(renewed_place, failOnDataLoss="false")
    try:
        begin = await stream.first()
        seen = await stream.latest(begin)
        await made_anew(renewed_place, count)
        after = await stream.latest(seen)
        assert await stream.rows(seen, after) == [f"new-{n}" for n in range(count)]
        assert await stream.rows(begin, seen) == [], "nothing is left of the old one"
        await publish(renewed_place, 7, "more")
        more = await stream.latest(after)
        assert await stream.rows(after, more) == [f"more-{n}" for n in range(7)]
    finally:
        await stream.stop()


async def test_a_checkpoint_of_an_older_version_is_read(renewed_place: Place) -> None:
    stream = Stream(renewed_place)
    try:
        old = {"public/flights": {"0": 15}}
        after = await stream.latest(old)
        assert await stream.rows(old, after) == [f"old-{n}" for n in range(15, 20)]
        assert await stream.rows(old, {"public/flights": {"0": 18}}) == [
            "old-15",
            "old-16",
            "old-17",
        ]
    finally:
        await stream.stop()


@pytest.mark.parametrize("fail", ["true", "false"])
async def test_a_batch_read_that_was_planned_before(
    renewed_place: Place, fail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.spark.stored._PAUSE_S", 0.01)
    async with asyncio.timeout(15):
        while True:
            reader, splits = await renewed_place.planned(failOnDataLoss=fail)
            if sum(piece.end - piece.start for split in splits for piece in split.parts) == 20:
                break
    ledgers = [piece.ledger_id for split in splits for piece in split.parts]
    await made_anew(renewed_place, 25)
    for ledger_id in ledgers:
        await renewed_place.forget(ledger_id)

    def read(split: Split) -> list[str]:
        return values_of(list(reader.read(split)))

    if fail == "false":
        assert [await asyncio.to_thread(read, split) for split in splits] == [[]]
    else:
        with pytest.raises(DataLost, match="deleted and created again"):
            await asyncio.to_thread(read, splits[0])


async def test_the_next_broker_is_asked_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata names a vanished broker until its session ends, and its host refuses
    nothing. With one bound of 60 s for connecting and answer, two such brokers took the whole
    `commitTimeout`."""
    asked: list[str] = []

    async def abort(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"ledgers": [7]})

    app = web.Application()
    app.router.add_post("/v1/bulk-loads/t/batches/0/abort", abort)
    async with TestServer(app) as live:
        with vanished_host() as vanished:

            async def urls(_: str) -> list[str]:
                return [vanished, str(live.make_url("")).rstrip("/")]

            async def proof(*_: object) -> commit._Proof:
                return commit._Proof("", "")

            monkeypatch.setattr(commit, "_urls", urls)
            monkeypatch.setattr(commit, "_proof", proof)
            # Half of an answer's time: with one bound for all, the time would be over.
            assert await commit.give_up("octavo.db", "t", 0, [7], 30_000) == [7]
    assert len(asked) == 1


def test_a_tables_columns_keep_its_options() -> None:
    """Spark does not pass a table's options to its queries, but does pass its columns."""
    given = {"option.service": "http://x", "option.subscribe": "a", "service": "http://x",
             "subscribe": "a", "provider": "octavo"}  # fmt: skip
    kept = {"service": "http://x", "subscribe": "a"}
    assert table_options(given) == kept
    assert table_options(kept) == {}
    plain = schema_of(source_options({"service": "http://x", "subscribe": "a"}, streaming=False))
    columns = StructType.fromJson(with_options(plain, kept).jsonValue())  # as catalogs store them
    assert options_in(columns) == kept
    assert columns.names == plain.names
    assert checked_schema(columns, source_options(kept, streaming=False))
    assert with_options(plain, {}) is plain
    assert options_in(plain) == {}


def test_the_page_says_what_each_version_of_spark_can_do() -> None:
    text = Path(__file__).parents[3].joinpath("docs/spark.md").read_text()
    section = text.split("## Versions of Spark")[1].split("## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| 4.")
    ]
    minors = [version.rsplit(".", 1)[0] for version in VERSIONS]
    assert [row[0] for row in rows] == list(VERSIONS)
    for minor, (_, able, limits, kafka) in zip(minors, rows, strict=True):
        assert able == "yes"
        assert limits == ("yes" if minor >= LIMITS_SINCE else "refused")
        assert kafka == KAFKA.newest[minor].rsplit(":", 1)[1]


# The Spark sink's decisions before any write: options, columns, partitions, batches.
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


def rows_table(**columns: Any) -> pa.RecordBatch:
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
    one.add(rows_table(value=[b"x", b"y"], timestampMillis=[-1, NOW_MS]))
    assert producing.odd_time(one.take()) is None
    one.add(rows_table(value=[b"x", b"y"], timestampMillis=[-1, NOW_MS * 1_000]))
    assert producing.odd_time(one.take()) == NOW_MS * 1_000
    assert "microseconds" in str(producing.refused(NOW_MS * 1_000))


def test_the_option_goes_before_the_column() -> None:
    one = router(topic="a", partition="2")
    one.add(rows_table(value=[b"x"], topic=["b"], key=[b"k"], partition=[0]))
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
        router().add(rows_table(**columns))


@pytest.mark.parametrize("name", ["none", "gzip", "zstd"])
def test_batches_are_packed_as_asked(name: str) -> None:
    one = router(topic="b", compression=name)
    one.add(rows_table(value=[b"x" * 2000] * 20))
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
    full = one.add(rows_table(value=values)) + one.rest()
    two = router(topic="b")
    assert two.add(rows_table(value=values)) == []
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
