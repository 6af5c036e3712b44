"""B1 with a bookie's other work: the same adds, with and without work in the background.

    python -m bench.b1_busy                     # 5 rounds of each, 100 B and 1 KB: some minutes

    quiet   only the adds: the write cache holds the whole round
    busy    write caches of 8 MiB, flushed again and again; entry logs of 16 MiB, compacted as half
            of their entries were deleted; and a process that reads random old entries

Rounds alternate, each with a new bookie in new folders. Adds as in b1_one_bookie. A busy round
without a flush, a compaction or a read is an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import uvloop

from bench.b1_one_bookie import OwnBookie, Workload, own_bookie, run_size
from bench.program import arguments, end
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerStore
from octavo.metadata.opening import open_store
from octavo.protocol.answers import ReadAnswer, parse_answers
from octavo.protocol.frames import Flag, read_request
from octavo.protocol.limits import FRAME_BYTES_MAX

MIB = 1024 * 1024
HOUR_MS = 3_600_000
FLAGS = int(Flag.CRC32C | Flag.RANGE_ACK)
OLD, KEPT, DOOMED, FRESH = 1, 2, 3, 4
"""Ledgers: for reads, two that share entry logs, and for the adds."""
OLD_BYTES = 96 * MIB
FODDER_BYTES = 160 * MIB
FODDER_ENTRY_BYTES = 1024
LOG_BYTES = 16 * MIB
COMMON: dict[str, Any] = {"read_cache_bytes_max": MIB, "scrub_interval_ms": HOUR_MS}
FILLING: dict[str, Any] = {
    **COMMON,
    "entry_log_bytes_max": LOG_BYTES,
    "write_cache_bytes_max": LOG_BYTES // 2,
    "gc_interval_ms": HOUR_MS,
}
MODES: dict[str, dict[str, Any]] = {
    "quiet": {
        **COMMON,
        "write_cache_bytes_max": 4096 * MIB,
        "flush_interval_ms": HOUR_MS,
        "gc_interval_ms": HOUR_MS,
    },
    "busy": {
        **FILLING,
        "gc_interval_ms": 100,
        "gc_quarantine_ms": 1,
        "gc_minor_interval_ms": 1,
        "gc_major_interval_ms": 1,
    },
}
"""Compaction has its default rate, `gc_bytes_per_s`."""


async def fill(folder: str) -> None:
    store = open_store(f"file://{folder}/metadata.db")
    await store.start()
    ledgers = LedgerStore(store, rng=random.Random(1))
    for ledger_id in (OLD, KEPT, DOOMED, FRESH):
        await ledgers.create(LedgerMetadata(ledger_id, 1, 1, 1, (Fragment(0, ("b1",)),)))
    await store.close()
    args = argparse.Namespace(v2=False, window=5_000, window_bytes=4 * MIB, timeout_s=300)

    async def one(bookie: OwnBookie, ledger_id: int, size: int) -> None:
        work = Workload(ledger_id, FODDER_ENTRY_BYTES, size // FODDER_ENTRY_BYTES, FLAGS)
        await run_size(bookie.address, args, FODDER_ENTRY_BYTES, work)

    with own_bookie(folder, **FILLING) as bookie:
        await one(bookie, OLD, OLD_BYTES)
        half = FODDER_BYTES // 2
        await asyncio.gather(one(bookie, KEPT, half), one(bookie, DOOMED, half))


async def doom(folder: str) -> None:
    """Delete a ledger, as its owner would; the bookie notices by itself."""
    store = open_store(f"file://{folder}/metadata.db")
    await store.start()
    await LedgerStore(store).delete(DOOMED)
    await store.close()


def forget_files(folder: str) -> None:
    os.sync()
    for path in Path(folder).rglob("*.log"):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


class Work:
    def __init__(self, bookie: OwnBookie) -> None:
        metrics = {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in _get(bookie, "/metrics").splitlines()
            if not line.startswith("#")
        }
        garbage = json.loads(_get(bookie, "/gc?limit=0"))
        rounds = [garbage["total"], *(garbage["last_rounds"][:1] if garbage["running"] else [])]
        self.facts = {
            "flushes": int(metrics["octavo_bookie_flush_bytes_count"]),
            "flushed_mb": metrics["octavo_bookie_flush_bytes_sum"] / 1e6,
            "compaction_read_mb": sum(one["read_bytes"] for one in rounds) / 1e6,
            "compaction_copied_mb": sum(one["copied_bytes"] for one in rounds) / 1e6,
            "logs_removed": sum(one["logs_removed"] for one in rounds),
            "cold_reads": int(metrics['octavo_bookie_lookups_total{place="entry_log"}']),
        }
        self.compacting = garbage["progress"] is not None
        usage = psutil.Process(bookie.pid).cpu_times()
        self.cpu_s = usage.user + usage.system

    def since(self, before: Work) -> dict[str, float]:
        return {name: round(now - before.facts[name], 1) for name, now in self.facts.items()}


def _get(bookie: OwnBookie, path: str) -> str:
    url = f"http://127.0.0.1:{bookie.admin_port}{path}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read(), "utf-8")


async def until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within 30 s")
        await asyncio.sleep(0.05)


def reader_of(bookie: OwnBookie) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.b1_busy", "--read", str(bookie.address[1])]
    )


def read_on(port: int) -> None:
    rng = random.Random(7)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while True:
            connection.sendall(read_request(OLD, rng.randrange(OLD_BYTES // FODDER_ENTRY_BYTES)))
            data = b""
            answers: list[Any] = []
            while not answers:
                data += connection.recv(65536) or sys.exit("the bookie closed the connection")
                answers, _ = parse_answers(memoryview(data), FRAME_BYTES_MAX)
            found = answers[0]
            assert isinstance(found, ReadAnswer), found
            assert found.code == 0, found
            assert len(found.entry) > FODDER_ENTRY_BYTES, found


async def one_round(args: argparse.Namespace, mode: str, size: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="b1-", dir=args.folder) as folder:
        await fill(folder)
        forget_files(folder)
        work = Workload(FRESH, size, min(args.entries, args.bytes_max // size), FLAGS)
        with own_bookie(folder, **MODES[mode]) as bookie:
            reader = None
            try:
                if mode == "busy":
                    await doom(folder)
                    await until("compaction", lambda: Work(bookie).compacting)
                    reader = reader_of(bookie)
                    seen = Work(bookie).facts["cold_reads"]
                    await until("cold reads", lambda: Work(bookie).facts["cold_reads"] > seen)
                before = Work(bookie)
                result = await run_size(bookie.address, args, size, work)
                after = Work(bookie)
            finally:
                if reader is not None:
                    reader.kill()
                    reader.wait()
    beside = after.since(before)
    cpu_us = (after.cpu_s - before.cpu_s) * 1e6 / work.count
    result |= {"mode": mode, "bookie_cpu_us_per_entry": round(cpu_us, 2), "beside": beside}
    result["compacting_at_the_end"] = after.compacting
    check(mode, beside, compacting=after.compacting)
    return result


def check(mode: str, beside: dict[str, float], *, compacting: bool) -> None:
    if mode == "quiet":
        if any(beside.values()):
            raise SystemExit(f"a quiet round was not quiet: {beside}")
        return
    idle = [name for name, done in beside.items() if not done and name != "logs_removed"]
    if beside["flushes"] < 3 or idle or not compacting:
        raise SystemExit(
            f"a busy round was not busy: {beside}, "
            f"{'compacting' if compacting else 'no more compaction'} at its end"
        )


def show(result: dict[str, Any]) -> None:
    beside = result["beside"]
    what = ""
    if result["mode"] == "busy":
        what = (
            f"  {beside['flushes']:.0f} flushes of {beside['flushed_mb']:.0f} MB, compaction read "
            f"{beside['compaction_read_mb']:.0f} and copied {beside['compaction_copied_mb']:.0f} "
            f"MB, {beside['cold_reads']:.0f} cold reads"
        )
    print(
        f"{result['payload_bytes']:>6} B  {result['mode']:<5}  {result['entries_per_s']:>9,} "
        f"entries/s  p99 {result['p99_ms']:>7.1f} ms  "
        f"{result['bookie_cpu_us_per_entry']:>5.2f} µs of CPU each{what}",
        flush=True,
    )


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for size in sorted({result["payload_bytes"] for result in results}):
        row: dict[str, Any] = {"payload_bytes": size}
        for mode in MODES:
            mine = [one for one in results if (one["payload_bytes"], one["mode"]) == (size, mode)]
            for name in ("entries_per_s", "p99_ms", "bookie_cpu_us_per_entry"):
                row[f"{mode}_{name}"] = round(statistics.median(one[name] for one in mine), 2)
        row["ratio"] = round(row["busy_entries_per_s"] / row["quiet_entries_per_s"], 2)
        found.append(row)
        print(
            f"{size:>6} B  median quiet {row['quiet_entries_per_s']:,.0f}, busy "
            f"{row['busy_entries_per_s']:,.0f} entries/s: {row['ratio']:.0%}"
        )
    return found


async def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    for number in range(args.rounds):
        for size in args.sizes:
            for mode in list(MODES)[:: 1 if number % 2 == 0 else -1]:
                results.append({"round": number, **await one_round(args, mode, size)})
                show(results[-1])
    return results


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--bytes-max", type=int, default=400 * MIB, help="payload bytes per round")
    parser.add_argument("--window", type=int, default=5_000, help="entries in flight")
    parser.add_argument("--window-bytes", type=int, default=16 * MIB, help="bytes in flight")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="the bookies' folder; default: a temporary folder")
    parser.add_argument("--timeout-s", type=float, default=300)
    parser.add_argument("--read", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.v2 = False
    if args.read:
        read_on(args.read)
    results = uvloop.run(measure(args))
    end(args, "b1_busy", modes=MODES, summary=summary(results), results=results)


if __name__ == "__main__":
    main()
