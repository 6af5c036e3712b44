"""`ingest`: files into a topic, each file once.

Every file is a bulk load of its own: all its rows or none. Its id is made of the topic, of path,
size and time of change, and of the options that say what its rows become. So the job can be killed
and run again, and a folder that grows is ingested by running it again. With `--id` all files are
one bulk load of that name, whatever they hold.
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
"""Spark's own defaults make a bad row one of nulls, and say nothing."""


@dataclass(frozen=True)
class Shape:
    """What a row of a file becomes. `value` None: all its columns, as JSON."""

    format: str | None = None
    schema: str | None = None
    reader: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    order_by: str | None = None


@dataclass(frozen=True)
class IngestOptions:
    """`bulk_load`: a name for all of it, in place of one for each file."""

    paths: tuple[str, ...]
    topic: str
    shape: Shape
    bulk_load: str | None = None
    dry_run: bool = False


def ingest(run: Run, options: IngestOptions) -> Outcome:
    """Raises `BadUsage`; Spark's own errors."""
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


# ---------------------------------------------------------------------- files


def _files(run: Run, paths: tuple[str, ...]) -> list[File]:
    found: dict[File, None] = {}
    if (gone := missing(run, paths)) is not None:
        raise BadUsage(f"{gone}: there is no such file, or no file in it")
    for path in paths:
        here = find_files(run.spark, path)
        if not here:
            raise BadUsage(f"{path}: there is no such file, or no file in it")
        found |= dict.fromkeys(here)
    return list(found)


def format_of(path: str) -> str | None:
    """By the name's ending; of a packed file by the one before."""
    parts = path.rsplit("/", 1)[-1].lower().split(".")
    if parts[-1] in _PACKED:
        parts.pop()
    return _ENDINGS.get(parts[-1]) if len(parts) > 1 else None


def _rows(run: Run, files: list[File], shape: Shape) -> DataFrame:
    formats = {shape.format or format_of(one.path) for one in files}
    kind = formats.pop()
    if formats:
        raise BadUsage("files of several formats in one bulk load: ingest them one by one")
    if kind is None:
        raise BadUsage(f"{files[0].path}: of which format? say --format {' | '.join(FORMATS)}")
    reader = run.spark.read.format(kind).options(**{**_STRICT.get(kind, {}), **shape.reader})
    if shape.schema is not None:
        reader = reader.schema(shape.schema)
    return reader.load([one.path for one in files])


# ---------------------------------------------------------------------- messages


def _messages(run: Run, files: list[File], shape: Shape) -> DataFrame:
    """The columns of the sink: value, and key and timestamp where they are asked for."""
    from pyspark.sql import functions as f

    rows = _rows(run, files, shape)
    for name in (shape.key, shape.value, shape.timestamp, shape.order_by):
        if name is not None and name not in rows.columns:
            raise BadUsage(
                f"there is no column {name} in {files[0].path}; its columns are "
                + ", ".join(rows.columns)
            )
    if shape.order_by is not None:
        # The tasks then hold ranges in this order, and a commit keeps the order of the tasks.
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
    """Also with a dot in its name."""
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
    raise BadUsage(f"--timestamp {name}: a column of {kind}; it is a time, its text, or ms")
