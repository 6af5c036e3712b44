"""`AsyncStream`: a durable stream, by the Durable Streams protocol.

Appends have a producer id and a number, so that a repeat is stored once. After an unknown outcome
the next append begins a new producer epoch, in which brokers refuse the earlier append.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from octavo.client.errors import ApiError, InvalidCall
from octavo.client.incarnation import Incarnation
from octavo.client.json_values import json_bytes
from octavo.client.of_this_process import OfThisProcess
from octavo.client.transport import JSON_TYPE, Answer, Transport
from octavo.client.types import TopicName, listed, plain_text, whole_number

BEGINNING = "-1"
"""The first message that is still stored."""
NOW = "now"
"""The stream's end, as a starting point."""
POLL_S = 60.0
"""Brokers answer a long poll at the latest after `http.stream_poll_ms`, half of this by default."""
_NAME_BYTES = 8
_OFFSET, _CLOSED = "Stream-Next-Offset", "Stream-Closed"


class StreamInfo(NamedTuple):
    """The properties of a stream."""

    content_type: str
    next_offset: str
    closed: bool
    ttl_s: int | None
    """Seconds without use after which the stream expires; None: it does not."""
    expires_at: datetime | None

    @property
    def is_json(self) -> bool:
        """Whether it holds JSON values; otherwise it holds bytes."""
        return _is_json(self.content_type)


class Appended(NamedTuple):
    """An append that is durable."""

    next_offset: str
    duplicate: bool
    """Whether an earlier attempt had stored it."""


class StreamPart(NamedTuple):
    """The answer of a read."""

    data: bytes
    """The data as appended; an array for JSON. Empty: there are none yet."""
    next_offset: str
    up_to_date: bool
    """Whether this was the end at that moment."""
    closed: bool
    """Whether this is the end for good."""
    is_json: bool

    @property
    def values(self) -> list[Any]:
        """Decode the messages of a JSON stream. Raises `InvalidCall` for any other stream."""
        if not self.is_json:
            raise InvalidCall("the stream is not JSON: use its bytes, in `data`")
        found: list[Any] = json.loads(self.data or b"[]")
        return found


class AsyncStream(OfThisProcess):
    """A durable stream, by its name; it need not exist yet. It needs no closing.

        events = client.stream("public/events")
        await events.create()                           # of JSON
        await events.append({"order": 1})
        async for part in events.follow():              # from the beginning, and as it grows
            print(part.values)

    Appends go one after the other: use `append_many` or several objects for more speed. Every call
    raises `NotFound` without such a stream, `Conflict` for a call that does not fit it
    (`stream-closed`, another content type, a topic that is not a stream), `Trimmed` if retention
    has removed an offset or a forked stream was deleted, `TopicReplaced` if it was created again,
    and the errors of `AsyncClient`.
    """

    def __init__(self, transport: Transport, name: TopicName, rng: random.Random) -> None:
        self.name = str(name)
        self._transport = transport
        self._rng = rng
        self._path = f"/v1/durable-streams/{name}"
        self._producer_id = f"py-{rng.getrandbits(8 * _NAME_BYTES):016x}"
        self._epoch = self._sequence = 0
        self._turn = asyncio.Lock()
        self._content_type = ""
        self._of = Incarnation()

    def __repr__(self) -> str:
        return f"AsyncStream({self.name})"

    async def create(
        self,
        content_type: str = JSON_TYPE,
        *,
        ttl_s: int | None = None,
        expires_at: datetime | None = None,
    ) -> bool:
        """Create the stream; return False when it exists already, of the same kind.

        Arguments:
            content_type: `application/json`: JSON values; anything else: bytes.
            ttl_s: seconds without a read or an append after which it expires.
            expires_at: the time, with a zone, at which it expires; not together with `ttl_s`.

        An existing topic with one partition becomes a stream; for JSON it must be empty. Raises
        `Conflict` when it exists with other settings.
        """
        headers = {"Content-Type": plain_text(content_type, "content_type")}
        if ttl_s is not None:
            headers["Stream-TTL"] = str(whole_number(ttl_s, "ttl_s"))
        if expires_at is not None:
            headers["Stream-Expires-At"] = _time_text(expires_at)
        return await self._put(headers)

    async def append(self, value: Any, *, seq: str | None = None) -> Appended:
        """Append one message; return when it is durable.

            await events.append({"order": 1})           # of JSON: any value, also a list
            await events.append(msgspec.Raw(b"1.50"))   # JSON that goes as it is written
            await story.append("Once upon a time")      # of anything else: bytes, or text (UTF-8)

        `seq`: brokers refuse the append (`Conflict`) unless this text sorts after the last `seq` of
        any client. Raises `Unreachable`, and `ApiError` with `can_retry`, when the message may be
        stored or not; the next append is stored after it, or instead of it.
        """
        return await self._append(await self._body(value), seq)

    async def append_many(self, values: Iterable[Any], *, seq: str | None = None) -> Appended:
        """Append several messages of a JSON stream: all or none. Otherwise as `append`.

        Raises `InvalidCall` without messages, or if the stream is not JSON.
        """
        if not await self._is_json():
            raise InvalidCall(
                f"{self.name} has the content type {self._content_type}: append values one by one"
            )
        found = listed(values, "values")
        if not found:
            raise InvalidCall("there are no values to append")
        return await self._append(_json_body(found), seq)

    async def close(self, value: Any = None) -> str:
        """End the stream for good, with a last message if given; return its last offset.

        May be repeated. Raises `Conflict` when a message is given and the stream was closed
        already.
        """
        if value is not None:
            return (await self._append(await self._body(value), None, closes=True)).next_offset
        answer = await self._call("POST", headers={_CLOSED: "true"})
        return answer.headers[_OFFSET]

    async def read(self, offset: str = BEGINNING) -> StreamPart:
        """Read from an offset on, as much as fits an answer (some 4 MiB).

        `offset`: a `next_offset`, `"-1"` (the beginning) or `"now"` (the end).
        """
        return await self._read(offset, {}, 0.0)

    async def follow(self, offset: str = BEGINNING) -> AsyncGenerator[StreamPart, None]:
        """Yield the data from an offset on, and new data at once, until the stream is closed.

            async for part in events.follow(last_offset):
                for value in part.values:
                    work(value)
                last_offset = part.next_offset          # keep it, to go on after a restart

        A part has data, or it is the last and says `closed`. While the owner is away the data
        pauses, without a gap or a repeat. Raises `Unreachable` when no broker answers for
        `retry_s`.
        """
        cursor: dict[str, str] = {}
        while True:
            part = await self._read(offset, {"live": "long-poll", **cursor}, POLL_S, cursor)
            offset = part.next_offset
            if part.data or part.closed:
                yield part
            if part.closed:
                return

    async def head(self) -> StreamInfo:
        """Return the stream's properties and its end. This does not extend its `ttl_s`."""
        try:
            answer = await self._call("HEAD")
        except ApiError:
            await self._call("GET", query={"offset": NOW})  # raises the reason: HEAD has no body
            raise
        said = answer.headers
        self._content_type = said.get("Content-Type", "")
        ttl, expires = said.get("Stream-TTL"), said.get("Stream-Expires-At")
        return StreamInfo(
            self._content_type,
            said[_OFFSET],
            said.get(_CLOSED) == "true",
            None if ttl is None else int(ttl),
            None if expires is None else datetime.fromisoformat(expires),
        )

    async def fork(self, name: str, offset: str | None = None) -> AsyncStream:
        """Create a stream of the same namespace that begins with this stream's data, uncopied.

        `offset`: a `next_offset`, where the fork ends; default: the end. It has the content type
        and times to live of this stream. Raises `Conflict` when another stream has the name.
        """
        target = TopicName.of(name)
        made = AsyncStream(self._transport, target, self._rng)
        await self._is_json()
        headers = {"Content-Type": self._content_type, "Stream-Forked-From": self._path}
        if offset is not None:
            headers["Stream-Fork-Offset"] = plain_text(offset, "offset")
        await made._put(headers)
        return made

    async def delete(self) -> None:
        """Delete the stream. While it has forks its name stays taken, and calls fail with 410."""
        await self._call("DELETE")

    # ---- calls

    async def _put(self, headers: Mapping[str, str]) -> bool:
        before, self._of = self._of.seen, Incarnation()
        answer = await self._call("PUT", headers=headers)
        if self._of.seen != before:
            self._sequence = 0  # a new stream, which does not know this producer
        self._content_type = answer.headers.get("Content-Type", "")
        return answer.status == 201

    async def _is_json(self) -> bool:
        if not self._content_type:
            await self.head()
        return _is_json(self._content_type)

    async def _body(self, value: Any) -> bytes:
        if await self._is_json():
            return _json_body([value])
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidCall(
                f"{self.name} has the content type {self._content_type}: append bytes or text, "
                f"not {type(value).__name__}"
            )
        return bytes(value)

    async def _append(self, body: bytes, seq: str | None, *, closes: bool = False) -> Appended:
        headers = {"Content-Type": self._content_type, "Producer-Id": self._producer_id}
        if seq is not None:
            headers["Stream-Seq"] = plain_text(seq, "seq")
        if closes:
            headers[_CLOSED] = "true"
        async with self._turn:
            headers["Producer-Epoch"] = str(self._epoch)
            headers["Producer-Seq"] = str(self._sequence)
            try:
                answer = await self._call("POST", headers=headers, body=body)
            except BaseException as error:
                if not isinstance(error, ApiError) or error.can_retry:
                    # The append may still arrive. In a new epoch brokers refuse it, and do not take
                    # the next append for its repeat.
                    self._epoch, self._sequence = self._epoch + 1, 0
                raise
            self._sequence += 1
        return Appended(answer.headers[_OFFSET], answer.status == 204)

    async def _read(
        self,
        offset: str,
        query: Mapping[str, str],
        wait_s: float,
        cursor: dict[str, str] | None = None,
    ) -> StreamPart:
        place = plain_text(offset, "offset")
        answer = await self._call("GET", query={"offset": place, **query}, wait_s=wait_s)
        said = answer.headers
        if cursor is not None and "Stream-Cursor" in said:
            cursor["cursor"] = said["Stream-Cursor"]
        if answer.body:
            self._content_type = said.get("Content-Type", self._content_type)
        return StreamPart(
            answer.body,
            said[_OFFSET],
            said.get("Stream-Up-To-Date") == "true",
            said.get(_CLOSED) == "true",
            await self._is_json(),
        )

    async def _call(
        self,
        method: str,
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        wait_s: float = 0.0,
    ) -> Answer:
        return await self._transport.call(
            method, self._path, query=query, body=body, headers=headers,
            partition=(self.name, 0), wait_s=wait_s, of=self._of,
        )  # fmt: skip


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == JSON_TYPE


def _json_body(values: list[Any]) -> bytes:
    # The outer array holds the messages, so that a value that is a list stays one message.
    return b"[%b]" % b",".join(map(json_bytes, values))


def _time_text(time: datetime) -> str:
    if not isinstance(time, datetime):
        raise InvalidCall(f"expires_at must be a datetime with a zone, not {time!r:.60}")
    if time.tzinfo is None:
        raise InvalidCall(f"expires_at is {time}, without a zone: use datetime.now(UTC) + …")
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
