"""`ingest-kafka`: Kafka's topics into Octavo's, each message once.

A streaming query of Spark's own Kafka connector, which has to be given (`spark.jars.packages`),
into the exactly-once sink. How far it is stands in the checkpoint, and the sink knows the query and
its batches by it: a job that died is started again with the same checkpoint, and no message is lost
or doubled. Key, value, headers and timestamp stay; so does the partition, where the target has as
many as the source. What is read is what Kafka's consumers see with `read_committed`.
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
    """`topic` None: each topic into the one of its name. `every_s` None: what is there, then end.

    `start` is `earliest`, `latest` or Kafka's JSON, and counts for a new checkpoint. `settings`
    go to Kafka's client (`kafka.…`) and to the connector.
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
    """Raises `BadUsage`, `SparkMissing` when the connector is not there; Spark's own errors."""
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
            + ("each into its own" if name in same else "by the key")
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
    """The columns of the sink, of rows as Kafka's connector gives them.

    `targets` is by Kafka's topic; of those in `same` a message stays in its partition. A message
    without a time gets the one at which it is written.
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
    """How many partitions each topic has there. Raises `BadUsage` when Kafka does not tell."""
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
    """A batch cannot begin at the latest offset: there, as for who looks, is all there is."""
    return "earliest" if options.start == "latest" else options.start


def copied_once(
    run: Run,
    rows: DataFrame,
    options: KafkaOptions,
    targets: Mapping[str, str],
    progress: Progress,
) -> None:
    """A stream of messages into their topics, on the checkpoint; `progress` counts this run's.

    Raises `BadUsage` for the checkpoint of something else.
    """
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
    """Raises `BadUsage` for what cannot be a start."""
    if text in ("earliest", "latest"):
        return
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise BadUsage(f"--start {text}: earliest, latest, or JSON by topic and partition")


def _note(options: KafkaOptions, targets: Mapping[str, str]) -> tuple[str, str]:
    """Where in the checkpoint it stands what that is for, and what."""
    said = json.dumps({"targets": dict(sorted(targets.items()))})
    return f"{options.checkpoint.rstrip('/')}/{_NOTE}", said


def _is_new(run: Run, options: KafkaOptions, targets: Mapping[str, str]) -> bool:
    """Whether the checkpoint is new. Raises `BadUsage` when it is of something else."""
    note, mine = _note(options, targets)
    if exists(run, note):
        said = json.loads(read_text(run, note))
        if said != json.loads(mine):
            raise BadUsage(
                f"checkpoint {options.checkpoint} is of an ingest of {said['targets']}; go on with "
                "that, or give this one a checkpoint of its own"
            )
        return False
    if exists(run, f"{options.checkpoint.rstrip('/')}/offsets"):
        raise BadUsage(f"checkpoint {options.checkpoint} is another query's; choose a new one")
    return True
