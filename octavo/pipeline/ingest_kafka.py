"""The job `ingest-kafka`: copy Kafka topics into Octavo topics, each message exactly once.

The checkpoint holds the position and the query's id, by which the sink recognises repeated batches.
Reads as Kafka's `read_committed` consumers do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.pipeline.files import exists, read_text, write_text
from octavo.pipeline.interrupt import told
from octavo.pipeline.outcome import Outcome
from octavo.pipeline.packages import KAFKA, needed
from octavo.pipeline.runner import BadUsage, Run
from octavo.pipeline.streams import Progress, follow
from octavo.pipeline.writing import read_only, target_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NOTE = "_ingest.json"
_NEEDED = {"kafka.isolation.level": "read_committed", "includeHeaders": "true"}


@dataclass(frozen=True)
class KafkaOptions:
    """`topic` None: each goes to the topic of the same name. No `every_s`: copy what is there and
    end.

    `start`: `earliest`, `latest` or Kafka's JSON, for a new checkpoint. `settings` go to Kafka's
    client (`kafka.…`) and to the connector.
    """

    sources: tuple[str, ...]
    servers: str
    checkpoint: str
    topic: str | None = None
    start: str = "earliest"
    every_s: float | None = None
    rows_per_batch: int = 1_000_000
    settings: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False


def ingest_kafka(run: Run, options: KafkaOptions) -> Outcome:
    targets = {}
    counts = {}
    for source in options.sources:
        targets[source], settings = target_settings(run.service, options.topic or source)
        counts[source] = settings.partitions
    _check_start(options.start)
    if not options.dry_run:
        _is_new(run, options, targets)
    needed(run.spark, KAFKA)
    found = kafka_partitions(run, options)
    same = tuple(name for name in options.sources if found[name] == counts[name])
    for name in options.sources:
        run.say(
            f"{name}: {found[name]} partitions into {counts[name]} of {targets[name]}, "
            + ("same partition" if name in same else "partition by key")
        )
    outcome = Outcome("ingest-kafka")
    progress = Progress(run.say)

    def how_far() -> None:
        outcome.summary = {
            "targets": targets,
            "partitions_kept": {name: name in same for name in options.sources},
            "checkpoint": options.checkpoint,
            "rows": count if options.dry_run else progress.rows,
            "dry_run": options.dry_run,
        }

    count = 0
    with told(outcome, how_far):
        if options.dry_run:
            given = {**_given(options), "startingOffsets": _batch_start(options)}
            rows = messages(run.spark.read.format("kafka").options(**given).load(), targets, same)
            count = read_only(rows)
        else:
            stream = run.spark.readStream.format("kafka").options(**_given(options))
            rows = stream.option("maxOffsetsPerTrigger", options.rows_per_batch).load()
            copied_once(run, messages(rows, targets, same), options, targets, progress)
    return outcome


def messages(rows: DataFrame, targets: Mapping[str, str], same: tuple[str, ...]) -> DataFrame:
    """Return the sink's columns for rows of the Kafka connector.

    `targets`: the target of each Kafka topic. Messages of topics in `same` keep their partition.
    """
    from pyspark.sql import functions as f

    topic = f.create_map(*(f.lit(text) for pair in sorted(targets.items()) for text in pair))
    kept = f.col("topic").isin(*same) if same else f.lit(False)
    return rows.select(
        "key",
        "value",
        "headers",
        topic[f.col("topic")].alias("topic"),
        f.when(kept, f.col("partition")).cast("int").alias("partition"),
        f.when(f.unix_millis("timestamp") >= 0, f.col("timestamp")).alias("timestamp"),
    )


def kafka_partitions(run: Run, options: KafkaOptions) -> dict[str, int]:
    from py4j.protocol import Py4JJavaError

    jvm: Any = run.spark._jvm
    given = jvm.java.util.HashMap()
    client = {name: one for name, one in options.settings.items() if name.startswith("kafka.")}
    for name, value in client.items():
        given.put(name.removeprefix("kafka."), value)
    given.put("bootstrap.servers", options.servers)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(given)
    try:
        asked = jvm.java.util.ArrayList()
        for name in options.sources:
            asked.add(name)
        found = admin.describeTopics(asked).allTopicNames().get()
        return {name: found.get(name).partitions().size() for name in options.sources}
    except Py4JJavaError as error:
        why = error.java_exception.getMessage()
        raise BadUsage(f"{', '.join(options.sources)} at {options.servers}: {why}") from error
    finally:
        admin.close()


def _given(options: KafkaOptions) -> dict[str, str]:
    return {
        **_NEEDED,
        **options.settings,
        "kafka.bootstrap.servers": options.servers,
        "subscribe": ",".join(options.sources),
        "startingOffsets": options.start,
    }


def _batch_start(options: KafkaOptions) -> str:
    """Return a batch's start, which cannot be `latest`: a dry run reads everything."""
    return "earliest" if options.start == "latest" else options.start


def copied_once(
    run: Run,
    rows: DataFrame,
    options: KafkaOptions,
    targets: Mapping[str, str],
    progress: Progress,
) -> None:
    if _is_new(run, options, targets):
        write_text(run.spark, *_note(options, targets))
    writer = (
        rows.writeStream.format("octavo")
        .queryName("octavo ingest-kafka")
        .option("service", run.service)
        .option("checkpointLocation", options.checkpoint)
    )
    follow(writer, progress.look, every_s=options.every_s)


def _check_start(text: str) -> None:
    if text in ("earliest", "latest"):
        return
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise BadUsage(f"--start {text}: use earliest, latest, or JSON by topic and partition")


def _note(options: KafkaOptions, targets: Mapping[str, str]) -> tuple[str, str]:
    said = json.dumps({"targets": dict(sorted(targets.items()))})
    return f"{options.checkpoint.rstrip('/')}/{_NOTE}", said


def _is_new(run: Run, options: KafkaOptions, targets: Mapping[str, str]) -> bool:
    note, mine = _note(options, targets)
    if exists(run, note):
        said = json.loads(read_text(run, note))
        if said != json.loads(mine):
            raise BadUsage(
                f"checkpoint {options.checkpoint} belongs to an ingest of {said['targets']}: use "
                "the same topics, or another checkpoint"
            )
        return False
    if exists(run, f"{options.checkpoint.rstrip('/')}/offsets"):
        raise BadUsage(f"checkpoint {options.checkpoint} is of another query: choose a new one")
    return True
