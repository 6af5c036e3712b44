"""Large messages: send and read bodies as streams.

Each upload has a name, so that a repeat is stored once. A body that is read is checked against the
broker's length and checksum.
"""

from __future__ import annotations

import asyncio
import os
import reprlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from octavo.client.errors import InvalidCall
from octavo.client.incarnation import Incarnation
from octavo.client.transport import Transport
from octavo.client.types import Headers, Position, TopicName, header_pairs, key_bytes, plain_text
from octavo.protocol.checksum import crc32c
from octavo.protocol.large import BrokenBody

Source = bytes | os.PathLike[str]
PART_BYTES = 256 * 1024
"""Bytes of a file that are read and sent at a time."""
SLOWEST_BYTES_S = 512 * 1024
"""A slower transfer (bytes a second) counts as lost, and is repeated."""
CRC_HEADER = "Octavo-Crc32c"


async def upload(
    transport: Transport,
    name: TopicName,
    source: Source,
    headers: Mapping[str, str],
    partition: int | None,
    of: Incarnation,
) -> Position:
    if not isinstance(source, bytes | bytearray | memoryview | str | os.PathLike):
        raise InvalidCall(
            "the body of a large message must be bytes or the path of a file, "
            f"not {reprlib.repr(source)}"
        )
    if isinstance(source, bytearray | memoryview):
        source = bytes(source)
    if isinstance(source, str):
        plain_text(source, "the path of the body")
    size = await asyncio.to_thread(_size_of, source)
    where = "" if partition is None else f"/partitions/{partition}"
    answer = await transport.call(
        "POST",
        f"/v1/topics/{name}{where}/large",
        body=_parts(source),
        headers={**headers, "Content-Type": "application/octet-stream"},
        partition=None if partition is None else (str(name), partition),
        wait_s=size / SLOWEST_BYTES_S,
        of=of,
    )
    found: dict[str, Any] = answer.json()
    return Position(
        found["partition"], found["offset"], found["id"], bool(found.get("duplicate", False))
    )


def _size_of(source: Source) -> int:
    return len(source) if isinstance(source, bytes) else Path(source).stat().st_size


def _parts(source: Source) -> Callable[[], AsyncIterator[bytes]]:
    async def parts() -> AsyncIterator[bytes]:
        if isinstance(source, bytes):
            for start in range(0, len(source), PART_BYTES):
                yield source[start : start + PART_BYTES]
            return
        opened = await asyncio.to_thread(Path(source).open, "rb")
        try:
            while part := await asyncio.to_thread(opened.read, PART_BYTES):
                yield part
        finally:
            opened.close()

    return parts


def head_of(
    name: str,
    key: str | bytes | None,
    headers: Headers | None,
    timestamp_ms: int | None,
    deliver_at_ms: int | None,
) -> dict[str, str]:
    head = {"Octavo-Upload": name}
    if key is not None:
        head["Octavo-Key"] = _text("the key", key_bytes(key))
    for header, value in header_pairs(headers):
        named = f"Octavo-Header-{header}"
        if header != header.lower() or not header.isascii() or not _is_token(header):
            raise InvalidCall(
                f"header {header[:60]!r} of a large message: only small letters, digits, - and _"
            )
        if named in head:
            raise InvalidCall(f"header {header!r} of a large message is given twice")
        head[named] = _text(f"header {header!r}", value)
    if timestamp_ms is not None:
        head["Octavo-Timestamp"] = str(timestamp_ms)
    if deliver_at_ms is not None:
        head["Octavo-Deliver-At"] = str(deliver_at_ms)
    return head


def _is_token(text: str) -> bool:
    return bool(text) and text.replace("-", "").replace("_", "").isalnum()


def _text(what: str, value: bytes | None) -> str:
    try:
        text = (value or b"").decode()
    except UnicodeDecodeError:
        text = "\0"
    if value is None or not text.isprintable() or text != text.strip():
        raise InvalidCall(
            f"{what} of a large message is {value!r:.80}: it is sent as an HTTP header, so it must "
            "be text without blanks around it"
        )
    return text


async def body_of(
    transport: Transport, name: TopicName, partition: int, offset: int, of: Incarnation
) -> AsyncGenerator[bytes, None]:
    told: dict[str, str] = {}
    found = transport.stream(
        f"/v1/topics/{name}/partitions/{partition}/messages/{offset}/body",
        query={},
        headers={},
        partition=(str(name), partition),
        wait_s=0.0,
        of=of,
        on_head=told.update,
    )
    size = crc = 0
    async with aclosing(found) as parts:
        async for part in parts:
            size, crc = size + len(part), crc32c(part, crc)
            yield part
    expected = told.get(CRC_HEADER)
    if expected is not None and expected != f"{crc:08x}":
        raise BrokenBody(
            f"the body of message {offset} in {name}/{partition} arrived with {size} bytes and "
            f"checksum {crc:08x}, not {expected}: read it again"
        )
