"""Observers while the network is broken, and the criteria for being well again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp

from tests.network.hosts import Hosts
from tests.network.members import BROKER_PORT
from tests.support.kit.history import Call, Operation
from tests.support.processes.users import TOPIC, Record, payload

_ANSWER_S = 1.0
_PROBE_PAUSE_S = 0.2


@contextlib.asynccontextmanager
async def probes(hosts: Hosts, names: list[str], record: Record) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(_probe(hosts, name, record)) for name in names]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


def probe_name(host: str) -> str:
    return f"at {host}"


async def _probe(hosts: Hosts, name: str, record: Record) -> None:
    """Send one message at a time, each under a new key, without repeats."""
    url = f"http://{hosts.addresses[name]}:{BROKER_PORT}/v1/topics/public/{TOPIC}/messages"
    connector = aiohttp.TCPConnector(socket_factory=lambda _: hosts.socket_of(name))
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        while True:
            number = record.sent
            text = payload(name.replace("-", ""), number)
            key = f"{name}-{number}"
            record.sent += 1
            record.keys[text] = key
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                with record.history.during(probe_name(name), Call.SEND, value=text, key=key) as one:
                    async with session.post(
                        url, data=text.encode(), headers={"Octavo-Key": key}
                    ) as response:
                        response.raise_for_status()
                        first = (await response.json())["first"]
                    one.log, one.result = str(first["partition"]), first["offset"]
                record.acked += 1
            await asyncio.sleep(_PROBE_PAUSE_S)


def acked(record: Record, process: str, since: float) -> list[Operation]:
    """Return sends of processes with this name prefix, begun after `since`, acked by now."""
    found = []
    for one in reversed(record.history.operations):
        if one.invoked_at < since:
            break
        if one.call is Call.SEND and one.is_ok and one.process.startswith(process):
            found.append(one)
    return found


def unanswered(record: Record, before: float, since: float) -> int:
    return sum(
        one.completed_at is None and since <= one.invoked_at < before
        for one in record.history.operations
        if one.call is Call.SEND
    )


async def is_ready(session: aiohttp.ClientSession, hosts: Hosts, broker: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        url = f"http://{hosts.addresses[broker]}:{BROKER_PORT}/readyz"
        async with session.get(url) as response:
            return response.status == 200
    return False


async def registered(session: aiohttp.ClientSession, hosts: Hosts, broker: str) -> tuple[int, int]:
    base = f"http://{hosts.addresses[broker]}:{BROKER_PORT}/v1"
    counts = [0, 0]
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        for number, what in enumerate(("bookies", "brokers")):
            async with session.get(f"{base}/{what}") as response:
                response.raise_for_status()
                counts[number] = len((await response.json())[what])
    return counts[0], counts[1]


def plain_session() -> aiohttp.ClientSession:
    """Open a new connection for each question, with short deadlines."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True),
        timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
    )


class Logs:
    def __init__(self, folder: Path) -> None:
        self._paths = sorted((folder / "logs").glob("*.jsonl"))
        self._starts = {path: path.stat().st_size for path in self._paths}
        self.began = time.time()

    def events(self, event: str) -> Iterator[dict[str, object]]:
        for path in self._paths:
            with open(path, "rb") as file:
                file.seek(self._starts[path])
                for line in file:
                    if line.startswith(b"{") and line.endswith(b"\n"):
                        found = json.loads(line)
                        if found["event"] == event:
                            yield found
