"""`octavo topic`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from octavo.cli.explained import show_explained
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
from octavo.cli.policy_options import merged, with_policies
from octavo.protocol.numbers import whole

if TYPE_CHECKING:
    from octavo.client.client import AsyncClient
    from octavo.client.types import Topic

T = TypeVar("T")
app = typer.Typer(help="Create, list, describe, change and delete topics.", no_args_is_help=True)

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be repeated."),
]
RETRY_S = 20.0


def ask(urls: list[str], work: Callable[[AsyncClient], Awaitable[T]]) -> T:
    from octavo.client.client import AsyncClient

    async def run() -> T:
        async with AsyncClient(urls, retry_s=RETRY_S, on_retry=Waiting()) as client:
            return await work(client)

    return asyncio.run(run())


@app.command()
@with_policies
def create(
    policies: dict[str, Any],
    topic: TopicArgument,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions.")] = 1,
    ensemble: Annotated[
        int | None, typer.Option(min=1, help="Bookies a ledger uses (E). Default: 3.")
    ] = None,
    write_quorum: Annotated[
        int | None, typer.Option(min=1, help="Copies of a message (Qw). Default: 3.")
    ] = None,
    ack_quorum: Annotated[
        int | None,
        typer.Option(min=1, help="Copies on disk before it is acknowledged (Qa). Default: 2."),
    ] = None,
    force: Annotated[
        bool, typer.Option(help="Also if it needs more bookies than there are.")
    ] = False,
    settings: Settings = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic (fine when it exists with the same settings).

    Policies not given come from the namespace. TIME is 90s, 12h or 7d, SIZE 64KiB or 10GB.

    \b
    Examples:
      octavo topic create flights --partitions 4
      octavo topic create clicks --ttl 1d --backlog-size 10GB --backlog-policy evict
    """
    chosen: dict[str, Any] = {
        "partitions": partitions,
        "ensemble_size": ensemble,
        "write_quorum": write_quorum,
        "ack_quorum": ack_quorum,
        "force": force,
        **merged(policies, values_of(settings)),
    }
    made = ask(broker_urls(url, data), lambda client: client.create_topic(topic, **chosen))
    _warn(made)
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
    Example:
      octavo topic list
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
@app.command("alter", hidden=True)  # Kafka's word
@with_policies
def update(
    policies: dict[str, Any],
    topic: TopicArgument,
    settings: Settings = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Change a topic's settings. Settings that are not named stay.

    `off` turns a setting off, `default` leaves it to the namespace. TIME is 90s, 12h or 7d, SIZE
    64KiB or 10GB.

    \b
    Examples:
      octavo topic update flights --set partitions=8
      octavo topic update flights --ttl 1h --retention-size default
    """
    values = merged(policies, values_of(settings))
    if not values:
        raise BadOption("nothing to change: give an option, or --set name=value")
    changed = ask(broker_urls(url, data), lambda client: client.update_topic(topic, **values))
    _warn(changed)
    _show(changed, as_json)


@app.command()
def fork(
    topic: TopicArgument,
    name: Annotated[str, typer.Argument(help="Name of the new topic, in the same namespace.")],
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PARTITION=]PLACE",
            help="Where: latest (the default), earliest, an RFC 3339 time, an offset; may be "
            "repeated.",
        ),
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Fork a topic: create a topic that begins with its messages, without copying them.

    \b
    Examples:
      octavo topic fork flights flights-again
      octavo topic fork flights what-if --at 2026-11-24T08:00:00Z
    """
    where = _places(at or ["latest"])
    _show(
        ask(broker_urls(url, data), lambda client: client.fork_topic(topic, name, at=where)),
        as_json,
    )


def _places(given: list[str]) -> str | int | dict[int, str | int]:
    def place(text: str) -> str | int:
        offset = whole(text)
        return text if offset is None else offset

    if len(given) == 1 and "=" not in given[0]:
        return place(given[0])
    found: dict[int, str | int] = {}
    for one in given:
        number, _, text = one.partition("=")
        partition = whole(number)
        if not text or partition is None:
            raise BadOption(
                f"--at {one!r}: give a place for all partitions, or PARTITION=PLACE for each"
            )
        found[partition] = place(text)
    return found


@app.command()
def truncate(
    topic: TopicArgument,
    before: Annotated[
        str, typer.Option(help="Keep from here: latest, an RFC 3339 time, an offset, an id.")
    ],
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    yes: Yes = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Remove the oldest messages for good, acked or not.

    \b
    Example:
      octavo topic truncate flights --before 2026-11-01T00:00:00Z
    """
    if not yes:
        typer.confirm(f"Remove all messages of {topic} before {before}?", abort=True, err=True)
    found = ask(
        broker_urls(url, data),
        lambda client: client.truncate_topic(topic, before, partition=partition),
    )
    if as_json:
        emit_json(found)
    else:
        emit_table(("partition", "earliest_offset"), sorted(found.items()))


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


@app.command()
def explain(
    topic: TopicArgument,
    subscription: Annotated[
        str | None,
        typer.Option("--subscription", "-s", help="Explain this subscription too."),
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Explain which broker serves each partition, and what holds publishers and consumers back.

    \b
    Example:
      octavo topic explain flights
    """
    found: Mapping[str, Any] = ask(
        broker_urls(url, data),
        lambda client: client.explain_topic(topic, subscription=subscription),
    )
    emit_json(found) if as_json else show_explained(found)


@app.command()
def unload(
    topic: TopicArgument,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="BROKER", help="To this broker. Default: the preferred one."),
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Move a topic's partitions to the brokers that should have them, or to a named broker.

    They stay at a named broker until it stops, is drained, or the topic is unloaded again.

    \b
    Example:
      octavo topic unload flights
    """
    moved: list[Mapping[str, Any]] = ask(
        broker_urls(url, data), lambda client: client.unload_topic(topic, to=to)
    )
    if as_json:
        emit_json(moved)
        return
    rows = [(one["partition"], one["from_broker"], one["to_broker"]) for one in moved]
    emit_table(("partition", "from", "to"), rows)


def values_of(settings: list[str] | None) -> dict[str, Any]:
    import json

    found: dict[str, Any] = {}
    for name, text in parse_sets(settings).items():
        if name in ("topic", "name"):
            raise BadOption(f"--set {name}: {name} is not a setting; write it before the options")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def _warn(topic: Topic) -> None:
    if warning := topic.stats.get("warning"):
        err.print(f"warning: {warning}", markup=False)


def _show(topic: Topic, as_json: bool) -> None:
    if as_json:
        emit_json({"topic": str(topic.name), **topic.stats})
        return
    parts = topic.stats.get("partitions")
    settings = {
        name: value
        for name, value in topic.settings.items()
        if value is not None and not (isinstance(value, Mapping) and not any(value.values()))
    }
    emit_fields({"topic": topic.name, **settings})
    if isinstance(parts, list):
        _show_partitions(parts)


def _show_partitions(parts: list[Any]) -> None:
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
