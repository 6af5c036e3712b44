"""The memory of an overloaded bookie: half frames, long entries, a slow disk, or readers that do
not read, each from thousands of connections.

    python -m bench.overload --connections 10000 --seconds 20 [--only slow_disk]

The goal is at most caches + 150 MiB. The peak is the kernel's figure (VmHWM), which misses no
moment. The short form is a test (tests/unit/bookie/test_bounds_of_requests.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import uvloop

from bench.program import arguments, end
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import File, RealDisk, RealFile
from octavo.bookie.node import BookieNode
from octavo.clock import wall_clock_ms
from octavo.metadata.opening import open_store
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry
from octavo.protocol.frames import Flag, add_prefix, batch_read_request, read_request

MIB = 1024 * 1024
ENTRY_BYTES = 5 * MIB - 1024
RESIDENT_MIB_MAX = 150
KEY = master_key(b"")
DIGEST = digest_for(DigestType.CRC32C, b"")


class SlowFile(RealFile):
    __slots__ = ("sync_s",)
    sync_s: float

    def datasync(self) -> None:
        time.sleep(self.sync_s)
        super().datasync()


class SlowDisk(RealDisk):
    def __init__(self, sync_s: float) -> None:
        self.sync_s = sync_s

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        real = super().open(path, create=create, write=write)
        assert isinstance(real, RealFile)
        file = SlowFile(os.dup(real._fd), path)
        real.close()
        file.sync_s = self.sync_s
        return file


async def serve(folder: str, sync_s: float, settings: dict[str, Any]) -> None:
    """Print the port; then, for each input line, the budgets' peaks and counts of refusals."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    store = open_store(f"file://{folder}/metadata.db")
    await store.start()
    config = BookieConfig(
        port=0,
        bookie_id="b1",
        journal_directories=(f"{folder}/journal",),
        ledger_directories=(f"{folder}/ledgers",),
        journal_preallocate_bytes=MIB,
        **settings,
    )
    disk = SlowDisk(sync_s)
    node = BookieNode(config, store, disk=disk, rng=random.Random(1), clock=wall_clock_ms)
    await node.start()
    print(node.port, flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        peaks = {what: most for what, (_, most) in node.server.memory().items()}
        print(json.dumps({"peaks": peaks, "refused": refused_by(node)}), flush=True)
    await node.stop()
    await store.close()


def refused_by(node: BookieNode) -> dict[str, float]:
    return {
        ",".join(sample.labels.values()): sample.value
        for family in node.metrics.registry.collect()
        if family.name in ("octavo_bookie_throttled", "octavo_bookie_connections_stalled")
        for sample in family.samples
        if sample.name.endswith("_total")
    }


class Bookie:
    def __init__(self, folder: str, *, sync_s: float = 0.0, **settings: Any) -> None:
        told = json.dumps({"connections_max": 20_000, **settings, "sync_s": sync_s})
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", folder, "--settings", told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        while not (line := self._read_line()).isdigit():
            assert line or self._process.poll() is None, "the bookie did not start"
        self.port = int(line)

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def resident_mib(self, field: str = "VmRSS") -> float:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024

    def figures(self) -> dict[str, dict[str, float]]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        while not (line := self._read_line()).startswith("{"):
            assert line or self._process.poll() is None, "the bookie has ended"
        found: dict[str, dict[str, float]] = json.loads(line)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait(10)
        self._process.stdout.close()


class Result(NamedTuple):
    name: str
    connections: int
    idle_mib: float
    peak_mib: float
    modest_ms: float
    """The latency of a client with little load; NaN without such a client."""
    figures: dict[str, dict[str, float]]


def connect(port: int, count: int) -> list[socket.socket]:
    found = []
    for _ in range(count):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setblocking(False)
        found.append(sock)
    return found


def push(
    sockets: list[socket.socket],
    data: Callable[[int], bytes],
    for_s: float,
    *,
    take_answers: bool = False,
) -> list[int]:
    """Send data on each socket as far as the bookie takes them; return the bytes of each."""
    sent = [0] * len(sockets)
    end = time.monotonic() + for_s
    selector = selectors.DefaultSelector()
    for number, sock in enumerate(sockets):
        events = selectors.EVENT_WRITE | (selectors.EVENT_READ if take_answers else 0)
        selector.register(sock, events, (number, memoryview(data(number))))
    while time.monotonic() < end and selector.get_map():
        for key, events in selector.select(0.1):
            number, rest = key.data
            sock = sockets[number]
            try:
                if events & selectors.EVENT_READ and not sock.recv(1 << 20):
                    raise ConnectionResetError
                if events & selectors.EVENT_WRITE and sent[number] < len(rest):
                    sent[number] += sock.send(rest[sent[number] : sent[number] + (1 << 18)])
            except BlockingIOError:
                continue
            except OSError:
                selector.unregister(sock)
                continue
            if sent[number] == len(rest) and not take_answers:
                selector.unregister(sock)
    selector.close()
    return sent


def adds_of(ledger_id: int, ids: Iterable[int], payload: bytes = b"payload") -> bytes:
    frames = []
    for entry_id in ids:
        length = (entry_id + 1) * len(payload)
        entry = pack_entry(DIGEST, ledger_id, entry_id, entry_id - 1, length, payload)
        frames += [add_prefix(KEY, len(entry), int(Flag.CRC32C | Flag.RANGE_ACK)), entry]
    return b"".join(frames)


def ask(port: int, request: bytes, answer_bytes_min: int = 1) -> float:
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(request)
        got = 0
        while got < answer_bytes_min:
            more = sock.recv(1 << 20)
            assert more, "the bookie hung up"
            got += len(more)
    return 1000 * (time.monotonic() - started)


@contextlib.contextmanager
def _scenario(folder: str, **settings: Any) -> Iterator[Bookie]:
    bookie = Bookie(folder, **settings)
    try:
        assert ask(bookie.port, adds_of(1, [0])) > 0
        yield bookie
    finally:
        bookie.close()


def _finish(
    name: str, bookie: Bookie, sockets: list[socket.socket], idle: float, *, asks: bool
) -> Result:
    modest_ms = ask(bookie.port, adds_of(1, [1])) if asks else math.nan
    figures = bookie.figures()
    peak = bookie.resident_mib("VmHWM")
    result = Result(name, len(sockets), idle, peak, modest_ms, figures)
    for sock in sockets:
        sock.close()
    return result


def half_frames(
    folder: str, count: int, for_s: float, *, asks: bool = True, **settings: Any
) -> Result:
    """All clients send half of a frame of 5 MiB, and then stop."""
    with _scenario(folder, **settings) as bookie:
        sockets = connect(bookie.port, count)
        idle = bookie.resident_mib()
        half = adds_of(2, [0], bytes(ENTRY_BYTES))[: ENTRY_BYTES // 2]
        push(sockets, lambda _: half, for_s)
        return _finish("half frames", bookie, sockets, idle, asks=asks)


def long_entries(
    folder: str, count: int, for_s: float, *, asks: bool = True, **settings: Any
) -> Result:
    """All clients add entries of 5 MiB; the disk is slow."""
    with _scenario(folder, **{"sync_s": 0.05, **settings}) as bookie:
        sockets = connect(bookie.port, count)
        idle = bookie.resident_mib()
        frames = adds_of(2, [0], bytes(ENTRY_BYTES)) * 2
        push(sockets, lambda _: frames, for_s, take_answers=True)
        return _finish("entries of 5 MiB", bookie, sockets, idle, asks=asks)


def slow_disk(
    folder: str, count: int, for_s: float, *, asks: bool = True, **settings: Any
) -> Result:
    """All clients add entries of 1 KB as fast as possible; the disk is slow."""
    with _scenario(folder, **{"sync_s": 0.05, **settings}) as bookie:
        sockets = connect(bookie.port, count)
        idle = bookie.resident_mib()
        frames = adds_of(2, range(1000), bytes(1000))
        push(sockets, lambda _: frames, for_s, take_answers=True)
        return _finish("slow disk", bookie, sockets, idle, asks=asks)


def slow_readers(
    folder: str, count: int, for_s: float, *, asks: bool = True, **settings: Any
) -> Result:
    """All clients request entries of 5 MiB, and do not read the answers."""
    with _scenario(folder, **settings) as bookie:
        for entry_id in range(8):
            ask(bookie.port, adds_of(2, [entry_id], bytes(ENTRY_BYTES)))
        sockets = connect(bookie.port, count)
        idle = bookie.resident_mib()
        requests = b"".join(
            read_request(2, entry_id) + batch_read_request(2, entry_id, 1, 8, 1 << 20)
            for entry_id in range(8)
        )
        push(sockets, lambda _: requests, for_s)
        time.sleep(for_s)
        return _finish("slow readers", bookie, sockets, idle, asks=asks)


SCENARIOS = (half_frames, long_entries, slow_disk, slow_readers)


def caches_mib(write_cache_mib: int = 32, read_cache_mib: int = 16) -> int:
    return 2 * write_cache_mib + read_cache_mib


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", choices=[scenario.__name__ for scenario in SCENARIOS])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, default={}, help=argparse.SUPPRESS)
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if args.serve:
        uvloop.run(serve(args.serve, args.settings.pop("sync_s"), args.settings))
        return
    results = []
    for scenario in SCENARIOS:
        if args.only in (None, scenario.__name__):
            with tempfile.TemporaryDirectory(prefix="overload-") as folder:
                result = scenario(folder, args.connections, args.seconds)
            results.append(result._asdict())
            print(
                f"{result.name:>16}  {result.connections:>6} connections  idle "
                f"{result.idle_mib:6.0f} MiB  peak {result.peak_mib:6.0f} MiB  a modest add "
                f"{result.modest_ms:7.1f} ms  {result.figures}",
                flush=True,
            )
    goal = caches_mib() + RESIDENT_MIB_MAX
    end(args, "overload", goal_mib=goal, results=results)


if __name__ == "__main__":
    main()
