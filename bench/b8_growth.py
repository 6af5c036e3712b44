"""B8: the costs that grow with the stored data, and the costs that must not.

    python -m bench.b8_growth                                    # a minute or two
    python -m bench.b8_growth --topics 10000 --holes 1000000 --megabytes 20000   # 70 GB of disk

Measures publishing; creates many topics, much data, and a subscription with many ack holes;
measures publishing again; restarts the cluster, and reads from topics that were unused since.
Memory is PSS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from bench import b4_single
from bench.program import arguments, end
from bench.standalone import Typed, as_typed, owner_of
from octavo.protocol.records import Record, build_batch

SINGLE_RATE = 300.0
AT_ONCE = 16
MESSAGE_BYTES = 1000
BATCH_MESSAGES = 400
ASKED = 200
PATIENCE_S = 60.0
RETRY_S = 0.2
asked_twice: list[str] = []
"""The calls that were answered with 503 and repeated."""
RECORD_BATCH = {"Content-Type": "application/vnd.kafka.recordbatch.v2"}


def cost(url: str, seconds: float) -> dict[str, Any]:
    load = [sys.executable, "-m", "bench.b3_publish", "--url", url, "--rounds", "1"]
    load += ["--modes", "batch", "--seconds", str(seconds)]
    done = subprocess.run(load, stdout=subprocess.PIPE, check=True, text=True)
    batch = json.loads(done.stdout.splitlines()[-1])["batch"]["rounds"][0]
    job = {
        "url": owner_of(url, "b8"), "topic": "b8", "rate": SINGLE_RATE, "seconds": seconds,
        "connections": 32,
    }  # fmt: skip
    single = b4_single.measured(job)
    return {
        "batches_k_per_s": round(batch["messages_per_s"] / 1000),
        "single_p50_ms": single["p50_ms"],
        "single_p99_ms": single["p99_ms"],
    }


def memory_mib(cluster: Typed) -> dict[str, int]:
    found: dict[str, int] = {"broker": 0, "bookie": 0, "other": 0}
    for process in (cluster.supervisor, *cluster.supervisor.children(recursive=True)):
        command = " ".join(process.cmdline())
        kind = next((k for k in ("broker", "bookie") if f"process.{k}" in command), "other")
        found[kind] += process.memory_full_info().pss
    return {kind: size // 2**20 for kind, size in found.items()}


async def each(count: int, work: Any) -> float:
    began = time.monotonic()
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return round(time.monotonic() - began, 2)


async def ok(session: aiohttp.ClientSession, method: str, path: str, **more: Any) -> Any:
    """Make a call, repeated for a while after 503. Raises `SystemExit` for a refusal."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        async with session.request(method, path, **more) as response:
            body = await response.read()
        if response.status < 300:
            return json.loads(body) if body else None
        if response.status != 503 or time.monotonic() > deadline:
            raise SystemExit(f"{method} {response.url}: {response.status} {body!r}")
        asked_twice.append(path)
        await asyncio.sleep(RETRY_S)


async def grow(url: str, options: argparse.Namespace) -> dict[str, Any]:
    batch = build_batch(
        [Record(b"k", os.urandom(MESSAGE_BYTES), (), 1) for _ in range(BATCH_MESSAGES)]
    )
    found: dict[str, Any] = {}
    async with aiohttp.ClientSession(f"{url}/v1/topics/public/") as session:

        async def topic(number: int) -> None:
            await ok(session, "PUT", f"many-{number}")

        async def first(number: int) -> None:
            await ok(session, "POST", f"many-{number}/messages", data=b"first")

        async def data(_: int) -> None:
            await ok(session, "POST", "bulk/messages", data=batch, headers=RECORD_BATCH)

        found["topics_made_s"] = await each(options.topics, topic)
        found["topics_opened_s"] = await each(options.topics, first)
        await ok(session, "PUT", "bulk")
        batches = options.megabytes * 1_000_000 // len(batch)
        found["data_s"] = await each(batches, data)
        await ok(session, "PUT", "holes")
        await ok(session, "PUT", "holes/subscriptions/s", json={"start": "earliest"})
        small = build_batch([Record(None, b"x", (), 1) for _ in range(BATCH_MESSAGES)])

        async def some(_: int) -> None:
            await ok(session, "POST", "holes/messages", data=small, headers=RECORD_BATCH)

        await each(2 * options.holes // BATCH_MESSAGES, some)
        began, acked = time.monotonic(), 0
        while acked < options.holes:
            path = "holes/subscriptions/s/"
            given = await ok(session, "POST", path + "receive?max=1000&consumer=c&wait=1")
            ids = [one["ack_id"] for one in given["messages"]]
            if not ids:
                raise SystemExit(f"after {acked} holes a receive gives no more messages: {given}")
            said = {
                "ack_ids": ids[::2],
                "nack": [{"ack_id": one, "delay": "1h"} for one in ids[1::2]],
            }
            await ok(session, "POST", path + "ack", json=said)
            acked += len(ids[::2])
        found["holes"], found["holes_s"] = acked, round(time.monotonic() - began, 2)
    return found


async def asked_again(url: str, topics: int) -> float:
    async with aiohttp.ClientSession(f"{url}/v1/topics/public/") as session:

        async def read(number: int) -> None:
            place = number * (topics // ASKED)
            said = await ok(session, "GET", f"many-{place}/messages?from=earliest")
            if not said["messages"]:
                raise SystemExit(f"many-{place} has lost its message")

        return await each(min(ASKED, topics), read)


def sizes(folder: Path) -> dict[str, float]:
    found = {"index": 0, "entry_logs": 0}
    for path in folder.glob("bookie-*/ledgers/**/*"):
        if path.is_file() and "index" in path.parts:
            found["index"] += path.stat().st_size
        elif path.suffix == ".log":
            found["entry_logs"] += path.stat().st_size
    return {kind: round(size / 1e6, 1) for kind, size in found.items()}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--holes", type=int, default=50_000)
    parser.add_argument("--megabytes", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="octavo-b8-") as name:
        folder = Path(name) / "data"
        with as_typed(folder) as cluster:
            asyncio.run(_prepare(cluster.url))
            found["before"] = {**cost(cluster.url, options.seconds), "mib": memory_mib(cluster)}
            print(f"before: {found['before']}", flush=True)
            found["grown"] = asyncio.run(grow(cluster.url, options))
            print(f"grown: {found['grown']}", flush=True)
            found["after"] = {**cost(cluster.url, options.seconds), "mib": memory_mib(cluster)}
            print(f"after: {found['after']}", flush=True)
        found["disk_mb"] = sizes(folder)
        with as_typed(folder) as cluster:
            found["ready_again_s"] = round(cluster.took_s, 2)
            found["asked_again_s"] = asyncio.run(asked_again(cluster.url, options.topics))
    print(
        f"ready again after {found['ready_again_s']} s, {min(ASKED, options.topics)} topics asked "
        f"in {found['asked_again_s']} s; MB on disk: {found['disk_mb']}"
    )
    end(options, "b8_growth", **found, asked_twice=len(asked_twice))


async def _prepare(url: str) -> None:
    async with aiohttp.ClientSession(f"{url}/v1/topics/public/") as session:
        await ok(session, "PUT", "b8")
        await ok(session, "POST", "b8/messages", data=b"first")


if __name__ == "__main__":
    main()
