"""The cluster under attack, and tools of an attacker: raw bytes in, status out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.attack.memory import Peaks
from tests.support.processes.standalone import Standalone

ANSWER_S = 30.0


class Said(NamedTuple):
    """An answer; status 0 when the connection ended without an answer."""

    status: int
    body: bytes

    @property
    def code(self) -> str:
        with contextlib.suppress(ValueError, AttributeError):
            return str(json.loads(self.body).get("code", ""))
        return ""


class World:
    def __init__(self, cluster: Standalone) -> None:
        self.cluster = cluster
        found = cluster.cluster
        self.names = [one.name for one in found.of_kind("broker")]
        self.brokers = [_address(one.address) for one in found.of_kind("broker")]
        self.bookies = [_address(one.address) for one in found.of_kind("bookie")]
        self.pids = cluster.pids()
        self.peaks = Peaks(cluster.folder, self.pids)
        self.tls: ssl.SSLContext | None = None
        """The attacker's trusted CA, where the cluster has TLS."""

    async def prepare(self) -> None:
        await self.topic("attacked")
        said = await self.ask("PUT", "/v1/topics/public/attacked/subscriptions/s")
        assert said.status in (200, 201), said

    async def close(self) -> None:
        pass

    async def harm(self) -> list[str]:
        return []

    @property
    def urls(self) -> list[str]:
        scheme = "http" if self.tls is None else "https"
        return [f"{scheme}://{host}:{port}" for host, port in self.brokers]

    @property
    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | list[Any] = b"",
        *,
        broker: int = 0,
        **headers: str,
    ) -> Said:
        """Send a request on a new connection; header names with `_` for `-`."""
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content_Type", "application/json")
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(body)}")
        lines += [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
        head = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")
        return await self.raw(head + body, broker=broker)

    async def raw(self, data: bytes, *, broker: int = 0, wait_s: float = ANSWER_S) -> Said:
        answer = await exchange(self.brokers[broker], data, wait_s, whole_length, self.tls)
        return said_in(answer)

    async def topic(self, name: str, **settings: Any) -> str:
        path = f"/v1/topics/public/{name}"
        said = await self.ask("PUT", path, settings)
        assert said.status in (200, 201), said
        return path

    async def owner(self, path: str) -> int:
        said = await self.ask("GET", f"{path}/partitions/0")
        return self.names.index(json.loads(said.body)["owner"])

    @contextlib.asynccontextmanager
    async def connections(
        self, count: int, data: bytes = b"", *, broker: int = 0
    ) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
        """Hold `count` connections to a broker that have sent `data`, until the block ends."""
        made: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        try:
            for start in range(0, count, 200):
                some = await asyncio.gather(
                    *(
                        open_to(self.brokers[broker], self.tls)
                        for _ in range(min(200, count - start))
                    ),
                    return_exceptions=True,
                )
                for one in some:
                    if not isinstance(one, BaseException):
                        one[1].write(data)
                        made.append(one)
            yield made
        finally:
            for _, writer in made:
                writer.transport.abort()

    def named(self, kind: str) -> dict[str, tuple[str, int]]:
        return {one.name: _address(one.address) for one in self.cluster.cluster.of_kind(kind)}

    def rss(self) -> dict[str, int]:
        return {name: psutil.Process(pid).memory_info().rss for name, pid in self.pids.items()}

    def check_processes(self) -> Iterable[str]:
        alive = self.cluster.pids()
        for name, pid in self.pids.items():
            if alive.get(name) != pid:
                yield f"{name} is not the process that it was"

    def log_bytes(self) -> int:
        return sum(path.stat().st_size for path in _logs(self.cluster.folder))

    def traces(self) -> list[str]:
        return [
            line[:300]
            for path in _logs(self.cluster.folder)
            for line in path.read_text(errors="replace").splitlines()
            if "Traceback" in line
        ]


def _logs(folder: Path) -> list[Path]:
    return sorted((folder / "logs").iterdir())


def _address(text: str) -> tuple[str, int]:
    host, _, port = re.sub("^https?://", "", text).rpartition(":")
    return host, int(port)


async def open_to(
    address: tuple[str, int], tls: ssl.SSLContext | None = None, source: str = ""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    local = (source, 0) if source else None
    async with asyncio.timeout(ANSWER_S):
        return await asyncio.open_connection(*address, ssl=tls, local_addr=local)


def said_in(answer: bytes) -> Said:
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    return Said(int(words[1]) if len(words) > 1 and words[1].isdigit() else 0, body)


def whole_length(answer: bytes) -> int | None:
    """Return the length of an HTTP answer, once its head is there and names it."""
    head, end, _ = answer[:10_000].partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return len(head) + len(end) + int(length[1]) if end and length else None


async def exchange(
    address: tuple[str, int],
    data: bytes,
    wait_s: float,
    length_of: Callable[[bytes], int | None] = lambda _: None,
    tls: ssl.SSLContext | None = None,
    source: str = "",
) -> bytes:
    """Send, from the address `source`, and read until the answer is complete or the other side
    ends."""
    reader, writer = await open_to(address, tls, source)
    found, length = b"", None
    try:
        writer.write(data)
        with contextlib.suppress(ConnectionError, TimeoutError, ssl.SSLError):
            async with asyncio.timeout(wait_s):
                while more := await reader.read(1 << 16):
                    found += more
                    length = length or length_of(found)
                    if length is not None and len(found) >= length:
                        break
    finally:
        writer.transport.abort()
    return found


Run = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Attempt:
    """An action of an unruly client. `run` raises when the answer was wrong."""

    name: str
    run: Run
    long: bool
    seconds: float = 0.0
    turn_s_max: float | None = None
    """The most processor time for a turn of a loop meanwhile; None: only reported."""
    turn_of: str = "broker"
    """The kind of process whose loops are judged: `broker` or `bookie`."""
    last: bool = False
    """Run after all others: what it takes is not given back for minutes."""
    collections: bool = True
    """Whether full garbage collections count as part of a turn (docs/decisions/83)."""


ATTEMPTS: dict[str, Attempt] = {}


TURN_S_MAX = 0.05
"""The most that a turn of a broker's or a bookie's loop may cost, whatever a client sends."""


def attempt(
    name: str,
    *,
    long: bool = False,
    turn_s_max: float | None = None,
    turn_of: str = "broker",
    last: bool = False,
    seconds: float = 0.0,
    collections: bool = True,
) -> Callable[[Run], Run]:
    def enter(run: Run) -> Run:
        assert name not in ATTEMPTS, name
        ATTEMPTS[name] = Attempt(
            name, run, long, seconds, turn_s_max, turn_of, last, collections=collections
        )
        return run

    return enter


def refused(said: Said, *statuses: int) -> None:
    """Check the answer to bad input: one of these codes, or a closed connection where 0 is among
    them."""
    assert said.status in statuses, said
    assert b"Traceback" not in said.body, said


def enter_each(
    prefix: str, requests: Iterable[tuple[str, bytes]], statuses: tuple[int, ...]
) -> None:
    for name, data in requests:

        async def run(world: World, data: bytes = data) -> None:
            for broker in range(len(world.brokers)):
                refused(await world.raw(data, broker=broker, wait_s=10), *statuses)

        attempt(f"{prefix}: {name}")(run)
