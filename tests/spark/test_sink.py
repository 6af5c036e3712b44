"""The Spark sink, and the jobs that write: each row once, large messages and odd times too."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from octavo import Client
from octavo.broker.http.call import RECORD_BATCH
from octavo.pipeline.compact import CompactOptions, compact
from octavo.pipeline.compact_rules import CompactPolicy
from octavo.pipeline.export import ExportOptions, export
from octavo.pipeline.ingest import IngestOptions, Shape, ingest
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.replay import ReplayOptions, replay
from octavo.pipeline.report import ReportOptions, report
from octavo.pipeline.runner import BadUsage, JobFailed, Run, run_job, selection_of
from octavo.pipeline.verify import verify
from octavo.protocol.batch import HEADER_BYTES, read_header, sealed
from octavo.protocol.large import PIECE_BYTES
from octavo.protocol.records import Record, build_batch, partition_for
from tests.support.published import seen_by_readers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


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


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
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


if TYPE_CHECKING:
    from pyspark.sql import SparkSession
Job = Callable[[Callable[[Run], Outcome]], dict[str, Any]]
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def job(spark: SparkSession, service: str) -> Job:
    def of(work: Callable[[Run], Outcome]) -> dict[str, Any]:
        return run_job("writing", work, service=service, say=lambda _: None).summary

    return of


@pytest.fixture(scope="module")
def rows_of(spark: SparkSession, service: str) -> Callable[[str], list[Any]]:
    def of(topic: str) -> list[Any]:
        read = spark.read.format("octavo").options(service=service, subscribe=topic)
        return read.option("includeHeaders", "true").load().orderBy("partition", "offset").collect()

    return of


def write_csv(path: Path, numbers: range) -> None:
    lines = [f'{number},"tail, {number % 7}",{START_MS + number}' for number in numbers]
    path.write_text("\n".join(["n,tail,at", *lines]) + "\n")


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_folder_that_grows_is_ingested_file_by_file(
    job: Job, rows_of: Callable[[str], list[Any]], client: Client, tmp_path: Path
) -> None:
    client.create_topic("ingested", partitions=3)
    shape = Shape(schema="n INT, tail STRING, at LONG", key="tail", timestamp="at", order_by="n")
    options = IngestOptions((str(tmp_path / "in"),), "ingested", shape)
    (tmp_path / "in" / "_hidden").mkdir(parents=True)
    write_csv(tmp_path / "in" / "a.csv", range(60))
    write_csv(tmp_path / "in" / "_hidden" / "x.csv", range(5))
    assert job(lambda run: ingest(run, options))["rows"] == 60
    write_csv(tmp_path / "in" / "b.csv", range(60, 100))
    again = job(lambda run: ingest(run, options))
    assert (again["files"], again["files_ingested_before"], again["rows"]) == (1, 1, 40)
    rows = rows_of("ingested")
    assert sorted(json.loads(row.value)["n"] for row in rows) == list(range(100))
    for row in rows:
        found = json.loads(row.value)
        assert found == {"n": found["n"], "tail": f"tail, {found['n'] % 7}", "at": found["at"]}
        assert row.key == found["tail"].encode()
        assert row.partition == partition_for(row.key, 3)
        assert round(row.timestamp.timestamp() * 1000) == START_MS + found["n"] == found["at"]
    for number in range(3):
        mine = [json.loads(row.value)["n"] for row in rows if row.partition == number]
        assert mine == sorted(mine)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_parquet_and_json_under_a_name_of_their_own(
    job: Job, rows_of: Callable[[str], list[Any]], client: Client, tmp_path: Path
) -> None:
    client.create_topic("named")
    table = pa.table({"a.b": [1, 2, None], "v": [b"x", None, b"\xff"]})
    pq.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "l.jsonl").write_text('{"v": "one", "w": [1]}\n{"v": null}\n')

    def into(path: str, bulk_load: str | None, dry_run: bool = False, **shape: Any) -> int:
        options = IngestOptions(
            (str(tmp_path / path),), "named", Shape(**shape), bulk_load, dry_run
        )
        return int(job(lambda run: ingest(run, options))["rows"])

    assert into("t.parquet", None, dry_run=True) == 3
    assert into("t.parquet", "mine", value="v", key="a.b") == 3
    assert into("l.jsonl", "mine") == 0, "the name was used"
    assert into("l.jsonl", None) == 2
    found = Counter((row.key, row.value) for row in rows_of("named"))
    assert found == {
        (b"1", b"x"): 1,
        (b"2", None): 1,
        (None, b"\xff"): 1,
        (None, b'{"v":"one","w":[1]}'): 1,
        (None, b'{"v":null,"w":null}'): 1,
    }


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_what_cannot_be_ingested_is_said_and_nothing_is_written(
    job: Job, rows_of: Callable[[str], list[Any]], client: Client, tmp_path: Path
) -> None:
    client.create_topic("refused")
    (tmp_path / "bad.csv").write_text("n\n1\ntwo\n")
    (tmp_path / "data.bin").write_text("x")

    def into(path: str, topic: str = "refused", **shape: Any) -> Any:
        options = IngestOptions((str(tmp_path / path),), topic, Shape(**shape))
        return job(lambda run: ingest(run, options))

    for wrong, said in [
        (lambda: into("none.csv"), "there is no such file"),
        (lambda: into("bad.csv", "nowhere"), "create it with: octavo topic create nowhere"),
        (lambda: into("bad.csv", key="m"), "there is no column m in .* its columns are n"),
        (lambda: into("data.bin"), "unknown format"),
        (lambda: into("bad.csv", schema="n BOOLEAN", timestamp="n"), "is a boolean column"),
    ]:
        with pytest.raises(BadUsage, match=said):
            wrong()
    with pytest.raises(JobFailed):
        into("bad.csv", schema="n INT")
    assert rows_of("refused") == []


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_range_is_replayed_once_and_in_order(
    job: Job, rows_of: Callable[[str], list[Any]], client: Client, service: str, tmp_path: Path
) -> None:
    client.create_topic("played", partitions=2)
    client.create_topic("replayed", partitions=3)
    client.create_topic("kept-places", partitions=2)
    client.create_topic("narrow")
    rows = [f'{{"n": {number}, "k": "k{number % 5}"}}' for number in range(120)]
    (tmp_path / "rows.json").write_text("\n".join(rows))
    shape = Shape(key="k", order_by="n")
    job(lambda run: ingest(run, IngestOptions((str(tmp_path / "rows.json"),), "played", shape)))
    source = rows_of("played")

    def play(target: str, **options: Any) -> dict[str, Any]:
        return job(lambda run: replay(run, ReplayOptions("played", target, **options)))

    bounds = {"startingOffsets": '{"played": {"0": 10}}'}
    where = "cast(key AS STRING) <> 'k3'"
    expected = [
        row for row in source if not (row.partition == 0 and row.offset < 10) and row.key != b"k3"
    ]
    dry = play("replayed", bounds=bounds, where=where, dry_run=True)
    assert (dry["rows"], rows_of("replayed")) == (len(expected), [])
    assert play("replayed", bounds=bounds, where=where)["rows"] == len(expected)
    again = play("replayed", bounds=bounds, where=where)
    assert (again["rows"], again["replayed_before"]) == (0, True)
    found = rows_of("replayed")
    for key in {row.key for row in source}:
        mine = [(row.value, row.timestamp) for row in found if row.key == key]
        assert mine == [(row.value, row.timestamp) for row in expected if row.key == key]
    play("kept-places", keep_partitions=True)
    assert [(row.partition, row.value) for row in rows_of("kept-places")] == [
        (row.partition, row.value) for row in source
    ]
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("played", {}, "is source and target"),
        ("replayed", {"where": "nix > 1"}, "--where nix > 1: .*nix"),
        ("narrow", {"keep_partitions": True}, "has 2 partitions, but public/narrow has only 1"),
    ]
    for target, options, said in wrong:
        with pytest.raises(BadUsage, match=said):
            play(target, **options)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_submitted_to_spark(client: Client, service: str, tmp_path: Path) -> None:
    """As on a cluster: `spark-submit` sets master and settings, the job its arguments."""
    import pyspark

    import octavo.pipeline

    client.create_topic("submitted")
    write_csv(tmp_path / "a.csv", range(10))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    main = Path(octavo.pipeline.__file__).parent / "__main__.py"
    settings = ["--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    arguments = ["ingest", str(tmp_path / "a.csv"), "--topic", "submitted", "--url", service]
    done = subprocess.run(
        [str(submit), *settings, str(main), *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["result"], found["summary"]["rows"]) == ("ok", 10)


if TYPE_CHECKING:
    from pyspark.sql import SparkSession
BODY = random.Random(2).randbytes(5 * PIECE_BYTES + 77)
TIME_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def films(client: Client, service: str) -> str:
    client.create_topic("films")
    with seen_by_readers(service, "films", 5 + 2 * 6):
        client.publish("films", "a", key="k", timestamp_ms=TIME_MS)
        client.publish_large(
            "films", BODY, key="k", headers={"kind": "film"}, timestamp_ms=TIME_MS + 1
        )
        client.publish("films", "b", key="k", timestamp_ms=TIME_MS + 2)
        client.publish_large("films", BODY[::-1], key="k", timestamp_ms=TIME_MS + 3)
        client.publish("films", "c", key="k", timestamp_ms=TIME_MS + 4)
    return "films"


def found_in(client: Client, topic: str, partition: int = 0) -> list[tuple[Any, ...]]:
    found = []
    for one in client.messages(topic, partition=partition):
        value = one.value if one.large is None else b"".join(client.body(topic, one))
        headers = [header for header in one.headers if header[0] != "octavo-large"]
        found.append((one.timestamp_ms, one.key, headers, value))
    return found


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_large_message_is_one_row_without_its_body(
    spark: SparkSession, service: str, client: Client, films: str
) -> None:
    read = spark.read.format("octavo").options(service=service, subscribe=films)
    rows = read.option("includeHeaders", "true").load().orderBy("offset").collect()
    offsets = [one.offset for one in client.messages(films)]
    assert [row.offset for row in rows] == offsets
    assert [row.value for row in rows] == [b"a", b"", b"b", b"", b"c"]
    assert [row.key for row in rows] == [b"k"] * 5
    headers = {header.key: bytes(header.value) for header in rows[1].headers}
    said = json.loads(headers.pop("octavo-large"))
    assert (said["size"], said["pieces"]) == (len(BODY), 6)
    assert headers == {"kind": b"film"}
    assert rows[0].headers is None


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_replay_copies_bodies_in_their_order(
    spark: SparkSession, service: str, client: Client, films: str
) -> None:
    client.create_topic("films-again", partitions=3)

    def play(**options: Any) -> dict[str, Any]:
        chosen = ReplayOptions(films, "films-again", **options)
        work = run_job(
            "replay", lambda run: replay(run, chosen), service=service, say=lambda _: None
        )
        return work.summary

    said = play()
    assert (said["rows_read"], said["rows"]) == (5, 5)
    copies = [one for number in range(3) for one in found_in(client, "films-again", number)]
    assert copies == found_in(client, films)
    assert copies[1] == (TIME_MS + 1, b"k", [("kind", b"film")], BODY)
    again = play()
    assert (again["rows"], again["replayed_before"]) == (0, True)
    large = "exists(headers, h -> h.key = 'octavo-large')"
    assert play(where=f"headers IS NULL OR NOT {large}")["rows"] == 3


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_body_is_never_left_behind(
    spark: SparkSession, service: str, client: Client, films: str
) -> None:
    client.create_topic("films-compacted", compaction={})
    chosen = ReplayOptions(films, "films-compacted")
    with pytest.raises(JobFailed, match="compaction would remove a large message's body"):
        run_job("replay", lambda run: replay(run, chosen), service=service, say=lambda _: None)
    assert found_in(client, "films-compacted") == []
    read = spark.read.format("octavo").options(service=service, subscribe=films)
    rows = read.option("includeHeaders", "true").load().select("value", "headers")
    client.create_topic("films-plain")
    writing = rows.write.format("octavo").options(service=service, topic="films-plain")
    with pytest.raises(Exception, match=r"whose body of .* bytes is in no column"):
        writing.mode("append").save()
    assert found_in(client, "films-plain") == []


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_jobs_that_look_at_a_topic_know_them(
    spark: SparkSession, service: str, films: str, tmp_path: Path
) -> None:
    chosen = selection_of(films)

    def outcome_of(name: str, job: Callable[[Run], Outcome]) -> Outcome:
        return run_job(name, job, service=service, say=lambda _: None)

    verified = outcome_of("verify", lambda run: verify(run, chosen))
    assert verified.findings == []
    assert verified.summary["messages"] == 5 + 2 * 6
    told = outcome_of("report", lambda run: report(run, ReportOptions(chosen, tmp_path / "told")))
    assert told.summary["messages"] == 5
    letters = tmp_path / "letters"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    options = ExportOptions(chosen, str(tmp_path / "out"), schema=schema, bad_rows=str(letters))
    outcome_of("export", lambda run: export(run, options))
    rows = pq.ParquetDataset(letters).read(["offset", "value", "reason"]).to_pylist()
    reasons = {row["offset"]: row["reason"] for row in rows if not row["value"]}
    assert reasons == dict.fromkeys((7, 15), "a large message: its body is not in a column")
    assert len(rows) == 5


if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW_MS = 1_764_000_000_000
TIMES = [NOW_MS, NOW_MS * 1_000, NOW_MS * 10**6, -5, -1, NOW_MS + 1]
DATED = {NOW_MS, NOW_MS + 1}
SOURCE = "odd-times"
COLUMNS = "key,value,topic,partition,offset,timestamp,timestampMillis"


@pytest.fixture(scope="module")
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
def read_odd(spark: SparkSession, service: str) -> Read:
    def of(topic: str = SOURCE, **options: str) -> DataFrame:
        reader = spark.read.format("octavo").options(service=service, subscribe=topic)
        return reader.options(columns=COLUMNS, **options).load()

    return of


@pytest.fixture(scope="module")
def job_odd(spark: SparkSession, service: str) -> Callable[[Callable[[Run], Outcome]], Outcome]:
    return lambda work: run_job("odd", work, service=service, say=lambda _: None)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_stored")
def test_a_batch_query_reads_null_beside_the_number(read_odd: Read) -> None:
    assert told(read_odd()) == wanted()
    assert read_odd().where("timestamp IS NULL").count() == len(TIMES) + 1 - len(DATED)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_stored")
def test_a_time_is_looked_for_among_those_that_have_a_date(read_odd: Read) -> None:
    found = read_odd(startingTimestamp=str(NOW_MS + 1))
    assert sorted(bytes(row.key) for row in found.collect()) == [b"k5", b"k9"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_stored")
@pytest.mark.parametrize("commit", ["bulk-load", "auto"])
def test_a_stream_reads_them_and_the_sink_stores_the_same_numbers(
    spark: SparkSession, service: str, client: Client, read_odd: Read, tmp_path: Path, commit: str
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
    assert told(read_odd(target)) == wanted()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_stored")
def test_a_producers_commit_says_what_brokers_refuse(
    service: str, client: Client, read_odd: Read
) -> None:
    client.create_topic("odd-published")
    write = read_odd().select("key", "value", "timestampMillis").write.format("octavo")
    write = write.options(service=service, topic="odd-published", commit="producer")
    with pytest.raises(Exception, match=r"which brokers refuse .* set commit to auto"):
        write.mode("append").save()
    assert read_odd("odd-published").count() == 0


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_stored")
def test_replay_stores_the_same_numbers(
    service: str,
    client: Client,
    read_odd: Read,
    job_odd: Callable[[Callable[[Run], Outcome]], Outcome],
) -> None:
    client.create_topic("odd-again", partitions=2)
    with seen_by_readers(service, "odd-again", len(wanted())):
        outcome = job_odd(lambda run: replay(run, ReplayOptions(SOURCE, "odd-again")))
    assert (outcome.exit, outcome.summary["rows"]) == (Exit.OK, len(wanted()))
    assert told(read_odd("odd-again")) == wanted()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_stored")
@pytest.mark.parametrize("typed", [False, True])
def test_an_export_has_a_null_where_there_is_no_date(
    job_odd: Callable[[Callable[[Run], Outcome]], Outcome], tmp_path: Path, typed: bool
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}} if typed else None
    options = ExportOptions(
        selection_of(SOURCE), str(tmp_path / "out"), schema, "skip" if typed else "suspend"
    )
    outcome = job_odd(lambda run: export(run, options))
    counts = (outcome.summary["rows"], outcome.summary["bad_rows"])
    assert counts == ((0, len(wanted())) if typed else (len(wanted()), 0))
    files = sorted((tmp_path / "out").glob("export_batch=*/*.parquet"))
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    dates = sorted((row["key"], ms_of(row["timestamp"])) for row in rows)
    assert dates == ([] if typed else [(key, date) for key, date, _ in wanted()])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_stored")
def test_a_compacted_view_keeps_the_numbers(
    service: str,
    client: Client,
    read_odd: Read,
    job_odd: Callable[[Callable[[Run], Outcome]], Outcome],
) -> None:
    """The newest of a key is found by offsets, whatever the times."""
    topic = "odd-compacted"
    client.create_topic(topic, rollover={"entries": 2})
    copies = read_odd().select("key", "value", "timestampMillis")
    for select in ("value", "CAST(IF(key = 'k4', NULL, value) AS BINARY) AS value"):
        with seen_by_readers(service, topic, len(wanted())):
            frame = copies.selectExpr("key", select, "timestampMillis").coalesce(1)
            frame.write.format("octavo").options(service=service, topic=topic).mode("append").save()
    options = CompactOptions(selection_of(topic), CompactPolicy())
    outcome = job_odd(lambda run: compact(run, options))
    assert (outcome.exit, outcome.summary["messages_kept"]) == (Exit.OK, len(wanted()))
    compacted = read_odd(topic, readCompacted="true")
    assert told(compacted) == wanted()
    assert [bytes(row.key) for row in compacted.where("value IS NULL").collect()] == [b"k4"]
    with Client(service) as reader:
        shown = {
            one.key: one.timestamp_ms for one in reader.messages(topic, partition=0, compacted=True)
        }
    assert shown == {key: ms for key, _, ms in wanted()}
