"""A broker that gave no answer is avoided for a while, until it answers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from octavo.client import transport as transports
from octavo.client.errors import Unreachable
from octavo.client.incarnation import Incarnation
from octavo.client.transport import SILENT_S, Transport
from octavo.client.wire import NoAnswer, Reply, Streamed

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
