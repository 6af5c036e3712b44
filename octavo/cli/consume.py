"""`octavo consume`: messages of a topic to standard output."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from msgspec import UNSET

from octavo.cli.options import BadOption, Data, Url, broker_urls
from octavo.cli.output import Waiting, emit_raw, say
from octavo.protocol.calendar import iso_of
from octavo.protocol.json_message import show_headers, show_key, show_value
from octavo.protocol.numbers import whole

if TYPE_CHECKING:
    from octavo.client.client import AsyncClient
    from octavo.client.consumer import TopicsConsumer
    from octavo.client.subscription import Subscription
    from octavo.client.types import Message


class SubscriptionType(StrEnum):
    EXCLUSIVE = "exclusive"
    FAILOVER = "failover"
    SHARED = "shared"
    KEY_SHARED = "key_shared"


Type = Annotated[
    SubscriptionType | None,
    typer.Option("--type", help="Type of the subscription, if this creates it. Default: shared."),
]
Priority = Annotated[
    int, typer.Option(min=0, max=100, help="Consumers with a lower number are served first.")
]
HeaderFilter = Annotated[
    list[str] | None,
    typer.Option("--header", help="Only messages with name=value or name=*, if this creates it."),
]
KeyPrefix = Annotated[
    str | None,
    typer.Option(help="Only keys that begin with this, if this creates the subscription."),
]
Durable = Annotated[
    bool,
    typer.Option(
        "--durable/--not-durable", help="Whether acks survive a change of the partition's owner."
    ),
]
RECEIVE_MAX = 1_000
DRAIN_WAIT_S = 1.0
"""Without --follow, the wait for a message after which the command stops."""

TopicOrPattern = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="topic or namespace/topic; with --subscription also a pattern, 'shop/orders-*'",
    ),
]
SubscriptionName = Annotated[
    str | None,
    typer.Option("--subscription", "-s", help="Consume and acknowledge under this name."),
]
OnePartition = Annotated[int | None, typer.Option(min=0, help="Only this partition (plain read).")]
From = Annotated[
    str, typer.Option("--from", help="earliest, latest, an offset, a message id, or a time.")
]
Group = Annotated[
    bool,
    typer.Option("--group", help="Share the partitions with all other members of the group."),
]
ConsumerName = Annotated[
    str | None,
    typer.Option(
        "--consumer",
        help="This consumer's name in the subscription or group. Default: a new name each time.",
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many messages.")
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Wait for more at the end (Ctrl-C ends).")
]
Compacted = Annotated[
    bool,
    typer.Option(
        "--compacted", help="The newest message of each key as of the last compaction (plain read)."
    ),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Values only, byte for byte, each with a line end.")
]
OutputDir = Annotated[
    Path | None,
    typer.Option(help="Folder for the bodies of large messages; files PARTITION-OFFSET."),
]
WholeJson = Annotated[
    bool, typer.Option("--json", help="One JSON object a line: the whole message, exactly.")
]


def consume(
    topic: TopicOrPattern,
    subscription: SubscriptionName = None,
    start: From = "earliest",
    partition: OnePartition = None,
    group: Group = False,
    consumer: ConsumerName = None,
    limit: Limit = None,
    follow: Follow = False,
    compacted: Compacted = False,
    raw: Raw = False,
    as_json: WholeJson = False,
    output_dir: OutputDir = None,
    type_: Type = None,
    priority: Priority = 0,
    headers: HeaderFilter = None,
    key_prefix: KeyPrefix = None,
    durable: Durable = True,
    url: Url = None,
    data: Data = None,
) -> None:
    """Print messages of a subscription, with acks, or by a plain read.

    With --subscription each printed message is acknowledged, and the next run continues after it.

    \b
    Examples:
      octavo consume flights --from earliest --limit 10
      octavo consume flights --subscription billing --follow
      octavo consume flights -s billing --type key_shared --header kind=order --follow
    """
    is_several = group or "*" in topic or "?" in topic
    _check(subscription, partition, consumer, start, compacted=compacted, several=is_several)
    of_one = subscription is not None and not is_several
    type_alone = None if of_one or subscription is None else type_
    making = _making(
        type_ if type_alone is None else None, priority, headers or [], key_prefix,
        durable=durable, of_one=of_one,
    )  # fmt: skip
    _check_folder(output_dir, several=is_several)
    printer = _Printer(limit, raw, as_json, at_once=follow or subscription is not None)
    urls = broker_urls(url, data)

    async def run() -> None:
        from octavo.client.client import AsyncClient

        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        async with AsyncClient(urls, on_retry=Waiting()) as client:
            if output_dir is not None:
                printer.save = partial(_save, client, topic, output_dir)
            if subscription and is_several:
                await _of_several(
                    client, topic, subscription, start, follow, printer,
                    group=group, consumer=consumer, type_=type_alone,
                )  # fmt: skip
            elif subscription:
                await _by_subscription(
                    client, topic, subscription, start, follow, printer, consumer, making
                )
            else:
                await _by_reading(client, topic, partition, start, follow, compacted, printer)

    try:
        asyncio.run(run())
    except (asyncio.CancelledError, _Enough):
        pass
    say(f"{printer.count:,} messages")


def _check(
    subscription: str | None,
    partition: int | None,
    consumer: str | None,
    start: str,
    *,
    compacted: bool,
    several: bool,
) -> None:
    if subscription and partition is not None:
        raise BadOption("--partition goes with a plain read; a subscription covers all partitions")
    if subscription and compacted:
        raise BadOption("--compacted goes with a plain read; a subscription gets every message")
    if several and subscription is None:
        raise BadOption("several topics, and --group, need --subscription")
    if consumer is not None and subscription is None:
        raise BadOption("--consumer needs --subscription")
    if several and start not in ("earliest", "latest"):
        raise BadOption("--from must be earliest or latest for several topics or with --group")


def _check_folder(folder: Path | None, *, several: bool) -> None:
    if folder is not None and several:
        raise BadOption("--output-dir takes a single topic: file names do not contain the topic")
    if folder is not None and not folder.is_dir():
        raise BadOption(f"--output-dir {folder} is not a folder: make it first")


def _making(
    type_: SubscriptionType | None,
    priority: int,
    headers: list[str],
    key_prefix: str | None,
    *,
    durable: bool,
    of_one: bool,
) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if type_ is not None:
        said["type"] = type_.value
    if priority:
        said["priority"] = priority
    if headers or key_prefix is not None:
        said["filter"] = {"headers": _values(headers), "key_prefix": key_prefix}
    if not durable:
        said["durable"] = False
    if said and not of_one:
        raise BadOption(
            "--priority, --header, --key-prefix and --not-durable need a --subscription of a "
            "single topic; --type needs a --subscription"
        )
    return said


def _values(headers: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in headers:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadOption(f"--header {text!r} is not of the form name=value")
        found.setdefault(name, []).append(value)
    return found


class _Enough(Exception):
    pass


class _Printer:
    """Counts and prints messages.

    With `at_once` it flushes after each message: no message is acked that is still in a buffer.
    """

    def __init__(
        self, limit: int | None, raw: bool, as_json: bool, *, at_once: bool = False
    ) -> None:
        self.count = 0
        self.limit = limit
        self._raw = raw
        self._json = as_json
        self._at_once = at_once
        self.save: Callable[[Message], Awaitable[None]] = _nowhere
        """Called with each message before it is printed."""

    @property
    def left(self) -> int:
        return RECEIVE_MAX if self.limit is None else self.limit - self.count

    def show(self, message: Message) -> None:
        self.count += 1
        if self._raw:
            emit_raw(message.value or b"")
        elif self._json:
            emit_raw(msgspec.json.encode(plain_message(message)))
        else:
            key = f"{(message.key or b'').decode(errors='replace')}\t" if message.key else "\t"
            topic = getattr(message, "topic", "")
            place = f"{topic}/{message.partition}" if topic else message.partition
            emit_raw(f"{place}:{message.offset}\t{key}".encode() + (message.value or b""))
        if self._at_once:
            sys.stdout.flush()
        if self.left <= 0:
            raise _Enough


async def _nowhere(_: Message) -> None: ...


async def _save(client: AsyncClient, topic: str, folder: Path, message: Message) -> None:
    if message.large is None:
        return
    file = folder / f"{message.partition}-{message.offset}"
    part = file.with_name(file.name + ".part")
    with part.open("wb") as opened:
        async with aclosing(client.body(topic, message)) as pieces:
            async for piece in pieces:
                opened.write(piece)
    part.replace(file)


def plain_message(message: Message) -> dict[str, Any]:
    """Return the JSON form of the API; `octavo publish --envelope` can publish it again."""
    key, key_base64 = show_key(message.key)
    value, value_text, value_base64 = show_value(message.value)
    time = iso_of(message.timestamp_ms)
    found: dict[str, Any] = {
        "topic": (getattr(message, "topic", "")) or UNSET,
        "partition": message.partition,
        "offset": message.offset,
        "time": time,
        "timestamp": UNSET if time is not None else message.timestamp_ms,
        "id": message.id or UNSET,
        "key": key,
        "key_base64": key_base64,
        "value": value,
        "value_text": value_text,
        "value_base64": value_base64,
        "headers": show_headers(message.headers) if message.headers else UNSET,
    }
    return {name: content for name, content in found.items() if content is not UNSET}


async def _by_subscription(
    client: AsyncClient,
    topic: str,
    name: str,
    start: str,
    follow: bool,
    printer: _Printer,
    consumer_name: str | None = None,
    making: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Receive, print, acknowledge. After a crash, a printed but unacked message comes again."""
    at: Literal["earliest", "latest"] = "latest" if start == "latest" else "earliest"
    from octavo.client.errors import Conflict

    try:
        said = {"type": "shared", **making}
        consumer = await client.subscribe(topic, name, start=at, consumer=consumer_name, **said)
    except Conflict:  # it exists with other settings: use it
        priority = making.get("priority", 0)
        consumer = client.subscription(topic, name, consumer=consumer_name, priority=priority)
    if start not in ("earliest", "latest"):
        await consumer.seek(start)
    await _print_all(consumer, follow, printer)
    if consumer.held_back:
        say(f"there are more messages, held back: {consumer.held_back}")


async def _print_all(
    consumer: Subscription | TopicsConsumer, follow: bool, printer: _Printer
) -> None:
    """Ack each delivery when the next is requested, or at the end."""
    idle_s = None if follow else DRAIN_WAIT_S
    batch = min(RECEIVE_MAX, printer.left)
    async with aclosing(consumer.deliveries(batch=batch, idle_s=idle_s)) as deliveries:
        async for delivery in deliveries:
            try:
                await printer.save(delivery)
                printer.show(delivery)
            except _Enough:
                await consumer.ack(delivery)
                raise


async def _of_several(
    client: AsyncClient,
    topics: str,
    name: str,
    start: str,
    follow: bool,
    printer: _Printer,
    *,
    group: bool,
    consumer: str | None,
    type_: SubscriptionType | None,
) -> None:
    at: Literal["earliest", "latest"] = "latest" if start == "latest" else "earliest"
    said: dict[str, Any] = {} if type_ is None else {"type": type_.value}
    several = client.consume(topics, name, group=group, consumer=consumer, start=at, **said)
    [pattern] = several.options.topics
    there = await client.topics(pattern.namespace) if pattern.is_wild else [pattern.topic]
    if not any(map(pattern.matches, there)):
        none = f"namespace {pattern.namespace} shows no topic that matches {pattern.topic}"
        say(f"{none}; waiting for one (Ctrl-C ends)" if follow else none)
        if not follow:
            return
    await _print_all(several, follow, printer)


async def _by_reading(
    client: AsyncClient,
    topic: str,
    partition: int | None,
    start: str,
    follow: bool,
    compacted: bool,
    printer: _Printer,
) -> None:
    offset = whole(start)
    found = client.messages(
        topic,
        partition=partition,
        start=start if offset is None else offset,
        follow=follow,
        compacted=compacted,
    )
    async with aclosing(found) as messages:
        async for message in messages:
            await printer.save(message)
            printer.show(message)
