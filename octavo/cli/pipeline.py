"""`octavo pipeline`: jobs over whole topics and ledgers, run by Spark.

Exit codes of every job: 0 ok, 1 findings, 2 usage, 3 failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import BROKER_URL, AsJson, BadOption, Data, broker_urls, metadata_url
from octavo.cli.output import debugging, emit_fields, emit_json, emit_table, fail, say
from protocol.codes import OctavoError

if TYPE_CHECKING:
    from octavo.pipeline.outcome import Outcome
    from octavo.pipeline.runner import Run

app = typer.Typer(
    help="Examine and move whole topics with Spark. Exit codes: 0 ok, 1 findings, 2 usage, "
    "3 failed.",
    epilog="Needs Java 17 and pip install 'octavo[spark]'. On a cluster: spark-submit "
    "octavo/pipeline/__main__.py JOB …",
    no_args_is_help=True,
)

_USAGE, _FAILED = 2, 3

Topics = Annotated[
    str | None,
    typer.Argument(metavar="[TOPICS]", help="topic or namespace/topic; several with commas."),
]
Every = Annotated[bool, typer.Option("--all", help="All topics.")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="OCTAVO_URL",
        help=f"A broker's URL, or the metadata store's (zk://…, file:///…). Default: {BROKER_URL}",
        show_default=False,
    ),
]
Master = Annotated[
    str | None,
    typer.Option(help="Spark's master, e.g. spark://host:7077. Default: here, on all cores."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
]


@app.command()
def verify(
    topics: Topics = None,
    every: Every = False,
    url: Url = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Check what topics promise: offsets dense, producers' sequences whole, keys in order.

    \b
    Examples:
      octavo pipeline verify flights
      octavo pipeline verify --all --json
    """

    def work(run: Run) -> Outcome:
        from octavo.pipeline.runner import selection_of
        from octavo.pipeline.verify import verify

        return verify(run, selection_of(topics, every=every))

    _carry_out("verify", work, url, data, master, conf, as_json)


@app.command()
def export(
    topics: Topics = None,
    out: Annotated[
        str, typer.Option("--out", help="A new folder, or one to go on with; also hdfs:, s3a:.")
    ] = "",
    schema: Annotated[
        Path | None, typer.Option(help="A JSON Schema: its properties become columns.")
    ] = None,
    bad_rows: Annotated[
        str, typer.Option(help="What a value that breaks the schema does: suspend, or skip.")
    ] = "suspend",
    dead_letters: Annotated[
        str | None, typer.Option(help="Bad rows go to this folder, with the reason.")
    ] = None,
    every_s: Annotated[
        float | None,
        typer.Option(min=0.1, help="Go on until interrupted, a batch every so often."),
    ] = None,
    rows_per_batch: Annotated[int, typer.Option(min=1, help="At most.")] = 1_000_000,
    checkpoint: Annotated[
        str | None, typer.Option(help="Where it notes how far it is. Default: OUT/_checkpoint.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read all and check it; write nothing.")
    ] = False,
    every: Every = False,
    url: Url = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Write topics to Parquet files, each message once; a repeated run adds what is new.

    \b
    Examples:
      octavo pipeline export flights --out /data/flights
      octavo pipeline export flights --out s3a://lake/flights --schema flight.json \\
          --dead-letters s3a://lake/flights-bad --every-s 60
    """

    def work(run: Run) -> Outcome:
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
        return export(run, options)

    if not out:
        raise typer.BadParameter("where to? give --out FOLDER")
    if bad_rows not in ("suspend", "skip"):
        raise typer.BadParameter("--bad-rows is suspend or skip; or give --dead-letters FOLDER")
    _carry_out("export", work, url, data, master, conf, as_json)


@app.command()
def report(
    topics: Topics = None,
    out: Annotated[Path, typer.Option("--out", help="The report's folder.")] = Path("report"),
    keys: Annotated[int, typer.Option(min=1, help="How many hot keys of each topic.")] = 20,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="In place of a report that is there.")
    ] = False,
    every: Every = False,
    url: Url = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Volume by topic and day, hot keys, sizes, retention: HTML with plots, JSON, Parquet.

    \b
    Examples:
      octavo pipeline report --all --out ./report
      octavo pipeline report flights --out ./report --overwrite --keys 50
    """

    def work(run: Run) -> Outcome:
        from octavo.pipeline.report import ReportOptions, report
        from octavo.pipeline.runner import selection_of

        return report(run, ReportOptions(selection_of(topics, every=every), out, keys, overwrite))

    _carry_out("report", work, url, data, master, conf, as_json)


@app.command()
def audit(
    url: Url = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Ask every bookie what it holds and compare: copies missing, entries lost, ledgers orphaned.

    \b
    Example:
      octavo pipeline audit --json
    """

    def work(run: Run) -> Outcome:
        from octavo.pipeline.audit import audit

        return audit(run)

    _carry_out("audit", work, url, data, master, conf, as_json)


@app.command()
def scrub(
    ledger: Annotated[
        list[int] | None, typer.Option(min=0, help="This ledger; may be repeated. Default: all.")
    ] = None,
    sample: Annotated[float, typer.Option(help="The share of entries to read.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Another seed, another sample.")] = 0,
    bytes_per_s: Annotated[
        int | None, typer.Option(min=1, help="Read no faster, all tasks together.")
    ] = None,
    url: Url = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Read every replica of every entry, check digests, compare the replicas.

    \b
    Examples:
      octavo pipeline scrub --sample 0.01 --bytes-per-s 50000000
      octavo pipeline scrub --ledger 7 --ledger 8 --json
    """

    def work(run: Run) -> Outcome:
        from octavo.pipeline.scrub import ScrubOptions, scrub

        return scrub(run, ScrubOptions(tuple(ledger or ()), sample, seed, bytes_per_s))

    _carry_out("scrub", work, url, data, master, conf, as_json)


def _json_file(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadOption(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise BadOption(f"{path}: a JSON Schema is a JSON object")
    return found


def _carry_out(
    job: str,
    work: Callable[[Run], Outcome],
    url: str | None,
    data: Path | None,
    master: str | None,
    conf: list[str] | None,
    as_json: bool,
) -> None:
    """Run a job, show its outcome, and exit as it says."""
    try:
        outcome = _run(job, work, url, data, master, conf)
    except (OctavoError, OSError) as error:
        if debugging():
            raise
        fail(str(getattr(error, "detail", "") or error))
        raise typer.Exit(_code(error)) from error
    if as_json:
        emit_json(outcome.plain())
    else:
        _show(outcome)
    raise typer.Exit(int(outcome.exit))


def _run(
    job: str,
    work: Callable[[Run], Outcome],
    url: str | None,
    data: Path | None,
    master: str | None,
    conf: list[str] | None,
) -> Outcome:
    from octavo.pipeline.runner import run_job
    from octavo.pipeline.session import SparkOptions

    options = SparkOptions(master, _settings(conf))
    return run_job(job, work, service=_service(url, data), say=say, options=options)


def _service(url: str | None, data: Path | None) -> str:
    """A broker, or the metadata store itself: no broker need be up."""
    if url and not url.startswith(("http://", "https://")):
        return url
    return broker_urls(url, None)[0] if url or data is None else metadata_url(None, data)


def _settings(pairs: list[str] | None) -> dict[str, str]:
    found = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith("spark."):
            raise BadOption(f"--conf {pair!r}: write --conf spark.name=value")
        found[name] = value
    return found


def _code(error: Exception) -> int:
    from octavo.pipeline.runner import USAGE

    return _USAGE if isinstance(error, (BadOption, *USAGE)) else _FAILED


def _show(outcome: Outcome) -> None:
    emit_fields({name.replace("_", " "): value for name, value in outcome.summary.items()})
    if outcome.findings:
        emit_table(("finding", "where", "what"), outcome.findings)
    for kind, count in outcome.counts.items():
        shown = sum(one.kind == kind for one in outcome.findings)
        say(f"{count:,} × {kind}" + (f", the first {shown} shown" if shown < count else ""))
    if not outcome.findings:
        say("no findings")
