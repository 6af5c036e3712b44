"""The Spark source against a live cluster: bytes, times, faults of its ledgers, tasks in other
processes."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from octavo import Client
from octavo.broker.types import TopicSettings
from octavo.client.types import Message
from octavo.metadata.ledger_codec import encode_ledger_metadata
from octavo.metadata.ledger_ids import ledger_path
from octavo.metadata.ledgers import LEDGERS_ROOT, Fragment, LedgerMetadata, LedgerState
from octavo.metadata.snapshot_store import SnapshotStore
from octavo.metadata.topic_records import encode_record
from octavo.metadata.topics import PartitionLedger, PartitionRecord, TopicRecord, TopicStore
from octavo.metadata.topics import TopicSettings as StoredSettings
from octavo.protocol.codes import OctavoError
from octavo.protocol.entry import DigestType
from octavo.spark import lag, reading, stored
from octavo.spark.cluster import Cluster as SparkCluster
from octavo.spark.columns import checked_schema, schema_of
from octavo.spark.options import InvalidOption, source_options
from octavo.spark.planning import planned, views_of
from octavo.spark.progress import lag_of
from octavo.spark.readers import OctavoReader, OctavoStreamReader
from octavo.spark.reading import Split
from octavo.spark.splits import DataLost, ends_of
from tests.support.cluster import TOPIC, owned
from tests.support.processes.standalone import environment, until
from tests.support.published import known_end, seen_by_readers
from tests.support.spark_place import ROWS, WHOLE, Place, reader_of, running_place, values_of
from tests.unit.octavo.test_client_values import CHANGED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 600
START_MS = 1_700_000_000_000
SECOND_US = 1_000_000


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


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
def test_filters_and_unions_of_one_frame_agree(read: Read, topic: str) -> None:
    frame = read(topic)
    assert frame.where("offset < 10").count() == 20
    assert frame.count() == COUNT
    assert frame.where("offset < 10").union(frame).count() == COUNT + 20


@pytest.mark.timeout(600)
def test_small_splits_of_a_bounded_number_of_rows(read: Read, topic: str) -> None:
    frame = read(topic, maxRecordsPerPartition=50)
    assert frame.rdd.getNumPartitions() >= COUNT // 50
    assert max(frame.rdd.glom().map(len).collect()) <= 50
    assert numbers_in(frame) == list(range(COUNT))


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
def test_nobody_at_the_service(spark: SparkSession) -> None:
    frame = spark.read.format("octavo").options(service="http://127.0.0.1:1", subscribe="x")
    with pytest.raises(Exception, match="no broker answers at"):
        frame.load().count()


@pytest.mark.timeout(600)
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
        behind.append([sum(lag_of(one).values()) for one in query.recentProgress if one.sources])
        assert sum(lag(query).values()) == behind[-1][-1] == 0
        return [progress.numInputRows for progress in query.recentProgress]

    behind: list[list[int]] = []
    publish(client, service, "stream", range(300))
    sizes = run(maxOffsetsPerTrigger=100)
    assert [size for size in sizes if size] == [100, 100, 100]
    assert behind[0][:3] == [200, 100, 0]
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


@pytest.mark.timeout(600)
def test_a_pattern_finds_topics(read: Read, service: str, client: Client, topic: str) -> None:
    client.create_topic("pattern-a")
    client.create_topic("pattern-b")
    publish(client, service, "pattern-a", range(5))
    publish(client, service, "pattern-b", range(5, 9))
    assert numbers_in(read("", subscribePattern="pattern-.*")) == list(range(9))


@pytest.mark.timeout(600)
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


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Told = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def drawn(rng: random.Random) -> bytes | None:
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(CHANGED)
    if kind == 1:
        return rng.randbytes(rng.choice([0, 1, 3, 40, 2_000]))
    if kind == 2:
        return "".join(chr(rng.choice([0, 9, 0x7F, 0xE9, 0x2028, 0x1F600])) for _ in "abc").encode()
    value = {"n": rng.choice([1.0, -0.0, 10**30, 1e-7]), "t": rng.choice(["é", "/", "\u2028"])}
    written = json.dumps(value, ensure_ascii=kind == 3, indent=rng.choice([None, 1]))
    return rng.choice(["", " ", "\ufeff"]).encode() + written.encode() + rng.choice([b"", b"\r\n"])


def messages(rng: random.Random) -> list[Told]:
    values = [*CHANGED, *(bytes([one]) for one in range(256)), *(drawn(rng) for _ in range(300))]
    return [
        (
            drawn(rng) if rng.random() < 0.5 else None,
            value,
            tuple((rng.choice(["", "a", "é"]), drawn(rng)) for _ in range(rng.randrange(3))),
        )
        for value in values
    ]


def told(found: Any) -> Told:
    if isinstance(found, Message):
        return found.key, found.value, found.headers
    key, value = (None if one is None else bytes(one) for one in (found.key, found.value))
    headers = [(one.key, one.value) for one in found.headers or ()]
    return key, value, tuple((k, None if v is None else bytes(v)) for k, v in headers)


@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.parametrize("commit", ["bulk-load", "producer"])
def test_what_was_published_is_read_and_written_byte_for_byte(
    spark: SparkSession, service: str, tmp_path: Path, commit: str
) -> None:
    seed = int(os.environ.get("OCTAVO_SEED", random.randrange(10**6)))
    sent = messages(random.Random(seed))
    source, target = f"bytes-{commit}", f"bytes-back-{commit}"
    with Client(service) as client:
        client.create_topic(source)
        client.create_topic(target)
        with (
            seen_by_readers(service, source, len(sent)),
            client.producer(source, batch_bytes=2_000) as producer,
        ):
            for key, value, headers in sent:
                producer.send(value, key=key, headers=headers, partition=0)
        frame = (
            spark.read.format("octavo")
            .options(service=service, subscribe=source, includeHeaders=True)
            .load()
        )
        rows = sorted(frame.collect(), key=lambda row: row.offset)
        assert [told(row) for row in rows] == sent, f"OCTAVO_SEED={seed}"
        query = (
            spark.readStream.format("octavo")
            .options(service=service, subscribe=source, includeHeaders=True)
            .option("startingOffsets", "earliest")
            .load()
            .select("key", "value", "headers")
            .writeStream.format("octavo")
            .options(service=service, topic=target, commit=commit)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        written = [told(message) for message in client.messages(target)]
    assert sorted(written, key=repr) == sorted(sent, key=repr), f"OCTAVO_SEED={seed}"


def read_by(kind: str, service: str) -> dict[str, object]:
    topic = f"elsewhere-{kind}"
    with Client(service) as client:
        client.create_topic(topic, partitions=2)
        with client.producer(topic, batch_bytes=600) as producer:
            for number in range(200):
                producer.send(b"%d" % number, key=f"k{number % 7}")
        until(lambda: known_end(service, topic) == 200, "bookies know all", 400)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.elsewhere", kind, service, topic],
        capture_output=True,
        text=True,
        timeout=540,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17")
def test_executors_in_processes_of_their_own(service: str) -> None:
    assert read_by("local-cluster", service) == {"values": list(range(200)), "executors": 2}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17")
@pytest.mark.skipif(
    importlib.util.find_spec("grpc") is None,
    reason="Spark Connect needs grpcio: pip install 'pyspark[connect]'",
)
def test_spark_connect(service: str) -> None:
    assert read_by("connect", service) == {"values": list(range(200)), "executors": 1}


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with running_place(tmp_path) as made:
        yield made


class Halfway:
    def __init__(self, reader: OctavoReader, split: Split) -> None:
        self._rows: Iterator[Any] = reader.read(split)

    async def first(self) -> list[str]:
        return values_of([await asyncio.to_thread(next, self._rows)])

    async def rest(self) -> list[str]:
        return values_of(await asyncio.to_thread(list, self._rows))


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ROWS_MAX", ROWS)
    monkeypatch.setattr(stored, "_PAUSE_S", 0.01)


async def trim(place: Place) -> int:
    partition = await owned(place.broker, place.name)
    before = {ledger_id for ledger_id, _ in partition.ledgers}
    await place.broker.topics.update(TOPIC, TopicSettings(rollover_entries=4, retention_bytes=1))
    await partition.maintain()
    stats = await partition.stats()
    assert stats.earliest_offset > 0
    for ledger_id in before - {ledger_id for ledger_id, _ in stats.ledgers}:
        await place.forget(ledger_id)
    return stats.earliest_offset


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("small_pages")
async def test_a_ledger_trimmed_under_a_running_query(place: Place) -> None:
    reader, (split,) = await place.planned()
    query = Halfway(reader, split)
    assert await query.first() == WHOLE[:ROWS]
    earliest = await trim(place)
    with pytest.raises(DataLost) as lost:
        await query.rest()
    said = str(lost.value)
    assert "topic public/flights partition 0" in said
    assert f"were trimmed by retention; the earliest is {earliest}" in said
    assert "failOnDataLoss=false" in said


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("small_pages")
async def test_without_fail_on_data_loss_what_is_left_is_read(place: Place) -> None:
    reader, (split,) = await place.planned(failOnDataLoss="false")
    query = Halfway(reader, split)
    first = await query.first()
    earliest = await trim(place)
    rest = await query.rest()
    assert rest[-(len(WHOLE) - earliest) :] == WHOLE[earliest:]
    assert [*first, *rest] == WHOLE[: len(first) + len(rest) - len(WHOLE[earliest:])] + WHOLE[
        earliest:
    ], "each at most once, in order"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("small_pages")
async def test_a_topic_deleted_under_a_running_query(place: Place) -> None:
    reader, (split,) = await place.planned()
    query = Halfway(reader, split)
    await query.first()
    ledgers = {part.ledger_id for part in split.parts}
    await place.broker.topics.delete(TOPIC)
    for ledger_id in ledgers:
        await place.forget(ledger_id)
    with pytest.raises(DataLost, match=r"topic public/flights partition 0: .* was deleted"):
        await query.rest()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_stream_on_a_deleted_topic_says_so(place: Place) -> None:
    given = {"service": place.service, "subscribe": "flights", "startingOffsets": "earliest"}
    options = source_options(given, streaming=True)
    stream = OctavoStreamReader(options, checked_schema(schema_of(options), options))
    try:
        begin = await asyncio.to_thread(stream.initialOffset)
        limit = stream.getDefaultReadLimit()
        end = await asyncio.to_thread(stream.latestOffset, begin, limit)
        incarnation = (await place.broker.topics.get(TOPIC)).incarnation
        assert end == {"public/flights": {"0": len(WHOLE), "incarnation": incarnation}}
        await place.broker.topics.delete(TOPIC)
        with pytest.raises(Exception, match="there is no topic public/flights"):
            await asyncio.to_thread(stream.latestOffset, begin, limit)
        with pytest.raises(DataLost, match="was deleted"):
            await asyncio.to_thread(stream.partitions, begin, end)
    finally:
        await asyncio.to_thread(stream.stop)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("small_pages")
async def test_a_bookie_that_goes_while_it_is_read(place: Place) -> None:
    reader, splits = await place.planned(maxRecordsPerPartition="80")
    assert len(splits) == 3
    queries = [Halfway(reader, split) for split in splits]
    found = [await query.first() for query in queries]
    await place.cluster.stop_bookie("b2")
    for number, query in enumerate(queries):
        found[number] += await query.rest()
    assert list(itertools.chain(*found)) == WHOLE


def flips_bits(node: Any) -> None:
    """Flip one bit in this bookie's reads: a fault of the disk that the bookie's checks miss."""
    storage = node.storage
    read, read_many = storage.reads.read, storage.reads.read_many

    def flip(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1])

    async def damaged_read(*where: int, **how: bool) -> bytes:
        return flip(await read(*where, **how))

    async def damaged_read_many(*where: int, **how: bool) -> list[bytes]:
        return [flip(data) for data in await read_many(*where, **how)]

    storage.reads.read, storage.reads.read_many = damaged_read, damaged_read_many
    storage.reads.read_now = lambda *_: None


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_replica_with_a_flipped_bit_is_passed_over_and_told(place: Place) -> None:
    flips_bits(place.cluster.nodes["b1"])
    flips_bits(place.cluster.nodes["b3"])
    reader, splits = await place.planned(maxRecordsPerPartition="40")
    with capture_logs() as logs:
        found = [await asyncio.to_thread(list, reader.read(split)) for split in splits]
    assert list(itertools.chain(*map(values_of, found))) == WHOLE
    told = [log for log in logs if log["event"] == "replica_damaged"]
    assert {log["log_level"] for log in told} == {"warning"}
    assert {log["bookie"] for log in told} <= {"b1", "b3"}
    assert all("digest does not match" in log["reason"] for log in told)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_every_replica_damaged_is_an_error_not_silence(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_PAUSE_S", 0.01)
    for node in place.cluster.nodes.values():
        flips_bits(node)
    reader = reader_of(place.service, endingOffsets='{"flights": {"0": 20}}')
    (split,) = await asyncio.to_thread(reader.partitions)
    with pytest.raises(Exception, match="no replica returned it"):
        await asyncio.to_thread(list, reader.read(split))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("small_pages")
async def test_a_ledger_replaced_by_a_copy_under_a_running_query(place: Place) -> None:
    """As when small ledgers are merged, or a ledger is written again elsewhere."""
    reader, (split,) = await place.planned()
    query = Halfway(reader, split)
    first = await query.first()
    topics = TopicStore(place.cluster.store)
    record, version = await topics.read_partition(*place.name)
    old = [link for link in record.ledgers if link.count is not None][-1].ledger_id
    client = await place.cluster.client()
    copy = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
    for payload in await read_all(client, old):
        await copy.append(payload)
    await copy.close()
    links = tuple(
        replace(link, ledger_id=copy.ledger_id) if link.ledger_id == old else link
        for link in record.ledgers
    )
    await topics.write_partition(*place.name, replace(record, ledgers=links), version)
    await client.delete(old)
    await place.forget(old)
    assert [*first, *await query.rest()] == WHOLE


async def read_all(client: Any, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id)
    found = await reader.read(0, reader.last_add_confirmed)
    await reader.close()
    return [bytes(entry.payload) for entry in found]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("service", "said"),
    [
        ("http://127.0.0.1:1", "no broker answers at http://127.0.0.1:1"),
        ("zk://127.0.0.1:1", "no ZooKeeper"),
        ("file:///nix/metadata.db", "/nix/metadata.db"),
        ("flights", "flights"),
    ],
)
def test_no_cluster_is_said(service: str, said: str) -> None:
    with pytest.raises(OctavoError, match=said):
        reader_of(service).partitions()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_same_rows_through_a_broker(service: str) -> None:
    columns = "value,key,partition,offset,timestamp,ledger,index,producer,sequence"
    with Client(service) as client:
        client.create_topic("served", partitions=2, rollover={"entries": 2})
        publish(client, service, "served", range(300))
    found = []
    for read_from in ("bookies", "broker"):
        reader = reader_of(
            service,
            subscribe="served",
            columns=columns,
            readFrom=read_from,
            maxRecordsPerPartition="70",
        )
        rows = [some.to_pylist() for split in reader.partitions() for some in reader.read(split)]
        found.append(
            sorted(itertools.chain(*rows), key=lambda row: (row["partition"], row["offset"]))
        )
    assert len(found[0]) == 300
    assert found[0] == found[1]
    with pytest.raises(InvalidOption, match="column entry cannot be read with readFrom=broker"):
        reader_of(service, subscribe="served", columns="value,entry", readFrom="broker")


LEDGERS = 10_000


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_ten_thousand_small_ledgers_are_planned_in_seconds(
    record_property: Callable[[str, object], None],
) -> None:
    """Planned against a store whose every read takes 5 ms."""
    store = far_store()
    cluster = SparkCluster(store)
    await cluster.start()
    options = source_options({"service": "file:///x", "subscribe": "many"}, streaming=False)
    try:
        started = time.monotonic()
        wanted = await cluster.partitions(options.selection)
        views = await views_of(cluster, wanted)
        splits = await planned(cluster, options, views, {}, ends_of(views))
        took_s = time.monotonic() - started
    finally:
        await cluster.close()
    record_property("took_s", took_s)
    print(f"10,000 ledgers: {len(splits)} splits planned in {took_s:.1f} s")
    parts = [part for split in splits for part in split.parts]
    assert len(parts) == LEDGERS
    assert sum(part.end - part.start for part in parts) == 2 * LEDGERS
    for split in splits:
        assert {f"/L{part.ledger_id % 10_000:04d}" for part in split.parts} <= {
            path[path.rindex("/") :] for path in split.records
        }
    assert len(splits) < 50, "small ledgers share splits"
    assert store.at_once_max > 16, "records are read together"
    assert store.at_once_max <= 64, "but not all at once"


class FarStore(SnapshotStore):
    at_once = at_once_max = 0

    async def get(self, path: str) -> Any:
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            await asyncio.sleep(0.005)
            return await super().get(path)
        finally:
            self.at_once -= 1


def far_store() -> FarStore:
    each = LEDGERS // 4
    records = {
        "/octavo/topics/public/many": encode_record(TopicRecord(StoredSettings(partitions=4)))
    }
    for partition in range(4):
        links = tuple(
            PartitionLedger(partition * each + number, 2 * number, 2, 200, 1, 2, 3)
            for number in range(each)
        )
        records[f"/octavo/topics/public/many/partitions/{partition}"] = encode_record(
            PartitionRecord(links)
        )
    for ledger_id in range(LEDGERS):
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=2,
            fragments=(Fragment(0, ("b1", "b2", "b3")),),
            state=LedgerState.CLOSED,
            last_entry=0,
            length=200,
            digest_type=DigestType.CRC32C,
        )
        records[ledger_path(LEDGERS_ROOT, ledger_id)] = encode_ledger_metadata(metadata)
    return FarStore(records, "far")
