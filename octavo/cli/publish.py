"""`octavo publish`: messages from arguments, standard input or a file."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer
from msgspec import UNSET, Raw, UnsetType

from octavo.cli.options import AsJson, BadOption, Data, TopicArgument, Url, broker_urls
from octavo.cli.output import Waiting, emit_json, err
from octavo.clock import wall_clock_ms
from octavo.protocol.codes import OctavoError
from octavo.protocol.json_message import JsonHeaders, stored_headers, stored_key, stored_value

if TYPE_CHECKING:
    from octavo.client.types import Position

RETRY_S = 60.0
Large = Annotated[
    Path | None,
    typer.Option(help="Publish this whole file, up to 128 MiB, as a single message."),
]
Ndjson = Annotated[
    bool, typer.Option("--ndjson", help="Check that each line is JSON; store it unchanged.")
]
Envelopes = Annotated[
    bool,
    typer.Option("--envelope", help='Each line is {"key": …, "value": …}, as consume prints.'),
]


class BadLine(OctavoError):
    """The lines before it may have been published."""

    name = "bad-line"


class Line(NamedTuple):
    key: str | bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


class _Envelope(msgspec.Struct):
    """A message as `octavo consume --json` prints it; other members are ignored."""

    key: str | UnsetType | None = UNSET
    key_base64: bytes | None = None
    value: Raw | UnsetType = UNSET
    value_text: str | None = None
    value_base64: bytes | None = None
    headers: JsonHeaders | None = None

    def line(self, key: str | None) -> Line:
        if self.value is UNSET and self.value_text is None and self.value_base64 is None:
            raise ValueError("it needs a value, value_text or value_base64")
        named = self.key is not UNSET or self.key_base64 is not None
        return Line(
            stored_key(self.key, self.key_base64) if named else key,
            stored_value(self.value, self.value_text, self.value_base64),
            stored_headers(self.headers) if self.headers else (),
        )


class _Reading(NamedTuple):
    key: str | None
    key_field: str | None
    ndjson: bool
    envelope: bool

    def line(self, text: bytes, where: str) -> Line:
        if self.envelope:
            try:
                return msgspec.json.decode(text, type=_Envelope).line(self.key)
            except (ValueError, RecursionError) as error:
                raise BadLine(
                    f'{where} is not {{"key": …, "value": …}} as octavo consume --json prints: '
                    f"{error}"
                ) from None
        if not (self.ndjson or self.key_field):
            return Line(self.key, text)
        try:
            found = json.loads(
                text, parse_float=_Written, parse_int=_Written, parse_constant=_no_constant
            )
        except (ValueError, RecursionError) as error:
            raise BadLine(f"{where} is not JSON: {error}") from None
        if self.key_field is not None and not isinstance(found, dict):
            raise BadLine(f"{where} must be a JSON object with the field {self.key_field!r}")
        picked = found.get(self.key_field) if self.key_field else None
        if picked is not None and not isinstance(picked, str):
            raise BadLine(
                f"{where}: {self.key_field!r} is {json.dumps(picked)[:60]}, but a key must be text "
                "or a number; --envelope takes key and value separately"
            )
        return Line(self.key if picked is None else picked, text)


class _Written(str):
    """A number as it is written, so that the key of `1.50` is "1.50"."""

    __slots__ = ()


def _no_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python's parser would accept."""
    raise ValueError(f"JSON has no {name}")


def publish(
    topic: TopicArgument,
    messages: Annotated[
        list[str] | None,
        typer.Argument(help="Messages. Without them, each line of the input is a message."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read lines from a file ('-': stdin).")
    ] = None,
    large: Large = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every message.")] = None,
    key_field: Annotated[
        str | None, typer.Option("--key-field", help="Take the key from this field of each line.")
    ] = None,
    ndjson: Ndjson = False,
    envelope: Envelopes = False,
    partition: Annotated[int | None, typer.Option(min=0, help="Publish to this partition.")] = None,
    producer_id: Annotated[
        str | None,
        typer.Option(help="A lasting name: a repeated run with it stores no message twice."),
    ] = None,
    deliver_after_s: Annotated[
        float | None,
        typer.Option(min=0, help="Shared subscriptions deliver the messages this much later."),
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Publish messages; end when all are durable.

    \b
    Examples:
      octavo publish greetings hello 'and again' --key me
      octavo publish flights --file flights.ndjson --ndjson --key-field tailnum
      seq 1000 | octavo publish numbers
    """
    if large is not None:
        if messages or file or key_field or ndjson or envelope:
            raise BadOption(
                "--large FILE is a single message: leave out other messages and options of lines"
            )
        _publish_large(
            broker_urls(url, data), topic, large, key, partition, producer_id, deliver_after_s,
            as_json=as_json,
        )  # fmt: skip
        return
    reading = _Reading(key, key_field, ndjson, envelope)
    _check(messages, file, reading, producer_id, partition)
    lines = iter(_arguments(messages, reading)) if messages else _lines(file, reading)
    started = time.monotonic()
    work = _run(broker_urls(url, data), topic, lines, partition, producer_id, deliver_after_s)
    count, last = asyncio.run(work)
    took_s = time.monotonic() - started
    if as_json:
        place = {"partition": last.partition, "offset": last.offset, "id": last.id} if last else {}
        emit_json({"count": count, "took_s": round(took_s, 3), "last": place})
    else:
        where = f", last at partition {last.partition} offset {last.offset}" if last else ""
        err.print(f"{count:,} published in {took_s:.1f} s{where}")


def _check(
    messages: list[str] | None,
    file: Path | None,
    reading: _Reading,
    producer_id: str | None,
    partition: int | None,
) -> None:
    if messages and file:
        raise BadOption("messages on the command line and --file at once: choose one")
    if reading.key and reading.key_field:
        raise BadOption("--key and --key-field at once: choose one")
    if (
        producer_id
        and partition is None
        and not (reading.key or reading.key_field or reading.envelope)
    ):
        raise BadOption(
            "--producer-id needs keys (--key, --key-field, --envelope) or --partition: without "
            "them a repeated message may go to another partition, and is then stored twice"
        )
    if reading.envelope and (reading.ndjson or reading.key_field):
        raise BadOption("--envelope with --ndjson or --key-field: leave these out")
    if not messages and file is None and sys.stdin.isatty():
        raise BadOption("nothing to publish: give messages, --file FILE, or pipe lines in")


def _publish_large(
    urls: list[str],
    topic: str,
    file: Path,
    key: str | None,
    partition: int | None,
    upload: str | None,
    deliver_after_s: float | None,
    *,
    as_json: bool,
) -> None:
    """Publish a whole file; uploads with the same name `upload` are stored once."""
    from octavo.client.client import AsyncClient

    async def run() -> Position:
        async with AsyncClient(urls, retry_s=RETRY_S, on_retry=Waiting()) as client:
            return await client.publish_large(
                topic, file, key=key, partition=partition, upload=upload,
                deliver_at_ms=_due_ms(deliver_after_s),
            )  # fmt: skip

    if not file.is_file():
        raise BadOption(f"--large {file} is not a file")
    started = time.monotonic()
    at, size = asyncio.run(run()), file.stat().st_size
    took_s = time.monotonic() - started
    if as_json:
        place = {"partition": at.partition, "offset": at.offset, "id": at.id}
        emit_json({"count": 1, "took_s": round(took_s, 3), "last": place})
    else:
        there = ", stored before" if at.duplicate else ""
        where = f"partition {at.partition} offset {at.offset}{there}"
        err.print(f"{size:,} bytes published in {took_s:.1f} s at {where}")


def _arguments(messages: list[str], reading: _Reading) -> list[Line]:
    return [
        reading.line(os.fsencode(message), f"message {number}")
        for number, message in enumerate(messages, 1)
    ]


def _lines(file: Path | None, reading: _Reading) -> Iterator[Line]:
    with opened(file) as source:
        for number, raw in enumerate(source, 1):
            text = raw.removesuffix(b"\n").removesuffix(b"\r")
            if text:
                yield reading.line(text, f"line {number}")


@contextmanager
def opened(file: Path | None) -> Iterator[Any]:
    if file is None or str(file) == "-":
        yield sys.stdin.buffer
        return
    with file.open("rb") as source:
        yield source


async def _run(
    urls: list[str],
    topic: str,
    lines: Iterator[Line],
    partition: int | None,
    producer_id: str | None,
    deliver_after_s: float | None,
) -> tuple[int, Position | None]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from octavo.client.client import AsyncClient

    columns = (
        TextColumn("publishing"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} messages"),
        TimeElapsedColumn(),
    )
    async with AsyncClient(urls, retry_s=RETRY_S, on_retry=Waiting()) as client:
        producer = await client.producer(topic, producer_id=producer_id)
        count = 0
        last = None
        with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
            task = bar.add_task("publish", total=None)
            async with producer:
                for line in lines:
                    last = await producer.send(
                        line.value, key=line.key, headers=line.headers, partition=partition,
                        deliver_at_ms=_due_ms(deliver_after_s),
                    )  # fmt: skip
                    count += 1
                    if count % 500 == 0:
                        bar.update(task, completed=count)
                        await asyncio.sleep(0)
        return count, await last if last is not None else None


def _due_ms(after_s: float | None) -> int | None:
    return None if after_s is None else wall_clock_ms() + int(after_s * 1000)
