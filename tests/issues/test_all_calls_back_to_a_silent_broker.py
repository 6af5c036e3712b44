"""Calls that failed together at a silent broker all went back to it, again and again.

Each that got no answer moved the client on by one broker: of two brokers an even number of them
moved it nowhere. A publisher with several batches under way waited minutes for a broker that slept
(SIGSTOP) while the other one owned the partitions long since. Found by
tests/process/test_stopped_past_session.py over ZooKeeper.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from octavo.client.errors import Unreachable
from octavo.client.transport import Transport

ATTEMPT_S = 0.3


class Broker:
    """Answers as it is told: `ok`, `busy`, or not at all."""

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
    """Right after its owner fell silent a partition has none: 503 for a while."""
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
