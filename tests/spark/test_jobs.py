"""Jobs on a live cluster: export, ingest-kafka, report, verify, audit, scrub, the worked
pipeline."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from octavo import Client
from octavo.examples.delays import COLUMNS, Row, differences, expected
from octavo.examples.pipeline import PipelineDemo, copy_tables
from octavo.examples.screen import Screen
from octavo.ledger.client import LedgerClient
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.opening import open_store
from octavo.metadata.store import RecordExists
from octavo.metadata.topics import PartitionLedger, PartitionRecord, TopicStore
from octavo.pipeline.audit import audit
from octavo.pipeline.export import ExportOptions, export
from octavo.pipeline.ingest_kafka import KafkaOptions, copied_once, ingest_kafka, messages
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.packages import KAFKA, is_there, missing
from octavo.pipeline.report import ReportOptions, report
from octavo.pipeline.runner import BadUsage, JobFailed, Run, run_job, selection_of
from octavo.pipeline.scrub import ABSENT, ScrubOptions, scrub
from octavo.pipeline.session import SparkMissing
from octavo.pipeline.streams import Progress
from octavo.pipeline.verify import verify
from octavo.protocol.batch import with_base_offset
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry
from octavo.protocol.frames import add_prefix
from octavo.protocol.records import Record, build_batch, partition_for
from tests.support.processes.standalone import OCTAVO, Standalone, environment, standalone, until
from tests.support.published import seen_by_readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = {
    "type": "object",
    "required": ["n"],
    "properties": {
        "n": {"type": "integer", "minimum": 0},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "dep. delay": {"type": ["number", "null"]},
    },
}
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def client(service: str) -> Iterator[Client]:
    with Client(service) as found:
        found.create_topic("typed")
        yield found


Export = Callable[..., Outcome]


@pytest.fixture(scope="module")
def exported(spark: SparkSession, service: str) -> Export:
    def of(topic: str, out: Path, **options: Any) -> Outcome:
        what = ExportOptions(selection=selection_of(topic), out=str(out), **options)
        return run_job("export", lambda run: export(run, what), service=service, say=lambda _: None)

    return of


def publish(client: Client, service: str, topic: str, values: list[Any]) -> None:
    with (
        seen_by_readers(service, topic, len(values)),
        client.producer(topic, batch_bytes=400) as producer,
    ):
        for number, value in enumerate(values):
            producer.send(value, key=f"k{number}", timestamp_ms=START_MS + number)


def rows_in(out: Path) -> list[dict[str, Any]]:
    files = sorted(out.glob("export_batch=*/*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_repeated_run_adds_what_is_new(
    exported: Export, client: Client, service: str, tmp_path: Path
) -> None:
    client.create_topic("raw", partitions=2)
    out = tmp_path / "out"
    publish(client, service, "raw", [b"%d" % number for number in range(40)])
    first = exported("raw", out, rows_per_batch=25)
    assert (first.exit, first.summary["rows"], first.summary["batches"]) == (Exit.OK, 40, 2)
    publish(client, service, "raw", [b"%d" % number for number in range(40, 50)])
    assert exported("raw", out).summary["rows"] == 10
    rows = rows_in(out)
    assert sorted(int(row["value"]) for row in rows) == list(range(50))
    assert {row["topic"] for row in rows} == {"raw"}
    with pytest.raises(BadUsage, match=r"holds an export of \['public/raw'\]"):
        exported("typed", out)
    (out / "_checkpoint").rename(tmp_path / "moved")
    with pytest.raises(BadUsage, match="would overwrite it"):
        exported("raw", out)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_bad_rows_suspend_and_then_go_to_dead_letters(
    exported: Export, client: Client, service: str, tmp_path: Path
) -> None:
    good = [{"n": n, "at": "2024-01-01T02:00:00+02:00", "dep. delay": 1.5} for n in range(20)]
    publish(client, service, "typed", [json.dumps(one).encode() for one in good])
    out, letters = tmp_path / "out", tmp_path / "letters"
    assert exported("typed", out, schema=SCHEMA).exit is Exit.OK
    publish(client, service, "typed", [b'{"n": "7"}', b'{"n": 20, "tags": ["a"]}', b"{"])

    dry = exported("typed", out, schema=SCHEMA, dry_run=True)
    assert (dry.summary["rows"], dry.summary["bad_rows"]) == (21, 2)

    stopped = exported("typed", out, schema=SCHEMA)
    assert stopped.summary["suspended"]
    assert (stopped.exit, stopped.summary["rows"]) == (Exit.FINDINGS, 0)
    assert "public/typed/0 offset 20" in {one.where for one in stopped.findings}
    assert "Expected `int`, got `str` - at `$.n`" in {one.what for one in stopped.findings}
    assert len(rows_in(out)) == 20, "nothing of a suspended batch is written"

    rest = exported("typed", out, schema=SCHEMA, bad_rows=str(letters))
    assert (rest.summary["rows"], rest.summary["bad_rows"]) == (1, 2)
    rows = sorted(rows_in(out), key=lambda row: row["n"])
    assert [row["n"] for row in rows] == list(range(21))
    assert rows[3]["dep. delay"] == 1.5
    assert rows[3]["at"].isoformat() == "2024-01-01T00:00:00+00:00"
    assert (rows[20]["tags"], rows[20]["at"], rows[20]["_offset"]) == (["a"], None, 21)
    assert {(row["offset"], row["value"]) for row in rows_in(letters)} == {
        (20, b'{"n": "7"}'),
        (22, b"{"),
    }


@pytest.mark.long
@pytest.mark.timeout(600)
def test_interrupted_it_says_how_far_it_came_and_goes_on_there(
    exported: Export, client: Client, service: str, tmp_path: Path
) -> None:
    """Ctrl-C goes to all processes of a terminal."""
    client.create_topic("long", partitions=2)
    publish(client, service, "long", [b"%d" % number for number in range(200)])
    out = tmp_path / "out"
    command = ["pipeline", "export", "long", "--out", str(out), "--rows-per-batch", "2"]
    job = subprocess.Popen(
        [*OCTAVO, *command, "--url", service, "--json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(), start_new_session=True,
    )  # fmt: skip
    try:
        until(lambda: len(list(out.glob("export_batch=*/_SUCCESS"))) > 2, "batches", 400)
        os.killpg(job.pid, signal.SIGINT)
        said, told = job.communicate(timeout=120)
    finally:
        job.kill()
    assert job.returncode == 130, told
    found = json.loads(said)
    assert found["result"] == "interrupted"
    assert 0 < found["summary"]["rows"] < 200
    assert "Traceback" not in told
    assert exported("long", out).exit is Exit.OK
    assert sorted(int(row["value"]) for row in rows_in(out)) == list(range(200))


if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
AT = datetime(2024, 5, 1, tzinfo=UTC)
KAFKAS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
TARGETS = {"orders": "public/orders", "wide": "public/all"}


@pytest.fixture(scope="module")
def client_kafka(service: str) -> Iterator[Client]:
    with Client(service) as found:
        yield found


@pytest.mark.long
@pytest.mark.timeout(900)
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


@pytest.mark.long
@pytest.mark.timeout(900)
def test_once_on_a_checkpoint(
    spark: SparkSession, service: str, client_kafka: Client, tmp_path: Path
) -> None:
    client_kafka.create_topic("from-kafka", partitions=3)
    client_kafka.create_topic("kept-partitions", partitions=3)
    client_kafka.create_topic("by-the-key", partitions=2)

    def publish(numbers: range) -> None:
        with (
            seen_by_readers(service, "from-kafka", len(numbers)),
            client_kafka.producer("from-kafka") as producer,
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


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_missing_connector_is_named(
    spark: SparkSession, service: str, client_kafka: Client, tmp_path: Path
) -> None:
    if is_there(spark, KAFKA.known_by):
        pytest.skip("this Spark has the connector")
    client_kafka.create_topic("from-nowhere")
    options = KafkaOptions(("from-nowhere",), "127.0.0.1:1", str(tmp_path / "c"))

    def job(what: Callable[[Run], Outcome]) -> None:
        run_job("ingest-kafka", what, service=service, say=lambda _: None)

    minor = ".".join(spark.version.split(".")[:2])
    wanted = KAFKA.newest[minor].format(scala="2.13")
    with pytest.raises(SparkMissing, match=wanted.replace(".", r"\.")):
        job(lambda run: ingest_kafka(run, options))
    with pytest.raises(BadUsage, match="octavo topic create nowhere"):
        job(lambda run: ingest_kafka(run, KafkaOptions(("nowhere",), "h:1", "c")))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_is_said_of_a_missing_package() -> None:
    """Spark 4.3 runs with the connector of 4.2."""
    for spark, version in (("4.0.5", "4.0.4"), ("4.2.1", "4.2.0"), ("4.3.0", "4.2.0")):
        said = missing(KAFKA, spark, "2.13")
        assert "reading from Kafka needs the package" in said
        assert said.count(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}") == 2
    assert "pip install 'pyspark==4.3.*'" in missing(KAFKA, "4.10.1", "2.13")


if TYPE_CHECKING:
    from pyspark.sql import SparkSession
DAY_MS = 86_400_000
START_MS_REPORT = 19_700 * DAY_MS


@pytest.mark.long
@pytest.mark.timeout(600)
def test_volume_keys_and_sizes(spark: SparkSession, service: str, tmp_path: Path) -> None:
    with Client(service) as client:
        client.create_topic("told", partitions=2)
        with seen_by_readers(service, "told", 60), client.producer("told") as producer:
            for number in range(60):
                producer.send(
                    b"x" * (9 if number < 40 else 39),
                    key="h" if number % 2 else f"{number % 10}",
                    timestamp_ms=START_MS_REPORT + DAY_MS * (number // 30),
                )

    def run(overwrite: bool) -> Outcome:
        options = ReportOptions(selection_of("told"), tmp_path / "out", 3, overwrite)
        return run_job(
            "report", lambda run: report(run, options), service=service, say=lambda _: None
        )

    outcome = run(overwrite=False)
    assert (outcome.exit, outcome.summary["messages"]) == (Exit.OK, 60)
    with pytest.raises(BadUsage, match="holds a report"):
        run(overwrite=False)
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert found["volume"] == [
        {"topic": "public/told", "day": "2023-12-09", "messages": 30, "bytes": 30 * 10},
        {"topic": "public/told", "day": "2023-12-10", "messages": 30, "bytes": 10 * 10 + 20 * 40},
    ]
    assert found["sizes"] == [
        {"topic": "public/told", "bytes_min": 8, "messages": 40},
        {"topic": "public/told", "bytes_min": 32, "messages": 20},
    ]
    assert [(row["key"], row["messages"]) for row in found["hot_keys"]] == [
        ("h", 30),
        ("0", 6),
        ("2", 6),
    ]
    assert found["stored"][0]["partitions"] == 2
    for name in ("volume", "sizes", "hot_keys"):
        assert pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() == found[name]
    html = (tmp_path / "out" / "report.html").read_text()
    assert html.count("<svg") == 4
    links = re.findall(r'(?:src|href)="([^"#]+)', html)
    assert not links, "the page needs no network"


if TYPE_CHECKING:
    from pyspark.sql import SparkSession
Verify = Callable[[str], Outcome]


@pytest.fixture(scope="module")
def verified(spark: SparkSession, service: str) -> Verify:
    def of(topics: str) -> Outcome:
        return run_job(
            "verify",
            lambda run: verify(run, selection_of(topics)),
            service=service,
            say=lambda _: None,
        )

    return of


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_topic_as_published(verified: Verify, client_kafka: Client, service: str) -> None:
    client_kafka.create_topic("kept", partitions=2, rollover={"entries": 4})
    for _ in range(2):
        with (
            seen_by_readers(service, "kept", 150),
            client_kafka.producer("kept", batch_bytes=500) as producer,
        ):
            for number in range(150):
                producer.send(b"%d" % number, key=f"k{number % 7}")
    outcome = verified("kept")
    assert outcome.findings == []
    assert outcome.exit is Exit.OK
    assert (outcome.summary["messages"], outcome.summary["producers"]) == (300, 2)
    assert outcome.summary["ledgers"] > 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_topic_that_breaks_each_promise(
    verified: Verify, client_kafka: Client, cluster: Standalone
) -> None:
    client_kafka.create_topic("broken", partitions=2)
    asyncio.run(break_promises(cluster.cluster.metadata_url))
    outcome = verified("broken")
    found = {(finding.kind, finding.where, finding.what) for finding in outcome.findings}
    at = "public/broken/0"
    kinds = {(kind, where) for kind, where, _ in found}
    assert kinds == {
        ("offset-missing", at),
        ("offset-repeated", at),
        ("sequence-missing", at),
        ("sequence-repeated", at),
        ("sequence-begun-again", at),
        ("epoch-back", at),
        ("chain", at),
        ("key-in-several-partitions", at),
    }
    said = "\n".join(sorted(what for _, _, what in found))
    assert "entry 1: offset 5 follows 2" in said
    assert "entry 3: offset 7 follows 7" in said
    assert "producer 1 has epoch 0 sequence 6 after 0 sequence 2" in said
    assert "producer 1 has epoch 0 sequence 0 after 0 sequence 8" in said
    assert "producer 2 has epoch 4 sequence 0 after 5 sequence 2" in said
    assert "producer 3 has epoch 0 sequence 1 after 0 sequence 3" in said
    assert "key k is in partitions 0, 1" in said
    assert "ends before offset 20, the other begins at 22" in said
    assert outcome.exit is Exit.FINDINGS


@pytest.mark.long
@pytest.mark.timeout(600)
def test_offsets_out_of_all_order(
    verified: Verify, client_kafka: Client, cluster: Standalone, spark: SparkSession, service: str
) -> None:
    """Readers refuse the ledger; `verify` reads on to its last entry and reports each step."""
    client_kafka.create_topic("forged", partitions=1)
    forged = [batch(base, 1, -1, -1, -1) for base in (0, 1, 1000, 2, 3, -5, 4)]
    asyncio.run(write_ledgers(cluster.cluster.metadata_url, "forged", [(0, 5, forged)]))
    outcome = verified("forged")
    said = "\n".join(sorted(f"{one.kind}: {one.what}" for one in outcome.findings))
    assert "offset-missing: ledger" in said
    assert "entry 2: offset 1000 follows 1" in said
    assert "entry 3: offset 2 follows 1000" in said
    assert "entry 5: offset -5 follows 3" in said
    assert "entry 6: offset 4 follows -5" in said
    assert "holds offsets -5 to 1000, but the record says 0 to 4" in said
    assert outcome.counts == {"offset-missing": 3, "offset-repeated": 2}
    assert outcome.summary["messages"] == 7

    query = spark.read.format("octavo").option("service", service).option("subscribe", "forged")
    with pytest.raises(Exception, match="entry 2 starts offset 1000; expected is 2"):
        query.load().collect()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_entry_that_holds_no_message(
    verified: Verify, client_kafka: Client, cluster: Standalone
) -> None:
    client_kafka.create_topic("hollow", partitions=1)
    wrong = [batch(0, 1, -1, -1, -1), b"no batch", batch(1, 1, -1, -1, -1)]
    asyncio.run(write_ledgers(cluster.cluster.metadata_url, "hollow", [(0, 2, wrong)]))
    with pytest.raises(JobFailed, match=r"is damaged: entry 1 is no record batch"):
        verified("hollow")


def batch(base: int, count: int, producer: int, epoch: int, sequence: int) -> bytes:
    made = build_batch(
        [Record(b"k", b"v")] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return with_base_offset(made, base)


async def break_promises(metadata_url: str) -> None:
    first = [
        batch(0, 3, 1, 0, 0),
        batch(5, 1, 1, 0, 6),
        batch(6, 2, 1, 0, 7),
        batch(7, 1, 1, 0, 0),
        batch(8, 3, 2, 5, 0),
        batch(11, 1, 2, 4, 0),
        batch(12, 4, 3, 0, 0),
        batch(16, 4, 3, 0, 1),
    ]
    second, other = [batch(0, 1, 4, 0, 0)], [batch(0, 1, 5, 0, 0)]
    await write_ledgers(metadata_url, "broken", [(0, 20, first), (22, 1, second)], [(0, 1, other)])


async def write_ledgers(
    metadata_url: str, topic: str, *partitions: list[tuple[int, int, list[bytes]]]
) -> None:
    store = open_store(metadata_url)
    await store.start()
    ledgers = LedgerClient(store, rng=random.Random(7))
    await ledgers.start()

    async def ledger(payloads: list[bytes]) -> int:
        writer = await ledgers.create()
        for one in payloads:
            await writer.append(one)
        await writer.close()
        return writer.ledger_id

    try:
        topics = TopicStore(store)
        for number, wanted in enumerate(partitions):
            links = [
                PartitionLedger(await ledger(payloads), base, count, sum(map(len, payloads)))
                for base, count, payloads in wanted
            ]
            record = PartitionRecord(ledgers=tuple(links))
            try:
                await topics.create_partition("public", topic, number, record)
            except RecordExists:
                _, version = await topics.read_partition("public", topic, number)
                await topics.write_partition("public", topic, number, record, version)
    finally:
        await ledgers.close()
        await store.close()


if TYPE_CHECKING:
    from pyspark.sql import SparkSession
Job = Callable[[Callable[[Run], Outcome]], Outcome]


@pytest.fixture(scope="module")
def job(spark: SparkSession, service: str) -> Job:
    return job_at(service)


def job_at(service: str) -> Job:
    def of(work: Callable[[Run], Outcome]) -> Outcome:
        return run_job("copies", work, service=service, say=lambda _: None)

    return of


@pytest.fixture(scope="module")
def spoiled(cluster: Standalone) -> Iterator[LedgerMetadata]:
    """Entry 0 is whole; of 1 a copy is missing, of 2 one is damaged, 3 has another payload on
    one bookie, 4 is lost."""
    url = cluster.cluster.metadata_url
    made = asyncio.run(with_ledgers(url, spoil))
    yield made
    asyncio.run(with_ledgers(url, lambda ledgers: ledgers.delete(made.ledger_id)))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_scrub_tells_each(job: Job, spoiled: LedgerMetadata) -> None:
    a, b, c = spoiled.fragments[0].bookies
    outcome = job(lambda run: scrub(run, ScrubOptions(ledgers=(spoiled.ledger_id,))))
    assert outcome.counts == {
        "copy-missing": 4,
        "copy-damaged": 1,
        "copies-differ": 1,
        "entry-lost": 1,
    }
    said = {(one.kind, one.what) for one in outcome.findings}
    assert ("copy-damaged", f"bookie {b} has a copy whose digest is wrong: entries 2") in said
    assert ("copy-missing", f"bookie {c} has no copy, by its own answer: entries 1, 4") in said
    assert ("copy-missing", f"bookie {a} has no copy, by its own answer: entries 4") in said
    assert ("copies-differ", "whole copies that differ: entries 3") in said
    assert ("entry-lost", "no bookie has a good copy: entries 4") in said
    assert (outcome.summary["entries_read"], outcome.summary["copies_read"]) == (5, 15)
    assert outcome.exit is Exit.FINDINGS


@pytest.mark.long
@pytest.mark.timeout(600)
def test_audit_tells_what_is_not_there(job: Job, spoiled: LedgerMetadata) -> None:
    a, b, c = spoiled.fragments[0].bookies
    outcome = job(audit)
    mine = [one for one in outcome.findings if one.where == f"ledger {spoiled.ledger_id}"]
    assert sorted((one.kind, one.what) for one in mine) == [
        ("copy-missing", f"bookie {a} lacks entries 4"),
        ("copy-missing", f"bookie {b} lacks entries 4"),
        ("copy-missing", f"bookie {c} lacks entries 1, 4"),
        ("entry-lost", "no bookie of the write set has entries 4"),
    ]
    assert outcome.exit is Exit.FINDINGS


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_sound_ledger_has_no_findings(
    job: Job, service: str, cluster: Standalone, spoiled: LedgerMetadata
) -> None:
    with Client(service) as client:
        client.create_topic("sound", rollover={"entries": 4})
        with (
            seen_by_readers(service, "sound", 200),
            client.producer("sound", batch_bytes=300) as producer,
        ):
            for number in range(200):
                producer.send(b"%d" % number)
    outcome = job(lambda run: scrub(run, ScrubOptions(sample=0.5, bytes_per_s=10**8)))
    # A task's process may end when two copies are there; the third comes later.
    bad = {one.where for one in outcome.findings if one.kind != ABSENT}
    assert bad <= {f"ledger {spoiled.ledger_id}"}
    assert 0 < outcome.summary["entries_read"] < outcome.summary["entries"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_audit_has_bookies_fetch_what_they_lack(spark: SparkSession, tmp_path: Path) -> None:
    """All entries with a copy come back; the others stay lost, and are reported."""
    with standalone(tmp_path / "data", "--set=bookie.copies_retry_ms=86400000") as own:
        made = asyncio.run(with_ledgers(own.cluster.metadata_url, spoil))
        job = job_at(own.cluster.urls[0])
        outcome = job(partial(audit, repair=True))
        assert outcome.summary["bookies_told_to_repair"] == 3
        deadline = time.monotonic() + 120
        while True:
            found = job(audit).findings
            mine = [one for one in found if one.where == f"ledger {made.ledger_id}"]
            if len(mine) == 4 and all("1" not in one.what.partition("lacks")[2] for one in mine):
                break
            assert time.monotonic() < deadline, mine
    assert sorted((one.kind, one.what) for one in mine) == [
        *(
            ("copy-missing", f"bookie {name} lacks entries 4")
            for name in sorted(made.fragments[0].bookies)
        ),
        ("entry-lost", "no bookie of the write set has entries 4"),
    ]


async def with_ledgers(url: str, work: Callable[[LedgerClient], Awaitable[Any]]) -> Any:
    store = open_store(url)
    await store.start()
    ledgers = LedgerClient(store, rng=random.Random(7))
    await ledgers.start()
    try:
        return await work(ledgers)
    finally:
        await ledgers.close()
        await store.close()


class Acks:
    def __init__(self) -> None:
        self.stored = 0
        self.came = asyncio.Event()

    def added(self, bookie_id: str, first: int, last: int) -> None:
        self.stored += last - first + 1
        self.came.set()

    def add_refused(self, bookie_id: str, code: int, first: int, last: int) -> None:
        raise AssertionError(f"bookie {bookie_id} refused entry {first}: {code}")


async def spoil(ledgers: LedgerClient) -> LedgerMetadata:
    a, b, c = sorted(ledgers.bookies.available)[:3]
    wanted = LedgerMetadata(
        ledger_id=-1,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=(Fragment(0, (a, b, c)),),
    )
    made, version = await ledgers.records.create(wanted)

    def entry(entry_id: int, payload: bytes) -> bytes:
        digest = digest_for(DigestType.CRC32C, b"")
        length = 5 * (entry_id + 1)
        return pack_entry(digest, made.ledger_id, entry_id, entry_id - 1, length, payload)

    whole = {number: entry(number, b"whole") for number in range(4)}
    flipped = whole[2][:-1] + bytes([whole[2][-1] ^ 1])
    holds = {
        a: {**whole, 3: entry(3, b"other")},
        b: {**whole, 2: flipped},
        c: {number: data for number, data in whole.items() if number != 1},
    }
    for bookie, entries in holds.items():
        connection = await ledgers.bookies.get(bookie).connected()
        acks = Acks()
        connection.attach(made.ledger_id, acks)
        for data in entries.values():
            frame = add_prefix(master_key(b""), len(data)) + data
            connection.send_adds([frame], len(frame))
        while acks.stored < len(entries):
            acks.came.clear()
            await asyncio.wait_for(acks.came.wait(), 60)
    closed = replace(made, state=LedgerState.CLOSED, last_entry=4, length=25)
    await ledgers.records.write(closed, version)
    return closed


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    folder = tmp_path_factory.mktemp("tables") / "tables"
    copy_tables(folder, 3000)
    return expected(folder)


@pytest.mark.timeout(1500)
@pytest.mark.long
def test_all_checks_pass(
    spark: SparkSession, service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Screen() as screen:
        PipelineDemo(screen=screen, service=service, folder=tmp_path, rows=3000).run()
    said = capsys.readouterr().out
    assert screen.checks_failed == 0, said
    assert said.count("  ok  ") == 12, said
    assert (tmp_path / "report" / "report.html").exists()


@pytest.mark.timeout(1500)
def test_the_comparison_finds_each_kind_of_mistake(wanted: list[Row]) -> None:
    assert len(wanted) > 100
    assert sum(row[COLUMNS.index("flights")] for row in wanted) == 3000
    assert differences(wanted, wanted) == ([], [], [], [])
    assert differences(wanted[1:], wanted).missing == [wanted[0]]
    assert differences([*wanted, wanted[3]], wanted).doubled == [wanted[3]]
    stranger = ("2013-01-01T10:00:00+00:00", "??", *wanted[0][2:])
    assert differences([*wanted, stranger], wanted).unexpected == [stranger]
    for column in range(2, len(COLUMNS)):
        changed = (*wanted[0][:column], -1, *wanted[0][column + 1 :])
        assert differences([changed, *wanted[1:]], wanted).altered == [changed]
