"""`octavo consume`: messages of a topic to standard output, by subscription or by plain read."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import UNSET

from octavo.cli.options import BadOption, Data, TopicArgument, Url, broker_urls
from octavo.cli.output import Waiting, emit_raw, say
from octavo.protocol.json_message import show_headers, show_key, show_value

if TYPE_CHECKING:
    from octavo.client.client import AsyncClient
    from octavo.client.types import Message

RECEIVE_MAX = 1_000
DRAIN_WAIT_S = 1.0
"""Without --follow a subscription is at its end when nothing came for so long."""


def consume(
    topic: TopicArgument,
    subscription: Annotated[
        str | None,
        typer.Option("--subscription", "-s", help="Consume and acknowledge under this name."),
    ] = None,
    start: Annotated[
        str,
        typer.Option("--from", help="earliest, latest, an offset, a message id, or a time."),
    ] = "earliest",
    partition: Annotated[
        int | None, typer.Option(min=0, help="Only this partition (plain read).")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Then stop.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more at the end (Ctrl-C ends).")
    ] = False,
    compacted: Annotated[
        bool,
        typer.Option(
            "--compacted", help="The newest of each key up to the last compaction (plain read)."
        ),
    ] = False,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Values only, byte for byte, a line end behind each."),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a line: all of each message, exactly."),
    ] = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Print messages: with --subscription acknowledged and continued, else a plain read.

    \b
    Examples:
      octavo consume flights --from earliest --limit 10
      octavo consume flights --subscription billing --follow
      octavo consume flights --from latest --follow --json | jq .value
      octavo consume flights --from 2026-11-21T08:00:00Z --partition 2 --json
      octavo consume accounts --compacted --follow
    """
    if subscription and partition is not None:
        raise BadOption("--partition goes with a plain read; a subscription covers all partitions")
    if subscription and compacted:
        raise BadOption("--compacted goes with a plain read; a subscription gets every message")
    printer = _Printer(limit, raw, as_json, at_once=follow or subscription is not None)
    urls = broker_urls(url, data)

    async def run() -> None:
        from octavo.client.client import AsyncClient

        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        async with AsyncClient(urls, on_retry=Waiting()) as client:
            if subscription:
                await _by_subscription(client, topic, subscription, start, follow, printer)
            else:
                await _by_reading(client, topic, partition, start, follow, compacted, printer)

    try:
        asyncio.run(run())
    except (asyncio.CancelledError, _Enough):
        pass
    say(f"{printer.count:,} messages")


class _Enough(Exception):
    """The limit is reached."""


class _Printer:
    """Counts and prints. `at_once`: a message is out, pipe or not, before the next one is taken.

    Who follows sees each as it comes, and none is acked that still stands in a buffer.
    """

    def __init__(
        self, limit: int | None, raw: bool, as_json: bool, *, at_once: bool = False
    ) -> None:
        self.count = 0
        self.limit = limit
        self._raw = raw
        self._json = as_json
        self._at_once = at_once

    @property
    def left(self) -> int:
        """How many may still come."""
        return RECEIVE_MAX if self.limit is None else self.limit - self.count

    def show(self, message: Message) -> None:
        """Print one. Raises `_Enough` after the last."""
        self.count += 1
        if self._raw:
            emit_raw(message.value or b"")
        elif self._json:
            emit_raw(msgspec.json.encode(_plain(message)))
        else:
            key = f"{(message.key or b'').decode(errors='replace')}\t" if message.key else "\t"
            emit_raw(
                f"{message.partition}:{message.offset}\t{key}".encode() + (message.value or b"")
            )
        if self._at_once:
            sys.stdout.flush()
        if self.left <= 0:
            raise _Enough


def _plain(message: Message) -> dict[str, Any]:
    """The JSON form, as the API gives it; `octavo publish --envelope` stores it again."""
    key, key_base64 = show_key(message.key)
    value, value_text, value_base64 = show_value(message.value)
    found = {
        "partition": message.partition,
        "offset": message.offset,
        "time": datetime.fromtimestamp(message.timestamp_ms / 1000, UTC).isoformat(),
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
) -> None:
    """Receive, print, acknowledge; what was printed and not acked yet comes again next time."""
    at = "latest" if start == "latest" else "earliest"
    from octavo.client.errors import Conflict

    try:
        consumer = await client.subscribe(topic, name, type="shared", start=at)  # type: ignore[arg-type]
    except Conflict:
        consumer = client.subscription(topic, name)  # it exists with other settings: use it
    if start not in ("earliest", "latest"):
        await consumer.seek(start)
    idle_s = None if follow else DRAIN_WAIT_S
    batch = min(RECEIVE_MAX, printer.left)
    async with aclosing(consumer.deliveries(batch=batch, idle_s=idle_s)) as deliveries:
        async for delivery in deliveries:
            try:
                printer.show(delivery)
            except _Enough:
                await consumer.ack(delivery)
                raise
    if consumer.held_back:
        say(f"there are more messages, held back: {consumer.held_back}")


async def _by_reading(
    client: AsyncClient,
    topic: str,
    partition: int | None,
    start: str,
    follow: bool,
    compacted: bool,
    printer: _Printer,
) -> None:
    """Print one partition, or all of them one after the other (beside one another: --follow)."""
    found = await client.topic(topic)
    numbers = range(found.partitions) if partition is None else [partition]
    place: str | int = int(start) if start.isdigit() else start

    async def one(number: int) -> None:
        async for message in client.messages(
            topic, partition=number, start=place, follow=follow, compacted=compacted
        ):
            printer.show(message)

    if not follow:
        for number in numbers:
            await one(number)
        return
    tasks = [asyncio.create_task(one(number)) for number in numbers]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
