"""`octavo pipeline ingest-kafka`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from octavo.cli.options import (
    AsJson,
    Conf,
    Data,
    DryRun,
    EveryS,
    Master,
    RowsPerBatch,
    ServiceUrl,
    named_values,
)
from octavo.cli.pipeline_run import Job, Where, carry_out


def ingest_kafka(
    sources: Annotated[
        str, typer.Argument(metavar="TOPICS", help="Kafka's topics; several with commas.")
    ],
    servers: Annotated[
        str, typer.Option("--servers", help="Kafka's brokers: host:port, several with commas.")
    ],
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", help="Folder for its progress; also hdfs:, s3a:.")
    ],
    topic: Annotated[
        str | None,
        typer.Option("--topic", help="All into this topic. Default: the topic of the same name."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(help="Where a new checkpoint begins: earliest, latest, or JSON as Kafka's."),
    ] = "earliest",
    every_s: EveryS = None,
    rows_per_batch: RowsPerBatch = 1_000_000,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--kafka",
            metavar="NAME=VALUE",
            help="An option of the connector, or of Kafka's client (kafka.…); may be repeated.",
        ),
    ] = None,
    dry_run: DryRun = False,
    url: ServiceUrl = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Copy Kafka's topics to Octavo, each message once: a repeated run adds new messages.

    \b
    Needs Spark's Kafka connector: --conf spark.jars.packages=…, see docs/pipeline/ingest.md.
    Example:
      octavo pipeline ingest-kafka orders --servers kafka:9092 --checkpoint /data/orders.ckpt
    """

    def job() -> Job:
        from octavo.pipeline.ingest_kafka import KafkaOptions, ingest_kafka

        options = KafkaOptions(
            sources=tuple(name.strip() for name in sources.split(",")),
            servers=servers,
            checkpoint=checkpoint,
            topic=topic,
            start=start,
            every_s=every_s,
            rows_per_batch=rows_per_batch,
            settings=named_values("--kafka", setting),
            dry_run=dry_run,
        )
        return partial(ingest_kafka, options=options)

    carry_out("ingest-kafka", job, Where(url, data, master, conf), as_json=as_json)
