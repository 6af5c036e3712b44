"""`Transport.stream`: one try at the partition's owner, and its error when the owner is silent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from octavo.client import doubt
from octavo.client.errors import NotFound, TopicReplaced, Unreachable
from octavo.client.incarnation import HEADER, Incarnation
from octavo.client.transport import Transport
from octavo.client.wire import Reply, Streamed

A, B = "http://a:1", "http://b:1"
KEY = ("public/t", 0)


class FakeWire:
    """Streams of an answer; `a` owns the partition, unless `owner` names another."""

    def __init__(self, status: int = 200, *, head_hangs: bool = False) -> None:
        self.owner = A
        self.status = status
        self.headers: dict[str, str] = {}
        self.body = b""
        self.pieces: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.head_hangs = head_hangs
        self.streams: list[tuple[str, Mapping[str, str]]] = []
        self.open = 0

    async def send(self, method: str, url: str, *_: Any, **__: Any) -> Reply:
        return Reply(200, {"Octavo-Owner": self.owner})

    @asynccontextmanager
    async def stream(
        self, url: str, params: Mapping[str, str], headers: Mapping[str, str], *, quiet_s: float
    ) -> AsyncIterator[Streamed]:
        self.streams.append((url, headers))
        if self.head_hangs:
            await asyncio.Event().wait()
        self.open += 1
        try:
            found = {"Octavo-Owner": self.owner, **self.headers}
            yield Streamed(Reply(self.status, found, self.body), self._pieces())
        finally:
            self.open -= 1

    async def _pieces(self) -> AsyncIterator[bytes]:
        while piece := await self.pieces.get():
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def close(self) -> None: ...


async def pieces_of(wire: FakeWire, of: Incarnation | None = None) -> list[bytes]:
    """Return all pieces. The owner is known beforehand."""
    transport = Transport([A, B], attempt_s=15, retry_s=60, rng=random.Random(1), wire=wire)
    found: list[bytes] = []
    try:
        await transport.call("GET", "/x", partition=KEY)
        stream = transport.stream(
            "/x", query={"from": 3}, headers={}, partition=KEY, wait_s=0.02, of=of or Incarnation()
        )
        async with aclosing(stream) as pieces:
            async for piece in pieces:
                found.append(piece)  # noqa: PERF401
    finally:
        assert wire.open == 0
        await transport.close()
    return found


async def test_pieces_as_they_come() -> None:
    wire = FakeWire()
    wire.headers[HEADER] = "one"
    for piece in (b"a", b"b", b""):
        wire.pieces.put_nowait(piece)
    of = Incarnation()
    assert await pieces_of(wire, of) == [b"a", b"b"]
    assert wire.streams == [(f"{A}/x", {})]
    assert of.seen == "one"


async def test_refusals() -> None:
    wire = FakeWire(404)
    with pytest.raises(NotFound):
        await pieces_of(wire)
    wire = FakeWire()
    wire.headers[HEADER] = "another"
    with pytest.raises(TopicReplaced):
        await pieces_of(wire, Incarnation("one"))
    assert wire.streams[0][1] == {HEADER: "one"}


async def test_one_that_breaks_off() -> None:
    wire = FakeWire()
    wire.pieces.put_nowait(ConnectionResetError("reset"))
    with pytest.raises(Unreachable, match="reset"):
        await pieces_of(wire)


@pytest.mark.parametrize("head_hangs", [True, False])
async def test_an_owner_that_vanished_is_left(
    head_hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host does not answer, not even with a refusal; another broker names the new owner."""
    monkeypatch.setattr(doubt, "SILENCE_S", 0.01)
    monkeypatch.setattr(doubt, "PAUSE_S", 0.01)
    wire = FakeWire(head_hangs=head_hangs)
    task = asyncio.create_task(pieces_of(wire))
    await asyncio.sleep(0.1)
    assert not task.done(), "one that is only slow keeps its readers"
    wire.owner = B
    with pytest.raises(Unreachable):
        await asyncio.wait_for(task, 10)
