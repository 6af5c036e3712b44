"""The job `report`: messages and bytes of topics by day, key and size, and what retention removes.

Spark counts every message; sizes and ages of ledgers come from the partitions' records. The result
is a folder: `report.html` (one file, pictures included), `report.json`, and Parquet.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.broker.log.ledger_list import LedgerList
from octavo.broker.log.retention import RetentionPolicy
from octavo.metadata.topics import PartitionLedger, PartitionRecord, TopicSettings
from octavo.pipeline.outcome import Outcome
from octavo.pipeline.report_page import page
from octavo.pipeline.runner import BadUsage, Run, frame, look, topic_settings, with_whole_names
from octavo.pipeline.verify import chain_findings
from octavo.spark.options import Selection
from octavo.spark.splits import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HTML, JSON = "report.html", "report.json"


@dataclass(frozen=True)
class ReportOptions:
    selection: Selection
    out: Path
    keys: int = 20
    overwrite: bool = False


@dataclass(frozen=True)
class Stored:
    """The size of a topic by its partitions' records. `bytes` is payload of a single copy."""

    topic: str
    partitions: int
    ledgers: int
    bytes: int
    bytes_all_copies: int
    retention_ms: int | None
    retention_bytes: int | None
    expired_ledgers: int
    expired_bytes: int


def report(run: Run, options: ReportOptions) -> Outcome:
    if (options.out / JSON).exists() and not options.overwrite:
        raise BadUsage(f"{options.out} holds a report: choose a new folder, or give --overwrite")
    looked = look(run.service, options.selection)
    topics = sorted({view.topic for view, _ in looked})
    settings = topic_settings(run.service, topics)
    now_ms = int(time.time() * 1000)
    stored = [
        stored_of(topic, [r for v, r in looked if v.topic == topic], settings[topic], now_ms)
        for topic in topics
    ]
    offsets = sum(view.end - view.earliest for view, _ in looked)
    run.say(f"{len(topics)} topics with {offsets:,} offsets")
    found = _tables(run, [view for view, _ in looked if view.end > view.earliest], options.keys)
    rows = sum(row["messages"] for row in found["volume"])
    whole = {
        "made_ms": now_ms,
        "messages": rows,
        "stored": [asdict(one) for one in stored],
        **found,
    }
    _write(run, options.out, whole)
    outcome = Outcome("report")
    outcome.summary = {
        "topics": len(topics),
        "messages": rows,
        "bytes": sum(one.bytes for one in stored),
        "html": str(options.out / HTML),
    }
    return outcome


def stored_of(
    topic: str, records: Iterable[PartitionRecord], settings: TopicSettings, now_ms: int
) -> Stored:
    every = list(records)
    expired = [link for record in every for link in expired_links(record, settings, now_ms)]
    size = sum(link.bytes for record in every for link in record.ledgers)
    return Stored(
        topic=topic,
        partitions=settings.partitions,
        ledgers=sum(len(record.ledgers) for record in every),
        bytes=size,
        bytes_all_copies=size * settings.write_quorum,
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes,
        expired_ledgers=len(expired),
        expired_bytes=sum(link.bytes for link in expired),
    )


def expired_links(
    record: PartitionRecord, settings: TopicSettings, now_ms: int
) -> list[PartitionLedger]:
    """Return the ledgers that the owner may trim now, subscriptions ignored.

    Empty for a chain with holes: no owner would open such a partition.
    """
    if chain_findings("", record):
        return []
    policy = RetentionPolicy(settings.retention_ms, settings.retention_bytes)
    ledger_list = LedgerList(record.ledgers, record.trimmed_offset)
    kept = policy.trimming(ledger_list, now_ms).segments
    return list(record.ledgers[: len(record.ledgers) - len(kept)])


def _tables(run: Run, seen: list[View], keys: int) -> dict[str, Any]:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if not seen:
        return {"volume": [], "hot_keys": [], "sizes": []}
    messages = with_whole_names(frame(run, seen, "topic,timestamp,key,value")).select(
        "topic",
        f.to_date("timestamp").alias("day"),
        "key",
        (f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0))).alias(
            "bytes"
        ),
    )
    volume = (
        messages.groupBy("topic", "day")
        .agg(f.count("*").alias("messages"), f.sum("bytes").alias("bytes"))
        .orderBy("topic", "day")
    )
    run.say("volume by topic and day")
    made = {"volume": _rows(volume)}
    # Use the length in binary: a rounding error of a logarithm would miss a power of two.
    power = f.pow(f.lit(2.0), f.length(f.bin("bytes")) - 1).cast("long")
    bucket = f.when(f.col("bytes") == 0, 0).otherwise(power)
    sizes = (
        messages.groupBy("topic", bucket.alias("bytes_min"))
        .agg(f.count("*").alias("messages"))
        .orderBy("topic", "bytes_min")
    )
    run.say("sizes")
    made["sizes"] = _rows(sizes)
    ranked = (
        messages.where("key is not null")
        .groupBy("topic", "key")
        .agg(f.count("*").alias("messages"), f.sum("bytes").alias("bytes"))
        .withColumn(
            "rank",
            f.row_number().over(
                Window.partitionBy("topic").orderBy(f.desc("messages"), f.asc("key"))
            ),
        )
        .where(f.col("rank") <= keys)
        .withColumn("key", f.make_valid_utf8(f.col("key").cast("string")))
        .orderBy("topic", "rank")
    )
    run.say("hot keys")
    made["hot_keys"] = _rows(ranked)
    return made


def _rows(table: DataFrame) -> list[dict[str, Any]]:
    found = []
    for row in table.collect():
        plain = row.asDict()
        if plain.get("day") is not None:
            plain["day"] = plain["day"].isoformat()
        found.append(plain)
    return found


def _write(run: Run, out: Path, whole: dict[str, Any]) -> None:
    """Write the tables first and the JSON last: with the JSON, the report is complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out.mkdir(parents=True, exist_ok=True)
    (out / JSON).unlink(missing_ok=True)
    for name, schema in _SCHEMAS.items():
        fields = [pa.field(column, getattr(pa, kind)()) for column, kind in schema.items()]
        pq.write_table(
            pa.Table.from_pylist(whole[name], pa.schema(fields)), out / f"{name}.parquet"
        )
    run.say("pictures")
    (out / HTML).write_text(page(whole), encoding="utf-8")
    (out / JSON).write_text(json.dumps(whole, ensure_ascii=False, indent=1), encoding="utf-8")


_SCHEMAS = {
    "volume": {"topic": "string", "day": "string", "messages": "int64", "bytes": "int64"},
    "sizes": {"topic": "string", "bytes_min": "int64", "messages": "int64"},
    "hot_keys": {
        "topic": "string",
        "key": "string",
        "messages": "int64",
        "bytes": "int64",
        "rank": "int64",
    },
}
