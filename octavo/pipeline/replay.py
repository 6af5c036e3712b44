"""The job `replay`: copy a range of a topic into another topic, once.

It is a single bulk load: all or none. Its id is made from source, range, filter and target, or
given with `--id`. Keys, headers, timestamps and each partition's order are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.pipeline.outcome import Outcome
from octavo.pipeline.runner import BadUsage, Run, frame_of
from octavo.pipeline.writing import id_of, read_only, target_settings, was_written, write_once
from octavo.spark.cluster import connected
from octavo.spark.options import SourceOptions, source_options
from octavo.spark.planning import range_of, views_of
from octavo.spark.splits import Offsets, pieces

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS = "key,value,topic,partition,offset,timestamp,timestampMillis,headers"


@dataclass(frozen=True)
class ReplayOptions:
    """`bounds`: source options for start and end of the range. `where`: a filter in SQL."""

    source: str
    target: str
    bounds: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None
    keep_partitions: bool = False
    bulk_load: str | None = None
    dry_run: bool = False


def replay(run: Run, options: ReplayOptions) -> Outcome:
    target, settings = target_settings(run.service, options.target)
    given = {"service": run.service, "subscribe": options.source, **options.bounds}
    asked = source_options(given, streaming=False)
    if len(asked.selection.topics) != 1:
        raise BadUsage(f"{options.source}: replay takes exactly one topic")
    (source,) = asked.selection.topics
    if source == target:
        raise BadUsage(f"{target} is source and target: name another topic as the target")
    start, end, count = asyncio.run(_range(run.service, asked))
    if options.keep_partitions and len(end) > settings.partitions:
        raise BadUsage(
            f"--keep-partitions: {source} has {len(end)} partitions, but {target} has only "
            f"{settings.partitions}"
        )
    ranges = {str(number): [start[source, number], end[source, number]] for _, number in end}
    bulk_load = options.bulk_load or id_of(
        "replay", source=source, target=target, ranges=ranges, where=options.where,
        keep_partitions=options.keep_partitions,
    )  # fmt: skip
    outcome = Outcome("replay")
    outcome.summary = {
        "source": source,
        "target": target,
        "ranges": ranges,
        "bulk_load": bulk_load,
        "transaction": bulk_load,  # by its former name, until 0.3
        "rows_read": count,
        "rows": 0,
        "replayed_before": False,
        "dry_run": options.dry_run,
    }
    if outcome.summary["rows_read"]:
        _copy(run, options, _rows(run, options, start, end), target, outcome.summary)
    else:
        run.say("there are no messages in this range")
    return outcome


def _copy(
    run: Run, options: ReplayOptions, rows: DataFrame, target: str, summary: dict[str, Any]
) -> None:
    run.say(f"{summary['rows_read']:,} messages of {summary['source']}")
    if options.dry_run:
        summary["rows"] = read_only(rows)
    elif was_written(run.service, summary["bulk_load"]):
        summary["replayed_before"] = True
        run.say(f"{summary['bulk_load']} is in {target} already")
    else:
        wrote = write_once(run, rows, target, summary["bulk_load"])
        summary["rows"], summary["replayed_before"] = wrote


def _rows(run: Run, options: ReplayOptions, start: Offsets, end: Offsets) -> DataFrame:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    rows = frame_of(run, start, end, _COLUMNS)
    if options.where is not None:
        try:
            rows = rows.where(options.where)
        except AnalysisException as error:
            raise BadUsage(f"--where {options.where}: {str(error).splitlines()[0]}") from error
    kept = ["key", "value", "timestamp", "timestampMillis", "headers"]
    origin = f.struct("topic", "partition", "offset").alias("origin")
    return rows.select(*kept, origin, *(["partition"] if options.keep_partitions else []))


async def _range(service: str, options: SourceOptions) -> tuple[Offsets, Offsets, int]:
    async with connected(service) as cluster:
        views = await views_of(cluster, await cluster.partitions(options.selection))
        start, end = await range_of(cluster, views, options)
        parts = [part for view in views for part in pieces(view, start[view.name], end[view.name])]
        return start, end, sum(part.end - part.start for part in parts)
