"""`octavo topic`: create, list, describe, update, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from octavo.cli.options import (
    AsJson,
    BadOption,
    Data,
    TopicArgument,
    Url,
    Yes,
    broker_urls,
    parse_sets,
)
from octavo.cli.output import Waiting, emit_fields, emit_json, emit_table, err, say

if TYPE_CHECKING:
    from octavo.client.client import AsyncClient
    from octavo.client.types import Topic

T = TypeVar("T")
app = typer.Typer(help="Create, list, describe, change and delete topics.", no_args_is_help=True)

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the topic; may be repeated."),
]
RETRY_S = 20.0


def ask(urls: list[str], work: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Run `work` with a client; a person waits at most `RETRY_S` for a cluster that is busy."""
    from octavo.client.client import AsyncClient

    async def run() -> T:
        async with AsyncClient(urls, retry_s=RETRY_S, on_retry=Waiting()) as client:
            return await work(client)

    return asyncio.run(run())


@app.command()
def create(
    topic: TopicArgument,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions.")] = 1,
    ensemble: Annotated[int | None, typer.Option(min=1, help="Bookies a ledger uses (E).")] = None,
    write_quorum: Annotated[int | None, typer.Option(min=1, help="Copies (Qw).")] = None,
    ack_quorum: Annotated[int | None, typer.Option(min=1, help="Copies before ack (Qa).")] = None,
    settings: Settings = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic (fine when it exists with the same settings).

    \b
    Examples:
      octavo topic create flights --partitions 4
      octavo topic create logs/web --ensemble 3 --write-quorum 3 --ack-quorum 2
    """
    made = ask(
        broker_urls(url, data),
        lambda client: client.create_topic(
            topic,
            partitions=partitions,
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            **_values(settings),
        ),
    )
    _show(made, as_json)


@app.command("list")
def list_topics(
    namespace: Annotated[str | None, typer.Argument(help="Only this namespace.")] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List topics.

    \b
    Examples:
      octavo topic list
      octavo topic list public --json
    """

    async def collect(client: AsyncClient) -> list[str]:
        spaces = [namespace] if namespace else await client.namespaces()
        return [f"{space}/{name}" for space in spaces for name in await client.topics(space)]

    found = ask(broker_urls(url, data), collect)
    if as_json:
        emit_json(found)
    elif found:
        emit_table(("topic",), [(name,) for name in found])
    else:
        say("no topics; make one with `octavo topic create NAME`")


@app.command()
def describe(
    topic: TopicArgument, url: Url = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Show a topic's settings and its live state.

    \b
    Example:
      octavo topic describe flights
    """
    _show(ask(broker_urls(url, data), lambda client: client.topic(topic)), as_json)


@app.command()
def update(
    topic: TopicArgument,
    settings: Settings = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Change a topic's settings.

    \b
    Examples:
      octavo topic update flights --set partitions=8
      octavo topic update flights --set 'retention={"time": "7d"}'
    """
    values = _values(settings)
    if not values:
        raise BadOption("nothing to change: give at least one --set name=value")
    changed = ask(broker_urls(url, data), lambda client: client.update_topic(topic, **values))
    _show(changed, as_json)


@app.command()
def delete(
    topic: TopicArgument,
    yes: Yes = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Delete a topic with its messages and subscriptions.

    \b
    Example:
      octavo topic delete flights --yes
    """
    if not yes:
        typer.confirm(f"Delete {topic} and everything in it?", abort=True, err=True)
    ask(broker_urls(url, data), lambda client: client.delete_topic(topic))
    say(f"deleted {topic}")


def _values(settings: list[str] | None) -> dict[str, Any]:
    """`--set` values: JSON where they are JSON, text otherwise."""
    import json

    found: dict[str, Any] = {}
    for name, text in parse_sets(settings).items():
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def _show(topic: Topic, as_json: bool) -> None:
    if as_json:
        emit_json({"topic": str(topic.name), **topic.stats})
        return
    parts = topic.stats.get("partitions")
    settings = {
        name: value
        for name, value in topic.settings.items()
        if value is not None and not isinstance(value, list | Mapping)
    }
    emit_fields({"topic": topic.name, **settings})
    if isinstance(parts, list):
        _show_partitions(parts)


def _show_partitions(parts: list[Any]) -> None:
    """What the owners say of each partition."""
    names = ("partition", "owner", "earliest_offset", "next_offset", "stored_bytes", "ledgers")
    rows = []
    for part in parts:
        row: list[object] = []
        for name in names:
            value = part.get(name)
            row.append(len(value) if isinstance(value, list) else value)
        rows.append(row)
    emit_table(names, rows)
    for part in parts:
        if "problem" in part:
            detail = part["problem"].get("detail", "")
            err.print(f"partition {part['partition']}: {detail}", markup=False)
