"""How a command of `octavo pipeline` runs its job: usage first, then Spark, then what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from octavo.cli.options import BadOption, broker_urls, metadata_url
from octavo.cli.output import debugging, emit_fields, emit_json, emit_table, fail, say
from protocol.codes import OctavoError

if TYPE_CHECKING:
    from octavo.pipeline.outcome import Outcome
    from octavo.pipeline.runner import Run

Job = Callable[["Run"], "Outcome"]
_USAGE, _FAILED = 2, 3


@dataclass(frozen=True)
class Where:
    """The options of every job that say which cluster it works on, and where Spark runs."""

    url: str | None
    data: Path | None
    master: str | None
    conf: list[str] | None


def carry_out(name: str, job: Callable[[], Job], where: Where, *, as_json: bool) -> None:
    """Run a job, show its outcome, and exit as it says.

    `job` looks at the arguments: what is wrong with them is said before Spark starts.
    """
    try:
        outcome = _run(name, job, where)
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
    from octavo.pipeline.runner import run_job
    from octavo.pipeline.session import SparkOptions, check_packages

    options = SparkOptions(where.master, _settings(where.conf))
    service = _service(where.url, where.data)
    check_packages()
    return run_job(name, job(), service=service, say=say, options=options)


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
