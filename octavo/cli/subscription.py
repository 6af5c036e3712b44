"""`octavo subscription`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.consume import plain_message
from octavo.cli.options import AsJson, BadOption, Data, TopicArgument, Url, Yes, broker_urls
from octavo.cli.output import emit_fields, emit_json, emit_table, say
from octavo.cli.topic import Settings, ask, values_of

if TYPE_CHECKING:
    from octavo.client.client import AsyncClient
    from octavo.client.types import Delivery

app = typer.Typer(
    help="List, show, move and delete subscriptions, and show their backlog.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Its name.")]
Partition = Annotated[int | None, typer.Option(min=0, help="Only this partition.")]
VALUE_CHARS = 60
"""The part of a value that a table shows; --json shows all."""


@app.command("list")
def list_subscriptions(
    topic: TopicArgument, url: Url = None, data: Data = None, as_json: AsJson = False
) -> None:
    """List the subscriptions of a topic.

    \b
    Example:
      octavo subscription list flights
    """
    found = ask(broker_urls(url, data), lambda client: client.subscriptions(topic))
    if as_json:
        emit_json(found)
    elif found:
        names = ("type", "ack_timeout", "max_deliveries", "dead_letter_topic")
        rows = [(one["name"], *(one["settings"].get(name) for name in names)) for one in found]
        emit_table(("subscription", *names), rows)
    else:
        say(f"no subscriptions; make one with `octavo subscription create {topic} NAME`")


@app.command()
def create(
    topic: TopicArgument,
    name: Name,
    type: Annotated[  # noqa: A002 (the API's word)
        str, typer.Option(help="exclusive, failover, shared or key_shared.")
    ] = "exclusive",
    start: Annotated[
        str, typer.Option("--from", help="Where it begins: earliest, or latest.")
    ] = "earliest",
    ack_timeout: Annotated[
        str | None,
        typer.Option(help="An unacked message is delivered again after this time. Default: 30s."),
    ] = None,
    max_deliveries: Annotated[
        int | None,
        typer.Option(
            help="After this many deliveries, a message becomes a dead letter. Default: never."
        ),
    ] = None,
    dead_letter_topic: Annotated[
        str | None, typer.Option(help="Default: TOPIC-SUBSCRIPTION-dlq.", show_default=False)
    ] = None,
    retry_topic: Annotated[
        str | None,
        typer.Option(help="Unacked messages move to this topic, e.g. when nacked. Default: none."),
    ] = None,
    retry_deliveries: Annotated[
        int | None, typer.Option(help="Deliveries before it moves to the retry topic. Default: 1.")
    ] = None,
    backoff: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST[,MOST[,FACTOR]]",
            help="Wait between deliveries, e.g. 1s,5m. Default: none.",
        ),
    ] = None,
    others: Settings = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Create a subscription (fine when it exists with the same settings).

    \b
    Examples:
      octavo subscription create flights reports --type shared
      octavo subscription create flights audit --from latest --ack-timeout 2m
    """
    chosen = {
        "type": type,
        "start": start,
        "ack_timeout": ack_timeout,
        "max_deliveries": max_deliveries,
        "dead_letter_topic": dead_letter_topic,
        "retry_topic": retry_topic,
        "retry_deliveries": retry_deliveries,
        "retry_backoff": None if backoff is None else _backoff(backoff),
    }
    settings: dict[str, Any] = {word: one for word, one in chosen.items() if one is not None}
    settings |= values_of(others)

    async def make(client: AsyncClient) -> Mapping[str, Any]:
        return await (await client.subscribe(topic, name, **settings)).stats()

    _show(ask(broker_urls(url, data), make), as_json)


def _backoff(text: str) -> dict[str, Any]:
    parts = text.split(",")
    found: dict[str, Any] = dict(zip(("first", "most", "factor"), parts, strict=False))
    if len(parts) > len(found) or not all(parts):
        raise BadOption(f"--backoff {text!r}: write FIRST, FIRST,MOST or FIRST,MOST,FACTOR")
    if "factor" in found:
        try:
            found["factor"] = float(found["factor"])
        except ValueError:
            raise BadOption(f"--backoff {text!r}: FACTOR is a number, such as 2") from None
    return found


def _show(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        emit_json(found)
        return
    settings = {name: value for name, value in found["settings"].items() if value is not None}
    emit_fields({"subscription": found["name"], "topic": found["topic"], **settings})


@app.command()
def lag(
    topic: TopicArgument, name: Name, url: Url = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Show a subscription's backlog by partition, and why it is held back.

    \b
    Example:
      octavo subscription lag flights reports
    """
    found = ask(broker_urls(url, data), lambda client: client.subscription(topic, name).stats())
    if as_json:
        emit_json(found)
        return
    names = ("partition", "backlog", "committed_offset", "next_offset", "leased", "redelivering")
    parts = [one for one in found.get("partitions", ()) if "backlog" in one]
    rows = [
        (*(one.get(word) for word in names), one["delayed"], one["dead_letters"]["waiting"])
        for one in parts
    ]
    emit_table((*names, "delayed", "dead letters"), rows)
    for one in found.get("partitions", ()):
        if "problem" in one:
            say(f"partition {one['partition']}: {one['problem'].get('detail', '')}")
    if why := found.get("held_back"):
        say(f"held back: {why}")
    if why := found.get("dead_letters", {}).get("problem"):
        say(f"dead letters wait: {why}")
    if why := found.get("retries", {}).get("problem"):
        say(f"retries wait: {why}")


@app.command()
def peek(
    topic: TopicArgument,
    name: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Messages.")] = 10,
    partition: Partition = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show the first unacked messages, without leasing them.

    \b
    Example:
      octavo subscription peek flights reports
    """
    found = ask(
        broker_urls(url, data),
        lambda client: client.subscription(topic, name).peek(limit, partition=partition),
    )
    if as_json:
        for one in found:
            emit_json({**_decoded(one), "delivery_count": one.delivery_count})
    elif found:
        emit_table(
            ("partition", "offset", "key", "value"),
            [(one.partition, one.offset, _text(one.key), _text(one.value)) for one in found],
        )
    else:
        say("everything is acked")


def _decoded(message: Delivery) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(plain_message(message)))
    return found


def _text(value: bytes | None) -> str:
    text = (value or b"").decode(errors="replace")
    return text if len(text) <= VALUE_CHARS else text[:VALUE_CHARS] + "…"


@app.command()
def seek(
    topic: TopicArgument,
    name: Name,
    to: Annotated[
        str, typer.Option("--to", help="earliest, latest, an offset, a message id, or a time.")
    ],
    partition: Partition = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Move a subscription: earlier messages count as acked, later messages as unacked.

    \b
    Example:
      octavo subscription seek flights reports --to earliest
    """
    found = ask(
        broker_urls(url, data),
        lambda client: client.subscription(topic, name).seek(to, partition=partition),
    )
    if as_json:
        emit_json({"partitions": found})
    else:
        emit_table(("partition", "offset"), list(found.items()))


@app.command()
def skip(
    topic: TopicArgument,
    name: Name,
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, help="How many.")],
    partition: Partition = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Ack the first messages of each partition, including leased messages.

    \b
    Example:
      octavo subscription skip flights reports -n 1
    """
    acked = ask(
        broker_urls(url, data),
        lambda client: client.subscription(topic, name).skip(messages, partition=partition),
    )
    _say_acked(acked, as_json)


@app.command()
def expire(
    topic: TopicArgument,
    name: Name,
    older_than: Annotated[str, typer.Option(metavar="TIME", help="Such as 30m, 12h or 7d.")],
    partition: Partition = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Ack all messages older than a time, including leased messages.

    \b
    Example:
      octavo subscription expire flights reports --older-than 7d
    """
    acked = ask(
        broker_urls(url, data),
        lambda client: client.subscription(topic, name).expire(older_than, partition=partition),
    )
    _say_acked(acked, as_json)


def _say_acked(acked: int, as_json: bool) -> None:
    if as_json:
        emit_json({"acked": acked})
    else:
        say(f"{acked:,} messages acked")


@app.command()
def delete(
    topic: TopicArgument, name: Name, yes: Yes = False, url: Url = None, data: Data = None
) -> None:
    """Delete a subscription and its acks.

    \b
    Example:
      octavo subscription delete flights reports --yes
    """
    if not yes:
        typer.confirm(f"Delete subscription {name} of {topic}?", abort=True, err=True)
    ask(broker_urls(url, data), lambda client: client.subscription(topic, name).delete())
    say(f"deleted {name}")
