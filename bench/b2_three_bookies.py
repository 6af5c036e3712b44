"""B2: one ledger writer, three bookie processes, E = Qw = 3, Qa = 2, fsync before every ack.

    python -m bench.b2_three_bookies              # 100 B, 1 KB, 64 KB, three rounds each

Writer and bookies are separate processes. Counts confirmed entries; the clock stops when the ack
quorum has confirmed the last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import structlog
import uvloop

from bench.program import arguments, end
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import RealDisk
from octavo.bookie.node import BookieNode
from octavo.clock import wall_clock_ms
from octavo.ledger.client import LedgerClient
from octavo.ledger.options import LedgerOptions
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.opening import open_store
from octavo.security.keys.data_keys import DataKeys
from octavo.security.keys.key_file import NamespaceKey, with_key
from octavo.security.keys.sources import FileKeys

BURST_BYTES = 64 * 1024
TICK_S = 120.0
NAMESPACE = "bench"


async def serve(folder: str, name: str, url: str, settings: dict[str, Any]) -> None:
    store = open_store(url)
    await store.start()
    config = BookieConfig(
        port=0,
        bookie_id=name,
        journal_directories=(f"{folder}/{name}/journal",),
        ledger_directories=(f"{folder}/{name}/ledgers",),
        **settings,
    )
    node = BookieNode(
        config,
        store,
        disk=RealDisk(),
        rng=random.Random(name),
        clock=wall_clock_ms,
    )
    await node.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    parent = os.getppid()
    while not stop.is_set() and os.getppid() == parent:  # end when the benchmark is killed
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1.0)
    await node.stop()
    await store.close()


@contextlib.contextmanager
def bookies(
    folder: str, url: str, count: int, **settings: Any
) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "bench.b2_three_bookies", "--serve", folder, "--url", url]
    command += ["--settings", json.dumps(settings)]
    running = [
        subprocess.Popen([*command, "--name", f"b{number}"]) for number in range(1, count + 1)
    ]
    try:
        yield running
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


async def write(writer: LedgerWriter, payload: bytes, seconds: float) -> tuple[int, float]:
    burst = max(1, BURST_BYTES // len(payload))
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    added = 0
    answered = 0
    over = False

    def done(_: int, error: Exception | None) -> None:
        nonlocal answered
        if error is not None and not finished.done():
            finished.set_exception(error)
        answered += 1
        if over and answered == added and not finished.done():
            finished.set_result(None)

    started = time.perf_counter()
    add = writer.add
    while time.perf_counter() - started < seconds and not finished.done():
        for _ in range(burst):
            add(payload, done)
        added += burst
        await writer.drain()
        await asyncio.sleep(0)
    over = True
    if answered < added:
        await asyncio.wait_for(finished, TICK_S)
    return added, time.perf_counter() - started


def cpu_of(processes: list[subprocess.Popen[bytes]]) -> float:
    return sum(sum(psutil.Process(p.pid).cpu_times()[:2]) for p in processes)


@contextlib.asynccontextmanager
async def ledger_client(url: str) -> AsyncIterator[LedgerClient]:
    store = open_store(url)
    await store.start()
    options = LedgerOptions(pending_bytes_max=16 << 20, pending_entries_max=50_000)
    text = with_key("", NamespaceKey(NAMESPACE, "k1", bytes(32)))
    source = FileKeys("keys", lambda: 1, lambda: text)
    keys = DataKeys(source, random_bytes=os.urandom, recheck_s=0.5)
    client = LedgerClient(store, rng=random.Random(7), options=options, keys=keys)
    await client.start()
    try:
        async with asyncio.timeout(30):
            while len(client.bookies.available) < 3:
                await asyncio.sleep(0.05)
                await client.bookies.reload()
        yield client
    finally:
        await client.close()
        await store.close()


async def measure(
    url: str,
    servers: list[subprocess.Popen[bytes]],
    sizes: list[int],
    seconds: float,
    rounds: int,
    *,
    encrypted: bool = False,
) -> list[dict[str, Any]]:
    kinds = [(size, how) for size in sizes for how in ((None, NAMESPACE) if encrypted else (None,))]
    rates: dict[tuple[int, str | None], list[float]] = {kind: [] for kind in kinds}
    writer_us: dict[tuple[int, str | None], list[float]] = {kind: [] for kind in kinds}
    bookie_us: dict[tuple[int, str | None], list[float]] = {kind: [] for kind in kinds}
    async with ledger_client(url) as client:
        for round_number in range(rounds + 1):
            for size, encrypted_for in kinds:
                writer = await client.create(encrypted_for=encrypted_for)
                cpu, theirs = time.process_time(), cpu_of(servers)
                warming = round_number == 0
                count, took = await write(
                    writer,
                    random.Random(size).randbytes(size),
                    min(1.0, seconds) if warming else seconds,
                )
                cpu, theirs = time.process_time() - cpu, cpu_of(servers) - theirs
                metadata = await writer.close()
                assert metadata.last_entry == count - 1, (metadata.last_entry, count)
                assert len(metadata.fragments) == 1, "the ensemble changed during the measurement"
                if not warming:
                    rates[size, encrypted_for].append(count / took)
                    writer_us[size, encrypted_for].append(1e6 * cpu / count)
                    bookie_us[size, encrypted_for].append(1e6 * theirs / count / len(servers))
    return [
        {
            "payload_bytes": kind[0],
            "encrypted": kind[1] is not None,
            "entries_per_s": round(statistics.median(rates[kind])),
            "mb_per_s": round(statistics.median(rates[kind]) * kind[0] / 1e6, 1),
            "rounds_entries_per_s": [round(rate) for rate in rates[kind]],
            "writer_cpu_us_per_entry": round(statistics.median(writer_us[kind]), 2),
            "bookie_cpu_us_per_entry": round(statistics.median(bookie_us[kind]), 2),
        }
        for kind in kinds
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024, 65536])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--encrypted", action="store_true", help="each size also encrypted")
    parser.add_argument(
        "--data", default=None, help="the bookies' folder; default: a temporary folder"
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    if options.serve:
        uvloop.run(serve(options.serve, options.name, options.url, options.settings))
        return
    with tempfile.TemporaryDirectory(dir=options.data, prefix="octavo-b2-") as folder:
        url = f"file://{folder}/metadata.db"
        with bookies(folder, url, 3) as servers:
            results = uvloop.run(
                measure(
                    url, servers, options.sizes, options.seconds, options.rounds,
                    encrypted=options.encrypted,
                )
            )  # fmt: skip
    for result in results:
        print(
            f"{result['payload_bytes']:>6} B {'encrypted ' * result['encrypted']} "
            f"{result['entries_per_s']:>9,} entries/s  "
            f"{result['mb_per_s']:>7} MB/s x 3   processor time of one entry: writer "
            f"{result['writer_cpu_us_per_entry']} us, each bookie "
            f"{result['bookie_cpu_us_per_entry']} us"
        )
    end(options, "b2_three_bookies", results=results)


if __name__ == "__main__":
    main()
