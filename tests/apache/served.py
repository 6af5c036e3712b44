"""Octavo's brokers on a cluster of the matrix, and users of a topic who note their answers."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from octavo import AsyncClient
from octavo.standalone.ports import free_port
from tests.apache.grounds import Grounds
from tests.interop.ours import OCTAVO
from tests.interop.processes import Process
from tests.support.kit.history import Call
from tests.support.processes.audit import problems, stored, texts
from tests.support.processes.users import (
    SUBSCRIPTION,
    Consumer,
    Follower,
    Place,
    Publisher,
    Record,
    note_read,
    payload,
)
from tests.support.raw_bookie import until

SESSION_MS = 4_000
SETTLE_S = 60.0
ANSWER_S = 45.0
PARTITIONS = 3
SETTINGS = f"""session_timeout_ms = {SESSION_MS}
log_format = "json"

[broker]
state_ledger_entries_max = 200
trim_interval_ms = 500
tail_cache_bytes_max = 65536
"""
"""So small that state ledgers are replaced, and that readers at the end need the bookies."""


def metadata_of(grounds: Grounds) -> str:
    return f"zk://127.0.0.1:{grounds.zookeeper.port}/"


async def eventually(holds: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.3)


def auto_recovery(grounds: Grounds) -> Process:
    conf = grounds.folder / "auto-recovery.conf"
    port = grounds.zookeeper.port
    conf.write_text(
        f"metadataServiceUri=zk+hierarchical://127.0.0.1:{port}/ledgers\n"
        "allowLoopback=true\nadvertisedAddress=127.0.0.1\n"
        "openLedgerRereplicationGracePeriod=2000\nrwRereplicateBackoffMs=1000\n"
        "rereplicationEntryBatchSize=200\n"
    )
    main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
    return grounds.start("auto-recovery", grounds.java.command(main, "--conf", str(conf)))


class OurBroker:
    def __init__(self, grounds: Grounds, name: str) -> None:
        self.name = name
        self._grounds = grounds
        self._port = free_port()
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        config = self._grounds.folder / f"{self.name}.toml"
        config.write_text(SETTINGS)
        command = [str(OCTAVO), "broker", "--metadata", metadata_of(self._grounds)]
        command += ["--port", str(self._port), "--broker-id", self.name, "--config", str(config)]
        self._process = self._grounds.start(self.name, command)
        self._process.wait_until_listening(self._port)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()


class Singles:
    """Publishes messages singly, each after the answer to the message before, without repeats.
    It asks brokers in turn, so that half of the messages are forwarded."""

    def __init__(self, urls: list[str], topic: str, record: Record, name: str) -> None:
        self._urls = itertools.cycle([f"{url}/v1/topics/public/{topic}/messages" for url in urls])
        self._record = record
        self._name = name
        self.stopping = False
        self.acked = 0
        self.failed: list[str] = []
        self.longest_s = 0.0

    async def run(self, rate: float) -> None:
        loop = asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for number in itertools.count():
                if self.stopping:
                    return
                since = loop.time()
                await self._send(session, number)
                self.longest_s = max(self.longest_s, loop.time() - since)
                await asyncio.sleep(1 / rate)

    async def _send(self, session: aiohttp.ClientSession, number: int) -> None:
        record, text = self._record, payload(self._name, number)
        key = f"{self._name}-k{number % 5}"
        record.sent += 1
        record.keys[text] = key
        one = record.history.invoke(self._name, Call.SEND, value=text, key=key)
        headers = {"Content-Type": "text/plain", "Octavo-Key": key}
        try:
            async with session.post(next(self._urls), data=text.encode(), headers=headers) as found:
                answer: dict[str, Any] = await found.json()
                if found.status != 200:
                    raise aiohttp.ClientError(f"{found.status} {answer}")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            record.history.info(one, str(error))
            self.failed.append(f"{text[-30:]}: {type(error).__name__} {error}")
            return
        first = answer["first"]
        record.history.ok(one, first["offset"], log=str(first["partition"]))
        record.acked += 1
        self.acked += 1


class Users:
    """The users of a topic: batches, NDJSON, single messages; a shared subscription, an
    exclusive."""

    def __init__(self, urls: list[str], topic: str, seed: int = 1) -> None:
        self.urls = urls
        self.topic = topic
        self.record = Record()
        self._rng = random.Random(seed)
        self.client = AsyncClient(urls, attempt_s=10, retry_s=SETTLE_S, rng=self._rng)
        self.singles = Singles(urls, topic, self.record, f"{topic}-s")
        self._publishers = [
            Publisher(self.client, self.record, f"{topic}-b", topic=topic),
            Publisher(self.client, self.record, f"{topic}-n", topic=topic, encoding="ndjson"),
        ]
        self._publishing: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []
        self._follower: Follower | None = None
        self._found: dict[Place, tuple[str, str]] = {}

    async def start(self, rate: float = 60, **settings: Any) -> None:
        client, record = self.client, self.record
        settings.setdefault("rollover", {"entries": 150})
        await client.create_topic(self.topic, partitions=PARTITIONS, **settings)
        shared = await client.subscribe(self.topic, SUBSCRIPTION, type="shared", ack_timeout_s=3)
        exclusive = await client.subscribe(self.topic, Follower.NAME, ack_timeout_s=1)
        self._follower = Follower(exclusive, PARTITIONS, record)
        consumers = [Consumer(shared, record, self._rng, PARTITIONS, name) for name in ("c0", "c1")]
        runs = [self.singles.run(rate), *(one.run(rate) for one in self._publishers)]
        self._publishing = [asyncio.create_task(run) for run in runs]
        eager = [self._follower.run(), *(one.run() for one in consumers)]
        self._consuming = [asyncio.create_task(run) for run in eager]

    async def more(self, count: int = 150) -> None:
        goal = self.record.acked + count
        await until(lambda: self.record.acked >= goal, SETTLE_S)

    async def finish(self) -> list[str]:
        """Stop publishing, wait until all is consumed, read everything, and return the faults."""
        self.singles.stopping = True
        for one in self._publishers:
            one.stopping = True
        assert self._follower is not None
        try:
            async with asyncio.timeout(SETTLE_S):
                await asyncio.gather(*self._publishing)
            loop = asyncio.get_running_loop()
            deadline = loop.time() + SETTLE_S
            while True:
                found = self._found = await stored(self.urls, PARTITIONS, self.topic)
                ends = [sum(place[0] == n for place in found) for n in range(PARTITIONS)]
                consumed = self.record.consumed == set(found) and self._follower.done == ends
                if consumed or loop.time() >= deadline:
                    break
                await asyncio.sleep(0.2)
        finally:
            await self.stop()
        history = self.record.history
        for name in (SUBSCRIPTION, Follower.NAME):
            history.add_done("auditor", Call.DRAIN, group=name)
        note_read(self.record, "auditor", texts(found))
        left = len(set(found) - self.record.consumed)
        wrong = [f"{left} messages were not acked by the subscription"] if left else []
        if self._follower.done != ends:
            wrong.append(f"the exclusive subscription came to {self._follower.done}, not {ends}")
        return [*wrong, *problems(self.record, found)]

    async def read_again(self) -> list[str]:
        now = await stored(self.urls, PARTITIONS, self.topic)
        return [f"{place}: {text!r}" for place, (text, _) in (self._found.items() ^ now.items())]

    async def stop(self) -> None:
        tasks = (*self._publishing, *self._consuming)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()
