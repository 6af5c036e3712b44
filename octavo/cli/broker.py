"""`octavo broker`: start, list and drain brokers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli import nodes
from octavo.cli.options import AsJson, Data, Url, broker_urls
from octavo.cli.output import emit_json, emit_table, err, fail, say
from octavo.cli.topic import ask

if TYPE_CHECKING:
    from octavo.client.client import AsyncClient

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
app.callback(invoke_without_command=True)(nodes.broker)

_LOOK_EVERY_S = 0.25

BrokerId = Annotated[str, typer.Argument(metavar="BROKER", help="Its id, as `list` shows it.")]


@app.command("list")
def list_brokers(url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """List the live brokers with their partitions and load, and say which are drained.

    `load`: messages and KiB a second, published and read; `told`: the age of another broker's
    figures.

    \b
    Example:
      octavo broker list
    """
    found = ask(broker_urls(url, data), lambda client: client.brokers())
    if as_json:
        emit_json(found)
        return
    rows = [
        (
            one["id"],
            one["url"],
            "draining" if one["draining"] else "",
            one["partitions"],
            "" if one.get("load") is None else one["load"],
            "" if one.get("age") is None else f"{one['age']:.0f} s",
        )
        for one in found
    ]
    emit_table(("broker", "url", "state", "partitions", "load", "told"), rows)


@app.command()
def drain(
    broker: BrokerId,
    undo: Annotated[bool, typer.Option("--undo", help="Give it partitions again.")] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, metavar="SECONDS", help="How long to wait.")
    ] = 600.0,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Move all partitions of a broker to others, and wait until it has none.

    It gets none until it is restarted, or until --undo. If you interrupt this command, the
    broker continues.

    \b
    Example:
      octavo broker drain 127.0.0.1:8081
    """
    urls = broker_urls(url, data)
    if undo:
        done = ask(urls, lambda client: client.undrain_broker(broker))
        emit_json(done) if as_json else say(f"{broker} is not drained; it will get its share")
        return
    left = ask(urls, lambda client: _until_empty(client, broker, timeout_s, hidden=as_json))
    if as_json:
        emit_json({"id": broker, "draining": True, "partitions": left})
    elif not left:
        say(f"{broker} serves no partitions any more, and gets none")
    if left:
        fail(
            f"{broker} still serves {left} partitions after {timeout_s:g} s",
            "it continues; its log (handover_not_taken) and `octavo broker list` show its progress",
        )
        raise typer.Exit(1)


async def _until_empty(client: AsyncClient, broker: str, timeout_s: float, *, hidden: bool) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    left = total = int((await client.drain_broker(broker))["partitions"])
    columns = (TextColumn("draining"), BarColumn(), MofNCompleteColumn(), TextColumn("partitions"))
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    shown = not hidden and err.is_terminal
    with Progress(*columns, console=err, transient=True, disable=not shown) as bar:
        task = bar.add_task("drain", total=total)
        while left and loop.time() < until_s:
            await asyncio.sleep(_LOOK_EVERY_S)
            # Repeat the call: it changes nothing, and returns the broker's own count.
            left = int((await client.drain_broker(broker))["partitions"])
            total = max(total, left)
            bar.update(task, completed=total - left, total=total)
    return left
