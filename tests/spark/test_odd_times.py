"""Impossible calendar times on a real Spark are read with a null date and the number, which
copies keep. Spark ended with Arrow's error on a message in microseconds (decision 63)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pyarrow.parquet as pq
import pytest

from octavo import Client
from octavo.broker.http.call import RECORD_BATCH
from octavo.pipeline.compact import CompactOptions, compact
from octavo.pipeline.compact_rules import CompactPolicy
from octavo.pipeline.export import ExportOptions, export
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.replay import ReplayOptions, replay
from octavo.pipeline.runner import Run, run_job, selection_of
from octavo.protocol.batch import HEADER_BYTES, read_header, sealed
from octavo.protocol.records import Record, build_batch
from tests.support.published import seen_by_readers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

NOW_MS = 1_764_000_000_000
TIMES = [NOW_MS, NOW_MS * 1_000, NOW_MS * 10**6, -5, -1, NOW_MS + 1]
DATED = {NOW_MS, NOW_MS + 1}
SOURCE = "odd-times"
COLUMNS = "key,value,topic,partition,offset,timestamp,timestampMillis"


@pytest.fixture(scope="module")
def client(service: str) -> Iterator[Client]:
    with Client(service) as found:
        yield found


@pytest.fixture(scope="module", autouse=True)
def _stored(service: str, client: Client) -> None:
    """Store messages as an older version did: the header of their batch shows no odd time."""
    client.create_topic(SOURCE)
    records = [
        Record(b"k%d" % number, b"v%d" % number, (), time_ms)
        for number, time_ms in enumerate(TIMES)
    ]
    honest = build_batch(records)
    header = read_header(honest)._replace(max_timestamp=max(DATED))
    alone = build_batch([Record(b"k9", b"v9", (), -1)])
    with seen_by_readers(service, SOURCE, len(TIMES) + 1):
        for batch in (sealed(header, honest[HEADER_BYTES:]), alone):
            asked = Request(
                f"{service}/v1/topics/public/{SOURCE}/messages",
                batch,
                {"Content-Type": RECORD_BATCH},
            )
            with urlopen(asked, timeout=30) as answer:
                assert answer.status == 200


def wanted() -> list[tuple[bytes, int | None, int]]:
    times = {b"k%d" % number: time_ms for number, time_ms in enumerate(TIMES)} | {b"k9": -1}
    return [(key, ms if ms in DATED else None, ms) for key, ms in times.items()]


def told(frame: DataFrame) -> list[tuple[bytes, int | None, int]]:
    return sorted(
        (bytes(row.key), ms_of(row.timestamp), row.timestampMillis) for row in frame.collect()
    )


def ms_of(date: Any) -> int | None:
    return None if date is None else round(date.timestamp() * 1000)


Read = Callable[..., "DataFrame"]


@pytest.fixture(scope="module")
def read(spark: SparkSession, service: str) -> Read:
    def of(topic: str = SOURCE, **options: str) -> DataFrame:
        reader = spark.read.format("octavo").options(service=service, subscribe=topic)
        return reader.options(columns=COLUMNS, **options).load()

    return of


@pytest.fixture(scope="module")
def job(spark: SparkSession, service: str) -> Callable[[Callable[[Run], Outcome]], Outcome]:
    return lambda work: run_job("odd", work, service=service, say=lambda _: None)


def test_a_batch_query_reads_null_beside_the_number(read: Read) -> None:
    assert told(read()) == wanted()
    assert read().where("timestamp IS NULL").count() == len(TIMES) + 1 - len(DATED)


def test_a_time_is_looked_for_among_those_that_have_a_date(read: Read) -> None:
    found = read(startingTimestamp=str(NOW_MS + 1))
    assert sorted(bytes(row.key) for row in found.collect()) == [b"k5", b"k9"]


@pytest.mark.parametrize("commit", ["bulk-load", "auto"])
def test_a_stream_reads_them_and_the_sink_stores_the_same_numbers(
    spark: SparkSession, service: str, client: Client, read: Read, tmp_path: Path, commit: str
) -> None:
    target = f"odd-streamed-{commit}"
    client.create_topic(target, partitions=2)
    rows = spark.readStream.format("octavo").options(
        service=service, subscribe=SOURCE, startingOffsets="earliest", columns=COLUMNS
    )
    kept = rows.load().select("key", "value", "timestamp", "timestampMillis")
    with seen_by_readers(service, target, len(wanted())):
        query = (
            kept.writeStream.format("octavo")
            .options(service=service, topic=target, commit=commit)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(600)
        assert query.exception() is None
    assert told(read(target)) == wanted()


def test_a_producers_commit_says_what_brokers_refuse(
    service: str, client: Client, read: Read
) -> None:
    client.create_topic("odd-published")
    write = read().select("key", "value", "timestampMillis").write.format("octavo")
    write = write.options(service=service, topic="odd-published", commit="producer")
    with pytest.raises(Exception, match=r"which brokers refuse .* set commit to auto"):
        write.mode("append").save()
    assert read("odd-published").count() == 0


def test_replay_stores_the_same_numbers(
    service: str, client: Client, read: Read, job: Callable[[Callable[[Run], Outcome]], Outcome]
) -> None:
    client.create_topic("odd-again", partitions=2)
    with seen_by_readers(service, "odd-again", len(wanted())):
        outcome = job(lambda run: replay(run, ReplayOptions(SOURCE, "odd-again")))
    assert (outcome.exit, outcome.summary["rows"]) == (Exit.OK, len(wanted()))
    assert told(read("odd-again")) == wanted()


@pytest.mark.parametrize("typed", [False, True])
def test_an_export_has_a_null_where_there_is_no_date(
    job: Callable[[Callable[[Run], Outcome]], Outcome], tmp_path: Path, typed: bool
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}} if typed else None
    options = ExportOptions(
        selection_of(SOURCE), str(tmp_path / "out"), schema, "skip" if typed else "suspend"
    )
    outcome = job(lambda run: export(run, options))
    counts = (outcome.summary["rows"], outcome.summary["bad_rows"])
    assert counts == ((0, len(wanted())) if typed else (len(wanted()), 0))
    files = sorted((tmp_path / "out").glob("export_batch=*/*.parquet"))
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    dates = sorted((row["key"], ms_of(row["timestamp"])) for row in rows)
    assert dates == ([] if typed else [(key, date) for key, date, _ in wanted()])


def test_a_compacted_view_keeps_the_numbers(
    service: str, client: Client, read: Read, job: Callable[[Callable[[Run], Outcome]], Outcome]
) -> None:
    """The newest of a key is found by offsets, whatever the times."""
    topic = "odd-compacted"
    client.create_topic(topic, rollover={"entries": 2})
    copies = read().select("key", "value", "timestampMillis")
    for select in ("value", "CAST(IF(key = 'k4', NULL, value) AS BINARY) AS value"):
        with seen_by_readers(service, topic, len(wanted())):
            frame = copies.selectExpr("key", select, "timestampMillis").coalesce(1)
            frame.write.format("octavo").options(service=service, topic=topic).mode("append").save()
    options = CompactOptions(selection_of(topic), CompactPolicy())
    outcome = job(lambda run: compact(run, options))
    assert (outcome.exit, outcome.summary["messages_kept"]) == (Exit.OK, len(wanted()))
    compacted = read(topic, readCompacted="true")
    assert told(compacted) == wanted()
    assert [bytes(row.key) for row in compacted.where("value IS NULL").collect()] == [b"k4"]
    with Client(service) as reader:
        shown = {
            one.key: one.timestamp_ms for one in reader.messages(topic, partition=0, compacted=True)
        }
    assert shown == {key: ms for key, _, ms in wanted()}
