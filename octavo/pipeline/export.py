"""The job `export`: write topics as Parquet files, raw or typed by a JSON Schema.

A streaming query writes batch N, always the same range of offsets, to `OUT/export_batch=N/`; a
repeated batch overwrites its folder, so each message is there once. The job refuses to add to files
whose checkpoint is gone. A row that does not match the schema ends the job (suspend), is left out
(skip), or goes to dead-letter files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from octavo.client.types import TopicName
from octavo.pipeline.files import exists, listing, read_text, write_text
from octavo.pipeline.interrupt import told
from octavo.pipeline.json_schema import BadSchema, columns_of, decoder_of
from octavo.pipeline.outcome import SHOWN_MAX, Finding, Outcome
from octavo.pipeline.ranges import follow_ranges
from octavo.pipeline.runner import BadUsage, Run, frame, look
from octavo.pipeline.streams import follow
from octavo.protocol.large import LARGE_HEADER
from octavo.spark.options import Selection
from octavo.spark.versions import read_limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RAW = "key,value,topic,partition,offset,timestamp,timestampType,headers"
_PLACES = ("topic", "partition", "offset", "timestamp", "key")
_IS_LARGE = "a large message: its body is not in a column"
BATCH = "export_batch"
_NOTE = "_export.json"


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export; without `every_s`, it copies what is there now and ends."""

    selection: Selection
    out: str
    schema: Mapping[str, Any] | None = None
    bad_rows: str = "suspend"
    """`suspend`, `skip`, or the path for dead letters."""
    checkpoint: str | None = None
    every_s: float | None = None
    rows_per_batch: int = 1_000_000
    dry_run: bool = False


class _Counts(NamedTuple):
    rows: int
    bad: int
    findings: list[Finding]


@dataclass
class _Tally:
    rows: int = 0
    bad: int = 0
    batches: int = 0
    suspended: bool = False
    findings: list[Finding] = field(default_factory=list)

    def add(self, found: _Counts) -> None:
        self.rows += found.rows
        self.bad += found.bad
        self.findings += found.findings[: SHOWN_MAX - len(self.findings)]


class _Suspended(Exception):
    pass


def export(run: Run, options: ExportOptions) -> Outcome:
    if options.bad_rows != "suspend" and options.schema is None:
        raise BadUsage("--bad-rows needs --schema: without a schema no message is bad")
    if options.bad_rows.rstrip("/") == options.out.rstrip("/"):
        raise BadUsage("--bad-rows is the folder of the good rows: give it a different folder")
    if options.schema is not None:
        _check_names(options.schema)
    looked = look(run.service, options.selection)
    tally = _Tally()
    outcome = Outcome("export")

    def how_far() -> None:
        outcome.summary = {
            "out": options.out,
            "rows": tally.rows,
            "bad_rows": tally.bad,
            "batches": tally.batches,
            "suspended": tally.suspended,
            "dry_run": options.dry_run,
        }
        outcome.found(tally.findings, {"bad-row": tally.bad})

    with told(outcome, how_far):
        if options.dry_run:
            seen = [view for view, _ in looked if view.end > view.earliest]
            if seen:
                tally.add(_counted(_typed(frame(run, seen, RAW), options.schema)))
        else:
            _stream(run, options, tally)
    return outcome


def _check_names(schema: Mapping[str, Any]) -> None:
    ours = {BATCH, *(f"_{name}" for name in _PLACES)}
    names = [column.name for column in columns_of(schema)]
    taken = sorted(name for name in names if name.lower() in ours)
    if taken:
        raise BadSchema(f"property {', '.join(taken)}: the export itself has a column of that name")


def _stream(run: Run, options: ExportOptions, tally: _Tally) -> None:
    from pyspark.errors import StreamingQueryException

    checkpoint = options.checkpoint or f"{options.out.rstrip('/')}/_checkpoint"
    _begin(run, options, checkpoint)

    def write(batch: DataFrame, number: int) -> None:
        _write(_typed(batch, options.schema), number, options, tally)
        run.say(f"batch {number}: {tally.rows:,} rows exported, {tally.bad:,} bad")

    try:
        if read_limits:
            _by_stream(run, options, checkpoint, write)
        else:
            follow_ranges(
                run, options.selection, checkpoint, write, columns=RAW,
                rows_max=options.rows_per_batch, every_s=options.every_s,
            )  # fmt: skip
    except (StreamingQueryException, _Suspended):
        if not tally.suspended:
            raise


def _by_stream(
    run: Run, options: ExportOptions, checkpoint: str, write: Callable[[DataFrame, int], None]
) -> None:
    selected = options.selection
    which = (
        ("subscribe", ",".join(selected.topics))
        if selected.pattern is None
        else ("subscribePattern", selected.pattern)
    )
    writer = (
        run.spark.readStream.format("octavo")
        .option("service", run.service)
        .option(*which)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.rows_per_batch)
        .option("columns", RAW)
        .load()
        .writeStream.queryName("octavo export")
        .foreachBatch(write)
        .option("checkpointLocation", checkpoint)
    )
    follow(writer, lambda _: None, every_s=options.every_s)


def _write(typed: DataFrame, number: int, options: ExportOptions, tally: _Tally) -> None:
    typed = typed.persist()
    try:
        found = _counted(typed)
        if found.bad and options.bad_rows == "suspend":
            tally.add(found._replace(rows=0))
            tally.suspended = True
            raise _Suspended(f"{found.bad} bad rows")
        _save(typed.where("_reason is null").drop("_reason", "_value"), options.out, number)
        if options.bad_rows not in ("suspend", "skip"):
            names = (*_PLACES, "value")
            letters = typed.where("_reason is not null").selectExpr(
                *(f"_{name} as {name}" for name in names), "_reason as reason"
            )
            _save(letters, options.bad_rows, number)
        tally.add(found)
        tally.batches += 1
    finally:
        typed.unpersist()


def _save(rows: DataFrame, path: str, number: int) -> None:
    folder = f"{path.rstrip('/')}/{BATCH}={number}"
    rows.write.mode("overwrite").option("compression", "zstd").parquet(folder)


def _counted(typed: DataFrame) -> _Counts:
    by_kind = typed.selectExpr("_reason is not null as bad").groupBy("bad").count()
    counts = {row.bad: row["count"] for row in by_kind.collect()}
    findings = []
    if counts.get(True):
        for row in typed.where("_reason is not null").limit(SHOWN_MAX).collect():
            place = f"{TopicName.of(row._topic)}/{row._partition} offset {row._offset}"
            findings.append(Finding("bad-row", place, row._reason))
    return _Counts(counts.get(False, 0), counts.get(True, 0), findings)


def _typed(rows: DataFrame, schema: Mapping[str, Any] | None) -> DataFrame:
    from pyspark.sql import functions as f

    if schema is None:
        return rows.withColumn("_reason", f.lit(None).cast("string"))
    fields = [column.name for column in columns_of(schema)]
    placed = _decoded(
        rows.select(
            *(f.col(name).alias(f"_{name}") for name in (*_PLACES, "value")),
            f.exists("headers", lambda header: header["key"] == LARGE_HEADER).alias("_large"),
        ),
        schema,
    )
    reason = f.col("_typed.reason")
    told = f.when(reason.isNotNull() & f.col("_large"), f.lit(_IS_LARGE)).otherwise(reason)
    return placed.select(
        *(f"_{name}" for name in (*_PLACES, "value")),
        told.alias("_reason"),
        *(f.col("_typed.row").getField(name).alias(name) for name in fields),
    )


def _decoded(rows: DataFrame, schema: Mapping[str, Any]) -> DataFrame:
    """Return the rows with `_typed`: the decoded `_value`, or the reason why it is bad.

    `mapInArrow` is in every Spark 4; a UDF of Arrow is not in 4.0.
    """
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    text = json.dumps(schema)
    arrow = pa.struct([("row", columns_of(schema)), ("reason", pa.string())])
    typed = StructField("_typed", from_arrow_type(arrow))

    def decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decode = decoder_of(text)
        for batch in batches:
            values = batch.column("_value").to_pylist()
            found = [{"row": row, "reason": why} for row, why in map(decode, values)]
            columns = [*batch.columns, pa.array(found, arrow)]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "_typed"])

    return rows.mapInArrow(decoded, StructType([*rows.schema.fields, typed]))


def _begin(run: Run, options: ExportOptions, checkpoint: str) -> None:
    note = f"{options.out.rstrip('/')}/{_NOTE}"
    selected = options.selection
    mine = {"topics": list(selected.topics) or selected.pattern, "checkpoint": checkpoint}
    held = listing(run, options.out) if exists(run, options.out) else []
    begun = any(name.startswith(f"{BATCH}=") for name in held)
    if _NOTE not in held:
        if held:
            raise BadUsage(f"{options.out} has files, but no earlier export: choose a new folder")
        if exists(run, f"{checkpoint}/offsets"):
            raise BadUsage(f"checkpoint {checkpoint} belongs to another query: choose a new one")
    said = json.loads(read_text(run, note)) if _NOTE in held else mine
    if said != mine:
        raise BadUsage(
            f"{options.out} holds an export of {said['topics']} with checkpoint "
            f"{said['checkpoint']}; use the same topics and checkpoint, or choose a new folder"
        )
    if begun and not exists(run, f"{checkpoint}/offsets"):
        raise BadUsage(
            f"{options.out} holds an export whose checkpoint {checkpoint} is gone: to continue "
            "would overwrite it; choose a new folder"
        )
    if not begun:
        write_text(run.spark, note, json.dumps(mine))
