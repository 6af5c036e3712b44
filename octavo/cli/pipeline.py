"""`octavo pipeline`: jobs over whole topics and ledgers, run by Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import (
    AsJson,
    BadOption,
    BytesPerS,
    Conf,
    Data,
    DryRun,
    Every,
    EveryS,
    Master,
    RowsPerBatch,
    ServiceUrl,
    Topics,
)
from octavo.cli.pipeline_compact import compact
from octavo.cli.pipeline_kafka import ingest_kafka
from octavo.cli.pipeline_run import Job, Where, carry_out
from octavo.cli.pipeline_table import table
from octavo.cli.pipeline_write import gc, ingest, replay
from octavo.client.types import TopicName

if TYPE_CHECKING:
    from octavo.pipeline.table_iceberg import Place

app = typer.Typer(
    help="Examine and move whole topics with Spark. Exit codes: 0 ok, 1 findings, 2 usage, "
    "3 failed, 130 interrupted (143 by SIGTERM).",
    epilog="Needs Java 17 and pip install 'octavo[spark]'; table needs only 'octavo[tables]'. "
    "On a cluster: spark-submit "
    "octavo/pipeline/__main__.py JOB …",
    no_args_is_help=True,
)

app.command()(ingest)
app.command()(ingest_kafka)
app.command()(replay)
app.command()(compact)
app.command()(table)
app.command()(gc)


@app.command()
def verify(
    topics: Topics = None,
    every: Every = False,
    url: ServiceUrl = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Check what topics promise: offsets dense, producers' sequences whole, keys in order.

    \b
    Example:
      octavo pipeline verify flights
    """

    def job() -> Job:
        from octavo.pipeline.runner import selection_of
        from octavo.pipeline.verify import verify

        return partial(verify, selection=selection_of(topics, every=every))

    carry_out("verify", job, Where(url, data, master, conf), as_json=as_json)


@app.command()
def export(
    topics: Topics = None,
    out: Annotated[
        str, typer.Option("--out", help="A new folder, or an earlier export's; also hdfs:, s3a:.")
    ] = "",
    schema: Annotated[
        Path | None, typer.Option(help="A JSON Schema: its properties become columns.")
    ] = None,
    bad_rows: Annotated[
        str, typer.Option(help="For a value that breaks the schema: suspend (stop), or skip it.")
    ] = "suspend",
    dead_letters: Annotated[
        str | None, typer.Option(help="Bad rows go to this folder, with the reason.")
    ] = None,
    every_s: EveryS = None,
    rows_per_batch: RowsPerBatch = 1_000_000,
    checkpoint: Annotated[
        str | None, typer.Option(help="Folder for its progress. Default: OUT/_checkpoint.")
    ] = None,
    dry_run: DryRun = False,
    every: Every = False,
    url: ServiceUrl = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Write topics to Parquet files, each message once; a repeated run adds what is new.

    \b
    Example:
      octavo pipeline export flights --out /data/flights
    """

    def job() -> Job:
        from octavo.pipeline.export import ExportOptions, export
        from octavo.pipeline.runner import selection_of

        options = ExportOptions(
            selection=selection_of(topics, every=every),
            out=out,
            schema=None if schema is None else _json_file(schema),
            bad_rows=dead_letters or bad_rows,
            checkpoint=checkpoint,
            every_s=every_s,
            rows_per_batch=rows_per_batch,
            dry_run=dry_run,
        )
        return partial(export, options=options)

    if not out:
        raise typer.BadParameter("give the output folder: --out FOLDER")
    if bad_rows not in ("suspend", "skip"):
        raise typer.BadParameter("--bad-rows: use suspend or skip, or --dead-letters FOLDER")
    carry_out("export", job, Where(url, data, master, conf), as_json=as_json)


@app.command()
def report(
    topics: Topics = None,
    out: Annotated[Path, typer.Option("--out", help="The report's folder.")] = Path("report"),
    keys: Annotated[int, typer.Option(min=1, help="How many hot keys of each topic.")] = 20,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing report.")
    ] = False,
    every: Every = False,
    url: ServiceUrl = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Volume by topic and day, hot keys, sizes, retention: HTML with plots, JSON, Parquet.

    \b
    Example:
      octavo pipeline report --all --out ./report
    """

    def job() -> Job:
        from octavo.pipeline.report import ReportOptions, report
        from octavo.pipeline.runner import selection_of

        options = ReportOptions(selection_of(topics, every=every), out, keys, overwrite)
        return partial(report, options=options)

    carry_out("report", job, Where(url, data, master, conf), as_json=as_json)


@app.command()
def audit(
    repair: Annotated[
        bool, typer.Option("--repair", help="Let every bookie fetch its missing entries now.")
    ] = False,
    url: ServiceUrl = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Compare the entries of all bookies: find missing copies, lost entries, orphan ledgers.

    \b
    Example:
      octavo pipeline audit --json
    """

    def job() -> Job:
        from octavo.pipeline.audit import audit

        return partial(audit, repair=repair)

    carry_out("audit", job, Where(url, data, master, conf), as_json=as_json)


@app.command()
def scrub(
    ledger: Annotated[
        list[int] | None, typer.Option(min=0, help="This ledger; may be repeated. Default: all.")
    ] = None,
    sample: Annotated[float, typer.Option(help="The share of entries to read.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Another seed, another sample.")] = 0,
    bytes_per_s: BytesPerS = None,
    url: ServiceUrl = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Read every replica of every entry, check digests, compare the replicas.

    \b
    Example:
      octavo pipeline scrub --sample 0.01 --bytes-per-s 50000000
    """

    def job() -> Job:
        from octavo.pipeline.scrub import ScrubOptions, scrub

        options = ScrubOptions(tuple(ledger or ()), sample, seed, bytes_per_s)
        return partial(scrub, options=options)

    carry_out("scrub", job, Where(url, data, master, conf), as_json=as_json)


@app.command()
def offload(
    topics: Topics = None,
    to: Annotated[
        str, typer.Option("--to", help="A folder that brokers share, or a URL: s3://…, gs://….")
    ] = "",
    older_than_s: Annotated[
        float, typer.Option(min=0, help="Ledgers closed for at least this long.")
    ] = 4 * 3600.0,
    bytes_min: Annotated[int, typer.Option(min=0, help="Ledgers of at least this many bytes.")] = 0,
    drop_after_s: Annotated[
        float | None,
        typer.Option(
            min=0, help="Bookies delete a ledger this long after its copy. Default: never."
        ),
    ] = None,
    bytes_per_s: Annotated[
        int | None,
        typer.Option(min=1, help="Bytes a second for all tasks together. Default: no bound."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
    as_table: Annotated[
        bool,
        typer.Option("--as-table", help="Make the objects an Iceberg table, without a copy."),
    ] = False,
    catalog: Annotated[
        str | None,
        typer.Option(help="The table's catalog: a URL or PyIceberg's name. Default: in --to."),
    ] = None,
    every: Every = False,
    url: ServiceUrl = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Copy closed ledgers out of the bookies, as Parquet; brokers and readers are not disturbed.

    \b
    Example:
      octavo pipeline offload flights --to /mnt/archive --older-than-s 86400 --as-table
    """

    def job() -> Job:
        from octavo.pipeline.offload import OffloadOptions, offload
        from octavo.pipeline.offload_rules import OffloadPolicy
        from octavo.pipeline.runner import selection_of

        lag_ms = None if drop_after_s is None else int(drop_after_s * 1000)
        policy = OffloadPolicy(int(older_than_s * 1000), bytes_min, lag_ms)
        options = OffloadOptions(
            selection_of(topics, every=every), target_of(to), policy, bytes_per_s, dry_run,
            _places(to, catalog) if as_table else None,
        )  # fmt: skip
        return partial(offload, options=options)

    def target_of(text: str) -> str:
        from octavo.ledger.errors import OffloadUnavailable
        from octavo.ledger.offload.object_store import file_system

        place = text if "://" in text else Path(text).absolute().as_uri()
        try:
            file_system(place)
        except OffloadUnavailable as error:
            raise BadOption(f"--to {text}: {error}") from error
        return place

    if not to:
        raise typer.BadParameter("give the target folder: --to FOLDER")
    carry_out("offload", job, Where(url, data, master, conf), as_json=as_json)


def _places(to: str, catalog: str | None) -> Callable[[TopicName], Place]:
    from octavo.pipeline.table_libraries import check_libraries

    check_libraries()
    from octavo.pipeline.table import place_of

    place_of(TopicName("public", "t"), to, catalog, None, {})  # refuse bad options now
    return lambda topic: place_of(topic, to, catalog, None, {})


def _json_file(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadOption(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise BadOption(f"{path}: a JSON Schema must be a JSON object")
    return found
