"""B9 beside Kafka: the same Spark jobs with Octavo, and with Spark's connector for Kafka.

    python -m bench.b9_beside                       # 500,000 rows of 100 B with keys, three rounds
    python -m bench.b9_beside --systems octavo --parts triggers --batches 50

For each system a cluster of three in a fresh folder and a Spark of its own in local mode; they
share the machine. Octavo: `octavo standalone`, E = Qw = 3, Qa = 2, a sync before each answer.
Kafka: three brokers and three copies, which do not sync. Maven fetches Kafka and the connector;
without it Kafka is left out. `parquet` reads and writes files, as a measure of Spark itself.

Parts: `sink` writes generated rows with keys into four partitions, `source` reads what it wrote
(all columns, and the values alone) into Spark's sink `noop`. `triggers` copies a topic to another
while few messages arrive: the time from the query's start to its first progress with rows, and each
micro-batch's time by phase, as Spark's progress tells it. For Octavo it does so with both ways to
commit, then reads only (to `noop`) and writes only (from Spark's `rate`). Prints a line for each,
and last a JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench.program import arguments, end, several
from bench.standalone import standalone
from octavo import Client
from octavo.pipeline.packages import KAFKA
from octavo.standalone.cluster_file import ClusterFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SYSTEMS = ("octavo", "kafka", "parquet")
PARTS = ("sink", "source", "triggers")
PARTITIONS = 4
WARM_UP = 3
DEADLINE_S = 300.0
EXIT_MISSING = 3
PHASES = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
_JARS_OF_SPARK = ("hadoop-", "scala-", "jsr305", "slf4j-", "lz4-", "snappy-", "spark-tags")


class Octavo:
    """A standalone cluster."""

    format = "octavo"
    values = (("columns", "value"),)
    """The options that read only the values."""
    pairs = (
        ("topic to topic, by ledgers", "topic", "topic", {"commit": "bulk-load"}),
        ("topic to topic, by the producer", "topic", "topic", {"commit": "producer"}),
        ("topic to noop", "topic", "noop", {}),
        ("rate to topic, by ledgers", "rate", "topic", {"commit": "bulk-load"}),
    )

    def __init__(self, cluster: ClusterFile) -> None:
        self._service = cluster.urls[0]
        self._client = Client(self._service)
        self.pids = [one.pid for one in cluster.members]

    def source(self, topic: str, **more: str) -> dict[str, str]:
        return {"service": self._service, "subscribe": topic, "startingOffsets": "earliest", **more}

    def sink(self, topic: str) -> dict[str, str]:
        return {"service": self._service, "topic": topic}

    def create(self, topic: str, partitions: int) -> None:
        self._client.create_topic(topic, partitions=partitions)

    @contextlib.contextmanager
    def sender(self, topic: str) -> Iterator[Any]:
        with self._client.producer(topic) as producer:

            def send(count: int) -> None:
                for number in range(count):
                    producer.send(b"%d" % number)
                producer.flush()

            yield send


class Kafka:
    """Three brokers."""

    format = "kafka"
    values = ()
    pairs = (("topic to topic", "topic", "topic", {}),)

    def __init__(self, brokers: Any) -> None:
        self._brokers = brokers
        self.pids = brokers.pids()

    @property
    def _servers(self) -> str:
        return str(self._brokers._bootstrap)

    def source(self, topic: str, **more: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._servers,
            "subscribe": topic, "startingOffsets": "earliest", **more,
        }  # fmt: skip

    def sink(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._servers, "topic": topic}

    def create(self, topic: str, partitions: int) -> None:
        self._brokers.create("kafka", topic, partitions)

    @contextlib.contextmanager
    def sender(self, topic: str) -> Iterator[Any]:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._servers, "acks": "all"})

        def send(count: int) -> None:
            for number in range(count):
                producer.produce(topic, b"%d" % number)
            producer.flush(30)

        yield send


def session(folder: Path, master: str, conf: list[str], jars: list[Path]) -> SparkSession:
    """Start Spark with few logs, and its files in the bench's folder."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    for one in conf:
        name, _, value = one.partition("=")
        builder = builder.config(name, value)
    found: SparkSession = (
        builder.master(master)
        .appName("b9")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    found.sparkContext.setLogLevel("ERROR")
    return found


def spent_s(pids: list[int]) -> tuple[float, float]:
    """Processor time so far: of Spark (the JVM and all of its Python processes), of the cluster."""
    spark = cluster = 0.0
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            if one.pid in pids:
                cluster += times.user + times.system
            else:  # a daemon adds the workers that have ended
                spark += sum(times[:4])
    return spark, cluster


def generated(spark: SparkSession, rows: int, value_bytes: int) -> DataFrame:
    """Rows with one of a thousand keys each."""
    return spark.range(0, rows, 1, 2).selectExpr(
        f"CAST(LPAD(CAST(id AS STRING), {value_bytes}, '0123456789') AS BINARY) AS value",
        "CAST(CAST(id % 1000 AS STRING) AS BINARY) AS key",
    )


def timed(what: str, rows: int, rounds: int, work: Any) -> dict[str, Any]:
    """Do the work once to warm up, then several times; print and return rows a second."""
    work(-1)
    rates = []
    for number in range(rounds):
        started_s = time.perf_counter()
        work(number)
        rates.append(round(rows / (time.perf_counter() - started_s)))
    print(f"  {what}: " + ", ".join(f"{rate:,}" for rate in rates) + " rows/s", flush=True)
    return {"what": what, "rows_per_s": rates, "load_average": os.getloadavg()[0]}


def write(spark: SparkSession, system: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Rows a second of a batch write; each round into a topic of its own."""

    def work(number: int) -> None:
        topic = f"rows-{number + 1}"
        system.create(topic, PARTITIONS)
        frame = generated(spark, given.rows, given.value_bytes)
        frame.write.format(system.format).options(**system.sink(topic)).mode("append").save()

    return timed("sink", given.rows, given.rounds, work)


def read(spark: SparkSession, system: Any, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows a second of a batch read of what the first round of `write` wrote."""

    def reading(more: dict[str, str], *columns: str) -> Any:
        def work(_: int) -> None:
            options = system.source("rows-1", endingOffsets="latest", **more)
            frame = spark.read.format(system.format).options(**options).load().select(*columns)
            frame.write.format("noop").mode("overwrite").save()

        return work

    both, values = reading({}, "key", "value"), reading(dict(system.values), "value")
    return [
        timed("source, key and value", given.rows, given.rounds, both),
        timed("source, value alone", given.rows, given.rounds, values),
    ]


def triggers(
    spark: SparkSession, system: Any, folder: Path, given: argparse.Namespace
) -> list[dict[str, Any]]:
    """The times of small micro-batches."""
    return [
        stream(spark, system, folder, given, number, *pair)
        for number, pair in enumerate(system.pairs)
    ]


def stream(
    spark: SparkSession, system: Any, folder: Path, given: argparse.Namespace,
    number: int, what: str, one: str, other: str, options: dict[str, str],
) -> dict[str, Any]:  # fmt: skip
    """The times of a query's micro-batches, without the first three."""
    source, target = f"small-in-{number}", f"small-out-{number}"
    system.create(source, 1)
    system.create(target, 1)
    if one == "rate":
        frame = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
        frame = frame.selectExpr("CAST(CAST(value AS STRING) AS BINARY) AS value")
    else:
        frame = spark.readStream.format(system.format).options(**system.source(source)).load()
        frame = frame.select("key", "value")
    if other == "noop":
        writer = frame.writeStream.format("noop")
    else:
        writer = frame.writeStream.format(system.format).options(**system.sink(target), **options)
    writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{number}"))
    found: dict[int, dict[str, int]] = {}
    first: tuple[float, float] | None = None
    warm: tuple[float, float] | None = None
    with system.sender(source) as send:
        send(10)
        started_s, began = time.monotonic(), spent_s(system.pids)
        query = writer.start()
        while len(found) < given.batches + WARM_UP and time.monotonic() < started_s + DEADLINE_S:
            send(10)
            time.sleep(0.1)
            for progress in query.recentProgress:
                if progress.numInputRows:
                    if first is None:
                        first = time.monotonic() - started_s, spent_s(system.pids)[0] - began[0]
                    found[progress.batchId] = dict(progress.durationMs)
            if warm is None and len(found) >= WARM_UP:
                warm, warm_batches = spent_s(system.pids), len(found)
        ended = spent_s(system.pids)
        query.stop()
    kept = [found[batch] for batch in sorted(found)[WARM_UP:]]
    assert kept, f"{what}: no micro-batch ended in time"
    assert first is not None
    assert warm is not None
    batches = max(1, len(found) - warm_batches)
    cpu_ms = [round(1000 * (end - start) / batches) for start, end in zip(warm, ended, strict=True)]
    phases = {
        name: statistics.median(batch.get(name, 0) for batch in kept)
        for name in ("triggerExecution", *PHASES)
    }
    rest = ", ".join(f"{name} {phases[name]:g}" for name in PHASES)
    most = max(batch["triggerExecution"] for batch in kept)
    print(f"  micro-batch, {what}: first progress {first[0]:.1f} s ({first[1]:.1f} s of "
          f"processor time); median {phases['triggerExecution']:g} ms, most {most}: {rest}; "
          f"processor time a batch: {cpu_ms[0]} ms of Spark, {cpu_ms[1]} of the cluster",
          flush=True)  # fmt: skip
    return {
        "what": what, "first_progress_s": first[0], "first_progress_cpu_s": first[1],
        "spark_cpu_ms": cpu_ms[0], "cluster_cpu_ms": cpu_ms[1], "batches": len(kept),
        "most_ms": most,
        "median_ms": phases, "load_average": os.getloadavg()[0],
    }  # fmt: skip


def files(spark: SparkSession, folder: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """The same rows as Parquet files."""

    def writes(number: int) -> None:
        path = str(folder / f"rows-{number + 1}")
        generated(spark, given.rows, given.value_bytes).write.parquet(path)

    def reads(_: int) -> None:
        frame = spark.read.parquet(str(folder / "rows-1"))
        frame.write.format("noop").mode("overwrite").save()

    return [
        timed("sink", given.rows, given.rounds, writes),
        timed("source, key and value", given.rows, given.rounds, reads),
    ]


@contextlib.contextmanager
def running(system: str, folder: Path) -> Iterator[tuple[Any, list[Path]]]:
    """Run the cluster; also return the jars that Spark needs. Raises `Missing`."""
    if system == "octavo":
        with standalone(folder / "data") as cluster:
            yield Octavo(cluster), []
    elif system == "kafka":
        import pyspark

        from bench.peers import fetch, kafka_peer

        minor = ".".join(pyspark.__version__.split(".")[:2])
        coordinates = KAFKA.newest[minor].format(scala="2.13")
        version = coordinates.rpartition(":")[2]
        lib = fetch.jars(fetch.Jars("Spark's connector for Kafka", version, (coordinates,)))
        jars = [jar for jar in sorted(lib.iterdir()) if not jar.name.startswith(_JARS_OF_SPARK)]
        with kafka_peer.running(folder) as brokers:
            yield Kafka(brokers), jars
    else:
        yield None, []


def measure(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure a system in this process, with a Spark of its own."""
    with tempfile.TemporaryDirectory(prefix="octavo-b9-") as made:
        folder = Path(made)
        with running(name, folder) as (system, jars):
            spark = session(folder, given.master, given.conf, jars)
            try:
                if system is None:
                    return files(spark, folder, given)
                found = []
                if "triggers" in given.parts:  # first: it also measures the start
                    found += triggers(spark, system, folder, given)
                if "sink" in given.parts or "source" in given.parts:
                    found.append(write(spark, system, given))
                if "source" in given.parts:
                    found += read(spark, system, given)
                return found
            finally:
                spark.stop()


def in_own_process(name: str, words: list[str]) -> list[dict[str, Any]] | None:
    """Measure in a process of its own, so that the first progress starts cold; None: no Kafka."""
    with tempfile.TemporaryDirectory(prefix="octavo-b9-") as made:
        answer = Path(made) / "answer.json"
        command = [sys.executable, "-m", "bench.b9_beside", *words, "--one", name]
        code = subprocess.run([*command, "--json", str(answer)], check=False).returncode
        if code == EXIT_MISSING:
            return None
        assert code == 0, f"{name} ended with {code}"
        found: list[dict[str, Any]] = json.loads(answer.read_text())
        return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--systems", type=several(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--parts", type=several(PARTS), default=list(PARTS))
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[], help="of Spark: name=value")
    parser.add_argument("--one", choices=SYSTEMS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        from bench.peers.contract import Missing

        try:
            given.json.write_text(json.dumps(measure(given.one, given)))
        except (Missing, ImportError) as error:
            print(f"  left out: {error}", flush=True)
            sys.exit(EXIT_MISSING)
        return
    results = {}
    for name in given.systems:
        print(f"{name}:", flush=True)
        results[name] = in_own_process(name, sys.argv[1:])
    del given.one
    end(given, "b9_beside", load_average=os.getloadavg()[0], results=results)


if __name__ == "__main__":
    main()
