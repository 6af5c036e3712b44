"""The Spark source against a live cluster, in local mode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from octavo import Client
from tests.support.published import seen_by_readers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)

COUNT = 600
START_MS = 1_700_000_000_000
SECOND_US = 1_000_000


@pytest.fixture(scope="module")
def client(service: str) -> Iterator[Client]:
    with Client(service) as found:
        yield found


@pytest.fixture(scope="module")
def topic(client: Client, service: str) -> str:
    client.create_topic("rows", partitions=2, rollover={"entries": 2})
    for first in range(0, COUNT, 200):
        publish(client, service, "rows", range(first, first + 200))
    return "rows"


def publish(client: Client, service: str, topic: str, numbers: range, batch: int = 10) -> None:
    with (
        seen_by_readers(service, topic, len(numbers)),
        client.producer(topic, batch_bytes=60 * batch) as producer,
    ):
        for number in numbers:
            producer.send(
                value_of(number),
                key=f"k{number % 7}",
                headers={"n": str(number)},
                timestamp_ms=START_MS + 1000 * number,
            )


def value_of(number: int) -> bytes:
    return b"%06d" % number


def numbers_in(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


Read = Callable[..., "DataFrame"]


@pytest.fixture(scope="module")
def read(spark: SparkSession, service: str) -> Read:
    def of(topic: str, **options: Any) -> DataFrame:
        reader = spark.read.format("octavo").option("service", service)
        if "subscribePattern" not in options and "assign" not in options:
            reader = reader.option("subscribe", topic)
        return reader.options(**options).load()

    return of


def test_every_message_once_with_its_place(read: Read, topic: str) -> None:
    frame = read(topic, minPartitions=4, includeHeaders=True, includeMetadata=True)
    rows = frame.collect()
    assert sorted(int(row.value) for row in rows) == list(range(COUNT))
    for partition in (0, 1):
        mine = sorted((row for row in rows if row.partition == partition), key=lambda r: r.offset)
        assert [row.offset for row in mine] == list(range(len(mine)))
        assert len({row.ledger for row in mine}) > 1, "the test wants several ledgers"
        assert [int(row.value) for row in mine] == sorted(int(row.value) for row in mine)
    for row in rows:
        number = int(row.value)
        assert (row.topic, row.key, row.timestampType) == ("rows", b"k%d" % (number % 7), 0)
        assert round(row.timestamp.timestamp() * 1000) == START_MS + 1000 * number
        assert [(header.key, header.value) for header in row.headers] == [("n", b"%d" % number)]


def test_a_projection_by_option_and_by_schema(
    read: Read, spark: SparkSession, service: str, topic: str
) -> None:
    assert read(topic, columns="offset,value").columns == ["offset", "value"]
    frame = (
        spark.read.format("octavo")
        .schema("value binary, partition int")
        .options(service=service, subscribe=topic)
        .load()
    )
    assert frame.columns == ["value", "partition"]
    assert numbers_in(frame) == list(range(COUNT))


def test_ranges_by_offset_and_by_time(read: Read, topic: str) -> None:
    starting = json.dumps({topic: {"0": 5, "1": -1}})
    ending = json.dumps({topic: {"0": 25, "1": -1}})
    some = read(topic, startingOffsets=starting, endingOffsets=ending).collect()
    assert sorted(row.offset for row in some) == list(range(5, 25))
    assert {row.partition for row in some} == {0}
    late = read(topic, startingTimestamp=START_MS + 500_000, endingTimestamp=START_MS + 550_000)
    assert numbers_in(late) == list(range(500, 550))
    assert numbers_in(read(topic, assign=json.dumps({topic: [1]}))) == [
        int(row.value) for row in read(topic).where("partition = 1").orderBy("offset").collect()
    ]


def test_filters_and_unions_of_one_frame_agree(read: Read, topic: str) -> None:
    frame = read(topic)
    assert frame.where("offset < 10").count() == 20
    assert frame.count() == COUNT
    assert frame.where("offset < 10").union(frame).count() == COUNT + 20


def test_small_splits_of_a_bounded_number_of_rows(read: Read, topic: str) -> None:
    frame = read(topic, maxRecordsPerPartition=50)
    assert frame.rdd.getNumPartitions() >= COUNT // 50
    assert max(frame.rdd.glom().map(len).collect()) <= 50
    assert numbers_in(frame) == list(range(COUNT))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "earliest"}, "unknown option startingoffset"),
        ({"startingOffsets": '{"rows": {"0": 99999}}'}, "offset 99999, but the partition ends at"),
        ({"columns": "value,weight"}, "weight; the columns are key, value, topic"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "which this query does not read"),
        ({"startingTimestamp": str(START_MS * 2)}, "has no message at or after"),
        ({"endingOffsets": '{"rows": {"0": 99999, "1": -1}}'}, "do not exist; it ends at"),
        ({"readFrom": "tape"}, "use one of auto, bookies, broker, offload"),
        ({"assign": '{"rows": [7]}'}, "has partitions 0 to 1, not 7"),
        ({"assign": '{"nix": [0]}'}, "there is no topic public/nix"),
    ],
)
def test_what_is_wrong_is_said(read: Read, topic: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(Exception, match=said):
        read(topic, **options).count()


def test_nobody_at_the_service(spark: SparkSession) -> None:
    frame = spark.read.format("octavo").options(service="http://127.0.0.1:1", subscribe="x")
    with pytest.raises(Exception, match="no broker answers at"):
        frame.load().count()


@pytest.mark.long
def test_a_stream_takes_each_message_once_over_restarts(
    spark: SparkSession, service: str, client: Client, tmp_path: Path
) -> None:
    client.create_topic("stream", partitions=2, rollover={"entries": 4})

    def run(**options: Any) -> list[int]:
        query = (
            spark.readStream.format("octavo")
            .options(service=service, subscribe="stream", startingOffsets="earliest", **options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress]

    publish(client, service, "stream", range(300))
    sizes = run(maxOffsetsPerTrigger=100)
    assert [size for size in sizes if size] == [100, 100, 100]
    publish(client, service, "stream", range(300, 400))
    run()
    client.update_topic("stream", partitions=3)
    publish(client, service, "stream", range(400, 700))
    run(maxBytesPerTrigger="4k")
    publish(client, service, "stream", range(700, 720))
    assert sum(run(minOffsetsPerTrigger=50, maxOffsetsPerTrigger=60)) == 20
    publish(client, service, "stream", range(720, 740))
    assert sum(run(minOffsetsPerTrigger=50)) == 20
    out = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(int(row.value) for row in out.collect()) == list(range(740))
    assert {row.partition for row in out.collect()} == {0, 1, 2}


def test_a_pattern_finds_topics(read: Read, service: str, client: Client, topic: str) -> None:
    client.create_topic("pattern-a")
    client.create_topic("pattern-b")
    publish(client, service, "pattern-a", range(5))
    publish(client, service, "pattern-b", range(5, 9))
    assert numbers_in(read("", subscribePattern="pattern-.*")) == list(range(9))


def test_views_and_tables(spark: SparkSession, service: str, topic: str) -> None:
    options = f"OPTIONS (service '{service}', subscribe '{topic}')"
    spark.sql(f"CREATE TEMPORARY VIEW seen USING octavo {options}")
    names = spark.sql("SELECT DISTINCT topic FROM seen").collect()
    assert [row.topic for row in names] == [topic]
    spark.sql(f"CREATE TABLE kept USING octavo {options}")
    spark.sql("CREATE TABLE bare (value BINARY) USING octavo " + options)
    try:
        assert numbers_in(spark.sql("SELECT * FROM kept")) == list(range(COUNT))
        assert numbers_in(spark.table("kept").where("partition >= 0")) == list(range(COUNT))
        assert spark.sql("SELECT max(offset) FROM kept").first() is not None
        start = f'{{"{topic}": {{"0": -1, "1": 5}}}}'
        some = spark.sql(f"SELECT * FROM kept WITH (startingOffsets='{start}')")
        assert {(row.partition, row.offset >= 5) for row in some.collect()} == {(1, True)}
        with pytest.raises(Exception, match="create it without naming columns"):
            spark.sql("SELECT * FROM bare").collect()
    finally:
        spark.sql("DROP TABLE kept")
        spark.sql("DROP TABLE bare")
    with pytest.raises(Exception, match=r"meant: startingOffsets\?"):
        spark.sql(f"CREATE TABLE bad USING octavo {options[:-1]}, startingOfsets '0')")
