"""`octavo pipeline ingest`, `replay` and `gc`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.options import (
    AsJson,
    BadOption,
    Conf,
    Data,
    DryRun,
    Master,
    Once,
    ServiceUrl,
    named_values,
)
from octavo.cli.output import say
from octavo.cli.pipeline_run import Job, Where, carry_out, finish

if TYPE_CHECKING:
    from octavo.pipeline.outcome import Outcome


def ingest(
    paths: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Files, folders, patterns; also s3a:.")
    ],
    topic: Annotated[str, typer.Option("--topic", help="Where to: topic or namespace/topic.")],
    form: Annotated[
        str | None,
        typer.Option("--format", help="csv, json, parquet or text. Default: by the file's name."),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="The columns, e.g. 'day INT, tail STRING'.")
    ] = None,
    reader: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of Spark's reader; may be repeated."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The column that is a message's key.")] = None,
    value: Annotated[
        str | None,
        typer.Option(help="The column that is its value. Default: the row as JSON."),
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option(help="The column that is its time: a time, its text, or ms.")
    ] = None,
    order_by: Annotated[
        str | None, typer.Option(help="The column that rows of a file are ordered by.")
    ] = None,
    once: Once = None,
    dry_run: DryRun = False,
    url: ServiceUrl = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Publish files to a topic, each file once: a repeated run adds new files.

    \b
    Examples:
      octavo pipeline ingest flights.csv --topic flights --key tailnum --timestamp time_hour
      octavo pipeline ingest 's3a://lake/orders/*.parquet' --topic orders --key id --dry-run
    """

    def job() -> Job:
        from octavo.pipeline.ingest import FORMATS, IngestOptions, Shape, ingest

        if form is not None and form not in FORMATS:
            raise BadOption(f"--format {form}: one of {', '.join(FORMATS)}")
        given = named_values("--reader", reader)
        shape = Shape(form, schema, given, key, value, timestamp, order_by)
        return partial(ingest, options=IngestOptions(tuple(paths), topic, shape, once, dry_run))

    carry_out("ingest", job, Where(url, data, master, conf), as_json=as_json)


def replay(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="topic or namespace/topic")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Another topic.")],
    from_offsets: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help='By partition, e.g. \'{"flights": {"0": 23, "1": -2}}\'.'
        ),
    ] = None,
    to_offsets: Annotated[
        str | None, typer.Option(metavar="JSON", help="Likewise, the first offsets to leave out.")
    ] = None,
    from_ms: Annotated[
        int | None, typer.Option(min=0, help="From the first message of this time or later.")
    ] = None,
    to_ms: Annotated[
        int | None, typer.Option(min=0, help="Up to the first message of this time or later.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="SQL",
            help="A filter over key, value, topic, partition, offset, timestamp, headers.",
        ),
    ] = None,
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="Keep partitions instead of using the key.")
    ] = False,
    once: Once = None,
    dry_run: DryRun = False,
    url: ServiceUrl = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Copy a range of a topic to another topic, once: all its messages or none.

    \b
    Example:
      octavo pipeline replay flights again --from-ms 1380000000000 --to-ms 1381000000000
    """

    def job() -> Job:
        from octavo.pipeline.replay import ReplayOptions, replay

        bounds = {
            "startingOffsets": from_offsets,
            "endingOffsets": to_offsets,
            "startingTimestamp": from_ms,
            "endingTimestamp": to_ms,
        }
        given = {name: str(bound) for name, bound in bounds.items() if bound is not None}
        options = ReplayOptions(source, target, given, where, keep_partitions, once, dry_run)
        return partial(replay, options=options)

    carry_out("replay", job, Where(url, data, master, conf), as_json=as_json)


def gc(
    grace_s: Annotated[
        float, typer.Option(min=0, help="Leave younger ledgers alone.", show_default="a day")
    ] = 86_400.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be deleted; delete nothing.")
    ] = False,
    url: ServiceUrl = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Delete ledgers that failed tasks of the Spark sink have left behind.

    \b
    Example:
      octavo pipeline gc --dry-run
    """

    def work() -> Outcome:
        from octavo.pipeline.session import check_packages

        check_packages()
        from octavo.pipeline.gc import gc

        service = Where(url, data).service
        return gc(service, say, grace_ms=round(grace_s * 1000), dry_run=dry_run)

    finish(work, as_json=as_json)
