"""`python -m tests.attack.stalls NAME=HOST:PORT …`: how long each process's loop stands still.
It asks each process a trivial question again and again. For each answer slower than `STALL_S` it
writes when, which process, how long, and its own delay meanwhile, which tells a busy machine
from a stalled loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from octavo.protocol.frames import read_request
from tests.attack.canary import CA

STALL_S = 0.25
PAUSE_S = 0.05
HTTP = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
FRAME = read_request(2**62, 0, 0, b"")


class Stall(NamedTuple):
    at_s: float
    who: str
    seconds: float
    own_seconds: float

    def __str__(self) -> str:
        own = f" (the one who asked was late by {self.own_seconds:.2f} s itself)"
        return f"{self.who} stood still for {self.seconds:.2f} s" + own * (self.own_seconds > 0.05)


class Stalls:
    def __init__(
        self,
        processes: Mapping[str, tuple[str, int]],
        path: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        names = [f"{name}={host}:{port}" for name, (host, port) in processes.items()]
        self._path = path
        with path.open("wb") as found:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.attack.stalls", *names],
                env=environment,
                stdout=found,
            )

    def since(self, at_s: float) -> Iterator[Stall]:
        for line in self._path.read_text().splitlines():
            stall = Stall(*json.loads(line))
            if stall.at_s >= at_s:
                yield stall

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class _Own:
    late_s = 0.0

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(PAUSE_S / 5)
            self.late_s = max(self.late_s, time.monotonic() - began - PAUSE_S / 5)


async def _ask(who: str, host: str, port: int, own: _Own) -> None:
    question = HTTP if who.startswith("broker") else FRAME
    ca = os.environ.get(CA)
    tls = ssl.create_default_context(cafile=ca) if ca else None
    while True:
        with contextlib.suppress(OSError, EOFError):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            while True:
                own.late_s, began = 0.0, time.monotonic()
                writer.write(question)
                if not await reader.read(1 << 16):
                    break
                now = time.monotonic()
                if now - began > STALL_S:
                    late = Stall(now, who, round(now - began, 3), round(own.late_s, 3))
                    print(json.dumps(late), flush=True)
                await asyncio.sleep(PAUSE_S)
            writer.close()
        await asyncio.sleep(PAUSE_S)


async def _run(names: list[str]) -> None:
    own = _Own()
    asks = []
    for name in names:
        who, _, address = name.partition("=")
        host, _, port = address.rpartition(":")
        asks.append(_ask(who, host, int(port), own))
    await asyncio.gather(own.run(), *asks)


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1:]))
