"""B9, the sink: writes rows to a topic by Spark in local mode, and times small micro-batches.

    python -m bench.b9_sink                  # 1,000,000 rows of 100 B, three rounds, local[2]

The cluster shares the machine with Spark. A round is a batch write, from the call to the commit's
answer. Then a stream copies few messages from topic to topic, by ledgers and by the producer; Spark
times its micro-batches (`triggerExecution`).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.program import arguments, end
from bench.standalone import standalone
from octavo import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATENCY_DEADLINE_S = 300.0


def session(folder: Path, master: str, conf: list[str]) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder
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


def write_round(
    spark: SparkSession, service: str, topic: str, rows: int, value_bytes: int
) -> float:
    frame = spark.range(0, rows, 1, 2).selectExpr(
        f"CAST(LPAD(CAST(id AS STRING), {value_bytes}, '0123456789') AS BINARY) AS value",
        "CAST(CAST(id % 1000 AS STRING) AS BINARY) AS key",
    )
    started_s = time.perf_counter()
    frame.write.format("octavo").options(service=service, topic=topic).mode("append").save()
    return time.perf_counter() - started_s


def latencies(
    spark: SparkSession, service: str, folder: Path, batches: int, commit: str
) -> dict[str, Any]:
    """Milliseconds of small micro-batches; the first three are warm-up."""
    source, target = f"small-in-{commit}", f"small-out-{commit}"
    with Client(service) as client:
        client.create_topic(source, partitions=1)
        client.create_topic(target, partitions=1)
        query = (
            spark.readStream.format("octavo")
            .options(service=service, subscribe=source, startingOffsets="earliest")
            .load()
            .select("key", "value")
            .writeStream.format("octavo")
            .options(service=service, topic=target, commit=commit)
            .option("checkpointLocation", str(folder / f"checkpoint-{commit}"))
            .start()
        )
        found: dict[int, Any] = {}
        deadline_s = time.monotonic() + LATENCY_DEADLINE_S
        with client.producer(source) as producer:
            while len(found) < batches + 3 and time.monotonic() < deadline_s:
                for number in range(10):
                    producer.send(b"%d" % number)
                producer.flush()
                time.sleep(0.1)
                for progress in query.recentProgress:
                    if progress.numInputRows:
                        found[progress.batchId] = dict(progress.durationMs)
        query.stop()
    kept = [found[batch] for batch in sorted(found)[3:]]
    assert kept, "no micro-batch ended in time"
    return {
        "batches": len(kept),
        "trigger_p50_ms": statistics.median(one["triggerExecution"] for one in kept),
        "trigger_max_ms": max(one["triggerExecution"] for one in kept),
        **{
            f"{name}_p50_ms": statistics.median(one.get(name, 0) for one in kept)
            for name in ("latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets")
        },
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[], help="of Spark: name=value")
    given = parser.parse_args()
    rates: list[float] = []
    loads: list[float] = []
    with tempfile.TemporaryDirectory(prefix="octavo-b9-") as name:
        folder = Path(name)
        with standalone(folder / "data") as cluster:
            service = cluster.urls[0]
            spark = session(folder, given.master, given.conf)
            with Client(service) as client:
                client.create_topic("rows", partitions=given.partitions)
            write_round(spark, service, "rows", given.rows // 10, given.value_bytes)  # warm-up
            for number in range(given.rounds):
                seconds = write_round(spark, service, "rows", given.rows, given.value_bytes)
                rates.append(given.rows / seconds)
                loads.append(os.getloadavg()[0])
                print(f"round {number + 1}: {given.rows:,} rows in {seconds:.2f} s, "
                      f"{rates[-1]:,.0f} rows/s", flush=True)  # fmt: skip
            small: dict[str, Any] = {}
            for commit in ("bulk-load", "producer"):
                found = latencies(spark, service, folder, given.batches, commit)
                small[commit] = {**found, "load_average": os.getloadavg()[0]}
                print(f"micro-batches of ten rows, {commit}: {found['trigger_p50_ms']:g} ms in the "
                      f"median, {found['trigger_max_ms']} at most, {found['batches']} of them",
                      flush=True)  # fmt: skip
            spark.stop()
    end(
        given, "b9_sink", load_average=loads, rows_per_s=[round(rate) for rate in rates],
        rows_per_s_median=round(statistics.median(rates)), micro_batches=small,
    )  # fmt: skip


if __name__ == "__main__":
    main()
