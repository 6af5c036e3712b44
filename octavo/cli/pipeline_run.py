"""Run the jobs of `octavo pipeline` and print their outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from octavo.cli.options import (
    BadOption,
    Conf,
    Data,
    Master,
    ServiceUrl,
    broker_urls,
    metadata_url,
    named_values,
)
from octavo.cli.output import debugging, emit_fields, emit_json, emit_table, fail, say
from octavo.protocol.codes import OctavoError

if TYPE_CHECKING:
    from octavo.pipeline.outcome import Outcome
    from octavo.pipeline.runner import Run

Job = Callable[["Run"], "Outcome"]
_USAGE, _FAILED = 2, 3


@dataclass(frozen=True)
class Where:
    """Options of every job: its cluster and where Spark runs."""

    url: ServiceUrl = None
    data: Data = None
    master: Master = None
    conf: Conf = None

    @property
    def service(self) -> str:
        if self.url and not self.url.startswith(("http://", "https://")):
            return self.url
        if self.url or self.data is None:
            return broker_urls(self.url, None)[0]
        return metadata_url(None, self.data)


def carry_out(name: str, job: Callable[[], Job], where: Where, *, as_json: bool) -> None:
    """Run a job in Spark, print its outcome, and exit with its code.

    `job` checks its arguments; the job that it returns checks topics and folders before Spark
    starts.
    """
    finish(lambda: _run(name, job, where), as_json=as_json)


def finish(work: Callable[[], Outcome], *, as_json: bool) -> None:
    try:
        outcome = work()
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


def _run(name: str, job: Callable[[], Job], where: Where) -> Outcome:
    from octavo.pipeline.session import SparkOptions, check_packages

    options = SparkOptions(where.master, _settings(where.conf))
    service = where.service
    check_packages()
    from octavo.pipeline.runner import run_job  # imports the packages checked above

    return run_job(name, job(), service=service, say=say, options=options)


def _settings(pairs: list[str] | None) -> dict[str, str]:
    found = named_values("--conf", pairs)
    for name in found:
        if not name.startswith("spark."):
            raise BadOption(f"--conf {name}: write --conf spark.name=value")
    return found


def _code(error: Exception) -> int:
    from octavo.pipeline.session import SparkMissing
    from octavo.pipeline.table_libraries import TableLibraryMissing

    if isinstance(error, (SparkMissing, TableLibraryMissing)):
        return _FAILED
    from octavo.pipeline.runner import USAGE  # imports pyarrow

    return _USAGE if isinstance(error, (BadOption, *USAGE)) else _FAILED


def _show(outcome: Outcome) -> None:
    emit_fields({name.replace("_", " "): value for name, value in outcome.summary.items()})
    if outcome.findings:
        emit_table(("finding", "where", "what"), outcome.findings)
    for kind, count in outcome.counts.items():
        shown = sum(one.kind == kind for one in outcome.findings)
        say(f"{count:,} × {kind}" + (f", the first {shown} shown" if shown < count else ""))
    if outcome.interrupted:
        say("interrupted: finished parts stay; run it again for the rest")
    elif not outcome.findings:
        say("no findings")
