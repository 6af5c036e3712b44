"""The Spark sink against a live cluster, in local mode: rows arrive once, whatever is repeated."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from octavo import Client
from octavo.protocol.records import partition_for
from tests.support.published import seen_by_readers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def client(service: str) -> Iterator[Client]:
    with Client(service) as found:
        yield found


def read(spark: SparkSession, service: str, topic: str, **options: Any) -> list[Any]:
    frame = spark.read.format("octavo").options(service=service, subscribe=topic, **options)
    return frame.load().orderBy("partition", "offset").collect()


def numbers(spark: SparkSession, count: int, first: int = 0) -> DataFrame:
    return spark.range(first, first + count, 1, 3).selectExpr(
        "CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value"
    )


def get(service: str, path: str) -> Any:
    with urlopen(service + path, timeout=10) as answer:
        return json.load(answer)


def test_a_batch_arrives_whole_with_kafkas_partitions(
    spark: SparkSession, service: str, client: Client
) -> None:
    client.create_topic("sunk", partitions=3)
    frame = spark.range(0, 500, 1, 3).selectExpr(
        "CAST(id % 7 AS STRING) AS key",
        "CAST(id AS STRING) AS value",
        "array(struct('n' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers",
        "timestamp_millis(1700000000000 + id) AS timestamp",
    )
    frame.write.format("octavo").options(service=service, topic="sunk").mode("append").save()
    rows = read(spark, service, "sunk", includeHeaders="true")
    assert Counter(int(row.value) for row in rows) == Counter(range(500))
    for row in rows:
        number = int(row.value)
        assert row.key == str(number % 7).encode()
        assert row.partition == partition_for(row.key, 3)
        assert [(one.key, bytes(one.value)) for one in row.headers] == [("n", bytes(row.value))]
        assert row.timestamp.timestamp() == pytest.approx(1_700_000_000 + number / 1000)
    for partition in range(3):
        offsets = [row.offset for row in rows if row.partition == partition]
        assert offsets == list(range(len(offsets)))
    with seen_by_readers(service, "sunk", 1), client.producer("sunk") as producer:
        producer.send(b"after", key="0")
    assert len(read(spark, service, "sunk")) == 501


def test_a_batch_with_a_bulk_load_id_counts_once(
    spark: SparkSession, service: str, client: Client
) -> None:
    client.create_topic("nightly", partitions=2)
    write = numbers(spark, 40).write.format("octavo").mode("append")
    for _ in range(2):
        write.options(service=service, topic="nightly", bulkLoadId="night-1").save()
    assert len(read(spark, service, "nightly")) == 40
    write.options(service=service, topic="nightly", bulkLoadId="night-1", bulkLoadBatch="1").save()
    assert len(read(spark, service, "nightly")) == 80


def test_rows_name_their_topics_and_partitions(
    spark: SparkSession, service: str, client: Client
) -> None:
    for topic in ("left", "right"):
        client.create_topic(topic, partitions=2)
    frame = spark.range(0, 60, 1, 2).selectExpr(
        "CAST(id AS STRING) AS value",
        "IF(id % 2 = 0, 'left', 'public/right') AS topic",
        "CAST(IF(id % 3 = 0, 1, 0) AS INT) AS partition",
    )
    frame.write.format("octavo").option("service", service).mode("append").save()
    for topic, odd in (("left", 0), ("right", 1)):
        rows = read(spark, service, topic)
        assert sorted(int(row.value) for row in rows) == list(range(odd, 60, 2))
        assert all(row.partition == (int(row.value) % 3 == 0) for row in rows)


def test_what_the_source_gives_the_sink_takes(
    spark: SparkSession, service: str, client: Client
) -> None:
    client.create_topic("there-and-back", partitions=2)
    with seen_by_readers(service, "there-and-back", 20), client.producer("there-and-back") as out:
        for number in range(20):
            out.send(b"%d" % number, key=f"k{number}", headers={"n": "1"} if number % 2 else {})
    everything = {"includeHeaders": "true", "includeMetadata": "true"}
    before = read(spark, service, "there-and-back", **everything)
    assert {row.headers for row in before if int(row.value) % 2 == 0} == {None}
    found = spark.read.format("octavo").options(
        service=service, subscribe="there-and-back", **everything
    )
    with seen_by_readers(service, "there-and-back", 20):
        found.load().write.format("octavo").options(service=service).mode("append").save()
    after = read(spark, service, "there-and-back", **everything)

    def told(rows: list[Any]) -> list[Any]:
        return [(row.partition, row.key, row.value, row.timestamp, row.headers) for row in rows]

    assert Counter(map(repr, told(after))) == Counter(2 * list(map(repr, told(before))))


@pytest.mark.parametrize(
    ("options", "columns", "why"),
    [
        ({"topics": "x"}, "CAST(id AS STRING) AS value", "unknown option topics"),
        ({"topic": "nowhere"}, "CAST(id AS STRING) AS value", "there is no topic"),
        ({"topic": "sunk"}, "id AS value", "column value is bigint"),
        ({"topic": "sunk"}, "CAST(id AS STRING) AS text", "unknown column text"),
        ({"topic": "sunk", "commit": "kafka"}, "CAST(id AS STRING) AS value", "one of bulk-load"),
        ({}, "CAST(id AS STRING) AS value", "give an option topic or a column topic"),
    ],
)
def test_what_cannot_be_is_refused_with_what_would_be_right(
    spark: SparkSession, service: str, options: dict[str, str], columns: str, why: str
) -> None:
    frame = spark.range(0, 3, 1, 1).selectExpr(columns)
    with pytest.raises(Exception, match=why):
        frame.write.format("octavo").options(service=service, **options).mode("append").save()


def stream(
    spark: SparkSession, service: str, folder: Path, source: str, topic: str, **options: str
) -> StreamingQuery:
    rows = (
        spark.readStream.format("octavo")
        .options(service=service, subscribe=source, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "100")
        .load()
        .select("key", "value")
    )
    return (
        rows.writeStream.format("octavo")
        .options(service=service, topic=topic, **options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


@pytest.mark.long
@pytest.mark.parametrize("commit", ["bulk-load", "producer"])
def test_a_stream_counts_each_row_once_when_batches_are_run_again(
    spark: SparkSession, service: str, client: Client, tmp_path: Path, commit: str
) -> None:
    """Killed after the sink's commit and before Spark's own: the newest commit file is missing."""
    origin, copied = f"origin-{commit}", f"copied-{commit}"
    client.create_topic(origin, partitions=2)
    client.create_topic(copied, partitions=3)
    with (
        seen_by_readers(service, origin, 300),
        client.producer(origin, batch_bytes=400) as producer,
    ):
        for number in range(300):
            producer.send(str(number), key=f"k{number % 5}")
    query = stream(spark, service, tmp_path, origin, copied, commit=commit)
    query.awaitTermination(500)
    assert query.exception() is None
    rows = read(spark, service, copied)
    assert Counter(int(row.value) for row in rows) == Counter(range(300))
    commits = tmp_path / "checkpoint" / "commits"
    newest = max(int(one.name) for one in commits.iterdir() if one.name.isdigit())
    assert newest >= 2
    for name in (str(newest), f".{newest}.crc"):
        (commits / name).unlink(missing_ok=True)
    query = stream(spark, service, tmp_path, origin, copied, commit=commit)
    query.awaitTermination(500)
    assert query.exception() is None
    found = get(service, f"/v1/bulk-loads/{query.id}")
    assert (found["batch"], found["complete"]) == (newest, True)
    assert found["published"] == (commit == "producer")
    assert len(read(spark, service, copied)) == 300
    from octavo.spark.orphans import collect_orphans

    assert asyncio.run(collect_orphans(service, grace_ms=0)) == []
    shutil.rmtree(tmp_path / "checkpoint")


@pytest.mark.long
def test_attempts_of_tasks_publish_nothing_and_the_driver_once(
    spark: SparkSession, service: str, client: Client, tmp_path: Path
) -> None:
    client.create_topic("retried", partitions=2)
    from pyspark import TaskContext
    from pyspark.sql.functions import udf

    @udf("string")
    def breaks_once(number: int) -> str:
        context = TaskContext.get()
        assert context is not None
        if number == 199 and context.attemptNumber() == 0:
            raise ValueError("the first attempt ends here")
        return str(number)

    frame = spark.range(0, 200, 1, 2).select(breaks_once("id").alias("value"))
    write = frame.write.format("octavo").options(service=service, topic="retried")
    write = write.options(commit="producer", bulkLoadId="retried").mode("append")
    for _ in range(2):
        write.save()
    rows = read(spark, service, "retried", includeMetadata="true")
    assert Counter(int(row.value) for row in rows) == Counter(range(200))
    assert {(row.epoch, row.ledger, row.entry) for row in rows} == {
        (0, rows[0].ledger, rows[0].entry)
    }


@pytest.mark.long
def test_failing_tasks_leave_nothing_that_anybody_sees(
    spark: SparkSession, service: str, client: Client
) -> None:
    client.create_topic("failing", partitions=1)
    from pyspark.sql.functions import udf

    @udf("string")
    def breaks(number: int) -> str:
        if number == 150:
            raise ValueError("a row that breaks the query")
        return str(number)

    frame = spark.range(0, 200, 1, 2).select(breaks("id").alias("value"))
    with pytest.raises(Exception, match="a row that breaks the query"):
        frame.write.format("octavo").options(service=service, topic="failing").mode("append").save()
    assert read(spark, service, "failing") == []
    from octavo.spark.orphans import collect_orphans

    asyncio.run(collect_orphans(service, grace_ms=0))
    assert asyncio.run(collect_orphans(service, grace_ms=0)) == []
