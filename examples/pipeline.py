"""`octavo demo pipeline`: flights through topics and Spark, checked against pandas.

Four CSV tables become topics (`ingest`). A streaming query reads the flights from the bookies,
joins them, aggregates delays by hour and carrier, and writes them to another topic, exactly once.
In between, the demo removes Spark's note of a committed batch, as if the driver had died after the
commit: the batch is computed and committed a second time. The result is exported to Parquet
(`export`) and compared with pandas' result for the same files; `report` shows the volumes. The
flights are offloaded as an Iceberg table, which DuckDB and Polars read.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.client.sync import Client
from octavo.examples import lake
from octavo.examples.delays import (
    RESULT_SCHEMA,
    SCHEMAS,
    delays,
    differences,
    expected,
    exported,
    typed,
)
from octavo.examples.flights import FILE_NAME, data_folder
from octavo.examples.screen import Screen
from octavo.logs import configure_logging
from octavo.loop_thread import LoopThread
from octavo.pipeline.export import ExportOptions, export
from octavo.pipeline.ingest import IngestOptions, Shape, ingest
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.report import HTML, ReportOptions, report
from octavo.pipeline.runner import JobFailed, Run, look, run_job, selection_of
from octavo.pipeline.verify import verify
from octavo.standalone.supervisor import Plan, Supervisor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

RESULT = "delays"
PARTITIONS = {"flights": 4, "planes": 1, "airlines": 1, "weather": 1, RESULT: 2}
BATCHES = 8
AFTER_ALL = "2014-06-01T00:00:00Z"
"""The time of a last message, which moves the watermark past all flights."""
VISIBLE_S = 60.0
_SHAPES = {
    "flights": {"key": "tailnum", "timestamp": "time_hour", "order_by": "time_hour"},
    "planes": {"key": "tailnum"},
    "airlines": {"key": "carrier"},
    "weather": {"key": "origin", "timestamp": "time_hour"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDemo:
    screen: Screen
    service: str
    folder: Path
    rows: int | None = None

    def run(self) -> None:
        copy_tables(self.folder / "tables", self.rows)
        done = run_job("demo pipeline", self._work, service=self.service, say=self._say)
        if done.interrupted:
            raise SystemExit(done.exit)

    def _say(self, text: str) -> None:
        self.screen.event("spark", text)

    def _work(self, run: Run) -> Outcome:
        with Client(self.service) as client:
            for name, count in PARTITIONS.items():
                client.create_topic(name, partitions=count)
            flights = self._ingest(run)
            self._stream(run, client, flights)
        self._judge(run)
        self._verify_and_report(run)
        self._lake(run)
        return Outcome("demo")

    def _ingest(self, run: Run) -> int:
        screen = self.screen
        screen.headline("Ingest: four tables of CSV become four topics")
        found = {name: self._ingest_one(run, name) for name in _SHAPES}
        again = self._ingest_one(run, "flights")
        told = found["flights"]["rows"]
        screen.check(
            (again["rows"], again["files_ingested_before"]) == (0, 1),
            f"{told:,} flights; the same file again adds nothing",
        )
        return int(told)

    def _ingest_one(self, run: Run, name: str) -> dict[str, Any]:
        reader = {"nullValue": "NA", "inferSchema": "true"}
        path = str(self.folder / "tables" / f"{name}.csv")
        shape = Shape(reader=reader, **_SHAPES[name])
        return ingest(run, IngestOptions((path,), name, shape)).summary

    # ------------------------------------------------------------------ the query

    def _stream(self, run: Run, client: Client, flights: int) -> None:
        screen = self.screen
        screen.headline("Stream: join, aggregate per hour and carrier, write exactly once")
        tables = {
            name: typed(_read(run, name), name).cache() for name in SCHEMAS if name != "flights"
        }
        screen.begin("flights", flights)
        part = max(500, flights // BATCHES)
        late = self._until_done(_start(run, tables, self.folder, part), show=True)
        screen.end()
        # An hour is written once the watermark has passed it; the last hours need this message.
        with _readers_see(run.service, "flights", 1):
            client.publish("flights", {"time_hour": AFTER_ALL})
        late += self._until_done(_start(run, tables, self.folder, flights))
        before = _count(run.service, RESULT)
        forgotten = _forget_last_commit(self.folder / "checkpoint" / "commits")
        screen.event("demo", f"Spark forgets that batch {forgotten} was committed", "bold red")
        late += self._until_done(_start(run, tables, self.folder, flights))
        again = _count(run.service, RESULT)
        screen.check(
            again == before, f"computed and committed again, it adds nothing: {again:,} rows"
        )
        screen.check(late == 0, f"no flight came later than the watermark: {late} were left out")

    def _until_done(self, query: StreamingQuery, *, show: bool = False) -> int:
        while not query.awaitTermination(1):
            if show:
                self.screen.progress(sum(one.numInputRows for one in query.recentProgress))
        every = query.recentProgress
        if show:
            self.screen.progress(sum(one.numInputRows for one in every))
        operators = [operator for one in every for operator in one.stateOperators]
        return sum(operator.numRowsDroppedByWatermark for operator in operators)

    def _judge(self, run: Run) -> None:
        screen = self.screen
        screen.headline("Export to Parquet, and every row against pandas")
        out = self.folder / "parquet"
        options = ExportOptions(selection_of(RESULT), str(out), schema=RESULT_SCHEMA)
        outcome = export(run, options)
        screen.check(outcome.exit is Exit.OK, f"{outcome.summary['rows']:,} rows obey the schema")
        wanted = expected(self.folder / "tables")
        found = exported(out)
        amiss = differences(found, wanted)
        screen.check(
            bool(wanted) and len(found) == len(wanted),
            f"{len(found):,} rows from {RESULT}, {len(wanted):,} by pandas",
        )
        for name, rows in amiss._asdict().items():
            shown = f": {rows[0]}" if rows else ""
            screen.check(not rows, f"{len(rows):,} rows are {name}{shown}")

    def _verify_and_report(self, run: Run) -> None:
        screen = self.screen
        screen.headline("Verify and report")
        topics = selection_of(f"flights,{RESULT}")
        outcome = verify(run, topics)
        findings = [f"{one.kind} at {one.where}" for one in outcome.findings]
        screen.check(
            outcome.exit is Exit.OK,
            f"{outcome.summary['messages']:,} messages: offsets dense, keys in order "
            + ", ".join(findings[:3]),
        )
        report(run, ReportOptions(topics, self.folder / "report"))
        size = (self.folder / "report" / HTML).stat().st_size
        screen.event("report", f"{HTML}, {size:,} bytes")

    def _lake(self, run: Run) -> None:
        screen = self.screen
        screen.headline("Table: offloaded objects serve brokers and query engines, without a copy")
        if missing := lake.missing():
            screen.event("table", f"left out: pip install {' '.join(missing)}")
            return
        table = lake.as_table(run, self.folder / "lake")
        wanted = lake.by_pandas(self.folder / "tables")
        flights = sum(count for count, _ in wanted.values())
        for engine, found in (("DuckDB", lake.by_duckdb(table)), ("Polars", lake.by_polars(table))):
            screen.check(
                found == wanted,
                f"{engine} reads {sum(count for count, _ in found.values()):,} of {flights:,} "
                "flights from the Iceberg table, miles by carrier as pandas has them",
            )


def run_pipeline(folder: Path, rows: int | None) -> int:
    configure_logging(service="demo", form="console", level="error")
    with Screen() as screen, _cluster(folder / "cluster") as service:
        PipelineDemo(screen=screen, service=service, folder=folder, rows=rows).run()
        failed = screen.checks_failed
        took = f"{screen.elapsed_s:.0f} s"
        screen.headline(f"all checks passed, {took}" if not failed else f"{failed} checks FAILED")
        return 1 if failed else 0


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    """Run the cluster on another thread: Spark needs the main thread, for Ctrl-C."""
    thread = LoopThread("octavo-demo-cluster")
    supervisor = Supervisor(Plan(folder=folder, port_base=0))
    try:
        thread.call(supervisor.start())
        try:
            yield supervisor.cluster.urls[0]
        finally:
            thread.call(supervisor.stop())
    finally:
        thread.stop()


def copy_tables(folder: Path, rows: int | None) -> None:
    folder.mkdir(parents=True)
    source = data_folder()
    for name in _SHAPES:
        if name == "flights":
            with zipfile.ZipFile(source / f"{FILE_NAME}.zip") as archive:
                lines = archive.read(FILE_NAME).decode().splitlines(keepends=True)
            end = len(lines) if rows is None else rows + 1
            (folder / FILE_NAME).write_text("".join(lines[:end]))
        else:
            (folder / f"{name}.csv").write_bytes((source / f"{name}.csv").read_bytes())


def _read(run: Run, topic: str) -> DataFrame:
    options = {"service": run.service, "subscribe": topic, "columns": "value"}
    return run.spark.read.format("octavo").options(**options).load()


def _start(run: Run, tables: dict[str, DataFrame], folder: Path, rows: int) -> StreamingQuery:
    from octavo.spark.versions import read_limits

    limits = {"maxOffsetsPerTrigger": rows} if read_limits else {}
    flights = (
        run.spark.readStream.format("octavo")
        .options(service=run.service, subscribe="flights", columns="value")
        .options(startingOffsets="earliest", **limits)
        .load()
    )
    return (
        delays(typed(flights, "flights"), tables)
        .selectExpr("carrier AS key", "to_json(struct(*)) AS value", "hour AS timestamp")
        .writeStream.format("octavo")
        .outputMode("append")
        .options(service=run.service, topic=RESULT)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def _forget_last_commit(commits: Path) -> int:
    """As if the driver had died after the sink's commit."""
    newest = max(int(one.name) for one in commits.iterdir() if one.name.isdigit())
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)
    return newest


def _count(service: str, topic: str) -> int:
    return sum(view.end for view, _ in look(service, selection_of(topic)))


@contextmanager
def _readers_see(service: str, topic: str, count: int) -> Iterator[None]:
    """After the block, wait until readers of the bookies see `count` more messages."""
    wanted = _count(service, topic) + count
    yield
    deadline = time.monotonic() + VISIBLE_S
    while _count(service, topic) < wanted:
        if time.monotonic() > deadline:
            raise JobFailed(f"a message in {topic} is still invisible after {VISIBLE_S:g} s")
        time.sleep(0.05)
