"""The well-behaved client: it publishes all the time, and knows which messages must be there.
`python -m tests.attack.canary PATH URL …` runs in its own process, because the attacker is busy.
For each acked message it writes the time (CLOCK_MONOTONIC) and the seconds it took."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import aiohttp

from tests.attack.world import World

PACE_S = 0.02
"""Between two messages: 50 a second."""
SLOWEST_SHARE = 0.5
LOOK_S = 0.02
BEGUN_S = 300.0
"""It begins before anything is judged, so a busy machine may take its time."""
CA, TOKEN = "ATTACK_CA", "ATTACK_TOKEN"
"""Environment variables: the CA of a cluster with TLS, and the token for a secured cluster."""


class Canary:
    """Publishes numbers to its own topic through any broker, and repeats until a 2xx."""

    def __init__(self, world: World, topic: str = "canary") -> None:
        self._world = world
        self._topic = topic
        self._path = f"/v1/topics/public/{topic}/messages"
        self._written = world.cluster.folder / "canary"
        self._said = world.cluster.folder / "canary.err"
        self._process: subprocess.Popen[bytes] | None = None
        self._acked: list[float] = []
        self._took_s: list[float] = []
        self._read_bytes = 0

    async def start(self) -> None:
        await self._world.topic(self._topic)
        self._begin()
        async with asyncio.timeout(BEGUN_S):
            while not self.acked_since(0.0):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)

    def _begin(self) -> None:
        with self._written.open("wb") as written, self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.attack.canary", self._path, *self._world.urls],
                env=self._world.environment,
                stdout=written,
                stderr=said,
            )

    async def stop(self) -> list[str]:
        """End it; return the faults of its topic."""
        self.kill()
        self._look()
        return [problem async for problem in self._audit()]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def problems(self, since_s: float, waited_s: float, share: float) -> Iterator[str]:
        """Check that it reached this share of its pace since then, when `waited_s` had that
        value: time without a processor does not count."""
        assert self._process is not None
        if self._process.poll() is not None:
            yield f"it ended: {self._said.read_text()[-2_000:]}"
        span_s = time.monotonic() - since_s
        idle_s = self.waited_s() - waited_s
        found = self.acked_since(since_s)
        if span_s > 1 and found < wanted_in(span_s, idle_s, share):
            yield (
                f"{found} messages were acked in {span_s:.1f} s ({idle_s:.1f} s without a "
                f"processor), less than {share:g} of its pace"
            )

    def waited_s(self) -> float:
        """Return how long it and the cluster's processes have waited for a processor, in sum."""
        assert self._process is not None
        return sum(map(waited_of, (self._process.pid, *self._world.pids.values())))

    def acked_since(self, since_s: float) -> int:
        self._look()
        return len(self._acked) - bisect.bisect_left(self._acked, since_s)

    def p99_since(self, since_s: float) -> float:
        self._look()
        took_s = sorted(self._took_s[bisect.bisect_left(self._acked, since_s) :])
        return took_s[len(took_s) * 99 // 100] if took_s else 0.0

    def _look(self) -> None:
        with self._written.open("rb") as written:
            written.seek(self._read_bytes)
            data = written.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            acked_s, took_s = map(float, line.split())
            self._acked.append(acked_s)
            self._took_s.append(took_s)

    async def _audit(self) -> AsyncIterator[str]:
        expected = 0
        offset = 0
        async with session_of(self._world.environment) as session:
            while True:
                url = f"{self._world.urls[0]}{self._path}?from={offset}&limit=1000"
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


def waited_of(pid: int) -> float:
    """Return the seconds in which a process's main thread had no processor; 0.0 where the kernel
    does not say."""
    try:
        words = Path(f"/proc/{pid}/schedstat").read_text().split()
    except OSError:
        return 0.0
    return int(words[1]) / 1e9


def wanted_in(span_s: float, idle_s: float, share: float) -> float:
    """Return how many messages have to be acked in `passed_s`, of which `waited_s` had no
    processor."""
    return max(0.0, span_s - idle_s) / PACE_S * share


def session_of(environment: Mapping[str, str]) -> aiohttp.ClientSession:
    ca, token = environment.get(CA), environment.get(TOKEN)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca) if ca else True),
        headers={"Authorization": f"Bearer {token}"} if token else None,
    )


async def _run(path: str, urls: list[str]) -> None:
    async with session_of(os.environ) as session:
        due = time.monotonic()
        for number in itertools.count():
            due += PACE_S
            began = time.monotonic()
            await _publish(session, path, urls, number)
            now = time.monotonic()
            print(now, round(now - began, 4), flush=True)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic() - 1)


async def _publish(session: aiohttp.ClientSession, path: str, urls: list[str], number: int) -> None:
    headers = {
        "Content-Type": "text/plain",
        "Producer-Id": "canary",
        "Producer-Epoch": "0",
        "Producer-Seq": str(number),
    }
    for turn in itertools.count(number):
        try:
            async with session.post(
                urls[turn % len(urls)] + path,
                data=b"message %d" % number,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=20),
            ) as answer:
                await answer.read()
                if answer.status in (200, 204):
                    return
                assert answer.status in (429, 503, 504), (answer.status, await answer.text())
        except (aiohttp.ClientError, TimeoutError):
            pass
        await asyncio.sleep(PACE_S)


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], sys.argv[2:]))
