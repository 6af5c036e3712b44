"""B9, the source: rows a second and core that the Spark source reads from closed ledgers.

    python -m bench.b9_source [--megabytes 200] [--value-bytes 100 1000] [--spark]

Reads splits as Spark tasks do, in this process: from the bookies, and through a broker. The rate of
a core comes from this process's processor time; the cluster's is listed, too. `--spark` also counts
the rows through Spark in local mode.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.program import arguments, end
from bench.standalone import standalone
from octavo import Client
from octavo.spark.cluster import connected
from octavo.spark.columns import checked_schema, schema_of
from octavo.spark.options import Selection, source_options
from octavo.spark.planning import views_of
from octavo.spark.readers import OctavoReader
from octavo.standalone.cluster_file import ClusterFile

TOPIC = "rows"
BATCH_BYTES = 64 * 1024


class Read(NamedTuple):
    rows: int
    bytes: int
    wall_s: float
    cpu_s: float
    cluster_cpu_s: float


def fill(service: str, rows: int, value_bytes: int) -> None:
    value = os.urandom(value_bytes)
    with Client(service) as client:
        with contextlib.suppress(Exception):
            client.delete_topic(TOPIC)
        client.create_topic(TOPIC, partitions=2, rollover={"size": 16 * 2**20})
        with client.producer(TOPIC, batch_bytes=BATCH_BYTES) as producer:
            for _ in range(rows):
                producer.send(value)
    deadline = time.monotonic() + 60
    while asyncio.run(known(service)) < rows:
        assert time.monotonic() < deadline, "bookies do not confirm what was published"
        time.sleep(0.2)


async def known(service: str) -> int:
    async with connected(service) as cluster:
        wanted = await cluster.partitions(Selection(topics=(f"public/{TOPIC}",)))
        return sum(view.end for view in await views_of(cluster, wanted))


def closed_end(service: str) -> str:
    """The ends of the closed ledgers of each partition, in the option's format."""

    async def look() -> dict[str, int]:
        async with connected(service) as cluster:
            found = {}
            for partition in range(2):
                record = await cluster.record(f"public/{TOPIC}", partition)
                closed = [link for link in record.ledgers if link.count is not None]
                found[str(partition)] = sum(link.count or 0 for link in closed)
            return found

    return json.dumps({TOPIC: asyncio.run(look())})


def cluster_cpu_s(cluster: ClusterFile) -> float:
    return sum(sum(psutil.Process(one.pid).cpu_times()[:2]) for one in cluster.members)


def read_here(cluster: ClusterFile, service: str, **options: str) -> Read:
    given = {"service": service, "subscribe": TOPIC, **options}
    checked = source_options(given, streaming=False)
    reader = OctavoReader(checked, checked_schema(schema_of(checked), checked))
    splits = reader.partitions()
    wall_s, cpu_s, served_s = time.monotonic(), time.process_time(), cluster_cpu_s(cluster)
    rows = size = 0
    for split in splits:
        for batch in reader.read(split):
            rows += batch.num_rows
            size += batch.nbytes
    return Read(
        rows,
        size,
        time.monotonic() - wall_s,
        time.process_time() - cpu_s,
        cluster_cpu_s(cluster) - served_s,
    )


def read_by_spark(spark: Any, service: str, **options: str) -> Read:
    frame = spark.read.format("octavo").options(service=service, subscribe=TOPIC, **options).load()
    started = time.monotonic()
    rows = frame.count()
    return Read(rows, 0, time.monotonic() - started, 0.0, 0.0)


def tell(what: str, value_bytes: int, read: Read) -> dict[str, Any]:
    values = read.rows * value_bytes
    core = ""
    if read.cpu_s:
        rate, mb = read.rows / read.cpu_s, values / read.cpu_s / 1e6
        served = read.cluster_cpu_s / read.rows * 1e6
        core = f"; per core {rate:,.0f} rows/s, {mb:,.0f} MB/s; cluster {served:.2f} µs a row"
    print(
        f"{what:<22} {value_bytes:>5} B {read.rows:>9,} rows: "
        f"{read.rows / read.wall_s:,.0f} rows/s, {values / read.wall_s / 1e6:,.0f} MB/s{core}",
        flush=True,
    )
    return {"what": what, "value_bytes": value_bytes, **read._asdict()}


@contextlib.contextmanager
def session() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--megabytes", type=int, default=200, help="of values")
    parser.add_argument("--value-bytes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--spark", action="store_true")
    chosen = parser.parse_args()
    reads: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, standalone(Path(folder) / "data") as cluster:
        service = cluster.urls[0]
        for value_bytes in chosen.value_bytes:
            fill(service, chosen.megabytes * 1_000_000 // value_bytes, value_bytes)
            ending = closed_end(service)
            ways = {
                "bookies, all columns": {"endingOffsets": ending},
                "bookies, value only": {"endingOffsets": ending, "columns": "value"},
                "broker, all columns": {"endingOffsets": ending, "readFrom": "broker"},
            }
            for what, options in ways.items():
                for _ in range(chosen.repeat):
                    read = read_here(cluster, service, **options)
                    reads.append(tell(what, value_bytes, read))
            if chosen.spark:
                with session() as spark:
                    for what, options in ways.items():
                        for _ in range(chosen.repeat):
                            found = read_by_spark(spark, service, **options)
                            reads.append(tell(f"Spark: {what}", value_bytes, found))
    end(chosen, "b9_source", reads=reads)


if __name__ == "__main__":
    main()
