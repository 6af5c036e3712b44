"""kill −9 of brokers during streams: events, lines, a WebSocket, the Python client. No message
is lost, no acked message comes again, order is kept. A stream outlives its owner; when its own
broker dies, its user opens it elsewhere. `OCTAVO_ROUNDS=200` makes it longer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import operator
import os
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from octavo import AsyncClient
from octavo.client.errors import ApiError, Conflict, Unreachable
from tests.support.processes.standalone import Standalone, standalone

pytestmark = pytest.mark.long

ROUNDS = int(os.environ.get("OCTAVO_ROUNDS", "6"))
PARTITIONS = 2
TOPIC = "/v1/topics/public/t"
LEASE_S = 5
SETTLE_S = 60
Place = tuple[int, int]


@pytest.mark.timeout(150 + 15 * ROUNDS)
def test_nothing_is_lost_and_nothing_acked_comes_again(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", "--session-timeout-ms", "2000") as one:
        asyncio.run(Rounds(one).run())


class Followed:
    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.begun = 0

    async def run(self, url: str) -> None:
        headers = {"Accept": "text/event-stream"}
        if self.offsets:
            headers["Last-Event-ID"] = str(self.offsets[-1])
        path = f"{url}{TOPIC}/partitions/0/messages"
        async with opened("GET", path, headers) as response:
            self.begun += 1
            async for line in response.content:
                if line.startswith(b"id: "):
                    self.offsets.append(int(line[4:]))


class Consumed:
    def __init__(self, name: str) -> None:
        self.name = name
        self.acked: set[Place] = set()
        self.times: dict[Place, int] = defaultdict(int)
        self.begun = 0
        self.wrong: list[str] = []
        self._last: dict[int, int] = {}

    def begins(self) -> None:
        self.begun += 1
        self._last.clear()

    def delivered(self, message: Any) -> str:
        place = partition, offset = message["partition"], message["offset"]
        self.times[place] += 1
        if place in self.acked:
            self.wrong.append(f"{self.name}: {place} came after its ack was answered")
        if message["delivery_count"] == 1:
            epoch = message["ack_id"].split("-")[2]
            at = hash((partition, epoch))
            if self._last.get(at, -1) >= offset:
                self.wrong.append(f"{self.name}: {place} came after {self._last[at]}")
            self._last[at] = offset
        return str(message["ack_id"])

    async def lines(self, url: str, acks: AsyncClient) -> None:
        subscription = acks.subscription("t", self.name)
        path = f"{url}{TOPIC}/subscriptions/{self.name}/stream?credits=200"
        async with opened("GET", path, {"Accept": "application/x-ndjson"}) as response:
            self.begins()
            async for line in response.content:
                found = json.loads(line)
                if "problem" in found:
                    return
                ack_id = self.delivered(found)
                with contextlib.suppress(Conflict):
                    await subscription.acknowledge({"ack_ids": [ack_id]})
                    self.acked.add((found["partition"], found["offset"]))

    async def socket(self, url: str, _: AsyncClient) -> None:
        path = f"{url}{TOPIC}/subscriptions/{self.name}/stream?credits=200"
        asked: dict[int, list[Place]] = {}
        numbers = itertools.count()
        async with aiohttp.ClientSession() as session, session.ws_connect(path) as ws:
            self.begins()
            async for frame in ws:
                said = json.loads(frame.data)
                if "messages" in said:
                    number = next(numbers)
                    asked[number] = [(one["partition"], one["offset"]) for one in said["messages"]]
                    ack_ids = [self.delivered(one) for one in said["messages"]]
                    await ws.send_json({"ack_ids": ack_ids, "request": number})
                elif "acked" in said:
                    self.acked.update(asked.pop(said["request"]))


@contextlib.asynccontextmanager
async def opened(
    method: str, url: str, headers: dict[str, str]
) -> AsyncIterator[aiohttp.ClientResponse]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.request(method, url, headers=headers) as response,
    ):
        response.raise_for_status()
        yield response


class Rounds:
    """One cluster, one publisher, three streams, and a killer of brokers."""

    def __init__(self, cluster: Standalone) -> None:
        self.cluster = cluster
        self.rng = random.Random(ROUNDS)
        self.followed = Followed()
        self.by_client: list[int] = []
        self.lines, self.socket = Consumed("lines"), Consumed("socket")
        self.sent: list[Place] = []
        self.over = False
        self.kept: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        async with AsyncClient(self.cluster.cluster.urls) as client:
            await client.create_topic("t", partitions=PARTITIONS)
            for name in ("lines", "socket"):
                await client.subscribe("t", name, type="shared", ack_timeout_s=LEASE_S)
            publisher = asyncio.create_task(self._publish(client))
            self.kept = [
                asyncio.create_task(one)
                for one in (
                    self._follow(client),
                    self._keep(self.followed.run),
                    self._keep(lambda url: self.lines.lines(url, client)),
                    self._keep(lambda url: self.socket.socket(url, client)),
                )
            ]
            for number in range(ROUNDS):
                await self._round(number)
            self.over = True
            await publisher
            await self._settle(client)
            for task in self.kept:
                task.cancel()
            await asyncio.gather(*self.kept, return_exceptions=True)
        self._judge()

    async def _round(self, number: int) -> None:
        before = self._progress()
        name = self.rng.choice([one.name for one in self.cluster.cluster.of_kind("broker")])
        await asyncio.sleep(self.rng.random())
        with contextlib.suppress(KeyError):
            self.cluster.kill(name)
        await self._until(lambda: all(map(operator.gt, self._progress(), before)), self._progress)
        wrong = self.lines.wrong + self.socket.wrong
        assert not wrong, (number, wrong[:5])

    async def _until(self, condition: Callable[[], bool], shown: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        while not condition():
            for task in self.kept:
                if task.done():
                    task.result()
                    raise AssertionError("a stream ended by itself")
            assert loop.time() < deadline, f"not within {SETTLE_S} s: {shown()}"
            await asyncio.sleep(0.05)

    def _progress(self) -> list[int]:
        return [
            len(one)
            for one in (
                self.sent, self.followed.offsets, self.by_client, self.lines.acked,
                self.socket.acked,
            )
        ]  # fmt: skip

    async def _follow(self, client: AsyncClient) -> None:
        async for message in client.messages("t", follow=True):
            self.by_client.append(message.offset)

    async def _publish(self, client: AsyncClient) -> None:
        producer = await client.producer("t", linger_ms=1)
        while not self.over:
            receipts = [
                await producer.send("m", partition=partition) for partition in range(PARTITIONS)
            ]
            for receipt in receipts:
                found = await receipt
                self.sent.append((found.partition, found.offset))
            await asyncio.sleep(0.01)
        await producer.close()

    async def _keep(self, run: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Keep a stream open: open it at any broker when its own is gone, or when an ack is not
        answered in time."""
        while True:
            url = self.rng.choice(self.cluster.cluster.urls)
            try:
                await run(url)
            except (aiohttp.ClientError, TimeoutError, OSError, Unreachable):
                pass
            except ApiError as error:
                if not error.can_retry:
                    raise
            await asyncio.sleep(0.1)

    async def _settle(self, client: AsyncClient) -> None:
        sent = set(self.sent)
        of_first = sum(partition == 0 for partition, _ in sent)

        def left() -> Any:
            return (
                sorted(sent - self.lines.times.keys())[:5],
                sorted(sent - self.socket.times.keys())[:5],
                of_first - len(self.followed.offsets),
                of_first - len(self.by_client),
            )

        try:
            await self._until(lambda: not any(left()), left)
        except AssertionError as error:
            for name in ("lines", "socket"):
                error.add_note(f"{name}: {await client.subscription('t', name).stats()}")
            error.add_note(f"sent: {len(sent)}, streams begun: {self.lines.begun}")
            raise
        # An ack whose answer was lost with its broker may have taken effect: then the message
        # never comes.
        for name in ("lines", "socket"):
            backlog = -1
            async with asyncio.timeout(SETTLE_S):
                while backlog:
                    backlog = (await client.subscription("t", name).stats())["backlog"]
                    await asyncio.sleep(0.1)

    def _judge(self) -> None:
        assert len(self.sent) == len(set(self.sent)) > 5 * ROUNDS
        for partition in range(PARTITIONS):
            offsets = sorted(offset for number, offset in self.sent if number == partition)
            assert offsets == [*range(len(offsets))]
        assert self.followed.offsets == [*range(len(self.followed.offsets))]
        assert self.by_client == [*range(len(self.by_client))]
        again = {
            one.name: sum(times - 1 for times in one.times.values())
            for one in (self.lines, self.socket)
        }
        wrong = self.lines.wrong + self.socket.wrong
        print(
            f"{ROUNDS} kills, {len(self.sent)} messages; streams begun: "
            f"{self.followed.begun}, {self.lines.begun}, {self.socket.begun}; "
            f"delivered again: {again}"
        )
        assert not wrong, wrong[:5]
