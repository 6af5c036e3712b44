"""`ingest-kafka` without Kafka: the plan, rows in the shape of Spark's connector, the
checkpoint. Octavo's own source replaces the connector, a Maven package, as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from octavo import Client
from octavo.pipeline.ingest_kafka import KafkaOptions, copied_once, ingest_kafka, messages
from octavo.pipeline.outcome import Outcome
from octavo.pipeline.packages import KAFKA, is_there, missing
from octavo.pipeline.runner import BadUsage, Run, run_job
from octavo.pipeline.session import SparkMissing
from octavo.pipeline.streams import Progress
from octavo.protocol.records import partition_for
from tests.support.published import seen_by_readers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
AT = datetime(2024, 5, 1, tzinfo=UTC)
KAFKAS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
TARGETS = {"orders": "public/orders", "wide": "public/all"}


@pytest.fixture(scope="module")
def client(service: str) -> Iterator[Client]:
    with Client(service) as found:
        yield found


def test_rows_as_kafka_gives_them(spark: SparkSession) -> None:
    old = datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
    rows = spark.createDataFrame(
        [
            (b"k", b"v", "orders", 2, 7, AT, 0, [("h", b"1"), ("h", None)]),
            (None, None, "wide", 4, 8, old, 0, []),
        ],
        KAFKAS,
    )
    found = messages(rows, TARGETS, ("orders",)).collect()
    assert [row.asDict(recursive=True) for row in found] == [
        {
            "key": b"k", "value": b"v", "topic": "public/orders", "partition": 2, "timestamp":
            found[0].timestamp,
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        },
        {"key": None, "value": None, "topic": "public/all", "partition": None,
         "timestamp": None, "headers": []},
    ]  # fmt: skip
    assert found[0].timestamp.timestamp() == AT.timestamp()
    assert {row.partition for row in messages(rows, TARGETS, ()).collect()} == {None}


def test_once_on_a_checkpoint(
    spark: SparkSession, service: str, client: Client, tmp_path: Path
) -> None:
    client.create_topic("from-kafka", partitions=3)
    client.create_topic("kept-partitions", partitions=3)
    client.create_topic("by-the-key", partitions=2)

    def publish(numbers: range) -> None:
        with (
            seen_by_readers(service, "from-kafka", len(numbers)),
            client.producer("from-kafka") as producer,
        ):
            for number in numbers:
                producer.send(b"%d" % number, key=f"k{number % 9}", headers={"n": str(number)})

    def run(target: str, same: bool, place: str) -> int:
        targets = {"from-kafka": f"public/{target}"}
        options = KafkaOptions(("from-kafka",), "", str(tmp_path / place))

        def work(job: Run) -> Outcome:
            stream = spark.readStream.format("octavo").option("service", service)
            rows: DataFrame = (
                stream.option("subscribe", "from-kafka").option("startingOffsets", "earliest")
                .option("includeHeaders", "true").option("maxOffsetsPerTrigger", 40).load()
            )  # fmt: skip
            shaped = messages(rows, targets, tuple(targets) if same else ())
            progress = Progress(job.say)
            copied_once(job, shaped, options, targets, progress)
            return Outcome("ingest-kafka", {"rows": progress.rows})

        outcome = run_job("ingest-kafka", work, service=service, say=lambda _: None)
        return int(outcome.summary["rows"])

    publish(range(100))
    assert run("kept-partitions", True, "a") == 100
    assert run("kept-partitions", True, "a") == 0
    publish(range(100, 130))
    assert run("kept-partitions", True, "a") == 30
    assert run("by-the-key", False, "b") == 130
    with pytest.raises(BadUsage, match="belongs to an ingest of"):
        run("by-the-key", False, "a")

    def rows_of(topic: str) -> list[Any]:
        read = spark.read.format("octavo").options(service=service, subscribe=topic)
        return read.option("includeHeaders", "true").load().collect()

    def places(rows: list[Any]) -> list[Any]:
        return sorted((row.partition, row.value, row.key, row.timestamp, row.headers)
                      for row in rows)  # fmt: skip

    assert places(rows_of("kept-partitions")) == places(rows_of("from-kafka"))
    by_key = rows_of("by-the-key")
    assert sorted(int(row.value) for row in by_key) == list(range(130))
    assert all(row.partition == partition_for(row.key, 2) for row in by_key)


def test_a_missing_connector_is_named(
    spark: SparkSession, service: str, client: Client, tmp_path: Path
) -> None:
    if is_there(spark, KAFKA.known_by):
        pytest.skip("this Spark has the connector")
    client.create_topic("from-nowhere")
    options = KafkaOptions(("from-nowhere",), "127.0.0.1:1", str(tmp_path / "c"))

    def job(what: Callable[[Run], Outcome]) -> None:
        run_job("ingest-kafka", what, service=service, say=lambda _: None)

    minor = ".".join(spark.version.split(".")[:2])
    wanted = KAFKA.newest[minor].format(scala="2.13")
    with pytest.raises(SparkMissing, match=wanted.replace(".", r"\.")):
        job(lambda run: ingest_kafka(run, options))
    with pytest.raises(BadUsage, match="octavo topic create nowhere makes it"):
        job(lambda run: ingest_kafka(run, KafkaOptions(("nowhere",), "h:1", "c")))


def test_what_is_said_of_a_missing_package() -> None:
    """Spark 4.3 runs with the connector of 4.2."""
    for spark, version in (("4.0.5", "4.0.4"), ("4.2.1", "4.2.0"), ("4.3.0", "4.2.0")):
        said = missing(KAFKA, spark, "2.13")
        assert "reading from Kafka needs the package" in said
        assert said.count(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}") == 2
    assert "pip install 'pyspark==4.3.*'" in missing(KAFKA, "4.10.1", "2.13")
