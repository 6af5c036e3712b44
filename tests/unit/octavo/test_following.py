"""A partition followed by the client: streams that end, break off or are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import pytest

from octavo.client import following
from octavo.client.errors import ApiError, NotFound, Trimmed, Unreachable
from octavo.client.incarnation import Incarnation
from octavo.client.transport import NEXT_OFFSET, Answer, Transport
from octavo.client.types import TopicName
from octavo.protocol.batch import InvalidBatch, whole_batches, with_base_offset
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.records import Record, build_batch

BROKE_OFF = Unreachable("broke off")
FULL = ApiError(503, {"code": "too-many-streams"}, "GET")
OLDER = ApiError(400, {"code": "invalid-parameter"}, "GET")


def batch(offset: int, count: int = 1) -> bytes:
    records = [Record(None, b"%d" % (offset + n), timestamp_ms=n) for n in range(count)]
    return with_base_offset(build_batch(records), offset)


class Script:
    """Brokers' answers, in turn: `("read", wait, offset, body)`, `("stream", offset, pieces)`.
    An error as a piece or body is raised."""

    def __init__(self, *lines: tuple[Any, ...]) -> None:
        self.lines = list(lines)
        self.asked: list[tuple[Any, ...]] = []
        self.open = 0

    async def call(self, method: str, path: str, *, query: Any, **_: Any) -> Answer:
        line = self._next("read", float(query["wait"] or 0.0), query["from"])
        body = line[3]
        if isinstance(body, Exception):
            raise body
        following_offset = line[2] if not body else None
        headers = {} if following_offset is None else {NEXT_OFFSET: str(following_offset)}
        return Answer(200 if body else 204, headers, body)

    async def stream(self, path: str, *, query: Any, **_: Any) -> AsyncGenerator[bytes, None]:
        line = self._next("stream", query["from"])
        self.open += 1
        try:
            for piece in line[2]:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self.open -= 1

    def _next(self, *asked: Any) -> tuple[Any, ...]:
        self.asked.append(asked)
        assert self.lines, f"the script is at its end, and the client asks {asked}"
        line = self.lines.pop(0)
        assert line[: len(asked)] == asked
        return line


async def followed(script: Script, start: str | int = 0) -> AsyncIterator[int]:
    found = following.pages(
        cast(Transport, script), TopicName("public", "t"), 0, start,
        of=Incarnation(), follow=True, compacted=False,
    )  # fmt: skip
    async with aclosing(found) as pages:
        async for page in pages:
            for message in page:
                assert message.value == b"%d" % message.offset
                yield message.offset


async def first(script: Script, count: int, start: str | int = 0) -> list[int]:
    offsets = []
    async with aclosing(cast(Any, followed(script, start))) as found:
        async for offset in found:
            offsets.append(offset)
            if len(offsets) == count:
                break
    assert script.open == 0, "a stream stayed open"
    return offsets


async def test_reads_to_the_end_then_one_stream() -> None:
    script = Script(
        ("read", 0.0, 0, batch(0, 3)),
        ("read", 0.0, 3, b""),
        ("stream", 3, [batch(3), batch(4, 2), batch(6)]),
    )
    assert await first(script, 7) == [*range(7)]
    assert script.lines == []


async def test_pieces_are_cut_anywhere() -> None:
    data = batch(3) + batch(4, 2) + batch(6)
    for size in (1, 7, 61, len(data) - 1, len(data)):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        script = Script(("read", 0.0, 3, b""), ("stream", 3, pieces))
        assert await first(script, 4, start=3) == [3, 4, 5, 6]


async def test_a_batch_that_begins_earlier() -> None:
    script = Script(("read", 0.0, 5, b""), ("stream", 5, [batch(3, 4)]))
    assert await first(script, 2, start=5) == [5, 6]


@pytest.mark.parametrize("ends", [[], [BROKE_OFF], [batch(9)[:40], BROKE_OFF]])
async def test_goes_on_where_the_stream_ended(ends: list[Any]) -> None:
    """After an orderly end, an interruption, or a break within a batch: no gap, no repeat."""
    script = Script(
        ("read", 0.0, 8, b""),
        ("stream", 8, [batch(8), *ends]),
        ("read", 0.0, 9, batch(9)),
        ("read", 0.0, 10, b""),
        ("stream", 10, [batch(10)]),
    )
    assert await first(script, 3, start=8) == [8, 9, 10]


async def test_who_waits_polls() -> None:
    """After an empty stream, long polls follow until a message comes."""
    wait_s = following.WAIT_S
    script = Script(
        ("read", 0.0, 8, b""),
        ("stream", 8, []),
        ("read", wait_s, 8, b""),
        ("read", wait_s, 8, b""),
        ("read", wait_s, 8, batch(8)),
        ("read", 0.0, 9, b""),
        ("stream", 9, [batch(9)]),
    )
    assert await first(script, 2, start=8) == [8, 9]


async def test_one_that_broke_off_is_no_reason_to_have_no_other() -> None:
    script = Script(
        ("read", 0.0, 0, b""),
        ("stream", 0, [BROKE_OFF]),
        ("read", following.WAIT_S, 0, batch(0)),
        ("read", 0.0, 1, b""),
        ("stream", 1, [batch(1)]),
    )
    assert await first(script, 2) == [0, 1]


@pytest.mark.parametrize("refused", [FULL, OLDER])
async def test_without_streams_it_is_polls(
    refused: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message costs one call, and for a while no stream is tried again."""
    wait_s = following.WAIT_S
    script = Script(
        ("read", 0.0, 0, b""),
        ("stream", 0, [refused]),
        *[("read", wait_s, offset, batch(offset)) for offset in range(5)],
    )
    assert await first(script, 5) == [*range(5)]
    monkeypatch.setattr(following, "STREAM_AGAIN_S", 0.0)
    script = Script(
        ("read", 0.0, 0, b""),
        ("stream", 0, [refused]),
        ("read", wait_s, 0, batch(0)),
        ("read", 0.0, 1, b""),
        ("stream", 1, [batch(1)]),
    )
    assert await first(script, 2) == [0, 1]


@pytest.mark.parametrize(
    "error",
    [
        NotFound(404, {"detail": "there is no topic"}, "GET"),
        Trimmed(410, {"earliest_offset": 50}, "GET"),
        ApiError(416, {"code": "offset-beyond-end"}, "GET"),
    ],
)
async def test_what_is_for_good_is_said_by_a_call(error: ApiError) -> None:
    with pytest.raises(type(error)):
        await first(Script(("read", 0.0, 7, error)), 1, start=7)
    script = Script(
        ("read", 0.0, 7, b""), ("stream", 7, [batch(7), error]), ("read", 0.0, 8, error)
    )
    with pytest.raises(type(error)):
        await first(script, 2, start=7)
    script = Script(
        ("read", 0.0, 7, b""), ("stream", 7, [error]), ("read", following.WAIT_S, 7, error)
    )
    with pytest.raises(type(error)):
        await first(script, 1, start=7)


async def test_damage_on_the_way_is_said() -> None:
    damaged = bytearray(batch(1))
    damaged[-1] ^= 1
    script = Script(("read", 0.0, 1, b""), ("stream", 1, [bytes(damaged)]))
    with pytest.raises(InvalidBatch):
        await first(script, 1, start=1)
    assert script.open == 0


def test_no_batch_is_waited_for_that_is_too_long() -> None:
    whole = batch(0, 3)
    assert whole_batches(whole[:-1]) == 0
    assert whole_batches(whole + whole[:20]) == len(whole)

    def claiming(size: int) -> bytes:
        return whole[:8] + (size - 12).to_bytes(4, "big") + whole[12:]

    assert whole_batches(claiming(ENTRY_PAYLOAD_BYTES_MAX)) == 0
    for size in (ENTRY_PAYLOAD_BYTES_MAX + 1, 60):
        with pytest.raises(InvalidBatch, match="claims"):
            whole_batches(claiming(size))


async def test_leaving_closes_the_stream() -> None:
    """Also while it waits for the next message, as by Ctrl-C."""
    opened = asyncio.Event()

    class Waiting(Script):
        async def stream(self, path: str, *, query: Any, **_: Any) -> AsyncGenerator[bytes, None]:
            self.open += 1
            try:
                yield batch(0)
                opened.set()
                await asyncio.Event().wait()
            finally:
                self.open -= 1

    script = Waiting(("read", 0.0, 0, b""))
    task = asyncio.create_task(first(script, 2))
    await opened.wait()
    assert script.open == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.open == 0
