"""`octavo stream`: durable streams. JSON passes through as written: `1.50` stays `1.50`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import datetime
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer
from msgspec import Raw

from octavo.cli.options import AsJson, BadOption, Data, Url, Yes, broker_urls
from octavo.cli.output import Waiting, emit_bytes, emit_fields, emit_json, emit_raw, say
from octavo.cli.publish import BadLine, opened
from octavo.cli.topic import ask
from octavo.client.errors import NotFound
from octavo.client.types import TopicName
from octavo.protocol.codes import OctavoError
from octavo.protocol.limits import MESSAGE_BYTES_MAX
from octavo.protocol.records import RECORD_OVERHEAD_BYTES

if TYPE_CHECKING:
    from octavo.client.durable import AsyncStream, StreamInfo, StreamPart

T = TypeVar("T")
app = typer.Typer(
    help="Create, append to, read, close, fork and delete durable streams.", no_args_is_help=True
)
APPEND_BYTES = 1 << 20
"""The most bytes of a pipe or file in an append."""
_PLACES = {"earliest": "-1", "latest": "now"}

StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="stream or namespace/stream")]


class NoStream(OctavoError):
    name = "no-stream"


@contextmanager
def _known(stream: str) -> Iterator[None]:
    """Turn "stream-not-found" in the block into `NoStream`, which names the command to make it."""
    try:
        yield
    except NotFound as error:
        if error.code != "stream-not-found":  # "topic-is-no-stream" has its own text
            raise
        raise NoStream(
            f"there is no stream {TopicName.of(stream)}; octavo stream create {stream} makes it"
        ) from error


def _ask(
    url: str | None, data: Path | None, stream: str, work: Callable[[AsyncStream], Awaitable[T]]
) -> T:
    with _known(stream):
        return ask(broker_urls(url, data), lambda client: work(client.stream(stream)))


@app.command()
def create(
    stream: StreamArgument,
    content_type: Annotated[
        str,
        typer.Option(
            "--content-type", "-t", help="The type of its data: JSON messages, or any other bytes."
        ),
    ] = "application/json",
    ttl_s: Annotated[
        int | None,
        typer.Option(min=0, help="Expires when unused for this many seconds. Default: never."),
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Expires then (RFC 3339). Default: never.")
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Create a stream (fine when it exists with the same settings).

    \b
    Example:
      octavo stream create events
    """
    if ttl_s is not None and expires_at is not None:
        raise BadOption("--ttl-s and --expires-at at once: choose one")
    until = None if expires_at is None else _time(expires_at)

    created = _ask(
        url, data, stream, lambda one: one.create(content_type, ttl_s=ttl_s, expires_at=until)
    )
    if as_json:
        emit_json({"stream": str(TopicName.of(stream)), "created": created})
    else:
        say(f"created {stream}" if created else f"{stream} is there already")


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadOption(f"--expires-at {text!r}: write a time with its zone, 2026-12-24T18:00:00Z")
    return found


@app.command()
def append(
    stream: StreamArgument,
    messages: Annotated[
        list[str] | None,
        typer.Argument(help="Append all of them or none. Without messages, read stdin."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read a file ('-': stdin).")
    ] = None,
    seq: Annotated[
        str | None,
        typer.Option(help="Refuse the append unless this sorts after the last append's --seq."),
    ] = None,
    close: Annotated[bool, typer.Option("--close", help="Then end the stream for good.")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Append messages; end when all are durable.

    For a JSON stream, each argument or line is a message. Other streams get the bytes unchanged.

    \b
    Examples:
      octavo stream append events '{"order": 1}' '{"order": 2}'
      tail -f orders.ndjson | octavo stream append events
    """
    if messages and file:
        raise BadOption("messages on the command line and --file at once: choose one")
    if seq is not None and not messages:
        raise BadOption("--seq covers a single append: give its messages on the command line")
    if not messages and file is None and sys.stdin.isatty():
        raise BadOption("nothing to append: give messages, --file FILE, or pipe them in")

    async def run(target: AsyncStream) -> dict[str, Any]:
        info = await target.head()
        count, end = 0, info.next_offset
        with opened(file) as source:
            for part in _given(messages, info) if messages else _read(source, info):
                add = target.append if isinstance(part, bytes) else target.append_many
                end = (await add(part, seq=seq)).next_offset
                count += len(part)
        if close:
            await target.close()
        what = "messages" if info.is_json else "bytes"
        return {what: count, "next_offset": end, "closed": close or info.closed}

    found = _ask(url, data, stream, run)
    if as_json:
        emit_json(found)
    else:
        what, many = next(iter(found.items()))
        say(f"{many:,} {what} appended, {_place(found['next_offset'], closed=found['closed'])}")


def _given(messages: list[str], info: StreamInfo) -> Iterator[bytes | list[Raw]]:
    texts = [os.fsencode(message) for message in messages]
    if info.is_json:
        yield [_json(text, f"message {number}") for number, text in enumerate(texts, 1)]
    else:
        yield b"".join(texts)


def _read(source: BufferedReader, info: StreamInfo) -> Iterator[bytes | list[Raw]]:
    if not info.is_json:
        while piece := source.read1(APPEND_BYTES):
            yield piece
        return
    number, rest = 0, b""
    while piece := source.read1(APPEND_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > MESSAGE_BYTES_MAX:
            where = f"line {number + len(lines) + 1}"
            raise BadLine(f"{where} is too long: a message has at most {MESSAGE_BYTES_MAX:,} bytes")
        yield from _batches(lines, number)
        number += len(lines)
    yield from _batches([rest], number)


def _batches(lines: list[bytes], before: int) -> Iterator[list[Raw]]:
    batch: list[Raw] = []
    size = 0
    for number, line in enumerate(lines, before + 1):
        text = line.strip()
        if not text:
            continue
        if batch and size + len(text) > APPEND_BYTES:
            yield batch
            batch, size = [], 0
        try:
            message = _json(text, f"line {number}")
        except BadLine as error:
            if batch:
                yield batch
            raise BadLine(f"{error}; the lines before it are appended") from None
        batch.append(message)
        size += len(text) + RECORD_OVERHEAD_BYTES
    if batch:
        yield batch


def _json(text: bytes, where: str) -> Raw:
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise BadLine(
            f"{where} must be JSON, as the stream is ({error}): write text in quotes"
        ) from None
    return Raw(text)


@app.command()
def read(
    stream: StreamArgument,
    start: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="earliest, latest, or a next offset.")
    ] = "earliest",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more until it is closed, or Ctrl-C.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object a line: data, and the next offset.")
    ] = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Print a stream: JSON messages one a line, other data byte for byte.

    \b
    Example:
      octavo stream read events
    """
    urls = broker_urls(url, data)
    printer = _Printer(_PLACES.get(start, start), as_json=as_json)

    async def run() -> None:
        from octavo.client.client import AsyncClient

        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        async with (
            AsyncClient(urls, on_retry=Waiting()) as client,
            aclosing(_parts(client.stream(stream), printer.offset, follow=follow)) as parts,
        ):
            async for part in parts:
                printer.show(part)

    try:
        with _known(stream):
            asyncio.run(run())
    except asyncio.CancelledError:
        pass
    say(_place(printer.offset, closed=printer.closed))


async def _parts(
    stream: AsyncStream, start: str, *, follow: bool
) -> AsyncGenerator[StreamPart, None]:
    if follow:
        async with aclosing(stream.follow(start)) as parts:
            async for part in parts:
                yield part
        return
    while True:
        part = await stream.read(start)
        yield part
        if part.up_to_date:
            return
        start = part.next_offset


class _Printer:
    def __init__(self, offset: str, *, as_json: bool) -> None:
        self.offset = offset
        self.closed = False
        self._json = as_json

    def show(self, part: StreamPart) -> None:
        if self._json:
            said = {"next_offset": part.next_offset, "closed": part.closed}
            emit_raw(msgspec.json.encode({**_data(part), **said}))
        elif part.is_json:
            for value in _messages(part):
                emit_raw(bytes(value))
        else:
            emit_bytes(part.data)
        sys.stdout.flush()
        self.offset, self.closed = part.next_offset, part.closed


def _data(part: StreamPart) -> dict[str, Any]:
    """Return `messages` of JSON; else `text`, or `base64` if a part alone is not UTF-8."""
    if part.is_json:
        return {"messages": _messages(part)}
    try:
        return {"text": part.data.decode()}
    except UnicodeDecodeError:
        return {"base64": part.data}


def _messages(part: StreamPart) -> list[Raw]:
    return msgspec.json.decode(msgspec.json.format(part.data or b"[]", indent=-1), type=list[Raw])


def _place(offset: str, *, closed: bool) -> str:
    return f"next offset {offset}" + (", closed" if closed else "")


@app.command()
def close(
    stream: StreamArgument,
    message: Annotated[str | None, typer.Argument(help="Its last message.")] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """End a stream for good: no data will follow, and readers learn it.

    \b
    Example:
      octavo stream close events
    """

    async def end(target: AsyncStream) -> str:
        if message is None:
            return await target.close()
        text = os.fsencode(message)
        is_json = (await target.head()).is_json
        return await target.close(_json(text, "the message") if is_json else text)

    last = _ask(url, data, stream, end)
    if as_json:
        emit_json({"next_offset": last, "closed": True})
    else:
        say(_place(last, closed=True))


@app.command()
def fork(
    stream: StreamArgument,
    name: Annotated[str, typer.Argument(help="Name of the new stream, in the same namespace.")],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="OFFSET",
            help="A next offset; data from there on are left out. Default: take all.",
        ),
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Fork a stream: create a stream that begins with its data, without copying them.

    \b
    Example:
      octavo stream fork events events-again
    """
    target = name if "/" in name else f"{TopicName.of(stream).namespace}/{name}"

    async def make(source: AsyncStream) -> tuple[str, StreamInfo]:
        return await _described(await source.fork(target, at))

    _show(*_ask(url, data, stream, make), as_json=as_json)


@app.command()
def show(
    stream: StreamArgument, url: Url = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Show a stream's settings and its end.

    \b
    Example:
      octavo stream show events
    """

    _show(*_ask(url, data, stream, _described), as_json=as_json)


async def _described(stream: AsyncStream) -> tuple[str, StreamInfo]:
    return stream.name, await stream.head()


def _show(name: str, info: StreamInfo, *, as_json: bool) -> None:
    fields = {"stream": name, **info._asdict()}
    if info.expires_at is not None:
        fields["expires_at"] = info.expires_at.isoformat()
    if as_json:
        emit_json(fields)
    else:
        emit_fields(fields)


@app.command()
def delete(stream: StreamArgument, yes: Yes = False, url: Url = None, data: Data = None) -> None:
    """Delete a stream; its name stays taken while it has forks.

    \b
    Example:
      octavo stream delete events --yes
    """
    if not yes:
        typer.confirm(f"Delete {stream} and everything in it?", abort=True, err=True)
    _ask(url, data, stream, lambda one: one.delete())
    say(f"deleted {stream}")
