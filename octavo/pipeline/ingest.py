"""The job `ingest`: write files into a topic, each file exactly once.

Every file is a bulk load. Its id is made from the topic, the file's path, size and time of change,
and the options that shape its rows; so the job can be run again. With `--id` all files are one bulk
load of that name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.pipeline.files import File, find_files, missing
from octavo.pipeline.interrupt import told
from octavo.pipeline.outcome import Outcome
from octavo.pipeline.runner import BadUsage, Run
from octavo.pipeline.writing import id_of, read_only, target_settings, was_written, write_once

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FORMATS = ("csv", "json", "parquet", "text")
_ENDINGS = {
    "csv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "parquet": "parquet",
    "txt": "text",
    "log": "text",
}
_PACKED = ("gz", "bz2", "zst", "lz4", "snappy")
_STRICT = {
    "csv": {"header": "true", "mode": "FAILFAST", "enforceSchema": "false"},
    "json": {"mode": "FAILFAST"},
}
"""Spark's options to fail at a bad row, which it would silently turn into nulls."""


@dataclass(frozen=True)
class Shape:
    """How a row becomes a message. `value` None: all columns, as JSON."""

    format: str | None = None
    schema: str | None = None
    reader: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    order_by: str | None = None


@dataclass(frozen=True)
class IngestOptions:
    paths: tuple[str, ...]
    topic: str
    shape: Shape
    bulk_load: str | None = None
    dry_run: bool = False


def ingest(run: Run, options: IngestOptions) -> Outcome:
    topic, _ = target_settings(run.service, options.topic)
    files = _files(run, options.paths)
    named = options.bulk_load
    groups = [files] if named else [[one] for one in files]
    outcome = Outcome("ingest")
    done: Counter[str] = Counter()

    def how_far() -> None:
        outcome.summary = {
            "topic": topic,
            "files": done["files"],
            "files_ingested_before": done["before"],
            "files_left": len(files) - done["files"] - done["before"],
            "rows": done["rows"],
            "bytes": sum(one.bytes for one in files),
            "dry_run": options.dry_run,
        }

    with told(outcome, how_far):
        for number, group in enumerate(groups, 1):
            bulk_load = named or _id(topic, group[0], options.shape)
            where = group[0].path if len(group) == 1 else f"{len(group)} files"
            if not options.dry_run and was_written(run.service, bulk_load):
                done["before"] += len(group)
                run.say(f"{number} of {len(groups)}: {where} was ingested before")
                continue
            messages = _messages(run, group, options.shape)
            if options.dry_run:
                added = read_only(messages)
            else:
                added = write_once(run, messages, topic, bulk_load).rows
            done += Counter(rows=added, files=len(group))
            run.say(f"{number} of {len(groups)}: {added:,} rows of {where}")
    return outcome


def _id(topic: str, file: File, shape: Shape) -> str:
    return id_of("ingest", topic=topic, file=file, shape=asdict(shape))


def _files(run: Run, paths: tuple[str, ...]) -> list[File]:
    found: dict[File, None] = {}
    if (gone := missing(run, paths)) is not None:
        raise BadUsage(f"{gone}: there is no such file, or the folder has no files")
    for path in paths:
        here = find_files(run.spark, path)
        if not here:
            raise BadUsage(f"{path}: there is no such file, or the folder has no files")
        found |= dict.fromkeys(here)
    return list(found)


def format_of(path: str) -> str | None:
    parts = path.rsplit("/", 1)[-1].lower().split(".")
    if parts[-1] in _PACKED:
        parts.pop()
    return _ENDINGS.get(parts[-1]) if len(parts) > 1 else None


def _rows(run: Run, files: list[File], shape: Shape) -> DataFrame:
    formats = {shape.format or format_of(one.path) for one in files}
    kind = formats.pop()
    if formats:
        raise BadUsage("a bulk load cannot mix file formats: ingest each format by itself")
    if kind is None:
        raise BadUsage(f"{files[0].path}: unknown format: give --format {' | '.join(FORMATS)}")
    reader = run.spark.read.format(kind).options(**{**_STRICT.get(kind, {}), **shape.reader})
    if shape.schema is not None:
        reader = reader.schema(shape.schema)
    return reader.load([one.path for one in files])


def _messages(run: Run, files: list[File], shape: Shape) -> DataFrame:
    from pyspark.sql import functions as f

    rows = _rows(run, files, shape)
    for name in (shape.key, shape.value, shape.timestamp, shape.order_by):
        if name is not None and name not in rows.columns:
            raise BadUsage(
                f"there is no column {name} in {files[0].path}; its columns are "
                + ", ".join(rows.columns)
            )
    if shape.order_by is not None:
        # The sort gives each task a range in this order, and a commit keeps the tasks' order.
        rows = rows.orderBy(_column(shape.order_by))
    if shape.value is None:
        value = f.to_json(f.struct(*map(_column, rows.columns)), {"ignoreNullFields": "false"})
    else:
        value = _as_bytes(rows, shape.value)
    made = [value.alias("value")]
    if shape.key is not None:
        made.append(_as_bytes(rows, shape.key).alias("key"))
    if shape.timestamp is not None:
        made.append(_as_time(rows, shape.timestamp).alias("timestamp"))
    return rows.select(*made)


def _column(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")


def _as_bytes(rows: DataFrame, name: str) -> Column:
    kind = rows.schema[name].dataType.typeName()
    return _column(name) if kind == "binary" else _column(name).cast("string")


def _as_time(rows: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as f

    kind: Any = rows.schema[name].dataType.typeName()
    if kind in ("long", "integer", "short"):
        return f.timestamp_millis(_column(name))
    if kind in ("string", "timestamp", "timestamp_ntz", "date"):
        return _column(name).cast("timestamp")
    raise BadUsage(f"--timestamp {name} is a {kind} column: use a time, its text, or milliseconds")
