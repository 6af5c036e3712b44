"""The reader process of `bench.b5_reads`: each reader reads an old ledger, again and again.

It makes batch reads of 1 MiB, two at a time, and counts answers without decoding them.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import uvloop

from octavo.protocol.frames import BATCH_ANSWER, LENGTH, FrameReceiver, batch_read_request
from octavo.protocol.limits import FRAME_BYTES_MAX

MIB = 1024 * 1024
UNDER_WAY = 2
BATCH_BYTES = MIB
LOOK_S = 0.001


class Link(asyncio.BufferedProtocol):
    """Passes received bytes to `on_data`, which returns how many it used."""

    def __init__(self, on_data: Callable[[memoryview], int]) -> None:
        self._on_data = on_data
        self._receiver = FrameReceiver(FRAME_BYTES_MAX, bytearray(4 * MIB))
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=64 * MIB)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.failed.done():
            self.failed.set_exception(ConnectionError(f"the bookie closed the connection: {exc}"))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        data = self._receiver.received(nbytes)
        if data:
            try:
                self._receiver.keep(data, self._on_data(data))
            except Exception as error:
                if not self.failed.done():
                    self.failed.set_exception(error)
                self.transport.abort()

    @classmethod
    async def to(cls, port: int, on_data: Callable[[memoryview], int]) -> Link:
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: cls(on_data), "127.0.0.1", port)
        return link


def check_links(links: list[Link]) -> None:
    for link in links:
        if link.failed.done():
            link.failed.result()


class CatchUp:
    def __init__(self, ledger_id: int, count: int, entry_bytes: int) -> None:
        self._ledger_id = ledger_id
        self._count = count
        self._cost = LENGTH.size + entry_bytes
        self._step = (BATCH_BYTES - BATCH_ANSWER.size) // self._cost
        self._next = 0
        self.link: Link
        self.bytes = 0

    def ask(self) -> None:
        if self._next >= self._count:
            self._next = 0
        self.link.transport.write(
            batch_read_request(self._ledger_id, self._next, 1, self._step, BATCH_BYTES)
        )
        self._next += self._step

    def on_data(self, data: memoryview) -> int:
        position = 0
        while len(data) - position >= BATCH_ANSWER.size:
            length, _, code, ledger_id, *_ = BATCH_ANSWER.unpack_from(data, position)
            if position + LENGTH.size + length > len(data):
                break
            assert (code, ledger_id) == (0, self._ledger_id), code
            position += LENGTH.size + length
            self.bytes += length
            self.ask()
        return position


async def read_on(told: dict[str, Any]) -> None:
    readers = []
    for number in range(told["readers"]):
        reader = CatchUp(told["first_ledger"] + number, told["count"], told["entry_bytes"])
        reader.link = await Link.to(told["ports"][number % len(told["ports"])], reader.on_data)
        readers.append(reader)
        for _ in range(UNDER_WAY):
            reader.ask()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    while not all(reader.bytes for reader in readers):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    before, started = [reader.bytes for reader in readers], time.perf_counter()
    print("reading", flush=True)
    await ended.wait()
    took = time.perf_counter() - started
    check_links([reader.link for reader in readers])
    rates = [
        (reader.bytes - already) / took / 1e6
        for reader, already in zip(readers, before, strict=True)
    ]
    print(json.dumps([round(rate, 1) for rate in rates]), flush=True)


class Readers:
    def __init__(self, told: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "bench.b5_catch_up", json.dumps(told)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "reading":
            raise SystemExit("the readers did not start, see above")

    def end(self) -> list[float]:
        self._process.terminate()
        found: list[float] = json.loads(self._process.communicate(timeout=30)[0])
        return found


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].startswith("{"):
        raise SystemExit(f"{__doc__}\nb5_reads starts it: python -m bench.b5_reads --help")
    uvloop.run(read_on(json.loads(sys.argv[1])))
