"""The client's transport: silent brokers, streams, and doubts about owners."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from octavo.client import doubt
from octavo.client import transport as transports
from octavo.client.doubt import Doubts, PartitionKey
from octavo.client.errors import NotFound, TopicReplaced, Unreachable
from octavo.client.incarnation import HEADER, Incarnation
from octavo.client.transport import SILENT_S, Transport
from octavo.client.wire import NoAnswer, Reply, Streamed
from tests.support.kit.quiescence import in_use

A, B, C = "http://a:1", "http://b:1", "http://c:1"
KEY = ("public/t", 0)


class ByHand:
    """The test answers or loses each call; `a` owns the partition."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, asyncio.Future[Reply]]] = []

    async def send(self, method: str, url: str, *_: Any, **__: Any) -> Reply:
        answer = asyncio.get_running_loop().create_future()
        self.asked.append((url[: len(A)], answer))
        return await answer

    @asynccontextmanager
    async def stream(
        self, url: str, params: Mapping[str, str], headers: Mapping[str, str], *, quiet_s: float
    ) -> AsyncIterator[Streamed]:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"piece"

        yield Streamed(Reply(200, {"Octavo-Owner": A}), pieces())

    async def close(self) -> None: ...

    async def next_asked(self, number: int) -> str:
        async with asyncio.timeout(5):
            while len(self.asked) <= number:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return self.asked[number][0]

    def answer(self, number: int, status: int = 200) -> None:
        self.asked[number][1].set_result(Reply(status, {"Octavo-Owner": A}))

    def lose(self, number: int) -> None:
        self.asked[number][1].set_exception(NoAnswer("lost"))


@pytest.fixture
async def wire() -> ByHand:
    return ByHand()


@pytest.fixture
async def transport(wire: ByHand) -> AsyncIterator[Transport]:
    found = Transport([A, B, C], attempt_s=60, retry_s=60, rng=random.Random(1), wire=wire)
    first = asyncio.create_task(found.call("GET", "/x", partition=KEY))
    await wire.next_asked(0)
    wire.answer(0)
    await first
    yield found
    await found.close()


async def calls(transport: Transport, wire: ByHand, count: int) -> list[asyncio.Task[Any]]:
    before = len(wire.asked)
    made = [asyncio.create_task(transport.call("GET", "/x", partition=KEY)) for _ in range(count)]
    await wire.next_asked(before + count - 1)
    return made


async def one_is_lost(transport: Transport, wire: ByHand) -> asyncio.Task[Any]:
    """Make two calls at the owner, of which the first is lost and continues at another broker."""
    lost, other = await calls(transport, wire, 2)
    assert [url for url, _ in wire.asked[1:]] == [A, A]
    wire.lose(1)
    assert await wire.next_asked(3) != A
    wire.answer(3)
    await lost
    return other


async def test_it_is_passed_by_until_it_answers(transport: Transport, wire: ByHand) -> None:
    other = await one_is_lost(transport, wire)
    (going_by,) = await calls(transport, wire, 1)
    assert wire.asked[4][0] != A
    wire.answer(4)
    await going_by
    wire.answer(2)
    await other
    (straight,) = await calls(transport, wire, 1)
    assert wire.asked[5][0] == A, "it has answered"
    wire.answer(5)
    await straight


@pytest.mark.parametrize("status", [404, 503])
async def test_a_refusal_is_an_answer(transport: Transport, wire: ByHand, status: int) -> None:
    other = await one_is_lost(transport, wire)
    wire.answer(2, status)
    if status == 503:
        await wire.next_asked(4)
        wire.answer(4)
    await asyncio.gather(other, return_exceptions=True)
    assert not transport._silent_until.get(A)


async def test_a_stream_that_begins_is_an_answer(
    transport: Transport, wire: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are silent, so the stream goes to the broker that was lost first."""
    other = await one_is_lost(transport, wire)
    for url in (B, C):
        transport._no_answer(url)
    stream = transport.stream("/x", query={}, headers={}, partition=KEY, wait_s=1, of=Incarnation())
    async with aclosing(stream) as pieces:
        assert await anext(pieces) == b"piece"
    assert A not in transport._silent_until
    wire.answer(2)
    await other


async def test_who_says_who_the_owner_is_has_answered(transport: Transport, wire: ByHand) -> None:
    transport._no_answer(B)
    transport._no_answer(C)
    asking = asyncio.create_task(transport._ask_owner(KEY, A))
    assert await wire.next_asked(1) == B
    wire.answer(1)
    assert await asking == A
    assert transport._silent_until.keys() == {C}


async def test_brokers_that_are_gone_are_forgotten(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers in containers have another address after each start."""
    monkeypatch.setattr(transports, "SILENT_S", 0.0)
    for number in range(100):
        transport._no_answer(f"http://10.0.0.{number}:1")
    assert len(transport._silent_until) <= 1
    monkeypatch.undo()
    loop = asyncio.get_running_loop()
    transport._no_answer(A)
    assert transport._silent_until[A] == pytest.approx(loop.time() + SILENT_S, abs=1)


# Calls that failed together each moved the client on by one broker: of two brokers, an even number
# of calls all went back to the silent one, for minutes.

ATTEMPT_S = 0.3


class Broker:
    """Answers as set: `ok`, `busy`, or not at all."""

    def __init__(self) -> None:
        self.mood = "ok"
        self.calls = 0
        self.url = ""

    async def answer(self, _: web.Request) -> web.Response:
        self.calls += 1
        if self.mood == "silent":
            await asyncio.Event().wait()
        if self.mood == "busy":
            return web.json_response({"code": "not-ready", "retryable": True}, status=503)
        return web.json_response({}, headers={"Octavo-Owner": self.url})


@contextlib.asynccontextmanager
async def two_brokers() -> AsyncIterator[tuple[Broker, Broker, Transport]]:
    brokers = (Broker(), Broker())
    async with contextlib.AsyncExitStack() as stack:
        for broker in brokers:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", broker.answer)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            broker.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        urls = [broker.url for broker in brokers]
        transport = Transport(urls, attempt_s=ATTEMPT_S, retry_s=20, rng=random.Random(1))
        stack.push_async_callback(transport.close)
        yield *brokers, transport


@pytest.mark.parametrize("calls", [1, 2, 3, 8])
async def test_one_silent_broker_costs_one_attempt(calls: int) -> None:
    async with two_brokers() as (silent, good, transport):
        silent.mood = "silent"
        await asyncio.gather(*(transport.call("GET", "/x") for _ in range(calls)))
        assert silent.calls == calls, "nobody came back"
        assert good.calls == calls
        await transport.call("GET", "/x")
        assert silent.calls == calls


async def test_a_refusal_does_not_lead_back_to_it() -> None:
    """Right after its owner fell silent, a partition has none: 503 for a while."""
    async with two_brokers() as (silent, good, transport):
        await transport.call("GET", "/x", partition=("t", 0))
        silent.mood, good.mood = "silent", "busy"
        pending = asyncio.gather(
            *(transport.call("GET", "/x", partition=("t", 0)) for _ in range(4))
        )
        async with asyncio.timeout(10):
            while good.calls < 8:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        good.mood = "ok"
        await pending
        assert silent.calls == 1 + 4


async def test_when_all_are_silent_all_are_asked() -> None:
    async with two_brokers() as (one, other, transport):
        one.mood = other.mood = "silent"
        with pytest.raises(Unreachable):
            await transport.call("GET", "/x", retry_s=4 * ATTEMPT_S)
        assert one.calls
        assert other.calls
        one.mood = other.mood = "ok"
        await transport.call("GET", "/x")


# `Transport.stream`: one try at the partition's owner, and its error when the owner is silent.
A_TRANSPORT_STREAM, B_TRANSPORT_STREAM = "http://a:1", "http://b:1"


class FakeWire:
    """Streams of an answer; `a` owns the partition, unless `owner` names another."""

    def __init__(self, status: int = 200, *, head_hangs: bool = False) -> None:
        self.owner = A_TRANSPORT_STREAM
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
    transport = Transport(
        [A_TRANSPORT_STREAM, B_TRANSPORT_STREAM],
        attempt_s=15,
        retry_s=60,
        rng=random.Random(1),
        wire=wire,
    )
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
    assert wire.streams == [(f"{A_TRANSPORT_STREAM}/x", {})]
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
    wire.owner = B_TRANSPORT_STREAM
    with pytest.raises(Unreachable):
        await asyncio.wait_for(task, 10)


# Silent owners: the other brokers are asked as long as a call waits, and no longer.
@pytest.mark.parametrize("ends", ["answered", "failed", "cancelled"])
@pytest.mark.parametrize("calls", [1, 3])
async def test_others_are_asked_no_more_when_the_calls_have_ended(
    monkeypatch: pytest.MonkeyPatch, ends: str, calls: int
) -> None:
    monkeypatch.setattr(doubt, "SILENCE_S", 0.0)
    monkeypatch.setattr(doubt, "PAUSE_S", 0.0)
    asked, is_asked, goes_on = 0, asyncio.Event(), asyncio.Event()

    async def ask(_: PartitionKey, __: str) -> str | None:
        nonlocal asked
        asked += 1
        is_asked.set()
        return None

    async def attempt() -> None:
        await goes_on.wait()
        if ends == "failed":
            raise ConnectionError

    doubts = Doubts(ask)
    waiting = [
        asyncio.create_task(doubts.unless_moved("http://a", ("t", 0), attempt(), 0.0))
        for _ in range(calls)
    ]
    async with asyncio.timeout(10):
        await is_asked.wait()
        if ends == "cancelled":
            for one in waiting:
                one.cancel()
        goes_on.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.gather(*doubts._tasks)
    assert in_use(doubts) == {}
    assert not doubts._tasks
    before = asked
    for _ in range(5):
        await asyncio.sleep(0)
    assert asked == before
    await doubts.close()
