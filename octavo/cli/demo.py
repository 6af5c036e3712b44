"""`octavo demo`: everything at once on real data; how fencing works; the same data through
Spark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from octavo.cli.options import BadOption
from octavo.cli.output import say

app = typer.Typer(invoke_without_command=True)

Folder = Annotated[
    Path | None, typer.Option("--data", help="Keep the cluster's folder here (must be new).")
]
Rows = Annotated[int | None, typer.Option(min=100, help="Only the first N flights (all: 336,776).")]


@app.callback()
def demo(
    context: typer.Context,
    rows: Rows = None,
    data: Folder = None,
    kill: Annotated[
        bool, typer.Option("--kill/--no-kill", help="Kill a bookie and a broker on the way.")
    ] = True,
) -> None:
    """Publish 336,776 real flights while a bookie and a broker are killed; account for each.

    \b
    Example:
      octavo demo
    """
    if context.invoked_subcommand is not None:
        return
    from octavo.examples.run import DemoOptions, run_demo

    with _folder(data) as folder:
        code = asyncio.run(run_demo(DemoOptions(folder=folder, rows=rows, kill=kill)))
    if code:
        raise typer.Exit(code)


@app.command()
def fencing(data: Folder = None) -> None:
    """Pause a topic's owner, let another broker take over, resume it: its writes are refused.

    \b
    Example:
      octavo demo fencing
    """
    from octavo.examples.fencing import run_fencing

    with _folder(data) as folder:
        code = asyncio.run(run_fencing(folder))
    if code:
        raise typer.Exit(code)


@app.command()
def pipeline(
    rows: Rows = None,
    data: Folder = None,
) -> None:
    """Send flights through topics and Spark, exactly once, and check the result with pandas.

    \b
    Example:
      octavo demo pipeline
    """
    from octavo.pipeline.session import check_packages

    check_packages()
    from octavo.examples.pipeline import run_pipeline

    with _folder(data) as folder:
        code = run_pipeline(folder, rows)
    if code:
        raise typer.Exit(code)


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        if data.exists() and any(data.iterdir()):
            raise BadOption(f"{data} is not empty; a demonstration needs a new folder")
        yield data
        say(f"the cluster's data and logs are in {data}")
        return
    with TemporaryDirectory(prefix="octavo-demo-", ignore_cleanup_errors=True) as name:
        yield Path(name)
