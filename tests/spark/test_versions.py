"""The abilities of every Spark from 4.0 on, in a short form: `make spark-matrix` runs this on
each. The other tests of this folder run on the newest only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from octavo import Client
from octavo.pipeline import export as exporting
from octavo.pipeline.export import ExportOptions, export
from octavo.pipeline.outcome import Exit
from octavo.pipeline.replay import ReplayOptions, replay
from octavo.pipeline.runner import run_job, selection_of
from octavo.pipeline.streams import SLOW_START
from octavo.pipeline.verify import verify
from octavo.spark import register
from octavo.spark.columns import checked_schema, schema_of
from octavo.spark.options import source_options
from octavo.spark.readers import UnlimitedStreamReader
from octavo.spark.splits import EndsBeforeStart, from_json
from octavo.spark.versions import read_limits
from tests.support.published import seen_by_readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
START_MS = 1_700_000_000_000


def publish(client: Client, service: str, topic: str, numbers: range) -> None:
    with (
        seen_by_readers(service, topic, len(numbers)),
        client.producer(topic, batch_bytes=400) as producer,
    ):
        for n in numbers:
            value = json.dumps({"n": n}).encode()
            producer.send(value, key=f"k{n % 7}", headers={"n": str(n)}, timestamp_ms=START_MS + n)


def rows_of(spark: SparkSession, service: str, topic: str, **options: Any) -> list[Any]:
    read = spark.read.format("octavo").options(service=service, subscribe=topic, **options)
    return read.load().orderBy("partition", "offset").collect()


def numbers_in(rows: list[Any]) -> list[int]:
    return sorted(json.loads(bytes(row.value))["n"] for row in rows)


def test_a_batch_is_written_and_read_with_headers_and_times(
    spark: SparkSession, service: str, client: Client
) -> None:
    """Registered twice, also after Spark has found the source by itself."""
    client.create_topic("versions-batch", partitions=2)
    assert rows_of(spark, service, "versions-batch") == []
    register(spark)
    register(spark)
    frame = spark.range(0, 60, 1, 2).selectExpr(
        "IF(id % 9 = 0, NULL, CAST(id % 7 AS STRING)) AS key",
        "CONCAT('{\"n\": ', id, '}') AS value",
        "array(struct('n' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers",
        f"timestamp_millis({START_MS} + id) AS timestamp",
    )
    frame.write.format("octavo").options(service=service, topic="versions-batch").mode(
        "append"
    ).save()
    rows = rows_of(spark, service, "versions-batch", includeHeaders="true", includeMetadata="true")
    assert numbers_in(rows) == list(range(60))
    for row in rows:
        number = json.loads(bytes(row.value))["n"]
        key = None if row.key is None else bytes(row.key)
        assert key == (None if number % 9 == 0 else b"%d" % (number % 7))
        assert [(one.key, bytes(one.value)) for one in row.headers] == [("n", b"%d" % number)]
        assert round(row.timestamp.timestamp() * 1000) == START_MS + number
        assert row.ledger is not None
    options = f"OPTIONS (service '{service}', subscribe 'versions-batch', startingOffsets '"
    start = json.dumps({"versions-batch": {"0": 2, "1": 3}})
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW versions USING octavo {options}{start}')")
    assert spark.sql("SELECT min(offset), count(*) FROM versions").first() == (2, 55)


def finished(writer: Any) -> Any:
    """Start the query, again if Spark finds its first process too slow; return it when it has
    ended."""
    while True:
        query = writer.start()
        try:
            query.awaitTermination()
            return query
        except Exception as error:
            if SLOW_START not in str(error):
                raise


@pytest.mark.parametrize("commit", ["bulk-load", "producer"])
def test_a_stream_from_topic_to_topic_counts_each_row_once(
    spark: SparkSession, service: str, client: Client, tmp_path: Path, commit: str
) -> None:
    source, target = f"versions-from-{commit}", f"versions-to-{commit}"
    client.create_topic(source, partitions=2, rollover={"entries": 2})
    client.create_topic(target, partitions=2)

    def run(**limits: Any) -> list[int]:
        stream = spark.readStream.format("octavo").options(
            service=service, subscribe=source, startingOffsets="earliest",
            includeHeaders="true", **limits,
        )  # fmt: skip
        writer = (
            stream.load()
            .writeStream.format("octavo")
            .options(service=service, topic=target, commit=commit)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        query = finished(writer)
        return [size for one in query.recentProgress if (size := one.numInputRows)]

    publish(client, service, source, range(40))
    assert sum(run()) == 40
    publish(client, service, source, range(40, 70))
    if read_limits:
        assert run(maxOffsetsPerTrigger=20) == [20, 10]
    else:
        with pytest.raises(Exception, match=r"maxOffsetsPerTrigger needs Spark 4\.2 or newer"):
            run(maxOffsetsPerTrigger=20)
        assert run() == [30]
    rows = rows_of(spark, service, target, includeHeaders="true")
    assert numbers_in(rows) == list(range(70))
    for row in rows:
        number = json.loads(bytes(row.value))["n"]
        assert [(one.key, bytes(one.value)) for one in row.headers] == [("n", b"%d" % number)]
        assert round(row.timestamp.timestamp() * 1000) == START_MS + number


def exported(service: str, out: Path, **options: Any) -> Any:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}
        },
    }  # fmt: skip
    what = ExportOptions(
        selection_of("versions-export"), str(out), schema=schema, rows_per_batch=20, **options
    )
    return run_job("export", lambda run: export(run, what), service=service, say=lambda _: None)


def in_files(out: Path) -> list[int]:
    files = sorted(out.glob("export_batch=*/*.parquet"))
    return sorted(row["n"] for file in files for row in pq.ParquetFile(file).read().to_pylist())


def test_an_export_by_ranges_goes_on_as_a_stream_and_back(
    spark: SparkSession, service: str, client: Client, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Where Spark passes no limits, the job makes the ranges itself, in a checkpoint that Spark
    continues."""
    client.create_topic("versions-export", partitions=2)
    publish(client, service, "versions-export", range(50))
    out = tmp_path / "out"
    monkeypatch.setattr(exporting, "read_limits", False)
    first = exported(service, out)
    assert (first.exit, first.summary["rows"], first.summary["batches"]) == (Exit.OK, 50, 3)
    (out / "_checkpoint/commits/2").unlink()
    for stale in (out / "_checkpoint/commits").glob(".*"):
        stale.unlink()
    publish(client, service, "versions-export", range(50, 60))
    again = exported(service, out)
    assert (again.summary["rows"], again.summary["batches"]) == (20, 2), "10 of them again"
    assert in_files(out) == list(range(60))
    if read_limits:
        monkeypatch.setattr(exporting, "read_limits", True)
        publish(client, service, "versions-export", range(60, 65))
        assert exported(service, out).summary["rows"] == 5
        monkeypatch.setattr(exporting, "read_limits", False)
        publish(client, service, "versions-export", range(65, 70))
        assert exported(service, out).summary["rows"] == 5
        assert in_files(out) == list(range(70))


def test_jobs_that_read_a_whole_topic(spark: SparkSession, service: str, client: Client) -> None:
    client.create_topic("versions-jobs", partitions=2)
    client.create_topic("versions-copy", partitions=2)
    publish(client, service, "versions-jobs", range(30))
    options = ReplayOptions("versions-jobs", "versions-copy")
    copied = run_job(
        "replay", lambda run: replay(run, options), service=service, say=lambda _: None
    )
    assert (copied.exit, copied.summary["rows"]) == (Exit.OK, 30)
    checked = run_job(
        "verify", lambda run: verify(run, selection_of("versions-copy")),
        service=service, say=lambda _: None,
    )  # fmt: skip
    assert checked.exit is Exit.OK
    assert numbers_in(rows_of(spark, service, "versions-copy")) == list(range(30))


def test_a_reader_without_limits_never_goes_back(service: str, client: Client) -> None:
    """Spark 4.0 and 4.1 do not tell a source where a query is: the source remembers it within a
    run, and refuses what it cannot know after a restart."""
    client.create_topic("versions-reader")
    publish(client, service, "versions-reader", range(10))

    def reader() -> UnlimitedStreamReader:
        given = {"service": service, "subscribe": "versions-reader", "startingOffsets": "earliest"}
        options = source_options(given, streaming=True, unlimited="4.0")
        return UnlimitedStreamReader(options, checked_schema(schema_of(options), options))

    name = ("public/versions-reader", 0)
    one = reader()
    try:
        begin = one.initialOffset()
        end = one.latestOffset()
        assert (from_json(begin)[name], from_json(end)[name]) == (0, 10)
        assert len(one.partitions(begin, end)) == 1
        ahead = json.loads(json.dumps(end))
        ahead["public/versions-reader"]["0"] = 12
        with pytest.raises(EndsBeforeStart, match="would end at offset 10, before its start 12"):
            one.partitions(ahead, end)
        one._reached = ahead
        assert from_json(one.latestOffset())[name] == 12
    finally:
        one.stop()
