"""The well-behaved client: it publishes all the time, and knows what must be there."""

from __future__ import annotations

import asyncio
import bisect
import json
import time
from collections.abc import AsyncIterator, Iterator

import aiohttp

from tests.attack.world import World

PACE_S = 0.02
"""Between two of its messages: 50 a second, whatever the machine is busy with."""
SLOWEST_SHARE = 0.5


class Canary:
    """Publishes numbers to a topic of its own by whichever broker, and repeats what got no 2xx."""

    def __init__(self, world: World, topic: str = "canary") -> None:
        self._world = world
        self._topic = topic
        self._path = f"/v1/topics/public/{topic}/messages"
        self._task: asyncio.Task[None] | None = None
        self._acked: list[float] = []
        """When each message was acked."""
        self._first = asyncio.Event()
        self.slowest_s = 0.0

    async def start(self) -> None:
        """Make the topic and begin."""
        await self._world.topic(self._topic)
        self._task = asyncio.create_task(self._run())
        await self._first.wait()

    async def stop(self) -> list[str]:
        """End it; what is wrong with what it finds in its topic."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return [problem async for problem in self._audit()]

    def problems(self, since_s: float, share: float) -> Iterator[str]:
        """Whether it came forward since then, by this share of its pace or more."""
        assert self._task is not None
        if self._task.done():
            yield f"it ended: {self._task.exception()!r}"
        span_s = time.monotonic() - since_s
        wanted = span_s / PACE_S * share
        found = self.acked_since(since_s)
        if span_s > 1 and found < wanted:
            yield f"{found} messages were acked in {span_s:.1f} s, less than {share:g} of its pace"

    def acked_since(self, since_s: float) -> int:
        """How many messages were acked since then."""
        return len(self._acked) - bisect.bisect_left(self._acked, since_s)

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as session:
            number = 0
            due = time.monotonic()
            while True:
                due += PACE_S
                began = time.monotonic()
                await self._publish(session, number)
                number += 1
                self._acked.append(time.monotonic())
                self._first.set()
                self.slowest_s = max(self.slowest_s, self._acked[-1] - began)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                due = max(due, time.monotonic() - 1)

    async def _publish(self, session: aiohttp.ClientSession, number: int) -> None:
        headers = {"Producer-Id": "canary", "Producer-Epoch": "0", "Producer-Seq": str(number)}
        turn = number
        while True:
            host, port = self._world.brokers[turn % len(self._world.brokers)]
            turn += 1
            try:
                async with session.post(
                    f"http://{host}:{port}{self._path}",
                    data=b"message %d" % number,
                    headers={**headers, "Content-Type": "text/plain"},
                    timeout=aiohttp.ClientTimeout(total=20),
                ) as answer:
                    await answer.read()
                    if answer.status in (200, 204):
                        return
                    assert answer.status in (429, 503, 504), (answer.status, await answer.text())
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(PACE_S)

    async def _audit(self) -> AsyncIterator[str]:
        expected = 0
        offset = 0
        async with aiohttp.ClientSession() as session:
            host, port = self._world.brokers[0]
            while True:
                url = f"http://{host}:{port}{self._path}?from={offset}&limit=1000"
                async with session.get(url) as answer:
                    if answer.status == 204:
                        break
                    assert answer.status == 200, await answer.text()
                    messages = json.loads(await answer.read())["messages"]
                for message in messages:
                    if message["offset"] != offset:
                        yield f"offset {message['offset']} stands where {offset} should be"
                    if message.get("value_text") != f"message {expected}":
                        yield f"{message} stands where message {expected} should be"
                    offset, expected = message["offset"] + 1, expected + 1
        if expected < len(self._acked):
            yield f"{len(self._acked)} were acked, {expected} are there"
